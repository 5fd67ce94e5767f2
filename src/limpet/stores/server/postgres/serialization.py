"""Changes as arguments of the SQL functions, in PostgreSQL's binary format.

A plain append goes to the function `append` as arrays of composite rows; any other change goes to `apply` as one array
a column. Arrays are packed here in one pass, because psycopg's adaptation costs one call a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from psycopg import adapt, pq
from psycopg.types.numeric import Int8BinaryDumper

from limpet.stores.server.driver import FeedRow, ProjectionRow, TenantChange

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
"""The bytes of a row without its length field and its values of variable length, as in the two constants above."""
_BIGINT = struct.Struct("!q")
_NULL = _LENGTH.pack(-1)
_EMPTY_BYTEA_ARRAY = struct.pack("!iiI", 0, 0, _BYTEA_OID)
_TRUE = b"\1"

_EMPTY_NAME = "\\-"


def encode_tenant(tenant: str) -> str:
    """Return a tenant's name as text that PostgreSQL can store: without NUL, and never empty."""
    if "\\" in tenant or "\0" in tenant:
        tenant = tenant.replace("\\", "\\\\").replace("\0", "\\0")
    return tenant or _EMPTY_NAME


def decode_tenant(kept_: str) -> str:
    """Return the tenant's name from the result of `encode_tenant`."""
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


def bytea_array(values: Sequence[bytes | None]) -> ByteaArray | None:
    """Return an array of bytea; None if it is empty."""
    return ByteaArray(_pack_array(_BYTEA_OID, values)) if values else None


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


def record_array(type_oid: int, rows: Sequence[bytes]) -> bytes | None:
    """Return an array of composite rows; None if it is empty."""
    return b"".join((_ARRAY_HEADER.pack(1, 0, type_oid, len(rows), 1), *rows)) if rows else None


@lru_cache(64)
def _cached_field(text: str) -> bytes:
    """Return a text as a bytea field of a row. For texts with few values, such as kinds."""
    value = text.encode()
    return _FIELD_HEADER.pack(_BYTEA_OID, len(value)) + value


def _claim_record(stretch: int, text: str, version: int) -> bytes:
    claim = text.encode()
    size = len(claim)
    head = _CLAIM_HEADER.pack(_CLAIM_FIXED_BYTES + size, 3, _BIGINT_OID, 8, stretch, _BYTEA_OID, size)
    return head + claim + _BIGINT_FIELD.pack(_BIGINT_OID, 8, version)


def _projection_record(kept: ProjectionRow) -> bytes:
    row, checksum = kept.projection, kept.checksum
    kind, status = _cached_field(row.kind), _cached_field(row.status)
    id_, owner, lookup, document = row.id.encode(), row.owner.encode(), row.lookup.encode(), row.document
    terms = _pack_array(_BYTEA_OID, [term.encode() for term in row.terms]) if row.terms else _EMPTY_BYTEA_ARRAY
    length = (
        _PROJECTION_FIXED_BYTES + len(kind) + len(status) + len(id_) + len(owner) + len(lookup) + len(terms)
        + len(document) + len(checksum)
    )  # fmt: skip
    head = _FIELD_HEADER.pack
    return b"".join(
        (
            _RECORD_HEADER.pack(length, 9), kind, head(_BYTEA_OID, len(id_)), id_, head(_BYTEA_OID, len(owner)), owner, status,
            _TIME_AND_LOOKUP_HEADER.pack(_BIGINT_OID, 8, row.time_us, _BYTEA_OID, len(lookup)), lookup,
            head(_BYTEA_ARRAY_OID, len(terms)), terms, head(_BYTEA_OID, len(document)), document,
            head(_BYTEA_OID, len(checksum)), checksum,
        )
    )  # fmt: skip


def _event_record(kept: FeedRow) -> bytes:
    row, place = kept.event, kept.event.address
    header, payload, salt = row.header, row.payload, row.salt
    assert payload is not None and salt is not None, "a plain append has no erased event"
    length = _EVENT_FIXED_BYTES + len(header) + len(payload)
    numbers = (20, 8, place.position, 20, 8, place.stream, 20, 8, place.version, 20, 8, kept.ordinal)
    return b"".join(
        (
            _EVENT_HEADER.pack(length, 9, *numbers, 17, len(header)), header, _FIELD_HEADER.pack(17, len(payload)), payload,
            _FIELD_HEADER_16, salt, _FIELD_HEADER_32, row.digest, _FIELD_HEADER_32, row.link,
        )
    )  # fmt: skip


