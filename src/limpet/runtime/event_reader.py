"""Reads selected events of a session.

It finds events by kind without reading the messages between them, folds the state at an earlier
version for forks and rewinds, and reads what is intact of a damaged log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules
from limpet.core.values.commands import CommandRequest, ForkSession, RewindSession
from limpet.core.values.events import SessionCreatedEvent, SessionForkedEvent, WindowRecordedEvent
from limpet.core.values.session_state import SessionState
from limpet.runtime.state_cache import SESSION_KIND, SessionStateCache, decode_session_events, session_stream
from limpet.stores import port
from limpet.stores.port import Store, StoredEvent

SEARCH_CHUNK = 64
"""Events read at once in a stretch that has other events than messages."""


def iter_stream(
    store: port.Store, tenant: str, stream: str, *, after: int = 0, at: int | None = None
) -> Iterator[StoredEvent]:
    """Yield the events of a stream, or of its path to the version `at`, page by page."""
    while page := store.read(tenant, stream, after=after, until=at, at=at, limit=limits.READ_CHUNK):
        yield from page
        after = page[-1].version


def iter_feed(store: port.Store, tenant: str, after: int = 0) -> Iterator[StoredEvent]:
    """Yield the events of a tenant after a position, page by page."""
    while page := store.feed(tenant, after=after, limit=limits.READ_CHUNK):
        yield from page
        after = page[-1].position


class SessionEventSearch:
    """The events of one session up to a version."""

    def __init__(self, store: port.Store, tenant: str, state: SessionState) -> None:
        self._store = store
        self._tenant = tenant
        self._stream = session_stream(state.id)
        self.state = state

    def read(self, after: int, until: int) -> list[port.StoredEvent]:
        """Return the events with after < version <= until, which must be few."""
        return self._store.read(
            self._tenant, self._stream, after=after, until=until, limit=until - after, at=self.state.version
        )  # fmt: skip

    def _last_event(self, version: int) -> tuple[int, int]:
        """Return version and ordinal of the last event up to a version that a rewind may have left out."""
        found = self._store.read(self._tenant, self._stream, until=version, limit=1, at=self.state.version, newest=True)
        return (found[0].version, found[0].ordinal) if found else (0, 0)

    def versions_of_kind(self, kind: str, low: int, high: int, *, newest: bool) -> Iterator[int]:
        """Yield the versions of events of a kind other than messages, with low < version <= high.

        Every message has the next ordinal. So a stretch with as many ordinals as events has only messages, and is
        not read.
        """
        if high - low <= SEARCH_CHUNK:
            found = [e.version for e in self.read(low, high) if e.kind == kind] if high > low else []
            yield from reversed(found) if newest else found
            return
        (high, after), (_, before) = self._last_event(high), self._last_event(low)
        if after - before < high - low:
            middle = (low + high) // 2
            halves = ((low, middle), (middle, high))
            for first, last in reversed(halves) if newest else halves:
                yield from self.versions_of_kind(kind, first, last, newest=newest)

    def window_recorded_for(self, version: int) -> tuple[int, WindowRecordedEvent] | None:
        """Return the WindowRecordedEvent of the append that wrote the event `version`, after its own version; or None."""
        low = max(self.version_before_creation(), version - 1 - limits.BATCH_MESSAGES_MAX)
        near = next(self.versions_of_kind(WindowRecordedEvent.kind, low, version - 1, newest=True), 0)
        found = self.read(near - 1, near) if near else []
        event = decode_session_events(self._store, self._tenant, found)[0].event if found else None
        if not isinstance(event, WindowRecordedEvent) or version - near > event.messages:
            return None
        return near, event

    def version_before_creation(self) -> int:
        """Return the version before the session was created. A reset begins a generation too, but deletes nothing."""
        if not self.state.generation:
            return self.state.began - 1
        created = self.versions_of_kind(SessionCreatedEvent.kind, 0, self.state.began, newest=True)
        return next(created, 1) - 1


ForkOrRewind = ForkSession | RewindSession


def prefetch_source_state(store: port.Store, states: SessionStateCache, request: CommandRequest) -> CommandRequest:
    """Return a request with the state that it goes on from, if there is one: the rest is decided later."""
    command = request.command
    assert isinstance(command, ForkOrRewind), "only a fork or a rewind goes on from a state"
    try:
        state = session_rules.existing_state(states.current(request.tenant, command.session_id), command.session_id)
        made = with_source_state(store, states, request.tenant, state, command)
    except (errors.NotFound, errors.Refused):
        # It may have been done already, under its key.
        return request
    return msgspec.structs.replace(request, command=made)


def with_source_state(
    store: port.Store, states: SessionStateCache, tenant: str, state: SessionState, command: ForkOrRewind
) -> ForkOrRewind:
    """Return a command with the state that it goes on from; raise MessageNotFound if there is none."""
    version = _source_version(store, tenant, state, command)
    if version == state.version:
        return msgspec.structs.replace(command, there=state)
    known = command.there
    if known is None or known.version != version:
        known = fold_at_version(store, states, tenant, state, version)
    return msgspec.structs.replace(command, there=known)


def fold_at_version(
    store: port.Store, states: SessionStateCache, tenant: str, state: SessionState, version: int
) -> SessionState:
    """Return what a session was at a version; raise NotFound if it was not there, or was deleted since."""
    floor = SessionEventSearch(store, tenant, state).version_before_creation()
    found = states.at_version(tenant, state.id, version) if floor < version <= state.version else None
    if found is None:
        raise errors.NotFound(
            f"the session {state.id!r} has no version {version:,}.",
            hint=f"It has versions up to {state.version:,}.",
            facts={"session": state.id, "version": version, "last": state.version},
        )
    return found


def _source_version(store: port.Store, tenant: str, state: SessionState, command: ForkOrRewind) -> int:
    at, stream = command.at, session_stream(state.id)
    if at is None:
        assert isinstance(command, ForkSession), "a rewind names its message"
        if command.version is not None:
            return command.version
        if not state.continuations or not state.message_count:
            return state.version
        # Its open calls went along into the session that continues it; at its last message they are here.
        at = state.message_count
    if isinstance(at, str):
        version = store.find_claim(tenant, stream, at, at=state.version)
        found = version > state.began
    else:
        found = at <= state.message_count
        version = store.find_ordinal(tenant, stream, state.ordinal_began + at, at=state.version)
    if not found:
        raise errors.MessageNotFound(
            f"the session {state.id!r} has no message {at!r}.",
            hint=f"It has {state.message_count:,} messages; give the id of one, or its number from 1 on.",
            facts={"session": state.id, "message": at, "messages": state.message_count},
        )
    return version


class UnreadableEvent(msgspec.Struct, frozen=True):
    """An event that can't be read, by its position in the feed or its version in the stream, and why."""

    at: int
    error: errors.Corrupt


