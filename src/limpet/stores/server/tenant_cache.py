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

from limpet import errors
from limpet.stores.server.driver import Driver, FeedHead, StreamRow
from limpet.stores.stream_paths import Span

HEADS_MAX = 10_000
"""Tenants whose heads are remembered: many more than there are states in an engine's caches."""

_LOSS_STEP = 1 << 40
"""Beyond all epochs: what is counted by it never comes out as one of them."""


class LossDetector:
    """The last head of each tenant that one store object has seen. For any thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._mutex = threading.Lock()
        self._heads: OrderedDict[str, FeedHead] = OrderedDict()
        self._losses: dict[str, int] = {}

    def checked_head(self, tenant: str) -> FeedHead:
        """Return a tenant's head; raise EventsLost, once, if it does not go on from the one that was there before."""
        while True:
            # Read before the server is asked: what is acknowledged meanwhile need not be in its answer.
            before = self._heads.get(tenant)
            head = self._driver.head(tenant)
            if before is None or self._continues(tenant, before, head):
                self.record(tenant, head)
                return head
            with self._mutex:
                # If it is another one by now, somebody else was told.
                if self._heads.get(tenant) is before:
                    self._heads[tenant] = head
                    self._losses[tenant] = self._losses.get(tenant, 0) + 1
                    raise events_lost_error(tenant, before, head)

    def record(self, tenant: str, head: FeedHead) -> None:
        """A head was acknowledged, or seen."""
        heads = self._heads
        with self._mutex:
            before = heads.get(tenant)
            if before is None or (before.position, before.epoch) < (head.position, head.epoch):
                heads[tenant] = head
            heads.move_to_end(tenant)
            if len(heads) > HEADS_MAX:
                heads.popitem(last=False)

    def cache_epoch(self, tenant: str, head: FeedHead) -> int:
        """Return how often a tenant was rebuilt or erased from, a number that none before a loss was the same as."""
        return head.epoch + self._losses.get(tenant, 0) * _LOSS_STEP

    def _continues(self, tenant: str, before: FeedHead, head: FeedHead) -> bool:
        """Whether a head has what another one had."""
        if head.position < before.position or head.epoch < before.epoch:
            return False
        if head.position == before.position:
            return head.link == before.link
        if not before.position:
            return True
        there = self._driver.feed(tenant, after=before.position - 1, limit=1)
        return bool(there) and there[0].event.link == before.link


def events_lost_error(tenant: str, before: FeedHead, head: FeedHead) -> errors.EventsLost:
    """Return the error for a server that has less than it had."""
    return errors.EventsLost(
        f"acknowledged events are gone: the log had {before.position:,}, and what the server has now"
        f" ({head.position:,}) does not go on from there.",
        hint="The server has lost the end of its log: it crashed without a sync, another took over, or an older copy"
        " was put back. If a fuller copy is left, bring that back before anything is written. Otherwise just go on:"
        " from now on what the server has counts.",
        facts={"tenant": tenant, "acknowledged": before.position, "there": head.position},
    )


TENANTS_MAX = 1_000
STREAMS_MAX = 20_000
"""Tenants, and streams of all of them, that are remembered from one turn to the next."""

CONTENTION_BATCHES = 16
"""For how many turns it is remembered that others write to a tenant, too."""

ADVISORY_LOCK_WAIT_S = 2.0
"""How long the guard of a tenant is waited for. It only saves deciding in vain."""

ADVISORY_LOCK_SKIP_S = 30.0
"""How long the guard is not asked for after it was waited for in vain."""

LOST_RACE_PAUSE_S, LOST_RACE_PAUSE_S_MAX = 0.002, 0.1
"""How long whoever has the guard waits when it was passed all the same, at first and at most."""

BATCHES_PER_EVICTION = 64
"""After how many turns the streams are counted."""


class CachedTenant:
    """What is known of one tenant: its head, streams by name, and what came before the stretch of those with bases.

    `newer_head` is another head that was met since, if nobody has looked again yet at what follows from it.
    """

    __slots__ = ("earlier_spans", "head", "newer_head", "streams")

    def __init__(self, head: FeedHead) -> None:
        self.head = head
        self.newer_head: FeedHead | None = None
        self.streams: dict[str, StreamRow] = {}
        self.earlier_spans: dict[int, tuple[Span, ...]] = {}