class _PackedDumper(adapt.Dumper):
    """Dumps a value that is packed already."""

    format = pq.Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _ByteaArrayDumper(_PackedDumper):
    oid = _BYTEA_ARRAY_OID


class _BigintArrayDumper(_PackedDumper):
    oid = 1016


def register_dumpers(adapters: adapt.AdaptersMap) -> None:
    """Let connections send packed arrays."""
    # Every int is sent as a bigint, so that a statement is prepared only once.
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
    adapters.register_dumper(BigintArray, _BigintArrayDumper)


class RecordTypeOids(NamedTuple):
    """The type OIDs of composite rows. They change if the schema is dropped and restored."""

    event: int
    claim: int
    projection: int


def is_plain_append(change: TenantChange) -> bool:
    """Whether the function `append` can apply a change: it adds unerased events, claims and projections only."""
    return bool(change.rows) and not (
        change.streams or change.keys or change.blobs or change.snapshots or change.drop_projections
        or change.bases or change.blob_uses or change.before.epoch != change.after.epoch
        or has_removals(change)
        or any(row.erasure is not None or row.event.payload is None for row in change.rows)
    )  # fmt: skip


def append_arguments(change: TenantChange, channel: str, kinds: RecordTypeOids) -> list[bytes | None]:
    before, after = change.before, change.after
    return [
        encode_tenant(change.tenant).encode(),
        channel.encode(),
        _BIGINT.pack(before.position),
        before.link,
        _BIGINT.pack(before.epoch),
        _BIGINT.pack(after.position),
        after.link,
        record_array(kinds.event, [_event_record(row) for row in change.rows]),
        record_array(kinds.claim, [_claim_record(*claim) for claim in change.claims]),
        record_array(kinds.projection, [_projection_record(row) for row in _last_projections(change)]),
    ]


def _last_projections(change: TenantChange) -> Collection[ProjectionRow]:
    """Return the projections to put. If a row is put twice, the last value counts."""
    return {(row.projection.kind, row.projection.id): row for row in change.projections}.values()


def apply_arguments(change: TenantChange, channel: str) -> list[bytes | None]:
    """Return the arguments of `apply`. Those of `_REMOVALS` follow only if the change removes something."""
    before, after = change.before, change.after
    arguments = [
        encode_tenant(change.tenant).encode(),
        bigint_array((before.position, before.epoch, after.position, after.epoch)),
        bytea_array((before.link, after.link)),
        channel.encode(),
        *_columns(change, _ADDITIONS),
    ]
    if has_removals(change):
        arguments += (_TRUE, *_columns(change, _REMOVALS), change.pending_work)
    return arguments


def has_removals(change: TenantChange) -> bool:
    """Whether a change removes or renames rows, or belongs to an erasure."""
    return change.pending_work is not None or any(
        (
            change.erasures, change.renames, change.drop_claims, change.drop_snapshots, change.drop_blob_uses,
            change.drop_keys, change.drop_blobs,
        )
    )  # fmt: skip


def _texts(values: Sequence[str]) -> ByteaArray | None:
    return bytea_array([value.encode() for value in values])


def _term_arrays(values: Sequence[Sequence[str]]) -> bytes:
    """Return arrays of bytea as text literals, because PostgreSQL's nested arrays need equal lengths."""
    literals = ["{" + ",".join(f'"\\\\x{term.encode().hex()}"' for term in terms) + "}" for terms in values]
    return _pack_array(_TEXT_OID, [literal.encode() for literal in literals])


def _flat_bases(change: TenantChange) -> list[int]:
    return [n for stream, base in change.bases for n in (stream, base.stretch, base.first, base.source, base.version)]


def _erased_rows(change: TenantChange) -> Sequence[FeedRow]:
    return change.rows if any(row.erasure for row in change.rows) else ()


_Column = tuple[Callable[[list[Any]], bytes | None], Callable[[Any], object]]
_RowGroup = tuple[Callable[[TenantChange], Collection[object]], tuple[_Column, ...]]
"""Rows of a change, and their columns: how each is packed, and its value in a row."""

