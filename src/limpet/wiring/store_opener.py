"""Opens the store of a URL with its index store and engine; restores backups.

Other packages register a URL scheme in the entry-point group `limpet.stores`. A handle that is
never closed warns, and its engine is closed at the end of the program.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shlex
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from limpet import errors, limits
from limpet.admin import erasure, migrate
from limpet.admin.migrate import Migrated
from limpet.core.values import ids
from limpet.memory import index_store
from limpet.memory.index_store import IndexStore, VolatileIndexStore
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.stores import store_copy, urls
from limpet.stores.port import HasReadableDocuments, Store

if TYPE_CHECKING:
    from limpet.admin.log import Progress
    from limpet.sessions.session_files import SessionFiles


ENTRY_POINT_GROUP = "limpet.stores"
"""The entry-point group: a URL scheme, and a callable that takes the URL and returns a Store."""


def _open_sqlite(url: str) -> Store:
    from limpet.stores import sqlite  # noqa: PLC0415 - only whoever uses SQLite pays for it

    path = _local_path(url)
    _check_parents(path)
    again = erasure.LogErasureReplay()
    try:
        return sqlite.open_store(path, again=again)
    except errors.Corrupt as error:
        if error.facts.get("checksums") is not False:
            raise
        mended = sqlite.repair_page_checksums(path, state_cache.derive_stream)
    store = sqlite.open_store(path, again=again)
    store.remarks = (*mended, *store.remarks)
    return store


def _open_files(url: str) -> Store:
    from limpet.stores import files  # noqa: PLC0415 - as above

    path = _local_path(url, "files")
    _check_parents(path)
    return files.open_store(path, again=erasure.LogErasureReplay())


def _check_parents(path: Path) -> None:
    try:
        above = next((each for each in path.absolute().parents if each.exists()), None)
        wrong = above is not None and not above.is_dir()
    except OSError:
        # Without permission to look: opening the store reports that.
        return
    if wrong:
        raise errors.InvalidRequest(
            f"{path} can't be made: {above} is a file, not a folder.",
            hint="Name a path that leads through folders only.",
        )


def _open_volatile(url: str) -> Store:
    from limpet.stores.volatile import VolatileStore  # noqa: PLC0415 - as above

    if url.lower() != "volatile:":
        raise errors.InvalidRequest("a volatile store has no name: write just volatile:")
    return VolatileStore()


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
    **dict.fromkeys(("postgresql", "postgres"), "postgres"),
    **dict.fromkeys(("redis", "rediss", "redis+cluster", "rediss+cluster"), "redis"),
}
"""The package of each server scheme. The extra that the package needs has the same name."""

_DRIVER_LIBRARIES: Mapping[str, str] = {"postgres": "psycopg[binary]", "redis": "redis[hiredis]"}
"""The library that an extra brings."""

_OPENERS: Mapping[str, Callable[[str], Store]] = {
    "sqlite": _open_sqlite,
    "files": _open_files,
    "volatile": _open_volatile,
    **dict.fromkeys(_SERVER_PACKAGES, lambda url: _server_package(url).open_store(url)),
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


def _files_store_folder(url: str) -> Path | None:
    """Return the folder that a files: URL, or the path of a file store, names; None for others."""
    return files_folder(url) or (urls.local_path(url) if is_files_store(url) else None)


def accept_journal(url: str) -> bool:
    """Accept the journal of a file store as it is, whatever its index has; return False for other stores."""
    folder = _files_store_folder(url)
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
    """Return the index store beside a URL's store: in files, on the same server, or else in RAM."""
    named, database, path = str(url), sqlite_path(url), None
    if database is not None:
        path = database.with_name(f"{database.name}-memory")
    elif folder := _files_store_folder(named):
        path = folder.resolve() / ".index" / "memory"
    elif urls.scheme_of(named) in _SERVER_PACKAGES:
        return _server_package(named).open_index_store(named)
    if path is None:
        return VolatileIndexStore()
    from limpet.stores.sqlite.index_store import SQLiteIndexStore  # noqa: PLC0415 - as above

    return SQLiteIndexStore(path)


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_open_handles: weakref.WeakSet[StoreHandle] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    # A handle that is collected while the interpreter takes down its modules is too late to warn.
    for handle in list(_open_handles):
        handle.warn_if_open()
    # A program that ends without closing must not lose commits in flight.
    for engine in list(_open_engines):
        with contextlib.suppress(errors.Error):
            engine.close()


