"""Operations on the whole SQLite store: verify, rebuild, repair, status, backup, placing a finished file.

A rebuild derives all tables again from the log. A repair rewrites page checksums after another SQLite program has
checkpointed the file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import apsw
import msgspec

from limpet import errors, limits
from limpet.core.values.validation import Json
from limpet.stores import chain, port
from limpet.stores.chain import is_erased_stream
from limpet.stores.sqlite import database, event_erasure, log_writes, reads
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT, SQLiteCache, read_head, read_integer, read_tenants
from limpet.stores.sqlite.reads import decode_event_row
from limpet.stores.sqlite.shared_file import store_files
from limpet.stores.sqlite.shared_file.store_files import Anchor, ProcessWriteLock, StoreFiles


def refuse_present(target: Path) -> None:
    """Raise InvalidRequest if a store, or something that belongs to one, is at a path: nothing is overwritten."""
    for present in files_of_store(target):
        raise errors.InvalidRequest(
            f"{present} exists already.",
            hint="Name a new file; nothing is ever overwritten.",
            facts={"exists": str(present)},
        )


def files_of_store(target: Path) -> list[Path]:
    """Return the files that exist at a store's path, and beside it under its name."""
    beside = (Path(f"{target}-{end}") for end in ("wal", "shm", "journal", "anchor"))
    return [path for path in (target, *beside) if path.exists()]


def clear_restore_folder(folder: Path) -> Path:
    """Return the path in a staging folder at which a restored store is completed; delete what an earlier try left."""
    with database.translator(str(folder)):
        shutil.rmtree(folder / "restored", ignore_errors=True)
        (folder / "restored").mkdir(mode=0o700)
    return folder / "restored" / "state.db"


def copy_erased_list(source: Path, target: Path) -> None:
    """Copy the list of erased events from one store path to another, if there is one; durable on return."""
    with database.translator(str(target)):
        listed = store_files.erased_list_path(source)
        if listed.exists():
            StoreFiles().replace_content(store_files.erased_list_path(target), listed.read_bytes())


def place_store(made: Path, target: Path) -> None:
    """Move the file of a closed store to a path where nothing is; durable on return."""
    files = StoreFiles()
    with database.translator(str(target)):
        refuse_present(target)
        if Path(f"{made}-wal").exists():
            raise errors.StoreBusy(f"{made} is in use.", hint="Nobody else is to open it until it is in its place.")
        # The list of the finished store has all entries of the target's list, and those of later erasures.
        copy_erased_list(made, target)
        files.sync(made)
        files.rename(made, target)


CHECKSUMMED_LOG_TABLES = ("tenants", "streams", "keys", "bases", "notes")
"""Tables of the log whose rows are proved by their checksums alone."""

CHECKSUMMED_TABLES = (*CHECKSUMMED_LOG_TABLES, "projections")

_EVENTS_PER_READ = 512
_BACKUP_PAGES = 256


def verify_file(path: Path, anchor: Anchor, notes: tuple[str, ...]) -> Iterator[int | port.Report]:
    try:
        with contextlib.closing(database.connect(path, write=False)) as connection:
            yield from verify_connection(connection, anchor, notes)
    except apsw.IOError as error:
        if not database.is_checksum_error(error):
            raise
        # Checked again without page checksums, to find out which data is damaged.
        unchecked = database.connect(path, write=False, verified=False)
        with contextlib.closing(unchecked) as connection:
            for step in verify_connection(connection, anchor, notes):
                if isinstance(step, port.Report):
                    found = ("a page's checksum does not match.", *step.faults)
                    yield msgspec.structs.replace(step, faults=found)
                else:
                    yield step