_ADDITIONS: Final[tuple[_RowGroup, ...]] = (
    (
        attrgetter("rows"),
        (
            (bigint_array, attrgetter("event.address.position")), (bigint_array, attrgetter("event.address.stream")),
            (bigint_array, attrgetter("event.address.version")), (bigint_array, attrgetter("ordinal")),
            (bytea_array, attrgetter("event.header")), (bytea_array, attrgetter("event.payload")),
            (bytea_array, attrgetter("event.salt")), (bytea_array, attrgetter("event.digest")),
            (bytea_array, attrgetter("event.link")),
        ),
    ),
    (
        _erased_rows,
        (
            (bigint_array, lambda row: row.erasure and row.erasure.notice),
            (bigint_array, lambda row: row.erasure and row.erasure.cause),
            (bytea_array, lambda row: row.erasure and row.erasure.redacted_payload),
        ),
    ),
    (
        attrgetter("streams"),
        (
            (bigint_array, attrgetter("number")), (_texts, attrgetter("name")), (bigint_array, attrgetter("first")),
            (bytea_array, attrgetter("checksum")),
        ),
    ),
    (_flat_bases, ((bigint_array, int),)),
    (attrgetter("claims"), ((bigint_array, itemgetter(0)), (_texts, itemgetter(1)), (bigint_array, itemgetter(2)))),
    (
        attrgetter("keys"),
        (
            (_texts, attrgetter("key")), (bytea_array, attrgetter("command_hash")), (bigint_array, attrgetter("first")),
            (bigint_array, attrgetter("last")), (bigint_array, attrgetter("time_us")),
        ),
    ),
    (lambda change: change.blobs.items(), ((bytea_array, itemgetter(0)), (bytea_array, itemgetter(1)))),
    (attrgetter("blob_uses"), ((bigint_array, itemgetter(0)), (bytea_array, itemgetter(1)))),
    (attrgetter("drop_projections"), ((_texts, itemgetter(0)), (_texts, itemgetter(1)))),
    (
        _last_projections,
        (
            (_texts, attrgetter("projection.kind")), (_texts, attrgetter("projection.id")),
            (_texts, attrgetter("projection.owner")), (_texts, attrgetter("projection.status")),
            (bigint_array, attrgetter("projection.time_us")), (_texts, attrgetter("projection.lookup")),
            (_term_arrays, attrgetter("projection.terms")), (bytea_array, attrgetter("projection.document")),
            (bytea_array, attrgetter("checksum")),
        ),
    ),
    (
        lambda change: {row.snapshot.stream: row for row in change.snapshots}.values(),
        (
            (_texts, attrgetter("snapshot.stream")), (bigint_array, attrgetter("snapshot.version")),
            (bigint_array, attrgetter("snapshot.fold")), (bytea_array, attrgetter("snapshot.state")),
            (bytea_array, attrgetter("checksum")),
        ),
    ),
)  # fmt: skip

_REMOVALS: Final[tuple[_RowGroup, ...]] = (
    (
        attrgetter("erasures"),
        (
            (bigint_array, itemgetter(0)), (bigint_array, lambda row: row[1].notice), (bigint_array, lambda row: row[1].cause),
            (bytea_array, lambda row: row[1].redacted_payload),
        ),
    ),
    (attrgetter("renames"), ((bigint_array, itemgetter(0)), (_texts, itemgetter(1)), (bytea_array, itemgetter(2)))),
    (attrgetter("drop_claims"), ((bigint_array, int),)),
    (attrgetter("drop_snapshots"), ((bigint_array, int),)),
    (attrgetter("drop_blob_uses"), ((bigint_array, int),)),
    (attrgetter("drop_keys"), ((_texts, str),)),
    (attrgetter("drop_blobs"), ((bytea_array, bytes),)),
)  # fmt: skip


def _columns(change: TenantChange, groups: Sequence[_RowGroup]) -> Iterator[bytes | None]:
    """Yield one array for each column; None for each column of a group without rows."""
    for rows_of, columns in groups:
        rows = rows_of(change)
        for pack, value_of in columns:
            yield pack([value_of(row) for row in rows]) if rows else None
