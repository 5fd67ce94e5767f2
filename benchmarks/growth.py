"""A session of 100,000 messages: appending to it, and opening it in a fresh process."""

import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import limpet
from benchmarks import fresh, harness, ours
from benchmarks.harness import Bench, Figure
from benchmarks.loads import Load
from tests.corpus import ChatMessage

LONG = 100_000
SHORT = 1_000
UNTIMED = 300
TIMED = 400
READ_AT_MOST_KIB = 1_024

PROGRAM = """
import json, sys, time
import limpet
from pathlib import Path

def read_kib():
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"]) / 1024

path, session_id = sys.argv[1:]
before = read_kib()
began = time.perf_counter()
store = limpet.connect(path)
session = store.sessions.get_session(session_id)
count = session.message_count
spent = time.perf_counter() - began
read = read_kib() - before
store.close()
print(json.dumps({"ms": spent * 1000, "read_kib": read, "count": count}))
"""


def run(bench: Bench) -> list[Figure]:
    figures = [_append(bench, bench.ram, "RAM disk"), _append(bench, bench.disk, "disk")]
    return figures + _cold_open(bench, bench.disk / "long.db")


def _append(bench: Bench, folder: Path, where: str) -> Figure:
    load = bench.first_load
    with ours.connect(folder / "long.db") as store:
        session = store.sessions.create_session(session_id="grown", user_id="ada")
        ours.fill(session, load, bench.scaled(LONG))
        harness.progress(f"{where}: a session of {session.message_count:,} messages is ready")
        messages = load.laid_end_to_end()
        measured = harness.rates(
            bench, {"long": lambda _: _append_some(session, messages), "short": _short(folder, load)}
        )
    rounds = harness.ratio(measured["short"], measured["long"])
    return Figure(
        name=f"append at {LONG:,} messages, {where}: time of that at {SHORT:,}",
        value=statistics.median(rounds),
        unit="x",
        at_most=1.2,
        rounds=rounds,
        beside=harness.medians(measured),
    )


def _short(folder: Path, load: Load) -> harness.Slice:
    """Append to a session of 1,000 messages in a store that holds nothing else, new each time."""
    number = itertools.count()

    def measure(_: float) -> tuple[int, float]:
        with ours.connect(folder / f"short-{next(number)}.db") as store:
            session = store.sessions.create_session(user_id="ada")
            messages = load.laid_end_to_end()
            session.add_messages(list(itertools.islice(messages, SHORT - UNTIMED)))
            # A new write-ahead log grows until its first checkpoint, which is slower to sync.
            for message in itertools.islice(messages, UNTIMED):
                session.add_message(message)
            return _append_some(session, messages)

    return measure


def _append_some(session: limpet.Session, messages: Iterator[ChatMessage]) -> tuple[int, float]:
    began = time.perf_counter()
    for message in itertools.islice(messages, TIMED):
        session.add_message(message)
    return TIMED, time.perf_counter() - began


def _cold_open(bench: Bench, path: Path) -> list[Figure]:
    _open_in_fresh_process(path)
    opened = [_open_in_fresh_process(path) for _ in range(bench.rounds)]
    spent = tuple(one["ms"] for one in opened)
    read = tuple(one["read_kib"] for one in opened)
    stored_kib = ours.stored_bytes(path) / 1024
    return [
        Figure(
            name=f"cold open of a session of {LONG:,} messages",
            value=statistics.median(spent),
            unit="ms",
            at_most=20,
            rounds=spent,
            beside={"messages": opened[0]["count"]},
        ),
        Figure(
            name="bytes read by that open (the history is not)",
            value=statistics.median(read),
            unit="KiB",
            at_most=READ_AT_MOST_KIB,
            rounds=read,
            beside={"store KiB": round(stored_kib)},
        ),
    ]


def _open_in_fresh_process(path: Path) -> dict[str, float]:
    return json.loads(fresh.output_of(PROGRAM, path, "grown", compiled=path.parent / "compiled"))