def verify_connection(
    connection: apsw.Connection,
    anchor: Anchor,
    notes: tuple[str, ...],
    marked: tuple[str, ...] = CHECKSUMMED_TABLES,
    tables: tuple[str, ...] = (),
) -> Iterator[int | port.Report]:
    """Check digests and links of events, gaps in streams, checksums of rows, blobs, every page, and the anchor.

    `marked` are the tables whose row checksums are checked; blobs are checked only if these are all. `tables`: SQLite
    checks the structure of these tables only.
    """
    seen, faults = 0, list[str]()
    # The anchor is read first: after the log, it could be ahead because of commits in between.
    anchored = anchor.read()
    connection.execute("BEGIN")
    try:
        named = read_tenants(connection)
        for tenant in named:
            for checked, fault in _check_events(connection, tenant):
                seen += checked
                faults += [fault] if fault else []
                yield seen
        schema = read_integer(connection, "PRAGMA user_version", ())
        faults += _stream_faults(connection, based=schema >= database.BASES_SINCE)
        faults += [f"SQLite: {said}" for said in _structure_messages(connection, tables) if said != "ok"]
        for table in (each for each in marked if database.TABLES_SINCE.get(each, 1) <= schema):
            for mark, *fields in connection.execute(database.statements()[f"marked_{table}"]):
                faults += [] if mark == chain.row_checksum(*fields) else [f"a row of {table} is damaged."]
        if schema >= database.ERASED_SINCE:
            faults += event_erasure.erasure_faults(connection)
        if marked == CHECKSUMMED_TABLES:
            faults += blob_faults(connection)
        faults += database.anchor_faults(connection, anchored, database.find_store_id(connection))[0]
    finally:
        _end_transaction(connection)
    yield port.Report(seen, len(named), tuple(faults), notes)


def log_faults(connection: apsw.Connection, *, part: bool = False) -> Iterator[str]:
    """Yield the faults of the log itself: of events, streams and erasures.

    `part`: the copy of the log is not complete, so notices of erasures may still be missing.
    """
    for tenant in read_tenants(connection):
        yield from (fault for _, fault in _check_events(connection, tenant) if fault)
    yield from _stream_faults(connection, based=True)
    if not part:
        yield from event_erasure.erasure_faults(connection)


def _stream_faults(connection: apsw.Connection, *, based: bool) -> Iterator[str]:
    """Yield missing events of streams; `based`: the schema has bases."""
    queries = database.statements()
    for stream, count, last in connection.execute(queries["holes_beside_bases" if based else "holes"]):
        yield f"stream {reads.number_in_tenant(stream):,} has {count} of {last} events."
    if based and read_integer(connection, queries["strayed_bases"], ()):
        yield "streams are said to go on from what is not there."


def _structure_messages(connection: apsw.Connection, tables: tuple[str, ...]) -> Iterator[str]:
    if not tables:
        yield from (str(text) for (text,) in connection.execute("PRAGMA integrity_check(20)"))
    for table in tables:
        found = connection.execute(database.statements()["integrity_of"], (table,))
        yield from (str(text) for (text,) in found)


def blob_faults(connection: apsw.Connection) -> list[str]:
    """Return faults of blobs: contents that do not match their hashes, and missing ones."""
    queries, faults = database.statements(), list[str]()
    for hash_, content in connection.execute(queries["every_blob"]):
        if not isinstance(hash_, bytes):
            faults.append("a row of blobs is damaged.")
        elif not isinstance(content, bytes) or not chain.blob_matches(hash_, content):
            faults.append(chain.damaged_blob_error(hash_).message)
    for event, hash_ in connection.execute(queries["lost_blobs"]):
        if isinstance(event, int) and isinstance(hash_, bytes):
            faults.append(chain.missing_blob_fault(hash_, event & NUMBER_MASK))
        else:
            faults.append("a row of blob_uses is damaged.")
    if read_integer(connection, queries["strayed_uses"], ()):
        faults.append("blobs are said to belong to events that are not there.")
    return faults


def _end_transaction(connection: apsw.Connection) -> None:
    # SQLite ends a transaction itself when it meets damage.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _check_events(connection: apsw.Connection, tenant: int) -> Iterator[tuple[int, str]]:
    before, position = chain.GENESIS_LINK, 0
    base = tenant << TENANT_SHIFT
    while chunk := list(
        connection.execute(database.statements()["read_feed"], (base | position, base | NUMBER_MASK, _EVENTS_PER_READ))
    ):
        for raw in chunk:
            row = decode_event_row(raw)
            fault = _event_fault(row, before, position + 1)
            before, position = row.link, row.address.position
            if fault:
                yield 0, fault
        yield len(chunk), ""


def _event_fault(row: chain.EventRow, before: bytes, expected: int) -> str:
    if row.address.position != expected:
        return f"events {expected:,} to {row.address.position - 1:,} are missing."
    try:
        chain.decode_event(row, "")
    except errors.Corrupt as error:
        return error.message
    if not chain.is_linked(row, before):
        return chain.damaged_event_error(row.address, "the chain breaks here").message
    return ""


