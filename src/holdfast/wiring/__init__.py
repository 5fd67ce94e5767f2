"""connect: the one place that names adapters and supplies the real clock and randomness."""

from __future__ import annotations

import functools
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast import limits
from holdfast.engine.admin import Admin, Events
from holdfast.engine.index import StateIndex
from holdfast.engine.requests import Settings, Write
from holdfast.values.policy import WindowPolicy
from holdfast.wiring.manager import SessionManager
from holdfast.wiring.opened import Opened

if TYPE_CHECKING:
    from holdfast.engine.archive import Archive
    from holdfast.wiring.async_client import Connecting


class Holdfast:
    """An open store, for blocking callers. Made by `connect`; close it, or use it in a with statement."""

    def __init__(self, opened: Opened, settings: Settings) -> None:
        self._opened = opened
        self.sessions = SessionManager.over(opened.engine, settings)
        self.index = StateIndex(opened.engine, settings)
        self.events = Events(opened.engine, settings.tenant, self.sessions)
        self.admin = Admin(opened.engine)
        self._tenant = settings.tenant

    @functools.cached_property
    def archive(self) -> Archive:
        """Everything that was said, to be searched. Loaded and opened when it is first used."""
        from holdfast.engine.archive import Archive  # noqa: PLC0415 - as said

        opened = self._opened
        return Archive(opened.engine, self._tenant, opened.shelf, self.sessions.settle)

    def close(self) -> None:
        """Wait for deferred writes, then close. Closing twice is fine."""
        try:
            self.sessions.flush()
        finally:
            self._opened.close()

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Holdfast {self._opened.engine.store.durability}>"


def connect(
    url: str | Path = "state.db",
    *,
    tenant: str = "default",
    max_messages_per_session: int = 5000,
    max_sessions_in_memory: int = 20,
    auto_save_interval: float = 60,
    write: Write = "durable",
    cached_sessions: int = limits.CACHED_SESSIONS,
    cached_trees: int | None = None,
    policy: WindowPolicy | None = None,
) -> Holdfast:
    """Open a store, creating it if nothing is there: a path (SQLite), sqlite:///path, or volatile:.

    `policy` is what new sessions get that are not given their own; it is kept with each of them.
    `cached_trees` is how many frame trees are kept in memory; None: HOLDFAST_CACHED_TREES, or 1,000.
    Raises a typed error that names the fix; the store is left as it was.
    """
    settings = Settings(
        tenant=tenant,
        max_messages_per_session=max_messages_per_session,
        max_sessions_in_memory=max_sessions_in_memory,
        auto_save_interval=auto_save_interval,
        write=write,
        policy=policy,
    )
    return Holdfast(
        Opened(url, cached_sessions=cached_sessions, cached_trees=cached_trees), settings
    )


def connect_async(
    url: str | Path = "state.db",
    *,
    tenant: str = "default",
    max_messages_per_session: int = 5000,
    cached_sessions: int = limits.CACHED_SESSIONS,
    cached_trees: int | None = None,
    policy: WindowPolicy | None = None,
) -> Connecting:
    """Open a store for async callers: `async with connect_async(…) as hf`, or await it and close it."""
    from holdfast.wiring.async_client import AsyncHoldfast, Connecting  # noqa: PLC0415 - asyncio is slow to import

    settings = Settings(
        tenant=tenant, max_messages_per_session=max_messages_per_session, policy=policy
    )
    return Connecting(
        lambda: AsyncHoldfast(
            Opened(url, cached_sessions=cached_sessions, cached_trees=cached_trees), settings
        )
    )
