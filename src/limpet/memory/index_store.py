"""The index store: tables of byte rows, ordered by key, for data derived from the log.

The index store holds the archive index, the built-in memory and the vectors. Each backend provides an
index store beside its event store; `VolatileIndexStore` is the one in RAM. Keys of one owner share a
prefix, so reading or deleting the rows of one owner does not touch the rows of others.

`PairedIndexStore` pairs an index store with the event store. Both store the same identity, which
changes with every erasure. An index store with another identity may contain erased data or lack recent
data, so it is cleared and rebuilt from the log. `IngestTracker` detects whether the built-in memory has
lost histories that the log marks as ingested.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar

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
_ParametersT = ParamSpec("_ParametersT")


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
        """Return the values of the rows that exist, by key, all of one moment."""
        ...

    def scan(
        self, table: str, first: bytes, last: bytes, /, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` rows with first <= key < last, by key; with `newest` in descending order."""
        ...

    def last_values(self, table: str, ranges: Sequence[tuple[bytes, bytes]], /) -> list[bytes | None]:
        """Return the value of the last row in each range first <= key < last, all of one moment; None for an empty range."""
        ...

    def write(self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION) -> bool:
        """Apply changes in order, all or none, durably, if the expected rows are unchanged.

        Returns False, and changes nothing, if another writer has changed one of them.
        """
        ...

    def scrub(self) -> None:
        """Overwrite or delete what files still contain of deleted and replaced rows."""
        ...

    def clear(self) -> None:
        """Delete all rows, even if the index store is damaged. They can be rebuilt from the log."""
        ...

    def size(self) -> int:
        """Return the size in bytes; 0 if nothing was ever written."""
        ...

    def close(self) -> None:
        """Release every resource. Closing twice is fine."""
        ...


def encode_key(*parts: str | int) -> bytes:
    """Return a key. Keys sort like their parts, and no key is a prefix of another key with as many parts."""
    return b"".join(map(_encode_part, parts))


def _encode_part(part: str | int) -> bytes:
    if isinstance(part, int):
        return b"\x02" + part.to_bytes(8, "big")
    return b"\x01" + part.encode().replace(b"\0", b"\0\xff") + b"\0\0"


def prefix_end(prefix: bytes) -> bytes:
    """Return a key that sorts after every key with this prefix, which `encode_key` has made."""
    return prefix + b"\xff"


