"""Four processes that append to one file, each to its own session."""

import contextlib
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks import harness, ours, raw
from benchmarks.harness import Bench, Figure
from benchmarks.loads import Load

PROCESSES = 4


def run(bench: Bench) -> list[Figure]:
    load = bench.first_load
    with _Writers(bench.disk / "ours.db", load) as writers:
        measured = harness.rates(
            bench, {"raw": raw.appender(bench.disk / "raw.db", load, bench.closing), "processes": writers.measure}
        )
    rounds = harness.ratio(measured["processes"], measured["raw"])
    return [
        Figure(
            name=f"append, {PROCESSES} processes together, disk: of raw",
            value=statistics.median(rounds),
            unit="x",
            at_least=0.5,
            rounds=rounds,
            beside=harness.medians(measured),
        )
    ]


class _Writers:
    """Processes that stay, with the store open, and append when told for how long."""

    def __init__(self, path: Path, load: Load) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(PROCESSES)]
        self._pipes = [here for here, _ in pairs]
        self._processes = [context.Process(target=_write, args=(there, path, load), daemon=True) for _, there in pairs]
        for process in self._processes:
            process.start()
        for _, there in pairs:
            # Held open here, it would keep a dead writer's pipe from ever reporting the end.
            there.close()

    def __enter__(self) -> "_Writers":
        for pipe in self._pipes:
            pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()

    def measure(self, seconds: float) -> tuple[int, float]:
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(seconds)
        done = sum(pipe.recv() for pipe in self._pipes)
        return done, time.perf_counter() - began


def _write(pipe: Connection, path: Path, load: Load) -> None:
    with contextlib.ExitStack() as closing:
        append = ours.appender(path, load, closing)
        pipe.send("ready")
        while seconds := pipe.recv():
            pipe.send(append(seconds)[0])
