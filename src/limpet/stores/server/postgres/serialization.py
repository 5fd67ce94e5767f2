"""Changes as arguments of the SQL functions, in PostgreSQL's binary format.

A plain append goes to the function `append` as arrays of composite rows; any other change goes to
`apply` as one array a column. Arrays are packed here in one pass, because psycopg's adaptation
costs one call a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from psycopg import adapt, pq
from psycopg.types.numeric import Int8BinaryDumper

from limpet.stores.server.driver import EventErasure, FeedHead, FeedRow, ProjectionRow, TenantChange

_BYTEA_OID, _BIGINT_OID, _TEXT_OID, _BYTEA_ARRAY_OID = 17, 20, 25, 1001
_ARRAY_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_RECORD_HEADER = struct.Struct("!ii")
_FIELD_HEADER = struct.Struct("!Ii")
_BIGINT_FIELD = struct.Struct("!Iiq")
_TIME_AND_LOOKUP_HEADER = struct.Struct("!IiqIi")
_CLAIM_HEADER = struct.Struct("!iiIiqIi")
_CLAIM_FIXED_BYTES = _CLAIM_HEADER.size - 4 + _BIGINT_FIELD.size
_PROJECTION_FIXED_BYTES = _RECORD_HEADER.size - 4 + _TIME_AND_LOOKUP_HEADER.size + 5 * _FIELD_HEADER.size
_EVENT_HEADER = struct.Struct("!iiIiqIiqIiqIiqIi")
_FIELD_HEADER_16, _FIELD_HEADER_32 = (_FIELD_HEADER.pack(_BYTEA_OID, 16), _FIELD_HEADER.pack(_BYTEA_OID, 32))
_EVENT_FIXED_BYTES = _EVENT_HEADER.size - 4 + 4 * _FIELD_HEADER.size + 16 + 2 * 32
"""Of a row without what may be of any length, after its own length. So are those above."""
_BIGINT = struct.Struct("!q")
_NULL = _LENGTH.pack(-1)
_EMPTY_BYTEA_ARRAY = struct.pack("!iiI", 0, 0, _BYTEA_OID)


_EMPTY_NAME = "\\-"


def encode_tenant(tenant: str) -> str:
    """Return a tenant's name as text that PostgreSQL can keep: it has no NUL, and is never empty."""
    if "\\" in tenant or "\0" in tenant:
        tenant = tenant.replace("\\", "\\\\").replace("\0", "\\0")
    return tenant or _EMPTY_NAME


def decode_tenant(kept_: str) -> str:
    """Return the tenant's name that was kept so."""
    if "\\" not in kept_:
        return kept_
    if kept_ == _EMPTY_NAME:
        return ""
    parts = kept_.split("\\\\")
    return "\\".join(part.replace("\\0", "\0") for part in parts)


class ByteaArray(bytes):
    """A packed array of bytea."""

    __slots__ = ()


class BigintArray(bytes):
    """A packed array of bigint."""

    __slots__ = ()


class TextArray(bytes):
    """A packed array of text."""

    __slots__ = ()


def pack_bigint(value: int) -> bytes:
    return _BIGINT.pack(value)


def bytea_array(values: Sequence[bytes | None]) -> ByteaArray | None:
    """Return an array of bytea; None if it is empty."""
    return ByteaArray(_pack_array(_BYTEA_OID, values)) if values else None


def text_array(values: Sequence[str]) -> TextArray | None:
    return TextArray(_pack_array(_TEXT_OID, [value.encode() for value in values])) if values else None


def bigint_array(values: Sequence[int | None]) -> BigintArray | None:
    """Return an array of bigint; None if it is empty."""
    if not values:
        return None
    if None in values:
        packed = [None if value is None else _BIGINT.pack(value) for value in values]
        return BigintArray(_pack_array(_BIGINT_OID, packed))
    count = len(values)
    flat: list[int | None] = [8] * (2 * count)
    flat[1::2] = values
    return BigintArray(_ARRAY_HEADER.pack(1, 0, _BIGINT_OID, count, 1) + struct.pack("!" + "iq" * count, *flat))


def _pack_array(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_ARRAY_HEADER.pack(1, any(value is None for value in values), kind, len(values), 1)]
    length = _LENGTH.pack
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (length(len(value)), value)
    return b"".join(parts)


