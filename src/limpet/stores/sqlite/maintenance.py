"""Operations on the whole SQLite store, from rebuild and scrub to backup and repair.

Includes repeating listed erasures in a restored copy, deriving all tables again from the log,
and repairing page checksums after another SQLite program has checkpointed the file.
"""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import apsw
import msgspec

from limpet import errors, limits
from limpet.core.values.json_values import Json
from limpet.stores import chain, port, store_copy
from limpet.stores.erasure import (
    Erasure,
    ErasureCounts,
    ErasureReplay,
    StreamErasure,
    is_erased_stream,
    is_notice,
)
from limpet.stores.port import WriteLockGuard
from limpet.stores.sqlite import (
    database,
    error_mapping,
    event_erasure,
    log_writes,
    reads,
    verification,
)
from limpet.stores.sqlite.error_mapping import ErrorTranslator
from limpet.stores.sqlite.reads import (
    NUMBER_MASK,
    TENANT_SHIFT,
    SQLiteCache,
    SQLiteReader,
    first_row,
    read_integer,
)
from limpet.stores.sqlite.shared_file.anchor import Anchor, LogHead
from limpet.stores.sqlite.shared_file.commit_handoff import CommitHandoff
from limpet.stores.sqlite.shared_file.commit_hook import CommitHook
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from limpet.stores.sqlite.shared_file.write_lock import CommitSignal, ProcessWriteLock


def rewrite_file(connection: apsw.Connection, path: Path) -> None:
    """Write the database anew and empty its log; raise StoreBusy if somebody reads for too long."""
    connection.execute("VACUUM")
    connection.set_busy_timeout(int(limits.SCRUB_WAIT_S * 1000))
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError as error:
        raise errors.StoreBusy(
            f"what was erased can't be read any more, but parts of it may still be in {path}-wal: somebody"
            f" has been reading for more than {limits.SCRUB_WAIT_S:g} s.",
            hint="Let a long read (a backup, a verify, a SQLite shell) end, then erase() once more; the next opening does it too.",
            facts={"path": str(path), "pending": True},
        ) from error
    finally:
        connection.set_busy_timeout(int(limits.WRITE_LOCK_WAIT_S * 1000))


