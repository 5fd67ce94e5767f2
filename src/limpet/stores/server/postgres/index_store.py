"""The index store in the schema of a store on PostgreSQL: rows of bytes, ordered by key.

It holds the search index and the memory, which can be rebuilt from the log. The tenant is part of
the keys; row-level security does not apply to this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import psycopg

from limpet.stores.port import IndexRangeDrop, IndexRowPut
from limpet.stores.server.postgres import connections, schema, serialization
from limpet.stores.server.postgres.connections import PostgresConnection, PostgresConnectionPool, PostgresDsn, Rows


class PostgresIndexStore:
    """A shelf in the schema of a store."""

    def __init__(self, place: PostgresDsn) -> None:
        self._dsn = place
        self._sql = connections.sql_statements("index_store.sql")
        schema.prepare_schema(place)
        self._connections = PostgresConnectionPool(
            place, lambda connection: schema.check_server(schema.inspect_server(connection), place)
        )

    def _query(self, name: str, **values: object) -> Rows:
        with self._connections.borrow() as connection:
            return self._run(connection, name, **values)

    def _run(self, connection: PostgresConnection, name: str, **values: object) -> Rows:
        cursor = connection.cursor(binary=True)
        cursor.execute(self._sql[name].encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def get(self, book: str, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        rows = self._query("get", book=book.encode(), keys=serialization.bytea_array(list(keys)))
        return dict(rows)

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        name = "scan_back" if newest else "scan"
        rows = self._query(name, book=book.encode(), first=first, last=last, limit=limit)
        return [(key, value) for key, value in rows]

    def last_values(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        rows = self._query(
            "lasts",
            book=book.encode(),
            firsts=serialization.bytea_array([first for first, _ in spans]),
            lasts=serialization.bytea_array([last for _, last in spans]),
        )
        return [value for (value,) in rows]

    def write(
        self,
        changes: Iterable[IndexRowPut | IndexRangeDrop],
        *,
        expected: Mapping[tuple[str, bytes], bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Make changes in order, all or none, durably, if some rows are as expected; return whether they were."""
        steps = _join_puts(changes)
        with self._connections.borrow() as connection, connection.transaction():
            # One writes at a time, whichever process it is in: what is expected stays so until it is changed.
            self._run(connection, "alone", channel=self._dsn.channel)
            if expected and not self._are_as_expected(connection, expected):
                return False
            with connection.pipeline():
                for step in steps:
                    self._apply_step(connection, step)
        return True

    def _are_as_expected(
        self, connection: PostgresConnection, expected: Mapping[tuple[str, bytes], bytes | None]
    ) -> bool:
        rows = self._run(
            connection,
            "expected",
            books=serialization.bytea_array([book.encode() for book, _ in expected]),
            keys=serialization.bytea_array([key for _, key in expected]),
        )
        return [value for (value,) in rows] == list(expected.values())

    def _apply_step(
        self, connection: PostgresConnection, step: IndexRangeDrop | dict[tuple[str, bytes], bytes]
    ) -> None:
        if isinstance(step, dict):
            connection.execute(
                self._sql["put"].encode(),
                {
                    "books": serialization.bytea_array([book.encode() for book, _ in step]),
                    "keys": serialization.bytea_array([key for _, key in step]),
                    "values": serialization.bytea_array(list(step.values())),
                },
            )
        else:
            span = {"book": step.table.encode(), "first": step.first, "last": step.last}
            connection.execute(self._sql["drop"].encode(), span)

    def scrub(self) -> None:
        """Write the table anew, so that nothing of what was dropped is left in its files."""
        with self._connections.borrow():
            schema.scrub_table(self._dsn, "shelf")

    def clear(self) -> None:
        with self._connections.borrow() as user, connections.owner_connection(self._dsn) as owner:
            try:
                owner.execute(self._sql["truncate"].encode())
            except psycopg.errors.InsufficientPrivilege:
                self._run(user, "clear")

    def size(self) -> int:
        """Return how many bytes its files have; 0 if no row is on it, though an empty table has some."""
        return int(self._query("size")[0][0])

    def close(self) -> None:
        self._connections.close()


def _join_puts(
    changes: Iterable[IndexRowPut | IndexRangeDrop],
) -> list[IndexRangeDrop | dict[tuple[str, bytes], bytes]]:
    """Return changes with neighbouring puts joined; of those to one row the last counts."""
    steps: list[IndexRangeDrop | dict[tuple[str, bytes], bytes]] = []
    for change in changes:
        if not hasattr(change, "value"):
            steps.append(cast("IndexRangeDrop", change))
            continue
        put = cast("IndexRowPut", change)
        if not steps or not isinstance(steps[-1], dict):
            steps.append({})
        puts = cast("dict[tuple[str, bytes], bytes]", steps[-1])
        puts[put.table, put.key] = put.value
    return steps
