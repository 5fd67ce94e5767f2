"""What one process knows of its store without asking SQLite.

Numbers of tenants never change once committed, and any thread may use them. The rest belongs to the holder
of the turn. Keys of streams hold until something is erased: an erased stream gives its name back. Heads hold
only while nobody else commits. Versions and
shapes of rows are hints: what is written by them fails if they are wrong, and is then written carefully.
Stretches, in which a stream's claims are made, and what of it came before them, hold as long as its
version does.
"""

from __future__ import annotations

import apsw

from limpet.store.paths import Span
from limpet.store.sqlite import opening
from limpet.store.sqlite.anchor import Head
from limpet.store.sqlite.rows import mark, number

ENTRIES_MAX = 10_000
"""Streams, and shapes of rows, that are remembered at a time."""

Shape = tuple[object, ...]
"""What of a projection its indexes are made of: a row that keeps its shape keeps its place in them."""


class Known:
    """The memory of one open store."""

    def __init__(self) -> None:
        self.sql = opening.queries()
        self._tenants: dict[str, int] = {}
        self._streams: dict[tuple[int, str], int] = {}
        self._new_tenants: dict[str, int] = {}
        self._new_streams: dict[tuple[int, str], int] = {}
        self.heads: dict[int, Head] = {}
        self.versions: dict[int, int] = {}
        self.stretches: dict[int, tuple[int, tuple[Span, ...]]] = {}
        self.shapes: dict[tuple[int, str, str], Shape] = {}
        self.anchored = False

    def tenant(self, connection: apsw.Connection, name: str) -> int:
        """Return a tenant's number, 0 if it has none yet."""
        found = self._tenants.get(name)
        if found is None:
            found = number(connection, self.sql["tenant_number"], (name,))
            if found:
                known = self._new_tenants if connection.in_transaction else self._tenants
                known[name] = found
        return found

    def stream(self, connection: apsw.Connection, tenant: int, name: str) -> int:
        """Return a stream's key, 0 if it has none yet."""
        if not connection.in_transaction:
            # Who does not hold the turn would not hear that the name is another stream's by now.
            return number(connection, self.sql["stream_key"], (tenant, name))
        found = self._streams.get((tenant, name))
        if found is None:
            found = number(connection, self.sql["stream_key"], (tenant, name))
            if found:
                known = self._new_streams
                if len(known) > ENTRIES_MAX:
                    known.clear()
                known[tenant, name] = found
        return found

    def add_tenant(self, connection: apsw.Connection, name: str) -> int:
        """Give a tenant its number."""
        made = number(connection, self.sql["tenants_max"], ()) + 1
        connection.execute(self.sql["add_tenant"], (made, name, mark(made, name)))
        self._new_tenants[name] = made
        return made

    def committed(self) -> None:
        """Keep what the transaction found and made."""
        if len(self.versions) > ENTRIES_MAX or len(self.shapes) > ENTRIES_MAX:
            for entries in (self._streams, self.versions, self.stretches, self.shapes):
                entries.clear()
        if self._new_tenants or self._new_streams:
            self._tenants |= self._new_tenants
            self._streams |= self._new_streams
            self._new_tenants.clear()
            self._new_streams.clear()

    def others_wrote(self) -> None:
        """Forget what nothing else would tell to be wrong."""
        self.heads.clear()
        self.anchored = False

    def forget_streams(self) -> None:
        """Something was erased: names may be other streams' by now."""
        self._streams.clear()
        self.doubt()

    def doubt(self) -> None:
        """Forget what others may have changed, and what a transaction that failed has made."""
        self._new_tenants.clear()
        self._new_streams.clear()
        self.versions.clear()
        self.stretches.clear()
        self.shapes.clear()
        self.others_wrote()
