"""Appending, inside one open transaction: conditions first, then rows. Nothing here commits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import apsw
import msgspec

from holdfast import errors
from holdfast.store import chain, port
from holdfast.store.sqlite import opening
from holdfast.store.sqlite.anchor import Head

TENANT_SHIFT = 40
"""Bits of a key that count within a tenant: a trillion events each, eight million tenants."""

MARK_BYTES = 8

NUMBERS_MAX = 10_000
"""Stream keys remembered in one process."""

NUMBER_MASK = (1 << TENANT_SHIFT) - 1


def first(
    connection: apsw.Connection, query: str, bindings: tuple[apsw.SQLiteValue, ...]
) -> tuple[apsw.SQLiteValue, ...] | None:
    """Return the first row of a query, if there is one."""
    return next(connection.execute(query, bindings), None)


def number(connection: apsw.Connection, query: str, bindings: tuple[apsw.SQLiteValue, ...]) -> int:
    """Return the integer that a query finds, 0 if none."""
    row = first(connection, query, bindings)
    return row[0] if row and isinstance(row[0], int) else 0


def mark(*fields: object) -> bytes:
    """Return the checksum over a row that can't be derived from the log."""
    whole = repr(fields).encode()
    return hashlib.sha256(whole).digest()[:MARK_BYTES]


class Numbers:
    """Numbers of tenants and keys of streams, which never change once committed, remembered.

    Those made in the transaction under way are remembered by `keep` once it is committed.
    """

    def __init__(self) -> None:
        self._sql = opening.queries()
        self._tenants: dict[str, int] = {}
        self._streams: dict[tuple[int, str], int] = {}
        self._fresh_tenants: dict[str, int] = {}
        self._fresh_streams: dict[tuple[int, str], int] = {}

    def tenant(self, connection: apsw.Connection, name: str) -> int:
        """Return a tenant's number, 0 if it has none yet."""
        known = self._tenants.get(name)
        if known is None:
            known = number(connection, self._sql["tenant_number"], (name,))
            if known and not connection.in_transaction:
                self._tenants[name] = known
        return known

    def stream(self, connection: apsw.Connection, tenant: int, name: str) -> int:
        """Return a stream's key, 0 if it has none yet."""
        known = self._streams.get((tenant, name))
        if known is None:
            known = number(connection, self._sql["stream_key"], (tenant, name))
            if known:
                self._fresh_streams[tenant, name] = known
        return known

    def add_tenant(self, connection: apsw.Connection, name: str) -> int:
        """Give a tenant its number."""
        made = number(connection, self._sql["tenants_max"], ()) + 1
        connection.execute(self._sql["add_tenant"], (made, name, mark(made, name)))
        self._fresh_tenants[name] = made
        return made

    def keep(self) -> None:
        """Remember what the transaction found and made: it is committed."""
        if len(self._streams) > NUMBERS_MAX:
            self._streams.clear()
        self._tenants |= self._fresh_tenants
        self._streams |= self._fresh_streams
        self.drop()

    def drop(self) -> None:
        """Forget what the transaction found and made: it is not committed."""
        self._fresh_tenants.clear()
        self._fresh_streams.clear()


