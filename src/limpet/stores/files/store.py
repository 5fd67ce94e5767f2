"""The store in a readable folder: its commit hook, and the verbs that differ from those of the SQLite store.

Reads are answered by an SQLite index. The commit hook writes every commit to the journal before the index commits it.
The holder of the write lock compares both ends: it brings the index up to the journal if the last writer died between
the two writes, and completes a planned rewrite. An index ahead of the journal means that the journal was truncated:
that raises Corrupt and is never repaired silently.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

import apsw
import msgspec

from limpet import errors, limits
from limpet.core.values.validation import Json
from limpet.stores import port
from limpet.stores.files import journal, journal_index
from limpet.stores.files.folder import INDEX_NAME, LOCK_NAME, FileDocuments, StoreFolder, not_removed_error
from limpet.stores.files.journal import START, CommitJournal, JournalLine, JournalPoint
from limpet.stores.files.journal_index import (
    ErasedContentRemover,
    JournalRewriter,
    JournalVerification,
    RowChangeRecorder,
)
from limpet.stores.port import ErasureReplay
from limpet.stores.sqlite import database, maintenance
from limpet.stores.sqlite.database import NUMBER_MASK, Synchronous, first_row
from limpet.stores.sqlite.shared_file.store_files import MEMORY_FILE_SYSTEMS, StoreFiles
from limpet.stores.sqlite.store import CommitHook, SQLiteStore

TORN_END_REMARK = "the journal ended with {:,} byte(s) of a commit that was never acknowledged; they were cut off"


class IndexUnusable(Exception):
    """The index must be rebuilt: it belongs to another journal, or can't be used. The message is for people."""


