"""The file store: a folder that people can read and keep in git.

Read `store.py` first, then `following.py` (what happens at a commit and at an opening), `journal.py` and `lines.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from limpet import limits
from limpet.core.values import ids
from limpet.store import urls
from limpet.store.erasure import Again
from limpet.store.files.folder import LOCK, Folder
from limpet.store.files.naming import safe_name
from limpet.store.files.store import FilesStore
from limpet.store.sqlite import opening, translate
from limpet.store.sqlite.files import Files
from limpet.store.sqlite.turns import Turns

__all__ = ["Files", "FilesStore", "Folder", "forget_index", "is_store", "open_store", "safe_name"]


def open_store(
    path: str | Path,
    *,
    files: Files | None = None,
    random: Callable[[int], bytes] = ids.SYSTEM_FACTORY.random,
    again: Again | None = None,
) -> FilesStore:
    """Open the store in a folder, creating it if nothing is there.

    `again` knows how streams are derived, for an index that has to be brought up to its journal, and erases again
    what was erased since a copy was made that was put here.

    Raises UnsafeStore, NewerStore, Corrupt, StoreReadOnly, StoreBusy, Refused or InvalidRequest; in each case the
    journal is left as it was.
    """
    place, used = urls.place(path), files or Files()
    with translate.at(str(place)):
        opening.check_library(apsw.sqlite_lib_version())
        folder = Folder(used, place)
        folder.prepare()
        opening.load_checksums()
        return FilesStore(folder, files=used, random=random, again=again)


def is_store(path: str | Path) -> bool:
    """Whether a folder holds a store, or what is left of one that lost its journal."""
    return Folder(Files(), Path(path).expanduser()).is_store()


def forget_index(path: str | Path, files: Files | None = None) -> None:
    """Throw an index away with all that it knows, so that the journal is taken as it is. Nobody may use the store."""
    place, used = urls.place(path), files or Files()
    with translate.at(str(place)):
        folder = Folder(used, place)
        turns = Turns(used, folder.journal / LOCK)
        try:
            turns.take(limits.WRITE_LOCK_WAIT_S)
            for found in folder.index.glob("state.db*"):
                used.remove(found)
            used.sync(folder.index)
        finally:
            turns.close()
