"""The verbs of a driver that look: each is one script or one command, so one moment of the tenant."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, cast

from limpet.store import chain, port
from limpet.store.redis import packing, translate, unpacking
from limpet.store.redis.links import Answer, Call
from limpet.store.redis.names import Names, decoded
from limpet.store.redis.servers import Servers
from limpet.store.remote import driver

_COUNTED: Final = 1_000
"""Rows that one script counts."""


class Reading:
    """Looking rows up."""

    _servers: Servers
    _names: Names

    def _script(self, name: str, tenant: str, *words: bytes | str | int) -> Answer:
        return self._servers.script(name, self._names.head(tenant), *words)

    def head(self, tenant: str) -> driver.Head:
        """Return a tenant's head."""
        key = self._names.head(tenant)
        return unpacking.head(self._servers.command(key, b"HMGET", key, b"p", b"l", b"e"))

    def tenants(self) -> list[str]:
        """Return every tenant that has events, sorted."""
        # One is listed before its first event is there, and may have come to none.
        return self._with(self._names.tenants, b"log")

    def noted(self) -> list[str]:
        """Return every tenant that has notes, with or without events, sorted."""
        return self._with(self._names.noted, b"notes")

    def _with(self, listed: bytes, part: bytes) -> list[str]:
        """Return the tenants of a list that have a certain key."""
        named = self._members(listed)
        keys = [self._names.base(name) + part for name in named]
        there = self._servers.run([Call(key, (b"EXISTS", key)) for key in keys])
        return sorted(name for name, is_there in zip(named, there, strict=True) if is_there)

    def adrift(self) -> list[str]:
        """Return tenants that have a log and are in no list, out of all keys that there are."""
        listed = set(self._members(self._names.tenants))
        return sorted(set(self._logs()) - listed)

    def _logs(self) -> Iterator[str]:
        for link in self._servers.every():
            at = b"0"
            while True:
                (answer,) = link.run(
                    [(b"SCAN", at, b"MATCH", self._names.logs, b"COUNT", _COUNTED)]
                )
                if isinstance(answer, Exception):
                    raise translate.of(answer, self._servers.place) from answer
                at, keys = cast("tuple[bytes, list[bytes]]", answer)
                yield from map(self._names.tenant, keys)
                if at == b"0":
                    break

    def _members(self, key: bytes) -> list[str]:
        return [unpacking.text(each) for each in cast("list[bytes]", self._servers.command(key, b"SMEMBERS", key))]  # fmt: skip

    def _heads(self, tenants: Collection[str]) -> list[driver.Head]:
        keys = [self._names.head(tenant) for tenant in tenants]
        answers = self._servers.run([Call(key, (b"HMGET", key, b"p", b"l", b"e")) for key in keys])
        return [unpacking.head(answer) for answer in answers]

    def _held(self, tenants: Collection[str]) -> dict[str, dict[str, int]]:
        """Return how many rows there are, by kind and status; nobody is kept waiting for long."""
        held: dict[str, dict[str, int]] = {}
        for tenant in tenants:
            at = b""
            while at != b"0":
                answer = self._script("census", tenant, at or b"0", _COUNTED)
                at, rows = cast("tuple[bytes, list[list[object]]]", answer)
                for row in rows:
                    kind, status = unpacking.text(row[0]), decoded(unpacking.text(row[1]))
                    counts = held.setdefault(kind, {})
                    counts[status] = counts.get(status, 0) + unpacking.number(row[2])
        return held

    def stream(self, tenant: str, stream: str | int) -> driver.Stream | None:
        """Return a stream by name or number."""
        return self.own(tenant, stream, low=1, high=0, limit=0)[0]

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[driver.Stream]:
        """Return streams by number, those after one."""
        answer = cast("list[object]", self._script("streams", tenant, after, limit))
        return [unpacking.stream(each) for each in answer]

    def own(
        self,
        tenant: str,
        stream: str | int,
        *,
        low: int,
        high: int,
        limit: int,
        newest: bool = False,
    ) -> tuple[driver.Stream | None, list[driver.Kept]]:
        """Return a stream, and its own events of some versions."""
        by = "name" if isinstance(stream, str) else "number"
        end = "newest" if newest else "first"
        answer = self._script("own", tenant, by, stream, low, high, limit, end)
        if answer is None:
            return None, []
        told, rows = cast("list[object]", answer)
        if isinstance(rows, bytes):
            place = chain.Place(unpacking.number(rows), 0, 0)
            raise chain.damaged(place, "it is not in the log any more")
        return unpacking.stream(told), unpacking.events(rows)

    def feed(self, tenant: str, *, after: int, limit: int) -> list[driver.Kept]:
        """Return events with position > after, in order."""
        return unpacking.events(self._script("feed", tenant, after, limit))

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        """Return the version of a stream's last own event up to a position; 0 if it had none."""
        return unpacking.number(self._script("version_at", tenant, stream, position))

    def seek(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        """Return the lowest own version within low … high whose event has at least this ordinal; 0: none."""
        return unpacking.number(self._script("seek", tenant, number, low, high, ordinal))

    def claims(
        self, tenant: str, claims: Collection[str], stretches: Collection[int]
    ) -> list[tuple[int, str, int]]:
        """Return stretch, text and version of those of these claims that these stretches have."""
        asked = packing.pack(list(claims)), packing.pack(list(stretches))
        answer = cast("list[list[object]]", self._script("claims", tenant, *asked, "find"))
        return [
            (unpacking.number(stretch), unpacking.text(claim), unpacking.number(version))
            for stretch, claim, version in answer
        ]

    def claims_of(self, tenant: str, stretches: Collection[int]) -> int:
        """Return how many claims stretches have."""
        asked = packing.pack([]), packing.pack(list(stretches))
        return unpacking.number(self._script("claims", tenant, *asked, "count"))

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        """Return the names of other streams that have a base in one, and the base's version, in their order."""
        answer = cast("list[list[object]]", self._script("forks", tenant, number))
        return [(unpacking.text(name), unpacking.number(version)) for name, version in answer]

    def key(self, tenant: str, key: str) -> driver.KeptKey | None:
        """Return what an idempotency key was used for."""
        where = self._names.base(tenant) + b"keys"
        answer = self._servers.command(where, b"HGET", where, key)
        return None if answer is None else unpacking.key(key.encode(), answer)

    def _page(
        self, tenant: str, book: str, order: str, span: tuple[bytes, bytes], limit: int
    ) -> list[list[object]]:
        """Return names and values of a hash in the order of its names; `derived/` names one that is derived."""
        where, _, hash_ = book.rpartition("/")
        answer = self._script("page", tenant, hash_, order, *span, limit, where)
        return cast("list[list[object]]", answer)

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[driver.KeptKey]:
        """Return keys by their text, those after one."""
        page = self._page(tenant, "keys", "keys:text", (b"(" + after.encode(), b"+"), limit)
        return [unpacking.key(*each) for each in page]

    def keys_of(self, tenant: str, positions: Collection[int]) -> list[str]:
        """Return keys whose first … last has one of these positions."""
        answer = self._script("keys_of", tenant, packing.pack(list(positions)))
        return [unpacking.text(each) for each in cast("list[bytes]", answer)]

    def projection(self, tenant: str, kind: str, id: str) -> driver.KeptProjection | None:
        """Return one row."""
        answer = self._script("projection", tenant, "rows", packing.row_id(kind, id))
        return None if answer is None else unpacking.projection(answer)

    def query(self, tenant: str, query: port.Query) -> list[driver.KeptProjection]:
        """Return one page of rows."""
        if query.limit <= 0:
            return []
        answer = self._script("query", tenant, packing.query(query))
        return [unpacking.projection(each) for each in cast("list[bytes]", answer)]

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[driver.KeptProjection]:
        """Return rows of all kinds by (kind, id), those after one."""
        first = b"-" if after == ("", "") else b"(" + packing.row_id(*after)
        page = self._page(tenant, "derived/rows", "rows:id", (first, b"+"), limit)
        return [unpacking.projection(row) for _, row in page if row is not None]

    def snapshot(self, tenant: str, stream: str) -> driver.KeptSnapshot | None:
        """Return the newest snapshot of a stream."""
        answer = self._script("snapshot", tenant, stream)
        return None if answer is None else unpacking.snapshot(stream, answer)

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return contents by hash, those that are there; unchecked."""
        if not hashes:
            return {}
        asked, key = list(hashes), self._names.base(tenant) + b"blobs"
        answer = cast("list[bytes | None]", self._servers.command(key, b"HMGET", key, *asked))
        found = zip(asked, answer, strict=True)
        return {hash_: content for hash_, content in found if content is not None}

    def every_blob(
        self, tenant: str, *, after: bytes = b"", limit: int = 100
    ) -> list[tuple[bytes, bytes]]:
        """Return blobs by hash, those after one."""
        page = self._page(tenant, "blobs", "blobs:hash", (b"(" + after, b"+"), limit)
        # One that was taken away beneath the store has nothing left to be read.
        return [cast("tuple[bytes, bytes]", (hash_, content or b"")) for hash_, content in page]

    def uses(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[tuple[int, bytes]]:
        """Return uses of blobs by position: of those after one, whole positions, about `limit` of them."""
        found = cast("list[bytes]", self._script("uses", tenant, after, limit))
        return [(int.from_bytes(each[:8], "big"), each[16:]) for each in found]

    def unused(self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]) -> set[bytes]:
        """Return those of the blobs that are there and that no event but those of these streams refers to."""
        asked = packing.pack([packing.raw(each) for each in hashes]), packing.pack(list(but))
        return set(cast("list[bytes]", self._script("unused", tenant, *asked)))

    def note(self, tenant: str, name: str) -> driver.KeptNote | None:
        """Return a note."""
        key = self._names.base(tenant) + b"notes"
        answer = self._servers.command(key, b"HGET", key, name)
        return None if answer is None else unpacking.note(name.encode(), answer)

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[driver.KeptNote]:
        """Return notes by name, in the order of their UTF-8 bytes."""
        first, last = prefix.encode(), after.encode()
        # No name has the byte 0xff.
        span = (b"(" + last if last >= first else b"[" + first, b"(" + first + b"\xff")
        page = self._page(tenant, "notes", "notes:name", span, limit)
        return [unpacking.note(*each) for each in page]
