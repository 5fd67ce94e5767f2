"""Page checksums that do not match, although the log is whole: prove it, rebuild the rest, say so.

A plain SQLite tool that opens a store after a crash empties the write-ahead log without renewing
page checksums. Nothing is lost then, but nothing can be taken on trust either. So everything that
the log can prove is checked, everything derived from it is made anew, and the file is rewritten.
Whatever can't be proved raises Corrupt and leaves the file as it was.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw

from limpet import limits
from limpet.store import port
from limpet.store.sqlite import checks, opening, rebuilding, rows, translate
from limpet.store.sqlite.anchor import Anchor
from limpet.store.sqlite.files import Files
from limpet.store.sqlite.turns import Turns

NOTE = (
    "page checksums did not match, as after another SQLite program has opened the store;"
    " every event was verified and everything else made anew"
)


def mend(path: str | Path, derive: port.Derive, files: Files | None = None) -> tuple[str, ...]:
    """Rewrite a store whose log is whole; return notes on what was done. Raises Corrupt otherwise."""
    place, used = Path(path).expanduser().resolve(), files or Files()
    opening.check_file(place)
    turns = Turns(used, Path(f"{place}-lock"))
    try:
        with translate.at(str(place)):
            turns.take(limits.WRITE_LOCK_WAIT_S)
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
    rebuilding.refuse(
        path, faults + _schema_faults(connection, opening.check_format(connection, path))
    )


def _schema_faults(connection: apsw.Connection, version: int) -> list[str]:
    query = opening.queries()["schema"]
    with contextlib.closing(apsw.Connection(":memory:")) as blank:
        blank.execute(opening.schema(version))
        wanted, found = (
            [(kind, name, opening.squeezed(text)) for kind, name, text in there.execute(query)]
            for there in (blank, connection)
        )
    return [] if wanted == found else ["its schema is not ours."]


def _rebuild(connection: apsw.Connection, path: Path, derive: port.Derive) -> None:
    with connection:
        opening.migrate(connection, opening.check_format(connection, path))
        for _ in rebuilding.derive_all(connection, path, derive):
            pass
