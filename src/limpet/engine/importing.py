"""Sessions in, from a file of `exporting`: looked through whole before anything is written.

First the file itself (its lines, counts and digest), then every session by the rules and against what is here,
then the writing. A session that takes more than one step is found by nobody before its last one; an import that
was broken off goes on where it stopped when it is repeated.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec, export_format
from limpet.core.rules.import_rules import ImportedEvent, ImportTerms, SessionReplay
from limpet.core.rules.session_rules import duplicate_session_error
from limpet.core.values import events as e
from limpet.core.values.commands import CommandRequest, ReplaySession
from limpet.core.values.messages import checked_id
from limpet.core.values.session_state import SessionState, WindowPolicy
from limpet.engine.exporting import Exporter, Timed, begin_of
from limpet.runtime.engine import Engine
from limpet.sessions.requests import checked_policy

Passed = Callable[[int], None]
"""Called with the bytes that were gone through since the last time."""


class Part(msgspec.Struct):
    """A session of a file: where its events are, how many, and to which numbers it goes back."""

    id: str
    line: int
    offset: int
    events: int = 0
    messages: int = 0
    bytes: int = 0
    targets: set[int] = msgspec.field(default_factory=set[int])
    sha256: bytes = b""

    @property
    def steps(self) -> bool:
        """Whether it takes more than one step to write it."""
        many = self.events > limits.IMPORT_STEP_EVENTS or self.bytes > limits.IMPORT_STEP_BYTES
        return many or bool(self.targets)


class Lines:
    """The lines of an open file, from a place on; none is longer than its limit."""

    def __init__(self, file: BinaryIO, told: Passed) -> None:
        self._file = file
        self._told = told
        self.number = 0
        self.hash = hashlib.sha256()
        self.part = hashlib.sha256()

    def each(self, offset: int = 0, number: int = 0) -> Iterator[bytes]:
        """Yield lines; raise DamagedFile for one that is too long, or has no end."""
        self._file.seek(offset)
        self.number = number
        while data := self._file.readline(limits.EXPORT_LINE_BYTES_MAX + 1):
            self.number += 1
            if not data.endswith(b"\n"):
                raise self.damaged("it is cut off, or longer than any line may be.")
            yield data
            self._told(len(data))

    def damaged(self, what: str) -> errors.DamagedFile:
        """Return the error for the present line."""
        return errors.DamagedFile(
            f"line {self.number:,}: {what}",
            hint="Export again, or copy the file again.",
            facts={"line": self.number},
        )


def outline(lines: Lines) -> list[Part]:
    """Go through the whole file; return its sessions. Raises DamagedFile, NewerStore."""
    parts: list[Part] = []
    names: set[str] = set()
    offset, closing = 0, None
    for data in lines.each():
        if closing is not None:
            raise lines.damaged("it comes after the closing line.")
        line = _line(lines, data)
        offset += len(data)
        if isinstance(line, export_format.HeaderLine) != (lines.number == 1):
            raise lines.damaged("a file has one header, as its first line.")
        if isinstance(line, export_format.ClosingLine):
            _check_closing(lines, line, parts)
            closing = line
            continue
        lines.hash.update(data)
        if isinstance(line, export_format.SessionLine):
            lines.part = hashlib.sha256()
            if line.id in names:
                raise lines.damaged(f"the session {line.id!r} comes twice.")
            names.add(line.id)
            parts.append(Part(line.id, lines.number, offset))
        elif isinstance(line, export_format.EventLine):
            _count(lines, parts, line, data)
    if closing is None:
        lines.number += 1
        raise lines.damaged("the closing line is missing: the file is cut off.")
    return parts


def _line(lines: Lines, data: bytes) -> export_format.ExportLine:
    try:
        line = export_format.decode_line(data)
    except errors.DamagedFile as error:
        raise lines.damaged(error.message) from error
    if isinstance(line, export_format.HeaderLine) and line.version != export_format.FORMAT_VERSION:
        raise errors.NewerStore(
            f"the file has version {line.version} of the format; this Limpet reads {export_format.FORMAT_VERSION}.",
            hint="Nothing was written. In an up-to-date clone of Limpet: pip install .",
            facts={"version": line.version},
        )
    return line


def _check_closing(lines: Lines, line: export_format.ClosingLine, parts: list[Part]) -> None:
    events, messages = sum(p.events for p in parts), sum(p.messages for p in parts)
    if (line.sessions, line.events, line.messages) != (len(parts), events, messages):
        raise lines.damaged("its counts are not those of the file: something is missing.")
    if line.sha256 != lines.hash.hexdigest():
        raise lines.damaged("the file is not what was written: its SHA-256 is another.")


def _count(lines: Lines, parts: list[Part], line: export_format.EventLine, data: bytes) -> None:
    if not parts:
        raise lines.damaged("an event comes before the first session.")
    part = parts[-1]
    part.events += 1
    part.bytes += len(data)
    lines.part.update(data)
    part.sha256 = lines.part.digest()
    part.messages += line.kind == e.MessageAddedEvent.kind
    if line.kind == export_format.ExportedRewind.kind:
        to = getattr(_fact(lines, line), "to", 0)
        if to != part.events - 1:
            part.targets.add(to)


def _fact(lines: Lines, line: export_format.EventLine) -> export_format.ExportedEvent:
    try:
        return export_format.decode_exported_event(line)
    except errors.DamagedFile as error:
        raise lines.damaged(error.message) from error


class Choice(msgspec.Struct, frozen=True):
    """What is to be done with a session: written from an event on, after a version; or nothing, it is here."""

    part: Part
    begin: int = 0
    done: int = 0
    here: bool = False


class Importer:
    """Takes the sessions of one file into a tenant."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        file: BinaryIO,
        *,
        told: Passed,
        user_id: str | None = None,
        suffix: str = "",
        loosely: bool = False,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._lines = Lines(file, told)
        self._user_id = user_id
        self._suffix = suffix
        self._loosely = loosely
        self._policies: set[bytes] = set()
        self.parts = outline(self._lines)
        self._names = {part.id: part.id + suffix for part in self.parts}

    def choices(self) -> tuple[list[Choice], list[tuple[Part, errors.Error]]]:
        """Check every session; return what is to be done, and which are refused, because others have their ids."""
        chosen: list[Choice] = []
        refused: list[tuple[Part, errors.Error]] = []
        for part in self.parts:
            self._engine.check()
            self._checked(part)
            try:
                chosen.append(self._choice(part))
            except errors.DuplicateSession as error:
                refused.append((part, error))
        return chosen, refused

    def _terms(self, begins: Mapping[str, int]) -> ImportTerms:
        ahead = self._engine.now_us() + limits.IMPORT_CLOCK_SKEW_S * 1_000_000
        return ImportTerms(
            latest_us=ahead,
            policy=self._policy,
            names=self._names,
            begins=begins,
            user_id=self._user_id,
        )

    def _policy(self, policy: WindowPolicy | None) -> object:
        key = codec.canonical_json(policy)
        if key not in self._policies:
            checked_policy(policy)
            self._policies.add(key)
        return policy

    def _facts(self, part: Part) -> Iterator[Timed]:
        left, digest = part.events, hashlib.sha256()
        for data in self._lines.each(part.offset, part.line):
            line = _line(self._lines, data)
            digest.update(data)
            left -= 1
            changed = not left and digest.digest() != part.sha256
            if changed or not isinstance(line, export_format.EventLine):
                raise self._lines.damaged("the file was changed while it was read.")
            yield _fact(self._lines, line), line.time_us
            if not left:
                return

    def _steps(
        self, part: Part, terms: ImportTerms
    ) -> Iterator[tuple[SessionReplay, ImportedEvent]]:
        """Yield a session's events as they would be written; raise DamagedFile for one that may not be."""
        replay = SessionReplay(part.id, terms, events=part.events, targets=part.targets)
        for fact, time_us in self._facts(part) if part.events else ():
            try:
                step = replay.take(fact, time_us, hidden=part.steps)
                if isinstance(step.event, e.MessageAddedEvent):
                    codec.encode_message(step.event.message)
            except (errors.Refused, errors.Conflict) as error:
                raise self._lines.damaged(f"in {part.id!r}, {error.message}") from error
            yield replay, step
        try:
            replay.end()
        except errors.DamagedFile as error:
            raise self._lines.damaged(f"in {part.id!r}, {error.message}") from error

    def _checked(self, part: Part) -> None:
        try:
            checked_id("a session's id", self._names[part.id])
        except errors.Refused as error:
            raise self._lines.damaged(error.message) from error
        for _ in self._steps(part, self._terms({})):
            pass

    def _choice(self, part: Part) -> Choice:
        state = self._engine.states.current(self._tenant, self._names[part.id])
        if state is None:
            return Choice(part)
        if not state.gone:
            if self._same(part, state) < part.events:
                raise duplicate_session_error(state.id)
            return Choice(part, begin_of(self._engine, self._tenant, state), here=True)
        if state.until:
            begin, done = state.until - part.events, state.version + part.events - state.until
            if 0 < done <= part.events and self._same(part, state, done) == done:
                return Choice(part, begin, done)
        return Choice(part, state.version)

    def _same(self, part: Part, state: SessionState, most: int | None = None) -> int:
        """Return with how many of its first events, at most, a session of the file is as the one here."""
        exporter = Exporter(self._engine, self._tenant, self._here)
        theirs = self._as_here(part)
        if self._loosely:
            return part.events if _begins(exporter.facts(state), theirs) else 0
        count = 0
        for mine in exporter.facts(state):
            if count == most or next(theirs, None) != _line_bytes(mine):
                break
            count += 1
            if count == part.events:
                break
        return count

    def _here(self, session_id: str) -> SessionState | None:
        named = session_id in self._names.values()
        return self._engine.states.current(self._tenant, session_id) if named else None

    def _as_here(self, part: Part) -> Iterator[bytes]:
        """Yield the lines that a session of the file would have if it were exported from here."""
        terms = self._terms({})
        replay = SessionReplay(part.id, terms, events=part.events, targets=part.targets)
        for fact, time_us in self._facts(part):
            event = replay.take(fact, time_us, hidden=False).event
            if isinstance(event, e.SessionForkedEvent):
                there = event.state
                made: export_format.ExportedEvent = export_format.ExportedFork(
                    event.source, event.version, there.title, there.metadata
                )
            elif isinstance(event, e.SessionRewoundEvent):
                made = export_format.ExportedRewind(event.to)
            else:
                assert not isinstance(event, e.SessionOffloadedEvent | e.SessionErasedEvent), (
                    "no file tells of it"
                )
                made = event
            yield _line_bytes((made, time_us))

    def write(self, chosen: list[Choice]) -> None:
        """Write the sessions that are not here; each is whole, or goes on at the next import."""
        terms = self._terms({choice.part.id: choice.begin for choice in chosen})
        for choice in chosen:
            if not choice.here:
                self._write(choice, terms)

    def _write(self, choice: Choice, terms: ImportTerms) -> None:
        part, batch = choice.part, Batch(choice)
        for replay, step in self._steps(part, terms):
            assert replay.state is not None, "an event leads to a state"
            if replay.number <= choice.done:
                batch.version = replay.state.version
                continue
            if batch.steps and (step.base is not None or batch.full):
                self._commit(batch, batch.state, whole=False)
            batch.add(step, replay.state)
        self._commit(batch, batch.state, whole=True)

    def _commit(self, batch: Batch, state: SessionState | None, *, whole: bool) -> None:
        if state is None:
            return
        command = ReplaySession(
            session_id=self._names[batch.choice.part.id],
            expected=batch.version,
            events=tuple((step.event, step.time_us) for step in batch.steps),
            state=state,
            base=batch.steps[0].base,
            whole=whole,
        )
        self._engine.run(CommandRequest(tenant=self._tenant, command=command))
        batch.begin(state.version)


