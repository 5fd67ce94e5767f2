"""Pub/sub of a store on Redis, and the advisory lock of a tenant.

The lock is a key that expires. It protects no data, since every change is compared with the head;
it only keeps several writers from retrying against each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, cast

import msgspec
import redis

from limpet.stores.server.redis import error_mapping, serialization
from limpet.stores.server.redis.connections import RedisCall, RedisConnection, RedisServers, interrupt_reader
from limpet.stores.server.redis.serialization import RedisKeys

MISSED = ("", 0)
"""What is told after news may have been missed."""

_CLOSE_CHECK_S: Final = 1.0
"""How often whoever listens looks whether it is to stop."""

_notification_decoder = msgspec.msgpack.Decoder(tuple[str, int, bytes])


class RedisListener:
    """The channel that every applied change is told on."""

    def __init__(self, servers: RedisServers, names: RedisKeys) -> None:
        self._servers = servers
        self._names = names
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._connection: RedisConnection | None = None

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield MISSED, then tenant and position of every change by others. Raises if the server can't be heard."""
        try:
            connection = self._subscribe()
            if connection is None:
                return
            yield MISSED
            while not self._closed.is_set():
                told = self._next_notification(connection)
                if told is not None:
                    yield told
        except error_mapping.DRIVER_ERRORS as error:
            if not self._closed.is_set():
                raise error_mapping.to_error(error, self._servers.dsn) from error
        finally:
            self._close_connection()

    def _subscribe(self) -> RedisConnection | None:
        # Every server of a cluster hears what is told to any of them.
        failure: Exception | None = None
        for link in self._servers.primary_pools():
            try:
                connection = link.open_connection()
            except error_mapping.DRIVER_ERRORS as error:
                self._servers.forget_pool(link)
                failure = error
                continue
            with self._lock:
                if self._closed.is_set():
                    connection.disconnect()
                    return None
                self._connection = connection
            connection.send_packed_command(connection.pack_commands([(b"SUBSCRIBE", self._names.channel)]))
            connection.read_response()
            return connection
        raise failure or redis.ConnectionError("no server answers")

    def _close_connection(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def close(self) -> None:
        """Let `listen` end."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                interrupt_reader(self._connection)

    def _next_notification(self, connection: RedisConnection) -> tuple[str, int] | None:
        if not connection.can_read(_CLOSE_CHECK_S):
            return None
        kind, _, content = cast("list[bytes]", connection.read_response())
        if kind != b"message":
            return None
        try:
            tenant, position, sender = _notification_decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Somebody else's words: look.
            return MISSED
        # Who hears of itself would take itself for another that writes to the tenant.
        return None if sender == self._names.sender else (tenant, position)


_LOCK_EXPIRY_MS: Final = 2_000
"""How long one that is not given back is held: its holder died, or takes too long."""

_LOCK_POLL_S: Final = (0.001, 0.005)
"""Between two tries, the first and the longest."""


class RedisAdvisoryLock:
    """The guard of a tenant is a key that ends by itself: the only one of a store that does."""

    def __init__(self, servers: RedisServers, names: RedisKeys, random: Callable[[int], bytes]) -> None:
        self._servers = servers
        self._names = names
        self._random = random
        self.token = b""
        """What the guard that is had, if one is, holds at the server."""

    def acquire(self, tenant: str, timeout_s: float) -> bool:
        """Try to have the guard within a time; all others that listen are told first."""
        key, token = self._names.tenant_prefix(tenant) + b"guard", self._random(16)
        until, pause = time.monotonic() + timeout_s, _LOCK_POLL_S[0]
        tell = RedisCall(
            key, (b"PUBLISH", self._names.channel, serialization.pack_notification(tenant, 0, self._names.sender))
        )
        take = RedisCall(key, (b"SET", key, token, b"NX", b"PX", _LOCK_EXPIRY_MS))
        _, taken = self._servers.run([tell, take])
        while not taken:
            if time.monotonic() + pause > until:
                return False
            time.sleep(pause)
            pause = min(pause * 2, _LOCK_POLL_S[1])
            (taken,) = self._servers.run([take])
        self.token = token
        return True

    def release(self, tenant: str) -> None:
        """Give it back, if it is had still."""
        token, self.token = self.token, b""
        if token:
            key = self._names.head(tenant)
            self._servers.script("release_lock", key, token)
