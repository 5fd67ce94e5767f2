"""Changes to a tenant: built from appends, and sent to the driver one by one or in a pipeline.

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

from limpet.stores import chain, port
from limpet.stores.chain import Span, StreamBase
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
from limpet.stores.server.tenant_cache import CachedTenant, TenantCache


class ChangeBuilder:
    """Turns appends of one tenant into one change. `update_cache` is called once the change is applied or sent.

    `careful`: keys, claims and new streams are read before the change, because the server has refused it once.
    """

    def __init__(
        self, driver: Driver, tenant: str, cached: CachedTenant, random: Callable[[int], bytes], *, careful: bool
    ) -> None:
        self._driver = driver
        self._tenant = tenant
        self._cached = cached
        self._random = random
        self._check_everything = careful
        self.head_before = cached.head
        self._position, self._link = cached.head.position, cached.head.link
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
        """Check one append's conditions and add it to the change. Any outcome but Appended adds nothing."""
        if append.key is not None and (used := self._find_key(append.key, ask=self._check_everything)):
            return used
        streams: list[StreamRow | None] = []
        refused = self._check_versions(append, streams) or self._check_claims(
            append, streams, everything=self._check_everything
        )
        if isinstance(refused, port.ClaimTaken) and not self._check_everything:
            # A claim of an earlier write may be taken too; it comes first, and was left to the server.
            refused = self._check_claims(append, streams, everything=True)
        if refused is not None:
            # A replay takes precedence over a refusal, and the key has not been read yet.
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

    def _check_versions(self, append: port.Append, streams: list[StreamRow | None]) -> port.Stale | None:
        """Return the first stream at another version than expected; append the streams of the others to `streams`."""
        for write in append.writes:
            # Whether a new stream exists already is checked by the server.
            stream = self._find_stream(write.stream, ask=self._check_everything or write.expected > 0)
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
            if write.claims and (taken := self._find_taken_claim(write, stream, everything=everything)):
                return taken
        return None

    def _is_first_write(self, write: port.StreamWrite, stream: StreamRow | None) -> bool:
        """Whether a write is the first of this change to a stream without bases: the server alone checks its claims."""
        if write.base is not None or (stream is not None and stream.bases):
            return False
        return write.stream not in self.streams

    @property
    def head_after(self) -> FeedHead:
        return FeedHead(self._position, self._link, self.head_before.epoch)

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def build_change(self) -> TenantChange:
        tenant, rows = self._tenant, self._projections
        put = [row for row in rows.values() if row is not None]
        # Most changes have rows, claims and projections only: generators for the rest would take as long again.
        return TenantChange(
            tenant=tenant,
            before=self.head_before,
            after=self.head_after,
            streams=tuple(map(self._new_stream_row, self._new_streams)) if self._new_streams else (),
            bases=tuple(self._bases),
            rows=tuple(self._rows),
            claims=tuple([(*claim, version) for claim, version in self._claims.items()]),
            keys=tuple([checked_reads.key_row(tenant, used) for used in self._keys.values()]),
            blobs=self._blobs,
            blob_uses=tuple(self._uses),
            projections=tuple([ProjectionRow(row, checked_reads.projection_checksum(tenant, row)) for row in put]),
            drop_projections=tuple([row_id for row_id, row in rows.items() if row is None]),
            snapshots=tuple(self._snapshots.values()),
            renames=tuple(self._rebased_streams()) if self._bases else (),
        )

    def _new_stream_row(self, name: str) -> StreamRow:
        stream = self.streams[name]
        checksum = checked_reads.stream_checksum(self._tenant, stream)
        return msgspec.structs.replace(stream, bases=(), checksum=checksum)

    def _rebased_streams(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield existing streams that got a base: the name stays, the checksum changes."""
        for number in {number: None for number, _ in self._bases}:
            stream = self._numbered[number]
            if stream.name not in self._new_streams:
                yield number, stream.name, checked_reads.stream_checksum(self._tenant, stream)

    def update_cache(self) -> None:
        cached = self._cached
        cached.head = self.head_after
        cached.streams |= self.streams
        cached.earlier_spans |= self._earlier_spans

    def _find_key(self, key: port.KeyUse, *, ask: bool) -> port.KeyRecord | None:
        used = self._keys.get(key.key)
        if used is None and ask:
            row = self._driver.key(self._tenant, key.key)
            used = checked_reads.checked_key(self._tenant, row) if row else None
        return checked_reads.to_key_record(used) if used else None

    def _find_stream(self, name: str, *, ask: bool) -> StreamRow | None:
        """Return a stream as it is after the appends so far; None if it does not exist, or is not cached and `ask` is False."""
        stream = self.streams.get(name) or self._cached.streams.get(name)
        if stream is None and ask:
            stream = checked_reads.find_stream(self._driver, self._tenant, name)
            if stream is not None:
                self._cached.streams[name] = stream
        return stream

    def _find_taken_claim(
        self, write: port.StreamWrite, stream: StreamRow | None, *, everything: bool
    ) -> port.ClaimTaken | None:
        spans = self._spans_before_write(write, stream)
        found: dict[str, list[tuple[int, int]]] = {}
        # The server checks claims of the stretch that is written, not of the ones before it.
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
            if taken := (chain.find_claim_version(spans, places) if places else 0) or made.get(text, 0):
                return port.ClaimTaken(write.stream, text, taken)
            made[text] = chain.previous_version(write) + index + 1
        return None

    def _spans_before_write(self, write: port.StreamWrite, stream: StreamRow | None) -> tuple[Span, ...]:
        if write.base is not None:
            return self._base_spans(write.base)[1]
        if stream is None:
            return ()
        last = Span(stream.number, _current_stretch(stream), 1, chain.UNBOUNDED)
        return (*self._spans_before_stretch(stream), last) if stream.bases else (last,)

    def _spans_before_stretch(self, stream: StreamRow) -> tuple[Span, ...]:
        """Return the spans before the newest stretch of a stream with bases."""
        found = self._earlier_spans.get(stream.number) or self._cached.earlier_spans.get(stream.number)
        if found is None:
            *spans, _ = self._stream_path(stream, stream.version)
            found = self._earlier_spans[stream.number] = tuple(spans)
        return found

    def _base_spans(self, base: tuple[str, int]) -> tuple[int, tuple[Span, ...]]:
        """Return the number of a base's stream, and the spans of that stream up to the base's version."""
        source = self._find_stream(base[0], ask=True)
        assert source is not None and base[1] <= source.version, "a base names an existing stream"
        spans = self._stream_path(source, base[1])
        assert chain.last_version(spans) == base[1], "a base names an existing version"
        return source.number, spans

    def _stream_path(self, stream: StreamRow, at: int) -> tuple[Span, ...]:
        find = checked_reads.base_lookup(self._driver, self._tenant, *self._numbered.values(), stream)
        return chain.resolve_path(stream.number, at, find)

    def _add_write(self, write: port.StreamWrite, stream: StreamRow | None) -> None:
        begin, name = self._position + 1, write.stream
        if stream is None:
            stream = StreamRow(begin, name, chain.previous_version(write) + 1, chain.previous_version(write))
            self._new_streams.append(name)
        number, bases = stream.number, stream.bases
        if write.base is not None:
            source, spans = self._base_spans(write.base)
            base = StreamBase(begin, chain.previous_version(write) + 1, source, write.base[1])
            self._bases.append((number, base))
            self._earlier_spans[number] = spans
            bases = (*bases, base)
        version = self._add_events(write, number)
        stream = StreamRow(number, name, stream.first, version, bases)
        self.streams[name] = self._numbered[number] = stream
        if write.claims:
            stretch = _current_stretch(stream)
            for text, index in write.claims:
                self._claims[stretch, text] = chain.previous_version(write) + index + 1

    def _add_events(self, write: port.StreamWrite, number: int) -> int:
        """Add the rows of a write's events; return the last one's version."""
        position, version, link, name = (self._position, chain.previous_version(write), self._link, write.stream)
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
        blobs = {chain.blob_hash(content): content for content in contents}
        self._blobs |= blobs
        self._uses += [(position, hash_) for hash_ in blobs]

    def _add_derived(self, append: port.Append, begin: int) -> None:
        for row_id in append.drops:
            self._projections[row_id] = None
        for snapshot in append.snapshots:
            stream = self._find_stream(snapshot.stream, ask=True)
            assert stream is not None, "a snapshot is of an existing stream"
            link = self._link_at(stream, snapshot.version)
            checksum = checked_reads.snapshot_checksum(self._tenant, stream.number, snapshot, link)
            self._snapshots[stream.number] = SnapshotRow(snapshot, checksum)
        if append.key is not None:
            key, hash_ = append.key.key, append.key.command_hash
            self._keys[key] = port.RawKey(key, hash_, begin, self._position, append.time_us)

    def _link_at(self, stream: StreamRow, version: int) -> bytes:
        place = (stream.number, version)
        for row in reversed(self._rows):
            if (row.event.address.stream, row.event.address.version) == place:
                return row.event.link
        return checked_reads.event_link(self._driver, self._tenant, stream.number, version)[1]


def _current_stretch(stream: StreamRow) -> int:
    return stream.bases[-1].stretch if stream.bases else stream.number


class DerivedRows(msgspec.Struct, frozen=True):
    """Rows of a change that are derived from one or more streams of a tenant."""

    claims: list[tuple[int, str, int]] = []
    blob_uses: list[tuple[int, bytes]] = []
    projections: list[ProjectionRow] = []

    def __len__(self) -> int:
        return len(self.claims) + len(self.blob_uses) + len(self.projections)

    def extend(self, other: DerivedRows) -> None:
        self.claims.extend(other.claims)
        self.blob_uses.extend(other.blob_uses)
        self.projections.extend(other.projections)


class StreamDerivation:
    """Derives the rows of one stream. Its events are iterated once, before `rows`."""

    def __init__(self, driver: Driver, tenant: str, stream: StreamRow) -> None:
        self._driver = driver
        self._tenant = tenant
        self._stream = stream
        self._positions = array("Q")

    def events(self, rows: Iterable[FeedRow] | None = None) -> Iterator[port.StoredEvent]:
        """Yield the stream's own events, or those of the given rows."""
        if rows is None:
            rows = checked_reads.own_events(self._driver, self._tenant, self._stream)
        for row in rows:
            self._positions.append(row.event.address.position)
            yield checked_reads.checked_event(self._tenant, row, self._stream.name)

    def rows(self, derived: port.DerivedState) -> DerivedRows:
        """Return the derived state of these events as rows."""
        stream, positions = self._stream, self._positions
        return DerivedRows(
            chain.claims_by_stretch(stream.number, stream.bases, derived.claims),
            [(positions[v - stream.first], hash_) for hash_, v in derived.blobs],
            [ProjectionRow(p, checked_reads.projection_checksum(self._tenant, p)) for p in derived.projections],
        )


class InFlightCommit(msgspec.Struct):
    """A commit that was sent and not answered: its outcomes if it is applied, and its builders and indexes by tenant."""

    builders: dict[str, ChangeBuilder] = {}
    indexes: dict[str, list[int]] = {}
    outcomes: list[port.AppendOutcome] = []


class ServerPipeline:
    """Commits of one batch in flight over one connection. The caller holds the store's write lock throughout."""

    def __init__(
        self,
        driver: Driver,
        pipeline: ChangePipeline,
        tenant_cache: TenantCache,
        notifications: CommitNotifications,
        random: Callable[[int], bytes],
    ) -> None:
        self._driver = driver
        self._pipeline = pipeline
        self.has_answer, self.fileno = pipeline.has_answer, pipeline.fileno
        self._tenant_cache = tenant_cache
        self._notifications = notifications
        self._random = random
        self._in_flight: deque[InFlightCommit] = deque()
        self._refused_tenants: set[str] = set()
        """Tenants with a refused commit. The server refuses the later ones too: that is no sign of another writer."""

    def __enter__(self) -> ServerPipeline:
        self._pipeline.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the connection back. Commits still in flight may be applied or not."""
        try:
            for commit in self._in_flight:
                self._tenant_cache.invalidate(commit.builders)
        finally:
            self._pipeline.__exit__(kind, error, trace)

    def send(self, appends: Sequence[port.Append]) -> bool:
        """Send appends as one commit; return False, with nothing sent, if they need `commit`.

        That is so if the cache refuses an append, or if another process writes to one of the tenants.
        """
        commit = InFlightCommit()
        for at, append in enumerate(appends):
            tenant = append.tenant
            builder = commit.builders.get(tenant)
            if builder is None:
                if self._tenant_cache.is_contended or tenant in self._refused_tenants:
                    return False
                cached = self._tenant_cache.get(tenant)
                if cached.newer_head is not None:
                    return False
                builder = ChangeBuilder(self._driver, tenant, cached, self._random, careful=False)
                commit.builders[tenant], commit.indexes[tenant] = builder, []
            outcome = builder.append(append)
            if not isinstance(outcome, port.Appended):
                return False
            commit.outcomes.append(outcome)
            commit.indexes[tenant].append(at)
        # Appended before the send: after an interrupt the change may have reached the server.
        self._in_flight.append(commit)
        if not self._pipeline.send([each.build_change() for each in commit.builders.values()]):
            self._in_flight.pop()
            return False
        for builder in commit.builders.values():
            # The cache runs ahead of the answer. If the commit is refused, so are those built on it.
            builder.update_cache()
        return True

    def receive(self) -> list[port.AppendOutcome]:
        results = self._pipeline.receive()
        commit = self._in_flight.popleft()
        for (tenant, builder), result in zip(commit.builders.items(), results, strict=True):
            if isinstance(result, HeadMoved | DuplicateRow):
                if isinstance(result, HeadMoved) and tenant not in self._refused_tenants:
                    self._tenant_cache.head_moved(tenant)
                else:
                    self._tenant_cache.invalidate((tenant,))
                self._refused_tenants.add(tenant)
                for at in commit.indexes[tenant]:
                    commit.outcomes[at] = port.Stale("", builder.head_before.position)
            else:
                self._tenant_cache.change_applied(tenant, builder.head_after, result)
        self._notifications.notify(commit.builders)
        return commit.outcomes


_conforms: type[port.StorePipeline] = ServerPipeline
