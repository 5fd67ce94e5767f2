"""Which store a URL names. Third parties register a scheme with an entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import cast
from urllib.parse import unquote, urlsplit

from holdfast import errors
from holdfast.engine import deriving, stand_ins
from holdfast.memory.shelf import Shelf, VolatileShelf
from holdfast.store.port import Store

STORES = "holdfast.stores"
"""Entry-point group: a URL scheme's name and a callable that takes the URL and returns a Store."""


def _sqlite(url: str) -> Store:
    from holdfast.store import sqlite  # noqa: PLC0415 - only whoever uses SQLite pays for it

    path = _path(url)
    try:
        return sqlite.open_store(path, again=stand_ins.Again())
    except errors.Corrupt as error:
        if error.facts.get("checksums") is not False:
            raise
        mended = sqlite.mend(path, deriving.derived)
    store = sqlite.open_store(path, again=stand_ins.Again())
    store.remarks = (*mended, *store.remarks)
    return store


def _volatile(url: str) -> Store:
    from holdfast.store.volatile import VolatileStore  # noqa: PLC0415 - as above

    if url != "volatile:":
        raise errors.InvalidRequest("a volatile store has no name: write just volatile:")
    return VolatileStore()


def _redis(url: str) -> Store:
    return _redis_room().open_store(url)


def _redis_room() -> ModuleType:
    try:
        from holdfast.store import redis  # noqa: PLC0415 - as above
    except ImportError as error:
        raise _missing("Redis", "redis", error) from error
    return redis


def _postgres(url: str) -> Store:
    return _postgres_room().open_store(url)


def _postgres_room() -> ModuleType:
    try:
        from holdfast.store import postgres  # noqa: PLC0415 - as above
    except ImportError as error:
        raise _missing("PostgreSQL", "postgres", error) from error
    return postgres


def _missing(what: str, extra: str, error: ImportError) -> errors.NotInstalled:
    return errors.NotInstalled(
        f"a store on {what} needs a library that is not installed: {error.name or error}.",
        hint=f'Install it with: pip install "holdfast[{extra}]"',
        facts={"extra": extra},
    )


_REDIS = ("redis", "rediss", "redis+cluster", "rediss+cluster")

_OURS: Mapping[str, Callable[[str], Store]] = {
    "sqlite": _sqlite,
    "volatile": _volatile,
    **dict.fromkeys(_REDIS, _redis),
    "postgresql": _postgres,
    "postgres": _postgres,
}


def open_store(url: str | Path) -> Store:
    """Open the store that a URL or path names: a path, sqlite:///path, redis://, volatile: …, or a registered scheme."""
    if not isinstance(cast("object", url), (str, Path)) or "\0" in str(url):
        raise errors.InvalidRequest("a store is named by a path or a URL.")
    if str(url) in (":memory:", "volatile", "memory"):
        raise errors.InvalidRequest(
            f"{url!s} is no path of a store.", hint="Write volatile: for one in RAM."
        )
    if isinstance(url, Path) or _is_path(url):
        return _sqlite(str(url))
    scheme = urlsplit(url).scheme
    opener = _OURS.get(scheme)
    if opener is not None:
        return opener(url)
    from importlib import metadata  # noqa: PLC0415 - slow to import, and rarely needed

    for entry in metadata.entry_points(group=STORES, name=scheme):
        return entry.load()(url)
    raise errors.UnknownScheme(
        f"no store is registered for {scheme}://.",
        hint="Use a path such as state.db, sqlite:///path, postgresql://host/database, redis://host, or volatile:.",
        facts={"scheme": scheme},
    )


def _is_path(url: str) -> bool:
    return "://" not in url and not url.startswith(("volatile:", "sqlite:"))


def _path(url: str) -> str:
    if not url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise errors.InvalidRequest("write sqlite:///absolute/path, or just a path.")
    return unquote(parts.path)


def open_shelf(url: str | Path) -> Shelf:
    """Return the shelf beside the store that a URL names; one in RAM where the store has no files."""
    if isinstance(url, Path) or _is_path(url) or url.startswith("sqlite:"):
        from holdfast.store.sqlite.shelf import SQLiteShelf  # noqa: PLC0415 - as above

        place = Path(_path(str(url))).expanduser().resolve()
        return SQLiteShelf(place.with_name(f"{place.name}-memory"))
    if urlsplit(str(url)).scheme in _REDIS:
        return _redis_room().open_shelf(url)
    if urlsplit(str(url)).scheme in ("postgresql", "postgres"):
        return _postgres_room().open_shelf(url)
    return VolatileShelf()
