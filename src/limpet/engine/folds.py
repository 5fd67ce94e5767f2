"""States folded from streams: kept in a bounded cache, brought up to date from the tail."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from limpet import limits
from limpet.stores import port, store_copy


class Folded(Protocol):
    """A state with the name and version of what it was folded from."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> int: ...


S = TypeVar("S", bound=Folded)


class Folds(ABC, Generic[S]):
    """The cache of one kind of states over one store, at most `size` of them.

    A state may have begun with a snapshot, which a rebuild of the store drops: then all are forgotten.
    """

    def __init__(self, store: port.Store, size: int) -> None:
        self._store = store
        self._size = size
        self._mutex = threading.Lock()
        self._cached: OrderedDict[tuple[str, str], tuple[S, int]] = OrderedDict()
        self._epoch = 0
        self._rebuilt: dict[str, int] = {}
        self._early: dict[str, int] | None = None

    @abstractmethod
    def stream(self, id_: str) -> str:
        """Return the name of a state's stream."""

    @abstractmethod
    def decoded(self, snapshot: port.Snapshot) -> S | None:
        """Return the state of a snapshot; None if it has to be folded anew."""

    @abstractmethod
    def folded(self, tenant: str, state: S | None, page: Sequence[port.StoredEvent]) -> S | None:
        """Return the state after some more of its events."""

    def begin_turn(self, *, alone: bool) -> None:
        """A turn begins; unless `alone`, others may have added to any stream since the last one."""
        self._early = None
        if not alone:
            self._epoch += 1

    def begin_early(self, tenants: Iterable[str]) -> None:
        """What follows is decided before the turn, on what is remembered of some tenants."""
        self._early = {tenant: self.look(tenant) for tenant in tenants}

    def outdated(self) -> bool:
        """Whether what was decided early rests on what a rebuild has put in question since."""
        early = self._early or {}
        return any(rebuilt != self._store.rebuilt(tenant) for tenant, rebuilt in early.items())

    def look(self, tenant: str) -> int:
        """Forget everything if the tenant was rebuilt; return how often it was.

        Raises UnsafeStore if that was because it is being copied here: who has had it open is kept out as well.
        """
        rebuilt = self._store.rebuilt(tenant)
        if rebuilt != self._rebuilt.get(tenant, 0):
            store_copy.refuse_incomplete_copy(self._store, tenant)
            with self._mutex:
                self._cached.clear()
                self.forget_more()
                self._rebuilt[tenant] = rebuilt
        return rebuilt

    def forget_more(self) -> None:
        """Forget what else rests on what is derived: a tenant was rebuilt."""

    def in_turn(self, tenant: str, id_: str) -> S | None:
        """Return a state for the holder of the turn, who may trust what it wrote itself."""
        known = self._cached.get((tenant, id_))
        if known is not None and known[1] == self._epoch:
            return known[0]
        state = self.current(tenant, id_)
        if state is not None:
            self.keep(tenant, state)
        return state

    def at_hand(self, tenant: str, id_: str) -> S | None:
        """Return a state that the holder of the turn may trust without a look at the store; None if it has none."""
        known = self._cached.get((tenant, id_))
        return known[0] if known is not None and known[1] == self._epoch else None

    def remembered(self, tenant: str, id_: str) -> S | None:
        """Return a state as it was when last heard of, None if it is not remembered."""
        found = self._cached.get((tenant, id_))
        return found[0] if found else None

    def current(self, tenant: str, id_: str) -> S | None:
        """Return a state as of now, None if it never existed. Cost: the tail, not the history."""
        rebuilt = self.look(tenant)
        with self._mutex:
            found = self._cached.get((tenant, id_))
        state, stream = found[0] if found else None, self.stream(id_)
        fresh = self._fold(tenant, stream, state or self._snapshot(tenant, stream))
        if fresh is not None and fresh is not state:
            self._put(tenant, fresh, -1, rebuilt)
        return fresh

    def _snapshot(self, tenant: str, stream: str) -> S | None:
        found = self._store.snapshot(tenant, stream)
        return self.decoded(found) if found else None

    def _fold(
        self, tenant: str, stream: str, state: S | None, *, at: int | None = None
    ) -> S | None:
        while True:
            after = state.version if state else 0
            tail = self._store.read(tenant, stream, after=after, limit=limits.READ_CHUNK, at=at)
            state = self.folded(tenant, state, tail) if tail else state
            if len(tail) < limits.READ_CHUNK:
                return state

    def keep(self, tenant: str, state: S) -> None:
        """Remember a state that the holder of the turn read or wrote."""
        early = self._early.get(tenant) if self._early else None
        self._put(tenant, state, self._epoch, early)

    def _put(self, tenant: str, state: S, epoch: int, rebuilt: int | None) -> None:
        """Remember a state, unless the store was rebuilt since the one it goes back to was read."""
        place, cached = (tenant, state.id), self._cached
        with self._mutex:
            if rebuilt is not None and rebuilt != self._rebuilt.get(tenant, 0):
                return
            present = cached.get(place)
            if present is None or present[0].version <= state.version:
                cached[place] = (state, epoch)
            cached.move_to_end(place)
            while len(cached) > self._size:
                cached.popitem(last=False)

    def forget(self, tenant: str, id_: str) -> None:
        """Drop a state from the cache."""
        with self._mutex:
            self._cached.pop((tenant, id_), None)

    def __len__(self) -> int:
        return len(self._cached)
