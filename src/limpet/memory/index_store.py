"""The index store: tables of byte rows, ordered by key, for data derived from the log.

The archive index, the built-in memory and the vectors are stored in it. Each backend provides one
beside its store; `VolatileIndexStore` is the one in RAM. Keys of one owner share a prefix, so
reading or deleting one owner's rows costs nothing for the others.

`PairedIndexStore` pairs an index store with the event store. Both store the same identity, which
changes with every erasure. An index store with another identity may hold erased data or lack recent
data: it is cleared and rebuilt from the log. `IngestTracker` detects whether the built-in memory has
lost histories that the log marks as ingested.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from limpet import errors, limits
from limpet.stores import port

if TYPE_CHECKING:
    from limpet.memory.builtin import BuiltInMemory

ExpectedRows = Mapping[tuple[str, bytes], bytes | None]
"""Values of rows as the caller last read them, by table and key; None: the row does not exist."""

NO_EXPECTATION: Final[ExpectedRows] = MappingProxyType({})

RowT = TypeVar("RowT")
_ResultT = TypeVar("_ResultT")


class PutRow(msgspec.Struct, frozen=True):
    """Inserts or replaces a row."""

    table: str
    key: bytes
    value: bytes


class DropRows(msgspec.Struct, frozen=True):
    """Deletes the rows of a table with first <= key < last."""

    table: str
    first: bytes
    last: bytes


class IndexStore(Protocol):
    """Tables of rows. Threads and processes may share one index store."""

    def get(self, table: str, keys: Sequence[bytes], /) -> Mapping[bytes, bytes]:
        """Return the values of the rows that exist, by key, as they are at one moment."""
        ...

    def scan(
        self, table: str, first: bytes, last: bytes, /, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` rows with first <= key < last, by key; with `newest` in descending order."""
        ...

    def last_values(self, table: str, ranges: Sequence[tuple[bytes, bytes]], /) -> list[bytes | None]:
        """Return the value of the last row of each range, first <= key < last, at one moment; None for an empty range."""
        ...

    def write(self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION) -> bool:
        """Apply changes in order, all or none, durably, if the expected rows are unchanged.

        Returns False, and changes nothing, if another writer has changed one of them.
        """
        ...

    def scrub(self) -> None:
        """Remove the remains of deleted and replaced rows from every file."""
        ...

    def clear(self) -> None:
        """Delete all rows, also of a damaged index store. They can be rebuilt from the log."""
        ...

    def size(self) -> int:
        """Return the size in bytes; 0 if nothing was ever written."""
        ...

    def close(self) -> None:
        """Release every resource. Closing twice is fine."""
        ...


def encode_key(*parts: str | int) -> bytes:
    """Return a key. Keys sort as their parts do, and no key is a prefix of a key of other parts."""
    return b"".join(map(_encode_part, parts))