class Batch:
    """Events that are committed together."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.begin(choice.begin)

    def begin(self, version: int) -> None:
        """Begin anew, after a version."""
        self.version = version
        self.steps: list[ImportedEvent] = []
        self.state: SessionState | None = None
        self.bytes = 0

    def add(self, step: ImportedEvent, state: SessionState) -> None:
        """Take one more."""
        self.steps.append(step)
        self.state = state
        if isinstance(step.event, e.MessageAddedEvent):
            self.bytes += len(codec.encode_message(step.event.message))

    @property
    def full(self) -> bool:
        """Whether it is time to commit."""
        many = len(self.steps) >= limits.IMPORT_STEP_EVENTS
        return many or self.bytes >= limits.IMPORT_STEP_BYTES


def _line_bytes(timed: Timed) -> bytes:
    return export_format.encode_line(export_format.event_line(*timed))


def _begins(mine: Iterator[Timed], theirs: Iterator[bytes]) -> bool:
    """Whether a session begins with the same messages, whenever they were said."""
    said = (codec.canonical_json([f.message.id, codec.comparable_message(f.message)]) for f, _ in mine if isinstance(f, e.MessageAddedEvent))  # fmt: skip
    for data in theirs:
        line = export_format.decode_line(data)
        fact = (
            export_format.decode_exported_event(line)
            if isinstance(line, export_format.EventLine)
            else None
        )
        if isinstance(fact, e.MessageAddedEvent):
            key = codec.canonical_json([fact.message.id, codec.comparable_message(fact.message)])
            if next(said, None) != key:
                return False
    return True


def size_of(file: BinaryIO) -> int:
    """Return how many bytes an open file has."""
    file.seek(0, os.SEEK_END)
    return file.tell()
