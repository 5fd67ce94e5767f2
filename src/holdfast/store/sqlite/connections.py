"""The connections of one process to one store: one that writes, a few that read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import apsw

from holdfast import errors, limits


class Readers:
    """A bounded pool of reading connections, opened when first needed."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._free: list[apsw.Connection] = []
        self._changed = threading.Condition()
        self._open = 0
        self._closed = False
        self._stale: set[apsw.Connection] = set()
        self._lent: set[apsw.Connection] = set()

    @contextlib.contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        """Lend a connection that nobody else uses meanwhile."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give(connection)

    def _take(self) -> apsw.Connection:
        with self._changed:
            while True:
                if self._closed:
                    raise errors.EngineClosed
                if self._free:
                    self._lent.add(self._free[-1])
                    return self._free.pop()
                if self._open < limits.READERS_MAX:
                    self._open += 1
                    break
                self._changed.wait()
        try:
            made = self._connect()
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._lent.add(made)
        return made

    def _give(self, connection: apsw.Connection) -> None:
        with self._changed:
            self._lent.discard(connection)
            if self._closed or connection in self._stale:
                self._stale.discard(connection)
                self._open -= 1
                connection.close()
            else:
                self._free.append(connection)
            self._changed.notify()

    def renew(self) -> None:
        """Use none of the present connections again."""
        with self._changed:
            self._stale |= self._lent
            free, self._free = self._free, []
            self._open -= len(free)
            self._changed.notify_all()
        for connection in free:
            connection.close()

    def close(self) -> None:
        """Close every connection; one that is lent closes when it comes back."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for connection in free:
            connection.close()
