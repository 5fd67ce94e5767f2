"""Exchanges with the server at libpq's level: statements that are prepared once, and several on their way together.

What a cursor does for each statement takes about as long as the server needs for a small change. Here a statement is
prepared once, by a name of its own, and its arguments come packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from limpet.store.postgres.connections import Connection

Arguments = Sequence[bytes | None]
Call = tuple[bytes, Arguments]
"""The name of a prepared statement, and what it is given in binary form."""

TAKEN = b"taken"
"""The answer of a call that failed because something that has to be new is there already."""

_TAKEN_STATE = b"23505"
_ROWS, _SYNC = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.PIPELINE_SYNC
_STATE, _BINARY = pq.DiagnosticField.SQLSTATE, pq.Format.BINARY


def prepare(connection: Connection, name: bytes, statement: bytes) -> None:
    """Have a statement known by a name, as long as the connection stands."""
    if name not in connection.prepared:
        connection.pgconn.send_prepare(name, statement)
        _flush(connection)
        for result in _results(connection):
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise error_from_result(result)
        connection.prepared.add(name)


def send(connection: Connection, calls: Sequence[Call]) -> None:
    """Send calls without waiting for answers. Each is a transaction of its own, unless a single one is within one."""
    if len(calls) == 1:
        ((name, arguments),) = calls
        connection.pgconn.send_query_prepared(name, arguments, [_BINARY] * len(arguments), _BINARY)
        _flush(connection)
    else:
        send_ahead(connection, calls)


def send_ahead(connection: Connection, calls: Sequence[Call]) -> None:
    """Send calls behind those that are not answered yet. From then on, until `rest`, only this and `receive_next` will do."""
    handle = connection.pgconn
    if handle.pipeline_status == pq.PipelineStatus.OFF:
        handle.enter_pipeline_mode()
    for name, arguments in calls:
        handle.send_query_prepared(name, arguments, [_BINARY] * len(arguments), _BINARY)
        # What is sent between two syncs is one transaction.
        handle.pipeline_sync()
    _flush(connection)


def receive_next(connection: Connection, count: int) -> list[bytes]:
    """Return what the next so many calls have answered, of those that were sent ahead."""
    return [_answer(_until_sync(connection)) for _ in range(count)]


def is_ready(connection: Connection) -> bool:
    """Whether the next result is there whole; what comes after it may have to be waited for."""
    handle = connection.pgconn
    if handle.is_busy():
        handle.consume_input()
    return not handle.is_busy()


def rest(connection: Connection) -> None:
    """End sending ahead: all is answered."""
    if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        connection.pgconn.exit_pipeline_mode()


def receive(connection: Connection, count: int) -> list[bytes]:
    """Return what as many calls as were sent have answered, one value each. The connection is free again then.

    After any error that is raised the connection must not be used any more.
    """
    if count == 1:
        return [_answer(_results(connection))]
    answers = receive_next(connection, count)
    rest(connection)
    return answers


def _answer(results: Iterable[PGresult]) -> bytes:
    """Return the value of the one row. All results are looked at: what fails when it is committed fails at the end.

    No answer is none: silence never means that something is done.
    """
    answer: bytes | None = None
    for result in results:
        if result.status == _ROWS:
            answer = result.get_value(0, 0)
        elif result.error_field(_STATE) == _TAKEN_STATE:
            answer = TAKEN
        else:
            raise error_from_result(result)
    if answer is None:
        raise psycopg.OperationalError("no answer came")
    return answer


def _results(connection: Connection) -> list[PGresult]:
    results: list[PGresult] = []
    while (result := _result(connection)) is not None:
        results.append(result)
    return results


def _until_sync(connection: Connection) -> list[PGresult]:
    """Return the results of one call of several. Each call has an end, and then a sync."""
    results = _results(connection)
    while (result := _result(connection)) is not None:
        if result.status == _SYNC:
            return results
        results.append(result)
    # What was said last, if it is a failure, tells more.
    _answer(results)
    raise psycopg.OperationalError("the connection was lost")


def _result(connection: Connection) -> PGresult | None:
    handle = connection.pgconn
    while handle.is_busy():
        connection.wait_for_server()
        handle.consume_input()
    return handle.get_result()


def _flush(connection: Connection) -> None:
    """Send all that is to be sent. What comes meanwhile is read: a server that can't answer would read no more."""
    handle = connection.pgconn
    while handle.flush():
        if connection.wait_for_server(to_send=True):
            handle.consume_input()
