"""Taking a tenant's log into the archive, in order, from wherever the index is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.values import events as e
from limpet.core.values import ids
from limpet.core.values.json_values import Json
from limpet.core.values.messages import Message
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.engine import cursors
from limpet.engine.tasks import Beat
from limpet.memory.archive import forgetting, text
from limpet.memory.archive.index import FORMAT, Cursor, Index
from limpet.memory.archive.indexing import Batch
from limpet.memory.archive.terms import counted
from limpet.memory.shelf import Shelf
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import decode_session_events
from limpet.stores.port import StoredEvent

_NEEDED: Final = frozenset(
    kind.kind
    for kind in (
        e.SessionCreatedEvent,
        e.MessageAddedEvent,
        e.SessionForkedEvent,
        e.SessionRewoundEvent,
        e.SessionResetEvent,
        e.SessionEndedEvent,
    )
)


def no_beat() -> None:
    """Nobody else does this work."""


class IndexTask:
    """Follows the log and keeps the archive up to it. Safe in company: of two that do it, one has the effect.

    `notes` says what had to be made anew, and why.
    """

    def __init__(self, engine: Engine, shelf: Shelf) -> None:
        self._engine = engine
        self._shelf = shelf
        self.notes: list[str] = []

    @property
    def name(self) -> str:
        """What it is called."""
        return "archive"

    def step(self, tenant: str, beat: Beat = no_beat) -> bool:
        """Take the next events of a tenant's log into the archive; return whether there may be more at once.

        Raises Corrupt if the log is damaged. An index that is damaged is thrown away and begun anew.
        """
        try:
            batch = Batch(Index(self._shelf), tenant)
        except errors.Corrupt as error:
            return self.begin_anew(error)
        new = self._new(tenant, batch.cursor)
        if new is None:
            return self._reset(tenant)
        if not new:
            return False
        beat()
        said = self._read(tenant, new)
        try:
            batch.look({fact.session_id for fact in said})
        except errors.Corrupt as error:
            return self.begin_anew(error)
        states = {
            name: self._engine.states.current(tenant, name)
            for name in _unexplained(said)
            if batch.known(name) is None
        }
        try:
            last = _take(batch, said, states) or new[-1]
            written = batch.write(last.position, _link(new, last.position))
        except errors.Corrupt as error:
            return self.begin_anew(error)
        # What came since can wait a moment: taken in together it costs less.
        return not written or last is not new[-1] or len(new) >= limits.ARCHIVE_BATCH

    def told(self, tenant: str) -> Mapping[str, Json]:
        """Return how far the log was taken in, if that can be read; a damaged index counts as none: it is made anew."""
        try:
            at = Index(self._shelf).cursor(tenant)[0].position
        except errors.Corrupt:
            at = 0
        except errors.Unavailable:
            return {}
        return {"cursor": at, "lag": cursors.lag(self._engine.store, tenant, at)}

    def begin_anew(self, error: errors.Corrupt) -> bool:
        """Throw a damaged shelf away: everything on it is made again from the log."""
        self.notes.append(f"the archive was damaged and is made anew: {error}")
        self._shelf.renew()
        return True

    def _reset(self, tenant: str) -> bool:
        if Index(self._shelf).cursor(tenant)[0].format != FORMAT:
            self.notes.append(
                f"the archive of tenant {tenant!r} was of another kind; it is made anew."
            )
            forgetting.reset(Index(self._shelf), tenant)
            return True
        self.notes.append(f"the archive of tenant {tenant!r} was not of this log and is made anew.")
        # Nor is anything else beside it: what was learnt of events that are not there is nobody's.
        self._shelf.renew()
        return True

    def _new(self, tenant: str, cursor: Cursor) -> list[StoredEvent] | None:
        """Return the events after a cursor; None if it is not one of this log."""
        feed, at = self._engine.store.feed, cursor.position
        page = feed(tenant, after=max(0, at - 1), limit=limits.READ_CHUNK)
        if at and (not page or page[0].link != cursor.link):
            return None
        if cursor.format != FORMAT:
            return None
        new = page[1:] if at else page
        while len(page) == limits.READ_CHUNK and len(new) < limits.ARCHIVE_BATCH:
            page = feed(tenant, after=page[-1].position, limit=limits.READ_CHUNK)
            new += page
        return new

    def _read(self, tenant: str, new: Sequence[StoredEvent]) -> list[_Said]:
        """Return the events that matter to the archive; those that were erased do not."""
        kept = [stored for stored in new if stored.kind in _NEEDED and stored.payload is not None]
        read = decode_session_events(self._engine.store, tenant, kept)
        return [
            _Said(fact.session_id, stored.position, stored.ordinal, stored.version, fact.event)
            for stored, fact in zip(kept, read, strict=True)
        ]


class _Said(msgspec.Struct, frozen=True):
    session_id: str
    position: int
    ordinal: int
    version: int
    event: e.SessionEvent

    @property
    def begins(self) -> bool:
        """Whether it is the first that ever happened in its session."""
        return self.version == 1 or isinstance(self.event, e.SessionForkedEvent)


def _unexplained(said: Sequence[_Said]) -> Iterator[str]:
    """Yield the sessions that these events say something about, but not from their beginning."""
    seen = set[str]()
    for fact in said:
        if fact.session_id not in seen:
            seen.add(fact.session_id)
            if not fact.begins:
                yield fact.session_id


def _link(new: Sequence[StoredEvent], position: int) -> bytes:
    return new[position - new[0].position].link


def _take(
    batch: Batch, said: Sequence[_Said], states: Mapping[str, SessionState | None]
) -> _Said | None:
    """Take events into a batch; return the last one taken if some are left for the next."""
    before = None
    messages = hidden = False
    for fact in said:
        match fact.event:
            case e.MessageAddedEvent(message=message):
                if hidden:
                    return before
                messages |= _add(batch, fact, message, states.get(fact.session_id))
            case e.SessionEndedEvent(reason=EndReason.DELETED):
                if messages:
                    return before
                batch.hide(fact.session_id)
                hidden = True
            case _:
                _follow(batch, fact, states.get(fact.session_id))
        before = fact
    return None


def _add(batch: Batch, fact: _Said, message: Message, state: SessionState | None) -> bool:
    """Take a message, unless it is a copy of one in another session, or nobody knows whose it is."""
    if message.origin is not None:
        return False
    if batch.known(fact.session_id) is None:
        if state is None or state.status is SessionStatus.DELETED:
            return False
        batch.begin(fact.session_id, state.user_id, state.generation, state.ordinal_began)
    batch.add(
        fact.session_id,
        position=fact.position,
        time_us=ids.microseconds(message.timestamp),
        role=message.role,
        terms=counted(text.text_of(message)),
        spoken=text.spoken(message),
        calls=bool(message.tool_calls),
    )
    return True


def _follow(batch: Batch, fact: _Said, state: SessionState | None) -> None:
    """Keep up with whose a session is, and with its generation."""
    known = batch.known(fact.session_id)
    match fact.event:
        case e.SessionCreatedEvent(user_id=user_id):
            generation = known.generation + 1 if known else 0
            if known is None and state is not None and state.ordinal_began == fact.ordinal:
                # One with this id was forgotten.
                generation = state.generation
            batch.begin(fact.session_id, user_id, generation, fact.ordinal)
        case e.SessionForkedEvent(state=state) | e.SessionRewoundEvent(state=state):
            batch.begin(fact.session_id, state.user_id, state.generation, state.ordinal_began)
        case e.SessionResetEvent() if known is not None:
            batch.again(fact.session_id, known.generation + 1, fact.ordinal)
        case _:
            pass
