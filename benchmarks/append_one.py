"""One caller, each append durable before the next: against raw SQLite, and against a peer in RAM."""

import statistics

from benchmarks import harness, ours, peers, raw
from benchmarks.harness import Bench, Figure


def run(bench: Bench) -> list[Figure]:
    return [*_on_disk(bench), *_in_ram(bench)]


def _on_disk(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for load in (bench.loads[0], bench.loads[-1]):
        measured = harness.rates(
            bench,
            {
                "raw": raw.appender(bench.disk / f"raw-{load.name}.db", load, bench.closing),
                "ours": ours.appender(bench.disk / f"ours-{load.name}.db", load, bench.closing),
            },
        )
        rounds = harness.ratio(measured["ours"], measured["raw"])
        figures.append(
            Figure(
                name=f"append, one caller, disk, {load.name}: of raw",
                value=statistics.median(rounds),
                unit="x",
                at_least=0.4,
                rounds=rounds,
                beside=harness.medians(measured),
            )
        )
    return figures


def _in_ram(bench: Bench) -> list[Figure]:
    load = bench.first_load
    measured = harness.rates(
        bench,
        {
            "raw": raw.appender(bench.ram / "raw.db", load, bench.closing),
            "peer": peers.appender(bench.ram / "peer.db", load, bench.closing),
            "ours": ours.appender(bench.ram / "ours.db", load, bench.closing),
        },
    )
    rounds = harness.ratio(measured["ours"], measured["peer"])
    return [
        Figure(
            name="append, one caller, RAM disk: of OpenAI Agents' SQLiteSession",
            value=statistics.median(rounds),
            unit="x",
            at_least=1.5,
            rounds=rounds,
            beside=harness.medians(measured),
        )
    ]