CACHED_TREES_VARIABLE: Final = "LIMPET_CACHED_TREES"
"""The only setting that is read from the environment: the StateIndex document asks for it."""


class StoreHandle:
    """An open store: its engine with the real clock, its index store and its session files.

    Raises UnsafeStore, and closes the store, if the tenant's copy is incomplete. A handle that is collected without
    being closed warns; with `warns` also at the end of the program. The engine is closed at the end of the program.
    """

    def __init__(
        self,
        url: str | Path,
        tenant: str,
        *,
        cached_sessions: int = limits.CACHED_SESSIONS,
        cached_trees: int | None = None,
        looking: bool = False,
        warns: bool = True,
    ) -> None:
        sessions, trees = _checked_count("cached_sessions", cached_sessions), _checked_cached_trees(cached_trees)
        store = open_store(url)
        try:
            store_copy.refuse_incomplete_copy(store, tenant)
            self.engine = Engine(store, factory=ids.SYSTEM_FACTORY, cached_sessions=sessions, cached_trees=trees)
        except BaseException:
            store.close()
            raise
        _open_engines.add(self.engine)
        if warns:
            _open_handles.add(self)
        self._where = _caller_location()
        self._url = url
        # Computed now, because removing the password imports a module, which is impossible when the program ends.
        self._shown = urls.without_password(url)
        self.reading_only = looking
        self._open = True
        self._index_store: IndexStore | None = None
        self._files: SessionFiles | None = None
        self._opening = threading.Lock()

    def index_store(self) -> IndexStore:
        """Return the index store beside the store, opened at its first use."""
        with self._opening:
            if self._index_store is None:
                self._index_store = open_index_store(self._url)
            return self._index_store

    def start_files(self, interval_s: float) -> SessionFiles | None:
        """Start the writer of readable session files and return it; None if the store has no files, or is only read."""
        store = self.engine.store
        if isinstance(store, HasReadableDocuments) and not self.reading_only:
            from limpet.sessions.session_files import SessionFiles  # noqa: PLC0415 - only who has a folder pays for it

            self._files = SessionFiles(self.engine, store.documents)
            self._files.start(interval_s)
        return self._files

    def close(self) -> None:
        """Close engine, index store and files; raise the error that kept files from being written. Idempotent."""
        self._open = False
        files, self._files = self._files, None
        with contextlib.ExitStack() as closing:
            if self._index_store is not None:
                closing.callback(self._index_store.close)
            closing.callback(self.engine.close)
            if files is not None:
                files.close()

    def __del__(self) -> None:
        self.warn_if_open()

    def warn_if_open(self) -> None:
        """Warn, once, if the handle was not closed."""
        if getattr(self, "_open", False):
            self._open = False
            warnings.warn(
                f"{self._shown}, opened at {self._where}, was never closed; use it in a with statement",
                ResourceWarning,
                stacklevel=2,
            )