class JournalCommitHook(CommitHook):
    """Writes every commit to the journal before SQLite commits it to the index."""

    synchronous: Synchronous = "NORMAL"
    reports_anchor = False

    def __init__(
        self, files: StoreFiles, folder: StoreFolder, documents: FileDocuments, again: ErasureReplay | None
    ) -> None:
        self.journal = CommitJournal(files, folder.journal)
        self._files = files
        self._folder = folder
        self._documents = documents
        self._erasure_replay = again
        self._recorder = RowChangeRecorder()
        self._rewriter = JournalRewriter(files, self.journal)
        self._sql = journal_index.index_statements()
        self._store_id = b""
        self._point = START
        self._point_is_current = False
        """Whether `_point` is the one in the index, as long as no other process commits."""

    def lock_path(self, store: Path) -> Path:
        """Return the path of the lock file: beside the journal, because an index may be deleted."""
        del store
        return self._folder.journal / LOCK_NAME

    def erased_list_path(self, store: Path) -> Path:
        del store
        return self._folder.root / "erased.list"

    def store_id_for_new(self, made: bytes) -> bytes:
        """Return the store id of the journal; create the journal if there is none."""
        found = self.journal.store_id()
        if found is None:
            self.journal.begin(made)
        return found or made

    def _finish_rewrites(self, connection: apsw.Connection) -> list[Path]:
        """Complete planned rewrites and remove temporary files; return undeletable ones. No transaction is open."""
        going = True
        while going:
            with connection:
                going = self._finish_rewrite(connection)
        return self._folder.clear_leftovers()

    def _finish_rewrite(self, connection: apsw.Connection) -> bool:
        """Complete one step of a planned rewrite; return whether the caller must commit and call again.

        The plan is removed only after the index has the new end of the journal. So a crash at any point leaves an
        index whose end is in the journal, or the plan that maps its end to the new one.
        """
        decided = self._rewriter.read_plan()
        if decided is None:
            return False
        if self._rewriter.move_segments(decided) and self._stored_point(connection) == decided.before:
            self._put_point(connection, decided.after)
            return True
        self._rewriter.remove_plan()
        return False

    def attach(self, connection: apsw.Connection) -> None:
        self._recorder.attach(connection)

    def derive(self) -> port.StreamDeriver:
        """Return the function that derives streams; raise Refused if the store was opened without one."""
        if self._erasure_replay is None:
            raise errors.Refused(
                f"the index of {self._folder.root} has to be brought up to its journal.",
                hint="Open it with limpet.connect, which does that first.",
            )
        return self._erasure_replay.derive

    def opened(self, connection: apsw.Connection) -> tuple[str, ...]:
        """Apply to the index what only the journal has.

        Raises IndexUnusable if the index must be rebuilt, Corrupt if the journal lacks acknowledged commits.
        """
        self._finish_rewrites(connection)
        self._store_id = database.read_store_id(connection, self._folder.index)
        point, found = self._stored_point(connection), self.journal.store_id()
        if found is None and point is not None and point.n:
            raise self._lost_commits_error(point)
        if found is None:
            self.journal.begin(self._store_id)
        elif found != self._store_id:
            raise IndexUnusable("the index was of another journal, and was made again from this one")
        if point is None:
            return self._fill_empty_index(connection)
        if not self.journal.has_line_at(point):
            try:
                raise self._mismatch_error(connection, point)
            except errors.Corrupt as error:
                error.hint = f"{error.hint} {journal.rescue_hint(self._folder.root)}"
                raise
        self._point = point
        return self._catch_up_on_open(connection)

    def _stored_point(self, connection: apsw.Connection) -> JournalPoint | None:
        row = first_row(connection, self._sql["point"], ())
        if row is None or not isinstance(row[0], bytes):
            return None
        try:
            return msgspec.json.decode(row[0], type=JournalPoint)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise errors.Corrupt(f"the index of {self._folder.root} does not say how far it has come.") from None

    def _put_point(self, connection: apsw.Connection, point: JournalPoint) -> None:
        connection.execute(self._sql["put_point"], (msgspec.json.encode(point),))
        self._recorder.clear()

    def _fill_empty_index(self, connection: apsw.Connection) -> tuple[str, ...]:
        """Fill an empty index from the whole journal, in one transaction."""
        cut = 0
        with connection:
            last = self._apply_whole_journal(connection)
            if last is not None:
                path = self._folder.root
                self._check_log(connection)
                for _ in maintenance.derive_all(connection, path, self.derive()):
                    pass
            self._point = last.end if last else self.journal.first_point()
            cut = self.journal.sync_last_line(self._point, last)
            self._put_point(connection, self._point)
        return (TORN_END_REMARK.format(cut),) if cut else ()

    def _apply_whole_journal(self, connection: apsw.Connection) -> JournalLine | None:
        """Apply the whole journal to empty tables, in the open transaction; return its last line."""
        last: JournalLine | None = None
        with self._recorder.paused():
            for last in self.journal.walk():
                journal_index.apply_commit(connection, last.change, self._folder.read_blob)
        return last

    def _check_log(self, connection: apsw.Connection) -> None:
        """Raise Corrupt unless the journal's content is an intact log. The checksums of lines prove only their order."""
        try:
            maintenance.raise_if_faulty(self._folder.root, list(maintenance.log_faults(connection, part=True)))
        except errors.Corrupt as error:
            error.facts["journal"] = "damaged"
            raise

    def _lost_commits_error(self, point: JournalPoint) -> errors.Corrupt:
        if not self.journal.path(1).exists():
            return journal.lost_journal_error(self._folder.root)
        error = journal.truncated_journal_error(self._folder.journal, point.n)
        error.hint = f"{error.hint} {journal.rescue_hint(self._folder.root)}"
        return error

    def _mismatch_error(self, connection: apsw.Connection, point: JournalPoint) -> Exception:
        """Return the error for a journal without a line that ends where the index does.

        A journal that was rewritten by an erasure still has every event of the index: then the index is rebuilt.
        """
        n, links, end = 0, dict[int, tuple[int, str]](), self.journal.first_point()
        for step in self.journal.walk():
            n, end = step.end.n, step.end
            for event in step.change.events if n <= point.n else ():
                at = journal_index.event_address(event).position
                links[event.tenant] = max(links.get(event.tenant, (0, "")), (at, event.link))
        heads = {tenant: database.read_head(connection, tenant) for tenant in database.read_tenants(connection)}
        same = all(links.get(t) == (h.position, h.link.hex()) for t, h in heads.items() if h.position)
        if n >= point.n and same:
            return IndexUnusable("the journal had been rewritten, and the index was made again from it")
        self.journal.check_next(end)
        return journal.truncated_journal_error(self._folder.journal, max(0, point.n - n))

    def _catch_up_on_open(self, connection: apsw.Connection) -> tuple[str, ...]:
        if self.journal.is_end(self._point) and self.journal.has_only_padding_after(self._point):
            return ()
        last: JournalLine | None = None
        before = self._point
        walk = self.journal.walk(before)
        while steps := tuple(islice(walk, limits.JOURNAL_REPLAY_COMMITS)):
            last = steps[-1]
            if any(step.change.erased for step in steps):
                # The pages and the log of the index may still hold the erased content.
                raise IndexUnusable("something had been erased since the index was written, and it was made again")
            with connection:
                self._apply_lines(connection, steps)
        cut = self.journal.sync_last_line(before, last)
        return (TORN_END_REMARK.format(cut),) if cut else ()

    def _apply_lines(self, connection: apsw.Connection, steps: tuple[JournalLine, ...]) -> None:
        changes, derive = [step.change for step in steps], self.derive()
        with self._recorder.paused():
            journal_index.apply_and_derive(connection, changes, derive, self._folder.read_blob)
        self._point = steps[-1].end
        self._put_point(connection, self._point)

    def catch_up(self, connection: apsw.Connection, *, others: bool) -> bool:
        """Apply in the open transaction what only the journal has; return whether anything was missing."""
        look = self.journal.look_at_folder()
        if not self.journal.is_folder_unchanged(look) and self._finish_rewrite(connection):
            return True
        if others or not self._point_is_current:
            self._point, self._point_is_current = self._stored_point(connection) or START, True
        if self.journal.is_end(self._point, look):
            return False
        before, steps = self._point, tuple(self.journal.walk(self._point))
        self.journal.sync_last_line(before, steps[-1] if steps else None)
        if steps:
            # Valid only after the commit, whose failure is not reported here: so the point is read again.
            self._point_is_current = False
            self._apply_lines(connection, steps)
        return bool(steps)

    def commit(self, connection: apsw.Connection) -> None:
        """Write the changes of the open transaction to the journal; durable on return."""
        self.kept = False
        change = self._recorder.take_commit(connection, self._point.n + 1, self._folder.write_blob)
        if change is not None:
            self._point = self.journal.append(self._point, self._store_id, change)
            self.kept = True
            self._put_point(connection, self._point)

    def rolled_back(self) -> None:
        self._recorder.clear()
        self._point_is_current = False

    def scrub(self, connection: apsw.Connection) -> errors.Error | None:
        """Rewrite the journal without erased content, and remove blobs and documents that may have it."""
        left = self._finish_rewrites(connection)
        damage: errors.Corrupt | None = None
        try:
            self._rewriter.write_plan(self._store_id, ErasedContentRemover(connection))
            self._finish_rewrites(connection)
            self._point = self._stored_point(connection) or START
        except errors.Corrupt as error:
            # A damaged line can't be rewritten: it has to be restored first.
            damage = error
        left += self._folder.remove_blobs(partial(self._is_needed, connection))
        # A document that quotes erased content belongs to a stream that lost events. It is written again when needed.
        with self._documents.write_lock():
            left += self._documents.drop_unless(partial(self._is_untouched, connection))
        return damage or (not_removed_error(left) if left else None)

    def _is_untouched(self, connection: apsw.Connection, document: Mapping[str, Json]) -> bool:
        match document:
            case {"tenant": str(tenant), "stream": str(stream), "version": int(at), "link": str(link)} if (
                0 < at <= NUMBER_MASK
            ):
                bindings = (tenant, stream, at, link)
                return first_row(connection, self._sql["untouched"], bindings) == (1,)
            case _:
                return False

    def _is_needed(self, connection: apsw.Connection, hash_: bytes) -> bool:
        return first_row(connection, self._sql["has_blob"], (hash_,)) is not None

    @property
    def commits(self) -> int:
        """The number of commits in the journal, as of the last look."""
        return self._point.n

    def new_verification(self) -> JournalVerification:
        return JournalVerification(self.journal, self._folder)

    def refill(self, connection: apsw.Connection, derive: port.StreamDeriver) -> Iterator[port.Rebuilt]:
        """Rebuild the whole index from the journal, in the open transaction; yield the counts so far."""
        with self._recorder.paused():
            connection.execute(self._sql["clear_truth"])
        last = self._apply_whole_journal(connection)
        maintenance.raise_if_faulty(self._folder.root, list(maintenance.log_faults(connection)))
        yield from maintenance.derive_all(connection, self._folder.root, derive)
        self._point = last.end if last else self.journal.first_point()
        self._put_point(connection, self._point)

    def before_close(self) -> None:
        self.journal.remove_padding(self._point)

    def close(self) -> None:
        self.journal.close()


