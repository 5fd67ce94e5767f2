"""The store in RAM: the server store over a driver that keeps its rows in dicts.

For tests and throw-away work. It keeps the full contract, damage detection included, and its content is gone when it is
closed. Several drivers may share one `RamServer`, as several processes share a real server.
"""

from __future__ import annotations

import heapq
import os
import queue
import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from limpet import errors
from limpet.core.values.validation import Json
from limpet.stores import port
from limpet.stores.server import checked_reads, driver
from limpet.stores.server.store import ServerStore

replace = msgspec.structs.replace


class TenantTables:
    """The rows of one tenant. The caller holds the server's lock."""

    def __init__(self) -> None:
        self.head = driver.FeedHead()
        self.streams: dict[int, driver.StreamRow] = {}
        self.stream_numbers: dict[str, int] = {}
        self.positions: dict[int, list[int]] = {}
        """By stream, the positions of its own events. Their versions have no gap."""
        self.rows: dict[int, driver.FeedRow] = {}
        """By position, in that order."""
        self.claims: dict[int, dict[str, int]] = {}
        """By stretch."""
        self.keys: dict[str, driver.KeyRow] = {}
        self.projections: dict[str, dict[str, driver.ProjectionRow]] = {}
        """By kind and id."""
        self.snapshots: dict[int, driver.SnapshotRow] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.blob_uses: dict[int, set[bytes]] = {}
        """By position."""
        self.notes: dict[str, driver.NoteRow] = {}
        self.note_versions = 0

    def stream(self, stream: str | int) -> driver.StreamRow | None:
        number = self.stream_numbers.get(stream) if isinstance(stream, str) else stream
        return self.streams.get(number) if number is not None else None

    def own_positions(self, stream: driver.StreamRow, low: int, high: int) -> list[int]:
        begin, end = max(0, low - stream.first), max(0, high - stream.first + 1)
        return self.positions[stream.number][begin:end]

    def has_duplicate(self, change: driver.TenantChange) -> bool:
        renamed = {number: name for number, name, _ in change.renames}
        return (
            any(row.number in self.streams or self._has_name(row.name, renamed) for row in change.streams)
            or any(row.event.address.position in self.rows for row in change.rows)
            or any(
                stretch not in change.drop_claims and text in self.claims.get(stretch, ())
                for stretch, text, _ in change.claims
            )
            or any(row.key in self.keys and row.key not in change.drop_keys for row in change.keys)
        )

    def _has_name(self, name: str, renamed: Mapping[int, str]) -> bool:
        number = self.stream_numbers.get(name)
        return name in renamed.values() or (number is not None and number not in renamed)

    def apply(self, change: driver.TenantChange) -> None:
        """Apply a change in the order that `TenantChange` names."""
        self._drop(change)
        for number, name, checksum in change.renames:
            self._rename_stream(number, name, checksum)
        for position, erasure in change.erasures:
            row = self.rows[position]
            event = replace(row.event, payload=None, salt=None)
            self.rows[position] = replace(row, event=event, erasure=erasure)
        for stream in change.streams:
            self.streams[stream.number] = stream
            self.stream_numbers[stream.name] = stream.number
            self.positions[stream.number] = []
        for number, base in change.bases:
            stream = self.streams[number]
            self.streams[number] = replace(stream, bases=(*stream.bases, base))
        for row in change.rows:
            place = row.event.address
            self.rows[place.position] = row
            self.positions[place.stream].append(place.position)
            self.streams[place.stream] = replace(self.streams[place.stream], version=place.version)
        self.keys |= {key.key: key for key in change.keys}
        self.blobs |= change.blobs
        for row in change.snapshots:
            if (number := self.stream_numbers.get(row.snapshot.stream)) is not None:
                self.snapshots[number] = row
        self.put_derived(change)
        self.head = change.after

    def _rename_stream(self, number: int, name: str, checksum: bytes) -> None:
        stream = self.streams[number]
        if stream.name != name:
            del self.stream_numbers[stream.name]
            self.stream_numbers[name] = number
            for position in self.positions[number]:
                self.rows[position] = replace(self.rows[position], stream=name)
        self.streams[number] = replace(stream, name=name, checksum=checksum)

    def _drop(self, change: driver.TenantChange) -> None:
        for kind, id_ in change.drop_projections:
            self.projections.get(kind, {}).pop(id_, None)
        for number in change.drop_snapshots:
            self.snapshots.pop(number, None)
        for key in change.drop_keys:
            self.keys.pop(key, None)
        for hash_ in change.drop_blobs:
            self.blobs.pop(hash_, None)
        for stretch in change.drop_claims:
            self.claims.pop(stretch, None)
        for number in change.drop_blob_uses:
            for position in self.positions[number]:
                self.blob_uses.pop(position, None)

    def put_derived(self, change: driver.TenantChange) -> None:
        for stretch, text, version in change.claims:
            self.claims.setdefault(stretch, {})[text] = version
        for position, hash_ in change.blob_uses:
            self.blob_uses.setdefault(position, set()).add(hash_)
        for row in change.projections:
            self.projections.setdefault(row.projection.kind, {})[row.projection.id] = row

    def clear_derived(self) -> None:
        """Drop all derived rows and begin the next epoch."""
        self.claims, self.blob_uses, self.projections, self.snapshots = {}, {}, {}, {}
        self.head = replace(self.head, epoch=self.head.epoch + 1)


