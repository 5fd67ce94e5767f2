"""Connections, and commands sent over them: nothing is ever sent twice that may have been done.

The driver's own pools and retries are not used: they send a command again when an answer was lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator, Sequence
from typing import Any, Protocol, cast

import msgspec
import redis
import redis.connection
from redis import exceptions

from limpet import errors, limits
from limpet.store.redis import translate
from limpet.store.redis.place import Place
from limpet.store.redis.scripts import Script

Word = bytes | str | int
Answer = object
"""What a server says: bytes, a number, None, a list of these, or an error."""


class Wire(Protocol):
    """What is used of the driver's connection."""

    _sock: socket.socket | None

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def pack_commands(self, commands: Sequence[tuple[Word, ...]]) -> list[bytes]: ...
    def send_packed_command(self, command: list[bytes]) -> None: ...
    def read_response(self) -> Answer: ...


def wake(connection: Wire) -> None:
    """Let whoever reads from a connection find it ended; it is closed by the thread that has it."""
    sock = connection._sock  # pyright: ignore[reportPrivateUsage]
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


class Call(msgspec.Struct):
    """A command, or a script with its arguments, and the key that says where in a cluster it goes."""

    key: bytes
    words: tuple[Word, ...]
    script: Script | None = None

    def command(self, *, whole: bool = False) -> tuple[Word, ...]:
        """Return what is sent: a script by its sum, or whole to a server that does not know it."""
        if self.script is None:
            return self.words
        if whole:
            return (b"EVAL", self.script.source, 1, self.key, *self.words)
        return (b"EVALSHA", self.script.sum, 1, self.key, *self.words)


class Link:
    """One server. Connections are lent to one thread at a time, and thrown away after the least doubt."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._idle: list[Wire] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(place.connections)
        self._closed = False
        self.made = 0

    def run(self, commands: Sequence[tuple[Word, ...]]) -> list[Answer]:
        """Send commands in one go; return the answers, an error in the place of the answer to what was refused.

        Raises what the driver raises if not every answer was had.
        """
        with self.lent() as connection:
            connection.send_packed_command(connection.pack_commands(commands))
            return [answer(connection) for _ in commands]

    @contextlib.contextmanager
    def lent(self) -> Generator[Wire]:
        """A connection for the body of a `with`, at whose end it is free again; thrown away if that raises."""
        if not self._free.acquire(timeout=self.place.timeout_s):
            raise exceptions.TimeoutError("all connections are in use")
        try:
            connection = self._taken()
            try:
                yield connection
            except BaseException:
                connection.disconnect()
                raise
            with self._lock:
                if not self._closed:
                    self._idle.append(connection)
                    return
            connection.disconnect()
        finally:
            self._free.release()

    def _taken(self) -> Wire:
        while True:
            with self._lock:
                if self._closed:
                    raise errors.EngineClosed
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connected()
            # A connection that has something to say was closed by the server, or is out of step.
            try:
                if not connection.can_read(0):
                    return connection
            except translate.KINDS:
                pass
            connection.disconnect()

    def connected(self) -> Wire:
        """Return a connection of one's own."""
        place = self.place
        kind = redis.connection.Connection if place.tls is None else redis.connection.SSLConnection
        options: dict[str, Any] = {
            "host": place.host,
            "port": place.port,
            "db": place.database,
            "username": place.user,
            "password": place.password,
            "socket_timeout": place.timeout_s,
            "socket_connect_timeout": min(place.timeout_s, limits.SERVER_CONNECT_S),
            "socket_keepalive": True,
            "protocol": 2,
            **(place.tls or {}),
        }
        connection = cast("Wire", kind(**options))
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        self.made += 1
        return connection

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()


def answer(connection: Wire) -> Answer:
    """Return the next answer, be it an error."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error
