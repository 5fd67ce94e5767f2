"""Commands of asyncio tasks on their way to the commit queue and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from limpet import limits
from limpet.core.values.commands import CommandRequest
from limpet.engine.commits import Answer, Ticket
from limpet.engine.engine import Engine


class _Awaited(Ticket):
    """A ticket whose owner awaits a future."""

    __slots__ = ("future",)

    def __init__(self, request: CommandRequest, channel: Loop) -> None:
        super().__init__(request, channel)
        self.future: asyncio.Future[Answer] = channel.loop.create_future()


class Loop:
    """Tickets of one event loop. Whatever its tasks hand in within one step of the loop starts together,
    and a whole batch is delivered with one wake-up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.loop = loop
        self._engine = engine
        self._fresh = 0

    def submit(self, request: CommandRequest) -> asyncio.Future[Answer]:
        """Hand a request in; return the future of its answer."""
        ticket = _Awaited(request, self)
        self._engine.submit(ticket)
        self._fresh += 1
        if self._fresh == 1:
            self.loop.call_soon(self._start)
        elif self._fresh % limits.COMMIT_BATCH_MAX == 0:
            # A batch is full: there is nothing to wait for.
            self._engine.start()
        return ticket.future

    def _start(self) -> None:
        self._fresh = 0
        self._engine.start()

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._resolve, tickets)

    @staticmethod
    def _resolve(tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            assert isinstance(ticket, _Awaited), "only such are handed in here"
            future = ticket.future
            if future.done():
                continue
            if ticket.error is not None:
                future.set_exception(ticket.error)
            else:
                future.set_result(ticket.result())
