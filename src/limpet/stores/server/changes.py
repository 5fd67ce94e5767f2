"""Changes to a tenant: built from appends, and sent to the driver singly or in a pipeline.

`ChangeBuilder` turns the appends of one tenant into one change. Keys, claims and stream names are
left for the server to check, and are read beforehand only after it has refused a change.
`ServerPipeline` sends commits before the earlier ones are answered. Each names the head that its
predecessor leads to, so if one is refused, all later ones are. `StreamDerivation` derives rows.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType

import msgspec

from limpet.stores import chain, port, stream_paths
from limpet.stores.server import checked_reads
from limpet.stores.server.driver import (
    ChangePipeline,
    Driver,
    DuplicateRow,
    FeedHead,
    FeedRow,
    HeadMoved,
    ProjectionRow,
    SnapshotRow,
    StreamRow,
    TenantChange,
)
from limpet.stores.server.notifications import CommitNotifications
from limpet.stores.server.tenant_cache import CachedTenant, LossDetector, TenantCache
from limpet.stores.stream_paths import Span, StreamBase


class ChangeBuilder:
    """Appends of one tenant on their way, and what is known once they are there."""

    def __init__(
        self,
        driver: Driver,
        tenant: str,
        known: CachedTenant,
        random: Callable[[int], bytes],
        *,
        careful: bool,
    ) -> None:
        self._driver = driver
        self._tenant = tenant
        self._cached = known
        self._random = random
        self._check_everything = careful
        self.head_before = known.head
        """The head that it rests on."""
        self._position, self._link = known.head.position, known.head.link
        self.streams: dict[str, StreamRow] = {}
        self._numbered: dict[int, StreamRow] = {}
        self._earlier_spans: dict[int, tuple[Span, ...]] = {}
        self._new_streams: list[str] = []
        self._bases: list[tuple[int, StreamBase]] = []
        self._rows: list[FeedRow] = []
        self._claims: dict[tuple[int, str], int] = {}
        self._keys: dict[str, port.RawKey] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._uses: list[tuple[int, bytes]] = []
        self._projections: dict[tuple[str, str], port.Projection | None] = {}
        self._snapshots: dict[int, SnapshotRow] = {}

    def append(self, append: port.Append) -> port.AppendOutcome:
        """Check one append's conditions and take it; on any other outcome than Appended nothing of it is taken."""
        if append.key is not None and (
            used := self._find_key(append.key, ask=self._check_everything)
        ):
            return used
        streams: list[StreamRow | None] = []
        refused = self._check_versions(append, streams) or self._check_claims(
            append, streams, everything=self._check_everything
        )
        if isinstance(refused, port.ClaimTaken) and not self._check_everything:
            # A claim of an earlier write may be taken too; it comes first, and was left to the server.
            refused = self._check_claims(append, streams, everything=True)
        if refused is not None:
            # The key comes first, and was left to the server.
            key = append.key if not self._check_everything else None
            return (self._find_key(key, ask=True) if key is not None else None) or refused
        begin = self._position + 1
        for write, stream in zip(append.writes, streams, strict=True):
            self._add_write(write, stream)
        for row in append.projections:
            self._projections[row.kind, row.id] = row
        if append.drops or append.snapshots or append.key is not None:
            self._add_derived(append, begin)
        return port.Appended(begin, self._position)

    def _check_versions(
        self, append: port.Append, streams: list[StreamRow | None]
    ) -> port.Stale | None:
        """Return the first stream that is at another version than expected; note those that are not."""
        for write in append.writes:
            # What is to be new is looked for by the server.
            stream = self._find_stream(
                write.stream, ask=self._check_everything or write.expected > 0
            )
            actual = stream.version if stream is not None else 0
            if actual != write.expected:
                return port.Stale(write.stream, actual)
            streams.append(stream)
        return None

    def _check_claims(
        self, append: port.Append, streams: Sequence[StreamRow | None], *, everything: bool
    ) -> port.ClaimTaken | None:
        for write, stream in zip(append.writes, streams, strict=True):
            if len(write.claims) == 1 and not everything and self._is_first_write(write, stream):
                continue
            if write.claims and (
                taken := self._find_taken_claim(write, stream, everything=everything)
            ):
                return taken
        return None

    def _is_first_write(self, write: port.StreamWrite, stream: StreamRow | None) -> bool:
        """Whether a write is the first here to a stream without bases: what that has claimed so far only the server knows."""
        if write.base is not None or (stream is not None and stream.bases):
            return False
        return write.stream not in self.streams

    @property
    def head_after(self) -> FeedHead:
        """The head that the batch leads to."""
        return FeedHead(self._position, self._link, self.head_before.epoch)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken."""
        return not self._rows

    def build_change(self) -> TenantChange:
        """Return all of it as one change."""
        tenant, rows = self._tenant, self._projections
        put = [row for row in rows.values() if row is not None]
        # Most bring rows, claims and projections only: a generator for each of the others would take as long as those.
        return TenantChange(
            tenant=tenant,
            before=self.head_before,
            after=self.head_after,
            streams=tuple(map(self._new_stream_row, self._new_streams))
            if self._new_streams
            else (),
            bases=tuple(self._bases),
            rows=tuple(self._rows),
            claims=tuple([(*place, version) for place, version in self._claims.items()]),
            keys=tuple([checked_reads.key_row(tenant, used) for used in self._keys.values()]),
            blobs=self._blobs,
            blob_uses=tuple(self._uses),
            projections=tuple(
                [ProjectionRow(row, checked_reads.projection_checksum(tenant, row)) for row in put]
            ),
            drop_projections=tuple([place for place, row in rows.items() if row is None]),
            snapshots=tuple(self._snapshots.values()),
            renames=tuple(self._rebased_streams()) if self._bases else (),
        )

    def _new_stream_row(self, name: str) -> StreamRow:
        stream = self.streams[name]
        mark = checked_reads.stream_checksum(self._tenant, stream)
        return msgspec.structs.replace(stream, bases=(), checksum=mark)

    def _rebased_streams(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield the streams that were there and got a base: the name stays, the mark is another."""
        for number in {number: None for number, _ in self._bases}:
            stream = self._numbered[number]
            if stream.name not in self._new_streams:
                yield number, stream.name, checked_reads.stream_checksum(self._tenant, stream)

    def update_cache(self) -> None:
        """It is there: remember what follows from it."""
        known = self._cached
        known.head = self.head_after
        known.streams |= self.streams
        known.earlier_spans |= self._earlier_spans

    def _find_key(self, key: port.KeyUse, *, ask: bool) -> port.KeyRecord | None:
        used = self._keys.get(key.key)
        if used is None and ask:
            kept = self._driver.key(self._tenant, key.key)
            used = checked_reads.checked_key(self._tenant, kept) if kept else None
        return checked_reads.to_key_record(used) if used else None

    def _find_stream(self, name: str, *, ask: bool) -> StreamRow | None:
        """Return a stream as it is after what was taken so far; None if it is not there, or nobody asked."""
        found = self.streams.get(name) or self._cached.streams.get(name)
        if found is None and ask:
            found = checked_reads.find_stream(self._driver, self._tenant, name)
            if found is not None:
                self._cached.streams[name] = found
        return found

    def _find_taken_claim(
        self, write: port.StreamWrite, stream: StreamRow | None, *, everything: bool
    ) -> port.ClaimTaken | None:
        spans = self._spans_before_write(write, stream)
        found: dict[str, list[tuple[int, int]]] = {}
        # The server tells of a claim in the stretch that is written, not before it.
        if spans and (everything or write.base is not None or len(spans) > 1):
            stretches = [span.stretch for span in spans]
            texts = [text for text, _ in write.claims]
            for stretch, text, version in self._driver.claims(self._tenant, texts, stretches):
                found.setdefault(text, []).append((stretch, version))
        made: dict[str, int] = {}
        for text, index in write.claims:
            places = found.get(text, [])
            for span in spans:
                if version := self._claims.get((span.stretch, text)):
                    places = [*places, (span.stretch, version)]
            if taken := (
                stream_paths.find_claim_version(spans, places) if places else 0
            ) or made.get(text, 0):
                return port.ClaimTaken(write.stream, text, taken)
            made[text] = write.previous_version + index + 1
        return None

    def _spans_before_write(
        self, write: port.StreamWrite, stream: StreamRow | None
    ) -> tuple[Span, ...]:
        """Return what a write goes on from."""
        if write.base is not None:
            return self._base_spans(write.base)[1]
        if stream is None:
            return ()
        last = Span(stream.number, _current_stretch(stream), 1, checked_reads.UNBOUNDED)
        return (*self._spans_before_stretch(stream), last) if stream.bases else (last,)

    def _spans_before_stretch(self, stream: StreamRow) -> tuple[Span, ...]:
        """Return what came before the stretch that a stream with bases is written in."""
        found = self._earlier_spans.get(stream.number) or self._cached.earlier_spans.get(
            stream.number
        )
        if found is None:
            *spans, _ = self._stream_path(stream, stream.version)
            found = self._earlier_spans[stream.number] = tuple(spans)
        return found

    def _base_spans(self, base: tuple[str, int]) -> tuple[int, tuple[Span, ...]]:
        """Return the number of the stream that a base names, and what that is made of there."""
        source = self._find_stream(base[0], ask=True)
        assert source is not None and base[1] <= source.version, (
            "a base names a stream that is there"
        )
        spans = self._stream_path(source, base[1])
        assert stream_paths.last_version(spans) == base[1], "a base names a version that was"
        return source.number, spans

    def _stream_path(self, stream: StreamRow, at: int) -> tuple[Span, ...]:
        find = checked_reads.base_lookup(
            self._driver, self._tenant, *self._numbered.values(), stream
        )
        return stream_paths.resolve_path(stream.number, at, find)

    def _add_write(self, write: port.StreamWrite, stream: StreamRow | None) -> None:
        begin, name = self._position + 1, write.stream
        if stream is None:
            stream = StreamRow(begin, name, write.previous_version + 1, write.previous_version)
            self._new_streams.append(name)
        number, bases = stream.number, stream.bases
        if write.base is not None:
            source, spans = self._base_spans(write.base)
            base = StreamBase(begin, write.previous_version + 1, source, write.base[1])
            self._bases.append((number, base))
            self._earlier_spans[number] = spans
            bases = (*bases, base)
        version = self._add_events(write, number)
        stream = StreamRow(number, name, stream.first, version, bases)
        self.streams[name] = self._numbered[number] = stream
        if write.claims:
            stretch = _current_stretch(stream)
            for text, index in write.claims:
                self._claims[stretch, text] = write.previous_version + index + 1

    def _add_events(self, write: port.StreamWrite, number: int) -> int:
        """Make the rows of a write's events; return the last one's version."""
        position, version, link, name = (
            self._position,
            write.previous_version,
            self._link,
            write.stream,
        )
        random, rows = self._random, self._rows
        for event in write.events:
            position, version, payload = position + 1, version + 1, event.payload
            place = chain.EventAddress(position, number, version)
            header = chain.encode_header(event, place)
            salt = random(chain.SALT_BYTES)
            digest = chain.event_digest(salt, header, payload)
            link = chain.next_link(link, digest, header)
            row = chain.EventRow(place, header, payload, salt, digest, link)
            rows.append(FeedRow(name, row, event.ordinal))
            if event.blobs:
                self._add_blobs(position, event.blobs)
        self._position, self._link = position, link
        return version

    def _add_blobs(self, position: int, contents: Sequence[bytes]) -> None:
        brought = {chain.blob_hash(content): content for content in contents}
        self._blobs |= brought
        self._uses += [(position, hash_) for hash_ in brought]

    def _add_derived(self, append: port.Append, begin: int) -> None:
        for place in append.drops:
            self._projections[place] = None
        for snapshot in append.snapshots:
            stream = self._find_stream(snapshot.stream, ask=True)
            assert stream is not None, "a snapshot is of what was written"
            link = self._link_at(stream, snapshot.version)
            mark = checked_reads.snapshot_checksum(self._tenant, stream.number, snapshot, link)
            self._snapshots[stream.number] = SnapshotRow(snapshot, mark)
        if append.key is not None:
            key, hash_ = append.key.key, append.key.command_hash
            self._keys[key] = port.RawKey(key, hash_, begin, self._position, append.time_us)

    def _link_at(self, stream: StreamRow, version: int) -> bytes:
        place = (stream.number, version)
        for kept in reversed(self._rows):
            if (kept.event.address.stream, kept.event.address.version) == place:
                return kept.event.link
        return checked_reads.event_link(self._driver, self._tenant, stream.number, version)[1]


