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


@dataclass(frozen=True)
class Series:
    """One contestant's rounds: operations a second, and this process's CPU time for each of them.

    A busy machine changes the first; the second tells whether the software has.
    """

    per_s: list[float] = field(default_factory=list[float])
    cpu_us: list[float] = field(default_factory=list[float])


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


def rates(bench: Bench, contestants: Mapping[str, Slice]) -> dict[str, Series]:
    """Measure each contestant, one number a round, after a warm-up."""
    measured = {name: Series() for name in contestants}
    for run in contestants.values():
        # Past the first checkpoint: until then the write-ahead log grows, and syncs more slowly.
        run(bench.slices * bench.slice_s)
    for number in range(bench.rounds):
        _one_round(bench, contestants, measured)
        last = "  ".join(f"{name} {series.per_s[-1]:,.0f}/s" for name, series in measured.items())
        progress(f"round {number + 1}/{bench.rounds}: {last}")
    return measured


def by_turns(
    bench: Bench, pairs: Mapping[str, tuple[Callable[[], object], Callable[[], object]]]
) -> dict[str, tuple[Series, Series]]:
    """Measure pairs of operations, each side once and then the other, one pair after another."""
    measured = {name: (Series(), Series()) for name in pairs}
    seconds = bench.slices * bench.slice_s * len(pairs) * 2
    for number in range(-1, bench.rounds):
        spent = {name: [0.0, 0.0] for name in pairs}
        done, until = 0, time.perf_counter() + seconds
        gc.collect()
        while time.perf_counter() < until:
            done += 1
            for name, sides in pairs.items():
                for side, step in enumerate(sides):
                    began = time.perf_counter()
                    step()
                    spent[name][side] += time.perf_counter() - began
        if number < 0:
            continue  # The first is a warm-up, past the first checkpoint.
        for name, series in measured.items():
            for side, taken in zip(series, spent[name], strict=True):
                side.per_s.append(done / taken)
        told = "  ".join(f"{name} {done / taken[0]:,.0f}/s" for name, taken in spent.items())
        progress(f"round {number + 1}/{bench.rounds}: {told}")
    return measured


def ratio(above: Series, below: Series) -> tuple[float, ...]:
    """Divide round by round: both numbers of a quotient come from the same moment."""
    return tuple(a / b for a, b in zip(above.per_s, below.per_s, strict=True))


def medians(measured: Mapping[str, Series]) -> dict[str, float]:
    """Give what stood behind a ratio: operations a second, and the processor's part of each."""
    shown: dict[str, float] = {}
    for name, series in measured.items():
        shown[f"{name} /s"] = round(statistics.median(series.per_s), 1)
        shown[f"{name} CPU us"] = round(statistics.median(series.cpu_us), 1)
    return shown


def _one_round(bench: Bench, contestants: Mapping[str, Slice], measured: Mapping[str, Series]) -> None:
    done = dict.fromkeys(contestants, 0)
    spent = dict.fromkeys(contestants, 0.0)
    busy = dict.fromkeys(contestants, 0.0)
    names = list(contestants)
    for number in range(bench.slices):
        # Nobody always runs first, or always after the same neighbour's unfinished write-back.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            gc.collect()
            began = time.process_time()
            count, seconds = contestants[name](bench.slice_s)
            busy[name] += time.process_time() - began
            done[name] += count
            spent[name] += seconds
    for name, series in measured.items():
        series.per_s.append(done[name] / spent[name])
        series.cpu_us.append(busy[name] / done[name] * 1e6)
