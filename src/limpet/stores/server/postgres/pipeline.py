"""Prepared statements sent through libpq's pipeline mode.

`PostgresPipeline` sends changes before the earlier ones are answered. Statements are prepared once
a connection; a cursor for each statement would take about as long as the server needs for a small
change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from limpet.stores.server import driver
from limpet.stores.server.driver import ChangeResult, TenantChange
from limpet.stores.server.postgres.connections import BorrowedConnection, PostgresConnection

BinaryArguments = Sequence[bytes | None]
PreparedCall = tuple[bytes, BinaryArguments]
"""The name of a prepared statement, and what it is given in binary form."""

DUPLICATE = b"taken"
"""The answer of a call that failed because something that has to be new is there already."""

_UNIQUE_VIOLATION = b"23505"
_TUPLES_OK, _PIPELINE_SYNC = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.PIPELINE_SYNC
_SQLSTATE, _BINARY = pq.DiagnosticField.SQLSTATE, pq.Format.BINARY


def prepare_statement(connection: PostgresConnection, name: bytes, statement: bytes) -> None:
    """Have a statement known by a name, as long as the connection stands."""
    if name not in connection.prepared:
        connection.pgconn.send_prepare(name, statement)
        _flush_output(connection)
        for result in _read_results(connection):
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise error_from_result(result)
        connection.prepared.add(name)


def send_calls(connection: PostgresConnection, calls: Sequence[PreparedCall]) -> None:
    """Send calls without waiting for answers. Each is a transaction of its own, unless a single one is within one."""
    if len(calls) == 1:
        ((name, arguments),) = calls
        connection.pgconn.send_query_prepared(name, arguments, [_BINARY] * len(arguments), _BINARY)
        _flush_output(connection)
    else:
        send_pipelined(connection, calls)


def send_pipelined(connection: PostgresConnection, calls: Sequence[PreparedCall]) -> None:
    """Send calls behind those that are not answered yet. From then on, until `rest`, only this and `receive_next` will do."""
    handle = connection.pgconn
    if handle.pipeline_status == pq.PipelineStatus.OFF:
        handle.enter_pipeline_mode()
    for name, arguments in calls:
        handle.send_query_prepared(name, arguments, [_BINARY] * len(arguments), _BINARY)
        # What is sent between two syncs is one transaction.
        handle.pipeline_sync()
    _flush_output(connection)


def receive_pipelined(connection: PostgresConnection, count: int) -> list[bytes]:
    """Return what the next so many calls have answered, of those that were sent ahead."""
    return [_single_value(_read_results_to_sync(connection)) for _ in range(count)]


def has_result(connection: PostgresConnection) -> bool:
    """Whether the next result is there whole; what comes after it may have to be waited for."""
    handle = connection.pgconn
    if handle.is_busy():
        handle.consume_input()
    return not handle.is_busy()


def end_pipeline(connection: PostgresConnection) -> None:
    """End sending ahead: all is answered."""
    if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        connection.pgconn.exit_pipeline_mode()


def receive_answers(connection: PostgresConnection, count: int) -> list[bytes]:
    """Return what as many calls as were sent have answered, one value each. The connection is free again then.

    After any error that is raised the connection must not be used any more.
    """
    if count == 1:
        return [_single_value(_read_results(connection))]
    answers = receive_pipelined(connection, count)
    end_pipeline(connection)
    return answers


def _single_value(results: Iterable[PGresult]) -> bytes:
    """Return the value of the one row. All results are looked at: what fails when it is committed fails at the end.

    No answer is none: silence never means that something is done.
    """
    answer: bytes | None = None
    for result in results:
        if result.status == _TUPLES_OK:
            answer = result.get_value(0, 0)
        elif result.error_field(_SQLSTATE) == _UNIQUE_VIOLATION:
            answer = DUPLICATE
        else:
            raise error_from_result(result)
    if answer is None:
        raise psycopg.OperationalError("no answer came")
    return answer


def _read_results(connection: PostgresConnection) -> list[PGresult]:
    results: list[PGresult] = []
    while (result := _next_result(connection)) is not None:
        results.append(result)
    return results


def _read_results_to_sync(connection: PostgresConnection) -> list[PGresult]:
    """Return the results of one call of several. Each call has an end, and then a sync."""
    results = _read_results(connection)
    while (result := _next_result(connection)) is not None:
        if result.status == _PIPELINE_SYNC:
            return results
        results.append(result)
    # What was said last, if it is a failure, tells more.
    _single_value(results)
    raise psycopg.OperationalError("the connection was lost")


def _next_result(connection: PostgresConnection) -> PGresult | None:
    handle = connection.pgconn
    while handle.is_busy():
        connection.wait_for_server()
        handle.consume_input()
    return handle.get_result()


def _flush_output(connection: PostgresConnection) -> None:
    """Send all that is to be sent. What comes meanwhile is read: a server that can't answer would read no more."""
    handle = connection.pgconn
    while handle.flush():
        if connection.wait_for_server(to_send=True):
            handle.consume_input()


CallFactory = Callable[[PostgresConnection, TenantChange], PreparedCall]
ResultParser = Callable[[TenantChange, bytes], ChangeResult]


class PostgresPipeline:
    """A loan for changes on their way. `is_known` says whether a change needs nothing to be prepared first."""

    def __init__(
        self,
        loan: BorrowedConnection,
        call: CallFactory,
        is_known: Callable[[PostgresConnection, TenantChange], bool],
        verdict: ResultParser,
    ) -> None:
        self._loan = loan
        self._call = call
        self._is_prepared = is_known
        self._parse_result = verdict
        self._in_flight: deque[Sequence[TenantChange]] = deque()

    def __enter__(self) -> PostgresPipeline:
        """Borrow the connection."""
        self._connection = self._loan.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back, or throw it away if not every answer was had."""
        connection = self._connection
        del self._connection
        if self._in_flight or error is not None:
            connection.close()
        else:
            try:
                end_pipeline(connection)
            except BaseException as failure:
                self._loan.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._loan.__exit__(kind, error, trace)

    def send(self, changes: Sequence[TenantChange]) -> bool:
        """Send changes; False if one needs a statement to be prepared, which no answer may be out for."""
        connection = self._connection
        if not all(self._is_prepared(connection, change) for change in changes):
            if self._in_flight:
                return False
            end_pipeline(connection)
        calls = [self._call(connection, change) for change in changes]
        self._in_flight.append(changes)
        send_pipelined(connection, calls)
        return True

    def receive(self) -> list[ChangeResult]:
        """Wait for what became of the first of them."""
        said = receive_pipelined(self._connection, len(self._in_flight[0]))
        return [self._parse_result(*one) for one in zip(self._in_flight.popleft(), said, strict=True)]

    def has_answer(self) -> bool:
        """Whether something of an answer is there."""
        return has_result(self._connection)

    def fileno(self) -> int:
        """Return the connection's socket."""
        return self._connection.pgconn.socket


_conforms: type[driver.ChangePipeline] = PostgresPipeline
