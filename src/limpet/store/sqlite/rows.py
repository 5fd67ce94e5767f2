"""Rows of the store's tables as values, with their types checked."""

from __future__ import annotations

import hashlib

import apsw
import msgspec

from limpet import errors
from limpet.store import chain, port
from limpet.store.sqlite.anchor import Head

TENANT_SHIFT = 40
"""Bits of a key that count within a tenant: a trillion events each, eight million tenants."""

MARK_BYTES = 8

LATEST = (1 << 62) - 1
"""A version and a moment that nothing reaches."""

NUMBER_MASK = (1 << TENANT_SHIFT) - 1

_ERASABLE = (bytes, type(None))
"""What a column that can be erased holds."""

_packer = msgspec.msgpack.Encoder()


def first(
    connection: apsw.Connection, query: str, bindings: tuple[apsw.SQLiteValue, ...]
) -> tuple[apsw.SQLiteValue, ...] | None:
    """Return the first row of a query, if there is one."""
    return next(connection.execute(query, bindings), None)


def number(connection: apsw.Connection, query: str, bindings: tuple[apsw.SQLiteValue, ...]) -> int:
    """Return the integer that a query finds, 0 if none."""
    found = connection.execute(query, bindings).get
    return found if isinstance(found, int) else 0


def mark(*fields: object) -> bytes:
    """Return the checksum over a row that can't be derived from the log."""
    return hashlib.sha256(_packer.encode(fields)).digest()[:MARK_BYTES]


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
            if isinstance(payload, _ERASABLE) and isinstance(salt, _ERASABLE):
                return chain.Row(place, header, payload, salt, digest, link)
        case _:
            pass
    match row:
        case (int(key), _, int(version), *_):
            raise chain.damaged(
                chain.Place(key & NUMBER_MASK, 0, version), "its columns are others"
            )
        case _:
            raise errors.Corrupt("a stored event's columns are not what was written.")


def projection_of(row: tuple[apsw.SQLiteValue, ...]) -> port.Projection:
    """Return a projection whose mark is right; raise Corrupt otherwise."""
    match row:
        case (
            int(), str(kind), str(id_), str(owner), str(status), int(), int(time_us), str(lookup),
            str(terms), bytes(document), bytes(check),
        ) if check == mark(*row[:-1]):  # fmt: skip
            return port.Projection(
                kind=kind,
                id=id_,
                owner=owner,
                status=status,
                time_us=time_us,
                lookup=lookup,
                terms=msgspec.json.decode(terms, type=tuple[str, ...]),
                document=document,
            )
        case _:
            raise errors.Corrupt("a stored projection is not what was written.")


def within(key: apsw.SQLiteValue) -> int:
    """Return the number within its tenant that a key has; 0 if it is none, as can be in a damaged file."""
    return key & NUMBER_MASK if isinstance(key, int) else 0
