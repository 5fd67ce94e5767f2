"""Counting tokens: every text of the conversations once, in fresh processes."""

import json
import statistics
from pathlib import Path

from benchmarks import fresh
from benchmarks.harness import Bench, Figure
from benchmarks.loads import Load

PROGRAM = """
import json, sys, time
from pathlib import Path
from limpet import tokens
texts = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
counter = tokens.named(sys.argv[1])
counter.text("load the vocabulary")
began = time.perf_counter()
for text in texts:
    counter.text(text)
took = time.perf_counter() - began
print(sum(len(text.encode()) for text in texts) / took / 1e6)
"""


def run(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for load in bench.loads:
        path = bench.disk / f"{load.name}.json"
        path.write_text(json.dumps(_texts(load)), encoding="utf-8")
        figures.append(_figure(bench, load, path, "o200k_base", at_least=15))
        figures.append(_figure(bench, load, path, "estimate-2"))
    return figures


def _texts(load: Load) -> list[str]:
    return [json.dumps(message, ensure_ascii=False) for conversation in load.conversations for message in conversation]


def _figure(bench: Bench, load: Load, path: Path, counter: str, *, at_least: float | None = None) -> Figure:
    rounds = tuple(float(fresh.output_of(PROGRAM, counter, path, compiled=bench.disk)) for _ in range(bench.rounds))
    return Figure(
        name=f"counting with {counter}, first pass, {load.name}",
        value=statistics.median(rounds),
        unit="MB/s",
        at_least=at_least,
        rounds=rounds,
        beside={"KB": round(path.stat().st_size / 1000)},
    )
