"""Arrays and rows as PostgreSQL reads them, made in one go: thousands of values in a batch must not cost a call each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from psycopg import adapt, pq
from psycopg.types.numeric import Int8BinaryDumper

_BYTES, _INTEGERS, _TEXTS, _BYTES_ARRAY = 17, 20, 25, 1001
_HEAD = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_ROW = struct.Struct("!ii")
_FIELD = struct.Struct("!Ii")
_WHOLE = struct.Struct("!Iiq")
_FOUND = struct.Struct("!IiqIi")
_CLAIM = struct.Struct("!iiIiqIi")
_CLAIM_BYTES = _CLAIM.size - 4 + _WHOLE.size
_PROJECTION_BYTES = _ROW.size - 4 + _FOUND.size + 5 * _FIELD.size
_EVENT = struct.Struct("!iiIiqIiqIiqIiqIi")
_FIELD_16, _FIELD_32 = _FIELD.pack(_BYTES, 16), _FIELD.pack(_BYTES, 32)
_EVENT_BYTES = _EVENT.size - 4 + 4 * _FIELD.size + 16 + 2 * 32
"""Of a row without what may be of any length, after its own length. So are those above."""
_BIG = struct.Struct("!q")
_NULL = _LENGTH.pack(-1)
_NO_BYTES = struct.pack("!iiI", 0, 0, _BYTES)


class Bytes(bytes):
    """A packed array of bytea."""

    __slots__ = ()


class Integers(bytes):
    """A packed array of bigint."""

    __slots__ = ()


class Texts(bytes):
    """A packed array of text."""

    __slots__ = ()


def big(value: int) -> bytes:
    """Return a bigint."""
    return _BIG.pack(value)


def of_bytes(values: Sequence[bytes | None]) -> Bytes | None:
    """Return an array of bytea; None if it is empty."""
    return Bytes(_packed(_BYTES, values)) if values else None


def of_texts(values: Sequence[str]) -> Texts | None:
    """Return an array of text; None if it is empty."""
    return Texts(_packed(_TEXTS, [value.encode() for value in values])) if values else None


def of_integers(values: Sequence[int | None]) -> Integers | None:
    """Return an array of bigint; None if it is empty."""
    if not values:
        return None
    if None in values:
        packed = [None if value is None else _BIG.pack(value) for value in values]
        return Integers(_packed(_INTEGERS, packed))
    count = len(values)
    flat: list[int | None] = [8] * (2 * count)
    flat[1::2] = values
    return Integers(_HEAD.pack(1, 0, _INTEGERS, count, 1) + struct.pack("!" + "iq" * count, *flat))


def _packed(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_HEAD.pack(1, any(value is None for value in values), kind, len(values), 1)]
    length = _LENGTH.pack
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (length(len(value)), value)
    return b"".join(parts)


def of_rows(kind: int, rows: Sequence[bytes]) -> bytes | None:
    """Return an array of rows of a type, by its number; None if it is empty."""
    return b"".join((_HEAD.pack(1, 0, kind, len(rows), 1), *rows)) if rows else None


def field(value: bytes) -> bytes:
    """Return a field of a row, bytea."""
    return _FIELD.pack(_BYTES, len(value)) + value


@lru_cache(64)
def word_field(value: str) -> bytes:
    """Return a field of a row, bytea, of one of few words: a kind, a status."""
    return field(value.encode())


def claim_row(stretch: int, claim: bytes, version: int) -> bytes:
    """Return a row of a bigint, a bytea and a bigint."""
    size = len(claim)
    head = _CLAIM.pack(_CLAIM_BYTES + size, 3, _INTEGERS, 8, stretch, _BYTES, size)
    return head + claim + _WHOLE.pack(_INTEGERS, 8, version)


def projection_row(
    words: tuple[str, str],
    texts: tuple[bytes, bytes, bytes],
    time_us: int,
    terms: Sequence[bytes],
    sums: tuple[bytes, bytes],
) -> bytes:
    """Return a row of kind, id, owner, status, time, lookup, terms, document and mark."""
    kind, status = word_field(words[0]), word_field(words[1])
    id_, owner, lookup = texts
    document, mark = sums
    packed = _packed(_BYTES, terms) if terms else _NO_BYTES
    length = (
        _PROJECTION_BYTES + len(kind) + len(status) + len(id_) + len(owner) + len(lookup) + len(packed)
        + len(document) + len(mark)
    )  # fmt: skip
    head = _FIELD.pack
    return b"".join(
        (
            _ROW.pack(length, 9), kind, head(_BYTES, len(id_)), id_, head(_BYTES, len(owner)), owner, status,
            _FOUND.pack(_INTEGERS, 8, time_us, _BYTES, len(lookup)), lookup,
            head(_BYTES_ARRAY, len(packed)), packed, head(_BYTES, len(document)), document,
            head(_BYTES, len(mark)), mark,
        )
    )  # fmt: skip


def event_row(
    numbers: tuple[int, int, int, int], texts: tuple[bytes, bytes], sums: tuple[bytes, bytes, bytes]
) -> bytes:
    """Return a row of four bigints, two bytea of any length, one of 16 bytes and two of 32."""
    a, b, c, d = numbers
    header, payload = texts
    salt, digest, link = sums
    length = _EVENT_BYTES + len(header) + len(payload)
    return b"".join(
        (
            _EVENT.pack(length, 9, 20, 8, a, 20, 8, b, 20, 8, c, 20, 8, d, 17, len(header)), header,
            _FIELD.pack(17, len(payload)), payload, _FIELD_16, salt, _FIELD_32, digest, _FIELD_32, link,
        )
    )  # fmt: skip


def literal(values: Sequence[bytes]) -> str:
    """Return an array of bytea as PostgreSQL writes it: for arrays within an array."""
    return "{" + ",".join(f'"\\\\x{value.hex()}"' for value in values) + "}"


class _Dumper(adapt.Dumper):
    """Hands over what is packed already."""

    format = pq.Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        """Return it as it is."""
        return obj


class _BytesDumper(_Dumper):
    oid = _BYTES_ARRAY


class _IntegersDumper(_Dumper):
    oid = 1016


class _TextsDumper(_Dumper):
    oid = 1009


def register(adapters: adapt.AdaptersMap) -> None:
    """Let connections take packed arrays."""
    # Always the same type, so that a statement is prepared once, whatever the number.
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(Bytes, _BytesDumper)
    adapters.register_dumper(Integers, _IntegersDumper)
    adapters.register_dumper(Texts, _TextsDumper)