def _current_stretch(stream: StreamRow) -> int:
    """Return the stretch that a stream is written in."""
    return stream.bases[-1].stretch if stream.bases else stream.number


class DerivedRows(msgspec.Struct, frozen=True):
    """What is derived from one stream or several of a tenant, as rows of a change."""

    claims: list[tuple[int, str, int]] = []
    blob_uses: list[tuple[int, bytes]] = []
    projections: list[ProjectionRow] = []

    def __len__(self) -> int:
        """How many rows it has."""
        return len(self.claims) + len(self.blob_uses) + len(self.projections)

    def extend(self, other: DerivedRows) -> None:
        """Take the rows of another one, too."""
        self.claims.extend(other.claims)
        self.blob_uses.extend(other.blob_uses)
        self.projections.extend(other.projections)


class StreamDerivation:
    """One stream, whose events are gone through once, and what follows from them."""

    def __init__(self, driver: Driver, tenant: str, stream: StreamRow, name: str) -> None:
        self._driver = driver
        self._tenant = tenant
        self._stream = stream
        self._name = name
        self._positions = array("Q")

    def events(self, rows: Iterable[FeedRow] | None = None) -> Iterator[port.StoredEvent]:
        """Yield the stream's own events, or those that are given in their place."""
        if rows is None:
            rows = checked_reads.own_events(self._driver, self._tenant, self._stream)
        for kept in rows:
            self._positions.append(kept.event.address.position)
            yield checked_reads.checked_event(self._tenant, kept, self._name)

    def rows(self, derived: port.DerivedState) -> DerivedRows:
        """Return what was derived from these events as rows."""
        stream, positions = self._stream, self._positions
        return DerivedRows(
            stream_paths.claims_by_stretch(stream.number, stream.bases, derived.claims),
            [(positions[v - stream.first], hash_) for hash_, v in derived.blobs],
            [
                ProjectionRow(p, checked_reads.projection_checksum(self._tenant, p))
                for p in derived.projections
            ],
        )


