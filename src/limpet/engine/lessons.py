"""Whether the built-in memory still has what the log says that it has taken: its shelf may be lost, or an older one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from limpet import errors, limits
from limpet.core.values.memory_records import Who
from limpet.engine.bonding import AT, BOOK, NOTE, Bond, BondedShelf, MendedShelf
from limpet.memory.shelf import Put, decoded, key
from limpet.stores import port


class Taught(msgspec.Struct, frozen=True, array_like=True):
    """How many histories of a tenant the memory on a shelf has taken since it was empty."""

    born: str = ""
    histories: int = 0


class Lessons:
    """Whether the memory on a shelf has what the log says that it has taken."""

    def __init__(
        self,
        store: port.Store,
        shelf: BondedShelf,
        has: Callable[[Who, str, str], bool],
        stood_in: Callable[[Who, str, str], bool],
    ) -> None:
        self._store = store
        self._has = has
        self._stood_in = stood_in
        self._bonded = shelf
        self._shelf = MendedShelf(shelf)

    def has(self, who: Who, session_id: str, key: str) -> bool:
        """Whether a history was taken and is not gone."""
        return self._has(who, session_id, key)

    def stood_in(self, who: Who, session_id: str, key: str) -> bool:
        """Whether rules stood in for a model when a history was taken."""
        return self._stood_in(who, session_id, key)

    def lost(self, tenant: str) -> bool:
        """Whether the shelf is another than the one that was taught, or is older."""
        told, now = self._told(tenant)[0], self._now(tenant)
        return told.born != now.born or told.histories > now.histories

    def begin(self, tenant: str) -> None:
        """Note which shelf is taught from now on."""
        self._bonded.born()
        self._note(tenant)

    def learnt(self, tenant: str) -> None:
        """Count one more history that was taken. The shelf first: one that has counted more has lost nothing."""
        at = key(tenant)
        for _ in range(limits.RETRIES_MAX):
            row = self._shelf.get(BOOK, [at]).get(at)
            count = msgspec.msgpack.encode((decoded(row, int) if row else 0) + 1)
            if self._shelf.write([Put(BOOK, at, count)], expected={(BOOK, at): row}):
                # One that was emptied meanwhile is to be found lost: it has more to learn again than this.
                if self._told(tenant)[0].born == self._now(tenant).born:
                    self._note(tenant)
                return
        raise errors.Unavailable("others teach the memory just now; try again.")

    def _note(self, tenant: str) -> None:
        now, version = self._now(tenant), self._told(tenant)[1]
        # Whoever else has noted it meanwhile has looked at the same shelf.
        self._store.put_note(tenant, NOTE, msgspec.msgpack.encode(now), expected=version)

    def _told(self, tenant: str) -> tuple[Taught, int]:
        note = self._store.note(tenant, NOTE)
        return (decoded(note.value, Taught), note.version) if note else (Taught(), 0)

    def _now(self, tenant: str) -> Taught:
        at = key(tenant)
        rows = self._shelf.get(BOOK, [at, AT])
        born = decoded(rows[AT], Bond).born if AT in rows else "nobody's"
        return Taught(born, decoded(rows[at], int) if at in rows else 0)
