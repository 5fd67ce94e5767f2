"""Importing Limpet, in fresh interpreters."""

import statistics
from pathlib import Path

from benchmarks import fresh
from benchmarks.harness import Bench, Figure

PROGRAM = """
import time
began = time.perf_counter()
import limpet
print((time.perf_counter() - began) * 1000)
"""


def run(bench: Bench) -> list[Figure]:
    _import_ms(bench.disk)
    rounds = tuple(_import_ms(bench.disk) for _ in range(bench.rounds))
    return [Figure(name="import limpet", value=statistics.median(rounds), unit="ms", at_most=100, rounds=rounds)]


def _import_ms(compiled: Path) -> float:
    return float(fresh.output_of(PROGRAM, compiled=compiled))
