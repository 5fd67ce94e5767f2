"""A connection over which changes are sent ahead of answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from limpet.store.postgres import exchange
from limpet.store.postgres.connections import Connection, Loan
from limpet.store.remote import driver
from limpet.store.remote.driver import Change, Verdict

MakeCall = Callable[[Connection, Change], exchange.Call]
Judge = Callable[[Change, bytes], Verdict]


class PostgresLine:
    """A loan for changes on their way. `is_known` says whether a change needs nothing to be prepared first."""

    def __init__(
        self,
        loan: Loan,
        call: MakeCall,
        is_known: Callable[[Connection, Change], bool],
        verdict: Judge,
    ) -> None:
        self._loan = loan
        self._call = call
        self._is_known = is_known
        self._verdict = verdict
        self._out: deque[Sequence[Change]] = deque()

    def __enter__(self) -> PostgresLine:
        """Borrow the connection."""
        self._connection = self._loan.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back, or throw it away if not every answer was had."""
        connection = self._connection
        del self._connection
        if self._out or error is not None:
            connection.close()
        else:
            try:
                exchange.rest(connection)
            except BaseException as failure:
                self._loan.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._loan.__exit__(kind, error, trace)

    def send(self, changes: Sequence[Change]) -> bool:
        """Send changes; False if one needs a statement to be prepared, which no answer may be out for."""
        connection = self._connection
        if not all(self._is_known(connection, change) for change in changes):
            if self._out:
                return False
            exchange.rest(connection)
        calls = [self._call(connection, change) for change in changes]
        self._out.append(changes)
        exchange.send_ahead(connection, calls)
        return True

    def receive(self) -> list[Verdict]:
        """Wait for what became of the first of them."""
        said = exchange.receive_next(self._connection, len(self._out[0]))
        return [self._verdict(*one) for one in zip(self._out.popleft(), said, strict=True)]

    def ready(self) -> bool:
        """Whether something of an answer is there."""
        return exchange.is_ready(self._connection)

    def fileno(self) -> int:
        """Return the connection's socket."""
        return self._connection.pgconn.socket


_conforms: type[driver.Line] = PostgresLine
