"""A million sessions and ten million events: how much memory that takes, and how quickly one of them is found.

`make bench-long` fills SQLite and PostgreSQL and keeps the result; it takes about an hour. Filling and looking are
processes of their own, so that what they hold in memory is theirs.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import backends, machine
from benchmarks.__main__ import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.harness import Figure
from benchmarks.long_work import MESSAGES
from tests.servers import postgres

SESSIONS = 1_000_000
RESIDENT_MB_MAX = 256


def main() -> int:
    options = _options()
    figures: list[Figure] = []
    options.disk.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="long-", dir=options.disk) as folder:
        Path(folder).chmod(machine.PASSABLE)
        where = machine.describe(REPOSITORY, Path(folder), Path("/dev/shm"))
        with contextlib.ExitStack() as closing:
            for name, url in _places(Path(folder), closing):
                figures += _measured(name, url, options.sessions)
    print_table(figures, where)
    if options.sessions == SESSIONS:
        write_result(RESULTS / "long.json", figures, where)
    return 0 if all(figure.met for figure in figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.long", description=__doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--disk", type=Path, default=REPOSITORY / "build")
    return parser.parse_args()


def _places(folder: Path, closing: contextlib.ExitStack) -> Iterator[tuple[str, str]]:
    yield "SQLite", str(folder / "long.db")
    (folder / "long.db").unlink(missing_ok=True)
    server = postgres.Server(within=backends.server_folder(folder))
    closing.callback(server.close)
    yield "PostgreSQL", server.url(postgres.create(server))


def _measured(name: str, url: str, sessions: int) -> list[Figure]:
    filled = _in_process("fill", url, sessions)
    looked = _in_process("look", url, sessions)
    events = sessions * (MESSAGES + 1)
    opened, pages = looked["opened_ms"], looked["pages_ms"]
    scale = f"{sessions:,} sessions, {events:,} events, {name}"
    return [
        Figure(
            name=f"{scale}: most memory of the process that wrote them",
            value=filled["resident_mb"],
            unit="MB",
            at_most=RESIDENT_MB_MAX,
            beside={"events /s": round(events / filled["seconds"])},
        ),
        Figure(
            name="the same: most memory of a process that opens and lists them",
            value=looked["resident_mb"],
            unit="MB",
            at_most=RESIDENT_MB_MAX,
        ),
        Figure(
            name="the same: a random session opened, p99",
            value=_p99(opened),
            unit="ms",
            at_most=10,
            beside={"median ms": statistics.median(opened)},
        ),
        Figure(
            name="the same: first page of a user's sessions, p99",
            value=_p99(pages),
            unit="ms",
            at_most=10,
            beside={"median ms": statistics.median(pages)},
        ),
    ]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[-1]


def _in_process(what: str, url: str, sessions: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.long_work", what, url, str(sessions)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=REPOSITORY)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
