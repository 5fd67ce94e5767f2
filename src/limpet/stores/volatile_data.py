"""One tenant of the volatile store: appends, reads, erasure and copies on lists and dicts.

Nothing here locks or knows other tenants.
"""

from __future__ import annotations

import copy
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from limpet import errors
from limpet.stores import chain, port, store_copy, stream_paths
from limpet.stores.erasure import (
    Erasure,
    ErasureCounts,
    RedactedPayload,
    StreamErasure,
    derived_row_ids,
    erased_stream_name,
    erasure_proof,
    is_erased_stream,
    is_notice,
    make_notice,
)
from limpet.stores.port import KeyRecord, RawEvent, RawKey


class ErasedMark(msgspec.Struct, frozen=True):
    """What became of an erased event: the position of its notice, and what is read in its place."""

    notice: int
    cause: int
    payload: bytes | None = None


def with_erasure(
    books: TenantData, erasure: Erasure, derive: port.StreamDeriver, salts: RandomBytes
) -> tuple[TenantData, ErasureCounts] | port.Stale:
    """Return the books after an erasure, and what went. The books given stay as they are."""
    if erasure.head not in (None, len(books.rows)):
        return port.Stale("", len(books.rows))
    for share in erasure.streams:
        actual = books.version(share.stream)
        if actual != share.expected or not actual:
            return port.Stale(share.stream, actual)
    going = _VolatileErasure(clone_data(books), erasure, derive)
    return going.books, going.run(salts)


def clone_data(books: TenantData) -> TenantData:
    """Return books that can be changed without changing these."""
    made = copy.copy(books)
    for name in ("rows", "keys", "snapshots", "blobs", "uses", "erased"):
        setattr(made, name, copy.copy(getattr(books, name)))
    made.streams = {name: _clone_stream(stream) for name, stream in books.streams.items()}
    made.streams_by_number = {stream.number: stream for stream in made.streams.values()}
    made.projections = {kind: dict(rows) for kind, rows in books.projections.items()}
    return made


def _clone_stream(stream: VolatileStream) -> VolatileStream:
    made = copy.copy(stream)
    for name in ("positions", "ordinals", "bases", "claims"):
        setattr(made, name, copy.copy(getattr(stream, name)))
    return made


