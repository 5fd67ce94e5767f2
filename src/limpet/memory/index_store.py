"""The index store port: tables of byte rows, ordered by key, for data derived from the log.

The archive index, the built-in memory and the vectors are stored in it. Each backend provides one
beside its store. `VolatileIndexStore` is the one in RAM. Keys of one owner share a prefix, so
reading or deleting one owner's rows costs nothing for the others.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

import msgspec

from limpet import errors

ExpectedRows = Mapping[tuple[str, bytes], bytes | None]
"""Rows by book and key as somebody last saw them; None: not there."""

NO_EXPECTATION: Final[ExpectedRows] = MappingProxyType({})


RowT = TypeVar("RowT")


class PutRow(msgspec.Struct, frozen=True):
    """A row to be there, in the place of any before it."""

    table: str
    key: bytes
    value: bytes


class DropRows(msgspec.Struct, frozen=True):
    """Rows of a book to be gone: first <= key < last."""

    table: str
    first: bytes
    last: bytes


class IndexStore(Protocol):
    """Books of rows. Several threads and processes may use one shelf."""

    def get(self, book: str, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return the values of the rows that are there, by key, in one look."""
        ...

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` rows with first <= key < last by key; `newest`: from the last on, downwards."""
        ...

    def last_values(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        """Return the value of the last row of each range, first <= key < last, in one look; None where there is none."""
        ...

    def write(
        self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION
    ) -> bool:
        """Make changes in order, all or none, durably, if these rows are as expected.

        Returns whether they were; False: somebody else was first, and nothing was changed.
        """
        ...

    def scrub(self) -> None:
        """See to it that nothing of what was dropped or replaced is left in any file."""
        ...

    def clear(self) -> None:
        """Throw everything away and begin empty: for a shelf that is damaged. All on it can be made again."""
        ...

    def size(self) -> int:
        """Return how many bytes it takes; 0 as long as nothing was written to it."""
        ...

    def close(self) -> None:
        """Give back every resource. Closing twice is fine."""
        ...


def encode_key(*parts: str | int) -> bytes:
    """Return a key: keys compare as their parts do, and no key of other parts begins with this one's bytes."""
    return b"".join(map(_encode_part, parts))


def _encode_part(part: str | int) -> bytes:
    if isinstance(part, int):
        return b"\x02" + part.to_bytes(8, "big")
    return b"\x01" + part.encode().replace(b"\0", b"\0\xff") + b"\0\0"


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with a prefix of `key`'s."""
    return prefix + b"\xff"


def decode_row(row: bytes, kind: type[RowT]) -> RowT:
    """Return what a row in MessagePack holds; raise Corrupt if it can't be read."""
    try:
        return msgspec.msgpack.decode(row, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.Corrupt("a row of the memory can't be read.") from error


class VolatileIndexStore:
    """A shelf in RAM."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, tuple[list[bytes], dict[bytes, bytes]]] = {}
        self._closed = False

    def _table(self, book: str) -> tuple[list[bytes], dict[bytes, bytes]]:
        if self._closed:
            raise errors.EngineClosed
        return self._tables.setdefault(book, ([], {}))

    def get(self, book: str, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return the values of the rows that are there, by key."""
        with self._lock:
            rows = self._table(book)[1]
            return {key: rows[key] for key in keys if key in rows}

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` rows of a range by key, or from its end downwards."""
        with self._lock:
            keys, rows = self._table(book)
            low, high = bisect.bisect_left(keys, first), bisect.bisect_left(keys, last)
            span = keys[max(low, high - limit) : high][::-1] if newest else keys[low:high][:limit]
            return [(key, rows[key]) for key in span]

    def last_values(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        """Return the value of the last row of each range."""
        found = (self.scan(book, *span, limit=1, newest=True) for span in spans)
        return [rows[0][1] if rows else None for rows in found]

    def write(
        self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION
    ) -> bool:
        """Make changes in order if some rows are as expected; return whether they were."""
        with self._lock:
            for (book, key), value in expected.items():
                if self._table(book)[1].get(key) != value:
                    return False
            for change in changes:
                keys, rows = self._table(change.table)
                if isinstance(change, PutRow):
                    if change.key not in rows:
                        bisect.insort(keys, change.key)
                    rows[change.key] = change.value
                    continue
                low = bisect.bisect_left(keys, change.first)
                high = bisect.bisect_left(keys, change.last)
                for key in keys[low:high]:
                    del rows[key]
                del keys[low:high]
            return True

    def scrub(self) -> None:
        """What is dropped is gone."""

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._tables.clear()

    def size(self) -> int:
        """Return the bytes of all rows."""
        with self._lock:
            books = self._tables.values()
            return sum(len(key) + len(value) for _, rows in books for key, value in rows.items())

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            self._closed = True
            self._tables.clear()


_: type[IndexStore] = VolatileIndexStore
