"""The task that keeps embedding vectors of messages up to date with the log. Importing it needs numpy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from limpet import limits
from limpet.core.values.events import MessageAddedEvent, RecordedEvent
from limpet.jobs.tasks import Heartbeat, Task
from limpet.memory.vectors.embedder import Embedder, embedding_text, is_short, passages
from limpet.memory.vectors.vector_store import MessageVector, VectorStore, unit_vectors
from limpet.runtime import state_cache
from limpet.stores import port

_LOOKBACK_EVENTS: Final = 4
"""How many earlier events are searched for the message that a short one answers."""


class _EmbeddingInput(msgspec.Struct, frozen=True):
    user_id: str
    event: RecordedEvent
    role: str
    text: str


class EmbedTask(Task):
    """Keeps embedding vectors of the messages of users and assistants."""

    name = "embed"

    def __init__(self, store: port.Store, vectors: VectorStore, embedder: Embedder) -> None:
        self._store = store
        self._vectors = vectors
        self._embedder = embedder

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        """Embed the messages of the next events, and move the cursor in the same write; return whether there may be more."""
        mark = self._vectors.progress(tenant)
        page = self._store.feed(tenant, after=mark.position, limit=limits.EMBED_EVENTS)
        if not page:
            return False
        found: dict[str, list[MessageVector]] = {}
        waiting = self._passages(tenant, page)
        while some := list(itertools.islice(waiting, limits.EMBED_TEXTS)):
            beat()
            for passage, vector in zip(some, self._embed(some), strict=True):
                found.setdefault(passage.user_id, []).append(vector)
        beat()
        added = self._vectors.add(tenant, mark, found, page[-1].position)
        return not added or len(page) == limits.EMBED_EVENTS

    def _embed(self, some: Sequence[_EmbeddingInput]) -> Iterator[MessageVector]:
        answer = self._embedder.embed([passage.text for passage in some])
        rows = unit_vectors(answer, len(some), self._embedder.dimensions)
        for passage, row in zip(some, rows, strict=True):
            yield MessageVector(
                position=passage.event.position, session_id=passage.event.session_id, role=passage.role,
                time_us=passage.event.time_us, row=row,
            )  # fmt: skip

    def _passages(self, tenant: str, page: Sequence[port.StoredEvent]) -> Iterator[_EmbeddingInput]:
        """Yield passages to embed, of sessions that are not deleted. A session without a user has the owner ""."""
        added = [stored for stored in page if _has_message(stored)]
        owners = self._owners(tenant, {stored.stream for stored in added})
        owned = [stored for stored in added if stored.stream in owners]
        texts = state_cache.referenced_texts(owned, partial(self._store.blobs, tenant))
        for stored in owned:
            recorded = state_cache.decode_session_event(stored, texts)
            assert isinstance(recorded.event, MessageAddedEvent)
            message = recorded.event.message
            text = embedding_text(message)
            answered = self._message_before(tenant, stored) if is_short(text) else ""
            for passage in passages(text, answered):
                yield _EmbeddingInput(owners[stored.stream], recorded, message.role, passage)

    def _owners(self, tenant: str, streams: set[str]) -> Mapping[str, str]:
        owners: dict[str, str] = {}
        for stream in streams:
            session_id = stream.removeprefix(state_cache.SESSION_STREAM_PREFIX)
            if row := self._store.find_projection(tenant, state_cache.SESSION_KIND, session_id):
                owners[stream] = row.owner
        return owners

    def _message_before(self, tenant: str, stored: port.StoredEvent) -> str:
        """Return the text of the last message before an event of its session; empty if none is near."""
        before = self._store.read(tenant, stored.stream, until=stored.version - 1, limit=_LOOKBACK_EVENTS, newest=True)
        added = [event for event in before if _has_message(event)]
        for message in reversed(state_cache.messages_of(self._store, tenant, added)):
            if text := embedding_text(message):
                return text
        return ""


def _has_message(stored: port.StoredEvent) -> bool:
    return stored.kind == MessageAddedEvent.kind and stored.payload is not None
