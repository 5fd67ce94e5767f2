"""The operation log: what reached the files of a store, in true order.

One file, opened with O_APPEND by every recording process, so that the kernel puts the records of
several processes in one order. A record is written with one `write` call. File operations are
named by the file's inode number and directory operations by name, because a store that is made in
a temporary file and renamed keeps its inode.
"""

from __future__ import annotations

import enum
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

HEAD = struct.Struct("<BBQQI")  # kind, flag, inode, offset, payload length


class Kind(enum.IntEnum):
    """What an operation did."""

    CREATE = 1  # payload: name
    WRITE = 2  # offset, payload: bytes
    TRUNCATE = 3  # offset: new size
    SYNC = 4  # flag 1: the directory was synced with it
    DELETE = 5  # payload: name; flag 1: the directory was synced with it
    RENAME = 6  # payload: old NUL new
    DIRSYNC = 7
    NOTE = 8  # payload: JSON of the workload (submitted, acknowledged)


@dataclass(frozen=True, slots=True)
class Op:
    """One recorded operation."""

    kind: Kind
    inode: int = 0
    offset: int = 0
    flag: int = 0
    data: bytes = b""

    def note(self) -> dict[str, object]:
        """The workload's note in this operation."""
        return cast("dict[str, object]", json.loads(self.data))


class OpLog:
    """Appends operations to a log file shared by processes and threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, kind: Kind, *, inode: int = 0, offset: int = 0, flag: int = 0, data: bytes = b"") -> None:
        """Append one operation, whole or not at all."""
        record = HEAD.pack(kind, flag, inode, offset, len(data)) + data
        if os.write(self._fd, record) != len(record):
            raise OSError(f"short write to {self.path}")

    def note(self, note: dict[str, object]) -> None:
        """Append a note of the workload."""
        self.add(Kind.NOTE, data=json.dumps(note).encode())

    def close(self) -> None:
        """Close the file; the log stays."""
        os.close(self._fd)


def read(path: Path) -> list[Op]:
    """All operations of a log, oldest first."""
    return list(_parse(path.read_bytes()))


def _parse(raw: bytes) -> Iterator[Op]:
    at = 0
    while at < len(raw):
        kind, flag, inode, offset, length = HEAD.unpack_from(raw, at)
        at += HEAD.size
        yield Op(Kind(kind), inode, offset, flag, raw[at : at + length])
        at += length
