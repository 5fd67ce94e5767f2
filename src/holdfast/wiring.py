"""connect: the one place that names adapters and supplies the real clock and randomness."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Generator, Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast import errors, limits
from holdfast.engine.admin import Admin, Events
from holdfast.engine.aio import AsyncAdmin, AsyncEvents, AsyncSessions
from holdfast.engine.engine import Engine
from holdfast.engine.requests import Settings, Write
from holdfast.engine.sessions import Sessions
from holdfast.store.port import Store
from holdfast.values import ids

STORES = "holdfast.stores"
"""Entry-point group: a URL scheme's name and a callable that takes the URL and returns a Store."""


def _sqlite(url: str) -> Store:
    from holdfast.store import sqlite  # noqa: PLC0415 - only whoever uses SQLite pays for it

    return sqlite.open_store(_path(url))


def _volatile(url: str) -> Store:
    from holdfast.store.volatile import VolatileStore  # noqa: PLC0415 - as above

    return VolatileStore()


_OURS: Mapping[str, Callable[[str], Store]] = {"sqlite": _sqlite, "volatile": _volatile}


def open_store(url: str | Path) -> Store:
    """Open the store that a URL or path names: a path or sqlite:///path, volatile:, or a registered scheme."""
    if isinstance(url, Path) or "://" not in url and not url.startswith("volatile:"):
        return _sqlite(str(url))
    scheme = urlsplit(url).scheme
    opener = _OURS.get(scheme)
    if opener is not None:
        return opener(url)
    for entry in metadata.entry_points(group=STORES, name=scheme):
        return entry.load()(url)
    raise errors.UnknownScheme(
        f"no store is registered for {scheme}://.",
        hint="Use a path such as state.db, sqlite:///path, or volatile:.",
        facts={"scheme": scheme},
    )


def _path(url: str) -> str:
    if not url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise errors.InvalidRequest("write sqlite:///absolute/path, or just a path.")
    return unquote(parts.path)


class _Opened:
    """An engine that somebody opened and somebody has to close."""

    def __init__(self, url: str | Path, *, cached_sessions: int = limits.CACHED_SESSIONS) -> None:
        self.engine = Engine(open_store(url), now_us=ids.SYSTEM.now_us, cached_sessions=cached_sessions)
        self._where = _caller()
        self._url = str(url)
        self._open = True

    def close(self) -> None:
        self._open = False
        self.engine.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            warnings.warn(
                f"{self._url}, opened at {self._where}, was never closed; use it in a with statement",
                ResourceWarning,
                stacklevel=2,
            )


def _caller() -> str:
    frame = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - to name who forgot to close
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Holdfast:
    """An open store, for blocking callers. Made by `connect`; close it, or use it in a with statement."""

    def __init__(self, opened: _Opened, settings: Settings) -> None:
        self._opened = opened
        self.sessions = SessionManager.over(opened.engine, settings)
        self.events = Events(opened.engine, settings.tenant)
        self.admin = Admin(opened.engine)

    def close(self) -> None:
        """Wait for deferred writes, then close. Closing twice is fine."""
        try:
            self.sessions.flush()
        finally:
            self._opened.close()

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Holdfast {self._opened.engine.store.durability}>"


class AsyncHoldfast:
    """An open store, for async callers: the same verbs, awaited. Made by `connect_async`."""

    def __init__(self, opened: _Opened, settings: Settings) -> None:
        self._opened = opened
        self.sessions = AsyncSessions(opened.engine, settings)
        self.events = AsyncEvents(opened.engine, settings.tenant)
        self.admin = AsyncAdmin(opened.engine)

    async def close(self) -> None:
        """Close once everything submitted is through. Closing twice is fine."""
        await self.sessions.in_thread(self._opened.close)

    async def __aenter__(self) -> AsyncHoldfast:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncHoldfast {self._opened.engine.store.durability}>"


def connect(
    url: str | Path = "state.db",
    *,
    tenant: str = "default",
    max_messages_per_session: int = 5000,
    max_sessions_in_memory: int = 20,
    auto_save_interval: float = 60,
    write: Write = "durable",
    cached_sessions: int = limits.CACHED_SESSIONS,
) -> Holdfast:
    """Open a store, creating it if nothing is there: a path (SQLite), sqlite:///path, or volatile:.

    Raises a typed error that names the fix; the store is left as it was.
    """
    settings = Settings(
        tenant=tenant,
        max_messages_per_session=max_messages_per_session,
        max_sessions_in_memory=max_sessions_in_memory,
        auto_save_interval=auto_save_interval,
        write=write,
    )
    return Holdfast(_Opened(url, cached_sessions=cached_sessions), settings)


class Connecting:
    """What connect_async returns: await it, or enter it with `async with`."""

    def __init__(self, open_: Callable[[], AsyncHoldfast]) -> None:
        self._open = open_
        self._opened: AsyncHoldfast | None = None

    async def _connect(self) -> AsyncHoldfast:
        self._opened = await AsyncSessions.in_thread(self._open)
        return self._opened

    def __await__(self) -> Generator[Any, Any, AsyncHoldfast]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncHoldfast:
        return await self._connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()


def connect_async(
    url: str | Path = "state.db",
    *,
    tenant: str = "default",
    max_messages_per_session: int = 5000,
    cached_sessions: int = limits.CACHED_SESSIONS,
) -> Connecting:
    """Open a store for async callers: `async with connect_async(…) as hf`, or await it and close it."""
    settings = Settings(tenant=tenant, max_messages_per_session=max_messages_per_session)
    return Connecting(lambda: AsyncHoldfast(_Opened(url, cached_sessions=cached_sessions), settings))


class SessionManager(Sessions):
    """Sessions of many users. `connect(…).sessions` is one; made by itself it opens a store in a folder.

    `base_path` is created if it is missing. `format` is "json", for compatibility. With
    write="deferred", messages are on their way when add_message returns and on disk when save_session
    does; otherwise they are on disk at once and `auto_save_interval` has nothing left to do.
    """

    _finish: weakref.finalize[..., SessionManager] | None

    def __init__(
        self,
        base_path: str | Path = "conversations",
        max_messages_per_session: int = 5000,
        max_sessions_in_memory: int = 20,
        format: str = "json",
        auto_save_interval: float = 60,
        *,
        write: Write = "durable",
        tenant: str = "default",
    ) -> None:
        if format != "json":
            raise errors.InvalidRequest(f"format {format!r} is not known.", hint='Use "json".')
        settings = Settings(
            tenant=tenant,
            max_messages_per_session=max_messages_per_session,
            max_sessions_in_memory=max_sessions_in_memory,
            auto_save_interval=auto_save_interval,
            write=write,
        )
        folder = Path(base_path).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        engine = Engine(open_store(folder / "state.db"), now_us=ids.SYSTEM.now_us)
        self.base_path = str(base_path)
        super().__init__(engine, settings)
        # Whoever follows the document never closes a manager; leaving it open must lose nothing.
        self._finish = weakref.finalize(self, engine.close)

    @classmethod
    def over(cls, engine: Engine, settings: Settings) -> SessionManager:
        """Return a manager over an engine that somebody else opened and will close."""
        manager = cls.__new__(cls)
        manager.base_path = ""
        Sessions.__init__(manager, engine, settings)
        manager._finish = None
        return manager

    def close(self) -> None:
        """Wait for deferred writes, and close what this manager opened."""
        try:
            self.flush()
        finally:
            if self._finish is not None:
                self._finish()

    def __enter__(self) -> SessionManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

