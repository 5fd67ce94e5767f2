"""Processes that write until they are killed, and the siege that kills them.

One store lives through all the kills. A child opens it, takes up the sessions that were left, and
writes with several threads until SIGKILL; the parent then opens the store itself and judges it by
the notes that the dead have left.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import limpet
from limpet import limits
from tests.faults import oracle, recorded_run, workload
from tests.faults.journal import Diary, Entry, Journal, Step

THREADS = 3
START_LIMIT_S = 300.0
CHECK_ALL_AT = (25, 50, 100, 200, 400, 800)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a child is to do."""

    store: str
    diary: Path
    name: str
    seed: int
    adopt: tuple[str, ...]
    shared: tuple[str, ...]
    early_ack: bool


def write_until_killed(orders: Orders) -> None:
    """Write with several threads for ever; exit with 1 if anything goes wrong."""
    try:
        limits.BLOB_BYTES_MIN = workload.LARGE_BYTES
        engine = limpet.connect(orders.store)
        sink = Diary(orders.diary)
        threads = [threading.Thread(target=_write, args=(engine, sink, orders, number)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _write(engine: limpet.Limpet, sink: Diary, orders: Orders, number: int) -> None:
    try:
        author = workload.Author(
            engine,
            sink,
            name=f"{orders.name}t{number}",
            seed=orders.seed,
            shared=orders.shared,
            early_ack=orders.early_ack,
        )
        for session in orders.adopt[number::THREADS]:
            author.adopt(session)
        while True:
            author.step()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


@dataclass(slots=True)
class Siege:
    """A store under attack, and what its callers know."""

    folder: Path
    seed: int
    early_ack: bool = False
    backend: str = "sqlite"
    kills: int = 0
    steps: int = 0
    faults: list[str] = field(default_factory=list)
    _journal: Journal = field(default_factory=Journal)
    _children: int = 0

    @property
    def store(self) -> str:
        """The store that lives on."""
        return recorded_run.url(self.folder, self.backend)

    def run(self, kills: int) -> None:
        """Kill until so many are dead or something is wrong."""
        rng = random.Random(self.seed)
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload([__name__])
        fresh = multiprocessing.get_context("spawn")
        while self.kills < kills and not self.faults:
            context = fresh if rng.random() < 0.1 else forks
            self._round(context, rng, writers=2 if rng.random() < 0.3 else 1)
        if not self.faults:
            self._judge(None)

    def _round(self, context: ForkServerContext | SpawnContext, rng: random.Random, writers: int) -> None:
        shared = self._shared_sessions()
        orders = [self._orders(rng, shared, number, writers) for number in range(writers)]
        children = [context.Process(target=write_until_killed, args=(each,)) for each in orders]
        for child in children:
            child.start()
        for child, each in zip(children, orders, strict=True):
            self._kill(child, each.diary, rng)
        touched = set(shared).union(*(self._read(each.diary) for each in orders))
        reached = range(self.kills - writers + 1, self.kills + 1)
        self._judge(None if any(kill in CHECK_ALL_AT for kill in reached) else touched)

    def _orders(self, rng: random.Random, shared: Sequence[str], number: int, writers: int) -> Orders:
        self._children += 1
        name = f"k{self._children}"
        left = self._left()[number::writers]
        adopt = rng.sample(left, min(len(left), 2 * THREADS))
        return Orders(
            self.store, self.folder / f"{name}.notes", name, self.seed, tuple(adopt), tuple(shared), self.early_ack
        )

    def _left(self) -> list[str]:
        """The newest sessions of one author at a time that are still there."""
        there: dict[str, None] = {}
        for entry in self._journal.entries.values():
            step = entry.step
            if step.verb == "delete":
                there.pop(step.session, None)
            elif step.verb == "continue":
                there.pop(step.session, None)
                there[entry.target] = None
            elif not step.session.startswith(workload.SHARED):
                there[step.session] = None
        return list(there)[-4 * THREADS :]

    def _shared_sessions(self) -> list[str]:
        """Fresh ones from time to time: a check reads them whole."""
        ids = [f"{workload.SHARED}{self.kills // 20}-{number}" for number in range(2)]
        with limpet.connect(self.store) as engine:
            for each in ids:
                engine.sessions.get_or_create_session(each)
                made = Entry(Step(f"create {each}", "siege", each, "create"), 0, 0)
                self._journal.entries[made.step.id] = made
        return ids

    def _kill(self, child: BaseProcess, diary: Path, rng: random.Random) -> None:
        """Kill while opening, or after some notes, at no particular point."""
        deadline = time.monotonic() + START_LIMIT_S
        if rng.random() < 0.1:
            deadline = time.monotonic() + rng.random() * 0.1
        wanted = rng.randint(1, 12_000)
        while child.is_alive() and time.monotonic() < deadline and _size(diary) < wanted:
            time.sleep(rng.random() * 0.002)
        child.kill()
        child.join()
        if child.exitcode == 1:
            self.faults.append("a writer failed by itself; its output says why")
        self.kills += 1

    def _read(self, diary: Path) -> set[str]:
        sessions: set[str] = set()
        for moment, note in Diary.read(diary):
            self._journal.take(moment, note)
            if "submit" in note:
                self.steps += 1
                sessions.add(note["submit"]["session"])
            else:
                sessions.add(note["target"])
        return sessions - {""}

    def _judge(self, sessions: set[str] | None) -> None:
        verdict = oracle.check(self.store, self._journal, only=sessions)
        self.faults.extend(f"after kill {self.kills}: {fault}" for fault in verdict.faults)
        happened = {step for steps in verdict.happened.values() for step in steps}
        self._journal.settle(happened, time.monotonic_ns())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
