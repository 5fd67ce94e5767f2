"""Submits requests of asyncio tasks to the commit queue and resolves their futures.

Requests that are submitted within one step of an event loop start together. A batch of results is
delivered with one wake-up of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from limpet import limits
from limpet.core.values.commands import CommandRequest
from limpet.runtime.commit_queue import CommandResult, Ticket
from limpet.runtime.engine import Engine


class _AwaitedTicket(Ticket):
    """A ticket whose owner awaits a future."""

    __slots__ = ("future",)

    def __init__(self, request: CommandRequest, channel: AsyncioChannel) -> None:
        super().__init__(request, channel)
        self.future: asyncio.Future[CommandResult] = channel.loop.create_future()


class AsyncioChannel:
    """Tickets of one event loop. Whatever its tasks hand in within one step of the loop starts together,
    and a whole batch is delivered with one wake-up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.loop = loop
        self._engine = engine
        self._fresh = 0

    def submit(self, request: CommandRequest) -> asyncio.Future[CommandResult]:
        """Hand a request in; return the future of its answer."""
        ticket = _AwaitedTicket(request, self)
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
            assert isinstance(ticket, _AwaitedTicket), "only such are handed in here"
            future = ticket.future
            if future.done():
                continue
            if ticket.error is not None:
                future.set_exception(ticket.error)
            else:
                future.set_result(ticket.result())
