"""One tenant's books of the store in RAM: the keeping itself. Knows nothing of locks or other tenants."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from limpet import errors
from limpet.store import blanking, chain, paths, port
from limpet.store.erasure import is_erased

Salts = Callable[[int], bytes]
"""Gives so many random bytes."""


class Stream:
    """Where a stream's own events stand: the position and the ordinal of each, from version `first` on.

    Its number is the position of its first event; a stretch's key likewise.
    """

    __slots__ = ("bases", "claims", "first", "number", "ordinals", "positions")

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.positions: list[int] = []
        self.ordinals: list[int] = []
        self.bases: list[paths.Base] = []
        self.claims: dict[int, dict[str, int]] = {}

    @property
    def version(self) -> int:
        """The version of its last event."""
        return self.first + len(self.positions) - 1

    def claim_anew(self, claims: Iterable[tuple[str, int]]) -> None:
        """Take claims and their versions in the place of those that are here."""
        self.claims = {}
        for stretch, claim, version in paths.claimed(self.number, self.bases, claims):
            self.claims.setdefault(stretch, {})[claim] = version

    def note(self, write: port.StreamWrite, first: int, source: int | None) -> None:
        """Note a write whose first event is at a position; `source` is the stream that it is based on."""
        if write.base is not None and source is not None:
            base = paths.Base(first, write.before + 1, source, write.base[1])
            self.bases.append(base)
        stretch = self.bases[-1].stretch if self.bases else self.number
        made = {claim: write.before + 1 + at for claim, at in write.claims}
        self.claims.setdefault(stretch, {}).update(made)
        self.ordinals.extend(event.ordinal for event in write.events)
        self.positions.extend(range(first, first + len(write.events)))


class Use(msgspec.Struct, frozen=True):
    """An idempotency key's use, and when."""

    replayed: port.Replayed
    time_us: int


