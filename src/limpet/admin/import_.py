"""Import: reads sessions from an export file or another program's file into a tenant.

The whole file is checked before anything is written: first lines, counts and digest, then each
session against the rules and the store. A session that takes several commits stays hidden until
the last one. An interrupted import continues when it is repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal, cast

import msgspec

from limpet import errors, limits
from limpet.admin import export, foreign_files
from limpet.admin.export import Exporter, TimedEvent, begin_version
from limpet.admin.foreign_files import ImportNotes, SkippedSource
from limpet.core.formats import codec, export_format
from limpet.core.rules.import_rules import ImportedEvent, ImportTerms, SessionReplay
from limpet.core.rules.session_rules import duplicate_session_error
from limpet.core.values import events
from limpet.core.values.commands import CommandRequest, ReplaySession
from limpet.core.values.session_state import SessionState, WindowPolicy
from limpet.core.values.validation import checked_id
from limpet.runtime.engine import Engine
from limpet.sessions.requests import checked_policy

if TYPE_CHECKING:
    from limpet.admin.log import Progress


ReadCallback = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


class FileSession(msgspec.Struct):
    """A session of a file: where its events are, how many, and the event numbers that rewinds go back to."""

    id: str
    line: int
    offset: int
    events: int = 0
    messages: int = 0
    bytes: int = 0
    targets: set[int] = msgspec.field(default_factory=set[int])
    sha256: bytes = b""

    @property
    def needs_several_steps(self) -> bool:
        many = self.events > limits.IMPORT_STEP_EVENTS or self.bytes > limits.IMPORT_STEP_BYTES
        return many or bool(self.targets)


class ImportFileReader:
    """Reads the lines of an open file, with a limit on their length."""

    def __init__(self, file: BinaryIO, on_read: ReadCallback) -> None:
        self._file = file
        self._on_read = on_read
        self.number = 0
        self.hash = hashlib.sha256()
        self.part = hashlib.sha256()

    def read_lines(self, offset: int = 0, number: int = 0) -> Iterator[bytes]:
        """Yield the lines from an offset on; raise DamagedFile for one that is too long or cut off."""
        self._file.seek(offset)
        self.number = number
        while data := self._file.readline(limits.EXPORT_LINE_BYTES_MAX + 1):
            self.number += 1
            if not data.endswith(b"\n"):
                raise self.damaged_error("it is cut off, or longer than any line may be.")
            yield data
            self._on_read(len(data))

    def damaged_error(self, what: str) -> errors.DamagedFile:
        return errors.DamagedFile(
            f"line {self.number:,}: {what}", hint="Export again, or copy the file again.", facts={"line": self.number}
        )


def read_outline(lines: ImportFileReader) -> list[FileSession]:
    """Read the whole file once; return its sessions. Raises DamagedFile, NewerStore."""
    parts: list[FileSession] = []
    names: set[str] = set()
    offset, closing = 0, None
    for data in lines.read_lines():
        if closing is not None:
            raise lines.damaged_error("it comes after the closing line.")
        line = _decode_line(lines, data)
        offset += len(data)
        if isinstance(line, export_format.HeaderLine) != (lines.number == 1):
            raise lines.damaged_error("a file has one header, as its first line.")
        if isinstance(line, export_format.ClosingLine):
            _check_closing(lines, line, parts)
            closing = line
            continue
        lines.hash.update(data)
        if isinstance(line, export_format.SessionLine):
            lines.part = hashlib.sha256()
            if line.id in names:
                raise lines.damaged_error(f"the session {line.id!r} comes twice.")
            names.add(line.id)
            parts.append(FileSession(line.id, lines.number, offset))
        elif isinstance(line, export_format.EventLine):
            _count_event(lines, parts, line, data)
    if closing is None:
        lines.number += 1
        raise lines.damaged_error("the closing line is missing: the file is cut off.")
    return parts


def _decode_line(lines: ImportFileReader, data: bytes) -> export_format.ExportLine:
    try:
        line = export_format.decode_line(data)
    except errors.DamagedFile as error:
        raise lines.damaged_error(error.message) from error
    if isinstance(line, export_format.HeaderLine) and line.version != export_format.FORMAT_VERSION:
        raise errors.NewerStore(
            f"the file has version {line.version} of the format; this Limpet reads {export_format.FORMAT_VERSION}.",
            hint="Nothing was written. In an up-to-date clone of Limpet: pip install .",
            facts={"version": line.version},
        )
    return line


def _check_closing(lines: ImportFileReader, line: export_format.ClosingLine, parts: list[FileSession]) -> None:
    events, messages = sum(p.events for p in parts), sum(p.messages for p in parts)
    if (line.sessions, line.events, line.messages) != (len(parts), events, messages):
        raise lines.damaged_error("its counts are not those of the file: something is missing.")
    if line.sha256 != lines.hash.hexdigest():
        raise lines.damaged_error("the file is not what was written: its SHA-256 is another.")


def _count_event(lines: ImportFileReader, parts: list[FileSession], line: export_format.EventLine, data: bytes) -> None:
    if not parts:
        raise lines.damaged_error("an event comes before the first session.")
    part = parts[-1]
    part.events += 1
    part.bytes += len(data)
    lines.part.update(data)
    part.sha256 = lines.part.digest()
    part.messages += line.kind == events.MessageAddedEvent.kind
    if line.kind == export_format.ExportedRewind.kind:
        to = getattr(_decode_event(lines, line), "to", 0)
        if to != part.events - 1:
            part.targets.add(to)


def _decode_event(lines: ImportFileReader, line: export_format.EventLine) -> export_format.ExportedEvent:
    try:
        return export_format.decode_exported_event(line)
    except errors.DamagedFile as error:
        raise lines.damaged_error(error.message) from error


class SessionImportPlan(msgspec.Struct, frozen=True):
    """What to do with a session: nothing if it is `here`; else write the events after the first `done` ones."""

    part: FileSession
    begin: int = 0
    done: int = 0
    here: bool = False


class Importer:
    """Imports the sessions of one file into a tenant."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        file: BinaryIO,
        *,
        on_read: ReadCallback,
        user_id: str | None = None,
        suffix: str = "",
        by_content: bool = False,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._lines = ImportFileReader(file, on_read)
        self._user_id = user_id
        self._suffix = suffix
        self._by_content = by_content
        self._policies: set[bytes] = set()
        self.parts = read_outline(self._lines)
        self._names = {part.id: part.id + suffix for part in self.parts}

    def plan(self) -> tuple[list[SessionImportPlan], list[tuple[FileSession, errors.Error]]]:
        """Check every session; return the plans, and the sessions that are refused because their ids are taken."""
        chosen: list[SessionImportPlan] = []
        refused: list[tuple[FileSession, errors.Error]] = []
        for part in self.parts:
            self._engine.check()
            self._check(part)
            try:
                chosen.append(self._plan_session(part))
            except errors.DuplicateSession as error:
                refused.append((part, error))
        return chosen, refused

    def _replay_terms(self, begins: Mapping[str, int]) -> ImportTerms:
        ahead = self._engine.now_us() + limits.IMPORT_CLOCK_SKEW_S * 1_000_000
        return ImportTerms(
            latest_us=ahead, check_policy=self._checked_policy, names=self._names, version_offsets=begins,
            user_id=self._user_id,
        )  # fmt: skip

    def _checked_policy(self, policy: WindowPolicy | None) -> object:
        key = codec.canonical_json(policy)
        if key not in self._policies:
            checked_policy(policy)
            self._policies.add(key)
        return policy

    def _read_events(self, part: FileSession) -> Iterator[TimedEvent]:
        left, digest = part.events, hashlib.sha256()
        for data in self._lines.read_lines(part.offset, part.line):
            line = _decode_line(self._lines, data)
            digest.update(data)
            left -= 1
            changed = not left and digest.digest() != part.sha256
            if changed or not isinstance(line, export_format.EventLine):
                raise self._lines.damaged_error("the file was changed while it was read.")
            yield _decode_event(self._lines, line), line.time_us
            if not left:
                return

    def _replay_steps(self, part: FileSession, terms: ImportTerms) -> Iterator[tuple[SessionReplay, ImportedEvent]]:
        """Yield a session's events as they are to be written; raise DamagedFile for one that breaks a rule."""
        replay = SessionReplay(part.id, terms, events=part.events, targets=part.targets)
        for fact, time_us in self._read_events(part) if part.events else ():
            try:
                step = replay.apply(fact, time_us, hidden=part.needs_several_steps)
                if isinstance(step.event, events.MessageAddedEvent):
                    codec.encode_message(step.event.message)
            except (errors.Refused, errors.Conflict) as error:
                raise self._lines.damaged_error(f"in {part.id!r}, {error.message}") from error
            yield replay, step
        try:
            replay.finish()
        except errors.DamagedFile as error:
            raise self._lines.damaged_error(f"in {part.id!r}, {error.message}") from error

    def _check(self, part: FileSession) -> None:
        try:
            checked_id("a session's id", self._names[part.id])
        except errors.Refused as error:
            raise self._lines.damaged_error(error.message) from error
        for _ in self._replay_steps(part, self._replay_terms({})):
            pass

    def _plan_session(self, part: FileSession) -> SessionImportPlan:
        state = self._engine.states.current(self._tenant, self._names[part.id])
        if state is None:
            return SessionImportPlan(part)
        if not state.hidden:
            if self._matching_events(part, state) < part.events:
                raise duplicate_session_error(state.id)
            return SessionImportPlan(part, begin_version(self._engine, self._tenant, state), here=True)
        if state.until:
            begin, done = state.until - part.events, state.version + part.events - state.until
            if 0 < done <= part.events and self._matching_events(part, state, done) == done:
                return SessionImportPlan(part, begin, done)
        return SessionImportPlan(part, state.version)

    def _matching_events(self, part: FileSession, state: SessionState, most: int | None = None) -> int:
        """Return how many of the first events are equal in the file and in the stored session."""
        stored = Exporter(self._engine, self._tenant, self._existing_state).timed_events(state)
        expected = self._expected_events(part)
        if self._by_content:
            # The times may differ, and the stored session may go on.
            said = _message_keys(stored)
            return part.events if all(next(said, None) == key for key in _message_keys(expected)) else 0
        pairs = itertools.islice(zip(stored, expected, strict=False), most)
        return sum(1 for _ in itertools.takewhile(lambda pair: _encode_line(pair[0]) == _encode_line(pair[1]), pairs))

    def _existing_state(self, session_id: str) -> SessionState | None:
        named = session_id in self._names.values()
        return self._engine.states.current(self._tenant, session_id) if named else None

    def _expected_events(self, part: FileSession) -> Iterator[TimedEvent]:
        """Yield the events that an export of the imported session has."""
        terms = self._replay_terms({})
        replay = SessionReplay(part.id, terms, events=part.events, targets=part.targets)
        for fact, time_us in self._read_events(part):
            event = replay.apply(fact, time_us, hidden=False).event
            if isinstance(event, events.SessionForkedEvent):
                fork = (event.source, event.version, event.state.title, event.state.metadata)
                made: export_format.ExportedEvent = export_format.ExportedFork(*fork)
            elif isinstance(event, events.SessionRewoundEvent):
                made = export_format.ExportedRewind(event.to)
            else:
                assert not isinstance(event, events.SessionOffloadedEvent | events.SessionErasedEvent), "not in a file"
                made = event
            yield made, time_us

    def write(self, chosen: list[SessionImportPlan]) -> None:
        """Write the sessions that are not stored yet. An interrupted one is continued by the next import."""
        terms = self._replay_terms({choice.part.id: choice.begin for choice in chosen})
        for choice in chosen:
            if not choice.here:
                self._write_session(choice, terms)

    def _write_session(self, choice: SessionImportPlan, terms: ImportTerms) -> None:
        part, batch = choice.part, ImportBatch(choice)
        for replay, step in self._replay_steps(part, terms):
            assert replay.state is not None, "an event leads to a state"
            if replay.number <= choice.done:
                batch.version = replay.state.version
                continue
            if batch.steps and (step.base is not None or batch.full):
                self._commit(batch, batch.state, whole=False)
            batch.add(step, replay.state)
        self._commit(batch, batch.state, whole=True)

    def _commit(self, batch: ImportBatch, state: SessionState | None, *, whole: bool) -> None:
        if state is None:
            return
        command = ReplaySession(
            session_id=self._names[batch.choice.part.id], expected=batch.version,
            events=tuple((step.event, step.time_us) for step in batch.steps), state=state, base=batch.steps[0].base,
            whole=whole,
        )  # fmt: skip
        self._engine.run(CommandRequest(tenant=self._tenant, command=command))
        batch.begin(state.version)