class _VolatileErasure:
    def __init__(self, books: TenantData, erasure: Erasure, derive: port.StreamDeriver) -> None:
        self.books = books
        self._erasure = erasure
        self._derive = derive
        self._events = self._claims = self._rows = 0
        self._hashes: set[bytes] = set()

    def run(self, salts: RandomBytes) -> ErasureCounts:
        books = self.books
        before = len(books.rows)
        for share in self._erasure.streams:
            self._forget_derived(share)
        writes = [
            self._erase_stream(share, before + 1 + at)
            for at, share in enumerate(self._erasure.streams)
        ]
        append = port.Append(
            tenant=self._erasure.tenant, writes=tuple(writes), time_us=self._erasure.time_us
        )
        outcome = books.append(append, salts)
        assert isinstance(outcome, port.Appended), "versions were looked at under the lock"
        for share in self._erasure.streams:
            if not share.whole:
                self._derive_again(share)
        keys, blobs = books.drop_erased_keys(), books.drop_unused(self._hashes)
        return ErasureCounts(
            events=self._events, blobs=blobs, keys=keys, claims=self._claims,
            rows=self._rows, link=books.rows[-1][1].link,
        )  # fmt: skip

    def _forget_derived(self, share: StreamErasure) -> None:
        books = self.books
        stream = books.streams[share.stream]
        rows, _ = derived_row_ids(share, lambda: books.derive_stream(share.stream, self._derive))
        for kind, id_ in rows:
            self._rows += books.projections.get(kind, {}).pop(id_, None) is not None
        self._claims += sum(map(len, stream.claims.values()))
        stream.claims = {}
        for position in stream.positions:
            self._hashes.update(books.blob_uses.pop(position, ()))
        books.snapshots.pop(share.stream, None)

    def _erase_stream(self, share: StreamErasure, position: int) -> port.StreamWrite:
        books, name = self.books, share.stream
        stream = books.streams[name]
        if share.whole:
            name = erased_stream_name(stream.number)
            books.streams[name] = books.streams.pop(share.stream)
            for at in stream.positions:
                books.rows[at - 1] = (name, books.rows[at - 1][1])
        stand_ins = {each.position: each for each in share.redactions}
        gone: list[tuple[int, bytes]] = []
        for at in stream.positions:
            row = books.rows[at - 1][1]
            stand_in = stand_ins.pop(at, None)
            if is_notice(chain.kind_and_ordinal(row.header)[0]) or not (share.whole or stand_in):
                continue
            if row.payload is not None:
                gone.append((at, row.digest))
            self._erase_event(name, row, at, position, stand_in)
        assert not stand_ins, "a stand-in is for an event of its stream"
        self._events += len(gone)
        told = make_notice(
            share.kind, self._erasure.time_us, stream.ordinals[-1], erasure_proof(gone)
        )
        return port.StreamWrite(name, share.expected, (told,))

    def _erase_event(
        self,
        name: str,
        row: chain.EventRow,
        at: int,
        position: int,
        stand_in: RedactedPayload | None,
    ) -> None:
        books = self.books
        known = books.erased.get(at)
        by = known.notice if known else position
        cause, payload = (stand_in.cause, stand_in.payload) if stand_in else (0, None)
        books.erased[at] = ErasedMark(by, cause, payload)
        books.rows[at - 1] = (name, msgspec.structs.replace(row, payload=None, salt=None))
        for content in stand_in.blobs if stand_in else ():
            books.blobs[chain.blob_hash(content)] = content

    def _derive_again(self, share: StreamErasure) -> None:
        books = self.books
        found = books.derive_stream(share.stream, self._derive)
        books.streams[share.stream].replace_claims(found.claims)
        books.blob_uses |= books.stream_blob_uses(share.stream, found)
        for row in found.projections:
            books.projections.setdefault(row.kind, {})[row.id] = row


def erasure_faults(books: TenantData) -> Iterator[str]:
    """Yield what is wrong with what is said to be erased."""
    groups: dict[int, list[int]] = {}
    for position in sorted(books.erased):
        groups.setdefault(books.erased[position].notice, []).append(position)
    for by, gone in groups.items():
        rows = [books.rows[at - 1] for at in gone]
        said = msgspec.json.encode(
            erasure_proof((row.address.position, row.digest) for _, row in rows)
        )
        name, row = books.rows[by - 1] if 0 < by <= len(books.rows) else ("", None)
        right = row is not None and is_notice(chain.kind_and_ordinal(row.header)[0])
        right = right and row is not None and row.payload == said and gone[-1] < by
        if not right or {stream for stream, _ in rows} != {name}:
            yield f"{len(gone):,} event(s), from position {gone[0]:,} on, are erased, but no notice in the log says so."
    for position, (_, row) in enumerate(books.rows, start=1):
        if row.payload is None and position not in books.erased:
            yield unexplained_erasure_error(row).message


def unexplained_erasure_error(row: chain.EventRow) -> errors.Corrupt:
    """Return the error for an event whose payload is gone though nothing says that it was erased."""
    return chain.damaged_event_error(
        row.address, "its content is gone, and nothing says that it was erased"
    )


RandomBytes = Callable[[int], bytes]
"""Gives so many random bytes."""


