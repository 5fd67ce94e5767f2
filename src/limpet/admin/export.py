"""Export: writes the events of sessions verbatim to a file with one JSON value a line.

A session is written with every generation and with events that a rewind removed; a fork also with
the events of its source. Events of an earlier, deleted session with the same id are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from limpet import errors, limits
from limpet.core.formats import export_format
from limpet.core.rules import session_rules as rules
from limpet.core.values import events as e
from limpet.core.values.context import WindowSelection
from limpet.core.values.session_state import SessionState
from limpet.runtime import projections
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.state_cache import decode_session_events, session_stream
from limpet.stores import port

if TYPE_CHECKING:
    from limpet.admin.log import Progress

TimedEvent = tuple[export_format.ExportedEvent, int]
"""An event of a file, and when it happened."""

replace = msgspec.structs.replace


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object: ...


class Exported(msgspec.Struct, frozen=True):
    """What was written: how much, and the SHA-256 of all but the last line."""

    sessions: int
    events: int
    messages: int
    bytes: int
    sha256: str


ExportableEvent = (
    export_format.UnchangedEvent
    | e.SessionCreatedEvent
    | e.SessionForkedEvent
    | e.SessionRewoundEvent
)
"""Events of which a file tells."""


class EventNumbers:
    """From versions of a session to the numbers of its events in a file, as far as they were written."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.count = 0
        self._spans: list[tuple[int, int, int]] = []
        self._left_out: dict[int, int] = {}

    def leave_out(self, version: int) -> None:
        """Have no number of its own for an event: whatever refers to it means the one before."""
        self._left_out[version] = self.count

    def add(self, version: int) -> None:
        """Number the next event."""
        self.count += 1
        if self._spans and self._spans[-1][1] == version - 1:
            low, _, shift = self._spans[-1]
            self._spans[-1] = (low, version, shift)
        else:
            self._spans.append((version, version, version - self.count))

    def number_of(self, version: int) -> int:
        """Return the number of the event at a version; 0 if it was not written."""
        if version in self._left_out:
            return self._left_out[version]
        found = (span for span in reversed(self._spans) if span[0] <= version <= span[1])
        return next((version - shift for _, _, shift in found), 0)


