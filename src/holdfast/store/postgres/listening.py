"""News of a store: one connection that listens, and comes back when it was cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import psycopg
from psycopg import sql

from holdfast import errors, limits
from holdfast.store.postgres import connections, names
from holdfast.store.postgres.connections import Connection
from holdfast.store.postgres.guarding import Guard
from holdfast.store.postgres.place import Place

PAUSE_S = 0.2
"""How long a listener that was cut off waits before it tries again."""

_LOST = ("", 0)


class Listener:
    """Hears of every tenant whose feed has gone on, from whichever process."""

    def __init__(self, place: Place, guard: Guard) -> None:
        self._place = place
        self._guard = guard
        self._closed = threading.Event()
        self._wakes, self._waker = socket.socketpair()
        self._lock = threading.Lock()
        self._listening = 0

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield tenant and position; ("", 0) when something may have been missed. Ends when it is closed."""
        with self._lock:
            if self._closed.is_set():
                return
            self._listening += 1
        try:
            yield from self._connected()
        finally:
            with self._lock:
                self._listening -= 1
                self._put_away()

    def _connected(self) -> Iterator[tuple[str, int]]:
        while not self._closed.is_set():
            try:
                with contextlib.closing(connections.connect(self._place)) as connection:
                    channel = sql.Identifier(self._place.channel)
                    connection.execute(sql.SQL("LISTEN {}").format(channel))
                    yield _LOST
                    yield from self._heard(connection)
            except (psycopg.Error, OSError, errors.Error):
                self._closed.wait(PAUSE_S)

    def _heard(self, connection: Connection) -> Iterator[tuple[str, int]]:
        handle = connection.pgconn
        while not self._closed.is_set():
            while (news := handle.notifies()) is not None:
                position, _, tenant = news.extra.decode().partition(" ")
                if position != "0" or news.be_pid != self._guard.teller:
                    yield names.read(tenant), int(position)
            if self._closed.is_set():
                return
            ready = connections.readable(
                limits.SERVER_ANSWER_S, handle.socket, self._wakes.fileno()
            )
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
                self._put_away()

    def _put_away(self) -> None:
        # Whoever listens still looks at them.
        if self._closed.is_set() and not self._listening:
            self._waker.close()
            self._wakes.close()