def store_status(connection: apsw.Connection, path: Path) -> Mapping[str, Json]:
    """Return the facts of `Store.status` that are read from the database and its files."""
    files = (path, Path(f"{path}-wal"), Path(f"{path}-anchor"))
    counts: dict[str, dict[str, int]] = {}
    for kind, state, count in connection.execute(database.statements()["counts"]):
        counts.setdefault(str(kind), {})[str(state)] = int(str(count))
    heads = {name: read_head(connection, tenant) for tenant, name in read_tenants(connection).items()}
    return {
        "store": str(path),
        "backend": "sqlite",
        "sqlite": apsw.sqlite_lib_version(),
        "bytes": sum(os.path.getsize(f) for f in files if f.exists()),
        "bytes_free": shutil.disk_usage(path.parent).free,
        "journal_mode": connection.pragma("journal_mode"),
        "synchronous": connection.pragma("synchronous"),
        "page_checksums": connection.reserve_bytes() == database.RESERVE_BYTES,
        "schema": read_integer(connection, "PRAGMA user_version", ()),
        "events": sum(found.position for found in heads.values()),
        "blobs": read_integer(connection, database.statements()["blobs_count"], ()),
        "heads": {name: {"position": h.position, "link": h.link.hex()} for name, h in heads.items()},
        "holds": counts,
    }


def copy_database(files: StoreFiles, source: apsw.Connection, target: Path) -> Iterator[tuple[int, int]]:
    """Copy a consistent state of the store to a new file, page by page."""
    database.check_location(files, target)
    refuse_present(target)
    with _staged_copy(files, target) as fresh:
        refuse_present(target)
        source.execute("BEGIN")
        database.find_store_id(source)
        copy = apsw.Connection(str(fresh), vfs=database.CHECKSUM_VFS)
        try:
            # Pages get checksums only once the file says so itself, and a large copy is written piece by piece.
            copy.reserve_bytes("main", database.RESERVE_BYTES)
            copy.pragma("page_size", 4096)
            copy.pragma("application_id", database.APPLICATION_ID)
            with copy.backup("main", source, "main") as job:
                while not job.done:
                    job.step(_BACKUP_PAGES)
                    yield job.page_count - job.remaining, job.page_count
        finally:
            copy.close()
            _end_transaction(source)
        files.sync(fresh)
        files.rename(fresh, target)


@contextlib.contextmanager
def _staged_copy(files: StoreFiles, target: Path) -> Iterator[Path]:
    """Yield an empty file in a folder beside the target. Only one backup at a time; a killed one's file is deleted."""
    folder = target.with_name(f"{target.name}.part")
    lock, fresh = folder / "lock", folder / "copy"
    with database.translator(str(target)):
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = files.open_or_create(lock)
    try:
        # The last holder of the lock may have removed the file meanwhile.
        if not files.try_lock(fd) or files.inode_at(str(lock)) != files.inode_of(fd):
            raise errors.InvalidRequest(
                f"another backup to {target} is under way.", hint="Wait for it, or name another file."
            )
        try:
            _clear_staging(files, folder)
            files.close(files.open_or_create(fresh))
            yield fresh
        finally:
            _clear_staging(files, folder)
            files.remove(lock)
            with contextlib.suppress(OSError):
                # A restore to the same path may have its files in the folder, too.
                folder.rmdir()
    finally:
        files.close(fd)


def _clear_staging(files: StoreFiles, folder: Path) -> None:
    for left in folder.glob("copy*"):
        files.remove(left)


LOG_TABLES = ("store", "tenants", "streams", "events", "keys", "blobs", "bases", "notes", "erased")
"""Tables that can't be derived again."""


def check_log(path: Path, anchor: Anchor) -> Iterator[int]:
    """Yield the number of events checked so far; raise Corrupt if the log is damaged."""
    with contextlib.closing(database.connect(path, write=False)) as connection:
        for step in verify_connection(connection, anchor, (), CHECKSUMMED_LOG_TABLES, LOG_TABLES):
            if isinstance(step, port.Report):
                raise_if_faulty(path, step.faults)
            else:
                yield step


