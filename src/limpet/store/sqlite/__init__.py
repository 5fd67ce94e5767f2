"""The SQLite store: one file, many threads and processes, safe through power loss.

Read `store.py` first (the verbs), then `writing.py` (an append), `opening.py` and `anchor.py`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import apsw

from limpet.core.values import ids
from limpet.store import urls
from limpet.store.erasure import Again
from limpet.store.sqlite import opening, translate
from limpet.store.sqlite.files import Files
from limpet.store.sqlite.mending import mend
from limpet.store.sqlite.store import SQLiteStore

__all__ = ["Files", "SQLiteStore", "mend", "open_store"]


_opening = threading.Lock()
_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()


def open_store(
    path: str | Path,
    *,
    files: Files | None = None,
    random: Callable[[int], bytes] = ids.SYSTEM_FACTORY.random,
    again: Again | None = None,
) -> SQLiteStore:
    """Open the store at a path, creating it if nothing is there.

    `again` erases again what was erased since a copy was made that was put here.

    Raises UnsafeStore, NotAStore, NewerStore, Corrupt, StoreReadOnly, StoreBusy or InvalidRequest; in
    each case the file is left as it was.
    """
    place, used = urls.place(path), files or Files()
    with translate.at(str(place)):
        opening.check_library(apsw.sqlite_lib_version())
        opening.check_place(used, place)
        opening.load_checksums()
        with _opening:
            # Reading a file that SQLite has open in this process would drop SQLite's locks on it.
            if not any(store.path == place and store.is_open for store in _stores):
                opening.check_file(place)
                opening.check_beside(place)
            store = SQLiteStore(place, files=used, random=random, again=again)
            _stores.add(store)
            return store
