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

    def look(self, tenant: str) -> FeedHead:
        """Return a tenant's head; raise EventsLost, once, if it does not go on from the one that was there before."""
        while True:
            # Read before the server is asked: what is acknowledged meanwhile need not be in its answer.
            before = self._heads.get(tenant)
            head = self._driver.head(tenant)
            if before is None or self._follows(tenant, before, head):
                self.note(tenant, head)
                return head
            with self._mutex:
                # If it is another one by now, somebody else was told.
                if self._heads.get(tenant) is before:
                    self._heads[tenant] = head
                    self._losses[tenant] = self._losses.get(tenant, 0) + 1
                    raise events_lost_error(tenant, before, head)

    def note(self, tenant: str, head: FeedHead) -> None:
        """A head was acknowledged, or seen."""
        heads = self._heads
        with self._mutex:
            before = heads.get(tenant)
            if before is None or (before.position, before.epoch) < (head.position, head.epoch):
                heads[tenant] = head
            heads.move_to_end(tenant)
            if len(heads) > HEADS_MAX:
                heads.popitem(last=False)

    def rebuilt(self, tenant: str, head: FeedHead) -> int:
        """Return how often a tenant was rebuilt or erased from, a number that none before a loss was the same as."""
        return head.epoch + self._losses.get(tenant, 0) * _LOSS_STEP

    def _follows(self, tenant: str, before: FeedHead, head: FeedHead) -> bool:
        """Whether a head has what another one had."""
        if head.position < before.position or head.epoch < before.epoch:
            return False
        if head.position == before.position:
            return head.link == before.link
        if not before.position:
            return True
        there = self._driver.feed(tenant, after=before.position - 1, limit=1)
        return bool(there) and there[0].row.link == before.link


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

    `moved` is another head that was met since, if nobody has looked again yet at what follows from it.
    """

    __slots__ = ("before", "head", "moved", "streams")

    def __init__(self, head: FeedHead) -> None:
        self.head = head
        self.moved: FeedHead | None = None
        self.streams: dict[str, StreamRow] = {}
        self.before: dict[int, tuple[Span, ...]] = {}


class TenantCache:
    """The memory of one store object, and the guard of a tenant that others write to as well."""

    def __init__(self, driver: Driver, acknowledged: LossDetector) -> None:
        self._driver = driver
        self._acknowledged = acknowledged
        self._lost: dict[str, errors.EventsLost] = {}
        self._tenants: dict[str, CachedTenant] = {}
        self._crowd: dict[str, int] = {}
        self._guarded: str | None = None
        self._standing: dict[str, float] = {}
        self._doubted = True
        self._turns = 0
        self._pause_s = LOST_RACE_PAUSE_S

    def begin(self, heard: Mapping[str, int]) -> bool:
        """A turn begins; return whether all that callers have cached may be trusted until a commit says otherwise.

        `heard` are positions that tenants' feeds are said to have reached; 0: others want to write to it.
        """
        if "" in heard:
            # Somebody may have asked for a guard unheard: whoever has it is waited for once.
            self._crowd = dict.fromkeys(self._tenants, 1) | self._crowd
        for name, position in heard.items():
            known = self._tenants.get(name)
            if known is not None and not 0 < position <= known.head.position:
                self.wanted(name)
        for name in self._crowd.keys() & self._tenants.keys():
            if not self._crowd[name]:
                del self._crowd[name]
            else:
                # Others have added to it, as a rule, and it is looked at again once they are held off.
                self.doubt((name,))
                self._crowd[name] -= 1
        if len(self._tenants) > TENANTS_MAX:
            # What is not known can't be compared: whoever trusts a cache of it would never be told.
            self.doubt(list(self._tenants))
        self._turns += 1
        if self._turns % BATCHES_PER_EVICTION == 0:
            self._forget_streams()
        self._pause_s = LOST_RACE_PAUSE_S
        self._lost.clear()
        alone = not self._doubted
        self._doubted = False
        return alone

    def end(self) -> None:
        """The turn ends."""
        if self._guarded is not None:
            guarded, self._guarded = self._guarded, None
            # It ends by itself if it can't be given back.
            with contextlib.suppress(errors.Error):
                self._driver.unguard(guarded)

    def _forget_streams(self) -> None:
        """Forget streams if there are many. They are asked for again; that their tenant's head is known is enough."""
        if sum(len(known.streams) for known in self._tenants.values()) > STREAMS_MAX:
            for known in self._tenants.values():
                known.streams.clear()
                known.before.clear()

    def of(self, tenant: str) -> CachedTenant:
        """Return what is known of a tenant; its head is asked for if it is not, before anything else of it is read."""
        found = self._tenants.get(tenant)
        if found is None:
            # One at a time: two stores that have one each might wait for the other's.
            if self._guarded is None and tenant in self._crowd and not self._stands(tenant):
                self._guarded = tenant
                if not self._driver.guard(tenant, ADVISORY_LOCK_WAIT_S):
                    self._guarded = None
                    self._standing[tenant] = time.monotonic() + ADVISORY_LOCK_SKIP_S
            found = self._tenants[tenant] = CachedTenant(self._head(tenant))
        return found

    def _stands(self, tenant: str) -> bool:
        """Whether the guard was waited for in vain lately: whoever has it may stand still for ever."""
        until = self._standing.get(tenant)
        if until is not None and time.monotonic() > until:
            del self._standing[tenant]
            return False
        return until is not None

    def _head(self, tenant: str) -> FeedHead:
        """Return a tenant's head; in a turn that has found it lost, nothing is decided on what it has now."""
        if tenant not in self._lost:
            try:
                return self._acknowledged.look(tenant)
            except errors.EventsLost as error:
                self._lost[tenant] = error
                self._doubted = True
        told = self._lost[tenant]
        raise errors.EventsLost(told.message, hint=told.hint, facts=told.facts)

    @property
    def crowd(self) -> bool:
        """Whether others write to some tenant, too, or wanted to lately."""
        return bool(self._crowd)

    def looked_at(self, tenant: str) -> CachedTenant:
        """Return what is known of a tenant of which something is read now: what is read follows from its last head."""
        found = self.of(tenant)
        if found.moved is not None:
            del self._tenants[tenant]
            found = self.of(tenant)
        return found

    def held(self, tenant: str) -> bool:
        """Look whether a tenant's head is the one that is known."""
        if tenant in self._lost:
            # That it is lost holds.
            return True
        known = self.of(tenant)
        if known.moved is None:
            head = self._driver.head(tenant)
            if head == known.head:
                return True
            known.moved = head
            self._met(tenant)
        return False

    def moved(self, tenant: str) -> None:
        """The server has another head: it is asked for again by whoever decides anew."""
        self._met(tenant)
        self._tenants.pop(tenant, None)
        if self._guarded == tenant:
            # Somebody writes without the guard, and will hear of it.
            time.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LOST_RACE_PAUSE_S_MAX)

    def _met(self, tenant: str) -> None:
        self.wanted(tenant)
        self._doubted = True

    def wanted(self, tenant: str) -> None:
        """Others write to a tenant, or want to: they are waited for from the next turn on.

        One that is forgotten for it costs deciding in vain once.
        """
        if len(self._crowd) >= TENANTS_MAX and tenant not in self._crowd:
            self._crowd = {name: self._crowd[name] for name in self._crowd.keys() & self._tenants.keys()}  # fmt: skip
        self._crowd[tenant] = CONTENTION_BATCHES

    def doubt(self, tenants: Iterable[str]) -> None:
        """Forget tenants: what became of them is not known, or has to be told to whoever has the next turn."""
        for tenant in tenants:
            self._tenants.pop(tenant, None)
        self._doubted = True
