"""The task that keeps the full-text index up to date with the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.values import events, ids
from limpet.core.values.messages import Message
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.core.values.validation import Json
from limpet.jobs import tasks
from limpet.jobs.tasks import Heartbeat, Task
from limpet.memory.index import inverted_index, terms
from limpet.memory.index.inverted_index import ROW_FORMAT, ArchiveIndex, IndexBatch, IndexCursor
from limpet.memory.index.terms import count_terms
from limpet.memory.index_store import IndexStore
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import decode_session_events
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