def raise_if_faulty(path: Path, faults: list[str] | tuple[str, ...]) -> None:
    if faults:
        raise errors.Corrupt(
            f"{path} is damaged: {faults[0]}",
            hint="Nothing was changed. `limpet verify` lists all damage; a backup can replace it.",
            facts={"path": str(path), "faults": len(faults)},
        )


def derive_all(connection: apsw.Connection, path: Path, derive: port.StreamDeriver) -> Iterator[port.Rebuilt]:
    """Derive everything again, in an open transaction; yield the counts so far."""
    queries, made = database.statements(), port.Rebuilt()
    connection.execute(queries["clear_derived"])
    # With an empty cache, because the cached row shapes of the store are stale now.
    batch = log_writes.AppendBatch(connection.cursor(), SQLiteCache(), bytes, careful=True)
    for tenant in database.read_tenants(connection):
        made = msgspec.structs.replace(made, tenants=made.tenants + 1)
        for key, name in _stream_keys_and_names(connection, tenant):
            claims = projections = 0
            if not is_erased_stream(name):
                derived = event_erasure.derive_stream(connection, key, name, derive)
                claims = batch.write_derived(tenant, key, derived)
                projections = len(derived.projections)
            begin = database.read_integer(connection, queries["stream_first"], (key,))
            last = database.read_integer(connection, queries["stream_version"], (key,))
            made = port.Rebuilt(
                made.events + last - begin + 1, made.tenants, made.streams + 1,
                made.claims + claims, made.projections + projections,
            )  # fmt: skip
            yield made
    # The derived uses say which blobs must exist, so that is checked last.
    raise_if_faulty(path, blob_faults(connection))
    connection.execute(queries["count_rebuild"])
    yield made


def _stream_keys_and_names(connection: apsw.Connection, tenant: int) -> Iterator[tuple[int, str]]:
    after = 0
    while found := connection.execute(database.statements()["streams_of"], (tenant, after)).fetchall():
        for key, name in found:
            assert isinstance(key, int)
            after = key
            yield key, str(name)


REPAIR_NOTE = (
    "page checksums did not match, as after another SQLite program has opened the store;"
    " every event was verified and everything else made anew"
)


def repair_page_checksums(
    path: str | Path, derive: port.StreamDeriver, files: StoreFiles | None = None
) -> tuple[str, ...]:
    """Rewrite a store whose log is intact, with new page checksums; return remarks. Raises Corrupt otherwise."""
    place, used = Path(path).expanduser().resolve(), files or StoreFiles()
    database.check_file_header(place)
    lock = ProcessWriteLock(used, Path(f"{place}-lock"))
    try:
        with database.translator(str(place)):
            lock.acquire(limits.WRITE_LOCK_WAIT_S)
            try:
                with contextlib.closing(database.connect(place, write=True, verified=False)) as connection:
                    database.check_schema_version(connection, place)
                    _check_provable(connection, used, place)
                    with connection:
                        database.migrate(connection, database.check_schema_version(connection, place))
                        for _ in derive_all(connection, place, derive):
                            pass
                    database.enable_checkpoint_on_close(connection)
                    connection.execute("VACUUM")
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                lock.release()
    finally:
        lock.close()
    return (REPAIR_NOTE,)


def _check_provable(connection: apsw.Connection, files: StoreFiles, path: Path) -> None:
    store_id = database.find_store_id(connection)
    with contextlib.closing(Anchor(files, Path(f"{path}-anchor"), store_id)) as anchor:
        slot, _ = anchor.read()
        faults = [] if slot and slot.store_id == store_id else ["its anchor is missing, so nothing can prove it."]
        for report in verify_connection(connection, anchor, (), CHECKSUMMED_LOG_TABLES):
            faults += report.faults if isinstance(report, port.Report) else []
    raise_if_faulty(path, faults + _schema_faults(connection, database.check_schema_version(connection, path)))


def _schema_faults(connection: apsw.Connection, version: int) -> list[str]:
    query = database.statements()["schema"]
    with contextlib.closing(apsw.Connection(":memory:")) as blank:
        blank.execute(database.schema_sql(version))
        wanted, found = (
            [(kind, name, database.minify_sql(text)) for kind, name, text in there.execute(query)]
            for there in (blank, connection)
        )
    return [] if wanted == found else ["its schema is not ours."]
