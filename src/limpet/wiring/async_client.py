"""The client for async callers: an open store whose methods are awaited."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from limpet import errors
from limpet.admin.async_log import AsyncAdmin, AsyncEvents
from limpet.frames.async_state_index import AsyncStateIndex
from limpet.sessions.async_sessions import AsyncSessions
from limpet.sessions.requests import Settings
from limpet.wiring.background import Background
from limpet.wiring.store_opener import StoreHandle, open_store

if TYPE_CHECKING:
    from limpet.jobs.worker import Worker
    from limpet.memory.async_memory import AsyncArchive, AsyncMemory


class AsyncLimpet:
    """An open store, for async callers: the same verbs, awaited. Made by `connect_async`."""

    def __init__(self, opened: StoreHandle, settings: Settings, background: Background) -> None:
        engine = opened.engine
        opened.start_files(settings.auto_save_interval)
        self._opened = opened
        self._background = background
        self._tenant = settings.tenant
        self.sessions = AsyncSessions(engine, settings, bootstrap=background.bootstrap)
        self.index = AsyncStateIndex(engine, settings)
        self.events = AsyncEvents(engine, settings.tenant, self.sessions)
        self._erasing = background.erasure_service(settings.tenant)
        retaining = functools.partial(background.retention, settings.tenant)
        self.admin = AsyncAdmin(engine, settings.tenant, self._erasing, open_store, retaining)
        with contextlib.suppress(errors.Unavailable, errors.Corrupt):
            self._erasing.finish_local()
        background.check()
        background.start(settings.tenant)

    @functools.cached_property
    def archive(self) -> AsyncArchive:
        """Everything that was said, to be searched. Loaded and opened when it is first used."""
        from limpet.memory.async_memory import AsyncArchive  # noqa: PLC0415 - as said

        return AsyncArchive(self._background.archive(self._tenant))

    @functools.cached_property
    def memory(self) -> AsyncMemory:
        """What is known of users. Loaded and opened when it is first used."""
        from limpet.memory.api import Memory  # noqa: PLC0415 - as said
        from limpet.memory.async_memory import AsyncMemory  # noqa: PLC0415 - as said

        return AsyncMemory(
            Memory(
                self._opened.engine, self._tenant, self._background.memory,
                archive=self._background.archive(self._tenant), erasing=self._erasing,
            )
        )  # fmt: skip

    def worker(self, *, every_tenant: bool = False) -> Worker:
        """Return a worker for the background work of this store. It blocks: run it in a thread."""
        return self._background.worker(None if every_tenant else (self._tenant,))

    async def close(self) -> None:
        """Close once everything submitted is through, as `Limpet.close` does. Closing twice is fine."""
        try:
            await self.sessions.in_thread(self._background.close)
        finally:
            await self.sessions.in_thread(self._opened.close)

    async def __aenter__(self) -> AsyncLimpet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncLimpet {self._opened.engine.store.durability}>"


class PendingConnection:
    """What connect_async returns: await it, or enter it with `async with`."""

    def __init__(self, open_: Callable[[], AsyncLimpet]) -> None:
        self._open = open_
        self._opened: AsyncLimpet | None = None

    async def _connect(self) -> AsyncLimpet:
        self._opened = await AsyncSessions.in_thread(self._open)
        return self._opened

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"connect_async() was not awaited: write lp = await limpet.connect_async(…), then lp.{name}"
        )

    def __enter__(self) -> NoReturn:
        raise TypeError("connect_async() is entered with `async with`")

    def __exit__(self, *_: object) -> None: ...

    def __await__(self) -> Generator[Any, Any, AsyncLimpet]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncLimpet:
        return await self._connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
