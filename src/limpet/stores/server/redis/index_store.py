"""The index store beside a store on Redis: rows of bytes, ordered by key.

A table is a hash and a sorted set of its keys. All tables share one hash tag, so one script changes
rows of several tables, and in a cluster all of them are on one server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

from limpet.stores.port import IndexRangeDrop, IndexRowPut
from limpet.stores.server.redis.connections import RedisCall, RedisDsn, RedisServers
from limpet.stores.server.redis.serialization import encode_name, pack, raw_bytes, unpack_number
from limpet.stores.server.redis.settings import RedisSettings


class RedisIndexStore:
    """The index store beside a store on Redis. The verbs are those of `limpet.memory.index_store.IndexStore`."""

    def __init__(self, place: RedisDsn) -> None:
        self._servers = RedisServers(place)
        self._base = f"{place.prefix}:{{shelf}}:".encode()
        self._settings = RedisSettings(self._servers)

    def _table_key(self, book: str) -> bytes:
        return self._base + encode_name(book).encode()

    def get(self, book: str, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        if not keys:
            return {}
        where = self._table_key(book)
        answer = cast("list[bytes | None]", self._servers.command(where, b"HMGET", where, *keys))
        found = zip(keys, answer, strict=True)
        return {key: value for key, value in found if value is not None}

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        way = "back" if newest else "forth"
        answer = self._servers.script("scan_table", self._table_key(book), first, last, limit, way)
        return [(key, value) for key, value in cast("list[list[bytes]]", answer)]

    def last_values(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        if not spans:
            return []
        asked = [(raw_bytes(first), raw_bytes(last)) for first, last in spans]
        answer = self._servers.script("last_values", self._table_key(book), pack(asked))
        return [row[0] if row else None for row in cast("list[list[bytes]]", answer)]

    def write(
        self,
        changes: Iterable[IndexRowPut | IndexRangeDrop],
        *,
        expected: Mapping[tuple[str, bytes], bytes | None] = MappingProxyType({}),
    ) -> bool:
        """Make changes in order, all or none, durably, if some rows are as expected; return whether they were."""
        values = [
            (encode_name(book), raw_bytes(key), False if value is None else raw_bytes(value))
            for (book, key), value in expected.items()
        ]
        steps = [_pack_index_change(change) for change in changes]
        return bool(self._servers.script("write_tables", self._base, pack(values), pack(steps)))

    def scrub(self) -> None:
        """Have the server rewrite its files, so that they hold no dropped row."""
        self._settings.rewrite()

    def clear(self) -> None:
        keys = self._keys()
        self._servers.run([RedisCall(self._base, (b"UNLINK", key)) for key in keys], write=True)

    def size(self) -> int:
        """Return how many bytes of the server's memory the rows take."""
        calls = [RedisCall(self._base, (b"MEMORY", b"USAGE", key)) for key in self._keys()]
        return sum(unpack_number(size or 0) for size in self._servers.run(calls))

    def _keys(self) -> list[bytes]:
        every = self._base + b"books"
        books = cast("list[bytes]", self._servers.command(every, b"SMEMBERS", every))
        keys = [self._base + book + end for book in books for end in (b"", b":keys")]
        return [*keys, every] if books else []

    def close(self) -> None:
        self._servers.close()


def _pack_index_change(change: IndexRowPut | IndexRangeDrop) -> tuple[object, ...]:
    if hasattr(change, "value"):
        put = cast("IndexRowPut", change)
        return ("put", encode_name(put.table), raw_bytes(put.key), raw_bytes(put.value))
    drop = cast("IndexRangeDrop", change)
    return ("drop", encode_name(drop.table), raw_bytes(drop.first), raw_bytes(drop.last))
