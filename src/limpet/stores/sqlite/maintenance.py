"""Operations on the whole SQLite store, from rebuild and scrub to backup and repair.

Includes repeating listed erasures in a restored copy, deriving all tables again from the log,
and repairing page checksums after another SQLite program has checkpointed the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from limpet import errors, limits
from limpet.stores import chain, port
from limpet.stores.erasure import Erasure, ErasureReplay, StreamErasure, is_erased_stream, is_notice
from limpet.stores.sqlite import database, error_mapping, event_erasure, log_writes, reads, verification
from limpet.stores.sqlite.reads import TENANT_SHIFT, SQLiteCache, first_row, read_integer
from limpet.stores.sqlite.shared_file.anchor import Anchor
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from limpet.stores.sqlite.shared_file.write_lock import ProcessWriteLock


def rewrite_file(connection: apsw.Connection, path: Path) -> None:
    """Rewrite the database and empty its log; raise StoreBusy if a reader holds on for too long."""
    connection.execute("VACUUM")
    connection.set_busy_timeout(int(limits.SCRUB_WAIT_S * 1000))
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError as error:
        raise errors.StoreBusy(
            f"what was erased can't be read any more, but parts of it may still be in {path}-wal: a program"
            f" has been reading it for more than {limits.SCRUB_WAIT_S:g} s.",
            hint="Let a long read (a backup, a verify, a SQLite shell) end, then erase() once more; the next opening does it too.",
            facts={"path": str(path), "pending": True},
        ) from error
    finally:
        connection.set_busy_timeout(int(limits.WRITE_LOCK_WAIT_S * 1000))


class ErasuresToRepeat:
    """Events of this log that the erased list names and that still have their payload, as in a restored backup."""

    def __init__(
        self, connection: apsw.Connection, entries: list[event_erasure.ErasedListEntry], store_id: bytes
    ) -> None:
        self._connection = connection
        self._sql = database.statements()
        self._causes: dict[int, int] = {}
        for entry in entries:
            base = entry.tenant << TENANT_SHIFT
            for position, link in entry.events if entry.store == store_id else ():
                if self._is_here(base | position, link):
                    self._causes[base | position] = base | entry.cause if entry.cause else 0

    def _is_here(self, key: int, link: bytes) -> bool:
        row = first_row(self._connection, self._sql["event_at"], (key,))
        here = row is not None and isinstance(row[7], bytes) and row[7].startswith(link)
        return here and row is not None and row[4] is not None

    def __bool__(self) -> bool:
        return bool(self._causes)

    def erasures(self, again: ErasureReplay, time_us: int) -> Iterator[Erasure]:
        """Yield the erasures to repeat, one for each tenant."""
        for tenant, name in verification.read_tenants(self._connection).items():
            mine = {k: cause for k, cause in self._causes.items() if k >> TENANT_SHIFT == tenant}
            if mine:
                shares = tuple(self._stream_erasures(tenant, mine, again))
                todo = again.pending_work(name)
                yield Erasure(tenant=name, streams=shares, time_us=time_us, pending_work=todo)

    def _stream_erasures(self, tenant: int, gone: dict[int, int], again: ErasureReplay) -> Iterator[StreamErasure]:
        streams: dict[int, list[int]] = {}
        for key in sorted(gone):
            row = first_row(self._connection, self._sql["event_at"], (key,))
            assert row is not None and isinstance(row[1], int), "the constructor found it"
            streams.setdefault(row[1], []).append(key)
        whole = self._wholly_erased(streams, gone)
        for stream, keys in streams.items():
            row = first_row(self._connection, self._sql["stream_name"], (stream,))
            name = str(row[0]) if row else ""
            pairs = [] if stream in whole else [self._event_and_cause(key, gone[key], name) for key in keys]
            yield StreamErasure(
                stream=name,
                expected=read_integer(self._connection, self._sql["stream_version"], (stream,)),
                kind=again.notice_kind(name),
                whole=stream in whole,
                redactions=tuple(
                    again.redactions(pairs, lambda hashes: reads.read_blobs(self._connection, tenant, hashes))
                ),
            )

    def _wholly_erased(self, streams: dict[int, list[int]], gone: dict[int, int]) -> set[int]:
        """Return the streams to erase completely: no event of them stays, and no stream that stays has them as its base."""
        whole = {stream for stream, keys in streams.items() if self._all_events_erased(stream, keys, gone)}
        while True:
            kept = {s for s in whole if not self._is_base_of_kept(s, whole)}
            if kept == whole:
                return whole
            whole = kept

    def _all_events_erased(self, stream: int, keys: list[int], gone: dict[int, int]) -> bool:
        if any(gone[key] for key in keys):
            return False
        there = self._connection.execute(self._sql["own_events"], (stream,)).fetchall()
        rest = (h for key, h, _, blank in there if key not in gone and not blank)
        return all(is_notice(_header_kind(header)) for header in rest)

    def _is_base_of_kept(self, stream: int, whole: set[int]) -> bool:
        forks = reads.read_forks(self._connection, stream)
        tenant = stream >> TENANT_SHIFT
        keys = (read_integer(self._connection, self._sql["stream_key"], (tenant, n)) for n, _ in forks)
        return any(key not in whole for key in keys)

    def _event_and_cause(self, key: int, cause: int, name: str) -> tuple[port.StoredEvent, port.StoredEvent]:
        event = self._event(key, name)
        because = self._event(cause, "") if cause and cause != key else event
        return event, because

    def _event(self, key: int, name: str) -> port.StoredEvent:
        found = self._connection.execute(self._sql["event_at"], (key,)).fetchall()
        return reads.decode_events(self._connection, found, name)[0]


def _header_kind(header: apsw.SQLiteValue) -> str:
    return chain.kind_and_ordinal(header)[0] if isinstance(header, bytes) else ""


LOG_TABLES = ("store", "tenants", "streams", "events", "keys", "blobs", "bases", "notes", "erased")
"""Tables that can't be derived again."""


