"""Changes, rows, answers and key names of a store on Redis as bytes.

`pack_*` and `*_fields` make what scripts read or what is stored; `unpack_*` decode answers and
raise Corrupt for damaged ones. `RedisKeys` names the keys. The MessagePack of Lua scripts has no
binary type, so bytes are written as strings; its numbers are exact up to 2^53.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, TypeVar, cast

import msgspec

from limpet import errors
from limpet.stores import chain, port
from limpet.stores.server import driver

_PLAIN_NAME_BYTES_MAX: Final = 48
"""A longer text is replaced by its hash, so that keys stay short."""


@lru_cache(maxsize=4_096)
def encode_name(text: str) -> str:
    """Return a text in letters, digits, - and _, a long one as its hash. Different texts have different names."""
    raw = text.encode()
    if len(raw) > _PLAIN_NAME_BYTES_MAX:
        return "~" + hashlib.sha256(raw).hexdigest()
    return "=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_name(name: str) -> str:
    """Return the text of an encoded name; a name made of a hash is returned unchanged."""
    if not name.startswith("="):
        return name
    return base64.urlsafe_b64decode(name[1:] + "=" * (-len(name[1:]) % 4)).decode()


class RedisKeys:
    """The names of a store's keys. All keys of a tenant have the same hash tag, so that one server has them."""

    def __init__(self, prefix: str, sender: bytes = b"") -> None:
        self.prefix = prefix
        self.sender = sender
        """The id of this store object in its notifications, with which its own listener ignores them."""
        self.tenants = f"{prefix}:tenants".encode()
        self.tenants_with_notes = f"{prefix}:noted".encode()
        self.announced_erasures = f"{prefix}:erasing".encode()
        self.pending_erasures = f"{prefix}:pending".encode()
        self.channel = f"{prefix}:news".encode()
        self.format = f"{prefix}:format".encode()
        self.log_pattern = f"{prefix}:{{t*}}:log".encode()
        """The pattern of the keys of all logs, for a scan."""
        self._prefixes: dict[str, bytes] = {}

    def tenant_prefix(self, tenant: str) -> bytes:
        base = self._prefixes.get(tenant)
        if base is None:
            if len(self._prefixes) >= 10_000:
                self._prefixes.clear()
            tag = base64.urlsafe_b64encode(tenant.encode()).rstrip(b"=").decode()
            base = self._prefixes[tenant] = f"{self.prefix}:{{t{tag}}}:".encode()
        return base

    def tenant_of(self, key: bytes) -> str:
        tag = key.removeprefix(f"{self.prefix}:{{t".encode()).partition(b"}")[0]
        return base64.urlsafe_b64decode(tag + b"=" * (-len(tag) % 4)).decode()

    def head(self, tenant: str) -> bytes:
        """Return the key that every script of a tenant is given."""
        return self.tenant_prefix(tenant) + b"head"


_encoder = msgspec.msgpack.Encoder()
_EXACT_NUMBER_MAX: Final = 1 << 53
_FIXSTR_HEADERS: Final = tuple(bytes((0xA0 | size,)) for size in range(32))
_STR8_HEADERS: Final = tuple(bytes((0xD9, size)) for size in range(256))


def raw_bytes(content: bytes) -> msgspec.Raw:
    """Return bytes as a MessagePack string, which scripts can read."""
    size = len(content)
    if size < 32:
        return msgspec.Raw(_FIXSTR_HEADERS[size] + content)
    if size < 256:
        return msgspec.Raw(_STR8_HEADERS[size] + content)
    if size < 65_536:
        return msgspec.Raw(struct.pack(">BH", 0xDA, size) + content)
    return msgspec.Raw(struct.pack(">BI", 0xDB, size) + content)


def pack(value: object) -> bytes:
    """Return lists, numbers, texts and `raw_bytes` as MessagePack."""
    return _encoder.encode(value)


