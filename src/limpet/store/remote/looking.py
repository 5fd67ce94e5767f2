"""The verbs of the port that only look. Whoever holds the turn is told by its commit if what was seen is outdated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from limpet.store import paths, port
from limpet.store.notes import check_note
from limpet.store.remote import marks, reading
from limpet.store.remote.acknowledged import Acknowledged
from limpet.store.remote.driver import Driver, Head, Stream
from limpet.store.remote.known import Tenant
from limpet.store.remote.reading import LATEST
from limpet.store.remote.waiting import News


class Looking:
    """What a store finds on its server."""

    _driver: Driver
    _acknowledged: Acknowledged
    _news: News

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _looked_at(self, tenant: str) -> Tenant | None:
        """Return what the holder of the turn knows of a tenant; None to anybody else. Raises EngineClosed."""

    def _stream(self, tenant: str, name: str) -> Stream | None:
        known = self._looked_at(tenant)
        found = known.streams.get(name) if known is not None else None
        if found is None:
            found = reading.found(self._driver, tenant, name)
            if known is not None and found is not None:
                known.streams[name] = found
        return found

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        """Return the stream's version, now or at a position of the feed; 0 if it did not exist."""
        if position is None:
            found = self._stream(tenant, stream)
            return found.version if found is not None else 0
        if self._stream(tenant, stream) is None:
            return 0
        return self._driver.version_at(tenant, stream, min(position, LATEST))

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
        known = self._looked_at(tenant)
        low, high = max(after, 0) + 1, LATEST if until is None else min(until, LATEST)
        if low > high or limit <= 0 or (at is not None and at <= 0):
            return []
        found, events = reading.stream(
            self._driver, tenant, stream, low=low, high=high, limit=limit, at=at, newest=newest
        )
        if known is not None and found is not None:
            known.streams[stream] = found
        return events

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""
        self._looked_at(tenant)
        if not 0 <= after < LATEST or limit <= 0:
            return []
        found = self._driver.feed(tenant, after=after, limit=limit)
        reading.check_positions(found, after)
        return [reading.opened(tenant, kept, kept.stream) for kept in found]

    def head(self, tenant: str) -> int:
        """Return the position of the tenant's last event; 0 if it has none."""
        position = self._end(tenant).position
        if not position and reading.beyond(self._driver, tenant, 0):
            raise reading.headless(tenant)
        return position

    def _end(self, tenant: str) -> Head:
        known = self._looked_at(tenant)
        return known.head if known is not None else self._acknowledged.look(tenant)

    def rebuilt(self, tenant: str) -> int:
        """Return how often it was rebuilt or erased from; another number, too, once its end was lost."""
        return self._acknowledged.rebuilt(tenant, self._end(tenant))

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash; those it lacks are left out."""
        self._looked_at(tenant)
        return reading.blobs(self._driver, tenant, hashes)

    def _path(self, tenant: str, stream: str, at: int | None) -> tuple[paths.Span, ...]:
        found = self._stream(tenant, stream)
        return reading.path(self._driver, tenant, found, at) if found is not None else ()

    def seek(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        """Return the lowest version whose event has at least this ordinal; 0 if there is none."""
        return reading.seek(self._driver, tenant, self._path(tenant, stream, at), ordinal)

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        """Return the version of the event that made the claim; 0 if it is free."""
        return reading.claim(self._driver, tenant, self._path(tenant, stream, at), claim)

    def find_key(self, tenant: str, key: str) -> port.Replayed | None:
        """Return what an idempotency key was used for."""
        self._looked_at(tenant)
        kept = self._driver.key(tenant, key)
        return reading.replayed(marks.checked_key(tenant, kept)) if kept else None

    def find(self, tenant: str, kind: str, id: str) -> port.Projection | None:
        """Return one projection."""
        self._looked_at(tenant)
        found = self._driver.projection(tenant, kind, id)
        return marks.checked_projection(tenant, found) if found else None

    def query(self, tenant: str, query: port.Query) -> list[port.Projection]:
        """Return one page of projections."""
        self._looked_at(tenant)
        return [marks.checked_projection(tenant, row) for row in self._driver.query(tenant, query)]

    def snapshot(self, tenant: str, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot. One that fails its checksum counts as absent."""
        self._looked_at(tenant)
        kept = self._driver.snapshot(tenant, stream)
        if kept is None:
            return None
        snapshot = kept.snapshot
        found, link = reading.link(self._driver, tenant, stream, snapshot.version)
        if found is None or kept.mark != marks.snapshot(tenant, found.number, snapshot, link):
            return None
        spans = reading.path(self._driver, tenant, found, None)
        return snapshot if paths.within(spans, snapshot.version - 1, snapshot.version) else None

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Return the other streams that go on from this one, each with the version that it goes on from."""
        found = self._stream(tenant, stream)
        return self._driver.forks(tenant, found.number) if found is not None else []

    def note(self, tenant: str, name: str) -> port.Note | None:
        """Return a note, None if it is not there."""
        self._check_open()
        check_note(name)
        found = self._driver.note(tenant, name)
        return marks.checked_note(tenant, found) if found else None

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put or drop a note if it is at a version; return whether it was. The server compares: no turn is needed."""
        self._check_open()
        check_note(name, value)
        return self._driver.put_note(tenant, name, value, expected=expected)

    def notes(
        self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256
    ) -> list[tuple[str, port.Note]]:
        """Return notes whose names begin with a prefix, those after a name, by name."""
        self._check_open()
        found = self._driver.notes(tenant, prefix, after=after, limit=limit)
        return [(kept.name, marks.checked_note(tenant, kept)) for kept in found]

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True as soon as the feed has a position > after; False when the time is up."""

        def there() -> bool:
            self._check_open()
            return self._driver.head(tenant).position > after

        return self._news.wait(tenant, there, timeout_s)

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""
        self._check_open()
        return self._driver.tenants()

    def pending(self) -> bytes | None:
        """Return what erasures had to do, until `scrub` is through."""
        self._check_open()
        return self._driver.pending()
