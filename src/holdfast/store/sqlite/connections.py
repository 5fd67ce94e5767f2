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
                    return self._free.pop()
                if self._open < limits.READERS_MAX:
                    self._open += 1
                    break
                self._changed.wait()
        try:
            return self._connect()
        except BaseException:
            with self._changed:
                self._open -= 1
                self._changed.notify()
            raise

    def _give(self, connection: apsw.Connection) -> None:
        with self._changed:
            if self._closed:
                connection.close()
            else:
                self._free.append(connection)
            self._changed.notify()

    def close(self) -> None:
        """Close every connection; one that is lent closes when it comes back."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for connection in free:
            connection.close()