class ErasuresToRepeat:
    """What a list says of the log at hand: events that were erased elsewhere, and are here."""

    def __init__(
        self,
        connection: apsw.Connection,
        entries: list[event_erasure.ErasedListEntry],
        store_id: bytes,
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
        """Yield what has to be erased, tenant by tenant."""
        for tenant, name in verification.read_tenants(self._connection).items():
            mine = {k: cause for k, cause in self._causes.items() if k >> TENANT_SHIFT == tenant}
            if mine:
                shares = tuple(self._stream_erasures(tenant, mine, again))
                todo = again.pending_work(name)
                yield Erasure(tenant=name, streams=shares, time_us=time_us, pending_work=todo)

    def _stream_erasures(
        self, tenant: int, gone: dict[int, int], again: ErasureReplay
    ) -> Iterator[StreamErasure]:
        streams: dict[int, list[int]] = {}
        for key in sorted(gone):
            row = first_row(self._connection, self._sql["event_at"], (key,))
            assert row is not None and isinstance(row[1], int), "it was here a moment ago"
            streams.setdefault(row[1], []).append(key)
        whole = self._wholly_erased(streams, gone)
        for stream, keys in streams.items():
            row = first_row(self._connection, self._sql["stream_name"], (stream,))
            name = str(row[0]) if row else ""
            pairs = (
                []
                if stream in whole
                else [self._event_and_cause(key, gone[key], name) for key in keys]
            )
            yield StreamErasure(
                stream=name,
                expected=read_integer(self._connection, self._sql["stream_version"], (stream,)),
                kind=again.notice_kind(name),
                whole=stream in whole,
                redactions=tuple(
                    again.redactions(
                        pairs, lambda hashes: reads.read_blobs(self._connection, tenant, hashes)
                    )
                ),
            )

    def _wholly_erased(self, streams: dict[int, list[int]], gone: dict[int, int]) -> set[int]:
        """Return the streams that go whole: nothing of them stays, and no stream that stays goes on from them."""
        whole = {
            stream
            for stream, keys in streams.items()
            if self._all_events_erased(stream, keys, gone)
        }
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
        keys = (
            read_integer(self._connection, self._sql["stream_key"], (tenant, n)) for n, _ in forks
        )
        return any(key not in whole for key in keys)

    def _event_and_cause(
        self, key: int, cause: int, name: str
    ) -> tuple[port.StoredEvent, port.StoredEvent]:
        event = self._event(key, name)
        because = self._event(cause, "") if cause and cause != key else event
        return event, because

    def _event(self, key: int, name: str) -> port.StoredEvent:
        found = self._connection.execute(self._sql["event_at"], (key,)).fetchall()
        return reads.decode_events(self._connection, found, name)[0]


def _header_kind(header: apsw.SQLiteValue) -> str:
    return chain.kind_and_ordinal(header)[0] if isinstance(header, bytes) else ""


LOG_TABLES = ("store", "tenants", "streams", "events", "keys", "blobs", "bases", "notes", "erased")
"""Tables that nothing can be put in the place of."""


def check_log(path: Path, anchor: Anchor) -> Iterator[int]:
    """Yield events checked so far; raise Corrupt unless the log is as it was written."""
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


def derive_all(
    connection: apsw.Connection, path: Path, derive: port.StreamDeriver
) -> Iterator[port.Rebuilt]:
    """Make everything derived again, in an open transaction; yield what is made so far."""
    queries, made = database.statements(), port.Rebuilt()
    connection.execute(queries["clear_derived"])
    # A memory of its own: what was known of rows does not hold any more.
    batch = log_writes.AppendBatch(connection.cursor(), SQLiteCache(), bytes, careful=True)
    for tenant in verification.read_tenants(connection):
        made = msgspec.structs.replace(made, tenants=made.tenants + 1)
        blobs = functools.partial(reads.read_blobs, connection, tenant)
        for key, name in _stream_keys_and_names(connection, tenant):
            claims = projections = 0
            if not is_erased_stream(name):
                derived = derive(name, event_erasure.read_own_events(connection, key, name), blobs)
                claims = batch.write_derived(tenant, key, derived)
                projections = len(derived.projections)
            begin = reads.read_integer(connection, queries["stream_first"], (key,))
            last = reads.read_integer(connection, queries["stream_version"], (key,))
            made = port.Rebuilt(
                made.events + last - begin + 1, made.tenants, made.streams + 1,
                made.claims + claims, made.projections + projections,
            )  # fmt: skip
            yield made
    # Only what is derived says which blobs there must be.
    raise_if_faulty(path, verification.blob_faults(connection))
    connection.execute(queries["count_rebuild"])
    yield made


def _stream_keys_and_names(connection: apsw.Connection, tenant: int) -> Iterator[tuple[int, str]]:
    after = 0
    while found := connection.execute(
        database.statements()["streams_of"], (tenant, after)
    ).fetchall():
        for key, name in found:
            assert isinstance(key, int)
            after = key
            yield key, str(name)


class SQLiteMaintenance(SQLiteReader):
    """What is done to a store as a whole, on what its holder keeps open."""

    path: Path
    remarks: tuple[str, ...]
    _files: StoreFiles
    _writer: apsw.Connection
    _anchor: Anchor
    _handoff: CommitHandoff
    _random: Callable[[int], bytes]
    _error_translator: ErrorTranslator
    _store_id: bytes
    _commit_signal: CommitSignal
    _seen_data_version: int | None
    _commit_hook: CommitHook

    @abstractmethod
    def write_lock(self) -> WriteLockGuard: ...
    @abstractmethod
    def _check_open(self) -> None: ...
    @abstractmethod
    def _write_transaction(self) -> AbstractContextManager[apsw.Connection]: ...
    @abstractmethod
    def _begin(self) -> None: ...
    @abstractmethod
    def _roll_back(self) -> None: ...
    @abstractmethod
    def _commit_transaction(self) -> None: ...
    @abstractmethod
    def _abandon_writer(self) -> None: ...
    @abstractmethod
    def _renew_readers(self) -> None: ...
    @property
    @abstractmethod
    def durability(self) -> str: ...

    def verify(self) -> Iterator[int | port.Report]:
        """Check every event, blob and page, and the anchor; yield events checked so far, the report last."""
        self._check_open()
        with self._error_translator:
            yield from verification.verify_file(self.path, self._anchor, self.remarks)

    def rebuild(self, derive: port.StreamDeriver) -> Generator[int | port.Rebuilt]:
        """Prove the log, then make all that is derived again, in one transaction."""
        self._check_open()
        proved, made = 0, port.Rebuilt()
        with self._error_translator:
            for proved in check_log(self.path, self._anchor):
                yield proved
        with self._write_transaction() as writer:
            for made in derive_all(writer, self.path, derive):
                yield proved + made.events
        yield made

    def erase(self, erasure: Erasure, derive: port.StreamDeriver) -> ErasureCounts | port.Stale:
        """Take payloads out of the log in one transaction; the anchor is written before this returns."""
        with self.write_lock(), self._error_translator:
            return self._erase(erasure, derive)

    def _erase(self, erasure: Erasure, derive: port.StreamDeriver) -> ErasureCounts | port.Stale:
        try:
            self._begin()
            going = event_erasure.SQLiteErasure(self._writer, erasure, derive, self._random)
            stale = going.find_stale()
            if stale is not None:
                return stale
            gone, heads = going.run()
            slot, data = self._anchor.prepare(heads)
            self._commit_transaction()
            self._anchor.write_prepared(slot, data)
        except BaseException:
            self._abandon_writer()
            raise
        self._cache.forget_streams()
        # Told to nobody here: the next turn has to hear of it.
        self._seen_data_version = None
        return gone

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.RawEvent]:
        """Return the tenant's events with position > after as they are kept; each is checked."""
        with self._read_connection() as connection:
            base = self._cache.tenant_number(connection, tenant) << TENANT_SHIFT
            if not base or not 0 <= after < NUMBER_MASK:
                return []
            return log_writes.copy_page(connection, base, after, limit)

    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[port.RawKey]:
        """Return the tenant's idempotency keys after one, by their text."""
        with self._read_connection() as connection:
            return log_writes.copy_keys(
                connection, self._cache.tenant_number(connection, tenant), after, limit
            )

    def paste(
        self,
        tenant: str,
        events: Sequence[port.RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[port.RawKey] = (),
    ) -> None:
        """Keep events exactly as they are in one transaction; the anchor is written before this returns."""
        with self.write_lock(), self._error_translator:
            try:
                self._begin()
                pasting = log_writes.SQLiteCopyTarget(self._writer, tenant)
                fit = store_copy.plan_page(pasting, events, blobs, keys)
                if not fit:
                    return
                pasting.write_page(fit)
                slot, data = self._anchor.prepare({pasting.tenant: LogHead(*fit.head)})
                self._commit_transaction()
                self._anchor.write_prepared(slot, data)
            except BaseException:
                self._abandon_writer()
                raise
            self._cache.forget_streams()
            # Told to nobody here: the next turn has to hear of it.
            self._seen_data_version = None
            self._commit_signal.notify()

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Write the file anew and empty its log, blank the boxes, bring up the list; then nothing is pending."""
        with self.write_lock(), self._error_translator:
            waits = self._scrub(done, left)
        if waits is not None:
            raise waits

    def _scrub(self, done: bytes, left: bytes) -> errors.Error | None:
        """Return what keeps it from being through, if all else is done."""
        listed, sql = self._commit_hook.erased_list_path(self.path), self._sql
        row = first_row(self._writer, sql["pending"], ())
        if row is None or not isinstance(row[0], bytes):
            self._add_pending(left)
            return None
        rest = left + row[0].removeprefix(done)
        self._roll_back()
        try:
            event_erasure.update_erased_list(self._files, listed, self._writer, self._store_id)
            self._begin()
            self._writer.execute(sql["set_pending"], (b"\n" + rest,))
            self._commit_transaction()
            self._renew_readers()
            waits = self._commit_hook.scrub(self._writer)
            rewrite_file(self._writer, self.path)
            # It is cut off by now; where commits are not synced nothing else would make sure of that.
            self._files.sync(Path(f"{self.path}-wal"))
            self._handoff.clear_mailboxes()
            self._files.sync(self._commit_hook.lock_path(self.path))
            self._anchor.write({})
            self._begin()
            self._writer.execute(sql["put_listed"], (event_erasure.erased_list_checksum(listed),))
            rest = b"\n" + rest if waits else rest
            if rest:
                self._writer.execute(sql["set_pending"], (rest,))
            else:
                self._writer.execute(sql["clear_pending"])
            self._commit_transaction()
        except errors.StoreBusy:
            raise
        except BaseException:
            self._abandon_writer()
            raise
        finally:
            self._seen_data_version = None
        return waits

    def _add_pending(self, left: bytes) -> None:
        """Have something pending where nothing was, and so nothing is to be scrubbed."""
        if not left:
            return
        try:
            self._begin()
            self._writer.execute(self._sql["put_pending"], (left,))
            self._commit_transaction()
        except BaseException:
            self._abandon_writer()
            raise

    def _finish_erasures(self, again: ErasureReplay | None) -> None:
        """Do what a list says of a copy that was put here, and what a process that died has left to do."""
        listed, sql = self._commit_hook.erased_list_path(self.path), self._sql
        row, anew = first_row(self._writer, sql["listed"], ()), False
        if (check := event_erasure.erased_list_checksum(listed)) and (
            row is None or row[0] != check
        ):
            found = ErasuresToRepeat(
                self._writer, event_erasure.read_erased_list(listed), self._store_id
            )
            if found and again is None:
                raise errors.Refused(
                    f"{self.path} has content that was erased since this copy was made.",
                    hint="Open it with limpet.connect, which erases it again first.",
                )
            if again is not None:
                for erasure in list(found.erasures(again, again.now_us())):
                    self._erase(erasure, again.derive)
                    anew = True
        pending = first_row(self._writer, sql["pending"], ())
        if pending is not None and (anew or pending[0] in (b"", b"\n")):
            try:
                waits = self._scrub(b"\n" if pending[0] == b"\n" else b"", b"")
            except errors.StoreBusy as error:
                waits = error
            if waits is not None:
                # It stays pending, and keeps nobody from what can be read.
                self.remarks = (*self.remarks, waits.message)

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: path, size, versions, durability, counts."""
        with self._read_connection() as connection:
            facts = verification.store_status(connection, self.path)
            return {**facts, "durability": self.durability, "notes": list(self.remarks)}

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copy the store, consistent under load, to a new file; yield (pages done, pages in all)."""
        self._check_open()
        with (
            self._error_translator,
            contextlib.closing(database.connect(self.path, write=False)) as connection,
        ):
            place = Path(target).expanduser().resolve()
            yield from verification.copy_database(self._files, connection, place)


REPAIR_NOTE = (
    "page checksums did not match, as after another SQLite program has opened the store;"
    " every event was verified and everything else made anew"
)


def repair_page_checksums(
    path: str | Path, derive: port.StreamDeriver, files: StoreFiles | None = None
) -> tuple[str, ...]:
    """Rewrite a store whose log is whole; return notes on what was done. Raises Corrupt otherwise."""
    place, used = Path(path).expanduser().resolve(), files or StoreFiles()
    database.check_file_header(place)
    turns = ProcessWriteLock(used, Path(f"{place}-lock"))
    try:
        with error_mapping.translator(str(place)):
            turns.acquire(limits.WRITE_LOCK_WAIT_S)
            try:
                with contextlib.closing(_connect_unverified(place)) as connection:
                    _check_provable(connection, used, place)
                    _rebuild_derived(connection, place, derive)
                    database.enable_checkpoint_on_close(connection)
                    connection.execute("VACUUM")
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                turns.release()
    finally:
        turns.close()
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
        faults = (
            []
            if slot and slot.store_id == store_id
            else ["its anchor is missing, so nothing can prove it."]
        )
        for report in verification.verify_connection(
            connection, anchor, (), verification.CHECKSUMMED_LOG_TABLES
        ):
            faults += report.faults if isinstance(report, port.Report) else []
    raise_if_faulty(
        path, faults + _schema_faults(connection, database.check_schema_version(connection, path))
    )


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
