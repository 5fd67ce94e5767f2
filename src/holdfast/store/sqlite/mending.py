"""Page checksums that do not match, although the log is whole: prove it, rebuild the rest, say so.

A plain SQLite tool that opens a store after a crash empties the write-ahead log without renewing
page checksums. Nothing is lost then, but nothing can be taken on trust either. So everything that
the log can prove is checked, everything derived from it is made anew, and the file is rewritten.
Whatever can't be proved raises Corrupt and leaves the file as it was.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import apsw

from holdfast import errors, limits
from holdfast.store import chain, port
from holdfast.store.sqlite import checks, opening, reading, rows, translate, writing
from holdfast.store.sqlite.anchor import Anchor
from holdfast.store.sqlite.files import Files
from holdfast.store.sqlite.known import Known
from holdfast.store.sqlite.turns import Turns

Blobs = Callable[[Collection[bytes]], Mapping[bytes, bytes]]
"""From hashes to the contents of a tenant's blobs."""

Derive = Callable[[Iterator[port.StoredEvent], Blobs], port.Derived]
"""From all events of a stream to what is derived from them. Raises Corrupt if it lacks a blob."""

NOTE = (
    "page checksums did not match, as after another SQLite program has opened the store;"
    " every event was verified and everything else made anew"
)


def mend(path: str | Path, derive: Derive, files: Files | None = None) -> tuple[str, ...]:
    """Rewrite a store whose log is whole; return notes on what was done. Raises Corrupt otherwise."""
    place, used = Path(path).expanduser().resolve(), files or Files()
    opening.check_file(place)
    turns = Turns(used, Path(f"{place}-lock"))
    try:
        with translate.at(str(place)):
            turns.take(limits.TURN_WAIT_S)
            try:
                with contextlib.closing(_unverified(place)) as connection:
                    _prove(connection, used, place)
                    _rebuild(connection, place, derive)
                    opening.empty_log_on_close(connection)
                    connection.execute("VACUUM")
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                turns.give()
    finally:
        turns.close()
    return (NOTE,)


def _unverified(path: Path) -> apsw.Connection:
    connection = opening.connect(path, write=True, verified=False)
    opening.check_format(connection, path)
    return connection


def _prove(connection: apsw.Connection, files: Files, path: Path) -> None:
    queries = opening.queries()
    row = rows.first(connection, queries["store_id"], ())
    store_id = row[0] if row and isinstance(row[0], bytes) else b""
    with contextlib.closing(Anchor(files, Path(f"{path}-anchor"), store_id)) as anchor:
        slot, _ = anchor.read()
        faults = (
            []
            if slot and slot.store_id == store_id
            else ["its anchor is missing, so nothing can prove it."]
        )
        for report in checks.verify(connection, anchor, (), checks.PROVABLE):
            faults += report.faults if isinstance(report, port.Report) else []
    _refuse(path, faults + _schema_faults(connection, opening.check_format(connection, path)))


def _refuse(path: Path, faults: list[str]) -> None:
    if faults:
        raise errors.Corrupt(
            f"{path} is damaged: {faults[0]}",
            hint="Nothing was changed. `holdfast verify` lists all damage; a backup can replace it.",
            facts={"path": str(path), "faults": len(faults)},
        )


def _schema_faults(connection: apsw.Connection, version: int) -> list[str]:
    query = opening.queries()["schema"]
    with contextlib.closing(apsw.Connection(":memory:")) as blank:
        blank.execute(opening.schema(version))
        same = list(blank.execute(query)) == list(connection.execute(query))
    return [] if same else ["its schema is not ours."]


def _rebuild(connection: apsw.Connection, path: Path, derive: Derive) -> None:
    with connection:
        opening.migrate(connection, opening.check_format(connection, path))
        connection.execute(opening.queries()["clear_derived"])
        batch = writing.Batch(connection.cursor(), Known(), bytes, careful=True)
        for tenant in checks.tenants(connection):
            blobs = functools.partial(reading.blobs, connection, tenant)
            for key, name in _streams(connection, tenant):
                batch.derive(tenant, key, derive(_events(connection, key, name), blobs))
        # Only what is derived says which blobs there must be.
        _refuse(path, checks.blob_faults(connection))


def _streams(connection: apsw.Connection, tenant: int) -> Iterator[tuple[int, str]]:
    after = 0
    while found := connection.execute(opening.queries()["streams_of"], (tenant, after)).fetchall():
        for key, name in found:
            assert isinstance(key, int)
            after = key
            yield key, str(name)


def _events(connection: apsw.Connection, key: int, name: str) -> Iterator[port.StoredEvent]:
    after = 0
    query = opening.queries()["read_stream"]
    while found := connection.execute(query, (key, after, 1 << 60, limits.READ_CHUNK)).fetchall():
        for row in found:
            event = chain.opened(rows.row_of(row), name)
            after = event.version
            yield event