def _encode_part(part: str | int) -> bytes:
    if isinstance(part, int):
        return b"\x02" + part.to_bytes(8, "big")
    return b"\x01" + part.encode().replace(b"\0", b"\0\xff") + b"\0\0"


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key behind all keys that begin with a prefix made by `encode_key`."""
    return prefix + b"\xff"


def decode_row(row: bytes, kind: type[RowT]) -> RowT:
    """Decode a row of MessagePack; raise Corrupt if it can't be decoded."""
    try:
        return msgspec.msgpack.decode(row, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.Corrupt("a row of the index store can't be decoded.") from error


def encode_number(number: int) -> bytes:
    """Return a whole number as the value of a row."""
    return number.to_bytes(8, "big")


def decode_number(row: bytes | None) -> int:
    """Return the whole number of a row; 0 if there is no row."""
    return int.from_bytes(row, "big") if row else 0


def scan_all(
    store: IndexStore, table: str, first: bytes, last: bytes, *, page: int = limits.MEMORY_ROWS
) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows of a range by key. It reads them page by page, so concurrent changes may show."""
    while rows := store.scan(table, first, last, limit=page):
        yield from rows
        first = rows[-1][0] + b"\0"


def drop_row(table: str, key: bytes) -> DropRows:
    """Return the change that deletes one row."""
    return DropRows(table, key, key + b"\0")


def retry_write(step: Callable[[], _ResultT | None], tries: int = limits.RETRIES_MAX) -> _ResultT:
    """Call `step`, which reads, decides and writes, until it returns a result instead of None.

    None says that another writer was faster. Raises Unavailable after so many tries.
    """
    for _ in range(tries):
        result = step()
        if result is not None:
            return result
    raise errors.Unavailable("too many concurrent changes of the index store; retry.")


class VolatileIndexStore:
    """An index store in RAM."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, tuple[list[bytes], dict[bytes, bytes]]] = {}
        self._closed = False

    def _table(self, table: str) -> tuple[list[bytes], dict[bytes, bytes]]:
        if self._closed:
            raise errors.EngineClosed
        return self._tables.setdefault(table, ([], {}))

    def get(self, table: str, keys: Sequence[bytes], /) -> Mapping[bytes, bytes]:
        with self._lock:
            rows = self._table(table)[1]
            return {key: rows[key] for key in keys if key in rows}

    def scan(
        self, table: str, first: bytes, last: bytes, /, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        with self._lock:
            keys, rows = self._table(table)
            low, high = bisect.bisect_left(keys, first), bisect.bisect_left(keys, last)
            span = keys[max(low, high - limit) : high][::-1] if newest else keys[low:high][:limit]
            return [(key, rows[key]) for key in span]

    def last_values(self, table: str, ranges: Sequence[tuple[bytes, bytes]], /) -> list[bytes | None]:
        found = (self.scan(table, *span, limit=1, newest=True) for span in ranges)
        return [rows[0][1] if rows else None for rows in found]

    def write(self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION) -> bool:
        with self._lock:
            for (table, key), value in expected.items():
                if self._table(table)[1].get(key) != value:
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
        """Do nothing: RAM keeps no remains."""

    def clear(self) -> None:
        with self._lock:
            self._tables.clear()

    def size(self) -> int:
        with self._lock:
            tables = self._tables.values()
            return sum(len(key) + len(value) for _, rows in tables for key, value in rows.items())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tables.clear()


PAIRING_TABLE: Final = "bond"
PAIRING_NOTE: Final = "shelf"
WHOLE_STORE: Final = ""
"""The note of the pairing belongs to the whole store: no tenant has this name."""
PAIRING_KEY: Final = encode_key(WHOLE_STORE)

_PROPOSED_MAX: Final = 8
"""Proposed identities that the note keeps: of processes that pair at the same time, or died while pairing."""


class IndexIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of an index store: `created` changes when it is cleared, `epoch` with every erasure."""

    created: str
    epoch: str


class PairedIndexStore:
    """An index store whose identity the event store knows."""

    def __init__(self, store: port.Store, index: IndexStore, random: Callable[[int], bytes]) -> None:
        self._store = store
        self._index = index
        self._random = random
        # The methods that need no pairing are those of the index store itself.
        self.get = index.get
        self.scan = index.scan
        self.last_values = index.last_values
        self.write = index.write
        self.scrub = index.scrub
        self.size = index.size
        self.close = index.close

    def check(self) -> None:
        """Clear the index store if the event store knows another identity.

        Does nothing while an erasure is pending, because the erasure clears it or pairs it anew.
        """
        try:
            # Look twice. Another process may pair them between the read of the note and the read of
            # the row, and then note and row differ although both are right.
            if self._differs() and self._differs():
                self.clear()
        except errors.Corrupt:
            # The first reader of the damaged rows rebuilds them.
            return

    def _differs(self) -> bool:
        from limpet.admin.erasure import has_local_work  # noqa: PLC0415 - imports this module

        note = self._store.note(WHOLE_STORE, PAIRING_NOTE)
        if has_local_work(self._store.pending_erasures()) or not (note or self._index.size()):
            return False
        row = self._identity_row()
        if (note is None and row is None) or not self._index.size():
            self.pair()
            return False
        return note is None or _decode_identity(row) not in _accepted_identities(note)

    def pair(self) -> None:
        """Give both sides a new identity: no older copy of either side fits the other one any more.

        Raises Unavailable after too many concurrent pairings.
        """
        for _ in range(limits.RETRIES_MAX):
            note, row = self._store.note(WHOLE_STORE, PAIRING_NOTE), self._identity_row()
            version, proposed = (note.version, _accepted_identities(note)[1:]) if note else (0, [])
            identity = IndexIdentity(_decode_identity(row).created or self._random(16).hex(), self._random(16).hex())
            # Note, row, note: the note accepts the old and the new identity before the row changes, so
            # a reader in between, or after a crash in between, finds one that the note accepts.
            accepted = [_decode_identity(row), *proposed[-_PROPOSED_MAX:], identity]
            if not self._write_note(accepted, version):
                continue
            put = PutRow(PAIRING_TABLE, PAIRING_KEY, msgspec.msgpack.encode(identity))
            if self._index.write([put], expected={(PAIRING_TABLE, PAIRING_KEY): row}) and self._write_note(
                [identity], version + 1
            ):
                return
        raise errors.Unavailable("too many concurrent pairings of the index store; retry.")

    def _write_note(self, identities: Sequence[IndexIdentity], version: int) -> bool:
        flat = [part for identity in identities for part in (identity.created, identity.epoch)]
        return self._store.put_note(WHOLE_STORE, PAIRING_NOTE, msgspec.msgpack.encode(flat), expected=version)

    def note_erasure(self) -> None:
        """Change the identity after an erasure, so that no copy from before it is accepted."""
        if self._index.size():
            self.pair()

    def clear(self) -> None:
        """Delete all rows and their remains in files, and pair the empty index store."""
        self._index.clear()
        self._index.scrub()
        self.pair()

    def created_id(self) -> str:
        """Return the identity since the index store was last empty; pair it if it has none."""
        row = self._identity_row()
        if row is None:
            self.pair()
            row = self._identity_row()
        return _decode_identity(row).created

    def _identity_row(self) -> bytes | None:
        return self._index.get(PAIRING_TABLE, [PAIRING_KEY]).get(PAIRING_KEY)


def unpair(store: port.Store) -> None:
    """Remove the identity from an event store: an index store that lies beside it is cleared at the next check."""
    note = store.note(WHOLE_STORE, PAIRING_NOTE)
    if note is not None:
        store.put_note(WHOLE_STORE, PAIRING_NOTE, None, expected=note.version)


def _decode_identity(row: bytes | None) -> IndexIdentity:
    return decode_row(row, IndexIdentity) if row else IndexIdentity("", "")


def _accepted_identities(note: port.Note) -> list[IndexIdentity]:
    """Return the identities that an index store may have: the last one, and those that are being written."""
    flat = decode_row(note.value, list[str])
    return [IndexIdentity(*pair) for pair in zip(flat[::2], flat[1::2], strict=False)]


class RecoveringIndexStore:
    """A paired index store for callers that can rebuild its rows: it is cleared when a row is damaged."""

    def __init__(self, paired: PairedIndexStore) -> None:
        self._paired = paired
        self.clear = paired.clear
        self.size = paired.size
        self.close = paired.close

    def get(self, table: str, keys: Sequence[bytes], /) -> dict[bytes, bytes]:
        return self._clear_if_corrupt(lambda: dict(self._paired.get(table, keys)))

    def scan(
        self, table: str, first: bytes, last: bytes, /, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        return self._clear_if_corrupt(lambda: self._paired.scan(table, first, last, limit=limit, newest=newest))

    def last_values(self, table: str, ranges: Sequence[tuple[bytes, bytes]], /) -> list[bytes | None]:
        return self._clear_if_corrupt(lambda: self._paired.last_values(table, ranges))

    def write(self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION) -> bool:
        listed = list(changes)
        return self._clear_if_corrupt(lambda: self._paired.write(listed, expected=expected))

    def scrub(self) -> None:
        self._clear_if_corrupt(self._paired.scrub)

    def _clear_if_corrupt(self, step: Callable[[], _ResultT]) -> _ResultT:
        try:
            return step()
        except errors.Corrupt:
            self._paired.clear()
            return step()


_: tuple[type[IndexStore], ...] = (VolatileIndexStore, PairedIndexStore, RecoveringIndexStore)


class IngestCount(msgspec.Struct, frozen=True, array_like=True):
    """How many histories of a tenant the built-in memory has ingested since its index store was empty."""

    created: str = ""
    histories: int = 0


class IngestTracker:
    """Detects whether the built-in memory still has the histories that the log marks as ingested.

    Index store and event store count ingested histories. The index store has lost some if it was
    created anew, or if its count is behind.
    """

    def __init__(self, store: port.Store, paired: PairedIndexStore, memory: BuiltInMemory) -> None:
        self._store = store
        self._paired = paired
        self._index = RecoveringIndexStore(paired)
        # What the memory knows of one history needs no pairing.
        self.has_ingested = memory.has_ingested
        self.used_fallback = memory.used_fallback

    def lost(self, tenant: str) -> bool:
        """Whether the index store is another one than the noted one, or an older copy of it."""
        noted, now = self._noted_count(tenant)[0], self._actual_count(tenant)
        return noted.created != now.created or noted.histories > now.histories

    def begin(self, tenant: str) -> None:
        """Note which index store takes the histories of a tenant from now on."""
        self._paired.created_id()
        self._note(tenant)

    def count_ingested(self, tenant: str) -> None:
        """Count one more ingested history; raise Unavailable after too many concurrent changes.

        The index store counts first. The note may then lag behind it but never be ahead, and a
        count that is ahead of the note has lost nothing.
        """
        retry_write(lambda: self._increment(tenant) or None)
        # An index store that was cleared meanwhile must be found lost: more than this history is gone.
        if self._noted_count(tenant)[0].created == self._actual_count(tenant).created:
            self._note(tenant)

    def _increment(self, tenant: str) -> bool:
        key = encode_key(tenant)
        row = self._index.get(PAIRING_TABLE, [key]).get(key)
        count = msgspec.msgpack.encode((decode_row(row, int) if row else 0) + 1)
        return self._index.write([PutRow(PAIRING_TABLE, key, count)], expected={(PAIRING_TABLE, key): row})

    def _note(self, tenant: str) -> None:
        now, version = self._actual_count(tenant), self._noted_count(tenant)[1]
        # If another process has written the note meanwhile, it has read the same index store.
        self._store.put_note(tenant, PAIRING_NOTE, msgspec.msgpack.encode(now), expected=version)

    def _noted_count(self, tenant: str) -> tuple[IngestCount, int]:
        note = self._store.note(tenant, PAIRING_NOTE)
        return (decode_row(note.value, IngestCount), note.version) if note else (IngestCount(), 0)

    def _actual_count(self, tenant: str) -> IngestCount:
        key = encode_key(tenant)
        rows = self._index.get(PAIRING_TABLE, [key, PAIRING_KEY])
        # Never equal to the identity of a note, so an index store without one is found lost.
        created = decode_row(rows[PAIRING_KEY], IndexIdentity).created if PAIRING_KEY in rows else "nobody's"
        return IngestCount(created, decode_row(rows[key], int) if key in rows else 0)