class ImportBatch:
    """The events of one commit."""

    def __init__(self, choice: SessionImportPlan) -> None:
        self.choice = choice
        self.begin(choice.begin)

    def begin(self, version: int) -> None:
        self.version = version
        self.steps: list[ImportedEvent] = []
        self.state: SessionState | None = None
        self.bytes = 0

    def add(self, step: ImportedEvent, state: SessionState) -> None:
        self.steps.append(step)
        self.state = state
        if isinstance(step.event, events.MessageAddedEvent):
            self.bytes += len(codec.encode_message(step.event.message))

    @property
    def full(self) -> bool:
        many = len(self.steps) >= limits.IMPORT_STEP_EVENTS
        return many or self.bytes >= limits.IMPORT_STEP_BYTES


def _encode_line(timed: TimedEvent) -> bytes:
    return export_format.encode_line(export_format.event_line(*timed))


def _message_keys(timed: Iterator[TimedEvent]) -> Iterator[bytes]:
    """Yield a key for each message: its id and content, without its time."""
    for event, _ in timed:
        if isinstance(event, events.MessageAddedEvent):
            yield codec.canonical_json([event.message.id, codec.comparable_message(event.message)])


Format = Literal["auto", "limpet", "penguin", "openai"]
FORMATS: Final = ("auto", "limpet", "penguin", "openai")


