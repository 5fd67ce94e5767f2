"""The store in a readable folder: the verbs that differ from those of the SQLite store.

Reads are answered by an SQLite index. Every commit is written to the journal first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import msgspec

from limpet import errors
from limpet.core.values.validation import Json
from limpet.stores import port
from limpet.stores.files.folder import INDEX_NAME, FileDocuments, StoreFolder
from limpet.stores.files.journal_commit_hook import IndexUnusable, JournalCommitHook
from limpet.stores.port import ErasureReplay
from limpet.stores.sqlite.shared_file.store_files import MEMORY_FILE_SYSTEMS, StoreFiles
from limpet.stores.sqlite.store import SQLiteStore

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
