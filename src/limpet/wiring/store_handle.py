"""Opens an engine over a store, and closes what was opened with it.

A handle that is never closed warns, and its engine is closed at the end of the program.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from limpet import errors, limits
from limpet.core.values import ids
from limpet.memory.index_store import IndexStore
from limpet.runtime.engine import Engine
from limpet.stores import store_copy, urls
from limpet.wiring.store_schemes import open_index_store, open_store, session_documents_of

if TYPE_CHECKING:
    from limpet.sessions.session_files import SessionFiles

CACHED_TREES_VARIABLE: Final = "LIMPET_CACHED_TREES"
"""The one setting that is read from the environment, as the document of the state index has it."""


def open_engine(
    url: str | Path,
    tenant: str,
    *,
    cached_sessions: int = limits.CACHED_SESSIONS,
    cached_trees: int | None = None,
) -> Engine:
    """Open the store that a URL names and put an engine with the real clock over it.

    Raises UnsafeStore, and closes the store, if the tenant is not all there yet. Every door opens here.
    """
    sessions = _checked_count("cached_sessions", cached_sessions)
    if cached_trees is None:
        named = os.environ.get(CACHED_TREES_VARIABLE) or str(limits.CACHED_TREES)
        trees = _checked_count(CACHED_TREES_VARIABLE, int(named) if named.isdecimal() else named)
    else:
        trees = _checked_count("cached_trees", cached_trees)
    store = open_store(url)
    try:
        store_copy.refuse_incomplete_copy(store, tenant)
        return Engine(
            store, factory=ids.SYSTEM_FACTORY, cached_sessions=sessions, cached_trees=trees
        )
    except BaseException:
        store.close()
        raise


def start_session_files(engine: Engine, interval_s: float) -> SessionFiles | None:
    """Return what writes the files of sessions, in intervals too, for a store that has such a folder."""
    documents = session_documents_of(engine.store)
    if documents is None:
        return None
    from limpet.sessions.session_files import SessionFiles  # noqa: PLC0415 - only who has a folder pays for it

    files = SessionFiles(engine, documents)
    files.start(interval_s)
    return files


def close_engine(engine: Engine, files: SessionFiles | None) -> None:
    """Close what writes the files of sessions, then the engine, whatever the first raises."""
    try:
        if files is not None:
            files.close()
    finally:
        engine.close()


def _checked_count(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise errors.InvalidRequest(f"{name} must be a whole number of 1 or more, not {value!r}.")
    return value


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    # A program that ends without closing must not lose what is under way.
    for engine in list(_open_engines):
        with contextlib.suppress(errors.Error):
            engine.close()


class StoreHandle:
    """An open engine that warns if it is forgotten, and is closed at the end of the program then."""

    def __init__(
        self,
        url: str | Path,
        tenant: str,
        *,
        cached_sessions: int,
        cached_trees: int | None = None,
        looking: bool = False,
    ) -> None:
        self.engine = open_engine(
            url, tenant, cached_sessions=cached_sessions, cached_trees=cached_trees
        )
        _open_engines.add(self.engine)
        self._where = _caller_location()
        self._url = url
        # Nothing can be imported any more when a program ends, and what takes a password out needs that.
        self._shown = urls.without_password(url)
        self._reading_only = looking
        self._open = True
        self._shelf: IndexStore | None = None
        self._files: SessionFiles | None = None
        self._opening = threading.Lock()

    def index_store(self) -> IndexStore:
        """Return the shelf beside the store, opened when it is first asked for."""
        with self._opening:
            if self._shelf is None:
                self._shelf = open_index_store(self._url)
            return self._shelf

    def start_files(self, interval_s: float) -> SessionFiles | None:
        """Return what writes the files of sessions, for a store that has such a folder; closed with the rest.

        None for who only looks.
        """
        self._files = None if self._reading_only else start_session_files(self.engine, interval_s)
        return self._files

    def close(self) -> None:
        """Close the engine, and the shelf if there is one; raise what kept the files of sessions from being written.

        Closing twice is fine.
        """
        self._open = False
        files, self._files = self._files, None
        try:
            close_engine(self.engine, files)
        finally:
            if self._shelf is not None:
                self._shelf.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            warnings.warn(
                f"{self._shown}, opened at {self._where}, was never closed; use it in a with statement",
                ResourceWarning,
                stacklevel=2,
            )


def _caller_location() -> str:
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - to name who forgot to close
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
