"""How things are compared: contestants run by turns in one process run, and figures have targets.

A round gives each contestant several short slices, alternating, so that a disk which slows
down for a second slows all of them. A ratio is taken within a round; the figure is the median
over the rounds.
"""

import contextlib
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.loads import Load

Slice = Callable[[float], tuple[int, float]]
"""Work for about this many seconds; give back the operations done and the seconds they took."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number and what it must be. Without a bound it is for information."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    rounds: tuple[float, ...] = ()
    beside: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    @property
    def met(self) -> bool:
        high_enough = self.at_least is None or self.value >= self.at_least
        return high_enough and (self.at_most is None or self.value <= self.at_most)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What every benchmark is given: where to write, what to write, how long to measure.

    `closing` is closed after the benchmark, with all that was opened in it.
    """

    disk: Path
    ram: Path
    loads: Sequence[Load]
    rounds: int
    slices: int
    slice_s: float
    scale: float
    closing: contextlib.ExitStack

    def scaled(self, count: int) -> int:
        return max(1, round(count * self.scale))

    @property
    def first_load(self) -> Load:
        return self.loads[0]


def progress(line: str) -> None:
    print(f"    {line}", file=sys.stderr, flush=True)


def repeat_for(seconds: float, step: Callable[[], object]) -> tuple[int, float]:
    """Call `step` until the time is over."""
    done = 0
    began = now = time.perf_counter()
    until = began + seconds
    while now < until:
        step()
        done += 1
        now = time.perf_counter()
    return done, now - began


def rates(bench: Bench, contestants: Mapping[str, Slice]) -> dict[str, list[float]]:
    """Measure operations a second of each contestant, one number a round, after a warm-up."""
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        # Past the first checkpoint: until then the write-ahead log grows, and syncs more slowly.
        run(bench.slices * bench.slice_s)
    for number in range(bench.rounds):
        for name, rate in _one_round(bench, contestants).items():
            measured[name].append(rate)
        last = "  ".join(f"{name} {series[-1]:,.0f}/s" for name, series in measured.items())
        progress(f"round {number + 1}/{bench.rounds}: {last}")
    return measured


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Divide round by round: both numbers of a quotient come from the same moment."""
    return tuple(a / b for a, b in zip(above, below, strict=True))


def medians(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {f"{name} /s": round(statistics.median(series), 1) for name, series in measured.items()}


def _one_round(bench: Bench, contestants: Mapping[str, Slice]) -> dict[str, float]:
    done = dict.fromkeys(contestants, 0)
    spent = dict.fromkeys(contestants, 0.0)
    names = list(contestants)
    for number in range(bench.slices):
        # Nobody always runs first, or always after the same neighbour's unfinished write-back.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            gc.collect()
            count, seconds = contestants[name](bench.slice_s)
            done[name] += count
            spent[name] += seconds
    return {name: done[name] / spent[name] for name in contestants}
