"""News of a store: one connection that listens until it is closed, or cut."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

from psycopg import sql

from limpet import limits
from limpet.store.postgres import connections, names, translate
from limpet.store.postgres.connections import Connection
from limpet.store.postgres.guarding import Guard
from limpet.store.postgres.place import Place

_LOST = ("", 0)
_NEWS = re.compile(r"(0|[1-9][0-9]{0,18}) (.+)", re.DOTALL)
"""A position, as `bigint` has them, and a tenant."""


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
        """Yield ("", 0), then tenant and position. Ends when it is closed; raises what cut it off."""
        with self._lock:
            if self._closed.is_set():
                return
            self._listening += 1
        try:
            with (
                translate.at(self._place.shown),
                contextlib.closing(connections.connect(self._place)) as connection,
            ):
                channel = sql.Identifier(self._place.channel)
                connection.execute(sql.SQL("LISTEN {}").format(channel))
                yield _LOST
                yield from self._heard(connection)
        finally:
            with self._lock:
                self._listening -= 1
                self._put_away()

    def _heard(self, connection: Connection) -> Iterator[tuple[str, int]]:
        handle = connection.pgconn
        while not self._closed.is_set():
            while (news := handle.notifies()) is not None:
                told = _NEWS.fullmatch(news.extra.decode(errors="replace"))
                if told is None:
                    # Anybody may speak on the channel: what can't be read may have been news.
                    yield _LOST
                elif told[1] != "0" or news.be_pid != self._guard.teller:
                    yield names.read(told[2]), int(told[1])
            if self._closed.is_set():
                return
            ready = connections.readable(
                limits.SERVER_RESPONSE_S, handle.socket, self._wakes.fileno()
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
