"""Heads that were acknowledged or seen, and what a server says that has them no more: it lost the end of its log.

A server that crashes with settings that sync late, a replica that takes over too early, an older copy that is put
back: all of them answer as if others had been faster. Whoever goes on from a cache then folds new events onto what
never was. So every head that is asked for is compared with the last one that was there: it has to go on from it.

It is told once, and then the store goes on with what the server has: `rebuilt` is another number from then on, so that
nothing that was cached before outlives it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from limpet import errors
from limpet.store.remote.driver import Driver, Head

HEADS_MAX = 10_000
"""Tenants whose heads are remembered: many more than there are states in an engine's caches."""

_EPOCHS = 1 << 40
"""Beyond all epochs: what is counted by it never comes out as one of them."""


class Acknowledged:
    """The last head of each tenant that one store object has seen. For any thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._mutex = threading.Lock()
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._losses: dict[str, int] = {}

    def look(self, tenant: str) -> Head:
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
                    raise lost(tenant, before, head)

    def note(self, tenant: str, head: Head) -> None:
        """A head was acknowledged, or seen."""
        heads = self._heads
        with self._mutex:
            before = heads.get(tenant)
            if before is None or (before.position, before.epoch) < (head.position, head.epoch):
                heads[tenant] = head
            heads.move_to_end(tenant)
            if len(heads) > HEADS_MAX:
                heads.popitem(last=False)

    def rebuilt(self, tenant: str, head: Head) -> int:
        """Return how often a tenant was rebuilt or erased from, a number that none before a loss was the same as."""
        return head.epoch + self._losses.get(tenant, 0) * _EPOCHS

    def _follows(self, tenant: str, before: Head, head: Head) -> bool:
        """Whether a head has what another one had."""
        if head.position < before.position or head.epoch < before.epoch:
            return False
        if head.position == before.position:
            return head.link == before.link
        if not before.position:
            return True
        there = self._driver.feed(tenant, after=before.position - 1, limit=1)
        return bool(there) and there[0].row.link == before.link


def lost(tenant: str, before: Head, head: Head) -> errors.EventsLost:
    """Return the error for a server that has less than it had."""
    return errors.EventsLost(
        f"acknowledged events are gone: the log had {before.position:,}, and what the server has now"
        f" ({head.position:,}) does not go on from there.",
        hint="The server has lost the end of its log: it crashed without a sync, another took over, or an older copy"
        " was put back. If a fuller copy is left, bring that back before anything is written. Otherwise just go on:"
        " from now on what the server has counts.",
        facts={"tenant": tenant, "acknowledged": before.position, "there": head.position},
    )