def salvage_feed(store: Store, tenant: str, *, after: int = 0) -> Iterator[StoredEvent | UnreadableEvent]:
    """Yield the tenant's events after a position, in order; an UnreadableEvent for each that can't be read."""
    return _salvage_range(lambda low, high: store.feed(tenant, after=low, limit=high - low), after, store.head(tenant))


def salvage_stream(store: Store, tenant: str, stream: str) -> Iterator[StoredEvent | UnreadableEvent]:
    """Yield the events that a stream shows, in order; an UnreadableEvent for each that can't be read."""
    last = 0
    with contextlib.suppress(errors.Corrupt):
        last = store.version(tenant, stream)
    return _salvage_range(
        lambda low, high: store.read(tenant, stream, after=low, until=high, limit=high - low), 0, last
    )


def salvage_owner(store: Store, tenant: str, session_id: str) -> str | None:
    """Return whose a damaged session is, as its row says, else how it began. None: nobody's, or nobody can say."""
    with contextlib.suppress(errors.Corrupt):
        row = store.find_projection(tenant, SESSION_KIND, session_id)
        if row is not None:
            return row.owner or None
    found: str | None = None
    for event in salvage_stream(store, tenant, session_stream(session_id)):
        if isinstance(event, StoredEvent) and event.kind in (SessionCreatedEvent.kind, SessionForkedEvent.kind):
            with contextlib.suppress(errors.Corrupt, errors.Erased):
                found = _creator(store, tenant, event)
    return found


def _creator(store: Store, tenant: str, stored: StoredEvent) -> str | None:
    (fact,) = decode_session_events(store, tenant, (stored,))
    match fact.event:
        case SessionCreatedEvent(user_id=user_id):
            return user_id
        case SessionForkedEvent(state=state):
            return state.user_id
        case _:
            return None


def _salvage_range(
    read: Callable[[int, int], list[StoredEvent]], after: int, last: int
) -> Iterator[StoredEvent | UnreadableEvent]:
    while after < last:
        until = min(after + limits.READ_CHUNK, last)
        try:
            found: list[StoredEvent | UnreadableEvent] = [*read(after, until)]
        except errors.Corrupt:
            found = [event for at in range(after, until) for event in _salvage_event(read, at)]
        yield from found
        after = until


def _salvage_event(read: Callable[[int, int], list[StoredEvent]], at: int) -> list[StoredEvent] | list[UnreadableEvent]:
    try:
        return read(at, at + 1)
    except errors.Corrupt as error:
        return [UnreadableEvent(at + 1, error)]
