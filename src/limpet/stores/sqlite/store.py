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

    _news: CommitSignal

    @abstractmethod
    def _changing(self, *, quietly: bool = False) -> AbstractContextManager[apsw.Connection]:
        """A turn and a transaction for what is no append."""

    def note(self, tenant: str, name: str) -> port.Note | None:
        """Return a note, None if it is not there."""
        check_note(name)
        with self._reading() as connection:
            return self._note(connection, tenant, name)

    def _note(self, connection: apsw.Connection, tenant: str, name: str) -> port.Note | None:
        row = first_row(connection, self._sql["note"], (tenant, name))
        return _decode_note(tenant, row) if row else None

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put or drop a note if it is at a version; return whether it was."""
        check_note(name, value)
        with self._changing(quietly=True) as writer:
            before = self._note(writer, tenant, name)
            if (before.version if before else 0) != expected:
                return False
            if value is None:
                writer.execute(self._sql["drop_note"], (tenant, name))
                return True
            counted = self._note(writer, tenant, _VERSION_COUNTER_NAME)
            version = (counted.version if counted else 0) + 1
            for row in ((_VERSION_COUNTER_NAME, version, b""), (name, version, value)):
                writer.execute(self._sql["put_note"], (tenant, *row, row_checksum(tenant, *row)))
            return True

    def notes(
        self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256
    ) -> list[tuple[str, port.Note]]:
        """Return notes whose names begin with a prefix, those after a name, by name."""
        with self._reading() as connection:
            found = connection.execute(
                self._sql["notes"], (tenant, prefix, after, limit)
            ).fetchall()
        # Names that begin alike stand together, so that those that do not come last.
        named = ((str(row[0]), row) for row in found)
        return [(name, _decode_note(tenant, row)) for name, row in named if name.startswith(prefix)]

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True as soon as the feed has a position > after; False when the time is up."""

        def there() -> bool:
            with self._reading() as connection:
                base = self._known.tenant(connection, tenant) << TENANT_SHIFT
                if not base:
                    return False
                row = first_row(connection, self._sql["head"], (base, base | NUMBER_MASK))
                return decode_head(row).position > after

        return self._news.wait(there, timeout_s)


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
        self._witness = witness or CommitHook()
        self._files = files
        self._random = RandomPool(random)
        self._sql = database.statements()
        self._translated = error_mapping.translator(str(path))
        self._thread_turn = threading.RLock()
        self._holder: int | None = None
        self._known = SQLiteCache()
        self._place = FileIdentity(files, path)
        self.remarks = ()
        self._closed = self._broken = False
        self._seen: int | None = None
        self._rebuilt = 0
        self._turns = ProcessWriteLock(files, self._witness.lock_path(path))
        self._turn = WriteLockGuard(self.take_turn, self.leave_turn)
        self._post = CommitHandoff(files, self._turns, random)
        self._news = CommitSignal()
        self._readers = ReadConnectionPool(lambda: database.connect(path, write=False))
        try:
            self._open(again)
        except BaseException:
            self._turns.close()
            self._witness.close()
            raise
        self._translated = ErrorTranslator(self._explained)

    def _open(self, again: ErasureReplay | None) -> None:
        with self._translated:
            self._turns.take(limits.WRITE_LOCK_WAIT_S)
            try:
                if not self.path.exists() or not self.path.stat().st_size:
                    made = self._witness.new_id(self._random(16))
                    database.create_store(self._files, self.path, made)
                had_log = self._place.has_log
                with contextlib.ExitStack() as undo:
                    self._writer, found = self._connected()
                    undo.callback(self._writer.close)
                    self._cursor = self._writer.cursor()
                    store_id = self._store_id = database.read_store_id(self._writer, self.path)
                    self._anchor = Anchor(self._files, Path(f"{self.path}-anchor"), store_id)
                    undo.callback(self._anchor.close)
                    verification.check_foreign_checkpoint(
                        self._writer, self._anchor, had_log=had_log
                    )
                    told = self._witness.opened(self._writer)
                    noted = verification.compare_anchor(self._writer, self._anchor, store_id)
                    self.remarks = (*told, *noted) if self._witness.tells_of_anchor else told
                    database.enable_checkpoint_on_close(self._writer)
                    self._place.opened(found)
                    self._note_rebuilt()
                    self._finish_erasures(again)
                    undo.pop_all()
            finally:
                self._turns.give()

    def _connected(self) -> tuple[apsw.Connection, tuple[DeviceInode, DeviceInode]]:
        writer = database.connect(self.path, write=True, synchronous=self._witness.synchronous)
        try:
            database.migrate(writer, database.check_schema_version(writer, self.path))
            self._witness.attach(writer)
        except BaseException:
            writer.close()
            raise
        return writer, self._place.found()

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return not self._closed

    @property
    def durability(self) -> str:
        """`power-loss`: WAL with synchronous FULL, read back at opening; less on a RAM disk."""
        return (
            "process-crash"
            if self._files.kind(self.path.parent) in MEMORY_FILE_SYSTEMS
            else "power-loss"
        )

    def turn(self) -> WriteLockGuard:
        """Hold the turn among this process's threads and among processes; yield whether it was ours last."""
        return self._turn

    def take_turn(self) -> bool:
        """Take the turn, for `turn`; whatever happens, it is either taken or given back."""
        me = threading.get_ident()
        assert self._holder != me, "this thread holds the turn already"
        try:
            # It may be here already, if it came while something was handed over.
            here = self._owned()
            if not here:
                self._thread_turn.acquire()
                self._check_open()
            with self._translated:
                if not here:
                    self._turns.take(limits.WRITE_LOCK_WAIT_S)
                self._holder = me
                return self._nobody_else_wrote()
        except BaseException:
            self.leave_turn()
            raise

    def _owned(self) -> bool:
        return self._thread_turn._is_owned()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def leave_turn(self) -> None:
        """Give the turn back if this thread holds it still."""
        if not self._owned():
            return
        try:
            self._leave()
        except apsw.Error:
            self._abandon_writer()
        finally:
            self._holder = None
            try:
                # Giving back a lock that is not held does no harm; a closed store has none.
                if not self._closed:
                    self._turns.give()
            finally:
                self._thread_turn.release()

    def held(self, tenant: str) -> bool:  # noqa: ARG002 - the port's parameter
        """Always: nobody else is let in."""
        return True

    @property
    def crowded(self) -> bool:
        """Whether other processes had the turn lately when it was wanted."""
        return self._turns.crowd > 0

    def hand_over(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:
        """Have whoever holds the turn commit appends; None if nobody did, and `turn` has to follow."""
        try:
            self._thread_turn.acquire()
            self._check_open()
            with self._translated:
                outcomes, taken = self._post.hand_over(appends)
            if not taken:
                self._thread_turn.release()
            self._news.tell()
            return outcomes
        except BaseException:
            self.leave_turn()
            raise

    def _nobody_else_wrote(self) -> bool:
        self._enter()
        seen = self._writer.data_version("main")
        while self._witness.is_ahead(self._writer, others=seen != self._seen):
            # What one left who died in between is brought to the disk here before anything is decided.
            self._cursor.execute("COMMIT")
            self._seen = None
            self._enter()
            seen = self._writer.data_version("main")
        if seen == self._seen:
            return True
        database.check_schema_version(self._writer, self.path)
        self._known.others_wrote()
        self._note_rebuilt()
        # Last: whoever is interrupted before has not noticed it yet.
        self._seen = seen
        return False

    def _note_rebuilt(self) -> None:
        rebuilt = read_integer(self._writer, self._sql["rebuilt"], ())
        if rebuilt != self._rebuilt or not self._post.ready:
            self._known.forget_streams()
            self._post.opened(database.SCHEMA_VERSION, self._place.database, rebuilt)
            self._rebuilt = rebuilt

    def _enter(self) -> None:
        # One transaction over everything that is read to decide and then appended: each statement
        # outside one would take and drop SQLite's own locks.
        if self._broken:
            self._reconnect()
        if not self._writer.in_transaction:
            self._place.check_before()
            if not database.try_begin(self._cursor):
                self._abandon_writer()
                self._reconnect()
                database.try_begin(self._cursor)

    def _reconnect(self) -> None:
        # Only to the very file that was open, and only if it has what was acknowledged: whatever
        # lies at the path by now is not taken on trust.
        self._place.check_database()
        with contextlib.ExitStack() as undo:
            writer, found = self._connected()
            undo.callback(writer.close)
            self._witness.opened(writer)
            verification.compare_anchor(writer, self._anchor, self._store_id)
            database.enable_checkpoint_on_close(writer)
            undo.pop_all()
        self._place.opened(found)
        self._writer, self._cursor = writer, writer.cursor()
        self._broken, self._seen = False, None

    def _leave(self) -> None:
        if not self._broken and self._writer.in_transaction:
            self._cursor.execute("ROLLBACK")
            self._witness.undone()

    def _end(self) -> None:
        try:
            self._witness.commit(self._writer)
            # A version counts own commits too; whoever is interrupted in between takes it for another's.
            self._cursor.execute("COMMIT")
        except error_mapping.DRIVER_ERRORS as error:
            # Whoever has the turn next brings it up: to say that nothing was written would be untrue.
            if self._witness.kept:
                raise error_mapping.unknown_outcome_error(
                    f"{self.path} can't be written ({error})"
                ) from error
            raise
        self._seen = self._writer.data_version("main")

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        """Commit appends in one transaction; the anchor is written before this returns."""
        assert self._holder == threading.get_ident(), "commit belongs inside turn()"
        with self._translated:
            try:
                return self._commit(appends)
            except BaseException:
                self._abandon_writer()
                raise

    def _commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        parcels = self._post.collect()
        if not parcels:
            return self._committed(appends)
        handed = [append for parcel in parcels for append in parcel.appends]
        outcomes = self._committed([*appends, *handed])
        self._post.answer(parcels, outcomes[len(appends) :])
        return outcomes[: len(appends)]

    def sending(self) -> None:
        """A commit is over when it returns: there is nothing to wait for meanwhile."""

    def served(self) -> list[tuple[str, str]]:
        """Return tenant and stream of what was committed for other processes since this was asked."""
        return self._post.served()

    def _committed(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        for careful in (False, True):
            self._enter()
            batch = log_writes.AppendBatch(self._cursor, self._known, self._random, careful=careful)
            outcomes = [batch.append(append) for append in appends]
            if batch.flush():
                break
            self._leave()
            self._known.doubt()
        if not batch.heads:
            self._known.doubt()
            return outcomes
        slot, data = self._anchor.ready(batch.heads, alone=self._known.anchored)
        self._end()
        self._known.committed()
        self._place.check()
        try:
            self._anchor.put(slot, data)
        except OSError as error:
            raise error_mapping.unknown_outcome_error(
                f"the anchor of {self.path} can't be written ({error})"
            ) from error
        self._known.heads |= batch.heads
        self._known.anchored = True
        self._news.tell()
        return outcomes

    def _explained(self, error: Exception) -> errors.Error:
        """Return our error for one of SQLite's: a file taken away explains whatever came of it."""
        try:
            with contextlib.suppress(OSError):
                self._place.check()
        except errors.Unavailable as gone:
            return gone
        return error_mapping.to_error(error, str(self.path))

    def _abandon_writer(self) -> None:
        # After a failed write the state of the connection's cache and of the kernel's is unknown:
        # a sync that failed once must not be retried on the same file handle.
        self._broken = True
        self._witness.undone()
        self._known.doubt()
        self._readers.renew()
        with contextlib.suppress(apsw.Error):
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._writer.close(True)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.EngineClosed

    @contextlib.contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        self._check_open()
        with self._translated:
            if self._holder == threading.get_ident():
                self._enter()
                yield self._writer
            else:
                with self._readers.borrow() as connection:
                    yield connection

    def _renew_readers(self) -> None:
        self._readers.renew()

    def forget_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop idempotency keys used before that moment; return how many."""
        with self._changing() as writer:
            number_ = self._known.tenant(writer, tenant)
            writer.execute(self._sql["forget_keys"], (number_, before_us))
            return writer.changes()

    @contextlib.contextmanager
    def _changing(self, *, quietly: bool = False) -> Iterator[apsw.Connection]:
        """A turn and a transaction for what is no append; `quietly`: nothing that is cached rests on it."""
        with self.turn() as alone, self._translated:
            try:
                self._enter()
                yield self._writer
                self._end()
            except BaseException:
                self._abandon_writer()
                raise
            # Told to nobody here: the next turn has to hear of it, and of what others wrote before.
            if not (quietly and alone):
                self._seen = None

    def close(self) -> None:
        """Give back every connection and file. Closing twice is fine."""
        if self._closed:
            return
        try:
            if not self._broken:
                with contextlib.suppress(errors.Unavailable), self.turn():
                    self._close_writer()
        finally:
            self._closed = True
            self._news.tell()
            self._abandon_writer()
            self._readers.close()
            self._anchor.close()
            self._post.close()
            self._turns.close()
            self._witness.close()

    def _close_writer(self) -> None:
        self._leave()
        self._readers.close()
        with self._translated:
            self._witness.leave()
            self._broken = True
            self._writer.close()
            if not self._place.has_log:
                self._anchor.write({}, clean=True)


_conforms: type[port.Store] = SQLiteStore
