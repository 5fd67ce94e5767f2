"""What a whole stream leads to, as rows: made once more when something is erased, and when all is rebuilt."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import msgspec

from limpet.store import paths, port
from limpet.store.remote import marks, reading
from limpet.store.remote.driver import Driver, Kept, KeptProjection, Stream


class Spread(msgspec.Struct, frozen=True):
    """What is derived from one stream or several of a tenant, as rows of a change."""

    claims: list[tuple[int, str, int]] = []
    uses: list[tuple[int, bytes]] = []
    projections: list[KeptProjection] = []

    def __len__(self) -> int:
        """How many rows it has."""
        return len(self.claims) + len(self.uses) + len(self.projections)

    def take(self, other: Spread) -> None:
        """Take the rows of another one, too."""
        self.claims.extend(other.claims)
        self.uses.extend(other.uses)
        self.projections.extend(other.projections)


class Deriving:
    """One stream, whose events are gone through once, and what follows from them."""

    def __init__(self, driver: Driver, tenant: str, stream: Stream, name: str) -> None:
        self._driver = driver
        self._tenant = tenant
        self._stream = stream
        self._name = name
        self._positions = array("Q")

    def events(self, rows: Iterable[Kept] | None = None) -> Iterator[port.StoredEvent]:
        """Yield the stream's own events, or those that are given in their place."""
        if rows is None:
            rows = reading.own(self._driver, self._tenant, self._stream)
        for kept in rows:
            self._positions.append(kept.row.place.position)
            yield reading.opened(self._tenant, kept, self._name)

    def spread(self, derived: port.Derived) -> Spread:
        """Return what was derived from these events as rows."""
        stream, positions = self._stream, self._positions
        return Spread(
            paths.claimed(stream.number, stream.bases, derived.claims),
            [(positions[v - stream.first], hash_) for hash_, v in derived.blobs],
            [KeptProjection(p, marks.projection(self._tenant, p)) for p in derived.projections],
        )
