"""What one store object caches of each tenant, and how it detects lost events.

A `CachedTenant` is valid for the feed head in it. The server compares that head on every commit, so
a stale entry costs a retry, never a wrong result. Stores that write to one tenant take its advisory
lock, because otherwise the last winner, which knows the head, would keep winning.
`LossDetector` raises EventsLost if a server no longer has an event that it had acknowledged.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from limpet import errors
from limpet.stores.chain import Span
from limpet.stores.server.driver import AppliedUnderContention, Driver, FeedHead, StreamRow
from limpet.stores.server.notifications import CommitNotifications

HEADS_MAX = 10_000
"""Tenants whose heads are remembered: many more than there are states in an engine's caches."""

_LOSS_STEP = 1 << 40
"""Added to the cache epoch for each loss. More than any epoch, so the sum never equals an earlier epoch."""


class LossDetector:
    """The newest head of each tenant that one store object has seen. Thread-safe."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._mutex = threading.Lock()
        self._heads: OrderedDict[str, FeedHead] = OrderedDict()
        self._losses: dict[str, int] = {}

    def checked_head(self, tenant: str) -> FeedHead:
        """Return a tenant's head; raise EventsLost, once, if it is not a continuation of the newest head seen before."""
        while True:
            # Read before the server is asked: a commit acknowledged in between need not be in its answer.
            before = self._heads.get(tenant)
            head = self._driver.head(tenant)
            if before is None or self._continues(tenant, before, head):
                self.record(tenant, head)
                return head
            with self._mutex:
                # If the entry has changed, another thread has raised the error for this loss.
                if self._heads.get(tenant) is before:
                    self._heads[tenant] = head
                    self._losses[tenant] = self._losses.get(tenant, 0) + 1
                    raise errors.EventsLost(
                        f"acknowledged events are gone: the log had {before.position:,}, and what the server has now"
                        f" ({head.position:,}) does not go on from there.",
                        hint="The server has lost the end of its log: it crashed without a sync, another took over, or an older"
                        " copy was put back. If a fuller copy is left, bring that back before anything is written. Otherwise"
                        " just go on: from now on what the server has counts.",
                        facts={"tenant": tenant, "acknowledged": before.position, "there": head.position},
                    )

    def record(self, tenant: str, head: FeedHead) -> None:
        """Remember a head that the server has acknowledged or shown."""
        heads = self._heads
        with self._mutex:
            before = heads.get(tenant)
            if before is None or (before.position, before.epoch) < (head.position, head.epoch):
                heads[tenant] = head
            heads.move_to_end(tenant)
            if len(heads) > HEADS_MAX:
                heads.popitem(last=False)

    def cache_epoch(self, tenant: str, head: FeedHead) -> int:
        """Return the head's epoch, made different from all epochs before each loss of events."""
        return head.epoch + self._losses.get(tenant, 0) * _LOSS_STEP

    def _continues(self, tenant: str, before: FeedHead, head: FeedHead) -> bool:
        if head.position < before.position or head.epoch < before.epoch:
            return False
        if head.position == before.position:
            return head.link == before.link
        if not before.position:
            return True
        rows = self._driver.feed(tenant, after=before.position - 1, limit=1)
        return bool(rows) and rows[0].event.link == before.link


TENANTS_MAX = 1_000
STREAMS_MAX = 20_000
"""Tenants, and streams of all tenants together, that are cached from one batch to the next."""

CONTENTION_BATCHES = 16
"""For how many batches a tenant counts as written to by other processes."""

ADVISORY_LOCK_WAIT_S = 2.0
"""How long an advisory lock is waited for. It only saves retries."""

ADVISORY_LOCK_SKIP_S = 30.0
"""How long no advisory lock of a tenant is tried after a wait for it has timed out."""

LOST_RACE_PAUSE_S, LOST_RACE_PAUSE_S_MAX = 0.002, 0.1
"""How long the holder of the advisory lock pauses after it has lost a race all the same, at first and at most."""

BATCHES_PER_EVICTION = 64
"""After how many batches the cached streams are counted."""


class CachedTenant(msgspec.Struct):
    """Cached state of one tenant: its head, streams by name, and by number the spans before a forked stream's own ones.

    `newer_head` is set if the server was seen to have another head: the rest is then stale.
    """

    head: FeedHead
    newer_head: FeedHead | None = None
    streams: dict[str, StreamRow] = {}
    earlier_spans: dict[int, tuple[Span, ...]] = {}


