"""The reading connections of one process: a few are kept, more are opened while they are needed.

Nobody ever waits for one, so a reader that is interrupted and never gives its connection back costs
a connection, not the others' progress.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import apsw

from limpet import errors, limits


class Readers:
    """Connections for reading, lent one at a time."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._free: list[apsw.Connection] = []
        self._generation = 0
        self._closed = False

    @contextlib.contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        """Lend a connection that nobody else uses meanwhile."""
        if self._closed:
            raise errors.EngineClosed
        generation = self._generation
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            if len(self._free) >= limits.READERS_MAX:
                connection.close()
            else:
                self._free.append(connection)
            if self._closed or generation != self._generation:
                # Looked at after it was given back: nobody may find it there later.
                self._drop(connection)

    def renew(self) -> None:
        """Use none of the present connections again."""
        self._generation += 1
        free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _drop(self, connection: apsw.Connection) -> None:
        with contextlib.suppress(ValueError):
            self._free.remove(connection)
        connection.close()

    def close(self) -> None:
        """Close every connection; one that is lent closes when it comes back."""
        self._closed = True
        self.renew()
