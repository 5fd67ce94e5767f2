"""An open store for async callers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast import errors
from holdfast.engine.aio import AsyncSessions
from holdfast.engine.aio_index import AsyncStateIndex
from holdfast.engine.aio_log import AsyncAdmin, AsyncEvents
from holdfast.engine.requests import Settings
from holdfast.wiring.background import Background
from holdfast.wiring.opened import Opened
from holdfast.wiring.stores import open_store

if TYPE_CHECKING:
    from holdfast.engine.aio_archive import AsyncArchive
    from holdfast.engine.aio_memory import AsyncMemory
    from holdfast.engine.worker import Worker


class AsyncHoldfast:
    """An open store, for async callers: the same verbs, awaited. Made by `connect_async`."""

    def __init__(self, opened: Opened, settings: Settings, background: Background) -> None:
        engine = opened.engine
        opened.files(settings.auto_save_interval)
        self._opened = opened
        self._background = background
        self._tenant = settings.tenant
        self.sessions = AsyncSessions(engine, settings, bootstrap=background.bootstrap)
        self.index = AsyncStateIndex(engine, settings)
        self.events = AsyncEvents(engine, settings.tenant, self.sessions)
        self._erasing = background.erasing(settings.tenant)
        retaining = functools.partial(background.retaining, settings.tenant)
        self.admin = AsyncAdmin(engine, settings.tenant, self._erasing, open_store, retaining)
        with contextlib.suppress(errors.Unavailable, errors.Corrupt):
            self._erasing.finish_here()
        background.check()
        background.start(settings.tenant)

    @functools.cached_property
    def archive(self) -> AsyncArchive:
        """Everything that was said, to be searched. Loaded and opened when it is first used."""
        from holdfast.engine.aio_archive import AsyncArchive  # noqa: PLC0415 - as said

        return AsyncArchive(self._background.archive(self._tenant))

    @functools.cached_property
    def memory(self) -> AsyncMemory:
        """What is known of users. Loaded and opened when it is first used."""
        from holdfast.engine.aio_memory import AsyncMemory  # noqa: PLC0415 - as said
        from holdfast.engine.memory import Memory  # noqa: PLC0415 - as said

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
        """Close once everything submitted is through, as `Holdfast.close` does. Closing twice is fine."""
        try:
            await self.sessions.in_thread(self._background.close)
        finally:
            await self.sessions.in_thread(self._opened.close)

    async def __aenter__(self) -> AsyncHoldfast:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncHoldfast {self._opened.engine.store.durability}>"


class Connecting:
    """What connect_async returns: await it, or enter it with `async with`."""

    def __init__(self, open_: Callable[[], AsyncHoldfast]) -> None:
        self._open = open_
        self._opened: AsyncHoldfast | None = None

    async def _connect(self) -> AsyncHoldfast:
        self._opened = await AsyncSessions.in_thread(self._open)
        return self._opened

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"connect_async() was not awaited: write hf = await holdfast.connect_async(…), then hf.{name}"
        )

    def __enter__(self) -> NoReturn:
        raise TypeError("connect_async() is entered with `async with`")

    def __exit__(self, *_: object) -> None: ...

    def __await__(self) -> Generator[Any, Any, AsyncHoldfast]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncHoldfast:
        return await self._connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
