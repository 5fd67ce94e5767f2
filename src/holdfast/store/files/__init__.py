"""The file store: a folder that people can read and keep in git.

Read `store.py` first, then `following.py` (what happens at a commit and at an opening), `journal.py` and `lines.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast import errors
from holdfast.store.erasure import Again
from holdfast.store.files.folder import Folder
from holdfast.store.files.naming import safe_name
from holdfast.store.files.store import FilesStore
from holdfast.store.sqlite import opening, translate
from holdfast.store.sqlite.files import Files
from holdfast.values import ids

__all__ = ["Files", "FilesStore", "Folder", "open_store", "safe_name"]


def open_store(
    path: str | Path,
    *,
    files: Files | None = None,
    random: Callable[[int], bytes] = ids.SYSTEM.random,
    again: Again | None = None,
) -> FilesStore:
    """Open the store in a folder, creating it if nothing is there.

    `again` knows how streams are derived, for an index that has to be brought up to its journal, and erases again
    what was erased since a copy was made that was put here.

    Raises UnsafeStore, NewerStore, Corrupt, StoreReadOnly, StoreBusy, Refused or InvalidRequest; in each case the
    journal is left as it was.
    """
    try:
        place = Path(path).expanduser().resolve()
    except RuntimeError as error:
        raise errors.InvalidRequest(f"{path} is not a place for a folder: {error}") from error
    used = files or Files()
    with translate.at(str(place)):
        opening.check_library(apsw.sqlite_lib_version())
        folder = Folder(used, place)
        folder.prepare()
        opening.load_checksums()
        return FilesStore(folder, files=used, random=random, again=again)