class TenantCache:
    """Cached tenants of one store object, and the advisory lock of a tenant that other processes write to.

    A batch is one holding of the store's write lock. Every method but `is_contended` is called by its holder.
    """

    def __init__(self, driver: Driver, loss_detector: LossDetector, notifications: CommitNotifications) -> None:
        self._driver = driver
        self._loss_detector = loss_detector
        self._notifications = notifications
        self._losses: dict[str, errors.EventsLost] = {}
        self._tenants: dict[str, CachedTenant] = {}
        self._contended: dict[str, int] = {}
        self._locked_tenant: str | None = None
        self._skip_lock_until: dict[str, float] = {}
        self._invalidated = True
        self._batches = 0
        self._pause_s = LOST_RACE_PAUSE_S

    def begin_batch(self, received: Mapping[str, int]) -> bool:
        """Begin a batch; return whether callers may trust their own caches until a commit is refused.

        `received` has the positions of notifications by tenant. 0: another store wants the tenant's advisory lock.
        """
        if "" in received:
            # Notifications were missed, perhaps one of a wanted advisory lock: take the lock of each tenant once.
            self._contended = dict.fromkeys(self._tenants, 1) | self._contended
        for name, position in received.items():
            cached = self._tenants.get(name)
            if cached is not None and not 0 < position <= cached.head.position:
                self._mark_contended(name)
        for name in self._contended.keys() & self._tenants.keys():
            if not self._contended[name]:
                del self._contended[name]
            else:
                # Read again after the advisory lock is taken: other processes have probably written to it.
                self.invalidate((name,))
                self._contended[name] -= 1
        if len(self._tenants) > TENANTS_MAX:
            # All of them: a caller's cache of a tenant is only known to be valid while its head is cached here.
            self.invalidate(list(self._tenants))
        self._batches += 1
        if self._batches % BATCHES_PER_EVICTION == 0:
            self._evict_streams()
        self._pause_s = LOST_RACE_PAUSE_S
        self._losses.clear()
        is_valid = not self._invalidated
        self._invalidated = False
        return is_valid

    def end_batch(self) -> None:
        if self._locked_tenant is not None:
            tenant, self._locked_tenant = self._locked_tenant, None
            # A lock that can't be released expires.
            with contextlib.suppress(errors.Error):
                self._driver.release_advisory_lock(tenant)

    def _evict_streams(self) -> None:
        """Drop cached streams if there are many. They can be read again, as long as their tenant's head is cached."""
        if sum(len(cached.streams) for cached in self._tenants.values()) > STREAMS_MAX:
            for cached in self._tenants.values():
                cached.streams.clear()
                cached.earlier_spans.clear()

    def get(self, tenant: str) -> CachedTenant:
        """Return the cached state of a tenant. If there is none, its head is read, before anything else of the tenant."""
        cached = self._tenants.get(tenant)
        if cached is None:
            # At most one lock at a time: two stores that hold one each could wait for each other's.
            if self._locked_tenant is None and tenant in self._contended and not self._skips_lock(tenant):
                # Set first: an interrupt in between must not leave a lock that no batch releases.
                self._locked_tenant = tenant
                if not self._driver.acquire_advisory_lock(tenant, ADVISORY_LOCK_WAIT_S):
                    self._locked_tenant = None
                    self._skip_lock_until[tenant] = time.monotonic() + ADVISORY_LOCK_SKIP_S
            cached = self._tenants[tenant] = CachedTenant(self._load_head(tenant))
        return cached

    def _skips_lock(self, tenant: str) -> bool:
        """Whether a wait for the advisory lock timed out lately: its holder may be suspended for long."""
        until = self._skip_lock_until.get(tenant)
        if until is not None and time.monotonic() > until:
            del self._skip_lock_until[tenant]
            return False
        return until is not None

    def _load_head(self, tenant: str) -> FeedHead:
        """Return a tenant's head. Once events were lost, every later call of the same batch raises EventsLost again."""
        if tenant not in self._losses:
            try:
                return self._loss_detector.checked_head(tenant)
            except errors.EventsLost as error:
                self._losses[tenant] = error
                self._invalidated = True
        # A new object each time: one exception must not be raised by several callers.
        error = self._losses[tenant]
        raise errors.EventsLost(error.message, hint=error.hint, facts=error.facts)

    @property
    def is_contended(self) -> bool:
        """Whether other processes write to some tenant, or wanted to lately."""
        return bool(self._contended)

    def get_current(self, tenant: str) -> CachedTenant:
        """Return the cached state of a tenant for a read: never one that is known to be stale."""
        cached = self.get(tenant)
        if cached.newer_head is not None:
            del self._tenants[tenant]
            cached = self.get(tenant)
        return cached

    def is_current(self, tenant: str) -> bool:
        """Ask the server whether a tenant's head is the cached one."""
        if tenant in self._losses:
            # A refusal because of lost events holds for the whole batch.
            return True
        cached = self.get(tenant)
        if cached.newer_head is None:
            head = self._driver.head(tenant)
            if head == cached.head:
                return True
            cached.newer_head = head
            self._other_writer_seen(tenant)
        return False

    def change_applied(self, tenant: str, head: FeedHead, result: AppliedUnderContention | None) -> None:
        """Record that the server has applied a change that leads to a head."""
        self._loss_detector.record(tenant, head)
        if result is not None:
            self._mark_contended(tenant)
            self._notifications.start_listener()

    def head_moved(self, tenant: str) -> None:
        """Record that the server has refused a change because of its head. The next `get` reads the head."""
        self._other_writer_seen(tenant)
        self._tenants.pop(tenant, None)
        if self._locked_tenant == tenant:
            # The winner writes without the advisory lock and hears of it with its next commit. The pause, with the
            # write lock held, gives it time to; a retry at once would only lose again.
            time.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LOST_RACE_PAUSE_S_MAX)
        self._notifications.start_listener()

    def _other_writer_seen(self, tenant: str) -> None:
        self._mark_contended(tenant)
        self._invalidated = True

    def _mark_contended(self, tenant: str) -> None:
        """Take a tenant's advisory lock in the next batches. Forgetting a tenant because of it costs one retry."""
        if len(self._contended) >= TENANTS_MAX and tenant not in self._contended:
            self._contended = {name: self._contended[name] for name in self._contended.keys() & self._tenants.keys()}  # fmt: skip
        self._contended[tenant] = CONTENTION_BATCHES

    def invalidate(self, tenants: Iterable[str]) -> None:
        """Drop tenants whose state is unknown. The next batch reports that callers' caches are not to be trusted."""
        for tenant in tenants:
            self._tenants.pop(tenant, None)
        self._invalidated = True
