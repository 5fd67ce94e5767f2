"""`ServerStore`: the store port over a driver.

A server cannot lock other processes out. Each commit names the feed head that it was decided on,
and the server refuses it if the head is another. While no other process writes to a tenant, a
commit takes one round trip, and nothing is read before it.
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from limpet import errors, limits
from limpet.core.values.json_values import Json
from limpet.stores import port, store_copy, stream_paths
from limpet.stores.chain import RandomPool
from limpet.stores.erasure import Erasure, ErasureCounts
from limpet.stores.port import WriteLockGuard, check_note
from limpet.stores.server import checked_reads, log_copy, maintenance
from limpet.stores.server.changes import ChangeBuilder, ServerPipeline
from limpet.stores.server.checked_reads import UNBOUNDED
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
from limpet.stores.server.log_copy import LogCopyReader
from limpet.stores.server.notifications import CommitNotifications
from limpet.stores.server.tenant_cache import CachedTenant, LossDetector, TenantCache


class ServerStoreReads:
    """What a store finds on its server."""

    _driver: Driver
    _loss_detector: LossDetector
    _notifications: CommitNotifications

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _cached_tenant(self, tenant: str) -> CachedTenant | None:
        """Return what the holder of the turn knows of a tenant; None to anybody else. Raises EngineClosed."""

    def _find_stream(self, tenant: str, name: str) -> StreamRow | None:
        known = self._cached_tenant(tenant)
        found = known.streams.get(name) if known is not None else None
        if found is None:
            found = checked_reads.find_stream(self._driver, tenant, name)
            if known is not None and found is not None:
                known.streams[name] = found
        return found

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        """Return the stream's version, now or at a position of the feed; 0 if it did not exist."""
        if position is None:
            found = self._find_stream(tenant, stream)
            return found.version if found is not None else 0
        if self._find_stream(tenant, stream) is None:
            return 0
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
        """Return the stream's events with after < version <= until, in order, at most `limit`."""
        known = self._cached_tenant(tenant)
        low, high = max(after, 0) + 1, UNBOUNDED if until is None else min(until, UNBOUNDED)
        if low > high or limit <= 0 or (at is not None and at <= 0):
            return []
        found, events = checked_reads.read_stream(
            self._driver, tenant, stream, low=low, high=high, limit=limit, at=at, newest=newest
        )
        if known is not None and found is not None:
            known.streams[stream] = found
        return events

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""
        self._cached_tenant(tenant)
        if not 0 <= after < UNBOUNDED or limit <= 0:
            return []
        found = self._driver.feed(tenant, after=after, limit=limit)
        checked_reads.check_positions(found, after)
        return [checked_reads.checked_event(tenant, kept, kept.stream) for kept in found]

    def head(self, tenant: str) -> int:
        """Return the position of the tenant's last event; 0 if it has none."""
        position = self._feed_head(tenant).position
        if not position and checked_reads.continues_after(self._driver, tenant, 0):
            raise checked_reads.missing_head_error(tenant)
        return position

    def _feed_head(self, tenant: str) -> FeedHead:
        known = self._cached_tenant(tenant)
        return known.head if known is not None else self._loss_detector.checked_head(tenant)

    def cache_epoch(self, tenant: str) -> int:
        """Return how often it was rebuilt or erased from; another number, too, once its end was lost."""
        return self._loss_detector.cache_epoch(tenant, self._feed_head(tenant))

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash; those it lacks are left out."""
        self._cached_tenant(tenant)
        return checked_reads.read_blobs(self._driver, tenant, hashes)

    def _stream_path(
        self, tenant: str, stream: str, at: int | None
    ) -> tuple[stream_paths.Span, ...]:
        found = self._find_stream(tenant, stream)
        return (
            checked_reads.stream_path(self._driver, tenant, found, at) if found is not None else ()
        )

    def find_ordinal(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        """Return the lowest version whose event has at least this ordinal; 0 if there is none."""
        return checked_reads.find_ordinal(
            self._driver, tenant, self._stream_path(tenant, stream, at), ordinal
        )

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        """Return the version of the event that made the claim; 0 if it is free."""
        return checked_reads.find_claim(
            self._driver, tenant, self._stream_path(tenant, stream, at), claim
        )

    def find_key(self, tenant: str, key: str) -> port.KeyRecord | None:
        """Return what an idempotency key was used for."""
        self._cached_tenant(tenant)
        kept = self._driver.key(tenant, key)
        return (
            checked_reads.to_key_record(checked_reads.checked_key(tenant, kept)) if kept else None
        )

    def find_projection(self, tenant: str, kind: str, id: str) -> port.Projection | None:
        """Return one projection."""
        self._cached_tenant(tenant)
        found = self._driver.projection(tenant, kind, id)
        return checked_reads.checked_projection(tenant, found) if found else None

    def query_projections(self, tenant: str, query: port.Query) -> list[port.Projection]:
        """Return one page of projections."""
        self._cached_tenant(tenant)
        return [
            checked_reads.checked_projection(tenant, row)
            for row in self._driver.query_projections(tenant, query)
        ]

    def snapshot(self, tenant: str, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot. One that fails its checksum counts as absent."""
        self._cached_tenant(tenant)
        kept = self._driver.snapshot(tenant, stream)
        if kept is None:
            return None
        snapshot = kept.snapshot
        found, link = checked_reads.event_link(self._driver, tenant, stream, snapshot.version)
        if found is None or kept.checksum != checked_reads.snapshot_checksum(
            tenant, found.number, snapshot, link
        ):
            return None
        spans = checked_reads.stream_path(self._driver, tenant, found, None)
        return (
            snapshot if stream_paths.clip(spans, snapshot.version - 1, snapshot.version) else None
        )

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Return the other streams that go on from this one, each with the version that it goes on from."""
        found = self._find_stream(tenant, stream)
        return self._driver.forks(tenant, found.number) if found is not None else []

    def note(self, tenant: str, name: str) -> port.Note | None:
        """Return a note, None if it is not there."""
        self._check_open()
        check_note(name)
        found = self._driver.note(tenant, name)
        return checked_reads.checked_note(tenant, found) if found else None

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
        return [(kept.name, checked_reads.checked_note(tenant, kept)) for kept in found]

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True as soon as the feed has a position > after; False when the time is up."""

        def there() -> bool:
            self._check_open()
            return self._driver.head(tenant).position > after

        return self._notifications.wait(tenant, there, timeout_s)

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""
        self._check_open()
        return self._driver.tenants()

    def pending_erasures(self) -> bytes | None:
        """Return what erasures had to do, until `scrub` is through."""
        self._check_open()
        return self._driver.pending_erasures()