def pack_change(change: driver.TenantChange) -> bytes:
    """Return a change as the script `apply` reads it."""
    before, after = change.before, change.after
    return pack(
        (
            (before.position, raw_bytes(before.link), before.epoch),
            (after.position, raw_bytes(after.link), after.epoch),
            [
                (row.number, row.name, row.first, raw_bytes(row.checksum))
                for row in sorted(change.streams, key=attrgetter("number"))
            ],
            [_base_fields(number, base) for number, base in change.bases],
            [_event_fields(kept) for kept in change.rows],
            change.claims,
            [_key_fields(row) for row in change.keys],
            [(raw_bytes(hash_), raw_bytes(content)) for hash_, content in change.blobs.items()],
            *_derived_fields(change),
            _removal_fields(change),
        )
    )


def pack_derived(change: driver.TenantChange) -> bytes:
    """Return the derived rows of a change as the script `write_rebuild` reads them."""
    return pack((change.claims, *_derived_fields(change)))


def _derived_fields(change: driver.TenantChange) -> tuple[object, ...]:
    return (
        [(position, raw_bytes(hash_)) for position, hash_ in change.blob_uses],
        [
            (raw_bytes(projection_key(row.projection.kind, row.projection.id)), raw_bytes(_pack_projection(row)))
            for row in change.projections
        ],
        [
            (
                row.snapshot.stream,
                raw_bytes(pack((row.snapshot.version, row.snapshot.fold, row.snapshot.state, row.checksum))),
            )
            for row in change.snapshots
        ],
    )


def _base_fields(number: int, base: chain.StreamBase) -> tuple[object, ...]:
    # The script `clean_rebuild` reads the first number of the packed base.
    packed = pack((base.stretch, base.first, base.source, base.version))
    return number, raw_bytes(packed), base.source, base.version


def _key_fields(row: driver.KeyRow) -> tuple[object, ...]:
    # The script `keys_covering` reads the numbers at the beginning.
    packed = b"%d %d %d " % (row.first, row.last, row.time_us) + row.command_hash
    return row.key, raw_bytes(packed), row.first, row.time_us


def _event_fields(kept: driver.FeedRow) -> tuple[object, ...]:
    row = kept.event
    place = row.address
    body: object = False
    if row.payload is not None and row.salt is not None:
        body = raw_bytes(bytes((len(row.salt),)) + row.salt + row.payload)
    return (
        place.position, place.stream, place.version, kept.ordinal,
        raw_bytes(row.header), raw_bytes(row.digest), raw_bytes(row.link), body,
    )  # fmt: skip


def _removal_fields(change: driver.TenantChange) -> tuple[object, ...]:
    """Return what only an erasure or a copied log has; an empty tuple for any other change."""
    erasures = (*change.erasures, *((row.event.address.position, row.erasure) for row in change.rows if row.erasure))
    dropped = (
        change.drop_projections, change.drop_claims, change.drop_snapshots, change.drop_blob_uses,
        change.drop_keys, change.drop_blobs,
    )  # fmt: skip
    if not (erasures or change.renames or change.pending_work is not None or any(dropped)):
        return ()
    return (
        [(position, raw_bytes(pack((each.notice, each.cause, each.redacted_payload)))) for position, each in erasures],
        [(number, name, raw_bytes(mark)) for number, name, mark in change.renames],
        [raw_bytes(projection_key(kind, id_)) for kind, id_ in change.drop_projections],
        change.drop_claims,
        change.drop_snapshots,
        change.drop_blob_uses,
        change.drop_keys,
        [raw_bytes(hash_) for hash_ in change.drop_blobs],
        False if change.pending_work is None else raw_bytes(change.pending_work),
    )


def pack_note(version: int, value: bytes, mark: bytes) -> bytes:
    """Return a note as stored. It begins with its version, which the script `put_note` reads."""
    return b"%d %d " % (version, len(mark)) + mark + value


def _pack_projection(stored: driver.ProjectionRow) -> bytes:
    row = stored.projection
    score, member = index_rank(row.time_us, row.id)
    kind = encode_name(row.kind)
    places = pack((score, raw_bytes(member), *index_names(kind, row.owner, row.status, row.lookup, row.terms)))
    content = pack(
        (row.kind, row.id, row.owner, row.status, row.time_us, row.lookup, row.terms, row.document, stored.checksum)
    )  # fmt: skip
    return len(places).to_bytes(4, "big") + places + content


