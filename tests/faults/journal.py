"""What the callers know: which steps were submitted, which were acknowledged, in which order.

A step is noted before it is handed to the engine and again when the engine has returned. The notes
go to whatever outlives the writer: the operation log of a recorded run, or a pipe to the parent of
a process that will be killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from limpet import Message

Note = Mapping[str, Any]


class Sink(Protocol):
    """Takes notes and keeps them, whatever happens to this process."""

    def note(self, note: dict[str, object]) -> None: ...


class Diary:
    """A sink in a file of its own, for one process that will be killed; threads may share it.

    Moments are read from the clock that all processes of the machine have in common.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, note: dict[str, object]) -> None:
        """Keep the note."""
        os.write(self._fd, json.dumps({"at": time.monotonic_ns(), **note}).encode() + b"\n")

    @staticmethod
    def read(path: Path) -> list[tuple[int, Note]]:
        """All notes, but one that the kill cut short."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        notes = [cast("dict[str, Any]", json.loads(line)) for line in lines]
        return [(note["at"], note) for note in notes]


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message by its id and the fingerprint of all that was said."""

    id: str
    print: str


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a writer asked of one session.

    `verb` is create, add, update, end, reset, delete or continue. `number` is the value that the
    session's metadata has after it.
    """

    id: str
    writer: str
    session: str
    verb: str
    messages: tuple[ArchivedMessage, ...] = ()
    number: int = 0


@dataclass(slots=True)
class Entry:
    """A step and the moments of its two notes; `acked` is None while it is in flight.

    `target` is the session that a continuation opened, which only the acknowledgement tells.
    """

    step: Step
    submitted: int
    acked: int | None = None
    target: str = ""


@dataclass(slots=True)
class Journal:
    """The entries of a run, in the order of submission."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def take(self, moment: int, note: Note) -> None:
        """Read one note, made at this moment."""
        if "submit" in note:
            step = _step(dict(note["submit"]))
            self.entries[step.id] = Entry(step, moment)
        elif "ack" in note:
            entry = self.entries[note["ack"]]
            entry.acked = moment if entry.acked is None else entry.acked
            entry.target = note["target"]

    def settle(self, happened: set[str], moment: int) -> None:
        """Decide what was in flight up to now: it happened and must stay, or it must never appear."""
        for entry in [entry for entry in self.entries.values() if entry.acked is None]:
            if entry.step.id in happened:
                entry.acked = moment
            else:
                del self.entries[entry.step.id]

    def between(self, first: int, last: int) -> Journal:
        """What was submitted before `first` or acknowledged before `last`, as known at `last`."""
        known = Journal()
        for entry in self.entries.values():
            acked = entry.acked if entry.acked is not None and entry.acked < last else None
            if entry.submitted < first or acked is not None:
                target = entry.target if acked is not None else ""
                known.entries[entry.step.id] = Entry(entry.step, entry.submitted, acked, target)
        return known


def _step(fields: dict[str, Any]) -> Step:
    return Step(messages=tuple(ArchivedMessage(**said) for said in fields.pop("messages")), **fields)


def submitted(step: Step) -> dict[str, object]:
    """The note that a step is about to be handed over."""
    return {"submit": asdict(step)}


def acknowledged(step: Step, target: str = "") -> dict[str, object]:
    """The note that the engine has returned, and which session it opened, if any."""
    return {"ack": step.id, "target": target}


def from_notes(notes: Iterable[tuple[int, Note]]) -> Journal:
    """The journal of all notes."""
    journal = Journal()
    for moment, note in notes:
        journal.take(moment, note)
    return journal


def said(message: Message) -> ArchivedMessage:
    """The message's id and fingerprint: every field that a caller can set."""
    plain = cast("dict[str, object]", message.to_dict())
    kept = {key: plain[key] for key in _FIELDS if key in plain}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=True)
    return ArchivedMessage(message.id, hashlib.sha256(text.encode()).hexdigest()[:32])


_FIELDS = ("id", "timestamp", "role", "content", "tool_calls", "tool_results", "metadata", "openai")
