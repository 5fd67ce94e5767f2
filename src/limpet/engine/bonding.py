"""The bond between a store and the shelf beside it: each says which the other is, and how often something was erased.

A shelf that is not the one that the store knows is of another moment: what was erased since may be on it, and what
was learnt since is not. It is thrown away, and everything on it is made again from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from limpet import errors, limits
from limpet.engine.pending import unfinished
from limpet.memory.shelf import NOTHING, Drop, Expected, Put, Shelf, decoded, key
from limpet.stores import port

BOOK: Final = "bond"
NOTE: Final = "shelf"
NOBODY: Final = ""
"""No tenant has this name: the note is the whole store's."""

_COMING: Final = 8
"""Bonds of others that are kept in mind while one is written: of those who do the same now, or died of it."""

_Answer = TypeVar("_Answer")


class Bond(msgspec.Struct, frozen=True, array_like=True):
    """Which shelf it is since it was last empty, and since something was last erased."""

    born: str
    epoch: str


class BondedShelf:
    """A shelf that stays the store's. `renew` leaves one that is known to be new."""

    def __init__(self, store: port.Store, shelf: Shelf, random: Callable[[int], bytes]) -> None:
        self._store = store
        self._shelf = shelf
        self._random = random
        self.get = shelf.get
        self.scan = shelf.scan
        self.lasts = shelf.lasts
        self.write = shelf.write
        self.scrub = shelf.scrub
        self.size = shelf.size
        self.close = shelf.close

    def check(self) -> None:
        """Throw the shelf away if it is not the one that the store knows. Nothing is done while an erasure is pending."""
        try:
            # Twice: somebody may have bound them anew between one look and the other.
            if self._differs() and self._differs():
                self.renew()
        except errors.Corrupt:
            # Whoever needs what is damaged makes it anew.
            return

    def _differs(self) -> bool:
        note = self._store.note(NOBODY, NOTE)
        if unfinished(self._store.pending()) or not (note or self._shelf.size()):
            return False
        row = self._row()
        if (note is None and row is None) or not self._shelf.size():
            self.bind()
            return False
        return note is None or _bond(row) not in _expected(note)

    def bind(self) -> None:
        """Have store and shelf know each other, from now on: no older shelf, and no older store, goes with the other."""
        for _ in range(limits.RETRIES_MAX):
            note, row = self._store.note(NOBODY, NOTE), self._row()
            version, coming = (note.version, _expected(note)[1:]) if note else (0, [])
            bond = Bond(_bond(row).born or self._random(16).hex(), self._random(16).hex())
            # Whoever looks in between, or after a crash in between, finds one of those that the note has.
            if not self._know([_bond(row), *coming[-_COMING:], bond], version):
                continue
            made = [Put(BOOK, AT, msgspec.msgpack.encode(bond))]
            if self._shelf.write(made, expected={(BOOK, AT): row}) and self._know(
                [bond], version + 1
            ):
                return
        raise errors.Unavailable("others bind the memory to its store; try again.")

    def _know(self, bonds: Sequence[Bond], version: int) -> bool:
        flat = [each for bond in bonds for each in (bond.born, bond.epoch)]
        return self._store.put_note(NOBODY, NOTE, msgspec.msgpack.encode(flat), expected=version)

    def erased(self) -> None:
        """Tell that something was erased: no shelf from before is taken for this one."""
        if self._shelf.size():
            self.bind()

    def renew(self) -> None:
        """Throw everything away, leave nothing of it in any file, and begin empty."""
        self._shelf.renew()
        self._shelf.scrub()
        self.bind()

    def born(self) -> str:
        """Return which shelf it is; bind it if it is not."""
        row = self._row()
        if row is None:
            self.bind()
            row = self._row()
        return decoded(row, Bond).born if row else ""

    def _row(self) -> bytes | None:
        return self._shelf.get(BOOK, [AT]).get(AT)


def unbind(store: port.Store) -> None:
    """Have a store know no shelf: whatever is put beside it is of another moment, and is thrown away."""
    note = store.note(NOBODY, NOTE)
    if note is not None:
        store.put_note(NOBODY, NOTE, None, expected=note.version)


AT: Final = key(NOBODY)


class MendedShelf:
    """The same, for whoever can do without what was on it: a damaged one is empty, and learns everything again."""

    def __init__(self, shelf: BondedShelf) -> None:
        self._shelf = shelf
        self.renew = shelf.renew
        self.size = shelf.size
        self.close = shelf.close

    def get(self, book: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of the rows that are there."""
        return self._mended(lambda: dict(self._shelf.get(book, keys)))

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return rows of a range."""
        return self._mended(lambda: self._shelf.scan(book, first, last, limit=limit, newest=newest))

    def lasts(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        """Return the last value of each range."""
        return self._mended(lambda: self._shelf.lasts(book, spans))

    def write(self, changes: Iterable[Put | Drop], *, expected: Expected = NOTHING) -> bool:
        """Make changes, if rows are as expected."""
        made = list(changes)
        return self._mended(lambda: self._shelf.write(made, expected=expected))

    def scrub(self) -> None:
        """See to it that nothing of what was dropped is left in any file."""
        self._mended(self._shelf.scrub)

    def _mended(self, step: Callable[[], _Answer]) -> _Answer:
        try:
            return step()
        except errors.Corrupt:
            self._shelf.renew()
            return step()


_: tuple[type[Shelf], type[Shelf]] = (BondedShelf, MendedShelf)


def _bond(row: bytes | None) -> Bond:
    return decoded(row, Bond) if row else Bond("", "")


def _expected(note: port.Note) -> list[Bond]:
    """Return which bonds a shelf may have: the last one, and those that somebody is about to write."""
    flat = decoded(note.value, list[str])
    return [Bond(*pair) for pair in zip(flat[::2], flat[1::2], strict=False)]