def projection_key(kind: str, id_: str) -> bytes:
    """Return the key of a row. Keys sort by kind, then by id."""
    return projection_key_prefix(kind) + id_.encode()


def projection_key_prefix(kind: str) -> bytes:
    """Return the common beginning of the keys of a kind's rows."""
    return kind.encode().replace(b"\0", b"\0\xff") + b"\0\0"


def index_names(kind: str, owner: str, status: str, lookup: str, terms: Sequence[str]) -> list[str]:
    """Return the names of the indexes that a row is in. An empty text has no index."""
    named = [f"i:{kind}"]
    for letter, text in (("o", owner), ("s", status), ("l", lookup)):
        if text:
            named.append(f"{letter}:{kind}:{encode_name(text)}")
    named += [f"t:{kind}:{encode_name(term)}" for term in dict.fromkeys(terms)]
    return named


def index_rank(time_us: int, id_: str) -> tuple[str, bytes]:
    """Return score and member of a row in its indexes, which sort by time, then by the bytes of the id.

    A score is a float. A time that a float can't hold exactly is part of the member too.
    """
    score = str(int(float(time_us)))
    if -_EXACT_NUMBER_MAX <= time_us <= _EXACT_NUMBER_MAX:
        return score, b"\0" + id_.encode()
    return score, b"\1" + (time_us + (1 << 63)).to_bytes(8, "big") + id_.encode()


def pack_query(query: port.Query) -> bytes:
    """Return a query as the script reads it: a page between two ranks, and the indexes that its rows are in."""
    kind = encode_name(query.kind)
    given = {"o": query.owner, "s": query.status, "l": query.lookup}
    named = index_names(kind, query.owner or "", query.status or "", query.lookup or "", query.terms)
    absent = [f"{letter}:{kind}:" for letter, text in given.items() if text == ""]
    high = _upper_bound(query)
    low = ("-inf", b"") if query.since_us is None else index_rank(query.since_us, "")
    return pack(
        (
            query.limit, query.offset, raw_bytes(projection_key_prefix(query.kind)),
            high[0], raw_bytes(high[1]), low[0], raw_bytes(low[1]), named, absent,
        )
    )  # fmt: skip


def _upper_bound(query: port.Query) -> tuple[str, bytes]:
    bounds: list[tuple[str, bytes]] = []
    if query.after is not None:
        bounds.append(index_rank(*query.after))
    if query.until_us is not None:
        # No UTF-8 text has this byte.
        score, member = index_rank(query.until_us, "")
        bounds.append((score, member + b"\xff"))
    return min(bounds, key=lambda bound: (int(bound[0]), bound[1]), default=("+inf", b""))


def pack_notification(tenant: str, position: int, sender: bytes) -> bytes:
    return pack((tenant, position, sender))


Unpacked = TypeVar("Unpacked")

_EVENT_COLUMNS = (b"n", b"v", b"o", b"h", b"d", b"l")

_ProjectionFields = tuple[str, str, str, str, int, str, tuple[str, ...], bytes, bytes]
_projection_decoder = msgspec.msgpack.Decoder(_ProjectionFields)