def _checked_count(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise errors.InvalidRequest(f"{name} must be a whole number of 1 or more, not {value!r}.")
    return value


def _checked_cached_trees(value: int | None) -> int:
    if value is not None:
        return _checked_count("cached_trees", value)
    named = os.environ.get(CACHED_TREES_VARIABLE) or str(limits.CACHED_TREES)
    return _checked_count(CACHED_TREES_VARIABLE, int(named) if named.isdecimal() else named)


def _caller_location() -> str:
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - to name who forgot to close
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def restore(backup: str | Path, target: str | Path, progress: Progress, *, verify: bool = True) -> Migrated:
    """Restore a backup into a store that is empty or does not exist; return the counts.

    For a SQLite target the backup's file is copied, the erasures in the list beside the target are repeated, and the
    file gets its name after it is checked. Into any other store the log is copied. Repeat an interrupted restore.
    Raises InvalidRequest if the target is not empty.
    """
    path = sqlite_path(target)
    with contextlib.closing(open_store(backup)) as source:
        if path is not None and (put := _restore_file(source, path, progress, verify=verify)) is not None:
            return put
        with contextlib.closing(open_store(target)) as store:
            _check_empty(source, store, urls.without_password(backup), urls.without_password(target))
            return migrate.migrate(source, store, progress, verify=verify, follow=False)


def abandon_copy(target: str | Path, tenants: Sequence[str], progress: Progress) -> list[str]:
    """Make the tenants of an abandoned copy usable: see `migrate.abandon_copy`."""
    with contextlib.closing(open_store(target)) as store:
        return migrate.abandon_copy(store, tenants, progress)


def _check_empty(source: Store, store: Store, backup: str, shown: str) -> None:
    """Raise InvalidRequest unless a store is empty or has an interrupted restore, which the copy compares with the source."""
    there = store.tenants()
    begun = any(store_copy.is_copy_incomplete(store, tenant) for tenant in there)
    if there and (not begun or set(there) - set(source.tenants())):
        raise errors.InvalidRequest(
            f"{shown} is not empty.",
            hint=f"Restore into a new store.{'' if begun else _merge_hint(source, store, backup, shown)}",
            facts={"exists": shown},
        )


def _merge_hint(source: Store, store: Store, backup: str, shown: str) -> str:
    """Return a hint: the commands that add a backup's tenants, or its sessions, to a store that is not empty."""
    tenants = source.tenants()
    if not set(tenants) & set(store.tenants()):
        return f" Its tenants are not there yet, and can be added: {shlex.join(['limpet', 'migrate', backup, shown])}"
    out = shlex.join(["limpet", "export", "-o", "sessions.jsonl", "--url", backup])
    into = shlex.join(["limpet", "import", "sessions.jsonl", "--url", shown])
    each = " (for each tenant, with --tenant)" if list(tenants) != ["default"] else ""
    return f" To bring its sessions in beside those that are there{each}: {out} && {into}"


def _restore_file(source: Store, path: Path, progress: Progress, *, verify: bool) -> Migrated | None:
    """Copy a backup's file into a staging folder, check it, and move it to its path; None if the backup has no file."""
    from limpet.stores.sqlite import maintenance  # noqa: PLC0415 - only whoever uses SQLite pays for it

    if maintenance.files_of_store(path) and not migrate.copy_store_file(source, path, progress):
        # The files may be of an interrupted copy of a log. A backup with a file has raised by now.
        return None
    with store_copy.locked_staging_folder(path) as folder:
        made = maintenance.clear_restore_folder(folder)
        if not migrate.copy_store_file(source, made, progress):
            return None
        maintenance.copy_erased_list(path, made)
        came = _check_restored(made, progress, verify=verify)
        maintenance.place_store(made, path)
    return came


def _check_restored(path: Path, progress: Progress, *, verify: bool) -> Migrated:
    with contextlib.closing(open_store(path)) as store:
        if verify:
            migrate.verify_copy(store, progress)
        # Memory may have forgotten users since, of whom no session is left to be in the erased list.
        index_store.unpair(store)
        ends = {tenant: store.head(tenant) for tenant in store.tenants()}
        heads = {tenant: migrate.link_at(store, tenant, end).hex() for tenant, end in ends.items()}
        events = sum(ends.values())
        return Migrated(
            tenants=len(ends), events=events, copied=events, keys=0, notes=0, passes=0,
            verified=verify, heads=heads, behind={},
        )  # fmt: skip
