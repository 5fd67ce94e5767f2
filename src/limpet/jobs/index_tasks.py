"""Tasks that keep the search indexes up to date with the log: full text and embedding vectors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.values import events, ids
from limpet.core.values.events import MessageAddedEvent, RecordedEvent
from limpet.core.values.messages import Message
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.core.values.validation import Json
from limpet.jobs import tasks
from limpet.jobs.tasks import Heartbeat, Task
from limpet.memory.index import inverted_index, terms
from limpet.memory.index.inverted_index import ROW_FORMAT, ArchiveIndex, IndexBatch, IndexCursor
from limpet.memory.index.terms import count_terms
from limpet.memory.index_store import IndexStore
from limpet.memory.vectors.embedder import Embedder, embedding_text, is_short, passages
from limpet.memory.vectors.vector_store import MessageVector, VectorStore, unit_vectors
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import decode_session_events
from limpet.stores import port
from limpet.stores.port import StoredEvent

_INDEXED_KINDS: Final = frozenset({
    events.SessionCreatedEvent.kind, events.MessageAddedEvent.kind, events.SessionForkedEvent.kind,
    events.SessionRewoundEvent.kind, events.SessionResetEvent.kind, events.SessionEndedEvent.kind,
})  # fmt: skip


def no_heartbeat() -> None:
    """Do nothing: for a step that needs no lease."""


class IndexTask(Task):
    """Indexes the texts of the log. Of two workers on the same events one has the effect. `notes` tells of rebuilds."""

    name = "archive"

    def __init__(self, engine: Engine, index_store: IndexStore) -> None:
        self._engine = engine
        self._index_store = index_store
        self.notes: list[str] = []

    def step(self, tenant: str, beat: Heartbeat = no_heartbeat) -> bool:
        """Index the next events; return whether there may be more. Raises Corrupt for the log, and rebuilds the index."""
        try:
            batch = IndexBatch(ArchiveIndex(self._index_store), tenant)
        except errors.Corrupt as error:
            return self.discard_damaged(error)
        new = self._new_events(tenant, batch.cursor)
        if new is None:
            return self._reset(tenant)
        if not new:
            return False
        beat()
        facts = self._read_events(tenant, new)
        try:
            batch.load_sessions({fact.session_id for fact in facts})
        except errors.Corrupt as error:
            return self.discard_damaged(error)
        states = {
            name: self._engine.states.current(tenant, name)
            for name in _sessions_without_start(facts)
            if batch.session(name) is None
        }
        try:
            last = _add_events(batch, facts, states) or new[-1]
            written = batch.write(last.position, new[last.position - new[0].position].link)
        except errors.Corrupt as error:
            return self.discard_damaged(error)
        # Fewer events than a batch wait for the next step: indexed together they cost less.
        return not written or last is not new[-1] or len(new) >= limits.ARCHIVE_BATCH

    def progress(self, tenant: str) -> Mapping[str, Json]:
        """Return the cursor and the lag; nothing if the index is unavailable. A damaged index has cursor 0."""
        try:
            at = ArchiveIndex(self._index_store).cursor(tenant)[0].position
        except errors.Corrupt:
            at = 0
        except errors.Unavailable:
            return {}
        return {"cursor": at, "lag": tasks.feed_lag(self._engine.store, tenant, at)}

    def discard_damaged(self, error: errors.Corrupt) -> bool:
        """Clear a damaged index store: all of it is rebuilt from the log."""
        self.notes.append(f"the archive was damaged and is rebuilt: {error}")
        self._index_store.clear()
        return True

    def _reset(self, tenant: str) -> bool:
        if ArchiveIndex(self._index_store).cursor(tenant)[0].format != ROW_FORMAT:
            self.notes.append(f"the archive of tenant {tenant!r} was of another kind; it is made anew.")
            inverted_index.reset_tenant(ArchiveIndex(self._index_store), tenant)
            return True
        self.notes.append(f"the archive of tenant {tenant!r} was not of this log and is made anew.")
        # Facts and vectors in the store are of the other log, too.
        self._index_store.clear()
        return True

    def _new_events(self, tenant: str, cursor: IndexCursor) -> list[StoredEvent] | None:
        """Return the events after a cursor; None if the cursor is not of this log or format."""
        feed, at = self._engine.store.feed, cursor.position
        page = feed(tenant, after=max(0, at - 1), limit=limits.READ_CHUNK)
        if at and (not page or page[0].link != cursor.link):
            return None
        if cursor.format != ROW_FORMAT:
            return None
        new = page[1:] if at else page
        while len(page) == limits.READ_CHUNK and len(new) < limits.ARCHIVE_BATCH:
            page = feed(tenant, after=page[-1].position, limit=limits.READ_CHUNK)
            new += page
        return new

    def _read_events(self, tenant: str, new: Sequence[StoredEvent]) -> list[_IndexedEvent]:
        """Return the events that the index needs, without erased ones."""
        indexed = [stored for stored in new if stored.kind in _INDEXED_KINDS and stored.payload is not None]
        read = decode_session_events(self._engine.store, tenant, indexed)
        return [
            _IndexedEvent(fact.session_id, stored.position, stored.ordinal, stored.version, fact.event)
            for stored, fact in zip(indexed, read, strict=True)
        ]


class _IndexedEvent(msgspec.Struct, frozen=True):
    session_id: str
    position: int
    ordinal: int
    version: int
    event: events.SessionEvent

    @property
    def begins_session(self) -> bool:
        return self.version == 1 or isinstance(self.event, events.SessionForkedEvent)


def _sessions_without_start(facts: Sequence[_IndexedEvent]) -> Iterator[str]:
    seen = set[str]()
    for fact in facts:
        if fact.session_id not in seen:
            seen.add(fact.session_id)
            if not fact.begins_session:
                yield fact.session_id


def _add_events(
    batch: IndexBatch, facts: Sequence[_IndexedEvent], states: Mapping[str, SessionState | None]
) -> _IndexedEvent | None:
    """Add events to a batch; return the last one added if some are left for the next batch."""
    before = None
    messages = hidden = False
    for fact in facts:
        match fact.event:
            case events.MessageAddedEvent(message=message):
                if hidden:
                    return before
                messages |= _add_message(batch, fact, message, states.get(fact.session_id))
            case events.SessionEndedEvent(reason=EndReason.DELETED):
                if messages:
                    return before
                batch.hide(fact.session_id)
                hidden = True
            case _:
                _update_session(batch, fact, states.get(fact.session_id))
        before = fact
    return None


def _add_message(batch: IndexBatch, fact: _IndexedEvent, message: Message, state: SessionState | None) -> bool:
    """Add a message, unless it is a copy from another session, or its session is unknown."""
    if message.origin is not None:
        return False
    if batch.session(fact.session_id) is None:
        if state is None or state.status is SessionStatus.DELETED:
            return False
        batch.add_session(fact.session_id, state.user_id, state.generation, state.ordinal_began)
    batch.add(
        fact.session_id, position=fact.position, time_us=ids.microseconds(message.timestamp), role=message.role,
        terms=count_terms(terms.archive_text(message)), has_words=terms.has_words(message),
        calls=bool(message.tool_calls),
    )  # fmt: skip
    return True


def _update_session(batch: IndexBatch, fact: _IndexedEvent, state: SessionState | None) -> None:
    known = batch.session(fact.session_id)
    match fact.event:
        case events.SessionCreatedEvent(user_id=user_id):
            generation = known.generation + 1 if known else 0
            if known is None and state is not None and state.ordinal_began == fact.ordinal:
                # An earlier session with this id was erased from the index.
                generation = state.generation
            batch.add_session(fact.session_id, user_id, generation, fact.ordinal)
        case events.SessionForkedEvent(state=state) | events.SessionRewoundEvent(state=state):
            batch.add_session(fact.session_id, state.user_id, state.generation, state.ordinal_began)
        case events.SessionResetEvent() if known is not None:
            batch.start_generation(fact.session_id, known.generation + 1, fact.ordinal)
        case _:
            pass


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
