"""Pairs the index store with the event store, and counts the histories that memory has ingested.

Both sides store the same identity, which changes with every erasure. An index store with another
identity may hold erased data or lack recent data: it is cleared and rebuilt from the log.
`IngestTracker` detects whether the built-in memory has lost histories that the log marks as taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from limpet import errors, limits
from limpet.admin.erasure.hooks import has_local_work
from limpet.core.values.memory_records import Who
from limpet.memory.index_store import (
    NO_EXPECTATION,
    DropRows,
    ExpectedRows,
    IndexStore,
    PutRow,
    decode_row,
    encode_key,
)
from limpet.stores import port

PAIRING_TABLE: Final = "bond"
PAIRING_NOTE: Final = "shelf"
WHOLE_STORE: Final = ""
"""No tenant has this name: the note is the whole store's."""

_PROPOSED_MAX: Final = 8
"""Bonds of others that are kept in mind while one is written: of those who do the same now, or died of it."""

_ResultT = TypeVar("_ResultT")


class IndexIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Which shelf it is since it was last empty, and since something was last erased."""

    created: str
    epoch: str


class PairedIndexStore:
    """A shelf that stays the store's. `renew` leaves one that is known to be new."""

    def __init__(
        self, store: port.Store, shelf: IndexStore, random: Callable[[int], bytes]
    ) -> None:
        self._store = store
        self._shelf = shelf
        self._random = random
        self.get = shelf.get
        self.scan = shelf.scan
        self.last_values = shelf.last_values
        self.write = shelf.write
        self.scrub = shelf.scrub
        self.size = shelf.size
        self.close = shelf.close

    def check(self) -> None:
        """Throw the shelf away if it is not the one that the store knows. Nothing is done while an erasure is pending."""
        try:
            # Twice: somebody may have bound them anew between one look and the other.
            if self._differs() and self._differs():
                self.clear()
        except errors.Corrupt:
            # Whoever needs what is damaged makes it anew.
            return

    def _differs(self) -> bool:
        note = self._store.note(WHOLE_STORE, PAIRING_NOTE)
        if has_local_work(self._store.pending_erasures()) or not (note or self._shelf.size()):
            return False
        row = self._identity_row()
        if (note is None and row is None) or not self._shelf.size():
            self.pair()
            return False
        return note is None or _decode_identity(row) not in _accepted_identities(note)

    def pair(self) -> None:
        """Have store and shelf know each other, from now on: no older shelf, and no older store, goes with the other."""
        for _ in range(limits.RETRIES_MAX):
            note, row = self._store.note(WHOLE_STORE, PAIRING_NOTE), self._identity_row()
            version, coming = (note.version, _accepted_identities(note)[1:]) if note else (0, [])
            bond = IndexIdentity(
                _decode_identity(row).created or self._random(16).hex(), self._random(16).hex()
            )
            # Whoever looks in between, or after a crash in between, finds one of those that the note has.
            if not self._write_note(
                [_decode_identity(row), *coming[-_PROPOSED_MAX:], bond], version
            ):
                continue
            made = [PutRow(PAIRING_TABLE, PAIRING_KEY, msgspec.msgpack.encode(bond))]
            if self._shelf.write(
                made, expected={(PAIRING_TABLE, PAIRING_KEY): row}
            ) and self._write_note([bond], version + 1):
                return
        raise errors.Unavailable("others bind the memory to its store; try again.")

    def _write_note(self, bonds: Sequence[IndexIdentity], version: int) -> bool:
        flat = [each for bond in bonds for each in (bond.created, bond.epoch)]
        return self._store.put_note(
            WHOLE_STORE, PAIRING_NOTE, msgspec.msgpack.encode(flat), expected=version
        )

    def note_erasure(self) -> None:
        """Tell that something was erased: no shelf from before is taken for this one."""
        if self._shelf.size():
            self.pair()

    def clear(self) -> None:
        """Throw everything away, leave nothing of it in any file, and begin empty."""
        self._shelf.clear()
        self._shelf.scrub()
        self.pair()

    def created_id(self) -> str:
        """Return which shelf it is; bind it if it is not."""
        row = self._identity_row()
        if row is None:
            self.pair()
            row = self._identity_row()
        return decode_row(row, IndexIdentity).created if row else ""

    def _identity_row(self) -> bytes | None:
        return self._shelf.get(PAIRING_TABLE, [PAIRING_KEY]).get(PAIRING_KEY)


def unpair(store: port.Store) -> None:
    """Have a store know no shelf: whatever is put beside it is of another moment, and is thrown away."""
    note = store.note(WHOLE_STORE, PAIRING_NOTE)
    if note is not None:
        store.put_note(WHOLE_STORE, PAIRING_NOTE, None, expected=note.version)


PAIRING_KEY: Final = encode_key(WHOLE_STORE)


