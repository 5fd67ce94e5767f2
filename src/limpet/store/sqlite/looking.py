"""The verbs of the port that only look, on whichever connection the store gives them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager

import apsw

from limpet.store import port
from limpet.store.sqlite import reading, rows
from limpet.store.sqlite.known import Known
from limpet.store.sqlite.rows import NUMBER_MASK, TENANT_SHIFT, first, head_of, number


class Looking:
    """What a store finds, by what it knows of itself."""

    _known: Known
    _sql: dict[str, str]

    @abstractmethod
    def _reading(self) -> AbstractContextManager[apsw.Connection]:
        """Lend a connection that sees what the caller's thread may see."""

    def _stream(self, connection: apsw.Connection, tenant: str, stream: str) -> int:
        known = self._known.tenant(connection, tenant)
        return self._known.stream(connection, known, stream) if known else 0

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        """Return the stream's version, now or at a position of the feed; 0 if it did not exist."""
        with self._reading() as connection:
            key = self._stream(connection, tenant, stream)
            if key and position is not None:
                return reading.version_at(connection, key, position)
            return number(connection, self._sql["stream_version"], (key,)) if key else 0

    def read(
        self,
        tenant: str,
        stream: str,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        at: int | None = None,
        newest: bool = False,
    ) -> list[port.StoredEvent]:
        """Return the stream's events with after < version <= until, in order, at most `limit`."""
        with self._reading() as connection:
            key = self._stream(connection, tenant, stream)
            return reading.stream(
                connection, key, stream, after, until, limit=limit, at=at, newest=newest
            )

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""
        with self._reading() as connection:
            base = self._known.tenant(connection, tenant) << TENANT_SHIFT
            if not base or not 0 <= after < NUMBER_MASK:
                return []
            return reading.feed(connection, base, after, limit)

    def head(self, tenant: str) -> int:
        """Return the position of the tenant's last event; 0 if it has none."""
        with self._reading() as connection:
            base = self._known.tenant(connection, tenant) << TENANT_SHIFT
            if not base:
                return 0
            return head_of(
                first(connection, self._sql["head"], (base, base | NUMBER_MASK))
            ).position

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash; those it lacks are left out."""
        with self._reading() as connection:
            return reading.blobs(connection, self._known.tenant(connection, tenant), hashes)

    def seek(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        """Return the lowest version whose event has at least this ordinal; 0 if there is none."""
        with self._reading() as connection:
            key = self._stream(connection, tenant, stream)
            return reading.seek(connection, key, stream, ordinal, at) if key else 0

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        """Return the version of the event that made the claim; 0 if it is free."""
        with self._reading() as connection:
            key = self._stream(connection, tenant, stream)
            return reading.claim(connection, reading.path(connection, key, at), claim) if key else 0

    def find_key(self, tenant: str, key: str) -> port.Replayed | None:
        """Return what an idempotency key was used for."""
        with self._reading() as connection:
            row = first(connection, self._sql["key"], (self._known.tenant(connection, tenant), key))
            return rows.replayed(row) if row else None

    def find(self, tenant: str, kind: str, id: str) -> port.Projection | None:
        """Return one projection."""
        with self._reading() as connection:
            row = first(
                connection,
                self._sql["projection"],
                (self._known.tenant(connection, tenant), kind, id),
            )
            return rows.projection_of(row) if row else None

    def query(self, tenant: str, query: port.Query) -> list[port.Projection]:
        """Return one page of projections."""
        statement, bindings = reading.page(query)
        with self._reading() as connection:
            bindings["tenant"] = self._known.tenant(connection, tenant)
            return [rows.projection_of(row) for row in connection.execute(statement, bindings)]

    def snapshot(self, tenant: str, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot. One that fails its checksum counts as absent."""
        with self._reading() as connection:
            key = self._stream(connection, tenant, stream)
            return reading.snapshot(connection, key, stream) if key else None

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Return the other streams that go on from this one, each with the version that it goes on from."""
        with self._reading() as connection:
            key = self._stream(connection, tenant, stream)
            return reading.forks(connection, key) if key else []

    def pending(self) -> bytes | None:
        """Return what the last erasure had to do, until it is through."""
        with self._reading() as connection:
            row = first(connection, self._sql["pending"], ())
            return row[0] if row and isinstance(row[0], bytes) else None

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""
        with self._reading() as connection:
            return [str(name) for _, name in connection.execute(self._sql["tenants"])]

    def rebuilt(self, tenant: str) -> int:  # noqa: ARG002 - here it is one count for all
        """Return how often it was rebuilt or erased from."""
        with self._reading() as connection:
            return number(connection, self._sql["rebuilt"], ())