class Books:
    """Everything kept for one tenant."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, chain.Row]] = []
        self.streams: dict[str, Stream] = {}
        self.numbered: dict[int, Stream] = {}
        self.keys: dict[str, Use] = {}
        self.projections: dict[str, dict[str, port.Projection]] = {}
        self.snapshots: dict[str, port.Snapshot] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.uses: dict[int, tuple[bytes, ...]] = {}
        self.erased: dict[int, blanking.Blank] = {}

    def event(self, position: int, stream: str) -> port.StoredEvent:
        """Return the event at a position, with its stand-in if it was erased; raise Corrupt if it is damaged."""
        row = self.rows[position - 1][1]
        if row.payload is not None:
            return chain.opened(row, stream)
        if position not in self.erased:
            raise blanking.unexplained(row)
        return chain.opened(row, stream, self.erased[position].payload)

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
        first = position = len(self.rows) + 1
        self.streams.update(streams)
        self.numbered.update({stream.number: stream for stream in streams.values()})
        for write in append.writes:
            source = self.streams[write.base[0]].number if write.base else None
            streams[write.stream].note(write, position, source)
            position += len(write.events)
        self.rows += rows
        for position, brought in enumerate(blobs, start=first):
            if brought:
                self.blobs.update(brought)
                self.uses[position] = tuple(brought)
        outcome = port.Appended(first, len(self.rows))
        self._derive(append, outcome)
        return outcome

    def version(self, stream: str, position: int | None = None) -> int:
        """Return the stream's version, now or at a position."""
        known = self.streams.get(stream)
        if known is None or (position is not None and position < known.number):
            return 0
        if position is None:
            return known.version
        return known.first + bisect_right(known.positions, position) - 1

    def path(self, stream: str, at: int | None) -> tuple[paths.Span, ...]:
        """Return what a stream is made of, now or at a version."""
        known = self.streams.get(stream)
        if known is None:
            return ()
        latest = known.version if at is None else min(at, known.version)
        return paths.path(known.number, latest, lambda number: self.numbered[number].bases)

    def read(
        self,
        stream: str,
        after: int,
        until: int | None,
        limit: int,
        at: int | None,
        *,
        newest: bool,
    ) -> list[port.StoredEvent]:
        """Return a range of the stream."""
        spans = self.path(stream, at)
        places: list[int] = []
        for span in paths.within(spans, after, paths.end(spans) if until is None else until):
            own = self.numbered[span.stream]
            places += own.positions[span.low - own.first : span.high - own.first + 1]
        chosen = places[max(0, len(places) - limit) :] if newest else places[:limit]
        return [self.event(position, stream) for position in chosen]

    def seek(self, stream: str, ordinal: int, at: int | None) -> int:
        """Return the lowest version with at least this ordinal. Ordinals of a stream never fall."""
        spans = self.path(stream, at)
        for span in spans:
            own = self.numbered[span.stream]
            low, end = span.low - own.first, span.high - own.first + 1
            found = bisect_left(own.ordinals, ordinal, low, end)
            if found < end:
                return own.first + found
        return 0

    def claim(self, stream: str, claim: str, at: int | None = None) -> int:
        """Return the version that made the claim."""
        spans = self.path(stream, at)
        return self._claim(spans, claim)

    def _claim(self, spans: Sequence[paths.Span], claim: str) -> int:
        found = ((span, self.numbered[span.stream].claims) for span in spans)
        made = [
            (span.stretch, claims.get(span.stretch, {}).get(claim, 0)) for span, claims in found
        ]
        return paths.made(spans, [one for one in made if one[1]])

    def snapshot(self, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot, if its version was not left out by a rewind."""
        found = self.snapshots.get(stream)
        if found is None or not paths.within(
            self.path(stream, None), found.version - 1, found.version
        ):
            return None
        return found

    def replayed(self, key: str) -> port.Replayed | None:
        """Return what a key was used for."""
        use = self.keys.get(key)
        return use.replayed if use else None

    def put_key(self, key: str, replayed: port.Replayed, time_us: int) -> None:
        """Keep what a key was used for."""
        self.keys[key] = Use(replayed, time_us)

    def drop_erased_keys(self) -> int:
        """Drop keys that led to events that are erased; return how many."""
        before, self.keys = (
            self.keys,
            {
                key: use
                for key, use in self.keys.items()
                if not any(
                    p in self.erased for p in range(use.replayed.first, use.replayed.last + 1)
                )
            },
        )
        return len(before) - len(self.keys)

    def drop_unused(self, hashes: Collection[bytes]) -> int:
        """Drop those of the blobs that no event refers to any more; return how many."""
        needed = {hash_ for used in self.uses.values() for hash_ in used}
        unused = {hash_ for hash_ in hashes if hash_ in self.blobs and hash_ not in needed}
        self.blobs = {h: content for h, content in self.blobs.items() if h not in unused}
        return len(unused)

    def open_stream(self, name: str, number: int, first: int) -> None:
        """Begin a stream, whose first event comes next."""
        self.streams[name] = self.numbered[number] = Stream(number, first)

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
        _refuse(blanking.faults(self))

    def derived(self, derive: port.Derive) -> dict[str, port.Derived]:
        """Return what each stream leads to; raise Corrupt for a blob that is damaged or gone."""
        made: dict[str, port.Derived] = {}
        for name in self.streams:
            gone = is_erased(name)
            made[name] = port.Derived((), ()) if gone else self.derived_of(name, derive)
        _refuse(blob_faults(self.blobs, self._uses(made)))
        return made

    def derived_of(self, name: str, derive: port.Derive) -> port.Derived:
        """Return what one stream leads to."""
        events = (self.event(at, name) for at in self.streams[name].positions)
        return derive(name, events, self._fetched)

    def forks(self, name: str) -> list[tuple[str, int]]:
        """Return the other streams that go on from one, and from which version."""
        source = self.streams.get(name)
        found = [
            (base.stretch, other, base.version)
            for other, stream in self.streams.items()
            for base in stream.bases
            if source is not None and stream is not source and base.source == source.number
        ]
        return [(other, version) for _, other, version in sorted(found)]

    def replace(self, derived: Mapping[str, port.Derived], made: port.Rebuilt) -> port.Rebuilt:
        """Put what is derived into the place of what was; return what was made, added to what is given."""
        self.projections, self.snapshots, self.uses = {}, {}, self._uses(derived)
        for name, found in derived.items():
            self.streams[name].claim_anew(found.claims)
            for row in found.projections:
                self.projections.setdefault(row.kind, {})[row.id] = row
        return port.Rebuilt(
            made.events + len(self.rows),
            made.tenants + 1,
            made.streams + len(derived),
            made.claims + sum(map(len, self._stretches(derived))),
            made.projections + sum(len(found.projections) for found in derived.values()),
        )

    def _stretches(self, streams: Iterable[str]) -> Iterator[Mapping[str, int]]:
        for name in streams:
            yield from self.streams[name].claims.values()

    def _fetched(self, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        return {hash_: self.blobs[hash_] for hash_ in hashes if hash_ in self.blobs}

    def _uses(self, derived: Mapping[str, port.Derived]) -> dict[int, tuple[bytes, ...]]:
        uses: dict[int, tuple[bytes, ...]] = {}
        for name, found in derived.items():
            uses |= self.uses_of(name, found)
        return uses

    def uses_of(self, name: str, found: port.Derived) -> dict[int, tuple[bytes, ...]]:
        """Return the blobs that each event of one stream refers to."""
        uses: dict[int, tuple[bytes, ...]] = {}
        stream = self.streams[name]
        for hash_, version in found.blobs:
            at = stream.positions[version - stream.first]
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
            base, at = write.base or (write.stream, None)
            spans, made = self.path(base, at), dict[str, int]()
            assert write.base is None or paths.end(spans) == at, "a base names a version that was"
            for claim, index in write.claims:
                version = self._claim(spans, claim) or made.get(claim, 0)
                if version:
                    return port.Claimed(write.stream, claim, version)
                made[claim] = write.before + 1 + index
        return None

    def _streams_for(self, writes: Sequence[port.StreamWrite]) -> dict[str, Stream]:
        streams: dict[str, Stream] = {}
        position = len(self.rows) + 1
        for write in writes:
            known = self.streams.get(write.stream)
            streams[write.stream] = known or Stream(position, write.before + 1)
            position += len(write.events)
        return streams

    def _sealed(
        self, writes: Sequence[port.StreamWrite], streams: Mapping[str, Stream], salts: Salts
    ) -> list[tuple[str, chain.Row]]:
        rows: list[tuple[str, chain.Row]] = []
        before = self.rows[-1][1].link if self.rows else chain.GENESIS
        for write in writes:
            number = streams[write.stream].number
            for version, event in enumerate(write.events, start=write.before + 1):
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
            self.put_key(append.key.key, used, append.time_us)


def _check(append: port.Append) -> None:
    names = {write.stream for write in append.writes}
    assert append.writes, "an append has at least one write"
    assert len(names) == len(append.writes), "an append writes a stream once"
    for write in append.writes:
        assert write.events, "a write has at least one event"
        own = write.base is None or write.base[0] == write.stream or not write.expected
        assert own, "only a new stream is based on another"
        assert all(0 <= at < len(write.events) for _, at in write.claims), "a claim names its event"


def _refuse(faults: Iterator[str]) -> None:
    for fault in faults:
        raise errors.Corrupt(fault, hint="Nothing was changed. A backup can replace it.")


def _hashed(contents: Sequence[bytes]) -> dict[bytes, bytes]:
    return {chain.blob_hash(content): content for content in contents}


def index_faults(books: Books) -> Iterator[str]:
    """Yield what is wrong with names and idempotency keys: those that do not lead to their events."""
    for name, stream in books.streams.items():
        if books.rows[stream.number - 1][0] != name:
            yield "a stream has another name than its events."
    for use in books.keys.values():
        if not 0 < use.replayed.first <= use.replayed.last <= len(books.rows):
            yield "a key leads to events that are not there."


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
