"""The SQLite store: one file for many threads and processes, safe through power loss.

Read `store.py` first (the verbs), then `log_writes.py` (an append), `database.py` and `shared_file/store_files.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import apsw

from limpet.core.values import ids
from limpet.stores import urls
from limpet.stores.port import ErasureReplay
from limpet.stores.sqlite import database
from limpet.stores.sqlite.maintenance import repair_page_checksums
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from limpet.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore", "StoreFiles", "open_store", "repair_page_checksums"]


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

    `again` erases again what was erased since a copy was made that was put here.

    Raises UnsafeStore, NotAStore, NewerStore, Corrupt, StoreReadOnly, StoreBusy or InvalidRequest; in
    each case the file is left as it was.
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
