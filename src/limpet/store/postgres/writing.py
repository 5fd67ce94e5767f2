"""A change as the server takes it, in the order of the functions' parameters: the usual one by rows, others by columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

import msgspec

from limpet.store.postgres import names, packing
from limpet.store.remote.driver import Blank, Change, Head, Kept, KeptProjection

_Value = bytes | None
_bytes, _integers = packing.of_bytes, packing.of_integers
_TRUE = b"\1"


class Kinds(NamedTuple):
    """The numbers that a server has given the types of rows. They are others once a schema was dropped and restored."""

    event: int
    claim: int
    projection: int


def is_usual(change: Change) -> bool:
    """Whether `append` can make it: it brings events that are whole, claims and projections, and nothing else."""
    return bool(change.rows) and not (
        change.streams or change.keys or change.blobs or change.snapshots or change.drop_projections
        or change.bases or change.uses or change.before.epoch != change.after.epoch
        or takes_away(change)
        or any(one.blank is not None or one.row.payload is None for one in change.rows)
    )  # fmt: skip


def usual(change: Change, channel: str, kinds: Kinds) -> list[_Value]:
    """Return the arguments of `append`."""
    before, after = change.before, change.after
    return [
        names.kept(change.tenant).encode(),
        channel.encode(),
        packing.big(before.position),
        before.link,
        packing.big(before.epoch),
        packing.big(after.position),
        after.link,
        packing.of_rows(kinds.event, [_event(one) for one in change.rows]),
        packing.of_rows(kinds.claim, [_claim(*one) for one in change.claims]),
        packing.of_rows(kinds.projection, [_projection(one) for one in _last(change)]),
    ]


def _event(kept: Kept) -> bytes:
    row, place = kept.row, kept.row.place
    assert row.payload is not None and row.salt is not None, "it is usual"
    return packing.event_row(
        (place.position, place.stream, place.version, kept.ordinal),
        (row.header, row.payload),
        (row.salt, row.digest, row.link),
    )


def _claim(stretch: int, text: str, version: int) -> bytes:
    return packing.claim_row(stretch, text.encode(), version)


def _projection(kept: KeptProjection) -> bytes:
    row = kept.projection
    return packing.projection_row(
        (row.kind, row.status),
        (row.id.encode(), row.owner.encode(), row.lookup.encode()),
        row.time_us,
        [term.encode() for term in row.terms],
        (row.document, kept.mark),
    )


def _last(change: Change) -> Collection[KeptProjection]:
    """Return the projections that a change puts: of a row that is put twice the last one counts."""
    return {(one.projection.kind, one.projection.id): one for one in change.projections}.values()


def arguments(change: Change, channel: str) -> list[_Value]:
    """Return the arguments of `apply`; the last of them only if something is taken away."""
    before, after = change.before, change.after
    found: list[_Value] = [
        names.kept(change.tenant).encode(),
        _integers((before.position, before.epoch, after.position, after.epoch)),
        _bytes((before.link, after.link)),
        channel.encode(),
    ]
    for brought, columns, nothing in _PARTS:
        found += columns(change) if getattr(change, brought) else nothing
    if takes_away(change):
        found += (_TRUE, *_taken_away(change))
    return found


def takes_away(change: Change) -> bool:
    """Whether something goes, which takes more arguments."""
    return change.todo is not None or any(
        (
            change.blanks, change.renames, change.drop_claims, change.drop_snapshots,
            change.drop_uses, change.drop_keys, change.drop_blobs,
        )
    )  # fmt: skip


def _taken_away(change: Change) -> list[_Value]:
    blanks = [blank for _, blank in change.blanks]
    return [
        _integers([position for position, _ in change.blanks]),
        _integers([blank.notice for blank in blanks]),
        _integers([blank.cause for blank in blanks]),
        _bytes([blank.payload for blank in blanks]),
        _integers([number for number, _, _ in change.renames]),
        _bytes([name.encode() for _, name, _ in change.renames]),
        _bytes([mark for _, _, mark in change.renames]),
        _integers(change.drop_claims),
        _integers(change.drop_snapshots),
        _integers(change.drop_uses),
        _bytes([key.encode() for key in change.drop_keys]),
        _bytes(change.drop_blobs),
        change.todo,
    ]


def _rows(change: Change) -> Iterator[_Value]:
    kept = change.rows
    rows = [one.row for one in kept]
    places = [row.place for row in rows]
    yield _integers([place.position for place in places])
    yield _integers([place.stream for place in places])
    yield _integers([place.version for place in places])
    yield _integers([one.ordinal for one in kept])
    yield _bytes([row.header for row in rows])
    yield _bytes([row.payload for row in rows])
    yield _bytes([row.salt for row in rows])
    yield _bytes([row.digest for row in rows])
    yield _bytes([row.link for row in rows])
    blanks = [one.blank for one in kept]
    if any(blanks):
        yield from _blanks(blanks)
    else:
        yield from (None, None, None)


def _blanks(blanks: list[Blank | None]) -> Iterator[_Value]:
    yield _integers([blank.notice if blank else None for blank in blanks])
    yield _integers([blank.cause if blank else None for blank in blanks])
    yield _bytes([blank.payload if blank else None for blank in blanks])


def _streams(change: Change) -> Iterator[_Value]:
    yield _integers([stream.number for stream in change.streams])
    yield _bytes([stream.name.encode() for stream in change.streams])
    yield _integers([stream.first for stream in change.streams])
    yield _bytes([stream.mark for stream in change.streams])


def _bases(change: Change) -> Iterator[_Value]:
    flat: list[int] = []
    for stream, base in change.bases:
        flat += (stream, base.stretch, base.first, base.source, base.version)
    yield _integers(flat)


def _claims(change: Change) -> Iterator[_Value]:
    yield _integers([stretch for stretch, _, _ in change.claims])
    yield _bytes([claim.encode() for _, claim, _ in change.claims])
    yield _integers([version for _, _, version in change.claims])


def _keys(change: Change) -> Iterator[_Value]:
    keys = change.keys
    yield _bytes([key.key.encode() for key in keys])
    yield _bytes([key.command_hash for key in keys])
    yield _integers([key.first for key in keys])
    yield _integers([key.last for key in keys])
    yield _integers([key.time_us for key in keys])


def _blobs(change: Change) -> Iterator[_Value]:
    yield _bytes(list(change.blobs))
    yield _bytes(list(change.blobs.values()))


def _uses(change: Change) -> Iterator[_Value]:
    yield _integers([position for position, _ in change.uses])
    yield _bytes([hash_ for _, hash_ in change.uses])


def _dropped(change: Change) -> Iterator[_Value]:
    yield _bytes([kind.encode() for kind, _ in change.drop_projections])
    yield _bytes([id_.encode() for _, id_ in change.drop_projections])


def _projections(change: Change) -> Iterator[_Value]:
    kept = _last(change)
    rows = [one.projection for one in kept]
    yield _bytes([row.kind.encode() for row in rows])
    yield _bytes([row.id.encode() for row in rows])
    yield _bytes([row.owner.encode() for row in rows])
    yield _bytes([row.status.encode() for row in rows])
    yield _integers([row.time_us for row in rows])
    yield _bytes([row.lookup.encode() for row in rows])
    yield packing.of_texts([packing.literal([t.encode() for t in row.terms]) for row in rows])
    yield _bytes([row.document for row in rows])
    yield _bytes([one.mark for one in kept])


def _snapshots(change: Change) -> Iterator[_Value]:
    kept = {one.snapshot.stream: one for one in change.snapshots}
    rows = [one.snapshot for one in kept.values()]
    yield _bytes([row.stream.encode() for row in rows])
    yield _integers([row.version for row in rows])
    yield _integers([row.fold for row in rows])
    yield _bytes([row.state for row in rows])
    yield _bytes([one.mark for one in kept.values()])


_PARTS: Final[tuple[tuple[str, Callable[[Change], Iterator[_Value]], tuple[None, ...]], ...]] = (
    ("rows", _rows, (None,) * 12),
    ("streams", _streams, (None,) * 4),
    ("bases", _bases, (None,)),
    ("claims", _claims, (None,) * 3),
    ("keys", _keys, (None,) * 5),
    ("blobs", _blobs, (None,) * 2),
    ("uses", _uses, (None,) * 2),
    ("drop_projections", _dropped, (None,) * 2),
    ("projections", _projections, (None,) * 9),
    ("snapshots", _snapshots, (None,) * 5),
)
"""What a change may bring, as columns, and how many they are: most changes bring little of it."""


def only_derived(change: Change, before: Head) -> Change:
    """Return a change of what is derived, made for a head."""
    return msgspec.structs.replace(change, before=before, after=before)