INDEX_REBUILT_REMARK = "the index could not be used ({}), and was made again from the journal"


class FilesStore(SQLiteStore):
    """A store in one folder, safe for threads and processes. `open_store` makes it."""

    def __init__(
        self,
        folder: StoreFolder,
        *,
        files: StoreFiles,
        random: Callable[[int], bytes],
        again: ErasureReplay | None = None,
    ) -> None:
        self.folder = folder
        self.documents = FileDocuments(files, folder.sessions)
        self._journal_hook = JournalCommitHook(files, folder, self.documents, again)
        super().__init__(folder.index / INDEX_NAME, files=files, random=random, again=again, witness=self._journal_hook)

    def _open(self, again: ErasureReplay | None) -> None:
        try:
            super()._open(again)
            return
        except IndexUnusable as error:
            why = str(error)
        except errors.Corrupt as error:
            # A damaged journal, or lost acknowledged commits, can't be repaired by a new index.
            if error.facts.get("journal") or error.facts.get("anchor"):
                raise
            why = INDEX_REBUILT_REMARK.format(error.message.rstrip("."))
        self._drop_index()
        super()._open(again)
        self.remarks = (why, *self.remarks)

    def _reconnect(self) -> None:
        try:
            super()._reconnect()
        except IndexUnusable as error:
            raise errors.Unavailable(
                f"the index of {self.folder.root} has to be made again: {error}.",
                hint="Connect again, which does that.",
            ) from error

    def _translate_error(self, error: Exception) -> errors.Error:
        """Return the Limpet error for a driver error, with a hint that the index can be rebuilt."""
        found = super()._translate_error(error)
        if isinstance(found, errors.Corrupt):
            found.hint = (
                "The journal is the truth: run limpet rebuild, or stop every program that uses the folder"
                f" and remove {self.folder.index}."
            )
        return found

    def _drop_index(self) -> None:
        """Delete the index but not its anchor, which knows the acknowledged heads."""
        with self._error_translator:
            for end in ("", "-wal", "-shm"):
                self._files.remove(Path(f"{self.path}{end}"))
            self._files.sync(self.folder.index)

    @property
    def durability(self) -> str:
        """Return `power-loss`, because each journal line is synced before the acknowledgement; less on a RAM disk."""
        kind = self._files.file_system_type(self.folder.journal)
        return "process-crash" if kind in MEMORY_FILE_SYSTEMS else "power-loss"

    def verify(self) -> Iterator[int | port.Report]:
        """Check every line of the journal and every blob's file, then the index as any SQLite store."""
        self._check_open()
        faults = tuple(self._journal_faults())
        for step in super().verify():
            if isinstance(step, port.Report):
                yield msgspec.structs.replace(step, faults=tuple(dict.fromkeys((*faults, *step.faults))))
            else:
                yield step

    def _journal_faults(self) -> Iterator[str]:
        proof = self._journal_hook.new_verification()
        with self._error_translator:
            for _ in proof.check_unlocked():
                pass
        with self.write_lock(), self._read_connection() as connection:
            try:
                for _ in proof.check_locked():
                    pass
                yield from proof.differences(connection)
            except (errors.Corrupt, errors.NotAStore) as error:
                yield error.message

    def rebuild(self, derive: port.StreamDeriver) -> Generator[int | port.Rebuilt]:
        """Verify the journal, then rebuild the whole index from it, in one transaction."""
        self._check_open()
        proof, proved, made = self._journal_hook.new_verification(), 0, port.Rebuilt()
        with self._error_translator:
            for proved in proof.check_unlocked():
                yield proved
        with self._write_transaction() as writer:
            for proved in proof.check_locked():
                yield proved
            for made in self._journal_hook.refill(writer, derive):
                yield proved + made.events
        self._cache.forget_streams()
        yield made

    def status(self) -> Mapping[str, Json]:
        return {
            **super().status(),
            "store": str(self.folder.root),
            "backend": "files",
            "bytes": self.folder.size_bytes,
            "commits": self._journal_hook.commits,
            "session_files": self.documents.survey(self.version),
            "segments": len(self._journal_hook.journal.segments()),
        }


_conforms: type[port.Store] = FilesStore
