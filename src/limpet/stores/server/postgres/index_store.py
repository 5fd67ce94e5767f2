"""The index store in the schema of a store on PostgreSQL: rows of bytes, ordered by key.

It holds the search index and the memory, which can be rebuilt from the log. The tenant is part of
the keys; row-level security does not apply to this table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import psycopg

from limpet.stores.port import IndexRangeDrop, IndexRowPut
from limpet.stores.server.postgres import connections, schema
from limpet.stores.server.postgres.connections import PostgresConnection, PostgresConnectionPool, PostgresDsn, Rows
from limpet.stores.server.postgres.serialization import ByteaArray, bytea_array


class PostgresIndexStore:
    """The index store in the schema of a store. The verbs are those of `limpet.memory.index_store.IndexStore`."""

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
        return dict(self._query("get", book=book.encode(), keys=bytea_array(list(keys))))

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        name = "scan_back" if newest else "scan"
        rows = self._query(name, book=book.encode(), first=first, last=last, limit=limit)
        return [(key, value) for key, value in rows]

    def last_values(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        firsts = bytea_array([first for first, _ in spans])
        lasts = bytea_array([last for _, last in spans])
        rows = self._query("lasts", book=book.encode(), firsts=firsts, lasts=lasts)
        return [value for (value,) in rows]

    def write(
        self,
        changes: Iterable[IndexRowPut | IndexRangeDrop],
        *,
        expected: Mapping[tuple[str, bytes], bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Make changes in order, all or none, durably, if some rows are as expected; return whether they were."""
        steps = list(changes)
        with self._connections.borrow() as connection, connection.transaction():
            # Writers of all processes take turns, so that expected values stay as they are until the commit.
            self._run(connection, "alone", channel=self._dsn.channel)
            if expected and not self._are_as_expected(connection, expected):
                return False
            with connection.pipeline():
                for is_put, some in itertools.groupby(steps, lambda change: hasattr(change, "value")):
                    if is_put:
                        self._put(connection, cast("Iterable[IndexRowPut]", some))
                    else:
                        self._drop(connection, cast("Iterable[IndexRangeDrop]", some))
        return True

    def _are_as_expected(
        self, connection: PostgresConnection, expected: Mapping[tuple[str, bytes], bytes | None]
    ) -> bool:
        books, keys = zip(*expected, strict=True)
        rows = self._run(connection, "expected", books=_text_array(books), keys=bytea_array(keys))
        return [value for (value,) in rows] == list(expected.values())

    def _put(self, connection: PostgresConnection, puts: Iterable[IndexRowPut]) -> None:
        # Of several puts to one row the last counts.
        rows = {(put.table, put.key): put.value for put in puts}
        books, keys = zip(*rows, strict=True)
        values = {"books": _text_array(books), "keys": bytea_array(keys), "values": bytea_array(list(rows.values()))}
        connection.execute(self._sql["put"].encode(), values)

    def _drop(self, connection: PostgresConnection, drops: Iterable[IndexRangeDrop]) -> None:
        for drop in drops:
            span = {"book": drop.table.encode(), "first": drop.first, "last": drop.last}
            connection.execute(self._sql["drop"].encode(), span)

    def scrub(self) -> None:
        """Rewrite the table, so that its files hold no dropped row."""
        with self._connections.borrow():
            schema.scrub_table(self._dsn, "shelf")

    def clear(self) -> None:
        with self._connections.borrow() as user, connections.owner_connection(self._dsn) as owner:
            try:
                owner.execute(self._sql["truncate"].encode())
            except psycopg.errors.InsufficientPrivilege:
                self._run(user, "clear")

    def size(self) -> int:
        """Return the size of its files in bytes; 0 if it has no row, although the files of an empty table are not empty."""
        return int(self._query("size")[0][0])

    def close(self) -> None:
        self._connections.close()


def _text_array(texts: Sequence[str]) -> ByteaArray | None:
    return bytea_array([text.encode() for text in texts])
