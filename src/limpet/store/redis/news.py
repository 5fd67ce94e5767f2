"""Hearing of what others committed: one connection of its own that listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, cast

import msgspec
import redis

from limpet.store.redis import translate
from limpet.store.redis.links import Wire, wake
from limpet.store.redis.names import Names
from limpet.store.redis.servers import Servers

MISSED = ("", 0)
"""What is told after news may have been missed."""

_LOOK_S: Final = 1.0
"""How often whoever listens looks whether it is to stop."""

_decoder = msgspec.msgpack.Decoder(tuple[str, int, bytes])


class News:
    """The channel that every applied change is told on."""

    def __init__(self, servers: Servers, names: Names) -> None:
        self._servers = servers
        self._names = names
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connection: Wire | None = None

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield MISSED, then tenant and position of every change by others. Raises if the server can't be heard."""
        try:
            connection = self._subscribed()
            if connection is None:
                return
            yield MISSED
            while not self._closed.is_set():
                told = self._told(connection)
                if told is not None:
                    yield told
        except translate.KINDS as error:
            if not self._closed.is_set():
                raise translate.of(error, self._servers.place) from error
        finally:
            self._drop()

    def _subscribed(self) -> Wire | None:
        # Every server of a cluster hears what is told to any of them.
        failure: Exception | None = None
        for link in self._servers.every():
            try:
                connection = link.connected()
            except translate.KINDS as error:
                self._servers.forget(link)
                failure = error
                continue
            with self._lock:
                if self._closed.is_set():
                    connection.disconnect()
                    return None
                self._connection = connection
            connection.send_packed_command(
                connection.pack_commands([(b"SUBSCRIBE", self._names.channel)])
            )
            connection.read_response()
            return connection
        raise failure or redis.ConnectionError("no server answers")

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def close(self) -> None:
        """Let `listen` end."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                wake(self._connection)

    def _told(self, connection: Wire) -> tuple[str, int] | None:
        if not connection.can_read(_LOOK_S):
            return None
        kind, _, content = cast("list[bytes]", connection.read_response())
        if kind != b"message":
            return None
        try:
            tenant, position, sender = _decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Somebody else's words: look.
            return MISSED
        # Who hears of itself would take itself for another that writes to the tenant.
        return None if sender == self._names.sender else (tenant, position)