class VolatileStream:
    """Where a stream's own events stand: the position and the ordinal of each, from version `first` on.

    Its number is the position of its first event; a stretch's key likewise.
    """

    __slots__ = ("bases", "claims", "first", "number", "ordinals", "positions")

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.positions: list[int] = []
        self.ordinals: list[int] = []
        self.bases: list[stream_paths.StreamBase] = []
        self.claims: dict[int, dict[str, int]] = {}

    @property
    def version(self) -> int:
        """The version of its last event."""
        return self.first + len(self.positions) - 1

    def replace_claims(self, claims: Iterable[tuple[str, int]]) -> None:
        """Take claims and their versions in the place of those that are here."""
        self.claims = {}
        for stretch, claim, version in stream_paths.claims_by_stretch(
            self.number, self.bases, claims
        ):
            self.claims.setdefault(stretch, {})[claim] = version

    def record_write(self, write: port.StreamWrite, first: int, source: int | None) -> None:
        """Note a write whose first event is at a position; `source` is the stream that it is based on."""
        if write.base is not None and source is not None:
            base = stream_paths.StreamBase(first, write.previous_version + 1, source, write.base[1])
            self.bases.append(base)
        stretch = self.bases[-1].stretch if self.bases else self.number
        made = {claim: write.previous_version + 1 + at for claim, at in write.claims}
        self.claims.setdefault(stretch, {}).update(made)
        self.ordinals.extend(event.ordinal for event in write.events)
        self.positions.extend(range(first, first + len(write.events)))


class TimedKeyRecord(msgspec.Struct, frozen=True):
    """An idempotency key's use, and when."""

    record: port.KeyRecord
    time_us: int


