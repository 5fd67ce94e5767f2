"""Opens the store that a URL names. Third parties register a scheme with an entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import cast
from urllib.parse import urlsplit

from limpet import errors
from limpet.admin.erasure import references
from limpet.memory.index_store import IndexStore, VolatileIndexStore
from limpet.runtime import projections
from limpet.stores import urls
from limpet.stores.port import HasReadableDocuments, ReadableDocuments, Store

STORES = "limpet.stores"
"""The entry-point group: a URL scheme, and a callable that takes the URL and returns a Store."""


def _sqlite(url: str) -> Store:
    from limpet.stores import sqlite  # noqa: PLC0415 - only whoever uses SQLite pays for it

    path = _path(url)
    _check_above(path)
    try:
        return sqlite.open_store(path, again=references.LogErasureReplay())
    except errors.Corrupt as error:
        if error.facts.get("checksums") is not False:
            raise
        mended = sqlite.repair_page_checksums(path, projections.derive_stream)
    store = sqlite.open_store(path, again=references.LogErasureReplay())
    store.remarks = (*mended, *store.remarks)
    return store


def _files(url: str) -> Store:
    from limpet.stores import files  # noqa: PLC0415 - as above

    path = _path(url, "files")
    _check_above(path)
    return files.open_store(path, again=references.LogErasureReplay())


def _check_above(path: Path) -> None:
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


def _volatile(url: str) -> Store:
    from limpet.stores.volatile import VolatileStore  # noqa: PLC0415 - as above

    if url.lower() != "volatile:":
        raise errors.InvalidRequest("a volatile store has no name: write just volatile:")
    return VolatileStore()


def _server(url: str) -> Store:
    return _room(url).open_store(url)


def _room(url: str) -> ModuleType:
    """Return the package of a server's scheme; raise NotInstalled, with the command, if its driver is missing."""
    scheme = urls.scheme_of(url)
    name = _SERVERS[scheme]
    try:
        return importlib.import_module(f"limpet.stores.server.{name}")
    except ModuleNotFoundError as error:
        raise errors.NotInstalled(
            f"a store at {scheme}:// needs a library that is not installed: {error.name}.",
            hint=f"Install it with: {errors.pip_install_command(_DRIVERS[name])}",
            facts={"extra": name},
        ) from error


_SERVERS: Mapping[str, str] = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
}
"""From the scheme of a server to its room, which is also the name of the extra that it needs."""

_DRIVERS: Mapping[str, str] = {"postgres": "psycopg[binary]", "redis": "redis[hiredis]"}
"""What the extra of a room brings."""

_OURS: Mapping[str, Callable[[str], Store]] = {
    "sqlite": _sqlite,
    "files": _files,
    "volatile": _volatile,
    **dict.fromkeys(_SERVERS, _server),
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
        raise errors.InvalidRequest(
            f"{url!s} is no path of a store.", hint="Write volatile: for one in RAM."
        )
    if isinstance(url, Path) or _is_path(url):
        if isinstance(url, str):
            urls.check_path(url)
        return _files(str(url)) if is_folder(url) else _sqlite(str(url))
    scheme = urls.scheme_of(url)
    opener = _OURS.get(scheme)
    if opener is not None:
        return opener(url)
    from importlib import metadata  # noqa: PLC0415 - slow to import, and rarely needed

    for entry in metadata.entry_points(group=STORES, name=scheme):
        return entry.load()(url)
    close = urls.closest_name(scheme, urls.BUILT_IN_SCHEMES)
    ours = "Use a path such as state.db, files:///folder, postgresql://…, redis://…, or volatile:."
    raise errors.UnknownScheme(
        f"no store is registered for {scheme}://.",
        hint=f"Did you mean {close}://? {ours}" if close else ours,
        facts={"scheme": scheme},
    )


def on_server(url: str) -> bool | None:
    """Return whether a store exists on the server that a URL names, without changing it; None for other URLs."""
    return bool(_room(url).exists(url)) if urls.scheme_of(url) in _SERVERS else None


def is_folder(url: str | Path) -> bool:
    """Return whether a path or URL names a folder that holds a file store or the remains of one."""
    path = folder_of(str(url)) or (urls.local_path(url) if "://" not in str(url) else None)
    if path is None or not path.is_dir():
        return False
    from limpet.stores import files  # noqa: PLC0415 - as above

    return files.is_store(path)


def folder_of(url: str) -> Path | None:
    """Return the folder that a files: URL names; None for others."""
    return _path(url, "files") if urls.scheme_of(url) == "files" else None


def take_journal(url: str) -> bool:
    """Accept the journal of a file store as it is, whatever its index has; return False for other stores."""
    folder = folder_of(url) or (urls.local_path(url) if is_folder(url) else None)
    if folder is None:
        return False
    from limpet.stores import files  # noqa: PLC0415 - as above

    files.delete_index(folder)
    return True


def _is_path(url: str) -> bool:
    return not urls.scheme_of(url)


def _path(url: str, scheme: str = "sqlite") -> Path:
    if urls.scheme_of(url) != scheme:
        return urls.local_path(url)
    try:
        parts, after = urlsplit(url), url[len(scheme) + 1 :]
    except ValueError:
        # There is a bracket where a host would be.
        raise _no_path(url, scheme, "") from None
    relative = scheme == "files" and not after.startswith("/")
    if parts.netloc or not parts.path or parts.query or parts.fragment:
        raise _no_path(url, scheme, f"{parts.netloc}{parts.path}")
    return urls.local_path(urls.decode_path(parts.path if not relative else after))


def _no_path(url: str, scheme: str, named: str) -> errors.InvalidRequest:
    kind, other = ("folder", "state") if scheme == "files" else ("file", "state.db")
    meant = named.lstrip("/") or other
    bare = f"files:{meant}" if scheme == "files" else f"just {meant}"
    return errors.InvalidRequest(
        f"{urls.without_password(url)} names no {kind}: behind {scheme}: comes a path, and no host, ? or #.",
        hint=f"Write {bare}, or {scheme}:///absolute/path, with %3F for a ? and %23 for a #.",
    )


def documents_of(store: Store) -> ReadableDocuments | None:
    """Return where a store keeps readable session files; None if it keeps none."""
    return store.documents if isinstance(store, HasReadableDocuments) else None


def path_of(url: str | Path) -> Path | None:
    """Return the SQLite file that a URL or path names; None if it names another store."""
    named = isinstance(url, Path) or urls.scheme_of(url) in ("", "sqlite")
    return _path(str(url)).resolve() if named and not is_folder(url) else None


def open_shelf(url: str | Path) -> IndexStore:
    """Return the shelf beside the store that a URL names; one in RAM where it has neither files nor a server."""
    named, database = str(url), path_of(url)
    place = database and database.with_name(f"{database.name}-memory")
    if folder := folder_of(named) or (urls.local_path(url) if is_folder(url) else None):
        place = folder.resolve() / ".index" / "memory"
    if place is not None:
        from limpet.stores.sqlite.index_store import SQLiteIndexStore  # noqa: PLC0415 - as above

        return SQLiteIndexStore(place)
    return (
        _room(named).open_shelf(named)
        if urls.scheme_of(named) in _SERVERS
        else VolatileIndexStore()
    )
