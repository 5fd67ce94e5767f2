"""Changes as the bytes that a script reads, and rows as the bytes that are kept.

A script's MessagePack knows no binary strings, so bytes are written as text is. Numbers in a script are exact up to
2^53: moments beyond that go only where no script counts with them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from limpet.store import paths, port
from limpet.store.redis.names import encoded
from limpet.store.remote import driver

_packer = msgspec.msgpack.Encoder()
_EXACT: Final = 1 << 53
_SMALL: Final = tuple(bytes((0xA0 | size,)) for size in range(32))
_SHORT: Final = tuple(bytes((0xD9, size)) for size in range(256))
_NO_RARE: Final[tuple[object, ...]] = ()


def raw(content: bytes) -> msgspec.Raw:
    """Return bytes as a script's MessagePack takes them."""
    size = len(content)
    if size < 32:
        return msgspec.Raw(_SMALL[size] + content)
    if size < 256:
        return msgspec.Raw(_SHORT[size] + content)
    if size < 65_536:
        return msgspec.Raw(struct.pack(">BH", 0xDA, size) + content)
    return msgspec.Raw(struct.pack(">BI", 0xDB, size) + content)


def pack(value: object) -> bytes:
    """Return a value of lists, numbers, texts and `raw` bytes as one string."""
    return _packer.encode(value)


def change(change: driver.Change) -> bytes:
    """Return a change as the script `apply` reads it."""
    before, after = change.before, change.after
    return pack(
        (
            (before.position, raw(before.link), before.epoch),
            (after.position, raw(after.link), after.epoch),
            [_stream(one) for one in sorted(change.streams, key=_number)],
            [(number, raw(base(one)), one.source, one.version) for number, one in change.bases],
            [_row(kept) for kept in change.rows],
            change.claims,
            [(one.key, raw(key(one)), one.first, one.time_us) for one in change.keys],
            [(raw(hash_), raw(content)) for hash_, content in change.blobs.items()],
            [(position, raw(hash_)) for position, hash_ in change.uses],
            rows(change.projections),
            snapshots(change.snapshots),
            _rare(change),
        )
    )


def part(change: driver.Change) -> bytes:
    """Return what is derived of a change as the script `build` reads it."""
    return pack(
        (
            change.claims,
            [(position, raw(hash_)) for position, hash_ in change.uses],
            rows(change.projections),
            snapshots(change.snapshots),
        )
    )


def _number(stream: driver.Stream) -> int:
    return stream.number


def _stream(stream: driver.Stream) -> tuple[object, ...]:
    return stream.number, stream.name, stream.first, raw(stream.mark)


def _row(kept: driver.Kept) -> tuple[object, ...]:
    row = kept.row
    place = row.place
    body: object = False
    if row.payload is not None and row.salt is not None:
        body = raw(bytes((len(row.salt),)) + row.salt + row.payload)
    return (
        place.position, place.stream, place.version, kept.ordinal,
        raw(row.header), raw(row.digest), raw(row.link), body,
    )  # fmt: skip


def _rare(change: driver.Change) -> tuple[object, ...]:
    """Return what only an erasure or a copied log brings."""
    copied = [(one.row.place.position, one.blank) for one in change.rows if one.blank is not None]
    dropped = (
        change.drop_projections, change.drop_claims, change.drop_snapshots, change.drop_uses,
        change.drop_keys, change.drop_blobs,
    )  # fmt: skip
    if not (copied or change.blanks or change.renames or change.todo is not None or any(dropped)):
        return _NO_RARE
    return (
        [(position, raw(blank(one))) for position, one in (*change.blanks, *copied)],
        [(number, name, raw(mark)) for number, name, mark in change.renames],
        [raw(row_id(kind, id_)) for kind, id_ in change.drop_projections],
        change.drop_claims,
        change.drop_snapshots,
        change.drop_uses,
        change.drop_keys,
        [raw(hash_) for hash_ in change.drop_blobs],
        False if change.todo is None else raw(change.todo),
    )


def base(one: paths.Base) -> bytes:
    """Return a base as it is kept. The script `clean` reads its first entry."""
    return pack((one.stretch, one.first, one.source, one.version))


def key(one: driver.KeptKey) -> bytes:
    """Return an idempotency key's use as it is kept: numbers first, that the script `keys_of` reads."""
    return b"%d %d %d " % (one.first, one.last, one.time_us) + one.command_hash