class Exporter:
    """Reads sessions of one tenant. `among`: the states of those that are written, by their ids."""

    def __init__(
        self, engine: Engine, tenant: str, among: Callable[[str], SessionState | None]
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._exported_state = among
        self._numbers: dict[str, EventNumbers] = {}

    def timed_events(self, state: SessionState) -> Iterator[TimedEvent]:
        """Yield a session's events up to a state of it, with the numbers that they have in a file."""
        numbers: EventNumbers | None = None
        name = ""
        for page in self._pages(state):
            recorded = decode_session_events(self._engine.store, self._tenant, page)
            for stored, fact in zip(page, recorded, strict=True):
                if numbers is None:
                    numbers = self._numbers[state.id] = EventNumbers(stored.ordinal)
                event = fact.event
                if isinstance(event, e.SessionOffloadedEvent | e.SessionErasedEvent):
                    # Which memory has taken it is this store's affair, and so is what it has erased.
                    numbers.leave_out(stored.version)
                    continue
                numbers.add(stored.version)
                if isinstance(event, e.SessionCreatedEvent | e.SessionForkedEvent):
                    name = event.id
                if isinstance(event, e.WindowRecordedEvent):
                    event = self._renumbered_window(event, {name, state.id}, state.id, numbers)
                yield _portable_event(event, state.id, numbers), fact.time_us

    def _pages(self, state: SessionState) -> Iterator[Sequence[port.StoredEvent]]:
        stream, end = session_stream(state.id), state.version
        low = begin_version(self._engine, self._tenant, state)
        while low < end:
            high = min(low + limits.READ_CHUNK, end)
            yield from reversed(list(self._version_runs(stream, low, high)))
            low = high

    def _version_runs(self, stream: str, low: int, high: int) -> Iterator[list[port.StoredEvent]]:
        """Yield the events with low < version <= high, newest stretch first, also those that a rewind left out."""
        while high > low:
            found = self._engine.store.read(
                self._tenant, stream, after=low, until=high, limit=high - low, at=high
            )
            if not found:
                # It was forked from a session that had gone back before.
                return
            at = len(found) - 1
            while at and found[at - 1].version == found[at].version - 1:
                at -= 1
            yield found[at:]
            high = found[at].version - 1

    def _renumbered_window(
        self, event: e.WindowRecordedEvent, own: set[str], session_id: str, numbers: EventNumbers
    ) -> e.WindowRecordedEvent:
        chosen = event.selection
        if chosen.session_id in own:
            return replace(event, selection=_renumbered_selection(chosen, session_id, numbers))
        other = self._exported_state(chosen.session_id)
        if other is None:
            return event
        if other.id not in self._numbers:
            for _ in self.timed_events(other):
                pass
        return replace(
            event, selection=_renumbered_selection(chosen, other.id, self._numbers[other.id])
        )

    def lines(self, state: SessionState) -> Iterator[bytes]:
        """Yield the lines of a session."""
        yield export_format.encode_line(export_format.SessionLine(state.id))
        for fact, time_us in self.timed_events(state):
            yield export_format.encode_line(export_format.event_line(fact, time_us))


def _renumbered_selection(
    chosen: WindowSelection, session_id: str, numbers: EventNumbers
) -> WindowSelection:
    version = numbers.number_of(chosen.version)
    if not version:
        return chosen
    began = chosen.began - numbers.ordinal
    return replace(chosen, session_id=session_id, version=version, began=began)


def _portable_event(
    event: ExportableEvent, session_id: str, numbers: EventNumbers
) -> export_format.ExportedEvent:
    if isinstance(event, e.SessionCreatedEvent):
        # What a fork has from its source is its own in a file.
        return event if event.id == session_id else replace(event, id=session_id)
    if isinstance(event, e.SessionForkedEvent):
        there = event.state
        return export_format.ExportedFork(
            event.source, numbers.count - 1, there.title, there.metadata
        )
    if isinstance(event, e.SessionRewoundEvent):
        return export_format.ExportedRewind(numbers.number_of(event.to))
    return event


def select_sessions(
    engine: Engine, tenant: str, session_id: str | None, user_id: str | None
) -> list[SessionState]:
    """Return the sessions that are asked for: a conversation, all of a user, or all of the tenant; oldest first."""
    if session_id is not None:
        found = conversation_sessions(engine, tenant, session_id)
    else:
        named = _session_ids(engine.store, tenant, user_id)
        states = (engine.states.current(tenant, one) for one in named)
        found = [state for state in states if state is not None and not state.hidden]
    return sorted(found, key=lambda state: (_first_event(engine, tenant, state).time_us, state.id))


def _first_event(engine: Engine, tenant: str, state: SessionState) -> port.StoredEvent:
    floor = SessionEventSearch(engine.store, tenant, state).version_before_creation()
    stream = session_stream(state.id)
    (first,) = engine.store.read(tenant, stream, after=floor, limit=1, at=state.version)
    return first


def begin_version(engine: Engine, tenant: str, state: SessionState) -> int:
    """Return the version before a session's first event: what is older was deleted under its id."""
    return _first_event(engine, tenant, state).version - 1


def conversation_sessions(engine: Engine, tenant: str, session_id: str) -> list[SessionState]:
    """Return the sessions that one conversation goes through; raise SessionNotFound if there is none."""

    def find(name: str) -> SessionState | None:
        state = engine.states.current(tenant, name)
        return None if state is None or state.hidden else state

    return rules.conversation(rules.existing_state(find(session_id), session_id), find)


def _session_ids(store: port.Store, tenant: str, user_id: str | None) -> Iterable[str]:
    """Return the ids of all sessions; those that move to the front of the listing meanwhile are not missed."""
    found: dict[str, None] = {}
    since: int | None = None
    while True:
        before, newest = len(found), since
        after: tuple[int, str] | None = None
        while True:
            query = port.Query(
                kind=projections.SESSION_KIND, owner=user_id, since_us=since, after=after, limit=limits.PAGE_SIZE_MAX
            )  # fmt: skip
            rows = store.query_projections(tenant, query)
            found.update(dict.fromkeys(row.id for row in rows))
            if rows and after is None:
                newest = rows[0].time_us
            if len(rows) < limits.PAGE_SIZE_MAX:
                break
            after = (rows[-1].time_us, rows[-1].id)
        if len(found) == before:
            return found
        since = newest


def write_sessions(
    engine: Engine, tenant: str, states: Sequence[SessionState], sink: Sink, progress: Progress
) -> Exported:
    """Write sessions to a sink, line by line; return what was written."""
    known = {state.id: state for state in states}
    exporter = Exporter(engine, tenant, known.get)
    total = sum(state.version for state in states)
    made = ExportWriter(sink)
    done = 0
    made.write_line(export_format.HeaderLine())
    for state in states:
        engine.check()
        made.write_line(export_format.SessionLine(state.id))
        for fact, time_us in exporter.timed_events(state):
            made.write_event(fact, time_us)
            if made.events % limits.READ_CHUNK == 0:
                progress(min(done + state.version, made.events), max(total, made.events))
        done += state.version
    progress(max(total, made.events), max(total, made.events))
    return made.close()


class ExportWriter:
    """A file that is being written: counts, and the digest of what was."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.sessions = self.events = self.messages = self.bytes = 0

    def write_line(self, line: export_format.ExportLine) -> None:
        """Write a line."""
        data = export_format.encode_line(line)
        if len(data) > limits.EXPORT_LINE_BYTES_MAX:
            raise errors.TooLarge(
                f"an event has {len(data):,} bytes; a line of a file holds at most {limits.EXPORT_LINE_BYTES_MAX:,}."
            )
        self._hash.update(data)
        self.sessions += isinstance(line, export_format.SessionLine)
        self.bytes += len(data)
        self._sink.write(data)

    def write_event(self, fact: export_format.ExportedEvent, time_us: int) -> None:
        """Write the line of an event."""
        self.write_line(export_format.event_line(fact, time_us))
        self.events += 1
        self.messages += isinstance(fact, e.MessageAddedEvent)

    def close(self) -> Exported:
        """Write the closing line."""
        digest = self._hash.hexdigest()
        self.write_line(
            export_format.ClosingLine(self.sessions, self.events, self.messages, digest)
        )
        return Exported(self.sessions, self.events, self.messages, self.bytes, digest)
