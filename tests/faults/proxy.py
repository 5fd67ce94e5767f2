"""A proxy between clients and a server, which fails at exactly the byte that a test names.

It runs in a thread of its own. Bytes are counted in each direction, over all connections, since the
test last said so: `Fault("up", 7, "rst")` lets seven bytes through to the server and resets the
connection on which the eighth comes. Faults of all kinds but `delay` happen once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

Way = Literal["up", "down"]
"""To the server, or to the client."""

Kind = Literal["rst", "fin", "hole", "stall", "delay"]
"""Reset; closed in order; open, but nothing comes through any more; late, once; late, always."""

KINDS: tuple[Kind, ...] = ("rst", "fin", "hole", "stall")
WAYS: tuple[Way, ...] = ("up", "down")

_RESET = struct.pack("ii", 1, 0)
_CHUNK = 1 << 16
_START_S = 120.0

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens when so many bytes have passed in one direction, and the next one comes.

    With `asked`, bytes are counted only once a question with these bytes was passed on, and on its connection.
    """

    way: Way
    at: int
    kind: Kind
    seconds: float = 0.0
    asked: bytes = b""


@dataclass(eq=False, slots=True)
class _Link:
    """One client's connection, and the proxy's own to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    holed: bool = False
    passed: dict[Way, int] | None = None
    """What has passed here since the question came that a fault waits for."""

    def end(self, kind: Kind) -> None:
        """Close both sides, with a reset or in order."""
        for writer in (self.client, self.server):
            if kind == "rst":
                wire = writer.get_extra_info("socket")
                with contextlib.suppress(OSError, AttributeError):
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """Stands before the server at an address; clients go to `port` on the loopback instead."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.faults_happened = 0
        self.connections = 0
        self._server_at = (host, port)
        self._passed: dict[Way, int] = {"up": 0, "down": 0}
        self._pieces: dict[Way, list[int]] = {"up": [], "down": []}
        self._fault: Fault | None = None
        self._away = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listener = self._ask(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._ask(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)
        self._loop.close()

    def arm(self, fault: Fault | None) -> None:
        """Let a fault happen when its byte comes; the one that was armed before, if any, does not."""
        self._ask(self._set(fault))

    def arm_soon(self, way: Way, after: int, kind: Kind, seconds: float = 0.0) -> None:
        """Let a fault happen when so many bytes more have passed."""
        self.arm(Fault(way, self._passed[way] + after, kind, seconds))

    def count_anew(self, fault: Fault | None = None) -> None:
        """Begin to count at 0, and arm a fault."""
        self._ask(self._set(fault, anew=True))

    def passed(self, way: Way) -> int:
        """Return how many bytes have passed since counting began."""
        return self._passed[way]

    def pieces(self, way: Way) -> list[int]:
        """Return at which bytes the pieces began in which they came: most are one question, or one answer."""
        return list(self._pieces[way])

    @property
    def armed(self) -> bool:
        """Whether a fault is still to come."""
        return self._fault is not None

    def cut_all(self, kind: Kind = "rst") -> None:
        """End every connection now."""
        self._ask(self._cut_all(kind))

    def go_away(self, away: bool = True) -> None:
        """Refuse new connections and end the others, or take connections again."""
        self._away = away
        if away:
            self.cut_all()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _ask(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    async def _set(self, fault: Fault | None, *, anew: bool = False) -> None:
        if anew:
            self._passed = {"up": 0, "down": 0}
            self._pieces = {"up": [], "down": []}
        self._fault = fault

    async def _cut_all(self, kind: Kind) -> None:
        for link in list(self._links):
            link.end(kind)

    async def _end(self) -> None:
        self._listener.close()
        await self._cut_all("rst")
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self._away:
                raise ConnectionRefusedError
            back, server = await asyncio.open_connection(*self._server_at)
        except OSError:
            client.transport.abort()
            return
        link = _Link(client, server)
        self._links.add(link)
        try:
            pumps = [
                asyncio.create_task(self._pump(link, "up", reader, server)),
                asyncio.create_task(self._pump(link, "down", back, client)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self._links.discard(link)
            link.end("fin")
            for writer in (client, server):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _pump(self, link: _Link, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                # What falls into a hole is read all the same, so that it is noticed when a side goes.
                if not link.holed:
                    await self._pass_on(link, way, data, writer)

    async def _pass_on(self, link: _Link, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        self._pieces[way].append(self._passed[way])
        fault = self._fault
        before = self._left(fault, link, way)
        if fault is None or before is None or before >= len(data):
            if fault is not None and fault.asked and way == "up" and fault.asked in data:
                link.passed = {"up": 0, "down": 0}
            elif link.passed is not None:
                link.passed[way] += len(data)
            await self._write(way, data, writer)
            return
        if fault.kind != "delay":
            self._fault = None
        self.faults_happened += 1
        before = max(before, 0)
        await self._write(way, data[:before], writer)
        if fault.kind in ("rst", "fin"):
            link.end(fault.kind)
            raise ConnectionAbortedError
        if fault.kind == "hole":
            link.holed = True
            return
        await asyncio.sleep(fault.seconds)
        await self._write(way, data[before:], writer)

    def _left(self, fault: Fault | None, link: _Link, way: Way) -> int | None:
        """Return how many bytes are to pass here before the fault happens; None: it does not happen here."""
        if fault is None or fault.way != way:
            return None
        if fault.asked:
            return None if link.passed is None else fault.at - link.passed[way]
        return fault.at - self._passed[way]

    async def _write(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        self._passed[way] += len(data)
        if data:
            writer.write(data)
            await writer.drain()
