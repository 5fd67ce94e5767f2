"""Which sessions can go whole: a fork reads what its source had, so a source waits for its last fork."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from limpet import errors, limits
from limpet.core.values.events import SessionForkedEvent, SessionResetEvent, WindowCutEvent
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.engine import stand_ins
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.projections import SESSION_KIND
from limpet.runtime.state_cache import session_stream
from limpet.stores import port
from limpet.stores.erasure import RedactedPayload, is_erased_stream, is_notice

_TEXTLESS = (SessionResetEvent.kind, WindowCutEvent.kind)


class Lineage:
    """Sessions that are to go, with the deleted ones that go along: `going` now, `waiting` for forks of theirs.

    `earlier` are ids of which only what was deleted goes: all, or what came before the session that has the id now.
    """

    def __init__(
        self, engine: Engine, tenant: str, whole: Collection[str], earlier: Collection[str]
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._states: dict[str, SessionState | None] = {}
        self._damaged: dict[str, errors.Corrupt] = {}
        wanted = {each for each in whole if self._is_there(each)}
        wanted |= {each for each in earlier if self._deleted(each)}
        self._recreated = sorted(
            each for each in earlier if self._is_there(each) and not self._deleted(each)
        )
        self.going = sorted(self._free(self._closed(wanted)))
        self.waiting = sorted(wanted - set(self.going))

    def _state(self, session_id: str) -> SessionState | None:
        if session_id not in self._states:
            self._states[session_id] = None
            try:
                self._states[session_id] = self._engine.states.current(self._tenant, session_id)
            except errors.Corrupt as error:
                # What can't be read any more can go all the same: there are rows that say enough of it.
                self._damaged[session_id] = error
        return self._states[session_id]

    def _is_there(self, session_id: str) -> bool:
        return self._state(session_id) is not None or session_id in self._damaged

    def _deleted(self, session_id: str) -> bool:
        state = self._state(session_id)
        if session_id in self._damaged:
            return self._store.find(self._tenant, SESSION_KIND, session_id) is None
        return state is not None and state.status is SessionStatus.DELETED

    def _forks(self, session_id: str) -> list[tuple[str, int]]:
        found = self._store.forks(self._tenant, session_stream(session_id))
        return [
            (n.removeprefix(session_stream("")), at) for n, at in found if not is_erased_stream(n)
        ]

    def _closed(self, wanted: set[str]) -> set[str]:
        """Return sessions with those deleted ones that they are forked from, or that are forked from them."""
        found, fresh = set(wanted), set(wanted)
        while fresh:
            near = {name for each in fresh for name, _ in self._forks(each)}
            states = filter(None, map(self._state, fresh))
            near |= {state.forked_from[0] for state in states if state.forked_from}
            fresh = {each for each in near - found if self._deleted(each)}
            found |= fresh
        return found

    def _free(self, found: set[str]) -> set[str]:
        """Return those that nothing goes on from that stays."""
        while True:
            free = {each for each in found if all(name in found for name, _ in self._forks(each))}
            if free == found:
                return found
            found = free

    def earlier(self) -> dict[str, list[RedactedPayload]]:
        """Return what stands in for what was deleted before a session that has the id again now, by stream."""
        found = {session_stream(each): self._before(each) for each in self._recreated}
        return {stream: gone for stream, gone in found.items() if gone}

    def _before(self, session_id: str) -> list[RedactedPayload]:
        state = self._state(session_id)
        if session_id in self._damaged:
            raise self._damaged[session_id]
        assert state is not None, "it was there when it was looked for"
        floor = SessionEventSearch(self._store, self._tenant, state).floor()
        going = set(self.going)
        read = [at for name, at in self._forks(session_id) if name not in going]
        kept = max(read, default=0)
        return [
            stand_ins.made(event, event, self._blobs)
            for event in own_events(self._store, self._tenant, session_stream(session_id), floor)
            if event.version > kept and not event.erased and event.kind not in _TEXTLESS
        ]

    def _blobs(self, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        return self._store.blobs(self._tenant, hashes)


def own_events(store: port.Store, tenant: str, stream: str, until: int) -> list[port.StoredEvent]:
    """Return the events that a stream has itself up to a version, those that a rewind has left out included."""
    found: dict[int, port.StoredEvent] = {}
    begin, at = 1, until
    while at >= begin:
        page = _path(store, tenant, stream, at)
        if not page:
            break
        forked = [event.version for event in page if event.kind == SessionForkedEvent.kind]
        begin = max([begin, *forked])
        found |= {event.version: event for event in page if event.version >= begin}
        missing = (v for v in range(at, begin - 1, -1) if v not in found)
        at = next(missing, 0)
    return [found[v] for v in sorted(found) if v >= begin and not is_notice(found[v].kind)]


def all_events(
    store: port.Store, tenant: str, stream: str, until: int
) -> Iterator[port.StoredEvent]:
    """Yield the events that a stream shows, those of what it is forked from included, and those that it has itself."""
    seen: set[int] = set()
    for event in (*_path(store, tenant, stream, until), *own_events(store, tenant, stream, until)):
        if event.position not in seen and not is_notice(event.kind):
            seen.add(event.position)
            yield event


def _path(store: port.Store, tenant: str, stream: str, at: int) -> list[port.StoredEvent]:
    found: list[port.StoredEvent] = []
    while page := store.read(
        tenant, stream, after=found[-1].version if found else 0, until=at, at=at,
        limit=limits.READ_CHUNK,
    ):  # fmt: skip
        found += page
    return found