class InFlightCommit:
    """One commit on its way: what its appends come to if it is taken, and what each tenant brings to it."""

    __slots__ = ("builders", "indexes", "outcomes")

    def __init__(self) -> None:
        self.builders: dict[str, ChangeBuilder] = {}
        self.indexes: dict[str, list[int]] = {}
        self.outcomes: list[port.AppendOutcome] = []


class ServerPipeline:
    """Commits of one turn on their way over one line."""

    def __init__(
        self,
        driver: Driver,
        line: ChangePipeline,
        *,
        known: TenantCache,
        acknowledged: LossDetector,
        news: CommitNotifications,
        random: Callable[[int], bytes],
    ) -> None:
        self._driver = driver
        self._pipeline = line
        self._tenant_cache = known
        self._loss_detector = acknowledged
        self._notifications = news
        self._random = random
        self._in_flight: deque[InFlightCommit] = deque()
        self._refused_tenants: set[str] = set()
        """Tenants of which a commit was not taken: neither are those behind it, and nobody else is to blame for that."""

    def __enter__(self) -> ServerPipeline:
        """Take the line."""
        self._pipeline.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the line back. What is still on its way may be there or not."""
        try:
            for commit in self._in_flight:
                self._tenant_cache.invalidate(commit.builders)
        finally:
            self._pipeline.__exit__(kind, error, trace)

    def send(self, appends: Sequence[port.Append]) -> bool:
        """Send appends, if all that is known lets each of them be appended, and nobody else writes to their tenants."""
        commit = InFlightCommit()
        for at, append in enumerate(appends):
            tenant = append.tenant
            batch = commit.builders.get(tenant)
            if batch is None:
                if self._tenant_cache.is_contended or tenant in self._refused_tenants:
                    return False
                known = self._tenant_cache.get(tenant)
                if known.newer_head is not None:
                    return False
                batch = ChangeBuilder(self._driver, tenant, known, self._random, careful=False)
                commit.builders[tenant], commit.indexes[tenant] = batch, []
            outcome = batch.append(append)
            if not isinstance(outcome, port.Appended):
                return False
            commit.outcomes.append(outcome)
            commit.indexes[tenant].append(at)
        # From here on it may be there, whatever happens.
        self._in_flight.append(commit)
        if not self._pipeline.send([batch.build_change() for batch in commit.builders.values()]):
            self._in_flight.pop()
            return False
        for batch in commit.builders.values():
            # What is known may be wrong: the server compares.
            batch.update_cache()
        return True

    def receive(self) -> list[port.AppendOutcome]:
        """Return the outcomes of the first commit."""
        verdicts = self._pipeline.receive()
        commit = self._in_flight.popleft()
        for (tenant, batch), verdict in zip(commit.builders.items(), verdicts, strict=True):
            if isinstance(verdict, HeadMoved | DuplicateRow):
                if isinstance(verdict, HeadMoved) and tenant not in self._refused_tenants:
                    self._tenant_cache.head_moved(tenant)
                    self._notifications.start_listener()
                else:
                    self._tenant_cache.invalidate((tenant,))
                self._refused_tenants.add(tenant)
                for at in commit.indexes[tenant]:
                    commit.outcomes[at] = port.Stale("", batch.head_before.position)
                continue
            self._loss_detector.record(tenant, batch.head_after)
            if verdict is not None:
                self._tenant_cache.mark_contended(tenant)
                self._notifications.start_listener()
        self._notifications.notify(commit.builders)
        return commit.outcomes

    def has_answer(self) -> bool:
        """Whether something of an answer is there."""
        return self._pipeline.has_answer()

    def fileno(self) -> int:
        """Return what can be polled for an answer."""
        return self._pipeline.fileno()


_conforms: type[port.StorePipeline] = ServerPipeline
