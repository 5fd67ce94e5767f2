"""The store on one SQLite file: the verbs of the port. What it promises is in `store.port`.

Writes go through one connection, by the holder of the turn; reads through a small pool, or through
the writing connection while the turn is held, so that deciding sees exactly what it will append to.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw

from limpet import errors, limits
from limpet.store import port
from limpet.store.erasure import Again
from limpet.store.salts import Salts
from limpet.store.sqlite import checks, opening, translate, writing
from limpet.store.sqlite.anchor import Anchor
from limpet.store.sqlite.connections import Readers
from limpet.store.sqlite.files import MEMORY, Files
from limpet.store.sqlite.known import Known
from limpet.store.sqlite.noting import Noting
from limpet.store.sqlite.place import Identity, Place
from limpet.store.sqlite.post import Post
from limpet.store.sqlite.rows import number
from limpet.store.sqlite.translate import Translated
from limpet.store.sqlite.turns import Turns
from limpet.store.sqlite.upkeep import Upkeep
from limpet.store.sqlite.waiting import News
from limpet.store.sqlite.witness import Witness
from limpet.store.turning import Turn


class SQLiteStore(Upkeep, Noting):
    """A store on one SQLite file, for many threads and processes. Made by `open`."""

    def __init__(
        self,
        path: Path,
        *,
        files: Files,
        random: Callable[[int], bytes],
        again: Again | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.path = path
        self._witness = witness or Witness()
        self._files = files
        self._random = Salts(random)
        self._sql = opening.queries()
        self._translated = translate.at(str(path))
        self._thread_turn = threading.RLock()
        self._holder: int | None = None
        self._known = Known()
        self._place = Place(files, path)
        self.remarks = ()
        self._closed = self._broken = False
        self._seen: int | None = None
        self._rebuilt = 0
        self._turns = Turns(files, self._witness.lock_path(path))
        self._turn = Turn(self.take_turn, self.leave_turn)
        self._post = Post(files, self._turns, random)
        self._news = News()
        self._readers = Readers(lambda: opening.connect(path, write=False))
        try:
            self._open(again)
        except BaseException:
            self._turns.close()
            self._witness.close()
            raise
        self._translated = Translated(self._explained)

    def _open(self, again: Again | None) -> None:
        with self._translated:
            self._turns.take(limits.WRITE_LOCK_WAIT_S)
            try:
                if not self.path.exists() or not self.path.stat().st_size:
                    made = self._witness.new_id(self._random(16))
                    opening.create(self._files, self.path, made)
                had_log = self._place.has_log
                with contextlib.ExitStack() as undo:
                    self._writer, found = self._connected()
                    undo.callback(self._writer.close)
                    self._cursor = self._writer.cursor()
                    store_id = self._store_id = opening.store_id(self._writer, self.path)
                    self._anchor = Anchor(self._files, Path(f"{self.path}-anchor"), store_id)
                    undo.callback(self._anchor.close)
                    checks.expect_own_checkpoint(self._writer, self._anchor, had_log=had_log)
                    told = self._witness.opened(self._writer)
                    noted = checks.compare_anchor(self._writer, self._anchor, store_id)
                    self.remarks = (*told, *noted) if self._witness.tells_of_anchor else told
                    opening.empty_log_on_close(self._writer)
                    self._place.opened(found)
                    self._note_rebuilt()
                    self._finish_erasures(again)
                    undo.pop_all()
            finally:
                self._turns.give()

    def _connected(self) -> tuple[apsw.Connection, tuple[Identity, Identity]]:
        writer = opening.connect(self.path, write=True, synchronous=self._witness.synchronous)
        try:
            opening.migrate(writer, opening.check_format(writer, self.path))
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
        return "process-crash" if self._files.kind(self.path.parent) in MEMORY else "power-loss"

    def turn(self) -> Turn:
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
        opening.check_format(self._writer, self.path)
        self._known.others_wrote()
        self._note_rebuilt()
        # Last: whoever is interrupted before has not noticed it yet.
        self._seen = seen
        return False

    def _note_rebuilt(self) -> None:
        rebuilt = number(self._writer, self._sql["rebuilt"], ())
        if rebuilt != self._rebuilt or not self._post.ready:
            self._known.forget_streams()
            self._post.opened(opening.SCHEMA, self._place.database, rebuilt)
            self._rebuilt = rebuilt

    def _enter(self) -> None:
        # One transaction over everything that is read to decide and then appended: each statement
        # outside one would take and drop SQLite's own locks.
        if self._broken:
            self._reconnect()
        if not self._writer.in_transaction:
            self._place.check_before()
            if not opening.begun(self._cursor):
                self._abandon_writer()
                self._reconnect()
                opening.begun(self._cursor)

    def _reconnect(self) -> None:
        # Only to the very file that was open, and only if it has what was acknowledged: whatever
        # lies at the path by now is not taken on trust.
        self._place.check_database()
        with contextlib.ExitStack() as undo:
            writer, found = self._connected()
            undo.callback(writer.close)
            self._witness.opened(writer)
            checks.compare_anchor(writer, self._anchor, self._store_id)
            opening.empty_log_on_close(writer)
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
        except translate.KINDS as error:
            # Whoever has the turn next brings it up: to say that nothing was written would be untrue.
            if self._witness.kept:
                raise translate.unknown(f"{self.path} can't be written ({error})") from error
            raise
        self._seen = self._writer.data_version("main")

    def commit(self, appends: Sequence[port.Append]) -> list[port.Outcome]:
        """Commit appends in one transaction; the anchor is written before this returns."""
        assert self._holder == threading.get_ident(), "commit belongs inside turn()"
        with self._translated:
            try:
                return self._commit(appends)
            except BaseException:
                self._abandon_writer()
                raise

    def _commit(self, appends: Sequence[port.Append]) -> list[port.Outcome]:
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

    def _committed(self, appends: Sequence[port.Append]) -> list[port.Outcome]:
        for careful in (False, True):
            self._enter()
            batch = writing.Batch(self._cursor, self._known, self._random, careful=careful)
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
            raise translate.unknown(
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
        return translate.of(error, str(self.path))

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
