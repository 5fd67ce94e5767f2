"""Bugs to plant in the store: each fault test must catch its own, or it proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from limpet.stores import chain, port
from limpet.stores.files import journal
from limpet.stores.files import store as files_store
from limpet.stores.files.journal import JournalPoint
from limpet.stores.sqlite import database, log_writes, store
from limpet.stores.sqlite.shared_file.store_files import Anchor, StoreFiles
from tests.faults.recorder import RecordingFiles

# Author, who notes every acknowledgement before the engine is asked, plants this one by itself.
EARLY_ACK = "early-ack"


def plant(name: str) -> None:
    """Put the bug of that name into this process, for good; no name, no bug."""
    if name not in ("", EARLY_ACK):
        _BUGS[name]()


def _synchronous(level: str) -> Callable[[], None]:
    """The setting is weakened after it has been read back."""

    def bug() -> None:
        sound = database.connect

        def connect(path: Path, *, write: bool, synchronous: database.Synchronous = "FULL") -> apsw.Connection:
            connection = sound(path, write=write, synchronous=synchronous)
            connection.execute(f"PRAGMA synchronous = {level}")
            return connection

        database.connect = connect

    return bug


def _anchor_first() -> None:
    """The anchor is written before the commit that it speaks of."""
    sound = log_writes.AppendBatch.append
    anchors: list[Anchor] = []

    class Remembered(Anchor):
        def __init__(self, files: StoreFiles, path: Path, store_id: bytes) -> None:
            super().__init__(files, path, store_id)
            anchors.append(self)

    def append(self: log_writes.AppendBatch, append: port.Append) -> port.AppendOutcome:
        outcome = sound(self, append)
        anchors[-1].write(self.heads)
        return outcome

    log_writes.AppendBatch.append = append
    store.Anchor = Remembered


def _no_page_sums() -> None:
    """Pages are read as they are."""
    database.CHECKSUM_VFS = "unix"


def _no_digests() -> None:
    """Neither page nor event is checked when read."""
    _no_page_sums()
    chain.event_digest = lambda salt, header_, payload: _Anything()
    chain.is_linked = lambda row, before: True


class _Anything(bytes):
    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def _no_anchor() -> None:
    """What the log has lost is not missed."""
    database.anchor_faults = lambda connection, anchor, store_id: ([], ())


def _journal_not_synced() -> None:
    """A line of the journal is acknowledged while only memory has it."""
    RecordingFiles.datasync = lambda self, fd: None


def _folder_not_synced() -> None:
    """A new segment is acknowledged before its name is sure."""
    sound = RecordingFiles.sync

    def sync(self: RecordingFiles, path: Path) -> None:
        if path.name != "journal":
            sound(self, path)

    RecordingFiles.sync = sync


def _index_first() -> None:
    """The index has a commit before the journal does."""
    sound = files_store.JournalCommitHook.commit

    def commit(self: files_store.JournalCommitHook, connection: apsw.Connection) -> None:
        cursor = connection.cursor()
        sound_append = self.journal.append

        def append(point: JournalPoint, store_id: bytes, change: journal.CommitLine) -> JournalPoint:
            cursor.execute("COMMIT")
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
            cursor.execute("BEGIN IMMEDIATE")
            return sound_append(point, store_id, change)

        self.journal.append = append
        try:
            sound(self, connection)
        finally:
            self.journal.append = sound_append

    files_store.JournalCommitHook.commit = commit


_BUGS: dict[str, Callable[[], None]] = {
    "synchronous-normal": _synchronous("NORMAL"),
    "synchronous-off": _synchronous("OFF"),
    "anchor-first": _anchor_first,
    "no-page-sums": _no_page_sums,
    "no-digests": _no_digests,
    "no-anchor": _no_anchor,
    "journal-not-synced": _journal_not_synced,
    "folder-not-synced": _folder_not_synced,
    "index-first": _index_first,
}
