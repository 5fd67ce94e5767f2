"""LISTEN/NOTIFY of a store on PostgreSQL, and the advisory lock of a tenant.

Each uses a connection of its own. The advisory lock protects no data, since every change is
compared with the head; it only keeps several writers from retrying against each other.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import psycopg
from psycopg import sql

from limpet import limits
from limpet.stores.server.postgres import connections, error_mapping, sql_files
from limpet.stores.server.postgres.connections import PostgresConnection, PostgresDsn


class PostgresAdvisoryLock:
    """One store's guard, of one tenant at a time."""

    def __init__(self, place: PostgresDsn) -> None:
        self._dsn = place
        self._sql = sql_files.sql_statements("advisory_lock.sql")
        self._lock = threading.Lock()
        self._connection: PostgresConnection | None = None
        self._locked_tenant: str | None = None
        self.notifier_pid = 0
        """The server's number of the connection that tells others: whoever listens here is none of them."""

    def acquire(self, tenant: str, timeout_s: float) -> bool:
        """Return whether the guard is had within a time. Others are told that it is asked for."""
        with self._lock, error_mapping.translate_errors(self._dsn.shown):
            connection = self._open_connection()
            values = {
                "tenant": sql_files.encode_tenant(tenant), "channel": self._dsn.channel,
                "timeout": f"{max(1, int(timeout_s * 1000))}ms",
            }  # fmt: skip
            try:
                with connection.pipeline() as pipeline:
                    for name in ("tell", "patience", "take"):
                        wanted = {k: v for k, v in values.items() if f"%({k})s" in self._sql[name]}
                        connection.execute(self._sql[name].encode(), wanted)
                        # What is told is told before it waits.
                        pipeline.sync()
            except psycopg.errors.LockNotAvailable:
                return False
            except BaseException:
                self._close_connection()
                raise
            self._locked_tenant = tenant
            return True

    def is_held(self, tenant: str) -> bool:
        """Whether it is a tenant's that is had."""
        return self._locked_tenant == tenant

    def release(self, tenant: str) -> None:
        """Give it back, if it is had."""
        with self._lock:
            self._locked_tenant = None
            if self._connection is None:
                return
            try:
                values = {"tenant": sql_files.encode_tenant(tenant), "channel": self._dsn.channel}
                self._connection.execute(self._sql["give_back"].encode(), values)
            except (psycopg.Error, OSError):
                # It ends with the connection.
                self._close_connection()

    def _open_connection(self) -> PostgresConnection:
        if self._connection is not None and not self._connection.is_idle():
            self._close_connection()
        if self._connection is None:
            self._connection = connections.connect(self._dsn)
            self.notifier_pid = self._connection.info.backend_pid
        return self._connection

    def _close_connection(self) -> None:
        connection, self._connection, self._locked_tenant = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()

    def close(self) -> None:
        """Give everything back. Closing twice is fine."""
        with self._lock:
            self._close_connection()


_MISSED = ("", 0)
_NOTIFICATION = re.compile(r"(0|[1-9][0-9]{0,18}) (.+)", re.DOTALL)
"""A position, as `bigint` has them, and a tenant."""


class PostgresListener:
    """Hears of every tenant whose feed has gone on, from whichever process."""

    def __init__(self, place: PostgresDsn, guard: PostgresAdvisoryLock) -> None:
        self._dsn = place
        self._advisory_lock = guard
        self._closed = threading.Event()
        self._wakes, self._waker = socket.socketpair()
        self._lock = threading.Lock()
        self._listening = 0

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield ("", 0), then tenant and position. Ends when it is closed; raises what cut it off."""
        with self._lock:
            if self._closed.is_set():
                return
            self._listening += 1
        try:
            with (
                error_mapping.translate_errors(self._dsn.shown),
                contextlib.closing(connections.connect(self._dsn)) as connection,
            ):
                channel = sql.Identifier(self._dsn.channel)
                connection.execute(sql.SQL("LISTEN {}").format(channel))
                yield _MISSED
                yield from self._notifications(connection)
        finally:
            with self._lock:
                self._listening -= 1
                self._close_sockets()

    def _notifications(self, connection: PostgresConnection) -> Iterator[tuple[str, int]]:
        handle = connection.pgconn
        while not self._closed.is_set():
            while (news := handle.notifies()) is not None:
                told = _NOTIFICATION.fullmatch(news.extra.decode(errors="replace"))
                if told is None:
                    # Anybody may speak on the channel: what can't be read may have been news.
                    yield _MISSED
                elif told[1] != "0" or news.be_pid != self._advisory_lock.notifier_pid:
                    yield sql_files.decode_tenant(told[2]), int(told[1])
            if self._closed.is_set():
                return
            ready = connections.wait_readable(limits.SERVER_RESPONSE_S, handle.socket, self._wakes.fileno())
            if handle.socket in ready:
                handle.consume_input()
            elif not ready:
                # A server that is gone without a word is noticed by asking it.
                connection.execute("SELECT 1")

    def close(self) -> None:
        """End it. Closing twice is fine."""
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._waker.send(b"x")
                self._close_sockets()

    def _close_sockets(self) -> None:
        # Whoever listens still looks at them.
        if self._closed.is_set() and not self._listening:
            self._waker.close()
            self._wakes.close()
