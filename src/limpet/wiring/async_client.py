"""The client for async callers: an open store whose verbs are awaited."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from limpet.admin.async_log import AsyncAdmin, AsyncEvents
from limpet.frames.async_state_index import AsyncStateIndex
from limpet.runtime.asyncio_bridge import awaited
from limpet.sessions.async_sessions import AsyncSessions
from limpet.wiring import Limpet

if TYPE_CHECKING:
    from limpet.jobs.worker import Worker
    from limpet.memory.async_memory import AsyncArchive, AsyncMemory


class AsyncLimpet:
    """An open store, for async callers: the verbs of Limpet, awaited. Made by `connect_async`."""

    def __init__(self, blocking: Limpet) -> None:
        self._blocking = blocking
        self.sessions = AsyncSessions(blocking.sessions)

    @functools.cached_property
    def index(self) -> AsyncStateIndex:
        """The frames of the tenant."""
        return AsyncStateIndex(self._blocking.index)

    @functools.cached_property
    def events(self) -> AsyncEvents:
        """The log of the tenant."""
        return AsyncEvents(self._blocking.events)

    @functools.cached_property
    def admin(self) -> AsyncAdmin:
        """Erasure, retention, import, export, backup, migration and checks."""
        return AsyncAdmin(self._blocking.admin)

    @functools.cached_property
    def archive(self) -> AsyncArchive:
        """Full-text search over all messages. Loaded and opened at its first use."""
        from limpet.memory.async_memory import AsyncArchive  # noqa: PLC0415 - see the docstring

        return AsyncArchive(self._blocking.archive)

    @functools.cached_property
    def memory(self) -> AsyncMemory:
        """Long-term memory: the facts about users. Loaded and opened at its first use."""
        from limpet.memory.async_memory import AsyncMemory  # noqa: PLC0415 - see the docstring

        return AsyncMemory(self._blocking.memory)

    def worker(self, *, every_tenant: bool = False) -> Worker:
        """Return a worker for the background work of this store. It blocks: run it in a thread."""
        return self._blocking.worker(every_tenant=every_tenant)

    close = awaited(Limpet.close)

    async def __aenter__(self) -> AsyncLimpet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{str(self._blocking).removeprefix('<')}"


class PendingConnection:
    """The result of connect_async: await it, or enter it with `async with`."""

    def __init__(self, connect: Callable[[], Limpet]) -> None:
        self._open = connect
        self._opened: AsyncLimpet | None = None

    async def _connect(self) -> AsyncLimpet:
        self._opened = AsyncLimpet(await asyncio.to_thread(self._open))
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