class RecoveringIndexStore:
    """The same, for whoever can do without what was on it: a damaged one is empty, and learns everything again."""

    def __init__(self, shelf: PairedIndexStore) -> None:
        self._shelf = shelf
        self.clear = shelf.clear
        self.size = shelf.size
        self.close = shelf.close

    def get(self, book: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of the rows that are there."""
        return self._retry_when_corrupt(lambda: dict(self._shelf.get(book, keys)))

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return rows of a range."""
        return self._retry_when_corrupt(
            lambda: self._shelf.scan(book, first, last, limit=limit, newest=newest)
        )

    def last_values(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        """Return the last value of each range."""
        return self._retry_when_corrupt(lambda: self._shelf.last_values(book, spans))

    def write(
        self, changes: Iterable[PutRow | DropRows], *, expected: ExpectedRows = NO_EXPECTATION
    ) -> bool:
        """Make changes, if rows are as expected."""
        made = list(changes)
        return self._retry_when_corrupt(lambda: self._shelf.write(made, expected=expected))

    def scrub(self) -> None:
        """See to it that nothing of what was dropped is left in any file."""
        self._retry_when_corrupt(self._shelf.scrub)

    def _retry_when_corrupt(self, step: Callable[[], _ResultT]) -> _ResultT:
        try:
            return step()
        except errors.Corrupt:
            self._shelf.clear()
            return step()


_: tuple[type[IndexStore], type[IndexStore]] = (PairedIndexStore, RecoveringIndexStore)


def _decode_identity(row: bytes | None) -> IndexIdentity:
    return decode_row(row, IndexIdentity) if row else IndexIdentity("", "")


def _accepted_identities(note: port.Note) -> list[IndexIdentity]:
    """Return which bonds a shelf may have: the last one, and those that somebody is about to write."""
    flat = decode_row(note.value, list[str])
    return [IndexIdentity(*pair) for pair in zip(flat[::2], flat[1::2], strict=False)]


class IngestCount(msgspec.Struct, frozen=True, array_like=True):
    """How many histories of a tenant the memory on a shelf has taken since it was empty."""

    created: str = ""
    histories: int = 0


class IngestTracker:
    """Whether the memory on a shelf has what the log says that it has taken."""

    def __init__(
        self,
        store: port.Store,
        shelf: PairedIndexStore,
        has: Callable[[Who, str, str], bool],
        stood_in: Callable[[Who, str, str], bool],
    ) -> None:
        self._store = store
        self._has = has
        self._stood_in = stood_in
        self._bonded = shelf
        self._shelf = RecoveringIndexStore(shelf)

    def has_ingested(self, who: Who, session_id: str, key: str) -> bool:
        """Whether a history was taken and is not gone."""
        return self._has(who, session_id, key)

    def used_fallback(self, who: Who, session_id: str, key: str) -> bool:
        """Whether rules stood in for a model when a history was taken."""
        return self._stood_in(who, session_id, key)

    def lost(self, tenant: str) -> bool:
        """Whether the shelf is another than the one that was taught, or is older."""
        told, now = self._noted_count(tenant)[0], self._actual_count(tenant)
        return told.created != now.created or told.histories > now.histories

    def begin(self, tenant: str) -> None:
        """Note which shelf is taught from now on."""
        self._bonded.created_id()
        self._note(tenant)

    def count_ingested(self, tenant: str) -> None:
        """Count one more history that was taken. The shelf first: one that has counted more has lost nothing."""
        at = encode_key(tenant)
        for _ in range(limits.RETRIES_MAX):
            row = self._shelf.get(PAIRING_TABLE, [at]).get(at)
            count = msgspec.msgpack.encode((decode_row(row, int) if row else 0) + 1)
            if self._shelf.write(
                [PutRow(PAIRING_TABLE, at, count)], expected={(PAIRING_TABLE, at): row}
            ):
                # One that was emptied meanwhile is to be found lost: it has more to learn again than this.
                if self._noted_count(tenant)[0].created == self._actual_count(tenant).created:
                    self._note(tenant)
                return
        raise errors.Unavailable("others teach the memory just now; try again.")

    def _note(self, tenant: str) -> None:
        now, version = self._actual_count(tenant), self._noted_count(tenant)[1]
        # Whoever else has noted it meanwhile has looked at the same shelf.
        self._store.put_note(tenant, PAIRING_NOTE, msgspec.msgpack.encode(now), expected=version)

    def _noted_count(self, tenant: str) -> tuple[IngestCount, int]:
        note = self._store.note(tenant, PAIRING_NOTE)
        return (decode_row(note.value, IngestCount), note.version) if note else (IngestCount(), 0)

    def _actual_count(self, tenant: str) -> IngestCount:
        at = encode_key(tenant)
        rows = self._shelf.get(PAIRING_TABLE, [at, PAIRING_KEY])
        born = (
            decode_row(rows[PAIRING_KEY], IndexIdentity).created
            if PAIRING_KEY in rows
            else "nobody's"
        )
        return IngestCount(born, decode_row(rows[at], int) if at in rows else 0)
