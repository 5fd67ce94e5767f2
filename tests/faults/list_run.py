"""A run of list transactions under attack: processes are killed, connections cut, servers killed; then all is judged."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import limpet
from limpet.stores import port
from limpet.wiring import store_opener
from tests.faults import checker, history, list_sessions_client
from tests.faults.list_clients import PROCESSES, TENANTS, Orders, Tally, work
from tests.faults.proxy import KINDS, WAYS, Proxy

# What a new process would be long in loading.
_ROOMS = ("limpet.stores.sqlite", "limpet.stores.server.postgres", "limpet.stores.server.redis")

_LOOK_S = 0.02
_STUCK_S = 300.0
_CUT_WITHIN = 600
_HOLE_EVERY = 10


@dataclass(slots=True)
class Run:
    """Clients of one store, and what is done to them.

    `url` is what clients open, `direct` what the judge opens. Every so many transactions a process is killed, a
    connection cut, the server killed; 0: never. `restart` kills the server and starts it again.
    """

    folder: Path
    url: str
    seed: int
    wanted: int
    direct: str = ""
    bent: str = ""
    kill_every: int = 250
    proxy: Proxy | None = None
    cut_every: int = 100
    restart: Callable[[], None] | None = None
    restart_every: int = 0
    happened: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    verdict: checker.Verdict = field(default_factory=checker.Verdict)
    _all: list[Orders] = field(default_factory=list[Orders])
    _alive: dict[int, BaseProcess] = field(default_factory=dict[int, BaseProcess])

    def run(self) -> None:
        """Have transactions made until there are enough of them, and judge them."""
        rng = random.Random(self.seed)
        tally = Tally(self.folder)
        try:
            for _ in range(PROCESSES):
                self._start()
            self._attack(rng, tally)
            tally.put(0, 1)
            self._join()
        finally:
            tally.close()
            for process in self._alive.values():
                process.kill()
                process.join()
        self._judge()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, *_ROOMS])
        number = len(self._all) + 1
        orders = Orders(self.url, self.folder, number, self.seed + number, self.bent)
        self._all.append(orders)
        process = context.Process(target=work, args=(orders,))
        process.start()
        self._alive[number] = process

    def _attack(self, rng: random.Random, tally: Tally) -> None:
        every = {"kill": self.kill_every, "cut": self.cut_every if self.proxy else 0}
        every["restart"] = self.restart_every
        due = {what: self._later(rng, 0, each) for what, each in every.items() if each}
        done, quiet_s = 0, 0.0
        while done < self.wanted and not self.faults:
            if dead := self._dead(_LOOK_S):
                self.faults.append(f"process {dead} ended by itself")
            quiet_s = quiet_s + _LOOK_S if tally.total == done else 0.0
            done = tally.total
            if quiet_s > _STUCK_S:
                self.faults.append(f"nothing happens any more after {done:,} transactions")
            for what, at in due.items():
                if done >= at:
                    getattr(self, f"_{what}")(rng)
                    due[what] = self._later(rng, done, every[what])

    @staticmethod
    def _later(rng: random.Random, now: int, every: int) -> int:
        return now + rng.randint(every // 2, every * 3 // 2)

    def _dead(self, timeout_s: float) -> list[int]:
        ended = wait([process.sentinel for process in self._alive.values()], timeout_s)
        return [number for number, process in self._alive.items() if process.sentinel in ended]

    def _kill(self, rng: random.Random) -> None:
        number = rng.choice(list(self._alive))
        process = self._alive.pop(number)
        process.kill()
        process.join()
        self.happened["kills"] += 1
        self._start()

    def _cut(self, rng: random.Random) -> None:
        assert self.proxy is not None
        kind = rng.choice(KINDS[:2])
        if self.happened["cuts"] % _HOLE_EVERY == _HOLE_EVERY - 1:
            kind = rng.choice(KINDS[2:])
        self.proxy.arm_soon(rng.choice(WAYS), rng.randrange(_CUT_WITHIN), kind, seconds=0.3)
        self.happened["cuts"] += 1

    def _restart(self, rng: random.Random) -> None:
        assert self.restart is not None
        self.restart()
        self.happened["server kills"] += 1

    def _join(self) -> None:
        for number, process in self._alive.items():
            process.join(_STUCK_S)
            if process.exitcode != 0:
                self.faults.append(f"process {number} ended with {process.exitcode}")

    def _judge(self) -> None:
        paths = [orders.notes for orders in self._all if orders.notes.exists()]
        names = {name for each in history.read(paths) for name, _ in (*each.appends, *each.reads)}
        with contextlib.closing(store_opener.open_store(self.direct or self.url)) as store:
            own = {name for name in names if not name.startswith(f"{list_sessions_client.TENANT}/")}
            final = {name: lists_of(store, name) for name in own}
            final |= self._sessions(names - own)
            self.verdict = checker.check(history.read(paths), final)
            for name, told in self.verdict.anomalies.items():
                self.faults += [f"{name}: {each}" for each in told]
            self._judge_feeds(store, {name: final[name] for name in own})

    def _sessions(self, names: set[str]) -> dict[str, list[int]]:
        with limpet.connect(self.direct or self.url, tenant=list_sessions_client.TENANT) as lp:
            found = {name: lp.sessions.load_session(name.partition("/")[2]) for name in names}
            return {
                name: list(list_sessions_client.elements_of(session)) if session else []
                for name, session in found.items()
            }

    def _judge_feeds(self, store: port.Store, final: dict[str, list[int]]) -> None:
        """The feed has all that the lists have, in their order, without a gap; and the chain holds."""
        for tenant in TENANTS:
            fed: dict[str, list[int]] = {}
            last = 0
            while page := store.feed(tenant, after=last):
                for event in page:
                    if event.position != last + 1:
                        self.faults.append(f"after {last} comes {event.position} in {tenant}'s feed")
                    last = event.position
                    fed.setdefault(f"{tenant}/{event.stream}", []).append(int(event.payload or b""))
            self.faults += [
                f"the feed has another {name}"
                for name, elements in final.items()
                if name.startswith(f"{tenant}/") and fed.get(name, []) != elements
            ]
        *_, report = store.verify()
        if not (isinstance(report, port.Report) and report.ok):
            self.faults.append(f"verify: {report}")


def lists_of(store: port.Store, name: str) -> list[int]:
    """Return a list as it is."""
    tenant, _, stream = name.partition("/")
    elements: list[int] = []
    while page := store.read(tenant, stream, after=len(elements)):
        elements += [int(event.payload or b"") for event in page]
    return elements
