"""Export: writes the events of sessions verbatim to a file with one JSON value a line.

A session is written with every generation and with events that a rewind removed; a fork also with
the events of its source. Events of an earlier, deleted session with the same id are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import export_format
from limpet.core.rules import session_rules as rules
from limpet.core.values import events as e
from limpet.core.values.context import WindowSelection
from limpet.core.values.session_state import SessionState
from limpet.core.values.validation import checked_id
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.state_cache import decode_session_events, session_stream
from limpet.stores import port, urls

if TYPE_CHECKING:
    from limpet.admin.log import Progress

TimedEvent = tuple[export_format.ExportedEvent, int]
"""An event of an export file, and its time in microseconds."""

replace = msgspec.structs.replace


class Sink(Protocol):
    """An object that takes the bytes of an export."""

    def write(self, data: bytes, /) -> object: ...


class Exported(msgspec.Struct, frozen=True):
    """The result of an export: counts, and the SHA-256 of every line but the last."""

    sessions: int
    events: int
    messages: int
    bytes: int
    sha256: str


ExportableEvent = export_format.UnchangedEvent | e.SessionCreatedEvent | e.SessionForkedEvent | e.SessionRewoundEvent
"""The events that an export file has."""


class EventNumbers:
    """Maps versions of a session to the numbers of its events in a file; `ordinal` is that of the first event."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.count = 0
        self._by_version = [0]

    def leave_out(self, version: int) -> None:
        """Skip an event. A reference to it becomes one to the event before."""
        # Versions come in rising order; those between were not written.
        self._by_version += [0] * (version - len(self._by_version))
        self._by_version.append(self.count)

    def add(self, version: int) -> None:
        self.count += 1
        self.leave_out(version)

    def number_of(self, version: int) -> int:
        """Return the number of the event at a version; 0 if it was not written."""
        return self._by_version[version] if version < len(self._by_version) else 0


class Exporter:
    """Reads the events of sessions for export. `among` returns the state of an exported session by its id."""

    def __init__(self, engine: Engine, tenant: str, among: Callable[[str], SessionState | None]) -> None:
        self._engine = engine
        self._tenant = tenant
        self._exported_state = among
        self._numbers: dict[str, EventNumbers] = {}

    def timed_events(self, state: SessionState) -> Iterator[TimedEvent]:
        numbers: EventNumbers | None = None
        name = ""
        for page in self._pages(state):
            recorded = decode_session_events(self._engine.store, self._tenant, page)
            for stored, fact in zip(page, recorded, strict=True):
                if numbers is None:
                    numbers = self._numbers[state.id] = EventNumbers(stored.ordinal)
                event = fact.event
                if isinstance(event, e.SessionOffloadedEvent | e.SessionErasedEvent):
                    # Only this store needs to know what its memory has received and what it has erased.
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
        """Yield runs of events with low < version <= high, the newest run first, including those before a rewind."""
        while high > low:
            found = self._engine.store.read(self._tenant, stream, after=low, until=high, limit=high - low, at=high)
            if not found:
                # The session is a fork of one that had been rewound below this version.
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
        return replace(event, selection=_renumbered_selection(chosen, other.id, self._numbers[other.id]))


def _renumbered_selection(chosen: WindowSelection, session_id: str, numbers: EventNumbers) -> WindowSelection:
    version = numbers.number_of(chosen.version)
    if not version:
        return chosen
    began = chosen.began - numbers.ordinal
    return replace(chosen, session_id=session_id, version=version, began=began)


def _portable_event(event: ExportableEvent, session_id: str, numbers: EventNumbers) -> export_format.ExportedEvent:
    if isinstance(event, e.SessionCreatedEvent):
        # In a file a fork has the events of its source as its own.
        return event if event.id == session_id else replace(event, id=session_id)
    if isinstance(event, e.SessionForkedEvent):
        there = event.state
        return export_format.ExportedFork(event.source, numbers.count - 1, there.title, there.metadata)
    if isinstance(event, e.SessionRewoundEvent):
        return export_format.ExportedRewind(numbers.number_of(event.to))
    return event


