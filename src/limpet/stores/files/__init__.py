"""The file store: a folder that people can read and keep in git.

Read `store.py` first (what happens at a commit and at an opening), then `journal.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from limpet import limits
from limpet.core.values import ids
from limpet.stores import urls
from limpet.stores.files.folder import LOCK_NAME, StoreFolder, safe_name
from limpet.stores.files.store import FilesStore
from limpet.stores.port import ErasureReplay
from limpet.stores.sqlite import database
from limpet.stores.sqlite.shared_file.store_files import ProcessWriteLock, StoreFiles

__all__ = ["FilesStore", "StoreFiles", "StoreFolder", "delete_index", "is_store", "open_store", "safe_name"]


def open_store(
    path: str | Path,
    *,
    files: StoreFiles | None = None,
    random: Callable[[int], bytes] = ids.SYSTEM_FACTORY.random,
    again: ErasureReplay | None = None,
) -> FilesStore:
    """Open the store in a folder, creating it if nothing is there.

    `again` derives the rows of an index that lags behind its journal, and repeats the erasures that a restored backup
    lacks. Raises UnsafeStore, NewerStore, Corrupt, StoreReadOnly, StoreBusy, Refused or InvalidRequest; in each case
    the journal is left as it was.
    """
    place, used = urls.resolve_path(path), files or StoreFiles()
    with database.translator(str(place)):
        database.check_sqlite_version(apsw.sqlite_lib_version())
        folder = StoreFolder(used, place)
        folder.prepare()
        database.register_checksum_vfs()
        return FilesStore(folder, files=used, random=random, again=again)


def is_store(path: str | Path) -> bool:
    """Return whether a folder holds a store, or the remains of one that lost its journal."""
    return StoreFolder(StoreFiles(), Path(path).expanduser()).is_store()


def delete_index(path: str | Path, files: StoreFiles | None = None) -> None:
    """Delete an index, so that the journal is accepted as it is. No process may use the store meanwhile."""
    place, used = urls.resolve_path(path), files or StoreFiles()
    with database.translator(str(place)):
        folder = StoreFolder(used, place)
        lock = ProcessWriteLock(used, folder.journal / LOCK_NAME)
        try:
            lock.acquire(limits.WRITE_LOCK_WAIT_S)
            for found in folder.index.glob("state.db*"):
                used.remove(found)
            used.sync(folder.index)
        finally:
            lock.close()