class TenantData:
    """Everything kept for one tenant."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, chain.EventRow]] = []
        self.streams: dict[str, VolatileStream] = {}
        self.streams_by_number: dict[int, VolatileStream] = {}
        self.keys: dict[str, TimedKeyRecord] = {}
        self.projections: dict[str, dict[str, port.Projection]] = {}
        self.snapshots: dict[str, port.Snapshot] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.blob_uses: dict[int, tuple[bytes, ...]] = {}
        self.erased: dict[int, ErasedMark] = {}

    def event(self, position: int, stream: str) -> port.StoredEvent:
        """Return the event at a position, with its stand-in if it was erased; raise Corrupt if it is damaged."""
        row = self.rows[position - 1][1]
        if row.payload is not None:
            return chain.decode_event(row, stream)
        if position not in self.erased:
            raise unexplained_erasure_error(row)
        return chain.decode_event(row, stream, self.erased[position].payload)

    def append(self, append: port.Append, salts: RandomBytes) -> port.AppendOutcome:
        """Take an append whole, or refuse it and change nothing."""
        _check_append(append)
        refusal = (
            self._find_replay(append.key)
            or self._find_stale(append)
            or self._find_taken_claim(append)
        )
        if refusal is not None:
            return refusal
        # Whatever can fail is done before the first change.
        streams = self._streams_for(append.writes)
        rows = self._chained_rows(append.writes, streams, salts)
        blobs = [_blobs_by_hash(event.blobs) for write in append.writes for event in write.events]
        first = position = len(self.rows) + 1
        self.streams.update(streams)
        self.streams_by_number.update({stream.number: stream for stream in streams.values()})
        for write in append.writes:
            source = self.streams[write.base[0]].number if write.base else None
            streams[write.stream].record_write(write, position, source)
            position += len(write.events)
        self.rows += rows
        for position, brought in enumerate(blobs, start=first):
            if brought:
                self.blobs.update(brought)
                self.blob_uses[position] = tuple(brought)
        outcome = port.Appended(first, len(self.rows))
        self._write_derived(append, outcome)
        return outcome

    def version(self, stream: str, position: int | None = None) -> int:
        """Return the stream's version, now or at a position."""
        known = self.streams.get(stream)
        if known is None or (position is not None and position < known.number):
            return 0
        if position is None:
            return known.version
        return known.first + bisect_right(known.positions, position) - 1

    def path(self, stream: str, at: int | None) -> tuple[stream_paths.Span, ...]:
        """Return what a stream is made of, now or at a version."""
        known = self.streams.get(stream)
        if known is None:
            return ()
        latest = known.version if at is None else min(at, known.version)
        return stream_paths.resolve_path(
            known.number, latest, lambda number: self.streams_by_number[number].bases
        )

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
        for span in stream_paths.clip(
            spans, after, stream_paths.last_version(spans) if until is None else until
        ):
            own = self.streams_by_number[span.stream]
            places += own.positions[span.low - own.first : span.high - own.first + 1]
        chosen = places[max(0, len(places) - limit) :] if newest else places[:limit]
        return [self.event(position, stream) for position in chosen]

    def find_ordinal(self, stream: str, ordinal: int, at: int | None) -> int:
        """Return the lowest version with at least this ordinal. Ordinals of a stream never fall."""
        spans = self.path(stream, at)
        for span in spans:
            own = self.streams_by_number[span.stream]
            low, end = span.low - own.first, span.high - own.first + 1
            found = bisect_left(own.ordinals, ordinal, low, end)
            if found < end:
                return own.first + found
        return 0

    def find_claim(self, stream: str, claim: str, at: int | None = None) -> int:
        """Return the version that made the claim."""
        spans = self.path(stream, at)
        return self._find_claim_in(spans, claim)

    def _find_claim_in(self, spans: Sequence[stream_paths.Span], claim: str) -> int:
        found = ((span, self.streams_by_number[span.stream].claims) for span in spans)
        made = [
            (span.stretch, claims.get(span.stretch, {}).get(claim, 0)) for span, claims in found
        ]
        return stream_paths.find_claim_version(spans, [one for one in made if one[1]])

    def snapshot(self, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot, if its version was not left out by a rewind."""
        found = self.snapshots.get(stream)
        if found is None or not stream_paths.clip(
            self.path(stream, None), found.version - 1, found.version
        ):
            return None
        return found

    def find_key(self, key: str) -> port.KeyRecord | None:
        """Return what a key was used for."""
        use = self.keys.get(key)
        return use.record if use else None

    def put_key(self, key: str, replayed: port.KeyRecord, time_us: int) -> None:
        """Keep what a key was used for."""
        self.keys[key] = TimedKeyRecord(replayed, time_us)

    def drop_erased_keys(self) -> int:
        """Drop keys that led to events that are erased; return how many."""
        before, self.keys = (
            self.keys,
            {
                key: use
                for key, use in self.keys.items()
                if not any(p in self.erased for p in range(use.record.first, use.record.last + 1))
            },
        )
        return len(before) - len(self.keys)

    def drop_unused(self, hashes: Collection[bytes]) -> int:
        """Drop those of the blobs that no event refers to any more; return how many."""
        needed = {hash_ for used in self.blob_uses.values() for hash_ in used}
        unused = {hash_ for hash_ in hashes if hash_ in self.blobs and hash_ not in needed}
        self.blobs = {h: content for h, content in self.blobs.items() if h not in unused}
        return len(unused)

    def add_stream(self, name: str, number: int, first: int) -> None:
        """Begin a stream, whose first event comes next."""
        self.streams[name] = self.streams_by_number[number] = VolatileStream(number, first)

    def forget_keys(self, before_us: int) -> int:
        """Drop keys used before that moment."""
        old = [key for key, use in self.keys.items() if use.time_us < before_us]
        for key in old:
            del self.keys[key]
        return len(old)

    def query(self, query: port.Query) -> list[port.Projection]:
        """Return one page, newest first, the higher id first among equals."""
        rows = self.projections.get(query.kind, {}).values()
        found = (row for row in rows if _matches_query(row, query))
        return heapq.nlargest(query.offset + query.limit, found, key=_sort_key)[query.offset :]

    def check_log(self) -> None:
        """Raise Corrupt unless every event is as it was written."""
        before = chain.GENESIS_LINK
        for position, (_, row) in enumerate(self.rows, start=1):
            _raise_first_fault(row_faults(row, position, before))
            before = row.link
        _raise_first_fault(erasure_faults(self))

    def derive_all(self, derive: port.StreamDeriver) -> dict[str, port.DerivedState]:
        """Return what each stream leads to; raise Corrupt for a blob that is damaged or gone."""
        made: dict[str, port.DerivedState] = {}
        for name in self.streams:
            gone = is_erased_stream(name)
            made[name] = port.DerivedState((), ()) if gone else self.derive_stream(name, derive)
        _raise_first_fault(blob_faults(self.blobs, self._all_blob_uses(made)))
        return made

    def derive_stream(self, name: str, derive: port.StreamDeriver) -> port.DerivedState:
        """Return what one stream leads to."""
        events = (self.event(at, name) for at in self.streams[name].positions)
        return derive(name, events, self._load_blobs)

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

    def replace_derived(
        self, derived: Mapping[str, port.DerivedState], made: port.Rebuilt
    ) -> port.Rebuilt:
        """Put what is derived into the place of what was; return what was made, added to what is given."""
        self.projections, self.snapshots, self.blob_uses = {}, {}, self._all_blob_uses(derived)
        for name, found in derived.items():
            self.streams[name].replace_claims(found.claims)
            for row in found.projections:
                self.projections.setdefault(row.kind, {})[row.id] = row
        return port.Rebuilt(
            made.events + len(self.rows),
            made.tenants + 1,
            made.streams + len(derived),
            made.claims + sum(map(len, self._claims_by_stretch(derived))),
            made.projections + sum(len(found.projections) for found in derived.values()),
        )

    def _claims_by_stretch(self, streams: Iterable[str]) -> Iterator[Mapping[str, int]]:
        for name in streams:
            yield from self.streams[name].claims.values()

    def _load_blobs(self, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        return {hash_: self.blobs[hash_] for hash_ in hashes if hash_ in self.blobs}

    def _all_blob_uses(
        self, derived: Mapping[str, port.DerivedState]
    ) -> dict[int, tuple[bytes, ...]]:
        uses: dict[int, tuple[bytes, ...]] = {}
        for name, found in derived.items():
            uses |= self.stream_blob_uses(name, found)
        return uses

    def stream_blob_uses(self, name: str, found: port.DerivedState) -> dict[int, tuple[bytes, ...]]:
        """Return the blobs that each event of one stream refers to."""
        uses: dict[int, tuple[bytes, ...]] = {}
        stream = self.streams[name]
        for hash_, version in found.blobs:
            at = stream.positions[version - stream.first]
            uses[at] = (*uses.get(at, ()), hash_)
        return uses

    def _find_replay(self, key: port.KeyUse | None) -> port.KeyRecord | None:
        return self.find_key(key.key) if key else None

    def _find_stale(self, append: port.Append) -> port.Stale | None:
        for write in append.writes:
            actual = self.version(write.stream)
            if actual != write.expected:
                return port.Stale(write.stream, actual)
        return None

    def _find_taken_claim(self, append: port.Append) -> port.ClaimTaken | None:
        for write in append.writes:
            base, at = write.base or (write.stream, None)
            spans, made = self.path(base, at), dict[str, int]()
            assert write.base is None or stream_paths.last_version(spans) == at, (
                "a base names a version that was"
            )
            for claim, index in write.claims:
                version = self._find_claim_in(spans, claim) or made.get(claim, 0)
                if version:
                    return port.ClaimTaken(write.stream, claim, version)
                made[claim] = write.previous_version + 1 + index
        return None

    def _streams_for(self, writes: Sequence[port.StreamWrite]) -> dict[str, VolatileStream]:
        streams: dict[str, VolatileStream] = {}
        position = len(self.rows) + 1
        for write in writes:
            known = self.streams.get(write.stream)
            streams[write.stream] = known or VolatileStream(position, write.previous_version + 1)
            position += len(write.events)
        return streams

    def _chained_rows(
        self,
        writes: Sequence[port.StreamWrite],
        streams: Mapping[str, VolatileStream],
        salts: RandomBytes,
    ) -> list[tuple[str, chain.EventRow]]:
        rows: list[tuple[str, chain.EventRow]] = []
        before = self.rows[-1][1].link if self.rows else chain.GENESIS_LINK
        for write in writes:
            number = streams[write.stream].number
            for version, event in enumerate(write.events, start=write.previous_version + 1):
                place = chain.EventAddress(len(self.rows) + len(rows) + 1, number, version)
                header = chain.encode_header(event, place)
                salt = salts(chain.SALT_BYTES)
                digest = chain.event_digest(salt, header, event.payload)
                before = chain.next_link(before, digest, header)
                rows.append(
                    (
                        write.stream,
                        chain.EventRow(place, header, event.payload, salt, digest, before),
                    )
                )
        return rows

    def _write_derived(self, append: port.Append, outcome: port.Appended) -> None:
        for row in append.projections:
            self.projections.setdefault(row.kind, {})[row.id] = row
        for kind, id_ in append.drops:
            self.projections.get(kind, {}).pop(id_, None)
        self.snapshots.update({snapshot.stream: snapshot for snapshot in append.snapshots})
        if append.key is not None:
            used = port.KeyRecord(append.key.command_hash, outcome.first, outcome.last)
            self.put_key(append.key.key, used, append.time_us)


def _check_append(append: port.Append) -> None:
    names = {write.stream for write in append.writes}
    assert append.writes, "an append has at least one write"
    assert len(names) == len(append.writes), "an append writes a stream once"
    for write in append.writes:
        assert write.events, "a write has at least one event"
        own = write.base is None or write.base[0] == write.stream or not write.expected
        assert own, "only a new stream is based on another"
        assert all(0 <= at < len(write.events) for _, at in write.claims), "a claim names its event"


def _raise_first_fault(faults: Iterator[str]) -> None:
    for fault in faults:
        raise errors.Corrupt(fault, hint="Nothing was changed. A backup can replace it.")


def _blobs_by_hash(contents: Sequence[bytes]) -> dict[bytes, bytes]:
    return {chain.blob_hash(content): content for content in contents}


def name_and_key_faults(books: TenantData) -> Iterator[str]:
    """Yield what is wrong with names and idempotency keys: those that do not lead to their events."""
    for name, stream in books.streams.items():
        if books.rows[stream.number - 1][0] != name:
            yield "a stream has another name than its events."
    for use in books.keys.values():
        if not 0 < use.record.first <= use.record.last <= len(books.rows):
            yield "a key leads to events that are not there."


def blob_faults(
    blobs: Mapping[bytes, bytes], uses: Mapping[int, tuple[bytes, ...]]
) -> Iterator[str]:
    """Give every blob that is damaged, and every use of one that is gone."""
    for hash_, content in blobs.items():
        if not chain.blob_matches(hash_, content):
            yield chain.damaged_blob_error(hash_).message
    for position, hashes in uses.items():
        yield from (
            chain.missing_blob_fault(hash_, position) for hash_ in hashes if hash_ not in blobs
        )


def _sort_key(row: port.Projection) -> tuple[int, str]:
    return row.time_us, row.id


def _matches_query(row: port.Projection, query: port.Query) -> bool:
    return (
        (query.owner is None or row.owner == query.owner)
        and (query.status is None or row.status == query.status)
        and (query.lookup is None or row.lookup == query.lookup)
        and (query.since_us is None or row.time_us >= query.since_us)
        and (query.until_us is None or row.time_us <= query.until_us)
        and set(query.terms) <= set(row.terms)
        and (query.after is None or _sort_key(row) < query.after)
    )


def row_faults(row: chain.EventRow, position: int, before: bytes) -> Iterator[str]:
    """Give what is wrong with the row at a position, after a link."""
    try:
        chain.decode_event(row, "")
    except errors.Corrupt as error:
        yield error.message
    if row.address.position != position or not chain.is_linked(row, before):
        yield f"the event at position {position:,} is not linked to the one before."


def copy_page(books: TenantData, after: int, limit: int) -> list[RawEvent]:
    """Return events after a position as they are kept; raise Corrupt for a damaged one."""
    return [
        _raw_event(books, at) for at in range(after + 1, min(len(books.rows), after + limit) + 1)
    ]


def _raw_event(books: TenantData, position: int) -> RawEvent:
    name, row = books.rows[position - 1]
    books.event(position, name)
    stream, blank = books.streams_by_number[row.address.stream], books.erased.get(position)
    based = next((base for base in stream.bases if base.stretch == position), None)
    return RawEvent(
        stream=name, position=position, number=row.address.stream, version=row.address.version,
        header=row.header, payload=row.payload, salt=row.salt, digest=row.digest, link=row.link,
        base=(based.source, based.version) if based else None,
        blobs=tuple(sorted(books.blob_uses.get(position, ()))),
        erased=(blank.notice, blank.cause, blank.payload) if blank else None,
    )  # fmt: skip


def copy_keys(books: TenantData, after: str, limit: int) -> list[RawKey]:
    """Return idempotency keys after one, by their text."""
    names = sorted(key for key in books.keys if key > after)
    return [key for name in names[:limit] if (key := VolatileCopyTarget(books).find_raw_key(name))]


class VolatileCopyTarget:
    """What `portable.fit` compares a page with."""

    def __init__(self, books: TenantData) -> None:
        self._books = books

    def head(self) -> tuple[int, bytes]:
        """Return position and link of the last event."""
        rows = self._books.rows
        return len(rows), rows[-1][1].link if rows else chain.GENESIS_LINK

    def stream_name_and_version(self, number: int) -> tuple[str, int] | None:
        """Return name and version of a stream."""
        found = self._books.streams_by_number.get(number)
        return (self._books.rows[number - 1][0], found.version) if found else None

    def stream_number(self, name: str) -> int:
        """Return the number of the stream that has a name."""
        found = self._books.streams.get(name)
        return found.number if found else 0

    def link_at(self, position: int) -> bytes:
        """Return the link of an event."""
        return self._books.rows[position - 1][1].link

    def missing_blobs(self, hashes: Collection[bytes]) -> Collection[bytes]:
        """Return those of the blobs that are not there."""
        return [hash_ for hash_ in hashes if hash_ not in self._books.blobs]

    def find_raw_key(self, key: str) -> RawKey | None:
        """Return what an idempotency key was used for."""
        use = self._books.keys.get(key)
        if use is None:
            return None
        said = use.record
        return RawKey(key, said.command_hash, said.first, said.last, use.time_us)


def write_page(books: TenantData, fit: store_copy.CopyPlan) -> None:
    """Keep what fits."""
    for number, name in fit.renamed_streams.items():
        _rename_stream(books, number, name)
    books.blobs.update(fit.blobs)
    for raw in fit.new_events:
        _add_event(books, raw, fit.new_streams.get(raw.number))
    if fit.newly_erased:
        _erase_events(books, fit.newly_erased)
    for key in fit.new_keys:
        books.put_key(key.key, KeyRecord(key.command_hash, key.first, key.last), key.time_us)


def _rename_stream(books: TenantData, number: int, name: str) -> None:
    stream = books.streams_by_number[number]
    del books.streams[books.rows[number - 1][0]]
    books.streams[name] = stream
    for at in stream.positions:
        books.rows[at - 1] = (name, books.rows[at - 1][1])


def _add_event(books: TenantData, raw: RawEvent, added: str | None) -> None:
    if raw.number == raw.position:
        assert added is not None, "a new stream was looked at"
        books.add_stream(added, raw.number, raw.version)
    stream = books.streams_by_number[raw.number]
    name = books.rows[raw.number - 1][0] if raw.number < raw.position else added
    assert name is not None, "every stream has a name"
    if raw.base is not None:
        stream.bases.append(stream_paths.StreamBase(raw.position, raw.version, *raw.base))
    stream.positions.append(raw.position)
    stream.ordinals.append(chain.kind_and_ordinal(raw.header)[1])
    books.rows.append((name, store_copy.raw_event_row(raw)))
    _record_uses_and_erasure(books, raw)


def _record_uses_and_erasure(books: TenantData, raw: RawEvent) -> None:
    books.blob_uses.pop(raw.position, None)
    if raw.blobs:
        books.blob_uses[raw.position] = raw.blobs
    if raw.erased is not None:
        books.erased[raw.position] = ErasedMark(*raw.erased)


def _erase_events(books: TenantData, again: list[RawEvent]) -> None:
    hashes: set[bytes] = set()
    for raw in again:
        hashes.update(books.blob_uses.get(raw.position, ()))
        name, row = books.rows[raw.position - 1]
        books.rows[raw.position - 1] = (name, msgspec.structs.replace(row, payload=None, salt=None))
        _record_uses_and_erasure(books, raw)
    books.drop_erased_keys()
    books.drop_unused(hashes)