CHANGE_TRIES_MAX = 8
"""How often an erasure is made anew because others have written meanwhile."""


class ServerStoreMaintenance(ServerStoreReads):
    """What is done to a store as a whole."""

    _copy_reader: log_copy.LogCopyReader
    _tenant_cache: TenantCache
    _random: Callable[[int], bytes]

    @abstractmethod
    def write_lock(self) -> AbstractContextManager[bool]: ...
    @property
    @abstractmethod
    def durability(self) -> str: ...

    def verify(self) -> Iterator[int | port.Report]:
        """Check every event, blob, note and derived row; yield events checked so far, the report last."""
        self._check_open()
        yield from maintenance.verify(self._driver)

    def rebuild(self, derive: port.StreamDeriver) -> Generator[int | port.Rebuilt]:
        """Prove all logs and derive from them, then put into place what is derived, tenant by tenant.

        Who writes is held up while it is put into place, and for the last proof of a tenant that was written to every time.
        """
        self._check_open()
        done, made = 0, port.Rebuilt()
        moved: list[str] = []
        with maintenance.open_spool() as spool:
            every: list[maintenance.TenantRebuild] = []
            for tenant in sorted({*self._driver.tenants(), *self._driver.unlisted_tenants()}):
                every.append(maintenance.TenantRebuild(self._driver, tenant, derive, spool))
                for count in every[-1].prepare():
                    done += count
                    yield done
            for going in every:
                for _ in going.install(self.write_lock, self._tenant_cache.invalidate):
                    yield done
                made = maintenance.sum_rebuilt(made, going.rebuilt)
                moved += [] if going.done else [going.tenant]
        if moved:
            raise errors.Conflict(
                f"others wrote to {len(moved):,} tenant(s) every time while they were rebuilt; they are as they were.",
                hint="Retry when fewer write.",
                facts={"tenant": moved[0]},
            )
        yield made

    def erase(self, erasure: Erasure, derive: port.StreamDeriver) -> ErasureCounts | port.Stale:
        """Take payloads out of the log in one change."""
        with self.write_lock():
            # Told to nobody here: the next turn has to hear of it.
            self._tenant_cache.invalidate((erasure.tenant,))
            for _ in range(CHANGE_TRIES_MAX):
                going = maintenance.ServerErasure(self._driver, erasure, derive, self._random)
                if (stale := going.find_stale()) is not None:
                    return stale
                change, gone = going.build_change()
                if self._apply_change(change):
                    return gone
            return port.Stale("", self._driver.head(erasure.tenant).position)

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """See to it that the server's files have nothing of what was erased; then nothing is pending.

        It may wait for long, for readers, and rests on nothing that a commit changes: so the turn is not held.
        """
        self._check_open()
        self._driver.scrub(done, left)

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop idempotency keys used before that moment; return how many."""
        with self.write_lock():
            return self._driver.delete_keys(tenant, before_us=before_us)

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.RawEvent]:
        """Return the tenant's events with position > after as they are kept; each is checked."""
        self._check_open()
        if not 0 <= after < UNBOUNDED or limit <= 0:
            return []
        return self._copy_reader.page(tenant, after, limit)

    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[port.RawKey]:
        """Return the tenant's idempotency keys after one, by their text."""
        self._check_open()
        page = self._driver.keys(tenant, after=after, limit=limit)
        return [checked_reads.checked_key(tenant, kept) for kept in page]

    def paste(
        self,
        tenant: str,
        events: Sequence[port.RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[port.RawKey] = (),
    ) -> None:
        """Keep events exactly as they are in one change."""
        with self.write_lock():
            self._tenant_cache.invalidate((tenant,))
            for _ in range(CHANGE_TRIES_MAX):
                pasting = log_copy.ServerCopyTarget(self._driver, tenant, keys)
                fit = store_copy.plan_page(pasting, events, blobs, keys)
                if not fit or self._apply_change(pasting.build_change(fit)):
                    return
            raise contention_error()

    def _apply_change(self, change: TenantChange) -> bool:
        """Apply a change; False if others were faster."""
        (verdict,) = self._driver.apply([change])
        if isinstance(verdict, DuplicateRow):
            raise duplicate_row_error(change.tenant)
        if isinstance(verdict, HeadMoved):
            return False
        self._loss_detector.record(change.tenant, change.after)
        self._notifications.notify((change.tenant,))
        return True

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: backend, server, versions, durability, counts."""
        self._check_open()
        return {**self._driver.status(), "durability": self.durability}

    def backup(self, target: str) -> Iterator[tuple[int, int]]:  # noqa: ARG002 - the port's parameter
        """Refuse: there is no file here that could be copied."""
        self._check_open()
        raise errors.NoBackup(
            "a store on a server has no file to copy.",
            hint="`limpet backup` copies its log into a new SQLite file.",
        )


def duplicate_row_error(tenant: str) -> errors.Corrupt:
    """Return the error for a server that has something beyond what its head says."""
    return errors.Corrupt(
        "something that a commit adds is there already, though nothing that is known of the log says so.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"tenant": tenant},
    )


class ServerStore(ServerStoreMaintenance):
    """A store over a driver, for many threads; others may use the same server."""

    def __init__(self, driver: Driver, *, random: Callable[[int], bytes] = os.urandom) -> None:
        self._driver = driver
        self._random = RandomPool(random)
        self._loss_detector = LossDetector(driver)
        self._tenant_cache = TenantCache(driver, self._loss_detector)
        self._copy_reader = LogCopyReader(driver)
        self._notifications = CommitNotifications(driver.listen)
        self._lock = threading.RLock()
        self._holder: threading.Thread | None = None
        self._write_lock_guard = WriteLockGuard(self.acquire_write_lock, self.release_write_lock)
        self._closed = False

    @property
    def durability(self) -> str:
        """What the server's settings hold."""
        return self._driver.durability

    def write_lock(self) -> WriteLockGuard:
        """Hold the right to decide among the threads of this store object; others are noticed by comparing."""
        return self._write_lock_guard

    def acquire_write_lock(self) -> bool:
        """Take the turn, for `turn`; whatever happens, it is either taken or given back."""
        me = threading.current_thread()
        assert self._holder is not me, "this thread has the turn already"
        try:
            if not self._lock.acquire(timeout=limits.WRITE_LOCK_WAIT_S):
                holder = self._holder.name if self._holder else "unknown"
                raise errors.StoreBusy(
                    f"thread {holder} has held the store's turn for {limits.WRITE_LOCK_WAIT_S:g} s.",
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
        """Give the turn back if this thread holds it still."""
        if self._lock._is_owned():  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            try:
                if self._holder is not None:
                    self._tenant_cache.end_batch()
            finally:
                self._holder = None
                self._lock.release()

    @property
    def contended(self) -> bool:
        """Never: nobody waits for another here."""
        return False

    def hand_off(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:  # noqa: ARG002
        """Nobody takes them: each commits for itself."""
        return None

    def take_handed_off(self) -> list[tuple[str, str]]:
        """Nobody: see above."""
        return []

    def is_unchanged(self, tenant: str) -> bool:
        """Look whether the tenant's head is the one that this turn rests on."""
        assert self._holder is threading.current_thread(), "held belongs inside turn()"
        return self._tenant_cache.is_current(tenant)

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        """Commit appends in one round trip, as one change for each tenant."""
        assert self._holder is threading.current_thread(), "commit belongs inside turn()"
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
            # What became of it is not known.
            self._tenant_cache.invalidate(groups)
            raise
        self._notifications.notify(groups)
        return [outcomes[at] for at in range(len(appends))]

    def open_pipeline(self) -> ServerPipeline | None:
        """Return a way to send commits ahead of answers, if the driver has one, and nobody else writes here lately."""
        line = self._driver.pipeline() if not self._tenant_cache.is_contended else None
        if line is None:
            return None
        return ServerPipeline(
            self._driver,
            line,
            known=self._tenant_cache,
            acknowledged=self._loss_detector,
            news=self._notifications,
            random=self._random,
        )

    def _commit_by_tenant(
        self,
        appends: Sequence[port.Append],
        groups: dict[str, list[int]],
        outcomes: dict[int, port.AppendOutcome],
        *,
        careful: bool,
    ) -> dict[str, list[int]]:
        """Commit the appends of tenants, given by their places; return those for which something was taken."""
        batches: dict[str, ChangeBuilder] = {}
        for tenant, places in groups.items():
            known = self._tenant_cache.get(tenant)
            batch = batches[tenant] = ChangeBuilder(
                self._driver, tenant, known, self._random, careful=careful
            )
            if known.newer_head is None:
                for at in places:
                    outcomes[at] = batch.append(appends[at])
        again: dict[str, list[int]] = {}
        for tenant, verdict in self._apply_changes(batches).items():
            if isinstance(verdict, DuplicateRow):
                again[tenant] = groups[tenant]
            elif isinstance(verdict, HeadMoved):
                self._tenant_cache.head_moved(tenant)
                self._notifications.start_listener()
                stale = port.Stale("", verdict.head.position)
                outcomes |= dict.fromkeys(groups[tenant], stale)
            else:
                batches[tenant].update_cache()
                self._loss_detector.record(tenant, batches[tenant].head_after)
                if verdict is not None:
                    self._tenant_cache.mark_contended(tenant)
                    self._notifications.start_listener()
        return again

    def _apply_changes(self, batches: dict[str, ChangeBuilder]) -> dict[str, ChangeResult]:
        """Apply what was taken. Where nothing was, what it rests on has to be so as well: refusals are answers, too."""
        verdicts: dict[str, ChangeResult] = {}
        changes = {t: batch.build_change() for t, batch in batches.items() if not batch.is_empty}
        if changes:
            applied = self._driver.apply(list(changes.values()))
            verdicts = dict(zip(changes, applied, strict=True))
        for tenant in batches:
            if tenant not in verdicts:
                head = (
                    None
                    if self._tenant_cache.is_current(tenant)
                    else self._tenant_cache.get(tenant).newer_head
                )
                verdicts[tenant] = HeadMoved(head) if head is not None else None
        return verdicts

    def _cached_tenant(self, tenant: str) -> CachedTenant | None:
        self._check_open()
        if self._holder is threading.current_thread():
            return self._tenant_cache.get_current(tenant)
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise errors.EngineClosed

    def close(self) -> None:
        """Give back every connection. Closing twice is fine."""
        if self._closed:
            return
        # Whoever commits may end.
        waited = self._lock.acquire(timeout=limits.WRITE_LOCK_WAIT_S)
        try:
            self._closed = True
            self._notifications.close()
            self._driver.close()
        finally:
            if waited:
                self._lock.release()
        self._notifications.join()


_conforms: type[port.Store] = ServerStore
