"""The yardstick: what SQLite itself can do, with one table and one row for each commit."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw

from benchmarks import harness
from benchmarks.loads import Load
from tests import corpus


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


def encoded(load: Load) -> Iterator[bytes]:
    whole = [corpus.compact_json(m) for c in load.conversations for m in c]
    while True:
        yield from whole
