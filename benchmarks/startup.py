"""Importing Holdfast, in fresh interpreters."""

import statistics
import subprocess
import sys

from benchmarks.harness import Bench, Figure

PROGRAM = """
import time
began = time.perf_counter()
import holdfast
print((time.perf_counter() - began) * 1000)
"""


def run(bench: Bench) -> list[Figure]:
    _import_ms()
    rounds = tuple(_import_ms() for _ in range(bench.rounds))
    return [
        Figure(
            name="import holdfast",
            value=statistics.median(rounds),
            unit="ms",
            at_most=100,
            rounds=rounds,
        )
    ]


def _import_ms() -> float:
    command = [sys.executable, "-c", PROGRAM]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
