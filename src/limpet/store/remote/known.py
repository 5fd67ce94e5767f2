"""What one store object knows of its tenants without asking the server. All of it belongs to the holder of the turn.

Everything here was so when a tenant's feed ended at the head that stands beside it. If that is its head still, it
is so now: and that is what the server compares. So nothing here has to be right, but nothing may be trusted
before the server has said that the head is the same.

While others write to a tenant too, stores take turns at it by a guard. Without, whoever has just committed knows the
head and wins again, and the others decide in vain.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

from limpet import errors
from limpet.store.paths import Span
from limpet.store.remote.acknowledged import Acknowledged
from limpet.store.remote.driver import Driver, Head, Stream

TENANTS_MAX = 1_000
STREAMS_MAX = 20_000
"""Tenants, and streams of all of them, that are remembered from one turn to the next."""

CROWD_TURNS = 16
"""For how many turns it is remembered that others write to a tenant, too."""

GUARD_S = 2.0
"""How long the guard of a tenant is waited for. It only saves deciding in vain."""

STANDS_S = 30.0
"""How long the guard is not asked for after it was waited for in vain."""

PAUSE_S, PAUSE_S_MAX = 0.002, 0.1
"""How long whoever has the guard waits when it was passed all the same, at first and at most."""

TURNS = 64
"""After how many turns the streams are counted."""


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


class Known:
    """The memory of one store object, and the guard of a tenant that others write to as well."""

    def __init__(self, driver: Driver, acknowledged: Acknowledged) -> None:
        self._driver = driver
        self._acknowledged = acknowledged
        self._lost: dict[str, errors.EventsLost] = {}
        self._tenants: dict[str, Tenant] = {}
        self._crowd: dict[str, int] = {}
        self._guarded: str | None = None
        self._standing: dict[str, float] = {}
        self._doubted = True
        self._turns = 0
        self._pause_s = PAUSE_S

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
        if self._turns % TURNS == 0:
            self._forget_streams()
        self._pause_s = PAUSE_S
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

    def of(self, tenant: str) -> Tenant:
        """Return what is known of a tenant; its head is asked for if it is not, before anything else of it is read."""
        found = self._tenants.get(tenant)
        if found is None:
            # One at a time: two stores that have one each might wait for the other's.
            if self._guarded is None and tenant in self._crowd and not self._stands(tenant):
                self._guarded = tenant
                if not self._driver.guard(tenant, GUARD_S):
                    self._guarded = None
                    self._standing[tenant] = time.monotonic() + STANDS_S
            found = self._tenants[tenant] = Tenant(self._head(tenant))
        return found

    def _stands(self, tenant: str) -> bool:
        """Whether the guard was waited for in vain lately: whoever has it may stand still for ever."""
        until = self._standing.get(tenant)
        if until is not None and time.monotonic() > until:
            del self._standing[tenant]
            return False
        return until is not None

    def _head(self, tenant: str) -> Head:
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

    def looked_at(self, tenant: str) -> Tenant:
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
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _met(self, tenant: str) -> None:
        self.wanted(tenant)
        self._doubted = True

    def wanted(self, tenant: str) -> None:
        """Others write to a tenant, or want to: they are waited for from the next turn on.

        One that is forgotten for it costs deciding in vain once.
        """
        if len(self._crowd) >= TENANTS_MAX and tenant not in self._crowd:
            self._crowd = {name: self._crowd[name] for name in self._crowd.keys() & self._tenants.keys()}  # fmt: skip
        self._crowd[tenant] = CROWD_TURNS

    def doubt(self, tenants: Iterable[str]) -> None:
        """Forget tenants: what became of them is not known, or has to be told to whoever has the next turn."""
        for tenant in tenants:
            self._tenants.pop(tenant, None)
        self._doubted = True