class Batch:
    """Appends of one transaction, and the heads that they lead to."""

    def __init__(
        self, connection: apsw.Connection, numbers: Numbers, random: Callable[[int], bytes]
    ) -> None:
        self._connection = connection
        self._numbers = numbers
        self._random = random
        self._sql = opening.queries()
        self.heads: dict[int, Head] = {}

    def append(self, append: port.Append) -> port.Outcome:
        """Check one append's conditions and write it; on any other outcome than Appended nothing is written."""
        numbers, connection = self._numbers, self._connection
        tenant = numbers.tenant(connection, append.tenant)
        if append.key is not None:
            row = first(self._connection, self._sql["key"], (tenant, append.key.key))
            if row is not None:
                return replayed(row)
        keys = [
            numbers.stream(connection, tenant, write.stream) if tenant else 0
            for write in append.writes
        ]
        for refused in self._refusals(append, keys):
            return refused
        tenant = tenant or numbers.add_tenant(connection, append.tenant)
        head = self._head(tenant)
        begin = head.position + 1
        for write, key in zip(append.writes, keys, strict=True):
            head = self._write(tenant, write, key, head)
        self.heads[tenant] = head
        self._derive(tenant, append, begin, head.position)
        return port.Appended(begin, head.position)

    def _refusals(self, append: port.Append, keys: list[int]) -> Iterator[port.Outcome]:
        for write, key in zip(append.writes, keys, strict=True):
            actual = number(self._connection, self._sql["stream_version"], (key,)) if key else 0
            if actual != write.expected:
                yield port.Stale(write.stream, actual)
        for write, key in zip(append.writes, keys, strict=True):
            made: dict[str, int] = {}
            for claim, index in write.claims:
                taken = number(self._connection, self._sql["claim"], (key, claim)) if key else 0
                if taken or claim in made:
                    yield port.Claimed(write.stream, claim, taken or made[claim])
                made[claim] = write.expected + index + 1

    def _head(self, tenant: int) -> Head:
        if tenant not in self.heads:
            base = tenant << TENANT_SHIFT
            row = first(self._connection, self._sql["head"], (base, base | NUMBER_MASK))
            self.heads[tenant] = head_of(row)
        return self.heads[tenant]

    def _write(self, tenant: int, write: port.StreamWrite, key: int, head: Head) -> Head:
        base = tenant << TENANT_SHIFT
        if not key:
            key = base | (head.position + 1)
            self._connection.execute(
                self._sql["add_stream"],
                (key, tenant, write.stream, mark(key, tenant, write.stream)),
            )
        position, link = head.position, head.link
        rows: list[tuple[apsw.SQLiteValue, ...]] = []
        for version, event in enumerate(write.events, write.expected + 1):
            position += 1
            header = chain.header(event, chain.Place(position, key & NUMBER_MASK, version))
            salt = self._random(chain.SALT_BYTES)
            digest = chain.digest(salt, header, event.payload)
            link = chain.link(link, digest, header)
            rows.append((base | position, key, version, header, event.payload, salt, digest, link))
        self._connection.executemany(self._sql["add_event"], rows)
        if write.claims:
            claims = [(key, claim, write.expected + index + 1) for claim, index in write.claims]
            self._connection.executemany(self._sql["add_claim"], claims)
        return Head(position, link)

    def _derive(self, tenant: int, append: port.Append, begin: int, end: int) -> None:
        execute, sql = self._connection.execute, self._sql
        for projection in append.projections:
            self._put(tenant, projection)
        for kind, id_ in append.drops:
            self._change_terms(tenant, kind, id_, ())
            execute(sql["drop_projection"], (tenant, kind, id_))
        for snap in append.snapshots:
            key = self._numbers.stream(self._connection, tenant, snap.stream)
            link = first(self._connection, sql["link_of"], (key, snap.version))
            assert link is not None, "a snapshot belongs to a version that exists"
            check = mark(key, snap.version, snap.fold, snap.state, link[0])
            execute(sql["put_snapshot"], (key, snap.version, snap.fold, snap.state, check))
        if append.key is not None:
            row = (tenant, append.key.key, append.key.command_hash, begin, end, append.time_us)
            execute(sql["add_key"], (*row, mark(*row)))

    def derive(self, tenant: int, key: int, derived: port.Derived) -> None:
        """Write what a whole stream leads to, where nothing derived is left."""
        claims = [(key, claim, version) for claim, version in derived.claims]
        self._connection.executemany(self._sql["add_claim"], claims)
        for projection in derived.projections:
            self._put(tenant, projection)

    def _put(self, tenant: int, p: port.Projection) -> None:
        self._change_terms(tenant, p.kind, p.id, p.terms)
        terms = msgspec.json.encode(p.terms).decode()
        self._connection.execute(
            self._sql["put_projection"],
            (tenant, p.kind, p.id, p.owner, p.status, p.time_us, p.lookup, terms, p.document),
        )

    def _change_terms(self, tenant: int, kind: str, id_: str, terms: tuple[str, ...]) -> None:
        row = first(self._connection, self._sql["projection_terms"], (tenant, kind, id_))
        before = set(msgspec.json.decode(str(row[0]), type=list[str])) if row else set[str]()
        for term in before - set(terms):
            self._connection.execute(self._sql["drop_term"], (tenant, kind, term, id_))
        for term in set(terms) - before:
            self._connection.execute(self._sql["add_term"], (tenant, kind, term, id_))


def replayed(row: tuple[apsw.SQLiteValue, ...]) -> port.Replayed:
    command_hash, begin, end = row
    assert isinstance(command_hash, bytes) and isinstance(begin, int) and isinstance(end, int)
    return port.Replayed(command_hash, begin, end)


def head_of(row: tuple[apsw.SQLiteValue, ...] | None) -> Head:
    if row is None:
        return Head(0, chain.GENESIS)
    key, link = row
    assert isinstance(key, int) and isinstance(link, bytes)
    return Head(key & NUMBER_MASK, link)


def row_of(row: tuple[apsw.SQLiteValue, ...]) -> chain.Row:
    """Return an event's columns with their types checked; raise Corrupt if they are others."""
    match row:
        case (
            int(key),
            int(stream),
            int(version),
            bytes(header),
            payload,
            salt,
            bytes(digest),
            bytes(link),
        ):
            place = chain.Place(key & NUMBER_MASK, stream & NUMBER_MASK, version)
            if isinstance(payload, bytes | None) and isinstance(salt, bytes | None):
                return chain.Row(place, header, payload, salt, digest, link)
        case _:
            pass
    raise errors.Corrupt("a stored event's columns are not what was written.")
