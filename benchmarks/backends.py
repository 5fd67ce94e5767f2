"""The other places where a store can live, each beside what its file or server can do by itself.

PostgreSQL and Valkey are real ones out of wheels, on loopback, with every commit on disk before it is answered.
"""

import contextlib
import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from benchmarks import append_many, harness, ours, raw, windows
from benchmarks.harness import Bench, Figure, Slice
from benchmarks.loads import Load
from tests.servers import postgres, valkey

TOGETHER = append_many.CALLERS
LONG, SHORT = 50_000, windows.SHORT

MakeSlice = Callable[[Load, contextlib.ExitStack], Slice]


@dataclass(frozen=True)
class Place:
    """Where a store can live: its name, new URLs, and what is there without Holdfast."""

    name: str
    fresh: Callable[[], str]
    one: MakeSlice
    many: MakeSlice | None = None
    one_at_least: float = 0.5


def run(bench: Bench) -> list[Figure]:
    places = [_files(bench), _postgres(bench), _valkey(bench)]
    figures = [_one_caller(bench, place) for place in places]
    for place in places:
        figures += _many_callers(bench, place)
    sqlite = Place("SQLite", lambda: str(bench.disk / f"{next(_numbers)}.db"), _nothing)
    volatile = Place("volatile", lambda: "volatile:", _nothing)
    return figures + [_turns(bench, place) for place in (sqlite, volatile, *places)]


_numbers = itertools.count(1)


def _files(bench: Bench) -> Place:
    return Place(
        "files",
        lambda: f"files://{bench.disk / f'files-{next(_numbers)}'}",
        lambda load, closing: _synced_lines(bench.disk / "raw.jsonl", load, closing),
        one_at_least=0.4,
    )


def _postgres(bench: Bench) -> Place:
    server = postgres.Server(within=server_folder(bench.disk))
    bench.closing.callback(server.close)
    plain = server.url(postgres.create(server))
    return Place(
        "PostgreSQL",
        lambda: server.url(postgres.create(server)),
        lambda load, closing: _rows(plain, load, closing, together=1),
        lambda load, closing: _rows(plain, load, closing, together=TOGETHER),
    )


def server_folder(disk: Path) -> Path | None:
    """Return where PostgreSQL's files go: to the disk that is measured, if who runs it can get there."""
    if postgres.reachable(disk):
        return disk
    harness.progress(f"PostgreSQL can't be run below {disk}: its files are among temporary ones")
    return None


def _valkey(bench: Bench) -> Place:
    server = bench.closing.enter_context(valkey.server(within=bench.disk))
    return Place(
        "Valkey",
        lambda: valkey.fresh(server.url),
        lambda load, closing: _entries(server.url, load, closing, together=1),
        lambda load, closing: _entries(server.url, load, closing, together=TOGETHER),
    )


def _one_caller(bench: Bench, place: Place) -> Figure:
    load, closing = bench.first_load, bench.closing
    measured = harness.rates(
        bench,
        {"raw": place.one(load, closing), "ours": ours.appender(place.fresh(), load, closing)},
    )
    rounds = harness.ratio(measured["ours"], measured["raw"])
    return Figure(
        name=f"append, one caller, {place.name}: of raw",
        value=statistics.median(rounds),
        unit="x",
        at_least=place.one_at_least,
        rounds=rounds,
        beside=harness.medians(measured),
    )


def _many_callers(bench: Bench, place: Place) -> list[Figure]:
    if place.many is None:
        return []
    load, closing = bench.first_load, bench.closing
    measured = harness.rates(
        bench,
        {
            "raw": place.many(load, closing),
            "threads": append_many.threads(place.fresh(), load, closing),
            "tasks": append_many.tasks(place.fresh(), load, closing),
        },
    )
    return [
        Figure(
            name=f"append, {TOGETHER} {kind} together, {place.name}: of raw, {TOGETHER} in a batch",
            value=statistics.median(rounds),
            unit="x",
            at_least=0.3,
            rounds=rounds,
            beside=harness.medians({name: measured[name] for name in ("raw", kind)}),
        )
        for kind in ("threads", "tasks")
        for rounds in [harness.ratio(measured[kind], measured["raw"])]
    ]


def _turns(bench: Bench, place: Place) -> Figure:
    load = bench.first_load
    long = windows.session_of(place.fresh(), load, bench.scaled(LONG), bench.closing)
    measured = harness.rates(
        bench,
        {
            "long": windows.repeated(lambda: windows.one_turn(long)),
            "short": windows.turns(bench, place.fresh(), SHORT),
        },
    )
    rounds = harness.ratio(measured["short"], measured["long"])
    return Figure(
        name=f"a turn and its window at {LONG:,} messages, {place.name}: time of that at {SHORT:,}",
        value=statistics.median(rounds),
        unit="x",
        at_most=1.3,
        rounds=rounds,
        beside=harness.medians(measured),
    )


def _nothing(_load: Load, _closing: contextlib.ExitStack) -> Slice:
    raise AssertionError("appends to it are measured elsewhere, or are beside nothing")


def _synced_lines(path: Path, load: Load, closing: contextlib.ExitStack) -> Slice:
    """Append each message's JSON to a file, and wait until it is on disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    closing.callback(os.close, file)
    lines = (row + b"\n" for row in raw.encoded(load))

    def write() -> None:
        os.write(file, next(lines))
        os.fdatasync(file)

    return lambda seconds: harness.repeat_for(seconds, write)


def _rows(url: str, load: Load, closing: contextlib.ExitStack, *, together: int) -> Slice:
    """Commit so many messages at once as rows of one table."""
    connection = closing.enter_context(psycopg.connect(url, autocommit=True))
    connection.execute("CREATE TABLE IF NOT EXISTS messages (id bigserial PRIMARY KEY, body bytea)")
    rows = raw.encoded(load)
    one = "INSERT INTO messages (body) VALUES (%b)"
    many = "INSERT INTO messages (body) SELECT unnest(%b::bytea[])"

    def insert() -> None:
        if together == 1:
            connection.execute(one, (next(rows),), prepare=True)
        else:
            connection.execute(many, (_some(rows, together),), prepare=True)

    return _counted(insert, together)


def _entries(url: str, load: Load, closing: contextlib.ExitStack, *, together: int) -> Slice:
    """Add so many messages in one pipeline to one stream."""
    client = closing.enter_context(redis.Redis.from_url(url))
    rows, name = raw.encoded(load), f"raw-{together}"

    def add() -> None:
        if together == 1:
            client.xadd(name, {"body": next(rows)})
            return
        pipeline = client.pipeline(transaction=False)
        for row in _some(rows, together):
            pipeline.xadd(name, {"body": row})
        pipeline.execute()

    return _counted(add, together)


def _some(rows: Iterator[bytes], count: int) -> list[bytes]:
    return list(itertools.islice(rows, count))


def _counted(step: Callable[[], None], each: int) -> Slice:
    def measure(seconds: float) -> tuple[int, float]:
        done, spent = harness.repeat_for(seconds, step)
        return done * each, spent

    return measure
