"""Opens the store, and the index store beside it, that a URL names, and the engine over them.

Other packages register a URL scheme in the entry-point group `limpet.stores`. A handle that is
never closed warns, and its engine is closed at the end of the program.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from limpet import errors, limits
from limpet.admin.erasure import references
from limpet.core.values import ids
from limpet.memory.index_store import IndexStore, VolatileIndexStore
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.stores import store_copy, urls
from limpet.stores.port import HasReadableDocuments, Store

if TYPE_CHECKING:
    from limpet.sessions.session_files import SessionFiles


ENTRY_POINT_GROUP = "limpet.stores"
"""The entry-point group: a URL scheme, and a callable that takes the URL and returns a Store."""


def _open_sqlite(url: str) -> Store:
    from limpet.stores import sqlite  # noqa: PLC0415 - only whoever uses SQLite pays for it

    path = _local_path(url)
    _check_parents(path)
    try:
        return sqlite.open_store(path, again=references.LogErasureReplay())
    except errors.Corrupt as error:
        if error.facts.get("checksums") is not False:
            raise
        mended = sqlite.repair_page_checksums(path, state_cache.derive_stream)
    store = sqlite.open_store(path, again=references.LogErasureReplay())
    store.remarks = (*mended, *store.remarks)
    return store


def _open_files(url: str) -> Store:
    from limpet.stores import files  # noqa: PLC0415 - as above

    path = _local_path(url, "files")
    _check_parents(path)
    return files.open_store(path, again=references.LogErasureReplay())


def _check_parents(path: Path) -> None:
    """Raise InvalidRequest if a parent of a path is no folder."""
    try:
        above = next((each for each in path.absolute().parents if each.exists()), None)
        wrong = above is not None and not above.is_dir()
    except OSError:
        # It may not be looked at: whoever opens it says so.
        return
    if wrong:
        raise errors.InvalidRequest(
            f"{path} can't be made: {above} is a file, and no folder.",
            hint="Name a path that leads through folders only.",
        )


def _open_volatile(url: str) -> Store:
    from limpet.stores.volatile import VolatileStore  # noqa: PLC0415 - as above

    if url.lower() != "volatile:":
        raise errors.InvalidRequest("a volatile store has no name: write just volatile:")
    return VolatileStore()


def _open_server(url: str) -> Store:
    return _server_package(url).open_store(url)


def _server_package(url: str) -> ModuleType:
    """Return the package of a server's scheme; raise NotInstalled, with the command, if its driver is missing."""
    scheme = urls.scheme_of(url)
    name = _SERVER_PACKAGES[scheme]
    try:
        return importlib.import_module(f"limpet.stores.server.{name}")
    except ModuleNotFoundError as error:
        raise errors.NotInstalled(
            f"a store at {scheme}:// needs a library that is not installed: {error.name}.",
            hint=f"Install it with: {errors.pip_install_command(_DRIVER_LIBRARIES[name])}",
            facts={"extra": name},
        ) from error


_SERVER_PACKAGES: Mapping[str, str] = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
}
"""From the scheme of a server to its room, which is also the name of the extra that it needs."""

_DRIVER_LIBRARIES: Mapping[str, str] = {"postgres": "psycopg[binary]", "redis": "redis[hiredis]"}
"""What the extra of a room brings."""

_OPENERS: Mapping[str, Callable[[str], Store]] = {
    "sqlite": _open_sqlite,
    "files": _open_files,
    "volatile": _open_volatile,
    **dict.fromkeys(_SERVER_PACKAGES, _open_server),
}


def open_store(url: str | Path) -> Store:
    """Open the store that a URL or path names: a path, files:///folder, postgresql://…, redis://…, volatile:, …"""
    if not isinstance(cast("object", url), (str, Path)) or "\0" in str(url):
        raise errors.InvalidRequest("a store is named by a path or a URL.")
    if not str(url):
        raise errors.InvalidRequest(
            "the store that was named has an empty name: a variable may be unset where it is used.",
            hint="Name one, such as state.db.",
        )
    if str(url) in (":memory:", "volatile", "memory"):
        raise errors.InvalidRequest(f"{url!s} is no path of a store.", hint="Write volatile: for one in RAM.")
    if isinstance(url, Path) or not urls.scheme_of(url):
        if isinstance(url, str):
            urls.check_path(url)
        return _open_files(str(url)) if is_files_store(url) else _open_sqlite(str(url))
    scheme = urls.scheme_of(url)
    opener = _OPENERS.get(scheme)
    if opener is not None:
        return opener(url)
    from importlib import metadata  # noqa: PLC0415 - slow to import, and rarely needed

    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        return entry.load()(url)
    close = urls.closest_name(scheme, urls.BUILT_IN_SCHEMES)
    ours = "Use a path such as state.db, files:///folder, postgresql://…, redis://…, or volatile:."
    raise errors.UnknownScheme(
        f"no store is registered for {scheme}://.",
        hint=f"Did you mean {close}://? {ours}" if close else ours,
        facts={"scheme": scheme},
    )