class Imported(msgspec.Struct, frozen=True):
    """The result of an import: new sessions and messages, and sessions that were stored already.

    `skipped` lists what was left out, and why; `notes` what differs from the file, and `more_notes` counts
    those beyond the limit. With `dry_run` nothing was written: the numbers are those of a real import.
    """

    format: str
    sessions: int
    messages: int
    already: int
    skipped: tuple[SkippedSource, ...] = ()
    notes: tuple[str, ...] = ()
    more_notes: int = 0
    dry_run: bool = False


def import_sessions(
    engine: Engine,
    tenant: str,
    source: str | Path,
    *,
    format: Format,  # noqa: A002 - what it is called everywhere
    user_id: str | None,
    rename: str,
    dry_run: bool,
    progress: Progress,
) -> Imported:
    engine.check()
    path = export.checked_path(source)
    if format not in FORMATS:
        raise errors.InvalidRequest(f"format is one of {', '.join(FORMATS)}.")
    if user_id is not None:
        checked_id("a user's id", user_id)
    if not isinstance(cast("object", rename), str):
        raise errors.InvalidRequest("rename is text that is put behind each id.")
    _check_source(path, format)
    kind = foreign_files.detect_format(path) if format == "auto" else format
    notes = ImportNotes()
    with contextlib.ExitStack() as opened:
        if kind == "limpet":
            file: BinaryIO = opened.enter_context(path.open("rb"))
        else:
            file = cast("BinaryIO", opened.enter_context(tempfile.TemporaryFile()))
            chats, file_us = foreign_files.READERS[kind](path, notes), path.stat().st_mtime_ns // 1000
            foreign_files.convert(chats, export.ExportWriter(file), notes, now_us=engine.now_us(), file_us=file_us)
            file.flush()
        work = file.seek(0, os.SEEK_END) * (2 if dry_run else 3)
        importer = Importer(
            engine, tenant, file, on_read=_byte_progress(progress, work), user_id=user_id, suffix=rename,
            by_content=kind != "limpet",
        )  # fmt: skip
        chosen, refused = importer.plan()
        for part, error in refused:
            if kind == "limpet":
                raise _duplicate_error(error, part, len(refused))
            notes.skip(part.id, "another session here has its id.")
        if not dry_run:
            importer.write(chosen)
    progress(work, work)
    new = [choice.part for choice in chosen if not choice.here]
    return Imported(
        kind, len(new), sum(part.messages for part in new), len(chosen) - len(new),
        tuple(notes.skipped), tuple(notes.texts), notes.more, dry_run,
    )  # fmt: skip


