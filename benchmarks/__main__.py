"""Run the benchmarks, print one table, keep the result as JSON, exit 1 when a target is missed."""

import argparse
import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import harness, loads, machine
from benchmarks.harness import Bench, Figure

REPOSITORY = Path(__file__).resolve().parent.parent
RECORDED = REPOSITORY.parent / "shared" / "data" / "agent-conversations.jsonl.gz"
RESULTS = REPOSITORY / "benchmarks" / "results"
RAM_DISK = Path("/dev/shm")

BENCHMARKS = (
    "startup",
    "counting",
    "append_one",
    "append_many",
    "append_processes",
    "growth",
    "listing",
    "footprint",
    "memory",
    "windows",
    "frames",
    "memory_profile",
    "archive",
    "backends",
)


def main() -> int:
    options = _options()
    chosen: Sequence[str] = options.benchmark or BENCHMARKS
    options.disk.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.disk) as disk,
        tempfile.TemporaryDirectory(prefix="bench-", dir=RAM_DISK) as ram,
    ):
        Path(disk).chmod(machine.PASSABLE)
        where = machine.describe(REPOSITORY, Path(disk), Path(ram))
        if os.getloadavg()[0] > 1:
            print("The machine is busy with something else; figures will suffer.", file=sys.stderr)
        figures = _measure(chosen, options, Path(disk), Path(ram))
    print_table(figures, where)
    whole = chosen == BENCHMARKS and not options.quick
    if target := options.json or (RESULTS / "latest.json" if whole else None):
        write_result(target, figures, where)
    return 0 if all(figure.met for figure in figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("benchmark", nargs="*", help=f"default: all of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="short rounds, small stores; a smoke test")
    parser.add_argument("--json", type=Path, help="where the result goes; a whole run keeps its own")
    parser.add_argument("--disk", type=Path, default=REPOSITORY / "build", help="folder on a real disk")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="conversations, .jsonl.gz")
    options = parser.parse_args()
    if unknown := set(options.benchmark) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    return options


def _measure(chosen: Sequence[str], options: argparse.Namespace, disk: Path, ram: Path) -> list[Figure]:
    found = loads.find_loads(options.recorded)
    figures: list[Figure] = []
    for name in chosen:
        for folder in (disk, ram):
            (folder / name).mkdir()
        run: Callable[[Bench], list[Figure]] = importlib.import_module(f"benchmarks.{name}").run
        print(f"{name} …", file=sys.stderr, flush=True)
        began = time.perf_counter()
        with contextlib.ExitStack() as closing:
            figures += run(
                Bench(
                    disk=disk / name,
                    ram=ram / name,
                    loads=found,
                    rounds=3 if options.quick else 5,
                    slices=2 if options.quick else 4,
                    slice_s=0.1 if options.quick else 0.2,
                    scale=0.1 if options.quick else 1.0,
                    closing=closing,
                )
            )
        harness.progress(f"took {time.perf_counter() - began:.0f} s")
    return figures


def print_table(figures: Sequence[Figure], where: dict[str, object]) -> None:
    for key, value in where.items():
        print(f"{key:14} {value}")
    width = max(len(figure.name) for figure in figures)
    print(f"\n{'figure':{width}}  {'value':>12}  {'target':>9}  {'':4}  rounds; beside")
    for figure in figures:
        value = f"{figure.value:.3g} {figure.unit}".strip()
        verdict = ("ok" if figure.met else "MISS") if figure.target else ""
        spread = " ".join(f"{number:.3g}" for number in figure.rounds)
        beside = ", ".join(f"{key} {_short(number)}" for key, number in figure.beside.items())
        detail = "; ".join(part for part in (spread, beside) if part)
        print(f"{figure.name:{width}}  {value:>12}  {figure.target:>9}  {verdict:4}  {detail}")


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def write_result(path: Path, figures: Sequence[Figure], where: dict[str, object]) -> None:
    rows = [
        {
            "name": figure.name,
            "value": round(figure.value, 4),
            "unit": figure.unit,
            "target": figure.target,
            "met": figure.met,
            "rounds": [round(number, 4) for number in figure.rounds],
            "beside": dict(figure.beside),
        }
        for figure in figures
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"passed": all(figure.met for figure in figures), "machine": where, "figures": rows}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
