"""What tests of background work share: a clock to set, a watch to turn, tasks that do as they are told."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from limpet.core.values import ids
from limpet.jobs.tasks import Heartbeat, Task
from limpet.runtime.engine import Engine
from limpet.stores.port import Store
from limpet.stores.volatile import VolatileStore
from limpet.testing.store_contract.harness import commit_all, make_append, write

START_US = 1_800_000_000_000_000


class Clock:
    """A clock and a watch. The clock can be set; the watch only goes on."""

    def __init__(self) -> None:
        self.us = START_US
        self.s = 1_000.0

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.s

    def pass_(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)
        self.s += seconds


def factory(clock: Clock) -> ids.Factory:
    count = itertools.count(1)
    return ids.Factory(now_us=clock.now_us, random=lambda size: next(count).to_bytes(size, "big"))


def engine_over(store: Store | None = None, clock: Clock | None = None) -> Engine:
    return Engine(store or VolatileStore(), factory=factory(clock or Clock()))


def happen(store: Store, tenant: str = "acme") -> None:
    """Have something happen to a tenant."""
    commit_all(store, make_append(write("a", store.version(tenant, "a"), b"x"), tenant=tenant))


class Scripted(Task):
    """A task that does one thing after another: a function, an error, or a number of steps."""

    def __init__(self, name: str, *script: Callable[[Heartbeat], bool] | Exception | bool) -> None:
        self.name = name
        self._script = list(script)
        self.tenants: list[str] = []

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        self.tenants.append(tenant)
        act = self._script.pop(0) if self._script else False
        if isinstance(act, Exception):
            raise act
        return act if isinstance(act, bool) else act(beat)
