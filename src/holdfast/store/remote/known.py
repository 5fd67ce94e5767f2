"""What one store object knows of its tenants without asking the server. All of it belongs to the holder of the turn.

Everything here was so when a tenant's feed ended at the head that stands beside it. If that is its head still, it
is so now: and that is what the server compares. So nothing here has to be right, but nothing may be trusted
before the server has said that the head is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.store.paths import Span
from holdfast.store.remote.driver import Driver, Head, Stream

TENANTS_MAX = 1_000
STREAMS_MAX = 20_000
"""Tenants, and streams of all of them, that are remembered from one turn to the next."""


class Tenant:
    """What is known of one tenant: its head, streams by name, and what came before the stretch of those with bases.

    `moved` is another head that was met since, if nobody has looked again yet at what follows from it.
    """

    __slots__ = ("before", "head", "moved", "streams")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.moved: Head | None = None
        self.streams: dict[str, Stream] = {}
        self.before: dict[int, tuple[Span, ...]] = {}

    def go_on(self, head: Head) -> None:
        """The head is another: nothing that was known holds any more."""
        self.head, self.moved = head, None
        self.streams.clear()
        self.before.clear()


class Known:
    """The memory of one store object."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._tenants: dict[str, Tenant] = {}
        self._doubted = True

    def begin(self, heard: Mapping[str, int]) -> bool:
        """A turn begins; return whether all that callers have cached may be trusted until a commit says otherwise.

        `heard` are positions that tenants' feeds are said to have reached.
        """
        for name, position in heard.items():
            known = self._tenants.get(name)
            if known is not None and position > known.head.position:
                self.doubt((name,))
        if len(self._tenants) > TENANTS_MAX:
            # What is not known can't be compared: whoever trusts a cache of it would never be told.
            self.doubt(list(self._tenants))
        elif sum(len(known.streams) for known in self._tenants.values()) > STREAMS_MAX:
            for known in self._tenants.values():
                known.streams.clear()
                known.before.clear()
        alone = not self._doubted
        self._doubted = False
        return alone

    def of(self, tenant: str) -> Tenant:
        """Return what is known of a tenant; its head is asked for if it is not, before anything else of it is read."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = Tenant(self._driver.head(tenant))
        return found

    def looked_at(self, tenant: str) -> Tenant:
        """Return what is known of a tenant of which something is read now: what is read follows from its last head."""
        found = self.of(tenant)
        if found.moved is not None:
            found.go_on(found.moved)
        return found

    def held(self, tenant: str) -> bool:
        """Look whether a tenant's head is the one that is known."""
        known = self.of(tenant)
        if known.moved is None:
            head = self._driver.head(tenant)
            if head == known.head:
                return True
            known.moved = head
            self._doubted = True
        return False

    def moved(self, tenant: str, head: Head) -> None:
        """The server has another head."""
        self.of(tenant).go_on(head)
        self._doubted = True

    def doubt(self, tenants: Iterable[str]) -> None:
        """Forget tenants: what became of them is not known, or has to be told to whoever has the next turn."""
        for tenant in tenants:
            self._tenants.pop(tenant, None)
        self._doubted = True