def decode_row(row: bytes, kind: type[RowT]) -> RowT:
    """Decode a row of MessagePack; raise Corrupt if it can't be decoded."""
    try:
        return msgspec.msgpack.decode(row, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.Corrupt("a row of the index store can't be decoded.") from error


def encode_number(number: int) -> bytes:
    """Encode a whole number as the value of a row."""
    return number.to_bytes(8, "big")


def decode_number(row: bytes | None) -> int:
    """Decode a whole number from the value of a row; 0 if there is no row."""
    return int.from_bytes(row, "big") if row else 0


def scan_all(
    store: IndexStore, table: str, first: bytes, last: bytes, *, page: int = limits.MEMORY_ROWS
) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows of a range by key. Rows are read page by page, so later pages may show concurrent changes."""
    while rows := store.scan(table, first, last, limit=page):
        yield from rows
        first = rows[-1][0] + b"\0"


def drop_row(table: str, key: bytes) -> DropRows:
    """Return the change that deletes one row."""
    return DropRows(table, key, key + b"\0")


def retry_write(step: Callable[[], _ResultT | None], tries: int = limits.RETRIES_MAX) -> _ResultT:
    """Call `step`, which reads, decides and writes, until it returns a result.

    It returns None if another writer was faster. Raises Unavailable after `tries` calls.
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
"""The tenant name for notes of the whole store. No tenant can have it."""
PAIRING_KEY: Final = encode_key(WHOLE_STORE)

_PROPOSED_MAX: Final = 8
"""Proposed identities that the note keeps, of processes that pair at the same time or died while pairing."""


class IndexIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The identity of an index store: `created` changes when it is cleared, `epoch` with every erasure."""

    created: str
    epoch: str


class PairedIndexStore:
    """An index store whose identity the event store has noted."""

    def __init__(self, store: port.Store, index: IndexStore, random: Callable[[int], bytes]) -> None:
        self._store = store
        self._index = index
        self._random = random
        # Methods that need no pairing are used directly, so that no call goes through a wrapper.
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
            # Compare twice. Another process may pair the stores between the read of the note and the read
            # of the row, and then note and row differ although both are right.
            if self._differs() and self._differs():
                self.clear()
        except errors.Corrupt:
            # The next reader of the damaged rows rebuilds them.
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
        """Write a new identity to both stores, so that no older copy of either store matches the other.

        Raises Unavailable after too many concurrent pairings.
        """
        for _ in range(limits.RETRIES_MAX):
            note, row = self._store.note(WHOLE_STORE, PAIRING_NOTE), self._identity_row()
            version, proposed = (note.version, _accepted_identities(note)[1:]) if note else (0, [])
            identity = IndexIdentity(_decode_identity(row).created or self._random(16).hex(), self._random(16).hex())
            # The order is note, row, note. The note accepts the old and the new identity before the row
            # changes, so a reader in between, or after a crash in between, finds an accepted identity.
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
        """Change the identity after an erasure, so that no older copy of the index store is accepted."""
        if self._index.size():
            self.pair()

    def clear(self) -> None:
        """Delete all rows, remove their remains from files, and pair the empty index store."""
        self._index.clear()
        self._index.scrub()
        self.pair()

    def created_id(self) -> str:
        """Return the part of the identity that changes when the index store is cleared; pair it if it has none."""
        row = self._identity_row()
        if row is None:
            self.pair()
            row = self._identity_row()
        return _decode_identity(row).created

    def _identity_row(self) -> bytes | None:
        return self._index.get(PAIRING_TABLE, [PAIRING_KEY]).get(PAIRING_KEY)


def unpair(store: port.Store) -> None:
    """Remove the identity from an event store, so that the next check clears the index store beside it."""
    note = store.note(WHOLE_STORE, PAIRING_NOTE)
    if note is not None:
        store.put_note(WHOLE_STORE, PAIRING_NOTE, None, expected=note.version)


def _decode_identity(row: bytes | None) -> IndexIdentity:
    return decode_row(row, IndexIdentity) if row else IndexIdentity("", "")


def _accepted_identities(note: port.Note) -> list[IndexIdentity]:
    """Return the identities that the note accepts: the current one, and those that are being written."""
    flat = decode_row(note.value, list[str])
    return [IndexIdentity(*pair) for pair in zip(flat[::2], flat[1::2], strict=False)]


class RecoveringIndexStore:
    """A paired index store whose rows the caller can rebuild. A call that finds a damaged row clears it and runs again."""

    def __init__(self, paired: PairedIndexStore) -> None:
        self.get = _clearing_if_corrupt(paired.get, paired.clear)
        self.scan = _clearing_if_corrupt(paired.scan, paired.clear)
        self.last_values = _clearing_if_corrupt(paired.last_values, paired.clear)
        self._write = _clearing_if_corrupt(paired.write, paired.clear)
        self.scrub = _clearing_if_corrupt(paired.scrub, paired.clear)
        self.clear = paired.clear
        self.size = paired.size
        self.close = paired.close

    def write(self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION) -> bool:
        # A list, because the second call needs the changes again.
        return self._write(list(changes), expected=expected)


def _clearing_if_corrupt(
    step: Callable[_ParametersT, _ResultT], clear: Callable[[], None]
) -> Callable[_ParametersT, _ResultT]:
    def repeated(*args: _ParametersT.args, **kwargs: _ParametersT.kwargs) -> _ResultT:
        try:
            return step(*args, **kwargs)
        except errors.Corrupt:
            clear()
            return step(*args, **kwargs)

    return repeated


_: tuple[type[IndexStore], ...] = (VolatileIndexStore, PairedIndexStore, RecoveringIndexStore)


class IngestCount(msgspec.Struct, frozen=True, array_like=True):
    """The number of a tenant's histories that the built-in memory has ingested since its index store was created."""

    created: str = ""
    histories: int = 0


class IngestTracker:
    """Detects whether the built-in memory still has the histories that the log marks as ingested.

    Index store and event store both count ingested histories. The index store has lost some if it was
    created anew, or if its count is lower.
    """

    def __init__(self, store: port.Store, paired: PairedIndexStore, memory: BuiltInMemory) -> None:
        self._store = store
        self._paired = paired
        self._index = RecoveringIndexStore(paired)
        # Questions about one history need no pairing.
        self.has_ingested = memory.has_ingested
        self.used_fallback = memory.used_fallback

    def lost(self, tenant: str) -> bool:
        """Whether the index store differs from the noted one, or is an older copy of it."""
        noted, now = self._noted_count(tenant)[0], self._actual_count(tenant)
        return noted.created != now.created or noted.histories > now.histories

    def begin(self, tenant: str) -> None:
        """Note the index store that ingests the histories of a tenant from now on."""
        self._paired.created_id()
        self._note(tenant)

    def count_ingested(self, tenant: str) -> None:
        """Count one more ingested history; raise Unavailable after too many concurrent changes."""
        # The index store counts first, so a crash in between leaves its count ahead of the note, which is
        # no loss. The other order would report a loss.
        retry_write(lambda: self._increment(tenant) or None)
        # If the index store was cleared meanwhile, other histories are gone too, so the note must not change.
        if self._noted_count(tenant)[0].created == self._actual_count(tenant).created:
            self._note(tenant)

    def _increment(self, tenant: str) -> bool:
        key = encode_key(tenant)
        row = self._index.get(PAIRING_TABLE, [key]).get(key)
        count = msgspec.msgpack.encode((decode_row(row, int) if row else 0) + 1)
        return self._index.write([PutRow(PAIRING_TABLE, key, count)], expected={(PAIRING_TABLE, key): row})

    def _note(self, tenant: str) -> None:
        now, version = self._actual_count(tenant), self._noted_count(tenant)[1]
        # A failed write is no error: the other process has noted the count of the same index store.
        self._store.put_note(tenant, PAIRING_NOTE, msgspec.msgpack.encode(now), expected=version)

    def _noted_count(self, tenant: str) -> tuple[IngestCount, int]:
        note = self._store.note(tenant, PAIRING_NOTE)
        return (decode_row(note.value, IngestCount), note.version) if note else (IngestCount(), 0)

    def _actual_count(self, tenant: str) -> IngestCount:
        key = encode_key(tenant)
        rows = self._index.get(PAIRING_TABLE, [key, PAIRING_KEY])
        # An index store without an identity counts as lost: no note has this one.
        created = decode_row(rows[PAIRING_KEY], IndexIdentity).created if PAIRING_KEY in rows else "nobody's"
        return IngestCount(created, decode_row(rows[key], int) if key in rows else 0)
