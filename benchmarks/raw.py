"""The yardstick: what SQLite itself can do, with one table and one row for each commit; and what threads can hand over."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from benchmarks import harness
from benchmarks.loads import Load
from holdfast.testing import corpus


def appender(path: Path, load: Load, closing: contextlib.ExitStack) -> harness.Slice:
    """Commit each message's JSON, encoded beforehand, as one row; WAL and synchronous FULL."""
    # The plain VFS by name: the checksumming one becomes the default where it is loaded.
    connection = apsw.Connection(str(path), vfs="unix")
    closing.callback(connection.close)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    assert connection.execute("PRAGMA journal_mode").get == "wal"
    assert connection.execute("PRAGMA synchronous").get == 2
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    rows = encoded(load)

    def insert() -> None:
        connection.execute("INSERT INTO messages (body) VALUES (?)", (next(rows),))

    return lambda seconds: harness.repeat_for(seconds, insert)


def handed_over(put: Callable[[list[bytes]], object], load: Load, callers: int) -> harness.Slice:
    """Have threads hand over a row each, put all of them together, tell each thread, and again.

    They do nothing else: this is what callers in threads can have at most, whatever is done with their rows.
    """
    each = [encoded(load) for _ in range(callers)]
    rows = [b""] * callers

    def measure(seconds: float) -> tuple[int, float]:
        mutex, all_here = threading.Lock(), _taken()
        told = [_taken() for _ in range(callers)]
        here, ended = 0, False

        def call(at: int) -> None:
            nonlocal here
            while not ended:
                rows[at] = next(each[at])
                with mutex:
                    here += 1
                    last = here == callers
                if last:
                    all_here.release()
                told[at].acquire()

        threads = [threading.Thread(target=call, args=(at,)) for at in range(callers)]
        done, began = 0, time.perf_counter()
        for thread in threads:
            thread.start()
        while not ended:
            all_here.acquire()
            put(list(rows))
            here, done = 0, done + callers
            ended = time.perf_counter() - began > seconds
            for lock in told:
                lock.release()
        for thread in threads:
            thread.join()
        return done, time.perf_counter() - began

    return measure


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def encoded(load: Load) -> Iterator[bytes]:
    whole = [corpus.compact_json(m) for c in load.conversations for m in c]
    while True:
        yield from whole