def check_log(path: Path, anchor: Anchor) -> Iterator[int]:
    """Yield the number of events checked so far; raise Corrupt if the log is damaged."""
    with contextlib.closing(database.connect(path, write=False)) as connection:
        for step in verification.verify_connection(
            connection, anchor, (), verification.CHECKSUMMED_LOG_TABLES, LOG_TABLES
        ):
            if isinstance(step, port.Report):
                raise_if_faulty(path, step.faults)
            else:
                yield step


def raise_if_faulty(path: Path, faults: list[str] | tuple[str, ...]) -> None:
    """Raise Corrupt if there are faults."""
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
    # An empty cache: what the store cached of rows is stale now.
    batch = log_writes.AppendBatch(connection.cursor(), SQLiteCache(), bytes, careful=True)
    for tenant in verification.read_tenants(connection):
        made = msgspec.structs.replace(made, tenants=made.tenants + 1)
        for key, name in _stream_keys_and_names(connection, tenant):
            claims = projections = 0
            if not is_erased_stream(name):
                derived = event_erasure.derive_stream(connection, key, name, derive)
                claims = batch.write_derived(tenant, key, derived)
                projections = len(derived.projections)
            begin = reads.read_integer(connection, queries["stream_first"], (key,))
            last = reads.read_integer(connection, queries["stream_version"], (key,))
            made = port.Rebuilt(
                made.events + last - begin + 1, made.tenants, made.streams + 1,
                made.claims + claims, made.projections + projections,
            )  # fmt: skip
            yield made
    # The derived uses say which blobs must exist, so that is checked last.
    raise_if_faulty(path, verification.blob_faults(connection))
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
        with error_mapping.translator(str(place)):
            lock.acquire(limits.WRITE_LOCK_WAIT_S)
            try:
                with contextlib.closing(_connect_unverified(place)) as connection:
                    _check_provable(connection, used, place)
                    _rebuild_derived(connection, place, derive)
                    database.enable_checkpoint_on_close(connection)
                    connection.execute("VACUUM")
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                lock.release()
    finally:
        lock.close()
    return (REPAIR_NOTE,)


def _connect_unverified(path: Path) -> apsw.Connection:
    connection = database.connect(path, write=True, verified=False)
    database.check_schema_version(connection, path)
    return connection


def _check_provable(connection: apsw.Connection, files: StoreFiles, path: Path) -> None:
    queries = database.statements()
    row = reads.first_row(connection, queries["store_id"], ())
    store_id = row[0] if row and isinstance(row[0], bytes) else b""
    with contextlib.closing(Anchor(files, Path(f"{path}-anchor"), store_id)) as anchor:
        slot, _ = anchor.read()
        faults = [] if slot and slot.store_id == store_id else ["its anchor is missing, so nothing can prove it."]
        for report in verification.verify_connection(connection, anchor, (), verification.CHECKSUMMED_LOG_TABLES):
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


def _rebuild_derived(connection: apsw.Connection, path: Path, derive: port.StreamDeriver) -> None:
    with connection:
        database.migrate(connection, database.check_schema_version(connection, path))
        for _ in derive_all(connection, path, derive):
            pass
