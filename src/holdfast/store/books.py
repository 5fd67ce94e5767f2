"""One tenant's books of the store in RAM: the keeping itself. Knows nothing of locks or other tenants."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from holdfast import errors
from holdfast.store import chain, port

Salts = Callable[[int], bytes]
"""Gives so many random bytes."""


class Stream:
    """Where a stream's events stand: the position and the ordinal of each version."""

    __slots__ = ("claims", "number", "ordinals", "positions")

    def __init__(self, number: int) -> None:
        self.number = number
        self.positions: list[int] = []
        self.ordinals: list[int] = []
        self.claims: dict[str, int] = {}

    def note(self, write: port.StreamWrite) -> None:
        """Note the ordinals and claims of a write."""
        self.ordinals.extend(event.ordinal for event in write.events)
        self.claims.update({claim: write.expected + 1 + at for claim, at in write.claims})


class Use(msgspec.Struct, frozen=True):
    """An idempotency key's use, and when."""

    replayed: port.Replayed
    time_us: int


class Books:
    """Everything kept for one tenant."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, chain.Row]] = []
        self.streams: dict[str, Stream] = {}
        self.keys: dict[str, Use] = {}
        self.projections: dict[str, dict[str, port.Projection]] = {}
        self.snapshots: dict[str, port.Snapshot] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.uses: dict[int, tuple[bytes, ...]] = {}

    def take(self, append: port.Append, salts: Salts) -> port.Outcome:
        """Take an append whole, or refuse it and change nothing."""
        _check(append)
        refusal = self._replay(append.key) or self._stale(append) or self._taken(append)
        if refusal is not None:
            return refusal
        # Whatever can fail is done before the first change.
        streams = self._streams_for(append.writes)
        rows = self._sealed(append.writes, streams, salts)
        blobs = [_hashed(event.blobs) for write in append.writes for event in write.events]
        first = len(self.rows) + 1
        self.streams.update(streams)
        for write in append.writes:
            streams[write.stream].note(write)
        for name, row in rows:
            self.rows.append((name, row))
            streams[name].positions.append(row.place.position)
        for position, brought in enumerate(blobs, start=first):
            if brought:
                self.blobs.update(brought)
                self.uses[position] = tuple(brought)
        outcome = port.Appended(first, len(self.rows))
        self._derive(append, outcome)
        return outcome

    def version(self, stream: str) -> int:
        """Return the stream's version."""
        known = self.streams.get(stream)
        return len(known.positions) if known else 0

    def read(
        self, stream: str, after: int, until: int | None, limit: int
    ) -> list[port.StoredEvent]:
        """Return a range of the stream."""
        known = self.streams.get(stream)
        places = known.positions[after:until][:limit] if known else []
        return [chain.opened(self.rows[position - 1][1], stream) for position in places]

    def seek(self, stream: str, ordinal: int) -> int:
        """Return the lowest version with at least this ordinal. Ordinals of a stream never fall."""
        known = self.streams.get(stream)
        before = bisect_left(known.ordinals, ordinal) if known else 0
        return before + 1 if known and before < len(known.ordinals) else 0

    def claim(self, stream: str, claim: str) -> int:
        """Return the version that made the claim."""
        known = self.streams.get(stream)
        return known.claims.get(claim, 0) if known else 0

    def replayed(self, key: str) -> port.Replayed | None:
        """Return what a key was used for."""
        use = self.keys.get(key)
        return use.replayed if use else None

    def forget_keys(self, before_us: int) -> int:
        """Drop keys used before that moment."""
        old = [key for key, use in self.keys.items() if use.time_us < before_us]
        for key in old:
            del self.keys[key]
        return len(old)

    def query(self, query: port.Query) -> list[port.Projection]:
        """Return one page, newest first, the higher id first among equals."""
        rows = self.projections.get(query.kind, {}).values()
        found = (row for row in rows if _matches(row, query))
        return heapq.nlargest(query.offset + query.limit, found, key=_rank)[query.offset :]

    def prove(self) -> None:
        """Raise Corrupt unless every event is as it was written."""
        before = chain.GENESIS
        for position, (_, row) in enumerate(self.rows, start=1):
            _refuse(faults_of(row, position, before))
            before = row.link

    def derived(self, derive: port.Derive) -> dict[str, port.Derived]:
        """Return what each stream leads to; raise Corrupt for a blob that is damaged or gone."""
        made: dict[str, port.Derived] = {}
        for name in self.streams:
            events = iter(self.read(name, 0, None, len(self.rows)))
            made[name] = derive(name, events, self._fetched)
        _refuse(blob_faults(self.blobs, self._uses(made)))
        return made

    def replace(self, derived: Mapping[str, port.Derived], made: port.Rebuilt) -> port.Rebuilt:
        """Put what is derived into the place of what was; return what was made, added to what is given."""
        self.projections, self.snapshots, self.uses = {}, {}, self._uses(derived)
        for name, found in derived.items():
            self.streams[name].claims = dict(found.claims)
            for row in found.projections:
                self.projections.setdefault(row.kind, {})[row.id] = row
        return port.Rebuilt(
            made.events + len(self.rows),
            made.tenants + 1,
            made.streams + len(derived),
            made.claims + sum(len(found.claims) for found in derived.values()),
            made.projections + sum(len(found.projections) for found in derived.values()),
        )

    def _fetched(self, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        return {hash_: self.blobs[hash_] for hash_ in hashes if hash_ in self.blobs}

    def _uses(self, derived: Mapping[str, port.Derived]) -> dict[int, tuple[bytes, ...]]:
        uses: dict[int, tuple[bytes, ...]] = {}
        for name, found in derived.items():
            positions = self.streams[name].positions
            for hash_, version in found.blobs:
                at = positions[version - 1]
                uses[at] = (*uses.get(at, ()), hash_)
        return uses

    def _replay(self, key: port.KeyUse | None) -> port.Replayed | None:
        return self.replayed(key.key) if key else None

    def _stale(self, append: port.Append) -> port.Stale | None:
        for write in append.writes:
            actual = self.version(write.stream)
            if actual != write.expected:
                return port.Stale(write.stream, actual)
        return None

    def _taken(self, append: port.Append) -> port.Claimed | None:
        for write in append.writes:
            made: dict[str, int] = {}
            for claim, index in write.claims:
                version = self.claim(write.stream, claim) or made.get(claim, 0)
                if version:
                    return port.Claimed(write.stream, claim, version)
                made[claim] = write.expected + 1 + index
        return None

    def _streams_for(self, writes: Sequence[port.StreamWrite]) -> dict[str, Stream]:
        streams: dict[str, Stream] = {}
        number = len(self.streams)
        for write in writes:
            known = self.streams.get(write.stream)
            if known is None:
                number += 1
            streams[write.stream] = known or Stream(number)
        return streams

    def _sealed(
        self, writes: Sequence[port.StreamWrite], streams: Mapping[str, Stream], salts: Salts
    ) -> list[tuple[str, chain.Row]]:
        rows: list[tuple[str, chain.Row]] = []
        before = self.rows[-1][1].link if self.rows else chain.GENESIS
        for write in writes:
            number = streams[write.stream].number
            for version, event in enumerate(write.events, start=write.expected + 1):
                place = chain.Place(len(self.rows) + len(rows) + 1, number, version)
                header = chain.header(event, place)
                salt = salts(chain.SALT_BYTES)
                digest = chain.digest(salt, header, event.payload)
                before = chain.link(before, digest, header)
                rows.append(
                    (write.stream, chain.Row(place, header, event.payload, salt, digest, before))
                )
        return rows

    def _derive(self, append: port.Append, outcome: port.Appended) -> None:
        for row in append.projections:
            self.projections.setdefault(row.kind, {})[row.id] = row
        for kind, id_ in append.drops:
            self.projections.get(kind, {}).pop(id_, None)
        self.snapshots.update({snapshot.stream: snapshot for snapshot in append.snapshots})
        if append.key is not None:
            used = port.Replayed(append.key.command_hash, outcome.first, outcome.last)
            self.keys[append.key.key] = Use(used, append.time_us)


def _check(append: port.Append) -> None:
    names = {write.stream for write in append.writes}
    assert append.writes, "an append has at least one write"
    assert len(names) == len(append.writes), "an append writes a stream once"
    for write in append.writes:
        assert write.events, "a write has at least one event"
        assert all(0 <= at < len(write.events) for _, at in write.claims), "a claim names its event"


def _refuse(faults: Iterator[str]) -> None:
    for fault in faults:
        raise errors.Corrupt(fault, hint="Nothing was changed. A backup can replace it.")


def _hashed(contents: Sequence[bytes]) -> dict[bytes, bytes]:
    return {chain.blob_hash(content): content for content in contents}


def blob_faults(
    blobs: Mapping[bytes, bytes], uses: Mapping[int, tuple[bytes, ...]]
) -> Iterator[str]:
    """Give every blob that is damaged, and every use of one that is gone."""
    for hash_, content in blobs.items():
        if not chain.is_blob(hash_, content):
            yield chain.damaged_blob(hash_).message
    for position, hashes in uses.items():
        yield from (chain.missing_blob(hash_, position) for hash_ in hashes if hash_ not in blobs)


def _rank(row: port.Projection) -> tuple[int, str]:
    return row.time_us, row.id


def _matches(row: port.Projection, query: port.Query) -> bool:
    return (
        (query.owner is None or row.owner == query.owner)
        and (query.status is None or row.status == query.status)
        and (query.lookup is None or row.lookup == query.lookup)
        and (query.since_us is None or row.time_us >= query.since_us)
        and (query.until_us is None or row.time_us <= query.until_us)
        and set(query.terms) <= set(row.terms)
        and (query.after is None or _rank(row) < query.after)
    )


def faults_of(row: chain.Row, position: int, before: bytes) -> Iterator[str]:
    """Give what is wrong with the row at a position, after a link."""
    try:
        chain.opened(row, "")
    except errors.Corrupt as error:
        yield error.message
    if row.place.position != position or not chain.linked(row, before):
        yield f"the event at position {position:,} is not linked to the one before."