def record_array(kind: int, rows: Sequence[bytes]) -> bytes | None:
    """Return an array of rows of a type, by its number; None if it is empty."""
    return b"".join((_ARRAY_HEADER.pack(1, 0, kind, len(rows), 1), *rows)) if rows else None


def bytea_field(value: bytes) -> bytes:
    return _FIELD_HEADER.pack(_BYTEA_OID, len(value)) + value


@lru_cache(64)
def cached_bytea_field(value: str) -> bytes:
    """Return a field of a row, bytea, of one of few words: a kind, a status."""
    return bytea_field(value.encode())


def pack_claim(stretch: int, claim: bytes, version: int) -> bytes:
    """Return a row of a bigint, a bytea and a bigint."""
    size = len(claim)
    head = _CLAIM_HEADER.pack(_CLAIM_FIXED_BYTES + size, 3, _BIGINT_OID, 8, stretch, _BYTEA_OID, size)
    return head + claim + _BIGINT_FIELD.pack(_BIGINT_OID, 8, version)


def pack_projection(
    words: tuple[str, str],
    texts: tuple[bytes, bytes, bytes],
    time_us: int,
    terms: Sequence[bytes],
    sums: tuple[bytes, bytes],
) -> bytes:
    """Return a row of kind, id, owner, status, time, lookup, terms, document and mark."""
    kind, status = cached_bytea_field(words[0]), cached_bytea_field(words[1])
    id_, owner, lookup = texts
    document, mark = sums
    packed = _pack_array(_BYTEA_OID, terms) if terms else _EMPTY_BYTEA_ARRAY
    length = (
        _PROJECTION_FIXED_BYTES + len(kind) + len(status) + len(id_) + len(owner) + len(lookup) + len(packed)
        + len(document) + len(mark)
    )  # fmt: skip
    head = _FIELD_HEADER.pack
    return b"".join(
        (
            _RECORD_HEADER.pack(length, 9), kind, head(_BYTEA_OID, len(id_)), id_, head(_BYTEA_OID, len(owner)), owner, status,
            _TIME_AND_LOOKUP_HEADER.pack(_BIGINT_OID, 8, time_us, _BYTEA_OID, len(lookup)), lookup,
            head(_BYTEA_ARRAY_OID, len(packed)), packed, head(_BYTEA_OID, len(document)), document,
            head(_BYTEA_OID, len(mark)), mark,
        )
    )  # fmt: skip


def pack_event(
    numbers: tuple[int, int, int, int], texts: tuple[bytes, bytes], sums: tuple[bytes, bytes, bytes]
) -> bytes:
    """Return a row of four bigints, two bytea of any length, one of 16 bytes and two of 32."""
    a, b, c, d = numbers
    header, payload = texts
    salt, digest, link = sums
    length = _EVENT_FIXED_BYTES + len(header) + len(payload)
    return b"".join(
        (
            _EVENT_HEADER.pack(length, 9, 20, 8, a, 20, 8, b, 20, 8, c, 20, 8, d, 17, len(header)), header,
            _FIELD_HEADER.pack(17, len(payload)), payload, _FIELD_HEADER_16, salt, _FIELD_HEADER_32, digest, _FIELD_HEADER_32, link,
        )
    )  # fmt: skip


def array_literal(values: Sequence[bytes]) -> str:
    """Return an array of bytea as PostgreSQL writes it: for arrays within an array."""
    return "{" + ",".join(f'"\\\\x{value.hex()}"' for value in values) + "}"


class _PackedDumper(adapt.Dumper):
    """Hands over what is packed already."""

    format = pq.Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _ByteaArrayDumper(_PackedDumper):
    oid = _BYTEA_ARRAY_OID


class _BigintArrayDumper(_PackedDumper):
    oid = 1016


class _TextArrayDumper(_PackedDumper):
    oid = 1009


def register_dumpers(adapters: adapt.AdaptersMap) -> None:
    """Let connections take packed arrays."""
    # Always the same type, so that a statement is prepared once, whatever the number.
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
    adapters.register_dumper(BigintArray, _BigintArrayDumper)
    adapters.register_dumper(TextArray, _TextArrayDumper)


_Value = bytes | None
_byteas, _bigints = bytea_array, bigint_array
_TRUE = b"\1"


class RecordTypeOids(NamedTuple):
    """The numbers that a server has given the types of rows. They are others once a schema was dropped and restored."""

    event: int
    claim: int
    projection: int


