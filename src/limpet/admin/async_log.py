"""The tenant's event log and the administration of the store, for async callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from limpet.admin.log import Admin, Events, LogEvent, checked_timeout
from limpet.runtime.asyncio_bridge import awaited, iterate
from limpet.sessions.async_sessions import AsyncMoment

POLL_FIRST_S: Final = 0.005
POLL_LONGEST_S: Final = 0.05
"""The first and the longest pause between two looks of `watch` at the log."""


class AsyncEvents:
    """The tenant's log, in order."""

    def __init__(self, blocking: Events) -> None:
        self._blocking = blocking

    at = awaited(Events.at, AsyncMoment)
    page = awaited(Events.page)

    def feed(self, after: int = 0) -> AsyncIterator[LogEvent]:
        """Yield events after a position up to the present end, in order, without gaps."""
        return iterate(lambda: self._blocking.feed(after))

    async def watch(self, after: int = 0, timeout_s: float | None = None) -> AsyncIterator[LogEvent]:
        """Yield events after a position, in order, without gaps, and wait for new ones.

        It reads the log every 5 to 50 ms, and takes no thread meanwhile.
        """
        idle_s, waited, pause = checked_timeout(timeout_s), 0.0, POLL_FIRST_S
        while True:
            found = await self.page(after)
            for event in found:
                yield event
            if found:
                after, waited, pause = found[-1].position, 0.0, POLL_FIRST_S
                continue
            if idle_s is not None and waited >= idle_s:
                return
            pause = pause if idle_s is None else min(pause, idle_s - waited)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, POLL_LONGEST_S)


class AsyncAdmin:
    """Administers a store. The contract of each verb is that of Admin."""

    def __init__(self, blocking: Admin) -> None:
        self._blocking = blocking

    erase = awaited(Admin.erase)
    retention = awaited(Admin.retention)
    status = awaited(Admin.status)
    verify = awaited(Admin.verify)
    rebuild = awaited(Admin.rebuild)
    backup = awaited(Admin.backup)
    migrate = awaited(Admin.migrate)
    export = awaited(Admin.export)
    import_ = awaited(Admin.import_)
