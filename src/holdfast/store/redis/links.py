"""Connections, and commands sent over them: nothing is ever sent twice that may have been done.

The driver's own pools and retries are not used: they send a command again when an answer was lost.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence
from typing import cast

import msgspec
import redis
import redis.connection

from holdfast import errors, limits
from holdfast.store.redis import translate
from holdfast.store.redis.place import Place
from holdfast.store.redis.scripts import Script

Word = bytes | str | int
Answer = object
"""What a server says: bytes, a number, None, a list of these, or an error."""


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
        self._idle: list[redis.connection.Connection] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(place.connections)
        self._closed = False

    def run(self, commands: Sequence[tuple[Word, ...]]) -> list[Answer]:
        """Send commands in one go; return the answers, an error in the place of the answer to what was refused.

        Raises what the driver raises if not every answer was had.
        """
        with self._lent() as connection:
            packed = cast("list[bytes]", connection.pack_commands(commands))
            connection.send_packed_command(packed)
            return [_answer(connection) for _ in commands]

    @contextlib.contextmanager
    def _lent(self) -> Generator[redis.connection.Connection]:
        if not self._free.acquire(timeout=self.place.timeout_s):
            raise redis.exceptions.TimeoutError("all connections are in use")
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

    def _taken(self) -> redis.connection.Connection:
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

    def connected(self) -> redis.connection.Connection:
        """Return a connection of one's own."""
        kind = redis.connection.Connection if self.place.tls is None else redis.connection.SSLConnection
        connection = kind(
            host=self.place.host,
            port=self.place.port,
            db=self.place.database,
            username=self.place.user,
            password=self.place.password,
            socket_timeout=self.place.timeout_s,
            socket_connect_timeout=min(self.place.timeout_s, limits.SERVER_CONNECT_S),
            protocol=2,
            **(self.place.tls or {}),
        )
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()


def _answer(connection: redis.connection.Connection) -> Answer:
    try:
        return cast("object", connection.read_response())
    except redis.ResponseError as error:
        return error