class RamServer:
    """The tables of all tenants, and the locks and listeners of the drivers that share them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tenants: dict[str, TenantTables] = {}
        self.pending: bytes | None = None
        self.advisory_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.listeners: list[queue.SimpleQueue[tuple[str, int] | None]] = []


class RamDriver:
    """The driver of one store. Every verb holds the server's lock, so it sees whole changes only."""

    def __init__(self, server: RamServer) -> None:
        self.server = server
        self._closed = self._has_advisory_lock = False
        self._notifications: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()

    @property
    def durability(self) -> str:
        """Nothing survives the process."""
        return "none"

    def tables(self, tenant: str) -> TenantTables:
        """Return a tenant's tables; new and unregistered ones if it has none. Raises EngineClosed."""
        if self._closed:
            raise errors.EngineClosed
        return self.server.tenants.get(tenant) or TenantTables()

    def head(self, tenant: str) -> driver.FeedHead:
        return self.tables(tenant).head

    def tenants(self) -> list[str]:
        with self.server.lock:
            return sorted(name for name, tables in self.server.tenants.items() if tables.rows)

    def unlisted_tenants(self) -> list[str]:
        """Return nothing, because tenants are found by their events."""
        return []

    def tenants_with_notes(self) -> list[str]:
        with self.server.lock:
            return sorted(name for name, tables in self.server.tenants.items() if tables.notes)

    def stream(self, tenant: str, stream: str | int) -> driver.StreamRow | None:
        with self.server.lock:
            return self.tables(tenant).stream(stream)

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[driver.StreamRow]:
        with self.server.lock:
            streams = self.tables(tenant).streams
            return [streams[number] for number in sorted(number for number in streams if number > after)[:limit]]

    def own_events(
        self, tenant: str, stream: str | int, *, low: int, high: int, limit: int, newest: bool = False
    ) -> tuple[driver.StreamRow | None, list[driver.FeedRow]]:
        with self.server.lock:
            tables = self.tables(tenant)
            row = tables.stream(stream)
            if row is None:
                return None, []
            own = tables.own_positions(row, low, high)
            page = own[max(0, len(own) - limit) :] if newest else own[:limit]
            return row, [tables.rows[position] for position in page if position in tables.rows]

    def feed(self, tenant: str, *, after: int, limit: int) -> list[driver.FeedRow]:
        with self.server.lock:
            rows = self.tables(tenant).rows
            last = min(after + limit, next(reversed(rows), 0))
            return [rows[position] for position in range(after + 1, last + 1) if position in rows]

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        with self.server.lock:
            tables = self.tables(tenant)
            row = tables.stream(stream)
            count = bisect_right(tables.positions[row.number], position) if row else 0
            return row.first + count - 1 if row and count else 0

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        with self.server.lock:
            tables = self.tables(tenant)
            row = tables.stream(number)
            own = tables.own_positions(row, low, high) if row else []
            # Within one stretch the ordinals never fall.
            at = bisect_left(own, ordinal, key=lambda position: tables.rows[position].ordinal)
            return tables.rows[own[at]].event.address.version if at < len(own) else 0

    def claims(self, tenant: str, claims: Collection[str], stretches: Collection[int]) -> list[tuple[int, str, int]]:
        with self.server.lock:
            by_stretch = self.tables(tenant).claims
            return [
                (stretch, text, by_stretch[stretch][text])
                for stretch in stretches
                for text in claims
                if text in by_stretch.get(stretch, ())
            ]

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        with self.server.lock:
            by_stretch = self.tables(tenant).claims
            return sum(len(by_stretch.get(stretch, ())) for stretch in set(stretches))

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        with self.server.lock:
            return [
                (row.name, base.version)
                for row in self.tables(tenant).streams.values()
                for base in row.bases
                if base.source == number != row.number
            ]

    def key(self, tenant: str, key: str) -> driver.KeyRow | None:
        with self.server.lock:
            return self.tables(tenant).keys.get(key)

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[driver.KeyRow]:
        with self.server.lock:
            keys = self.tables(tenant).keys
            return [keys[key] for key in sorted(key for key in keys if key > after)[:limit]]

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        with self.server.lock:
            return [
                row.key
                for row in self.tables(tenant).keys.values()
                if any(row.first <= position <= row.last for position in positions)
            ]

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        with self.server.lock:
            keys = self.tables(tenant).keys
            old = [key for key, row in keys.items() if row.time_us < before_us]
            for key in old:
                del keys[key]
            return len(old)

    def projection(self, tenant: str, kind: str, id: str) -> driver.ProjectionRow | None:
        with self.server.lock:
            return self.tables(tenant).projections.get(kind, {}).get(id)

    def query_projections(self, tenant: str, query: port.Query) -> list[driver.ProjectionRow]:
        with self.server.lock:
            rows = self.tables(tenant).projections.get(query.kind, {}).values()
            matches = [row for row in rows if _matches_query(row.projection, query)]
        return heapq.nlargest(
            query.offset + query.limit, matches, key=lambda row: (row.projection.time_us, row.projection.id)
        )[query.offset :]

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[driver.ProjectionRow]:
        with self.server.lock:
            by_kind = self.tables(tenant).projections
            ids = sorted((kind, id_) for kind, rows in by_kind.items() for id_ in rows if (kind, id_) > after)
            return [by_kind[kind][id_] for kind, id_ in ids[:limit]]

    def snapshot(self, tenant: str, stream: str) -> driver.SnapshotRow | None:
        with self.server.lock:
            tables = self.tables(tenant)
            return tables.snapshots.get(tables.stream_numbers.get(stream, 0))

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        with self.server.lock:
            blobs = self.tables(tenant).blobs
            return {hash_: blobs[hash_] for hash_ in hashes if hash_ in blobs}

    def list_blobs(self, tenant: str, *, after: bytes = b"", limit: int = 100) -> list[tuple[bytes, bytes]]:
        with self.server.lock:
            return sorted(i for i in self.tables(tenant).blobs.items() if i[0] > after)[:limit]

    def blob_uses(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[tuple[int, bytes]]:
        uses: list[tuple[int, bytes]] = []
        with self.server.lock:
            by_position = self.tables(tenant).blob_uses
            for position in sorted(position for position in by_position if position > after):
                if len(uses) >= limit:
                    break
                uses += [(position, hash_) for hash_ in sorted(by_position[position])]
        return uses

    def unused_blobs(self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]) -> set[bytes]:
        with self.server.lock:
            tables = self.tables(tenant)
            used = set[bytes]()
            for position, own in tables.blob_uses.items():
                if tables.rows[position].event.address.stream not in but:
                    used |= own
            return {hash_ for hash_ in hashes if hash_ in tables.blobs} - used

    def note(self, tenant: str, name: str) -> driver.NoteRow | None:
        with self.server.lock:
            return self.tables(tenant).notes.get(name)

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        with self.server.lock:
            tables = self.server.tenants.setdefault(tenant, self.tables(tenant))
            row = tables.notes.get(name)
            if (row.note.version if row else 0) != expected:
                return False
            if value is None:
                tables.notes.pop(name, None)
            else:
                tables.note_versions += 1
                note = port.Note(value, tables.note_versions)
                checksum = checked_reads.note_checksum(tenant, name, note)
                tables.notes[name] = driver.NoteRow(name, note, checksum)
            return True

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[driver.NoteRow]:
        with self.server.lock:
            notes = self.tables(tenant).notes
            return [notes[name] for name in sorted(notes) if name.startswith(prefix) and name > after][:limit]

    def apply(self, changes: Sequence[driver.TenantChange]) -> list[driver.ChangeResult]:
        return [self._apply_change(change) for change in changes]

    def pipeline(self) -> driver.ChangePipeline | None:
        """Return None: there is no round trip to overlap."""
        return None

    def _apply_change(self, change: driver.TenantChange) -> driver.ChangeResult:
        with self.server.lock:
            tables = self.tables(change.tenant)
            if tables.head != change.before:
                return driver.HeadMoved(tables.head)
            if tables.has_duplicate(change):
                return driver.DuplicateRow()
            tables.apply(change)
            self.server.tenants[change.tenant] = tables
            if change.pending_work is not None:
                self.server.pending = (self.server.pending or b"") + change.pending_work
            self._notify((change.tenant, change.after.position))
            locked = self.server.advisory_locks.get(change.tenant)
            contended = locked is not None and locked.locked() and not self._has_advisory_lock
            return driver.AppliedUnderContention() if contended else None

    def _notify(self, notification: tuple[str, int], but: object = None) -> None:
        with self.server.lock:
            for listener in self.server.listeners:
                if listener is not but:
                    listener.put(notification)

    def replace_derived(self, tenant: str, before: driver.FeedHead, derived: Iterable[driver.TenantChange]) -> bool:
        changes = list(derived)
        with self.server.lock:
            tables = self.tables(tenant)
            if tables.head != before:
                return False
            tables.clear_derived()
            for change in changes:
                tables.put_derived(change)
            return True

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        """Notify the other drivers that the lock is wanted, then wait for it."""
        self._notify((tenant, 0), but=self._notifications)
        with self.server.lock:
            lock = self.server.advisory_locks[tenant]
        self._has_advisory_lock = lock.acquire(timeout=timeout_s)
        return self._has_advisory_lock

    def release_advisory_lock(self, tenant: str) -> None:
        if self._has_advisory_lock:
            self._has_advisory_lock = False
            self.server.advisory_locks[tenant].release()

    def pending_erasures(self) -> bytes | None:
        return self.server.pending

    def scrub(self, done: bytes, left: bytes) -> None:
        """Replace `done`, the beginning of the pending work, by `left`. RAM holds no copy to overwrite."""
        with self.server.lock:
            self.server.pending = left + (self.server.pending or b"").removeprefix(done) or None

    def listen(self) -> Iterator[tuple[str, int]]:
        with self.server.lock:
            self.server.listeners.append(self._notifications)
        yield "", 0
        while notification := self._notifications.get():
            yield notification

    def status(self) -> Mapping[str, Json]:
        with self.server.lock:
            tables = self.server.tenants.values()
            return {
                "backend": "volatile",
                "tenants": sum(bool(each.rows) for each in tables),
                "events": sum(len(each.rows) for each in tables),
                "blobs": sum(len(each.blobs) for each in tables),
            }

    def close(self) -> None:
        self._closed = True
        self._notifications.put(None)


