"""The store on one SQLite file: write lock, commits, notes, opening and closing.

All writes go through one connection, used by the holder of the write lock. Reads go through a
small pool, or through the writing connection while the caller's thread holds the write lock, so
that a decision sees exactly the state it appends to. The promises are in `limpet.stores.port`.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from limpet import errors, limits
from limpet.stores import port
from limpet.stores.chain import RandomPool
from limpet.stores.erasure import ErasureReplay
from limpet.stores.port import WriteLockGuard, check_note
from limpet.stores.sqlite import database, error_mapping, log_writes, verification
from limpet.stores.sqlite.error_mapping import ErrorTranslator
from limpet.stores.sqlite.maintenance import SQLiteMaintenance
from limpet.stores.sqlite.reads import (
    NUMBER_MASK,
    TENANT_SHIFT,
    ReadConnectionPool,
    SQLiteCache,
    SQLiteReader,
    decode_head,
    first_row,
    read_integer,
    row_checksum,
)
from limpet.stores.sqlite.shared_file.anchor import Anchor
from limpet.stores.sqlite.shared_file.commit_handoff import CommitHandoff
from limpet.stores.sqlite.shared_file.commit_hook import CommitHook
from limpet.stores.sqlite.shared_file.file_identity import DeviceInode, FileIdentity
from limpet.stores.sqlite.shared_file.store_files import MEMORY_FILE_SYSTEMS, StoreFiles
from limpet.stores.sqlite.shared_file.write_lock import CommitSignal, ProcessWriteLock

_VERSION_COUNTER_NAME = ""


class SQLiteNotes(SQLiteReader):
    """The verbs of the port about notes."""

    _commit_signal: CommitSignal

    @abstractmethod
    def _write_transaction(
        self, *, quietly: bool = False
    ) -> AbstractContextManager[apsw.Connection]:
        """A turn and a transaction for what is no append."""

    def note(self, tenant: str, name: str) -> port.Note | None:
        """Return a note, None if it is not there."""
        check_note(name)
        with self._read_connection() as connection:
            return self._read_note(connection, tenant, name)

    def _read_note(self, connection: apsw.Connection, tenant: str, name: str) -> port.Note | None:
        row = first_row(connection, self._sql["note"], (tenant, name))
        return _decode_note(tenant, row) if row else None

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put or drop a note if it is at a version; return whether it was."""
        check_note(name, value)
        with self._write_transaction(quietly=True) as writer:
            before = self._read_note(writer, tenant, name)
            if (before.version if before else 0) != expected:
                return False
            if value is None:
                writer.execute(self._sql["drop_note"], (tenant, name))
                return True
            counted = self._read_note(writer, tenant, _VERSION_COUNTER_NAME)
            version = (counted.version if counted else 0) + 1
            for row in ((_VERSION_COUNTER_NAME, version, b""), (name, version, value)):
                writer.execute(self._sql["put_note"], (tenant, *row, row_checksum(tenant, *row)))
            return True

    def notes(
        self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256
    ) -> list[tuple[str, port.Note]]:
        """Return notes whose names begin with a prefix, those after a name, by name."""
        with self._read_connection() as connection:
            found = connection.execute(
                self._sql["notes"], (tenant, prefix, after, limit)
            ).fetchall()
        # Names that begin alike stand together, so that those that do not come last.
        named = ((str(row[0]), row) for row in found)
        return [(name, _decode_note(tenant, row)) for name, row in named if name.startswith(prefix)]

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True as soon as the feed has a position > after; False when the time is up."""

        def there() -> bool:
            with self._read_connection() as connection:
                base = self._cache.tenant_number(connection, tenant) << TENANT_SHIFT
                if not base:
                    return False
                row = first_row(connection, self._sql["head"], (base, base | NUMBER_MASK))
                return decode_head(row).position > after

        return self._commit_signal.wait(there, timeout_s)


def _decode_note(tenant: str, row: tuple[apsw.SQLiteValue, ...]) -> port.Note:
    match row:
        case (str(name), int(version), bytes(value), bytes(check)) if check == row_checksum(
            tenant, name, version, value
        ):
            return port.Note(value, version)
        case _:
            raise errors.Corrupt("a stored note is not what was written.", facts={"tenant": tenant})


class SQLiteStore(SQLiteMaintenance, SQLiteNotes):
    """A store on one SQLite file, for many threads and processes. Made by `open`."""

    def __init__(
        self,
        path: Path,
        *,
        files: StoreFiles,
        random: Callable[[int], bytes],
        again: ErasureReplay | None = None,
        witness: CommitHook | None = None,
    ) -> None:
        self.path = path
        self._commit_hook = witness or CommitHook()
        self._files = files
        self._random = RandomPool(random)
        self._sql = database.statements()
        self._error_translator = error_mapping.translator(str(path))
        self._thread_lock = threading.RLock()
        self._holder: int | None = None
        self._cache = SQLiteCache()
        self._file_identity = FileIdentity(files, path)
        self.remarks = ()
        self._closed = self._broken = False
        self._seen_data_version: int | None = None
        self._cache_epoch = 0
        self._process_lock = ProcessWriteLock(files, self._commit_hook.lock_path(path))
        self._write_lock = WriteLockGuard(self.acquire_write_lock, self.release_write_lock)
        self._handoff = CommitHandoff(files, self._process_lock, random)
        self._commit_signal = CommitSignal()
        self._readers = ReadConnectionPool(lambda: database.connect(path, write=False))
        try:
            self._open(again)
        except BaseException:
            self._process_lock.close()
            self._commit_hook.close()
            raise
        self._error_translator = ErrorTranslator(self._translate_error)

    def _open(self, again: ErasureReplay | None) -> None:
        with self._error_translator:
            self._process_lock.acquire(limits.WRITE_LOCK_WAIT_S)
            try:
                if not self.path.exists() or not self.path.stat().st_size:
                    made = self._commit_hook.store_id_for_new(self._random(16))
                    database.create_store(self._files, self.path, made)
                had_log = self._file_identity.has_log
                with contextlib.ExitStack() as undo:
                    self._writer, found = self._connect_writer()
                    undo.callback(self._writer.close)
                    self._cursor = self._writer.cursor()
                    store_id = self._store_id = database.read_store_id(self._writer, self.path)
                    self._anchor = Anchor(self._files, Path(f"{self.path}-anchor"), store_id)
                    undo.callback(self._anchor.close)
                    verification.check_foreign_checkpoint(
                        self._writer, self._anchor, had_log=had_log
                    )
                    told = self._commit_hook.opened(self._writer)
                    noted = verification.compare_anchor(self._writer, self._anchor, store_id)
                    self.remarks = (*told, *noted) if self._commit_hook.reports_anchor else told
                    database.enable_checkpoint_on_close(self._writer)
                    self._file_identity.accept(found)
                    self._update_cache_epoch()
                    self._finish_erasures(again)
                    undo.pop_all()
            finally:
                self._process_lock.release()

    def _connect_writer(self) -> tuple[apsw.Connection, tuple[DeviceInode, DeviceInode]]:
        writer = database.connect(self.path, write=True, synchronous=self._commit_hook.synchronous)
        try:
            database.migrate(writer, database.check_schema_version(writer, self.path))
            self._commit_hook.attach(writer)
        except BaseException:
            writer.close()
            raise
        return writer, self._file_identity.read_inodes()

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return not self._closed

    @property
    def durability(self) -> str:
        """`power-loss`: WAL with synchronous FULL, read back at opening; less on a RAM disk."""
        return (
            "process-crash"
            if self._files.file_system_type(self.path.parent) in MEMORY_FILE_SYSTEMS
            else "power-loss"
        )

    def write_lock(self) -> WriteLockGuard:
        """Hold the turn among this process's threads and among processes; yield whether it was ours last."""
        return self._write_lock

    def acquire_write_lock(self) -> bool:
        """Take the turn, for `turn`; whatever happens, it is either taken or given back."""
        me = threading.get_ident()
        assert self._holder != me, "this thread holds the turn already"
        try:
            # It may be here already, if it came while something was handed over.
            here = self._owns_thread_lock()
            if not here:
                self._thread_lock.acquire()
                self._check_open()
            with self._error_translator:
                if not here:
                    self._process_lock.acquire(limits.WRITE_LOCK_WAIT_S)
                self._holder = me
                return self._caches_are_valid()
        except BaseException:
            self.release_write_lock()
            raise

    def _owns_thread_lock(self) -> bool:
        return self._thread_lock._is_owned()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def release_write_lock(self) -> None:
        """Give the turn back if this thread holds it still."""
        if not self._owns_thread_lock():
            return
        try:
            self._roll_back()
        except apsw.Error:
            self._abandon_writer()
        finally:
            self._holder = None
            try:
                # Giving back a lock that is not held does no harm; a closed store has none.
                if not self._closed:
                    self._process_lock.release()
            finally:
                self._thread_lock.release()

    def is_unchanged(self, tenant: str) -> bool:  # noqa: ARG002 - the port's parameter
        """Always: nobody else is let in."""
        return True

    @property
    def contended(self) -> bool:
        """Whether other processes had the turn lately when it was wanted."""
        return self._process_lock.contention > 0

    def hand_off(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:
        """Have whoever holds the turn commit appends; None if nobody did, and `turn` has to follow."""
        try:
            self._thread_lock.acquire()
            self._check_open()
            with self._error_translator:
                outcomes, taken = self._handoff.hand_off(appends)
            if not taken:
                self._thread_lock.release()
            self._commit_signal.notify()
            return outcomes
        except BaseException:
            self.release_write_lock()
            raise

    def _caches_are_valid(self) -> bool:
        self._begin()
        seen = self._writer.data_version("main")
        while self._commit_hook.catch_up(self._writer, others=seen != self._seen_data_version):
            # What one left who died in between is brought to the disk here before anything is decided.
            self._cursor.execute("COMMIT")
            self._seen_data_version = None
            self._begin()
            seen = self._writer.data_version("main")
        if seen == self._seen_data_version:
            return True
        database.check_schema_version(self._writer, self.path)
        self._cache.forget_heads()
        self._update_cache_epoch()
        # Last: whoever is interrupted before has not noticed it yet.
        self._seen_data_version = seen
        return False

    def _update_cache_epoch(self) -> None:
        rebuilt = read_integer(self._writer, self._sql["rebuilt"], ())
        if rebuilt != self._cache_epoch or not self._handoff.has_layout:
            self._cache.forget_streams()
            self._handoff.set_layout(
                database.SCHEMA_VERSION, self._file_identity.database_inode, rebuilt
            )
            self._cache_epoch = rebuilt

    def _begin(self) -> None:
        # One transaction over everything that is read to decide and then appended: each statement
        # outside one would take and drop SQLite's own locks.
        if self._broken:
            self._reconnect()
        if not self._writer.in_transaction:
            self._file_identity.check_if_due()
            if not database.try_begin(self._cursor):
                self._abandon_writer()
                self._reconnect()
                database.try_begin(self._cursor)

    def _reconnect(self) -> None:
        # Only to the very file that was open, and only if it has what was acknowledged: whatever
        # lies at the path by now is not taken on trust.
        self._file_identity.check_database()
        with contextlib.ExitStack() as undo:
            writer, found = self._connect_writer()
            undo.callback(writer.close)
            self._commit_hook.opened(writer)
            verification.compare_anchor(writer, self._anchor, self._store_id)
            database.enable_checkpoint_on_close(writer)
            undo.pop_all()
        self._file_identity.accept(found)
        self._writer, self._cursor = writer, writer.cursor()
        self._broken, self._seen_data_version = False, None

    def _roll_back(self) -> None:
        if not self._broken and self._writer.in_transaction:
            self._cursor.execute("ROLLBACK")
            self._commit_hook.rolled_back()

    def _commit_transaction(self) -> None:
        try:
            self._commit_hook.commit(self._writer)
            # A version counts own commits too; whoever is interrupted in between takes it for another's.
            self._cursor.execute("COMMIT")
        except error_mapping.DRIVER_ERRORS as error:
            # Whoever has the turn next brings it up: to say that nothing was written would be untrue.
            if self._commit_hook.kept:
                raise error_mapping.unknown_outcome_error(
                    f"{self.path} can't be written ({error})"
                ) from error
            raise
        self._seen_data_version = self._writer.data_version("main")

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        """Commit appends in one transaction; the anchor is written before this returns."""
        assert self._holder == threading.get_ident(), "commit belongs inside turn()"
        with self._error_translator:
            try:
                return self._commit_with_handed_off(appends)
            except BaseException:
                self._abandon_writer()
                raise

    def _commit_with_handed_off(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        parcels = self._handoff.collect()
        if not parcels:
            return self._append_all(appends)
        handed = [append for parcel in parcels for append in parcel.appends]
        outcomes = self._append_all([*appends, *handed])
        self._handoff.answer(parcels, outcomes[len(appends) :])
        return outcomes[: len(appends)]

    def open_pipeline(self) -> None:
        """A commit is over when it returns: there is nothing to wait for meanwhile."""

    def take_handed_off(self) -> list[tuple[str, str]]:
        """Return tenant and stream of what was committed for other processes since this was asked."""
        return self._handoff.take_handed_off()

    def _append_all(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        for careful in (False, True):
            self._begin()
            batch = log_writes.AppendBatch(self._cursor, self._cache, self._random, careful=careful)
            outcomes = [batch.append(append) for append in appends]
            if batch.flush():
                break
            self._roll_back()
            self._cache.forget_hints()
        if not batch.heads:
            self._cache.forget_hints()
            return outcomes
        slot, data = self._anchor.prepare(batch.heads, alone=self._cache.anchor_is_current)
        self._commit_transaction()
        self._cache.keep_new()
        self._file_identity.check()
        try:
            self._anchor.write_prepared(slot, data)
        except OSError as error:
            raise error_mapping.unknown_outcome_error(
                f"the anchor of {self.path} can't be written ({error})"
            ) from error
        self._cache.heads |= batch.heads
        self._cache.anchor_is_current = True
        self._commit_signal.notify()
        return outcomes

    def _translate_error(self, error: Exception) -> errors.Error:
        """Return our error for one of SQLite's: a file taken away explains whatever came of it."""
        try:
            with contextlib.suppress(OSError):
                self._file_identity.check()
        except errors.Unavailable as gone:
            return gone
        return error_mapping.to_error(error, str(self.path))

    def _abandon_writer(self) -> None:
        # After a failed write the state of the connection's cache and of the kernel's is unknown:
        # a sync that failed once must not be retried on the same file handle.
        self._broken = True
        self._commit_hook.rolled_back()
        self._cache.forget_hints()
        self._readers.renew()
        with contextlib.suppress(apsw.Error):
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._writer.close(True)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.EngineClosed

    @contextlib.contextmanager
    def _read_connection(self) -> Iterator[apsw.Connection]:
        self._check_open()
        with self._error_translator:
            if self._holder == threading.get_ident():
                self._begin()
                yield self._writer
            else:
                with self._readers.borrow() as connection:
                    yield connection

    def _renew_readers(self) -> None:
        self._readers.renew()

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop idempotency keys used before that moment; return how many."""
        with self._write_transaction() as writer:
            number_ = self._cache.tenant_number(writer, tenant)
            writer.execute(self._sql["forget_keys"], (number_, before_us))
            return writer.changes()

    @contextlib.contextmanager
    def _write_transaction(self, *, quietly: bool = False) -> Iterator[apsw.Connection]:
        """A turn and a transaction for what is no append; `quietly`: nothing that is cached rests on it."""
        with self.write_lock() as alone, self._error_translator:
            try:
                self._begin()
                yield self._writer
                self._commit_transaction()
            except BaseException:
                self._abandon_writer()
                raise
            # Told to nobody here: the next turn has to hear of it, and of what others wrote before.
            if not (quietly and alone):
                self._seen_data_version = None

    def close(self) -> None:
        """Give back every connection and file. Closing twice is fine."""
        if self._closed:
            return
        try:
            if not self._broken:
                with contextlib.suppress(errors.Unavailable), self.write_lock():
                    self._close_writer()
        finally:
            self._closed = True
            self._commit_signal.notify()
            self._abandon_writer()
            self._readers.close()
            self._anchor.close()
            self._handoff.close()
            self._process_lock.close()
            self._commit_hook.close()

    def _close_writer(self) -> None:
        self._roll_back()
        self._readers.close()
        with self._error_translator:
            self._commit_hook.before_close()
            self._broken = True
            self._writer.close()
            if not self._file_identity.has_log:
                self._anchor.write({}, clean=True)


_conforms: type[port.Store] = SQLiteStore
