"""The async faces of blocking classes, and the way from asyncio to the commit queue.

Every verb of an async face is made from the blocking verb, which runs in a thread. Appends do not: they
are submitted to the commit queue, and their tasks await the answer. Requests that are submitted within
one step of an event loop start together, and a batch of answers wakes the loop once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from limpet import limits
from limpet.core.values.commands import CommandRequest
from limpet.runtime.commit_queue import CommandResult, Ticket
from limpet.runtime.engine import Engine

B_co = TypeVar("B_co", covariant=True)
B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class AsyncFace(Protocol[B_co]):
    """An object for async callers whose verbs are those of a blocking one."""

    @property
    def _blocking(self) -> B_co: ...


def blocking_of(face: AsyncFace[B]) -> B:
    """Return the blocking object behind an async face."""
    return face._blocking  # pyright: ignore[reportPrivateUsage] - callers of a face see none of it


@overload
def awaited(verb: Callable[Concatenate[B, P], T]) -> Callable[Concatenate[AsyncFace[B], P], Coroutine[Any, Any, T]]: ...
@overload
def awaited(
    verb: Callable[Concatenate[B, P], T], wrap: Callable[[T], U]
) -> Callable[Concatenate[AsyncFace[B], P], Coroutine[Any, Any, U]]: ...
def awaited(
    verb: Callable[Concatenate[B, P], T], wrap: Callable[[T], Any] | None = None
) -> Callable[Concatenate[AsyncFace[B], P], Coroutine[Any, Any, Any]]:
    """Return an async verb that runs a blocking one in a thread; `wrap` makes an async face of what it returns."""

    @functools.wraps(verb)
    async def _run(self: AsyncFace[B], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        found = await asyncio.to_thread(verb, blocking_of(self), *args, **kwargs)
        return found if wrap is None else wrap(found)

    return _run


async def iterate(iterable: Callable[[], Iterable[T]]) -> AsyncIterator[T]:
    """Yield what a blocking iterable yields; it is made and read in threads, READ_CHUNK items at a time."""
    found = iter(await asyncio.to_thread(iterable))
    while chunk := await asyncio.to_thread(lambda: list(itertools.islice(found, limits.READ_CHUNK))):
        for item in chunk:
            yield item


class _AwaitedTicket(Ticket):
    __slots__ = ("future",)

    def __init__(self, request: CommandRequest, channel: AsyncioChannel) -> None:
        super().__init__(request, channel)
        self.future: asyncio.Future[CommandResult] = channel.loop.create_future()


class AsyncioChannel:
    """The tickets of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
        self.loop = loop
        self._engine = engine
        self._fresh = 0

    def submit(self, request: CommandRequest) -> asyncio.Future[CommandResult]:
        """Submit a request; return the future of its answer."""
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
        # On a loop that is closed nothing waits any more.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._resolve, tickets)

    @staticmethod
    def _resolve(tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            assert isinstance(ticket, _AwaitedTicket), "only such are submitted here"
            future = ticket.future
            if future.done():
                continue
            if ticket.error is not None:
                future.set_exception(ticket.error)
            else:
                future.set_result(ticket.result())


def submit(engine: Engine, request: CommandRequest) -> asyncio.Future[CommandResult]:
    """Submit a request from the running event loop; return the future of its answer."""
    loop, known = asyncio.get_running_loop(), engine.loop_channels
    channel = known.get(id(loop))
    if not isinstance(channel, AsyncioChannel):
        for key in [key for key, old in [*known.items()] if isinstance(old, AsyncioChannel) and old.loop.is_closed()]:
            known.pop(key, None)  # another loop may drop it, too
        channel = known[id(loop)] = AsyncioChannel(loop, engine)
    return channel.submit(request)
