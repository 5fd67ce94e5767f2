"""What clients of lists saw: transactions of reads and appends, noted by those who made them.

A transaction is noted before it is tried and again when its end is known; who is killed in between
leaves one whose end nobody knows. Moments are those of the clock that all processes have in common.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

Status = Literal["ok", "fail", "info"]
"""It took effect; it had none, and never will; nobody knows."""


class Begun(msgspec.Struct, frozen=True, tag="b", array_like=True):
    """A transaction that is about to be tried: the elements that it appends, each to a list."""

    id: int
    at: int
    appends: tuple[tuple[str, int], ...]


class Ended(msgspec.Struct, frozen=True, tag="e", array_like=True):
    """What became of it, and what it read, each list whole, before it appended."""

    id: int
    at: int
    status: Status
    reads: tuple[tuple[str, tuple[int, ...]], ...] = ()


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction, as a whole. `end` is None if its end is not known."""

    id: int
    begin: int
    end: int | None
    status: Status
    appends: tuple[tuple[str, int], ...] = ()
    reads: tuple[tuple[str, tuple[int, ...]], ...] = ()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Begun | Ended).decode


class Writer:
    """Notes of one process, in a file of its own. Threads may share it; a kill leaves whole lines but the last."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()

    def begun(self, id: int, appends: tuple[tuple[str, int], ...]) -> None:
        """Note it before anything is asked of the store."""
        self._note(Begun(id, time.monotonic_ns(), appends))

    def ended(self, id: int, status: Status, reads: Iterable[tuple[str, tuple[int, ...]]] = ()) -> None:
        """Note it after the store has answered."""
        self._note(Ended(id, time.monotonic_ns(), status, tuple(reads)))

    def _note(self, note: Begun | Ended) -> None:
        line = _encode(note) + b"\n"
        with self._lock:
            os.write(self._fd, line)

    def close(self) -> None:
        os.close(self._fd)


def read(paths: Iterable[Path]) -> Iterator[Transaction]:
    """Return all transactions of several processes; those that never ended come last."""
    for path in paths:
        open_: dict[int, Begun] = {}
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                note = _decode(line)
                if isinstance(note, Begun):
                    open_[note.id] = note
                else:
                    yield _whole(open_.pop(note.id), note)
        for begun in open_.values():
            yield _whole(begun, None)


def _whole(begun: Begun, ended: Ended | None) -> Transaction:
    return Transaction(
        id=begun.id,
        begin=begun.at,
        end=None if ended is None or ended.status == "info" else ended.at,
        status="info" if ended is None else ended.status,
        appends=begun.appends,
        reads=() if ended is None else ended.reads,
    )
