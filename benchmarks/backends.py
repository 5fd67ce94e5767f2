"""The other places where a store can live, each beside what its file or server can do by itself.

PostgreSQL and Valkey are real ones out of wheels, on loopback, with every commit on disk before it is answered. They
have half of the cores and whoever calls them the other half, raw or not: where a scheduler puts both on one core, and
now and then does not, that would be what is measured. So on two cores 32 threads have one.
"""

import contextlib
import itertools
import os
import statistics
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import redis

from benchmarks import append_many, harness, machine, ours, raw, windows
from benchmarks.harness import Bench, Figure, Slice
from benchmarks.loads import Load
from tests.servers import postgres, valkey

TOGETHER = append_many.CALLERS
LONG, SHORT = 50_000, windows.SHORT

MakeSlice = Callable[[Load, contextlib.ExitStack], Slice]
Put = Callable[[list[bytes]], object]
"""Writes rows together, and returns when they are on disk."""


@dataclass(frozen=True)
class Place:
    """Where a store can live: its name, new URLs, and what is there without Limpet."""

    name: str
    fresh: Callable[[], str]
    one: MakeSlice
    many: Callable[[contextlib.ExitStack], Put] | None = None
    one_at_least: float = 0.5
    cores: Set[int] = field(default_factory=lambda: os.sched_getaffinity(0))


def run(bench: Bench) -> list[Figure]:
    places = [_files(bench), _postgres(bench), _valkey(bench)]
    figures: list[Figure] = []
    for place in places:
        with machine.on(place.cores):
            figures += [_one_caller(bench, place), *_many_callers(bench, place)]
    sqlite = Place("SQLite", lambda: str(bench.disk / f"{next(_numbers)}.db"), _nothing)
    volatile = Place("volatile", lambda: "volatile:", _nothing)
    for place in (sqlite, volatile, *places):
        with machine.on(place.cores):
            figures.append(_turns(bench, place))
    return figures


_numbers = itertools.count(1)


def _files(bench: Bench) -> Place:
    return Place(
        "files",
        lambda: f"files://{bench.disk / f'files-{next(_numbers)}'}",
        lambda load, closing: _synced_lines(bench.disk / "raw.jsonl", load, closing),
        one_at_least=0.4,
    )


def _postgres(bench: Bench) -> Place:
    here, there = machine.halves()
    with machine.on(there):
        server = postgres.Server(within=server_folder(bench.disk))
    bench.closing.callback(server.close)
    plain = server.url(postgres.create(server))
    return Place(
        "PostgreSQL",
        lambda: server.url(postgres.create(server)),
        lambda load, closing: _one_row(plain, load, closing),
        lambda closing: _rows(plain, closing),
        cores=here,
    )


def server_folder(disk: Path) -> Path | None:
    """Return where PostgreSQL's files go: to the disk that is measured, if who runs it can get there."""
    if postgres.reachable(disk):
        return disk
    harness.progress(f"PostgreSQL can't be run below {disk}: its files are among temporary ones")
    return None


def _valkey(bench: Bench) -> Place:
    here, there = machine.halves()
    with machine.on(there):
        server = bench.closing.enter_context(valkey.server(within=bench.disk))
    return Place(
        "Valkey",
        lambda: valkey.fresh(server.url),
        lambda load, closing: _one_entry(server.url, load, closing),
        lambda closing: _entries(server.url, closing),
        cores=here,
    )


def _one_caller(bench: Bench, place: Place) -> Figure:
    load, closing = bench.first_load, bench.closing
    measured = harness.rates(
        bench, {"raw": place.one(load, closing), "ours": ours.appender(place.fresh(), load, closing)}
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
    put = place.many(closing)
    measured = harness.rates(
        bench,
        {
            "raw": _together(put, load),
            "raw, handed over by threads": append_many.handed_over(put, load),
            "threads": append_many.threads(place.fresh(), load, closing),
            "tasks": append_many.tasks(place.fresh(), load, closing),
        },
    )
    in_a_batch, handed_over = f"raw, {TOGETHER} in a batch", f"raw, from {TOGETHER} threads"
    return [
        Figure(
            name=f"append, {TOGETHER} {kind} together, {place.name}: of {of}",
            value=statistics.median(rounds),
            unit="x",
            at_least=at_least,
            rounds=rounds,
            beside=harness.medians({name: measured[name] for name in (beside, kind)}),
        )
        for kind, beside, of, at_least in (
            ("tasks", "raw", in_a_batch, 0.3),
            ("threads", "raw, handed over by threads", handed_over, 0.3),
            ("threads", "raw", in_a_batch, None),
        )
        for rounds in [harness.ratio(measured[kind], measured[beside])]
    ]


def _turns(bench: Bench, place: Place) -> Figure:
    load = bench.first_load
    long = windows.session_of(place.fresh(), load, bench.scaled(LONG), bench.closing)
    measured = harness.rates(
        bench,
        {"long": windows.repeated(lambda: windows.one_turn(long)), "short": windows.turns(bench, place.fresh(), SHORT)},
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


def _one_row(url: str, load: Load, closing: contextlib.ExitStack) -> Slice:
    """Commit each message as a row of one table."""
    connection, rows = _table(url, closing), raw.encoded(load)
    one = "INSERT INTO messages (body) VALUES (%b)"
    return lambda seconds: harness.repeat_for(seconds, lambda: connection.execute(one, (next(rows),), prepare=True))


def _rows(url: str, closing: contextlib.ExitStack) -> Put:
    """Commit rows in one statement."""
    connection = _table(url, closing)
    many = "INSERT INTO messages (body) SELECT unnest(%b::bytea[])"
    return lambda rows: connection.execute(many, (rows,), prepare=True)


def _table(url: str, closing: contextlib.ExitStack) -> psycopg.Connection:
    connection = closing.enter_context(psycopg.connect(url, autocommit=True))
    connection.execute("CREATE TABLE IF NOT EXISTS messages (id bigserial PRIMARY KEY, body bytea)")
    return connection


def _one_entry(url: str, load: Load, closing: contextlib.ExitStack) -> Slice:
    """Add each message to one stream."""
    client, rows = closing.enter_context(redis.Redis.from_url(url)), raw.encoded(load)
    return lambda seconds: harness.repeat_for(seconds, lambda: client.xadd("raw-1", {"body": next(rows)}))


def _entries(url: str, closing: contextlib.ExitStack) -> Put:
    """Add rows to one stream, in one pipeline."""
    client = closing.enter_context(redis.Redis.from_url(url))

    def put(rows: list[bytes]) -> None:
        pipeline = client.pipeline(transaction=False)
        for row in rows:
            pipeline.xadd("raw", {"body": row})
        pipeline.execute()

    return put


def _together(put: Put, load: Load) -> Slice:
    rows = raw.encoded(load)

    def measure(seconds: float) -> tuple[int, float]:
        done, spent = harness.repeat_for(seconds, lambda: put(list(itertools.islice(rows, TOGETHER))))
        return done * TOGETHER, spent

    return measure
