"""The archive's index on a shelf: what is written, and how it stays small.

The messages of an owner are numbered as they come. The newest wait as they are, with their terms; each 32 become
a segment of rows by term, eight segments one of the next size, so that a message is moved four times at most.
Segments begin at multiples of their size. So which of them are there follows from how many messages there are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from limpet import errors
from limpet.core.values.memory_records import Who
from limpet.memory.archive import documents, postings
from limpet.memory.archive.documents import Documents, View
from limpet.memory.archive.terms import Term
from limpet.memory.shelf import Drop, Put, Shelf, after, key

CURSORS: Final = "archive.cursors"
OWNERS: Final = "archive.owners"
SESSIONS: Final = "archive.sessions"
MEMBERS: Final = "archive.members"
HEADS: Final = "archive.heads"
WAITING: Final = "archive.waiting"
DOCUMENTS: Final = "archive.documents"
TERMS: Final = "archive.terms"
OF_OWNER: Final = (MEMBERS, HEADS, WAITING, DOCUMENTS, TERMS)
"""Books whose keys begin with an owner's number."""

FORMAT: Final = 2 if sys.byteorder == "little" else 3
"""Of the rows. An index of another one is made anew."""

SIZES: Final = (32, 256, 2_048, 16_384)
"""How many documents a segment has. None reaches over a multiple of 65,536."""

COUNTER: Final = key("")
"""In the book of cursors, where no tenant has this name: the number of the next owner."""

_MANY: Final = 100_000


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """How far a tenant's log is in the index: the position, and the link of the event there.

    `turn` changes with whatever is forgotten: who has read the log before that can't write it afterwards.
    """

    format: int = FORMAT
    position: int = 0
    link: bytes = b""
    turn: int = 0


class Head(msgspec.Struct, frozen=True, array_like=True):
    """How many documents an owner has been given, how many are there, their length in all, and a number of changes."""

    following: int = 0
    documents: int = 0
    length: int = 0
    turn: int = 0


class Waiting(msgspec.Struct, array_like=True):
    """Documents that are in no segment yet: a row of `Documents`, and the terms of each, joined."""

    documents: bytes
    once: list[bytes]
    often: list[bytes]


Segment = tuple[int, int]
"""Its size, and the number of its first document."""

encode: Final = msgspec.msgpack.encode
_Row = TypeVar("_Row")


def decode(kind: type[_Row], row: bytes) -> _Row:
    """Return what a row holds; raise Corrupt if it can't be read."""
    try:
        return msgspec.msgpack.decode(row, type=kind)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a row of the archive can't be read.") from error


def numbered(number: int) -> bytes:
    """Return a whole number as the value of a row."""
    return number.to_bytes(8, "big")


def owned(owner: int, *parts: int | str) -> tuple[bytes, bytes]:
    """Return the range of keys of an owner that begin with some parts."""
    first = key(owner, *parts)
    return first, after(first)


class Index:
    """The rows of the archive, for whoever writes or searches them."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def cursor(self, tenant: str) -> tuple[Cursor, bytes | None]:
        """Return how far a tenant's log is in the index, and the row that says so, if there is one."""
        row = self.shelf.get(CURSORS, [key(tenant)]).get(key(tenant))
        if row is None:
            return Cursor(), None
        return decode(Cursor, row), row

    def owner(self, who: Who) -> int | None:
        """Return the number of a user; None if nothing of theirs is in the index."""
        named = key(who.tenant, who.user_id)
        row = self.shelf.get(OWNERS, [named]).get(named)
        return None if row is None else int.from_bytes(row, "big")

    def head(self, owner: int) -> Head:
        """Return an owner's head."""
        row = self.shelf.get(HEADS, [key(owner)]).get(key(owner))
        return Head() if row is None else decode(Head, row)

    def waiting(self, owner: int) -> list[tuple[bytes, Waiting]]:
        """Return the rows of an owner's documents that are in no segment yet, by key."""
        rows = self.shelf.scan(WAITING, *owned(owner), limit=SIZES[0])
        return [(named, decode(Waiting, row)) for named, row in rows]

    def documents(self, owner: int, first: int, last: int) -> list[tuple[int, Documents]]:
        """Return rows of documents in segments, with the number each begins at; `first` and `last` are such."""
        return [(at, documents.decode(row)) for at, row in self._documents(owner, first, last)]

    def views(self, owner: int, first: int, last: int) -> list[tuple[int, View]]:
        """Return the same for reading only."""
        return [(at, View(row)) for at, row in self._documents(owner, first, last)]

    def _documents(self, owner: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        for named, row in self.shelf.scan(
            DOCUMENTS, key(owner, first), key(owner, last), limit=_MANY
        ):
            yield int.from_bytes(named[-8:], "big"), row

    def terms(self, owner: int, segment: Segment) -> dict[Term, bytes]:
        """Return every list of a segment."""
        rows = self.shelf.scan(TERMS, *owned(owner, *segment), limit=_MANY)
        found: dict[Term, bytes] = {}
        for _, row in rows:
            found |= postings.unpacked(row)
        return found

    def rows(self, owner: int, wanted: Sequence[tuple[Segment, Term]]) -> list[bytes | None]:
        """Return the rows of segments that have the lists of terms, if the segments have them, in one look."""
        firsts = {segment: key(owner, *segment) for segment, _ in wanted}
        spans = [(firsts[segment], firsts[segment] + term + b"\0") for segment, term in wanted]
        return self.shelf.lasts(TERMS, spans)


def segments(following: int) -> Iterator[Segment]:
    """Yield the segments of an owner who was given this many documents, in order; what follows them waits."""
    start = 0
    for size in reversed(SIZES):
        while start + size <= following:
            yield size, start
            start += size


def segment_rows(owner: int, segment: Segment, lists: dict[Term, bytes]) -> Iterator[Put]:
    """Yield the rows of a segment."""
    first = key(owner, *segment)
    for term, row in postings.rows(lists):
        yield Put(TERMS, first + term, row)


def document_rows(owner: int, first: int, held: Documents) -> Iterator[Put]:
    """Yield the rows of documents from a number on: as many in each as in a segment of the second size, at most."""
    for start in range(0, len(held), SIZES[1]):
        yield Put(DOCUMENTS, key(owner, first + start), held.part(start, start + SIZES[1]).encode())


def everything(owner: int) -> list[Drop]:
    """Return what leaves nothing of an owner."""
    return [Drop(book, *owned(owner)) for book in OF_OWNER]
