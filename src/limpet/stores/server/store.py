"""`ServerStore`: the store port over a driver.

A server cannot lock other processes out. Each commit names the feed head that it was decided on,
and the server refuses it if the head is another. While no other process writes to a tenant, a
commit takes one round trip, and nothing is read before it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from limpet import errors, limits
from limpet.core.values.validation import Json
from limpet.stores import chain, port, store_copy
from limpet.stores.chain import UNBOUNDED, RandomPool, check_note
from limpet.stores.port import Erasure, ErasureCounts, WriteLockGuard
from limpet.stores.server import checked_reads, maintenance
from limpet.stores.server.changes import ChangeBuilder, ServerPipeline
from limpet.stores.server.driver import (
    ChangeResult,
    Driver,
    DuplicateRow,
    FeedHead,
    HeadMoved,
    StreamRow,
    TenantChange,
    contention_error,
)
from limpet.stores.server.notifications import CommitNotifications
from limpet.stores.server.tenant_cache import CachedTenant, LossDetector, TenantCache

CHANGE_TRIES_MAX = 8
"""How often an erasure or a paste is built again because the head has moved meanwhile."""


def duplicate_row_error(tenant: str) -> errors.Corrupt:
    return errors.Corrupt(
        "the server already has a row that a commit adds, although its log does not account for that row.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"tenant": tenant},
    )


class ServerStore:
    """A store over a driver. Thread-safe; other processes may use the same server."""

    def __init__(self, driver: Driver, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._driver = driver
        self._random = RandomPool(random)
        self._loss_detector = LossDetector(driver)
        self._notifications = CommitNotifications(driver.listen)
        self._tenant_cache = TenantCache(driver, self._loss_detector, self._notifications)
        self._copy_reader = maintenance.LogCopyReader(driver)
        self._lock = threading.RLock()
        self._holder: threading.Thread | None = None
        self._closed = False

    @property
    def durability(self) -> str:
        """Return the durability that the server's settings give."""
        return self._driver.durability

    def write_lock(self) -> AbstractContextManager[bool]:
        """Lock out the other threads of this store object. Writes of other processes are found by comparing heads."""
        return WriteLockGuard(self)

    def acquire_write_lock(self) -> bool:
        """Acquire the write lock; return whether cached state may be trusted. After any exception the lock is free."""
        me = threading.current_thread()
        assert self._holder is not me, "this thread holds the write lock already"
        try:
            if not self._lock.acquire(timeout=limits.WRITE_LOCK_WAIT_S):
                holder = self._holder.name if self._holder else "unknown"
                raise errors.StoreBusy(
                    f"thread {holder} has held the store's write lock for {limits.WRITE_LOCK_WAIT_S:g} s.",
                    hint="Retry, or look at what that thread waits for.",
                    facts={"holder": holder},
                )
            self._check_open()
            self._holder = me
            return self._tenant_cache.begin_batch(self._notifications.take_received())
        except BaseException:
            self.release_write_lock()
            raise

    def release_write_lock(self) -> None:
        # An interrupt may come between taking the lock and setting `_holder`, so only the RLock itself knows.
        if self._lock._is_owned():  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            try:
                if self._holder is not None:
                    self._tenant_cache.end_batch()
            finally:
                self._holder = None
                self._lock.release()

    @property
    def contended(self) -> bool:
        """False: no process waits for another one's write lock here."""
        return False

    def hand_off(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:  # noqa: ARG002 - the port's parameter
        """Return None: each process commits its own appends."""
        return None

    def take_handed_off(self) -> list[tuple[str, str]]:
        """Return nothing: see `hand_off`."""
        return []

    def is_unchanged(self, tenant: str) -> bool:
        """Ask the server whether the tenant's head is the cached one. The caller holds the write lock."""
        assert self._holder is threading.current_thread(), "the caller holds the write lock"
        return self._tenant_cache.is_current(tenant)

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        """Commit appends in one round trip, as one change a tenant. The caller holds the write lock."""
        assert self._holder is threading.current_thread(), "the caller holds the write lock"
        self._check_open()
        groups: dict[str, list[int]] = {}
        for at, append in enumerate(appends):
            groups.setdefault(append.tenant, []).append(at)
        outcomes: dict[int, port.AppendOutcome] = {}
        try:
            again = self._commit_by_tenant(appends, groups, outcomes, careful=False)
            if again and (left := self._commit_by_tenant(appends, again, outcomes, careful=True)):
                raise duplicate_row_error(next(iter(left)))
        except BaseException:
            # The commit may have been applied or not.
            self._tenant_cache.invalidate(groups)
            raise
        self._notifications.notify(groups)
        return [outcomes[at] for at in range(len(appends))]

    def _commit_by_tenant(
        self,
        appends: Sequence[port.Append],
        groups: dict[str, list[int]],
        outcomes: dict[int, port.AppendOutcome],
        *,
        careful: bool,
    ) -> dict[str, list[int]]:
        """Commit the appends at the indexes of each tenant; return the tenants whose change had a duplicate row."""
        builders: dict[str, ChangeBuilder] = {}
        for tenant, indexes in groups.items():
            cached = self._tenant_cache.get(tenant)
            builder = builders[tenant] = ChangeBuilder(self._driver, tenant, cached, self._random, careful=careful)
            if cached.newer_head is None:
                for at in indexes:
                    outcomes[at] = builder.append(appends[at])
        again: dict[str, list[int]] = {}
        for tenant, result in self._apply_changes(builders).items():
            if isinstance(result, DuplicateRow):
                again[tenant] = groups[tenant]
            elif isinstance(result, HeadMoved):
                self._tenant_cache.head_moved(tenant)
                stale = port.Stale("", result.head.position)
                outcomes |= dict.fromkeys(groups[tenant], stale)
            else:
                builders[tenant].update_cache()
                self._tenant_cache.change_applied(tenant, builders[tenant].head_after, result)
        return again

    def _apply_changes(self, builders: dict[str, ChangeBuilder]) -> dict[str, ChangeResult]:
        """Apply changes. An empty one, whose appends were all refused, is checked too: a refusal must not be stale."""
        results: dict[str, ChangeResult] = {}
        changes = {t: builder.build_change() for t, builder in builders.items() if not builder.is_empty}
        if changes:
            applied = self._driver.apply(list(changes.values()))
            results = dict(zip(changes, applied, strict=True))
        for tenant in builders:
            if tenant not in results:
                results[tenant] = None
                if not self._tenant_cache.is_current(tenant):
                    head = self._tenant_cache.get(tenant).newer_head
                    results[tenant] = HeadMoved(head) if head is not None else None
        return results

    def open_pipeline(self) -> ServerPipeline | None:
        """Return a pipeline of commits; None if the driver has none, or if other processes have written here lately."""
        pipeline = self._driver.pipeline() if not self._tenant_cache.is_contended else None
        if pipeline is None:
            return None
        return ServerPipeline(self._driver, pipeline, self._tenant_cache, self._notifications, self._random)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.EngineClosed

    def close(self) -> None:
        """Wait for a commit that is running, then give back every connection. Closing twice is fine."""
        if self._closed:
            return
        waited = self._lock.acquire(timeout=limits.WRITE_LOCK_WAIT_S)
        try:
            self._closed = True
            self._notifications.close()
            self._driver.close()
        finally:
            if waited:
                self._lock.release()
        self._notifications.join()

    # Reads

    def _cached_tenant(self, tenant: str) -> CachedTenant | None:
        """Return the cached state of a tenant to the holder of the write lock, else None. Raises EngineClosed."""
        self._check_open()
        if self._holder is threading.current_thread():
            return self._tenant_cache.get_current(tenant)
        return None

    def _find_stream(self, tenant: str, name: str) -> StreamRow | None:
        cached = self._cached_tenant(tenant)
        stream = cached.streams.get(name) if cached is not None else None
        if stream is None:
            stream = checked_reads.find_stream(self._driver, tenant, name)
            if cached is not None and stream is not None:
                cached.streams[name] = stream
        return stream

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        row = self._find_stream(tenant, stream)
        if row is None:
            return 0
        if position is None:
            return row.version
        return self._driver.version_at(tenant, stream, min(position, UNBOUNDED))

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
        cached = self._cached_tenant(tenant)
        low, high = max(after, 0) + 1, UNBOUNDED if until is None else min(until, UNBOUNDED)
        if low > high or limit <= 0 or (at is not None and at <= 0):
            return []
        row, events = checked_reads.read_stream(
            self._driver, tenant, stream, low=low, high=high, limit=limit, at=at, newest=newest
        )
        if cached is not None and row is not None:
            cached.streams[stream] = row
        return events

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        self._cached_tenant(tenant)
        if not 0 <= after < UNBOUNDED or limit <= 0:
            return []
        rows = self._driver.feed(tenant, after=after, limit=limit)
        checked_reads.check_positions(rows, after)
        return [checked_reads.checked_event(tenant, row, row.stream) for row in rows]

    def head(self, tenant: str) -> int:
        position = self._feed_head(tenant).position
        if not position and checked_reads.continues_after(self._driver, tenant, 0):
            raise errors.Corrupt(
                f"tenant {tenant!r} has events, but the record of how many is lost.",
                hint="Put the server's data back from a backup; what is readable can be exported: `limpet export`.",
                facts={"tenant": tenant},
            )
        return position

    def _feed_head(self, tenant: str) -> FeedHead:
        cached = self._cached_tenant(tenant)
        return cached.head if cached is not None else self._loss_detector.checked_head(tenant)

    def cache_epoch(self, tenant: str) -> int:
        return self._loss_detector.cache_epoch(tenant, self._feed_head(tenant))

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        self._cached_tenant(tenant)
        return checked_reads.read_blobs(self._driver, tenant, hashes)

    def _stream_path(self, tenant: str, stream: str, at: int | None) -> tuple[chain.Span, ...]:
        row = self._find_stream(tenant, stream)
        return checked_reads.stream_path(self._driver, tenant, row, at) if row is not None else ()

    def find_ordinal(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        for span in self._stream_path(tenant, stream, at):
            version = self._driver.find_ordinal(tenant, span.stream, low=span.low, high=span.high, ordinal=ordinal)
            if version:
                return version
        return 0

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        spans = self._stream_path(tenant, stream, at)
        found = self._driver.claims(tenant, (claim,), [span.stretch for span in spans]) if spans else []
        return chain.find_claim_version(spans, [(stretch, version) for stretch, _, version in found])

    def find_key(self, tenant: str, key: str) -> port.KeyRecord | None:
        self._cached_tenant(tenant)
        row = self._driver.key(tenant, key)
        return checked_reads.to_key_record(checked_reads.checked_key(tenant, row)) if row else None

    def find_projection(self, tenant: str, kind: str, id: str) -> port.Projection | None:
        self._cached_tenant(tenant)
        row = self._driver.projection(tenant, kind, id)
        return checked_reads.checked_projection(tenant, row) if row else None

    def query_projections(self, tenant: str, query: port.Query) -> list[port.Projection]:
        self._cached_tenant(tenant)
        return [checked_reads.checked_projection(tenant, row) for row in self._driver.query_projections(tenant, query)]

    def snapshot(self, tenant: str, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot. One that fails its checksum counts as absent."""
        self._cached_tenant(tenant)
        row = self._driver.snapshot(tenant, stream)
        if row is None:
            return None
        snapshot = row.snapshot
        found, link = checked_reads.event_link(self._driver, tenant, stream, snapshot.version)
        if found is None or row.checksum != checked_reads.snapshot_checksum(tenant, found.number, snapshot, link):
            return None
        spans = checked_reads.stream_path(self._driver, tenant, found, None)
        return snapshot if chain.clip(spans, snapshot.version - 1, snapshot.version) else None

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        row = self._find_stream(tenant, stream)
        return self._driver.forks(tenant, row.number) if row is not None else []

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:

        def is_reached() -> bool:
            self._check_open()
            return self._driver.head(tenant).position > after

        return self._notifications.wait(tenant, is_reached, timeout_s)

    def tenants(self) -> list[str]:
        self._check_open()
        return self._driver.tenants()

    # Notes

    def note(self, tenant: str, name: str) -> port.Note | None:
        self._check_open()
        check_note(name)
        row = self._driver.note(tenant, name)
        return checked_reads.checked_note(tenant, row) if row else None

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put or drop a note if it is at a version; return whether it was. Needs no write lock: the server compares."""
        self._check_open()
        check_note(name, value)
        return self._driver.put_note(tenant, name, value, expected=expected)

    def notes(self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256) -> list[tuple[str, port.Note]]:
        self._check_open()
        rows = self._driver.notes(tenant, prefix, after=after, limit=limit)
        return [(row.name, checked_reads.checked_note(tenant, row)) for row in rows]

    # The store as a whole

    def verify(self) -> Iterator[int | port.Report]:
        self._check_open()
        yield from maintenance.verify(self._driver)

    def rebuild(self, derive: port.StreamDeriver) -> Generator[int | port.Rebuilt]:
        """Verify all logs and derive all rows again; yield events read so far, the counts last.

        Writers wait only while a tenant's rows are replaced, and during the last try for a tenant that other
        processes wrote to during every try before. Raises Conflict if rows of a tenant could not be replaced.
        """
        self._check_open()
        yield from maintenance.rebuild(self._driver, derive, self.write_lock, self._tenant_cache.invalidate)

    def erase(self, erasure: Erasure, derive: port.StreamDeriver) -> ErasureCounts | port.Stale:
        with self.write_lock():
            # The engine's caches do not see this change: the next batch must report that caches are stale.
            self._tenant_cache.invalidate((erasure.tenant,))
            for _ in range(CHANGE_TRIES_MAX):
                attempt = maintenance.ServerErasure(self._driver, erasure, derive, self._random)
                if (stale := attempt.find_stale()) is not None:
                    return stale
                change, counts = attempt.build_change()
                if self._apply_change(change):
                    return counts
            return port.Stale("", self._driver.head(erasure.tenant).position)

    def _apply_change(self, change: TenantChange) -> bool:
        (result,) = self._driver.apply([change])
        if isinstance(result, DuplicateRow):
            raise duplicate_row_error(change.tenant)
        if isinstance(result, HeadMoved):
            return False
        self._loss_detector.record(change.tenant, change.after)
        self._notifications.notify((change.tenant,))
        return True

    def pending_erasures(self) -> bytes | None:
        self._check_open()
        return self._driver.pending_erasures()

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Remove erased content from the server's files; then no erasure is pending but `left`.

        It may wait long for readers, and depends on nothing that a commit changes, so the write lock is not held.
        """
        self._check_open()
        self._driver.scrub(done, left)

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        with self.write_lock():
            return self._driver.delete_keys(tenant, before_us=before_us)

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.RawEvent]:
        self._check_open()
        if not 0 <= after < UNBOUNDED or limit <= 0:
            return []
        return self._copy_reader.page(tenant, after, limit)

    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[port.RawKey]:
        self._check_open()
        page = self._driver.keys(tenant, after=after, limit=limit)
        return [checked_reads.checked_key(tenant, row) for row in page]

    def paste(
        self,
        tenant: str,
        events: Sequence[port.RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[port.RawKey] = (),
    ) -> None:
        with self.write_lock():
            self._tenant_cache.invalidate((tenant,))
            for _ in range(CHANGE_TRIES_MAX):
                target = maintenance.ServerCopyTarget(self._driver, tenant, keys)
                plan = store_copy.plan_page(target, events, blobs, keys)
                if not plan or self._apply_change(target.build_change(plan)):
                    return
            raise contention_error()

    def status(self) -> Mapping[str, Json]:
        self._check_open()
        return {**self._driver.status(), "durability": self.durability}

    def backup(self, target: str) -> Iterator[tuple[int, int]]:  # noqa: ARG002 - the port's parameter
        """Raise NoBackup: there is no file to copy."""
        self._check_open()
        raise errors.NoBackup(
            "a store on a server has no file to copy.", hint="`limpet backup` copies its log into a new SQLite file."
        )


_conforms: type[port.Store] = ServerStore