def unpack(content: object, kind: type[Unpacked]) -> Unpacked:
    try:
        return msgspec.msgpack.decode(cast("bytes", content), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise _damaged_error() from error


def unpack_head(answer: object) -> driver.FeedHead:
    position, link, epoch = cast("list[bytes | None]", answer)[:3]
    if position is None or link is None:
        return driver.FeedHead(epoch=unpack_number(epoch or b"0"))
    return driver.FeedHead(unpack_number(position), link, unpack_number(epoch or b"0"))


def unpack_number(answer: object) -> int:
    try:
        return int(cast("bytes", answer))
    except (TypeError, ValueError) as error:
        raise _damaged_error() from error


def unpack_text(answer: object) -> str:
    try:
        return cast("bytes", answer).decode()
    except (AttributeError, UnicodeDecodeError) as error:
        raise _damaged_error() from error


def unpack_stream(answer: object) -> driver.StreamRow:
    number_, name, first, version, bases, mark = cast("list[object]", answer)
    packed = (unpack(each, tuple[int, int, int, int]) for each in cast("list[bytes]", bases))
    return driver.StreamRow(
        unpack_number(number_), unpack_text(name), unpack_number(first), unpack_number(version),
        tuple(chain.StreamBase(*base) for base in packed), cast("bytes | None", mark) or b"",
    )  # fmt: skip


def unpack_events(answer: object) -> list[driver.FeedRow]:
    return [_unpack_event(each) for each in cast("list[list[object]]", answer)]


def _unpack_event(answer: Sequence[object]) -> driver.FeedRow:
    id_, fields, body, blank, name = answer
    position = unpack_number(cast("bytes", id_).partition(b"-")[0])
    columns = cast("list[bytes]", fields)
    if tuple(columns[::2]) != _EVENT_COLUMNS:
        raise chain.damaged_event_error(chain.EventAddress(position, 0, 0), "its columns are others")
    stream_, version, ordinal, header, digest, link = columns[1::2]
    payload = salt = None
    if body is not None:
        kept = cast("bytes", body)
        end = 1 + (kept[0] if kept else 0)
        salt, payload = kept[1:end], kept[end:]
    try:
        place = chain.EventAddress(position, int(stream_), int(version))
        return driver.FeedRow(
            "" if name is None else unpack_text(name),
            chain.EventRow(place, header, payload, salt, digest, link),
            int(ordinal),
            None if blank is None else driver.EventErasure(*unpack(blank, tuple[int, int, bytes | None])),
        )
    except ValueError as error:
        raise chain.damaged_event_error(chain.EventAddress(position, 0, 0), "its columns are others") from error


def unpack_key(name: object, content: object) -> driver.KeyRow:
    first, last, time_us, hash_ = _split_words(content, 3)
    return driver.KeyRow(unpack_text(name), hash_, unpack_number(first), unpack_number(last), unpack_number(time_us))


def unpack_note(name: object, content: object) -> driver.NoteRow:
    version, size, rest = _split_words(content, 2)
    end = unpack_number(size)
    return driver.NoteRow(unpack_text(name), port.Note(rest[end:], unpack_number(version)), rest[:end])


def _split_words(content: object, count: int) -> list[bytes]:
    parts = cast("bytes", content or b"").split(b" ", count)
    if len(parts) != count + 1:
        raise _damaged_error()
    return parts


def unpack_snapshot(stream: str, content: object) -> driver.SnapshotRow:
    version, fold, state, mark = unpack(content, tuple[int, int, bytes, bytes])
    return driver.SnapshotRow(port.Snapshot(stream, version, fold, state), mark)


def unpack_projection(content: object) -> driver.ProjectionRow:
    """Return a stored projection. The names of its indexes come before it."""
    kept = cast("bytes", content)
    begin = 4 + int.from_bytes(kept[:4], "big")
    try:
        fields = _projection_decoder.decode(memoryview(kept)[begin:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged_error() from error
    kind, id_, owner, status, time_us, lookup, terms, document, checksum = fields
    row = port.Projection(
        kind=kind, id=id_, owner=owner, status=status, time_us=time_us, lookup=lookup,
        terms=terms, document=document,
    )  # fmt: skip
    return driver.ProjectionRow(row, checksum)


def unpack_info(answer: object) -> dict[str, str]:
    lines = cast("bytes", answer).decode("utf-8", "replace").splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def unpack_config(answer: object) -> Mapping[str, str]:
    words = [word.decode() for word in cast("list[bytes]", answer)]
    return dict(zip(words[::2], words[1::2], strict=True))


def _damaged_error() -> errors.Corrupt:
    return errors.Corrupt(
        "something on the server is not what was written.",
        hint="Nothing was changed. `limpet verify` says how far it goes; a backup can replace it.",
    )
