"""The SQLite store: one file, many threads and processes, safe through power loss.

Read `store.py` first (the verbs), then `writing.py` (an append), `opening.py` and `anchor.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast.store.sqlite import opening
from holdfast.store.sqlite.files import Files
from holdfast.store.sqlite.mending import mend
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.store.sqlite.translate import Translated

__all__ = ["Files", "SQLiteStore", "mend", "open_store"]


def open_store(
    path: str | Path, *, files: Files | None = None, random: Callable[[int], bytes] = os.urandom
) -> SQLiteStore:
    """Open the store at a path, creating it if nothing is there.

    Raises UnsafeStore, NotAStore, NewerStore, Corrupt, StoreReadOnly, StoreBusy or InvalidRequest; in
    each case the file is left as it was.
    """
    place = Path(path).expanduser().absolute()
    used = files or Files()
    with Translated(str(place)):
        opening.check_library(apsw.sqlite_lib_version())
        opening.check_place(used, place)
        opening.check_file(place)
        opening.load_checksums()
        return SQLiteStore(place, files=used, random=random)