def blank(one: driver.Blank) -> bytes:
    """Return what became of an event as it is kept."""
    return pack((one.notice, one.cause, one.payload))


def note(version: int, value: bytes, mark: bytes) -> bytes:
    """Return a note as it is kept: its version first, that the script `put_note` reads."""
    return b"%d %d " % (version, len(mark)) + mark + value


def snapshots(kept: Iterable[driver.KeptSnapshot]) -> list[tuple[str, msgspec.Raw]]:
    """Return snapshots by the names of their streams."""
    return [
        (
            one.snapshot.stream,
            raw(pack((one.snapshot.version, one.snapshot.fold, one.snapshot.state, one.mark))),
        )
        for one in kept
    ]


def rows(kept: Iterable[driver.KeptProjection]) -> list[tuple[msgspec.Raw, msgspec.Raw]]:
    """Return projections by the names that they are kept under."""
    return [(raw(row_id(one.projection.kind, one.projection.id)), raw(_kept(one))) for one in kept]


def _kept(one: driver.KeptProjection) -> bytes:
    row = one.projection
    score, member = rank(row.time_us, row.id)
    kind = encoded(row.kind)
    places = pack(
        (score, raw(member), *indexes(kind, row.owner, row.status, row.lookup, row.terms))
    )
    content = pack(
        (row.kind, row.id, row.owner, row.status, row.time_us, row.lookup, row.terms, row.document, one.mark)
    )  # fmt: skip
    return len(places).to_bytes(4, "big") + places + content


def row_id(kind: str, id_: str) -> bytes:
    """Return what a row is kept under: rows compare as kind, then id do."""
    return row_beginning(kind) + id_.encode()


def row_beginning(kind: str) -> bytes:
    """Return what all rows of a kind are kept under, before their ids."""
    return kind.encode().replace(b"\0", b"\0\xff") + b"\0\0"


def indexes(kind: str, owner: str, status: str, lookup: str, terms: Sequence[str]) -> list[str]:
    """Return the indexes that a row is in. A text that is empty has none."""
    named = [f"i:{kind}"]
    for letter, text in (("o", owner), ("s", status), ("l", lookup)):
        if text:
            named.append(f"{letter}:{kind}:{encoded(text)}")
    named += [f"t:{kind}:{encoded(term)}" for term in dict.fromkeys(terms)]
    return named


def rank(time_us: int, id_: str) -> tuple[str, bytes]:
    """Return score and member of a row in its indexes: they come by time, then by id in the order of its bytes.

    A score is a float. A moment that it can't hold is in the member too.
    """
    score = str(int(float(time_us)))
    if -_EXACT <= time_us <= _EXACT:
        return score, b"\0" + id_.encode()
    return score, b"\1" + _moment(time_us) + id_.encode()


def _moment(time_us: int) -> bytes:
    return (time_us + (1 << 63)).to_bytes(8, "big")


def query(query: port.Query) -> bytes:
    """Return a query as the script reads it: a page between two ranks, and the indexes that its rows are in."""
    kind = encoded(query.kind)
    given = {"o": query.owner, "s": query.status, "l": query.lookup}
    named = indexes(kind, query.owner or "", query.status or "", query.lookup or "", query.terms)
    absent = [f"{letter}:{kind}:" for letter, text in given.items() if text == ""]
    high, low = _below(query), _above(query)
    return pack(
        (
            query.limit, query.offset, raw(row_beginning(query.kind)),
            high[0], raw(high[1]), low[0], raw(low[1]), named, absent,
        )
    )  # fmt: skip


def _below(query: port.Query) -> tuple[str, bytes]:
    """Return what all ranks of a page are below."""
    bounds: list[tuple[str, bytes]] = []
    if query.after is not None:
        bounds.append(rank(*query.after))
    if query.until_us is not None:
        # No id has this byte.
        score, member = rank(query.until_us, "")
        bounds.append((score, member + b"\xff"))
    return min(bounds, key=lambda bound: (int(bound[0]), bound[1]), default=("+inf", b""))


def _above(query: port.Query) -> tuple[str, bytes]:
    """Return what no rank of a page is below."""
    return ("-inf", b"") if query.since_us is None else rank(query.since_us, "")


def news(tenant: str, position: int, sender: bytes) -> bytes:
    """Return what is told to those who listen, and by whom."""
    return pack((tenant, position, sender))