def export_sessions(
    engine: Engine,
    tenant: str,
    target: str | Path | Sink,
    *,
    session_id: str | None,
    user_id: str | None,
    progress: Progress,
) -> Exported:
    engine.check()
    if session_id is not None and user_id is not None:
        raise errors.InvalidRequest("export a session or a user, not both.")
    if session_id is not None:
        checked_id("a session's id", session_id)
    if user_id is not None:
        checked_id("a user's id", user_id)
    opened: contextlib.AbstractContextManager[Sink]
    if isinstance(target, str | Path):
        place = checked_path(target).absolute()
        _check_absent(place)
        opened = _new_file(place)
    elif not callable(getattr(cast("object", target), "write", None)):
        raise errors.InvalidRequest("an export goes to the path of a new file, or an open one.")
    elif isinstance(target, io.TextIOBase) or hasattr(target, "encoding"):
        raise errors.InvalidRequest(
            "an export is bytes, and this takes text.",
            hint="Give what takes bytes: sys.stdout.buffer, or a file that was opened with 'wb'.",
        )
    else:
        opened = contextlib.nullcontext(target)
    states = select_sessions(engine, tenant, session_id, user_id)
    with opened as sink:
        return write_sessions(engine, tenant, states, sink, progress)


def checked_path(value: str | Path) -> Path:
    if not isinstance(cast("object", value), str | Path) or "\0" in str(value):
        raise errors.InvalidRequest("a file is given by its path.")
    if not str(value):
        raise errors.InvalidRequest("the path of the file is empty.", hint="Name a file.")
    return urls.local_path(value)


def _check_absent(place: Path) -> None:
    if place.exists() or place.is_symlink():
        raise errors.InvalidRequest(
            f"{place} exists already.",
            hint="Name a new file; an export never overwrites.",
            facts={"exists": str(place)},
        )


def _publish_file(made: Path, place: Path) -> None:
    """Give a finished file its name; raise InvalidRequest if another file has got it since."""
    try:
        place.hardlink_to(made)
    except FileExistsError:
        _check_absent(place)
    except OSError:
        # Some file systems have no hard links.
        made.rename(place)
    else:
        made.unlink()


@contextlib.contextmanager
def _new_file(place: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file beside `place`, readable by its owner only; it gets the name once it is on disk."""
    try:
        fd, name = tempfile.mkstemp(prefix=f"{place.name[:100]}.", suffix=".part", dir=place.parent)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise errors.InvalidRequest(
            f"no file can be made in {place.parent}: {error.strerror}.",
            hint="Name a file in a folder that is there and may be written to.",
        ) from error
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _publish_file(Path(name), place)
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def select_sessions(engine: Engine, tenant: str, session_id: str | None, user_id: str | None) -> list[SessionState]:
    """Return the sessions of a conversation, of a user, or of the tenant, the oldest first."""
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
    """Return the version before a session's first event: earlier ones are of a deleted session with the same id."""
    return _first_event(engine, tenant, state).version - 1


def conversation_sessions(engine: Engine, tenant: str, session_id: str) -> list[SessionState]:
    """Return the sessions of a conversation, first to last; raise SessionNotFound."""

    def find(name: str) -> SessionState | None:
        state = engine.states.current(tenant, name)
        return None if state is None or state.hidden else state

    return rules.conversation(rules.existing_state(find(session_id), session_id), find)


def _session_ids(store: port.Store, tenant: str, user_id: str | None) -> Iterable[str]:
    """Return the ids of all sessions, including those that move to the front of the listing meanwhile."""
    found: dict[str, None] = {}
    since: int | None = None
    while True:
        before, newest = len(found), since
        after: tuple[int, str] | None = None
        while True:
            query = port.Query(
                kind=state_cache.SESSION_KIND, owner=user_id, since_us=since, after=after, limit=limits.PAGE_SIZE_MAX
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
    exporter = Exporter(engine, tenant, {state.id: state for state in states}.get)
    total, done = sum(state.version for state in states), 0
    made = ExportWriter(sink)
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
    """Writes the lines of an export, counts them, and computes their digest."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.sessions = self.events = self.messages = self.bytes = 0

    def write_line(self, line: export_format.ExportLine) -> None:
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
        self.write_line(export_format.event_line(fact, time_us))
        self.events += 1
        self.messages += isinstance(fact, e.MessageAddedEvent)

    def close(self) -> Exported:
        digest = self._hash.hexdigest()
        self.write_line(export_format.ClosingLine(self.sessions, self.events, self.messages, digest))
        return Exported(self.sessions, self.events, self.messages, self.bytes, digest)
