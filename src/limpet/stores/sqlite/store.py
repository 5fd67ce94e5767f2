"""The store on one SQLite file: write lock, commits, notes, opening and closing.

All writes go through one connection, used by the holder of the write lock. Reads go through a
small pool, or through the writing connection while the caller's thread holds the write lock, so
that a decision sees exactly the state it appends to. The promises are in `limpet.stores.port`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path

import apsw

from limpet import errors, limits
from limpet.core.values import ids
from limpet.core.values.validation import Json
from limpet.stores import chain, port, store_copy, urls
from limpet.stores.chain import RandomPool, check_note
from limpet.stores.port import Erasure, ErasureCounts, ErasureReplay, WriteLockGuard
from limpet.stores.sqlite import database, event_erasure, log_writes, maintenance, reads
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT, ErrorTranslator, SQLiteCache, Synchronous
from limpet.stores.sqlite.shared_file import store_files
from limpet.stores.sqlite.shared_file.commit_handoff import CommitHandoff
from limpet.stores.sqlite.shared_file.store_files import Anchor, DeviceInode, FileIdentity, LogHead, StoreFiles

_VERSION_COUNTER_NAME = ""


def _decode_note(tenant: str, row: tuple[apsw.SQLiteValue, ...]) -> port.Note:
    match row:
        case (str(name), int(version), bytes(value), bytes(check)) if check == chain.row_checksum(
            tenant, name, version, value
        ):
            return port.Note(value, version)
        case _:
            raise errors.Corrupt("a stored note is not what was written.", facts={"tenant": tenant})


class CommitHook:
    """Called around every commit, by the holder of the write lock. This one does nothing."""

    synchronous: Synchronous = "FULL"
    reports_anchor = True
    """Whether `remarks` mention a rewritten anchor."""
    kept = False
    """Whether `commit` has made the open transaction durable, so that it takes effect even if SQLite fails to commit."""

    def lock_path(self, store: Path) -> Path:
        return Path(f"{store}-lock")

    def erased_list_path(self, store: Path) -> Path:
        return store_files.erased_list_path(store)

    def store_id_for_new(self, made: bytes) -> bytes:
        """Return the id of a store that is being created: `made` unless the hook has one."""
        return made

    def attach(self, connection: apsw.Connection) -> None:
        """Prepare a connection that will write."""

    def opened(self, connection: apsw.Connection) -> tuple[str, ...]:
        """Apply commits that the hook has and the store lacks, in transactions of its own; return remarks for people."""
        del connection
        return ()

    def catch_up(self, connection: apsw.Connection, *, others: bool) -> bool:
        """Apply commits that the store lacks in the open transaction; return whether there were any.

        If so, the caller commits and calls again. `others`: other processes have committed since the last call.
        """
        del connection, others
        return False

    def commit(self, connection: apsw.Connection) -> None:
        """Write the changes of the open transaction, durable on return, and set `kept`. SQLite commits afterwards."""

    def rolled_back(self) -> None:
        """Drop the changes of the open transaction."""

    def scrub(self, connection: apsw.Connection) -> errors.Error | None:
        """Remove all content that the store no longer has; durable on return. No transaction is open.

        Returns the error of a part that could not be removed; everything else is done.
        """
        del connection
        return None

    def before_close(self) -> None:
        """Remove what only an open store needs."""

    def close(self) -> None:
        """Close every file."""


class SQLiteStore:
    """A store on one SQLite file, safe for threads and processes. `open_store` makes it.

    One connection writes, for the holder of the write lock; a pool of connections reads. The contract of a verb is in
    `limpet.stores.port.Store`; docstrings here add to it.
    """

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
        self._error_translator = database.translator(str(path))
        self._thread_lock = threading.RLock()
        self._holder: int | None = None
        self._cache = SQLiteCache()
        self._file_identity = FileIdentity(files, path)
        self.remarks = ()
        self._closed = self._broken = False
        self._closing = threading.Lock()
        self._seen_data_version: int | None = None
        self._cache_epoch = 0
        self._process_lock = store_files.ProcessWriteLock(files, self._commit_hook.lock_path(path))
        self._handoff = CommitHandoff(files, self._process_lock, random)
        self._commit_signal = store_files.CommitSignal()
        self._readers = database.ReadConnectionPool(lambda: database.connect(path, write=False))
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
                    database.check_foreign_checkpoint(self._writer, self._anchor, had_log=had_log)
                    hook_remarks = self._commit_hook.opened(self._writer)
                    anchor_remarks = database.compare_anchor(self._writer, self._anchor, store_id)
                    self.remarks = (
                        (*hook_remarks, *anchor_remarks) if self._commit_hook.reports_anchor else hook_remarks
                    )
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
        return not self._closed

    @property
    def durability(self) -> str:
        """Return `power-loss`, because of WAL with synchronous FULL; `process-crash` on a RAM disk."""
        kind = self._files.file_system_type(self.path.parent)
        return "process-crash" if kind in store_files.MEMORY_FILE_SYSTEMS else "power-loss"

    def write_lock(self) -> WriteLockGuard:
        return WriteLockGuard(self)

    def acquire_write_lock(self) -> bool:
        """Acquire the write lock, or raise and hold nothing. Raises StoreBusy and EngineClosed."""
        me = threading.get_ident()
        assert self._holder != me, "this thread holds the write lock already"
        try:
            # `hand_off` returns with both locks held if it acquired the process lock while it waited.
            held = self._owns_thread_lock()
            if not held:
                self._thread_lock.acquire()
                self._check_open()
            with self._error_translator:
                if not held:
                    self._process_lock.acquire(limits.WRITE_LOCK_WAIT_S)
                self._holder = me
                return self._caches_are_valid()
        except BaseException:
            self.release_write_lock()
            raise

    def _owns_thread_lock(self) -> bool:
        # An RLock although no thread acquires it twice: it knows its owner, so that a release after an interrupt
        # is right wherever the interrupt came.
        return self._thread_lock._is_owned()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def release_write_lock(self) -> None:
        """Release the write lock if this thread still holds it."""
        if not self._owns_thread_lock():
            return
        try:
            self._roll_back()
        except apsw.Error:
            self._abandon_writer()
        finally:
            self._holder = None
            try:
                # Releasing a lock that is not held does no harm; a closed store has none.
                if not self._closed:
                    self._process_lock.release()
            finally:
                self._thread_lock.release()

    def is_unchanged(self, tenant: str) -> bool:  # noqa: ARG002 - the port's parameter
        """Return True: no other store object can append while the write lock is held."""
        return True

    @property
    def contended(self) -> bool:
        return self._process_lock.contention > 0

    def hand_off(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:
        """Have the process that holds the write lock commit appends.

        Returns None if no process did: then enter `write_lock` and call `commit`. This thread may hold the lock already.
        """
        try:
            self._thread_lock.acquire()
            self._check_open()
            with self._error_translator:
                outcomes, taken = self._handoff.hand_off(appends)
            # If the process lock was acquired meanwhile, both locks stay held for `acquire_write_lock`.
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
            # Commits of a writer that died in between are made durable before anything is decided on them.
            self._cursor.execute("COMMIT")
            self._seen_data_version = None
            self._begin()
            seen = self._writer.data_version("main")
        if seen == self._seen_data_version:
            return True
        database.check_schema_version(self._writer, self.path)
        self._cache.forget_heads()
        self._update_cache_epoch()
        # Last, so that an interrupt before this line leaves the change to be noticed again.
        self._seen_data_version = seen
        return False

    def _update_cache_epoch(self) -> None:
        rebuilt = database.read_integer(self._writer, self._sql["rebuilt"], ())
        if rebuilt != self._cache_epoch or not self._handoff.layout:
            self._cache.forget_streams()
            self._handoff.set_layout(database.SCHEMA_VERSION, self._file_identity.database_inode, rebuilt)
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
        # Only to the file that was open, and only if it has all acknowledged commits: another file
        # may be at the path by now.
        self._file_identity.check_database()
        with contextlib.ExitStack() as undo:
            writer, found = self._connect_writer()
            undo.callback(writer.close)
            self._commit_hook.opened(writer)
            database.compare_anchor(writer, self._anchor, self._store_id)
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
            # The data version counts own commits too. After an interrupt in between, this commit counts as another
            # process's, which only drops caches.
            self._cursor.execute("COMMIT")
        except database.DRIVER_ERRORS as error:
            # The hook has made it durable, and the next holder of the lock applies it: the effect is unknown here.
            if self._commit_hook.kept:
                raise database.unknown_outcome_error(f"{self.path} can't be written ({error})") from error
            raise
        self._seen_data_version = self._writer.data_version("main")

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        """Commit appends in one transaction; the anchor is written before this returns."""
        assert self._holder == threading.get_ident(), "commit belongs inside write_lock()"
        with self._error_translator:
            try:
                return self._commit_with_handed_off(appends)
            except BaseException:
                self._abandon_writer()
                raise

    def _commit_with_handed_off(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        batches = self._handoff.collect()
        if not batches:
            return self._append_all(appends)
        handed = [append for batch in batches for append in batch.appends]
        outcomes = self._append_all([*appends, *handed])
        self._handoff.answer(batches, outcomes[len(appends) :])
        return outcomes[: len(appends)]

    def open_pipeline(self) -> None:
        """Return None: a commit does not wait for a server."""

    def take_handed_off(self) -> list[tuple[str, str]]:
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
            raise database.unknown_outcome_error(f"the anchor of {self.path} can't be written ({error})") from error
        self._cache.heads |= batch.heads
        self._cache.anchor_is_current = True
        self._commit_signal.notify()
        return outcomes

    def _translate_error(self, error: Exception) -> errors.Error:
        """Return the Limpet error for a driver error. If the file was replaced, that is the error."""
        try:
            with contextlib.suppress(OSError):
                self._file_identity.check()
        except errors.Unavailable as gone:
            return gone
        return database.to_error(error, str(self.path))

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

    @contextlib.contextmanager
    def _write_transaction(self, *, quietly: bool = False) -> Iterator[apsw.Connection]:
        """Hold the write lock and a transaction for a change that is no append. `quietly`: no cache depends on it."""
        with self.write_lock() as caches_valid:
            with self._error_translator, self._transaction() as writer:
                yield writer
            # The next holder of the write lock compares the data version, and so learns of this change and of
            # what other processes had written before it.
            if not (quietly and caches_valid):
                self._seen_data_version = None

    @contextlib.contextmanager
    def _transaction(self, heads: Mapping[int, LogHead] | None = None) -> Iterator[apsw.Connection]:
        """Run the body in one transaction, with the write lock held. The heads that it adds to `heads` are anchored."""
        try:
            self._begin()
            yield self._writer
            if not heads:
                self._commit_transaction()
                return
            # The anchor is prepared first, because after the commit nothing but its write may fail.
            slot, data = self._anchor.prepare(heads)
            self._commit_transaction()
            self._anchor.write_prepared(slot, data)
        except BaseException:
            self._abandon_writer()
            raise

    def _stream_key(self, connection: apsw.Connection, tenant: str, stream: str) -> int:
        known = self._cache.tenant_number(connection, tenant)
        return self._cache.stream_key(connection, known, stream) if known else 0

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        with self._read_connection() as connection:
            key = self._stream_key(connection, tenant, stream)
            if key and position is not None:
                return reads.find_version_at(connection, key, position)
            return database.read_integer(connection, self._sql["stream_version"], (key,)) if key else 0

    def read(
        self,
        tenant: str,
        stream: str,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        at: int | None = None,
        newest: bool = False,
    ) -> list[port.StoredEvent]:
        with self._read_connection() as connection:
            key = self._stream_key(connection, tenant, stream)
            return reads.read_stream(connection, key, stream, after, until, limit=limit, at=at, newest=newest)

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        with self._read_connection() as connection:
            base = self._cache.tenant_number(connection, tenant) << TENANT_SHIFT
            if not base or not 0 <= after < NUMBER_MASK:
                return []
            return reads.read_feed(connection, base, after, limit)

    def head(self, tenant: str) -> int:
        with self._read_connection() as connection:
            return database.read_head(connection, self._cache.tenant_number(connection, tenant)).position

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        with self._read_connection() as connection:
            return reads.read_blobs(connection, self._cache.tenant_number(connection, tenant), hashes)

    def find_ordinal(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        with self._read_connection() as connection:
            key = self._stream_key(connection, tenant, stream)
            return reads.find_version_by_ordinal(connection, key, stream, ordinal, at) if key else 0

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        with self._read_connection() as connection:
            key = self._stream_key(connection, tenant, stream)
            return reads.find_claim_on_path(connection, reads.read_path(connection, key, at), claim) if key else 0

    def find_key(self, tenant: str, key: str) -> port.KeyRecord | None:
        with self._read_connection() as connection:
            row = database.first_row(connection, self._sql["key"], (self._cache.tenant_number(connection, tenant), key))
            return reads.decode_key_record(row) if row else None

    def find_projection(self, tenant: str, kind: str, id: str) -> port.Projection | None:
        with self._read_connection() as connection:
            row = database.first_row(
                connection, self._sql["projection"], (self._cache.tenant_number(connection, tenant), kind, id)
            )
            return reads.decode_projection(row) if row else None

    def query_projections(self, tenant: str, query: port.Query) -> list[port.Projection]:
        statement, bindings = reads.projection_query(query)
        with self._read_connection() as connection:
            bindings["tenant"] = self._cache.tenant_number(connection, tenant)
            return [reads.decode_projection(row) for row in connection.execute(statement, bindings)]

    def snapshot(self, tenant: str, stream: str) -> port.Snapshot | None:
        with self._read_connection() as connection:
            key = self._stream_key(connection, tenant, stream)
            return reads.read_snapshot(connection, key, stream) if key else None

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        with self._read_connection() as connection:
            key = self._stream_key(connection, tenant, stream)
            return reads.read_forks(connection, key) if key else []

    def pending_erasures(self) -> bytes | None:
        with self._read_connection() as connection:
            row = database.first_row(connection, self._sql["pending"], ())
            return row[0] if row and isinstance(row[0], bytes) else None

    def tenants(self) -> list[str]:
        with self._read_connection() as connection:
            return [str(name) for _, name in connection.execute(self._sql["tenants"])]

    def cache_epoch(self, tenant: str) -> int:  # noqa: ARG002 - here it is one count for all
        """Return how often the store was rebuilt or erased from."""
        with self._read_connection() as connection:
            return database.read_integer(connection, self._sql["rebuilt"], ())

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        with self._write_transaction() as writer:
            number_ = self._cache.tenant_number(writer, tenant)
            writer.execute(self._sql["forget_keys"], (number_, before_us))
            return writer.changes()

    def note(self, tenant: str, name: str) -> port.Note | None:
        check_note(name)
        with self._read_connection() as connection:
            return self._read_note(connection, tenant, name)

    def _read_note(self, connection: apsw.Connection, tenant: str, name: str) -> port.Note | None:
        row = database.first_row(connection, self._sql["note"], (tenant, name))
        return _decode_note(tenant, row) if row else None

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
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
                writer.execute(self._sql["put_note"], (tenant, *row, chain.row_checksum(tenant, *row)))
            return True

    def notes(self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256) -> list[tuple[str, port.Note]]:
        with self._read_connection() as connection:
            found = connection.execute(self._sql["notes"], (tenant, prefix, after, limit)).fetchall()
        # Rows come by name, so all names with the prefix come first.
        named = ((str(row[0]), row) for row in found)
        return [(name, _decode_note(tenant, row)) for name, row in named if name.startswith(prefix)]

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        return self._commit_signal.wait(lambda: self.head(tenant) > after, timeout_s)

    def verify(self) -> Iterator[int | port.Report]:
        """Check every event, blob and page, and the anchor; yield events checked so far, the report last."""
        self._check_open()
        with self._error_translator:
            yield from maintenance.verify_file(self.path, self._anchor, self.remarks)

    def rebuild(self, derive: port.StreamDeriver) -> Generator[int | port.Rebuilt]:
        """Verify the log, then derive everything again, in one transaction."""
        self._check_open()
        verified, made = 0, port.Rebuilt()
        with self._error_translator:
            for verified in maintenance.check_log(self.path, self._anchor):
                yield verified
        with self._write_transaction() as writer:
            for made in maintenance.derive_all(writer, self.path, derive):
                yield verified + made.events
        yield made

    def erase(self, erasure: Erasure, derive: port.StreamDeriver) -> ErasureCounts | port.Stale:
        """Remove payloads from the log in one transaction; the anchor is written before this returns."""
        with self.write_lock(), self._error_translator:
            return self._erase(erasure, derive)

    def _erase(self, erasure: Erasure, derive: port.StreamDeriver) -> ErasureCounts | port.Stale:
        heads: dict[int, LogHead] = {}
        with self._transaction(heads) as writer:
            run = event_erasure.SQLiteErasure(writer, erasure, derive, self._random)
            stale = run.find_stale()
            if stale is not None:
                return stale
            counts, after = run.run()
            heads |= after
        self._forget_after_change()
        return counts

    def _forget_after_change(self) -> None:
        """Make the next holder of the write lock drop its caches, after a change that was no append."""
        self._cache.forget_streams()
        self._seen_data_version = None

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.RawEvent]:
        with self._read_connection() as connection:
            base = self._cache.tenant_number(connection, tenant) << TENANT_SHIFT
            if not base or not 0 <= after < NUMBER_MASK:
                return []
            return log_writes.copy_page(connection, base, after, limit)

    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[port.RawKey]:
        with self._read_connection() as connection:
            return log_writes.copy_keys(connection, self._cache.tenant_number(connection, tenant), after, limit)

    def paste(
        self,
        tenant: str,
        events: Sequence[port.RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[port.RawKey] = (),
    ) -> None:
        """Write events exactly as given in one transaction; the anchor is written before this returns."""
        with self.write_lock(), self._error_translator:
            heads: dict[int, LogHead] = {}
            with self._transaction(heads) as writer:
                target = log_writes.SQLiteCopyTarget(writer, tenant)
                plan = store_copy.plan_page(target, events, blobs, keys)
                if not plan:
                    return
                target.write_page(plan)
                heads[target.tenant] = LogHead(*plan.head)
            self._forget_after_change()
            self._commit_signal.notify()

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Remove erased content from every file; then nothing is pending but `left`.

        Rewrites the database, empties its log, clears the hand-off mailboxes and completes the erased list.
        """
        with self.write_lock(), self._error_translator:
            incomplete = self._scrub(done, left)
        if incomplete is not None:
            raise incomplete

    def _scrub(self, done: bytes, left: bytes) -> errors.Error | None:
        """Scrub; return the error of a part that could not be scrubbed: the scrub then stays pending."""
        list_path, sql = self._commit_hook.erased_list_path(self.path), self._sql
        row = database.first_row(self._writer, sql["pending"], ())
        if row is None or not isinstance(row[0], bytes):
            if left:
                # Nothing was pending, so there is nothing to scrub.
                with self._transaction() as writer:
                    writer.execute(sql["put_pending"], (left,))
            return None
        rest = left + row[0].removeprefix(done)
        self._roll_back()
        try:
            # The list first: from the moment that content is gone, a restored backup has to be erased again.
            event_erasure.update_erased_list(self._files, list_path, self._writer, self._store_id)
            # An empty line is pending until the last step, so that a crash in between repeats the scrub.
            self._begin()
            self._writer.execute(sql["set_pending"], (b"\n" + rest,))
            self._commit_transaction()
            # Idle read connections would keep the log from being emptied.
            self._readers.renew()
            incomplete = self._commit_hook.scrub(self._writer)
            event_erasure.rewrite_file(self._writer, self.path)
            # Where commits are not synced, nothing else brings the empty log to the disk.
            self._files.sync(Path(f"{self.path}-wal"))
            self._handoff.clear_mailboxes()
            self._files.sync(self._commit_hook.lock_path(self.path))
            self._anchor.write({})
            self._begin()
            self._writer.execute(sql["put_listed"], (store_files.erased_list_checksum(list_path),))
            rest = b"\n" + rest if incomplete else rest
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
        return incomplete

    def _finish_erasures(self, again: ErasureReplay | None) -> None:
        """Repeat listed erasures if the file is a restored backup, and complete an interrupted scrub."""
        list_path, sql = self._commit_hook.erased_list_path(self.path), self._sql
        row, repeated = database.first_row(self._writer, sql["listed"], ()), False
        if (check := store_files.erased_list_checksum(list_path)) and (row is None or row[0] != check):
            erasures = event_erasure.ErasuresToRepeat(
                self._writer, store_files.read_erased_list(list_path), self._store_id
            )
            if erasures and again is None:
                raise errors.Refused(
                    f"{self.path} has content that was erased since this copy was made.",
                    hint="Open it with limpet.connect, which erases it again first.",
                )
            if again is not None:
                for erasure in list(erasures.erasures(again, again.now_us())):
                    self._erase(erasure, again.derive)
                    repeated = True
        pending = database.first_row(self._writer, sql["pending"], ())
        if pending is not None and (repeated or pending[0] in (b"", b"\n")):
            try:
                incomplete = self._scrub(b"\n" if pending[0] == b"\n" else b"", b"")
            except errors.StoreBusy as error:
                incomplete = error
            if incomplete is not None:
                # The scrub stays pending; the store can be used.
                self.remarks = (*self.remarks, incomplete.message)

    def status(self) -> Mapping[str, Json]:
        with self._read_connection() as connection:
            facts = maintenance.store_status(connection, self.path)
            return {**facts, "durability": self.durability, "notes": list(self.remarks)}

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        self._check_open()
        with self._error_translator, contextlib.closing(database.connect(self.path, write=False)) as connection:
            place = Path(target).expanduser().resolve()
            yield from maintenance.copy_database(self._files, connection, place)

    def close(self) -> None:
        if self._closed:
            return
        try:
            if not self._broken:
                with contextlib.suppress(errors.Unavailable), self.write_lock():
                    self._close_writer()
        finally:
            self._closed = True
            self._commit_signal.notify()
            if self._closing.acquire(blocking=False):  # a collected client and the end of the program may both close
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

_open_lock = threading.Lock()
_open_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()


def open_store(
    path: str | Path,
    *,
    files: StoreFiles | None = None,
    random: Callable[[int], bytes] = ids.SYSTEM_FACTORY.random,
    again: ErasureReplay | None = None,
) -> SQLiteStore:
    """Open the store at a path, creating it if nothing is there.

    `again` repeats the erasures that a restored backup lacks. Raises UnsafeStore, NotAStore, NewerStore, Corrupt,
    StoreReadOnly, StoreBusy or InvalidRequest; in each case the file is left as it was.
    """
    place, used = urls.resolve_path(path), files or StoreFiles()
    with database.translator(str(place)):
        database.check_sqlite_version(apsw.sqlite_lib_version())
        database.check_location(used, place)
        database.register_checksum_vfs()
        with _open_lock:
            # Reading a file that SQLite has open in this process would drop SQLite's locks on it.
            if not any(store.path == place and store.is_open for store in _open_stores):
                database.check_file_header(place)
                database.check_side_files(place)
            store = SQLiteStore(place, files=used, random=random, again=again)
            _open_stores.add(store)
            return store