def exists_on_server(url: str) -> bool | None:
    """Return whether a store exists on the server that a URL names, without changing it; None for other URLs."""
    return bool(_server_package(url).exists(url)) if urls.scheme_of(url) in _SERVER_PACKAGES else None


def is_files_store(url: str | Path) -> bool:
    """Return whether a path or URL names a folder that holds a file store or the remains of one."""
    path = files_folder(str(url)) or (urls.local_path(url) if "://" not in str(url) else None)
    if path is None or not path.is_dir():
        return False
    from limpet.stores import files  # noqa: PLC0415 - as above

    return files.is_store(path)


def files_folder(url: str) -> Path | None:
    """Return the folder that a files: URL names; None for others."""
    return _local_path(url, "files") if urls.scheme_of(url) == "files" else None


def accept_journal(url: str) -> bool:
    """Accept the journal of a file store as it is, whatever its index has; return False for other stores."""
    folder = files_folder(url) or (urls.local_path(url) if is_files_store(url) else None)
    if folder is None:
        return False
    from limpet.stores import files  # noqa: PLC0415 - as above

    files.delete_index(folder)
    return True


def _local_path(url: str, scheme: str = "sqlite") -> Path:
    if urls.scheme_of(url) != scheme:
        return urls.local_path(url)
    try:
        parts, after = urlsplit(url), url[len(scheme) + 1 :]
    except ValueError:
        # There is a bracket where a host would be.
        raise _not_a_path(url, scheme, "") from None
    relative = scheme == "files" and not after.startswith("/")
    if parts.netloc or not parts.path or parts.query or parts.fragment:
        raise _not_a_path(url, scheme, f"{parts.netloc}{parts.path}")
    return urls.local_path(urls.decode_path(parts.path if not relative else after))


def _not_a_path(url: str, scheme: str, named: str) -> errors.InvalidRequest:
    kind, other = ("folder", "state") if scheme == "files" else ("file", "state.db")
    meant = named.lstrip("/") or other
    bare = f"files:{meant}" if scheme == "files" else f"just {meant}"
    return errors.InvalidRequest(
        f"{urls.without_password(url)} names no {kind}: behind {scheme}: comes a path, and no host, ? or #.",
        hint=f"Write {bare}, or {scheme}:///absolute/path, with %3F for a ? and %23 for a #.",
    )


def sqlite_path(url: str | Path) -> Path | None:
    """Return the SQLite file that a URL or path names; None if it names another store."""
    named = isinstance(url, Path) or urls.scheme_of(url) in ("", "sqlite")
    return _local_path(str(url)).resolve() if named and not is_files_store(url) else None


def open_index_store(url: str | Path) -> IndexStore:
    """Return the shelf beside the store that a URL names; one in RAM where it has neither files nor a server."""
    named, database = str(url), sqlite_path(url)
    place = database and database.with_name(f"{database.name}-memory")
    if folder := files_folder(named) or (urls.local_path(url) if is_files_store(url) else None):
        place = folder.resolve() / ".index" / "memory"
    if place is not None:
        from limpet.stores.sqlite.index_store import SQLiteIndexStore  # noqa: PLC0415 - as above

        return SQLiteIndexStore(place)
    return (
        _server_package(named).open_index_store(named)
        if urls.scheme_of(named) in _SERVER_PACKAGES
        else VolatileIndexStore()
    )


CACHED_TREES_VARIABLE: Final = "LIMPET_CACHED_TREES"
"""The one setting that is read from the environment, as the document of the state index has it."""


def open_engine(
    url: str | Path, tenant: str, *, cached_sessions: int = limits.CACHED_SESSIONS, cached_trees: int | None = None
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
        return Engine(store, factory=ids.SYSTEM_FACTORY, cached_sessions=sessions, cached_trees=trees)
    except BaseException:
        store.close()
        raise


def start_session_files(engine: Engine, interval_s: float) -> SessionFiles | None:
    """Return what writes the files of sessions, in intervals too, for a store that has such a folder."""
    if not isinstance(engine.store, HasReadableDocuments):
        return None
    from limpet.sessions.session_files import SessionFiles  # noqa: PLC0415 - only who has a folder pays for it

    files = SessionFiles(engine, engine.store.documents)
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
_open_handles: weakref.WeakSet[StoreHandle] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    # What is still held when the modules are taken down may be collected too late to warn.
    for handle in list(_open_handles):
        handle.warn_if_open()
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
        self.engine = open_engine(url, tenant, cached_sessions=cached_sessions, cached_trees=cached_trees)
        _open_engines.add(self.engine)
        _open_handles.add(self)
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
        """Return what writes the files of sessions; None for a store without such a folder, and for a reader."""
        self._files = None if self._reading_only else start_session_files(self.engine, interval_s)
        return self._files

    def close(self) -> None:
        """Close the engine and the index store; raise what kept files of sessions from being written. Twice is fine."""
        self._open = False
        files, self._files = self._files, None
        try:
            close_engine(self.engine, files)
        finally:
            if self._shelf is not None:
                self._shelf.close()

    def __del__(self) -> None:
        self.warn_if_open()

    def warn_if_open(self) -> None:
        """Warn, once, if this was not closed."""
        if getattr(self, "_open", False):
            self._open = False
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
