"""The archive: searching one user's 10,000 of 1,000,000 messages, its bytes, and what it costs those who append."""

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

import limpet
from benchmarks import harness, ours
from benchmarks.harness import Bench, Figure
from benchmarks.loads import Load
from limpet.core.values.memory_records import TenantUser
from limpet.memory.index import inverted_index
from limpet.memory.index.inverted_index import ArchiveIndex, IndexCursor
from limpet.memory.index.terms import archive_text
from limpet.memory.index_store import IndexStore, PutRow, encode_key
from limpet.stores import port
from tests import corpus

MESSAGES = 1_000_000
OWN = 10_000
QUERIES = 200
COMMIT = 100

INDEXER = """
import sys, time
import limpet

with limpet.connect(sys.argv[1]) as store:
    print("ready", flush=True)
    while True:
        if not store.archive.task.step("default"):
            time.sleep(0.25)
"""


def run(bench: Bench) -> list[Figure]:
    return [*_searching(bench), *_bytes(bench), *_appending(bench)]


def _searching(bench: Bench) -> list[Figure]:
    path = bench.ram / "million.db"
    users = max(2, bench.scaled(MESSAGES) // OWN)
    with ours.connect(path) as store:
        texts = _fill(store, users)
        rng = random.Random(7)
        queries = [_query(rng, rng.choice(texts)) for _ in range(QUERIES)]
        p95s: list[float] = []
        busy: list[float] = []
        for _ in range(bench.rounds):
            walls, cpus = zip(*(_timed(store, query) for query in queries), strict=True)
            p95s.append(statistics.quantiles(walls, n=20)[-1])
            busy.append(statistics.quantiles(cpus, n=20)[-1])
        size = _shelf(store).size() / 2**20
    return [
        Figure(
            name=f"search by a user with {OWN:,} of {MESSAGES:,} messages, p95",
            value=statistics.median(p95s),
            unit="ms",
            at_most=20,
            rounds=tuple(p95s),
            beside={"CPU ms": round(statistics.median(busy), 2), "index MiB": round(size)},
        )
    ]


def _timed(store: limpet.Limpet, query: str) -> tuple[float, float]:
    began, busy = time.perf_counter(), time.process_time()
    found = store.archive.search(query, user_id="user-0")
    spent = (time.perf_counter() - began) * 1000, (time.process_time() - busy) * 1000
    assert found and not found.behind
    return spent


def _query(rng: random.Random, text: str) -> str:
    """Two to six words that stand somewhere in one message."""
    words = [word for word in text.split() if any(char.isalnum() for char in word)]
    at = rng.randrange(max(1, len(words) - 6))
    return " ".join(words[at : at + rng.randint(2, 6)]) or "booking"


def _fill(store: limpet.Limpet, users: int) -> list[str]:
    """Give one user messages in the ordinary way, and the others copies of them, below the engine."""
    said = 0
    for conversation in corpus.conversations(5, OWN):
        store.sessions.create_session(user_id="user-0").add_messages(conversation)
        said += len(conversation)
        if said >= OWN:
            break
    while not store.archive.catch_up():
        pass
    texts = [
        archive_text(message)
        for row in store.sessions.list_sessions(limit=50, user_id="user-0")
        for message in store.sessions.get_session(row["id"]).messages
    ]
    _copy_log(store, users)
    _copy_index(store, users)
    return [text for text in texts if text.strip()]


def _copy_log(store: limpet.Limpet, users: int) -> None:
    log = store._opened.engine.store
    whole = list(_pages(log))
    streams: dict[str, list[port.NewEvent]] = {}
    for event in whole:
        streams.setdefault(event.stream, []).append(
            port.NewEvent(
                event.kind, event.schema, event.time_us, event.payload or b"", event.ordinal,
                event.tokens, event.counter,
            )
        )  # fmt: skip
    for user in range(1, users):
        appends = [
            port.Append(tenant="default", writes=(port.StreamWrite(f"{stream}-{user}", 0, tuple(events)),))
            for stream, events in streams.items()
        ]
        for start in range(0, len(appends), COMMIT):
            with log.write_lock():
                log.commit(appends[start : start + COMMIT])
        if user % 20 == 0:
            harness.progress(f"{user} of {users} users' messages in the log")


def _pages(log: port.Store) -> Iterator[port.StoredEvent]:
    after = 0
    while page := log.feed("default", after=after, limit=1000):
        yield from page
        after = page[-1].position


def _copy_index(store: limpet.Limpet, users: int) -> None:
    """Give the other users the first one's rows, and say that all of the log is in."""
    shelf = _shelf(store)
    rows = ArchiveIndex(shelf)
    mine = rows.owner(TenantUser("default", "user-0"))
    assert mine is not None
    prefix = encode_key(mine)
    held = [
        (book, name[len(prefix) :], value)
        for book in inverted_index.OWNER_TABLES
        for name, value in shelf.scan(book, *inverted_index.owner_key_range(mine), limit=10**9)
    ]
    for user in range(1, users):
        first = encode_key(mine + user)
        shelf.write(
            [
                PutRow(
                    inverted_index.OWNERS,
                    encode_key("default", f"user-{user}"),
                    inverted_index.encode_number(mine + user),
                ),
                *(PutRow(book, first + rest, value) for book, rest, value in held),
            ]
        )
    end = rows.cursor("default")[0].position + store.archive.behind()
    last = store._opened.engine.store.feed("default", after=end - 1, limit=1)[0]
    cursor = IndexCursor(position=last.position, link=last.link)
    shelf.write([PutRow(inverted_index.CURSORS, encode_key("default"), msgspec.msgpack.encode(cursor))])


def _shelf(store: limpet.Limpet) -> IndexStore:
    return store._opened.index_store()


def _bytes(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for load in bench.loads:
        path = bench.ram / f"{load.name}.db"
        with ours.connect(path) as store:
            for conversation in load.conversations:
                session = store.sessions.create_session(user_id="ada")
                for message in conversation:
                    session.add_message(message)
            while not store.archive.catch_up():
                pass
        plain, own = load.json_bytes(), Path(f"{path}-memory").stat().st_size
        figures.append(
            Figure(
                name=f"bytes on disk with the archive, {load.name}: of the messages' JSON",
                value=ours.stored_bytes(path) / plain,
                unit="x",
                at_most=2.8,
                beside={"archive alone": round(own / plain, 3)},
            )
        )
    return figures


def _appending(bench: Bench) -> list[Figure]:
    load = bench.first_load
    alone = ours.appender(bench.disk / "alone.db", load, bench.closing)
    followed, indexer, store = _followed(bench, load)
    cpu_began = _cpu_s(indexer)
    measured = harness.rates(bench, {"alone": alone, "followed": followed})
    spent = _cpu_s(indexer) - cpu_began
    os.kill(indexer.pid, signal.SIGCONT)
    until = time.perf_counter() + 30
    while store.archive.behind() and time.perf_counter() < until:
        time.sleep(0.05)
    taken = ArchiveIndex(_shelf(store)).cursor("default")[0].position
    rounds = harness.ratio(measured["followed"], measured["alone"])
    return [
        Figure(
            name="appends while another process indexes: of appends alone, disk",
            value=statistics.median(rounds),
            unit="x",
            at_least=0.9,
            rounds=rounds,
            beside=harness.medians(measured) | {"indexing CPU us": round(spent / taken * 1e6)},
        )
    ]


def _followed(bench: Bench, load: Load) -> tuple[harness.Slice, subprocess.Popen[str], limpet.Limpet]:
    """An appender whose log another process takes in, only while it appends."""
    path = bench.disk / "followed.db"
    store = bench.closing.enter_context(ours.connect(path))
    session = store.sessions.create_session(user_id="ada")
    append = ours.session_appender(session, load.laid_end_to_end())
    command = [sys.executable, "-c", INDEXER, str(path)]
    indexer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    bench.closing.callback(_end, indexer)
    assert indexer.stdout is not None
    indexer.stdout.readline()
    os.kill(indexer.pid, signal.SIGSTOP)

    def slice_(seconds: float) -> tuple[int, float]:
        os.kill(indexer.pid, signal.SIGCONT)
        try:
            return append(seconds)
        finally:
            os.kill(indexer.pid, signal.SIGSTOP)

    return slice_, indexer, store


def _end(indexer: subprocess.Popen[str]) -> None:
    indexer.kill()
    indexer.wait()
    if indexer.stdout is not None:
        with contextlib.suppress(OSError):
            indexer.stdout.close()


def _cpu_s(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