def is_plain_append(change: TenantChange) -> bool:
    """Whether `append` can make it: it brings events that are whole, claims and projections, and nothing else."""
    return bool(change.rows) and not (
        change.streams or change.keys or change.blobs or change.snapshots or change.drop_projections
        or change.bases or change.blob_uses or change.before.epoch != change.after.epoch
        or has_removals(change)
        or any(one.erasure is not None or one.event.payload is None for one in change.rows)
    )  # fmt: skip


def append_arguments(change: TenantChange, channel: str, kinds: RecordTypeOids) -> list[_Value]:
    before, after = change.before, change.after
    return [
        encode_tenant(change.tenant).encode(),
        channel.encode(),
        pack_bigint(before.position),
        before.link,
        pack_bigint(before.epoch),
        pack_bigint(after.position),
        after.link,
        record_array(kinds.event, [_event_record(one) for one in change.rows]),
        record_array(kinds.claim, [_claim_record(*one) for one in change.claims]),
        record_array(kinds.projection, [_projection_record(one) for one in _last_projections(change)]),
    ]


def _event_record(kept: FeedRow) -> bytes:
    row, place = kept.event, kept.event.address
    assert row.payload is not None and row.salt is not None, "it is usual"
    return pack_event(
        (place.position, place.stream, place.version, kept.ordinal),
        (row.header, row.payload),
        (row.salt, row.digest, row.link),
    )


def _claim_record(stretch: int, text: str, version: int) -> bytes:
    return pack_claim(stretch, text.encode(), version)


def _projection_record(kept: ProjectionRow) -> bytes:
    row = kept.projection
    return pack_projection(
        (row.kind, row.status),
        (row.id.encode(), row.owner.encode(), row.lookup.encode()),
        row.time_us,
        [term.encode() for term in row.terms],
        (row.document, kept.checksum),
    )


def _last_projections(change: TenantChange) -> Collection[ProjectionRow]:
    """Return the projections that a change puts: of a row that is put twice the last one counts."""
    return {(one.projection.kind, one.projection.id): one for one in change.projections}.values()


def apply_arguments(change: TenantChange, channel: str) -> list[_Value]:
    """Return the arguments of `apply`; the last of them only if something is taken away."""
    before, after = change.before, change.after
    found: list[_Value] = [
        encode_tenant(change.tenant).encode(),
        _bigints((before.position, before.epoch, after.position, after.epoch)),
        _byteas((before.link, after.link)),
        channel.encode(),
    ]
    for brought, columns, nothing in _COLUMN_GROUPS:
        found += columns(change) if getattr(change, brought) else nothing
    if has_removals(change):
        found += (_TRUE, *_removal_columns(change))
    return found


def has_removals(change: TenantChange) -> bool:
    """Whether something goes, which takes more arguments."""
    return change.pending_work is not None or any(
        (
            change.erasures, change.renames, change.drop_claims, change.drop_snapshots,
            change.drop_blob_uses, change.drop_keys, change.drop_blobs,
        )
    )  # fmt: skip


def _removal_columns(change: TenantChange) -> list[_Value]:
    blanks = [blank for _, blank in change.erasures]
    return [
        _bigints([position for position, _ in change.erasures]),
        _bigints([blank.notice for blank in blanks]),
        _bigints([blank.cause for blank in blanks]),
        _byteas([blank.redacted_payload for blank in blanks]),
        _bigints([number for number, _, _ in change.renames]),
        _byteas([name.encode() for _, name, _ in change.renames]),
        _byteas([mark for _, _, mark in change.renames]),
        _bigints(change.drop_claims),
        _bigints(change.drop_snapshots),
        _bigints(change.drop_blob_uses),
        _byteas([key.encode() for key in change.drop_keys]),
        _byteas(change.drop_blobs),
        change.pending_work,
    ]


def _event_columns(change: TenantChange) -> Iterator[_Value]:
    kept = change.rows
    rows = [one.event for one in kept]
    places = [row.address for row in rows]
    yield _bigints([place.position for place in places])
    yield _bigints([place.stream for place in places])
    yield _bigints([place.version for place in places])
    yield _bigints([one.ordinal for one in kept])
    yield _byteas([row.header for row in rows])
    yield _byteas([row.payload for row in rows])
    yield _byteas([row.salt for row in rows])
    yield _byteas([row.digest for row in rows])
    yield _byteas([row.link for row in rows])
    blanks = [one.erasure for one in kept]
    if any(blanks):
        yield from _erasure_columns(blanks)
    else:
        yield from (None, None, None)


