"""Contenders for one suspension: threads of processes that stay alive, let go all at once.

A race is run in two steps, so that all are at the line: orders go out and are confirmed, then the word is
given. Some processes are told to die just before or just after their commit.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import limpet
from limpet import Scope, SuspensionToken, TokenBudget, errors
from limpet.core.values import events as e
from limpet.runtime.state_cache import TreeEvent
from limpet.stores import port

PROCESSES, THREADS = 4, 4
CONTENDERS_MAX = PROCESSES * THREADS
ROOT_EVERY, KILL_EVERY = 100, 15
WAIT_S = 300.0

WAYS = ("token", "token", "approve", "reject", "edit")
ENDS = {"token": "resumed", "approve": "approved", "reject": "rejected", "edit": "edited"}

Commit = Callable[[Sequence[port.Append]], list[port.AppendOutcome]]


@dataclass(frozen=True, slots=True)
class Orders:
    """How the threads of one process try to end a suspension, and when the process dies of it, if it does."""

    token: str
    suspension_id: str
    ways: tuple[str, ...]
    dies: str = ""


def contend(path: str, pipe: Connection) -> None:
    """Take part in races until the other end of the pipe is closed."""
    with limpet.connect(path) as lp, ThreadPoolExecutor(THREADS) as threads, contextlib.suppress(EOFError):
        store = lp._opened.engine.store
        commit = store.commit
        while True:
            orders: Orders = pipe.recv()
            setattr(store, "commit", dying(commit, orders.dies) if orders.dies else commit)  # noqa: B010
            line = threading.Barrier(len(orders.ways) + 1)
            tries = [threads.submit(attempt, lp, orders, way, line) for way in orders.ways]
            pipe.send("ready")
            pipe.recv()
            line.wait()
            pipe.send([one.result() for one in tries])


def attempt(lp: limpet.Limpet, orders: Orders, way: str, line: threading.Barrier) -> str:
    """Try to end a suspension; return "won", or the name of the error and what it says of the suspension."""
    line.wait()
    try:
        if way == "token":
            frame = lp.index.resume_frame(orders.token)
        elif way == "edit":
            frame = lp.index.decide_suspension(orders.suspension_id, way, by="ann", payload=1)
        else:
            frame = lp.index.decide_suspension(orders.suspension_id, way, by="ann")
    except errors.Error as error:
        return f"{type(error).__name__} {error.facts.get('status', '')}".strip()
    assert frame.resumption is not None and frame.resumption.decision == ENDS[way]
    return "won"


def dying(commit: Commit, when: str) -> Commit:
    """Return a commit that its process does not survive."""

    def last(appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        if when == "after":
            commit(appends)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("nobody is here any more")

    return last


@dataclass(slots=True)
class Races:
    """A store, the processes that race on it, and what came of it."""

    path: Path
    seed: int
    races: int = 0
    contenders: int = 0
    kills: Counter[str] = field(default_factory=Counter[str])
    won: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    _fed: int = 0
    _pool: list[tuple[BaseProcess, Any]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._pool = [self._start() for _ in range(PROCESSES)]
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._pool:
            pipe.close()
            process.join(WAIT_S)

    def _start(self) -> tuple[BaseProcess, Any]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        ours, theirs = context.Pipe()
        process = context.Process(target=contend, args=(str(self.path), theirs))
        process.start()
        theirs.close()
        return process, ours

    def run(self, races: int) -> None:
        """Race so often, or until something is wrong."""
        rng = random.Random(self.seed)
        budget = TokenBudget(total=0, timeout_ms=None)
        with limpet.connect(self.path) as lp:
            frame_id = ""
            while self.races < races and not self.faults:
                if self.races % ROOT_EVERY == 0:
                    frame_id = lp.index.push_frame(Scope("a"), goal="g", budget=budget).frame_id
                self._race(lp, frame_id, rng)
                self.races += 1

    def _race(self, lp: limpet.Limpet, frame_id: str, rng: random.Random) -> None:
        token = lp.index.suspend_frame(frame_id, reason="approval")
        seats = rng.sample(range(CONTENDERS_MAX), rng.randint(2, CONTENDERS_MAX))
        ways = {seat: rng.choice(WAYS) for seat in seats}
        dies = rng.choice(["before", "after"]) if self.races % KILL_EVERY == 7 else ""
        mortal = seats[0] % PROCESSES
        if dies and all(seat % PROCESSES == mortal for seat in seats):
            ways[(mortal + 1) % PROCESSES] = "token"
        orders = {
            number: Orders(
                token.token_id,
                token.suspension_id,
                tuple(way for seat, way in ways.items() if seat % PROCESSES == number),
                dies if number == mortal else "",
            )
            for number in {seat % PROCESSES for seat in ways}
        }
        self.contenders += len(ways)
        self._judge(lp, token, orders, self._let_go(orders))

    def _let_go(self, orders: dict[int, Orders]) -> dict[int, list[str]]:
        """Run a race; return what each process's threads said, nothing for one that died of it."""
        pipes = {number: self._pool[number][1] for number in orders}
        for number, pipe in pipes.items():
            pipe.send(orders[number])
        for pipe in pipes.values():
            assert pipe.poll(WAIT_S) and pipe.recv() == "ready"
        for pipe in pipes.values():
            pipe.send("go")
        told: dict[int, list[str]] = {}
        for number, pipe in pipes.items():
            with contextlib.suppress(EOFError, ConnectionResetError):
                assert pipe.poll(WAIT_S), f"process {number} says nothing"
                told[number] = pipe.recv()
        for number in orders.keys() - told.keys():
            process, pipe = self._pool[number]
            pipe.close()
            process.join(WAIT_S)
            self.kills[orders[number].dies or "unasked"] += 1
            self._pool[number] = self._start()
        return told

    def _judge(
        self, lp: limpet.Limpet, token: SuspensionToken, orders: dict[int, Orders], told: dict[int, list[str]]
    ) -> None:
        frame = lp.index.get_frame(token.frame_id)
        ended = [event.decision for event in self._resumed(lp)]
        said = [
            (way, answer)
            for number, answers in told.items()
            for way, answer in zip(orders[number].ways, answers, strict=True)
        ]
        winners = [way for way, answer in said if answer == "won"]
        if len(ended) != 1 or frame.status != "active" or self.kills["unasked"]:
            self._wrong(f"{len(ended)} ends, the frame is {frame.status}", said)
            return
        dead = [way for number in orders.keys() - told.keys() for way in orders[number].ways]
        if len(winners) != 1 and not (dead and not winners):
            self._wrong(f"{len(winners)} winners", said)
        if ENDS[winners[0]] != ended[0] if winners else ended[0] not in map(ENDS.get, dead):
            self._wrong(f"it was {ended[0]}, and won by {winners or dead}", said)
        for way, answer in said:
            lost = "InvalidSuspensionToken" if way == "token" else f"AlreadyDecided {ended[0]}"
            if answer not in ("won", lost):
                self._wrong(f"{way} lost by {answer}", said)
        # Whoever did not hear the answer asks again: the effect stays one.
        if attempt(lp, Orders(token.token_id, "", ()), "token", threading.Barrier(1)) == "won":
            self._wrong("the token was used twice", said)
        self.won[winners[0] if winners else "the dead"] += 1

    def _resumed(self, lp: limpet.Limpet) -> list[e.FrameResumedEvent]:
        found: list[e.FrameResumedEvent] = []
        for fact in lp.events.feed(self._fed):
            self._fed = fact.position
            if isinstance(fact, TreeEvent) and isinstance(fact.event, e.FrameResumedEvent):
                found.append(fact.event)
        return found

    def _wrong(self, what: str, said: Any) -> None:
        self.faults.append(f"race {self.races:,} of seed {self.seed}: {what}; {said}")