class TenantCache:
    """The memory of one store object, and the guard of a tenant that others write to as well."""

    def __init__(self, driver: Driver, acknowledged: LossDetector) -> None:
        self._driver = driver
        self._loss_detector = acknowledged
        self._losses: dict[str, errors.EventsLost] = {}
        self._tenants: dict[str, CachedTenant] = {}
        self._contended: dict[str, int] = {}
        self._locked_tenant: str | None = None
        self._skip_lock_until: dict[str, float] = {}
        self._invalidated = True
        self._batches = 0
        self._pause_s = LOST_RACE_PAUSE_S

    def begin_batch(self, heard: Mapping[str, int]) -> bool:
        """A turn begins; return whether all that callers have cached may be trusted until a commit says otherwise.

        `heard` are positions that tenants' feeds are said to have reached; 0: others want to write to it.
        """
        if "" in heard:
            # Somebody may have asked for a guard unheard: whoever has it is waited for once.
            self._contended = dict.fromkeys(self._tenants, 1) | self._contended
        for name, position in heard.items():
            known = self._tenants.get(name)
            if known is not None and not 0 < position <= known.head.position:
                self.mark_contended(name)
        for name in self._contended.keys() & self._tenants.keys():
            if not self._contended[name]:
                del self._contended[name]
            else:
                # Others have added to it, as a rule, and it is looked at again once they are held off.
                self.invalidate((name,))
                self._contended[name] -= 1
        if len(self._tenants) > TENANTS_MAX:
            # What is not known can't be compared: whoever trusts a cache of it would never be told.
            self.invalidate(list(self._tenants))
        self._batches += 1
        if self._batches % BATCHES_PER_EVICTION == 0:
            self._evict_streams()
        self._pause_s = LOST_RACE_PAUSE_S
        self._losses.clear()
        alone = not self._invalidated
        self._invalidated = False
        return alone

    def end_batch(self) -> None:
        """The turn ends."""
        if self._locked_tenant is not None:
            guarded, self._locked_tenant = self._locked_tenant, None
            # It ends by itself if it can't be given back.
            with contextlib.suppress(errors.Error):
                self._driver.release_advisory_lock(guarded)

    def _evict_streams(self) -> None:
        """Forget streams if there are many. They are asked for again; that their tenant's head is known is enough."""
        if sum(len(known.streams) for known in self._tenants.values()) > STREAMS_MAX:
            for known in self._tenants.values():
                known.streams.clear()
                known.earlier_spans.clear()

    def get(self, tenant: str) -> CachedTenant:
        """Return what is known of a tenant; its head is asked for if it is not, before anything else of it is read."""
        found = self._tenants.get(tenant)
        if found is None:
            # One at a time: two stores that have one each might wait for the other's.
            if (
                self._locked_tenant is None
                and tenant in self._contended
                and not self._skips_lock(tenant)
            ):
                self._locked_tenant = tenant
                if not self._driver.acquire_advisory_lock(tenant, ADVISORY_LOCK_WAIT_S):
                    self._locked_tenant = None
                    self._skip_lock_until[tenant] = time.monotonic() + ADVISORY_LOCK_SKIP_S
            found = self._tenants[tenant] = CachedTenant(self._load_head(tenant))
        return found

    def _skips_lock(self, tenant: str) -> bool:
        """Whether the guard was waited for in vain lately: whoever has it may stand still for ever."""
        until = self._skip_lock_until.get(tenant)
        if until is not None and time.monotonic() > until:
            del self._skip_lock_until[tenant]
            return False
        return until is not None

    def _load_head(self, tenant: str) -> FeedHead:
        """Return a tenant's head; in a turn that has found it lost, nothing is decided on what it has now."""
        if tenant not in self._losses:
            try:
                return self._loss_detector.checked_head(tenant)
            except errors.EventsLost as error:
                self._losses[tenant] = error
                self._invalidated = True
        told = self._losses[tenant]
        raise errors.EventsLost(told.message, hint=told.hint, facts=told.facts)

    @property
    def is_contended(self) -> bool:
        """Whether others write to some tenant, too, or wanted to lately."""
        return bool(self._contended)

    def get_current(self, tenant: str) -> CachedTenant:
        """Return what is known of a tenant of which something is read now: what is read follows from its last head."""
        found = self.get(tenant)
        if found.newer_head is not None:
            del self._tenants[tenant]
            found = self.get(tenant)
        return found

    def is_current(self, tenant: str) -> bool:
        """Look whether a tenant's head is the one that is known."""
        if tenant in self._losses:
            # That it is lost holds.
            return True
        known = self.get(tenant)
        if known.newer_head is None:
            head = self._driver.head(tenant)
            if head == known.head:
                return True
            known.newer_head = head
            self._other_writer_seen(tenant)
        return False

    def head_moved(self, tenant: str) -> None:
        """The server has another head: it is asked for again by whoever decides anew."""
        self._other_writer_seen(tenant)
        self._tenants.pop(tenant, None)
        if self._locked_tenant == tenant:
            # Somebody writes without the guard, and will hear of it.
            time.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LOST_RACE_PAUSE_S_MAX)

    def _other_writer_seen(self, tenant: str) -> None:
        self.mark_contended(tenant)
        self._invalidated = True

    def mark_contended(self, tenant: str) -> None:
        """Others write to a tenant, or want to: they are waited for from the next turn on.

        One that is forgotten for it costs deciding in vain once.
        """
        if len(self._contended) >= TENANTS_MAX and tenant not in self._contended:
            self._contended = {name: self._contended[name] for name in self._contended.keys() & self._tenants.keys()}  # fmt: skip
        self._contended[tenant] = CONTENTION_BATCHES

    def invalidate(self, tenants: Iterable[str]) -> None:
        """Forget tenants: what became of them is not known, or has to be told to whoever has the next turn."""
        for tenant in tenants:
            self._tenants.pop(tenant, None)
        self._invalidated = True