def _check_source(path: Path, format: Format) -> None:  # noqa: A002 - what it is called everywhere
    pipe = "It is read more than once: save what comes from a pipe to a file first, and name that."
    if not path.exists():
        hint = pipe if str(path) == "-" else "Check the path."
        raise errors.InvalidRequest(f"there is no file {path}.", hint=hint)
    if path.is_dir():
        if format not in ("auto", "penguin"):
            raise errors.InvalidRequest(f"{path} is a folder.", hint="Only Penguin's sessions are read from folders.")
    elif not path.is_file():
        raise errors.InvalidRequest(f"{path} is not a file on a disk.", hint=pipe)


def _duplicate_error(error: errors.Error, part: FileSession, count: int) -> errors.DuplicateSession:
    more = f" (and {count - 1:,} more)" if count > 1 else ""
    return errors.DuplicateSession(
        f"another session here has the id {part.id!r}{more}. Nothing was written.",
        hint="Import under other ids, with rename, or into another tenant.",
        facts={**error.facts, "sessions": count},
    )


def _byte_progress(progress: Progress, total: int) -> Callable[[int], None]:
    done = 0

    def on_read(size: int) -> None:
        nonlocal done
        before, done = done, min(done + size, total)
        # A call for each line would take longer than the lines.
        if before >> 16 != done >> 16:
            progress(done, total)

    return on_read