def _matches_query(row: port.Projection, query: port.Query) -> bool:
    return (
        query.owner in (None, row.owner)
        and query.status in (None, row.status)
        and query.lookup in (None, row.lookup)
        and (query.since_us is None or row.time_us >= query.since_us)
        and (query.until_us is None or row.time_us <= query.until_us)
        and set(query.terms) <= set(row.terms)
        and (query.after is None or (row.time_us, row.id) < query.after)
    )


class VolatileStore(ServerStore):
    """A store in RAM. Safe for threads; one process only; nothing outlives `close`."""

    def __init__(self, *, salts: Callable[[int], bytes] = os.urandom) -> None:
        self._server = RamServer()
        super().__init__(RamDriver(self._server), random=salts)

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        """Commit appends; assert that each is one that the port allows, so that tests on RAM find misuse."""
        for append in appends:
            _check_append(append)
        return super().commit(appends)

    def backup(self, target: str) -> Iterator[tuple[int, int]]:  # noqa: ARG002 - the port's parameter
        self._check_open()
        raise errors.NoBackup(
            "a volatile store has no file to back up.",
            hint='Open a store on a file instead: limpet.connect("state.db").',
        )

    def close(self) -> None:
        """Drop everything. Closing twice is fine."""
        super().close()
        with self._server.lock:
            self._server.tenants.clear()


def _check_append(append: port.Append) -> None:
    names = {write.stream for write in append.writes}
    assert append.writes, "an append has at least one write"
    assert len(names) == len(append.writes), "an append writes a stream once"
    for write in append.writes:
        assert write.events, "a write has at least one event"
        own = write.base is None or write.base[0] == write.stream or not write.expected
        assert own, "only a new stream is based on another"
        assert all(0 <= at < len(write.events) for _, at in write.claims), "a claim names its event"


_driver: type[driver.Driver] = RamDriver
_store: type[port.Store] = VolatileStore
