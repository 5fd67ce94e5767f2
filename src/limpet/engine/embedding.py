"""Embedding what was said, in the background, as far behind the log as it has to be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from limpet import limits
from limpet.core.values.events import MessageAddedEvent, RecordedEvent
from limpet.engine.tasks import Beat
from limpet.memory.meaning.blocks import Vector, unit
from limpet.memory.meaning.embedding import Embedder
from limpet.memory.meaning.spoken import is_short, passages, text_of
from limpet.memory.meaning.vectors import VectorStore
from limpet.runtime import projections, state_cache
from limpet.stores import port

_BEFORE: Final = 4
"""Events that are looked at for what a short answer answers."""


class _Passage(msgspec.Struct, frozen=True):
    user_id: str
    said: RecordedEvent
    role: str
    text: str


class EmbedTask:
    """Follows a tenant's log and keeps vectors of what users and assistants said."""

    def __init__(self, store: port.Store, vectors: VectorStore, embedder: Embedder) -> None:
        self._store = store
        self._vectors = vectors
        self._embedder = embedder

    @property
    def name(self) -> str:
        """What it is called."""
        return "embed"

    def step(self, tenant: str, beat: Beat) -> bool:
        """Embed what the next events of the log say; return whether there may be more at once.

        Progress and vectors are kept together: a step that is broken off, or overtaken, has not been.
        """
        mark = self._vectors.mark(tenant)
        page = self._store.feed(tenant, after=mark.position, limit=limits.EMBED_EVENTS)
        if not page:
            return False
        found: dict[str, list[Vector]] = {}
        waiting = self._passages(tenant, page)
        while some := list(itertools.islice(waiting, limits.EMBED_TEXTS)):
            beat()
            for passage, vector in zip(some, self._embedded(some), strict=True):
                found.setdefault(passage.user_id, []).append(vector)
        beat()
        kept = self._vectors.add(tenant, mark, found, page[-1].position)
        return not kept or len(page) == limits.EMBED_EVENTS

    def _embedded(self, some: Sequence[_Passage]) -> Iterator[Vector]:
        answer = self._embedder.embed([passage.text for passage in some])
        rows = unit(answer, len(some), self._embedder.dimensions)
        for passage, row in zip(some, rows, strict=True):
            yield Vector(
                position=passage.said.position,
                session_id=passage.said.session_id,
                role=passage.role,
                time_us=passage.said.time_us,
                row=row,
            )

    def _passages(self, tenant: str, page: Sequence[port.StoredEvent]) -> Iterator[_Passage]:
        """Yield what is worth embedding. Sessions that are deleted have no owner; those of nobody have an empty one."""
        added = [stored for stored in page if _holds_message(stored)]
        owners = self._owners(tenant, {stored.stream for stored in added})
        owned = [stored for stored in added if stored.stream in owners]
        texts = state_cache.referenced_texts(owned, partial(self._store.blobs, tenant))
        for stored in owned:
            said = state_cache.decode_session_event(stored, texts)
            assert isinstance(said.event, MessageAddedEvent)
            text = text_of(said.event.message)
            answered = self._answered(tenant, stored) if is_short(text) else ""
            for passage in passages(text, answered):
                yield _Passage(owners[stored.stream], said, said.event.message.role, passage)

    def _owners(self, tenant: str, streams: set[str]) -> Mapping[str, str]:
        found = {
            stream: self._store.find(
                tenant,
                projections.SESSION_KIND,
                stream.removeprefix(state_cache.SESSION_STREAM_PREFIX),
            )
            for stream in streams
        }
        return {stream: row.owner for stream, row in found.items() if row is not None}

    def _answered(self, tenant: str, stored: port.StoredEvent) -> str:
        """Return what was last said in a session before an event of it."""
        before = self._store.read(
            tenant, stored.stream, until=stored.version - 1, limit=_BEFORE, newest=True
        )
        there = [event for event in before if _holds_message(event)]
        for message in reversed(state_cache.messages_of(self._store, tenant, there)):
            if text := text_of(message):
                return text
        return ""


def _holds_message(stored: port.StoredEvent) -> bool:
    return stored.kind == MessageAddedEvent.kind and stored.payload is not None