def _erasure_columns(blanks: list[EventErasure | None]) -> Iterator[_Value]:
    yield _bigints([blank.notice if blank else None for blank in blanks])
    yield _bigints([blank.cause if blank else None for blank in blanks])
    yield _byteas([blank.redacted_payload if blank else None for blank in blanks])


def _stream_columns(change: TenantChange) -> Iterator[_Value]:
    yield _bigints([stream.number for stream in change.streams])
    yield _byteas([stream.name.encode() for stream in change.streams])
    yield _bigints([stream.first for stream in change.streams])
    yield _byteas([stream.checksum for stream in change.streams])


def _base_columns(change: TenantChange) -> Iterator[_Value]:
    flat: list[int] = []
    for stream, base in change.bases:
        flat += (stream, base.stretch, base.first, base.source, base.version)
    yield _bigints(flat)


def _claim_columns(change: TenantChange) -> Iterator[_Value]:
    yield _bigints([stretch for stretch, _, _ in change.claims])
    yield _byteas([claim.encode() for _, claim, _ in change.claims])
    yield _bigints([version for _, _, version in change.claims])


def _key_columns(change: TenantChange) -> Iterator[_Value]:
    keys = change.keys
    yield _byteas([key.key.encode() for key in keys])
    yield _byteas([key.command_hash for key in keys])
    yield _bigints([key.first for key in keys])
    yield _bigints([key.last for key in keys])
    yield _bigints([key.time_us for key in keys])


def _blob_columns(change: TenantChange) -> Iterator[_Value]:
    yield _byteas(list(change.blobs))
    yield _byteas(list(change.blobs.values()))


def _blob_use_columns(change: TenantChange) -> Iterator[_Value]:
    yield _bigints([position for position, _ in change.blob_uses])
    yield _byteas([hash_ for _, hash_ in change.blob_uses])


def _dropped_projection_columns(change: TenantChange) -> Iterator[_Value]:
    yield _byteas([kind.encode() for kind, _ in change.drop_projections])
    yield _byteas([id_.encode() for _, id_ in change.drop_projections])


def _projection_columns(change: TenantChange) -> Iterator[_Value]:
    kept = _last_projections(change)
    rows = [one.projection for one in kept]
    yield _byteas([row.kind.encode() for row in rows])
    yield _byteas([row.id.encode() for row in rows])
    yield _byteas([row.owner.encode() for row in rows])
    yield _byteas([row.status.encode() for row in rows])
    yield _bigints([row.time_us for row in rows])
    yield _byteas([row.lookup.encode() for row in rows])
    yield text_array([array_literal([t.encode() for t in row.terms]) for row in rows])
    yield _byteas([row.document for row in rows])
    yield _byteas([one.checksum for one in kept])


def _snapshot_columns(change: TenantChange) -> Iterator[_Value]:
    kept = {one.snapshot.stream: one for one in change.snapshots}
    rows = [one.snapshot for one in kept.values()]
    yield _byteas([row.stream.encode() for row in rows])
    yield _bigints([row.version for row in rows])
    yield _bigints([row.fold for row in rows])
    yield _byteas([row.state for row in rows])
    yield _byteas([one.checksum for one in kept.values()])


_COLUMN_GROUPS: Final[tuple[tuple[str, Callable[[TenantChange], Iterator[_Value]], tuple[None, ...]], ...]] = (
    ("rows", _event_columns, (None,) * 12),
    ("streams", _stream_columns, (None,) * 4),
    ("bases", _base_columns, (None,)),
    ("claims", _claim_columns, (None,) * 3),
    ("keys", _key_columns, (None,) * 5),
    ("blobs", _blob_columns, (None,) * 2),
    ("blob_uses", _blob_use_columns, (None,) * 2),
    ("drop_projections", _dropped_projection_columns, (None,) * 2),
    ("projections", _projection_columns, (None,) * 9),
    ("snapshots", _snapshot_columns, (None,) * 5),
)
"""What a change may bring, as columns, and how many they are: most changes bring little of it."""


def with_head(change: TenantChange, before: FeedHead) -> TenantChange:
    """Return a change of what is derived, made for a head."""
    return msgspec.structs.replace(change, before=before, after=before)
