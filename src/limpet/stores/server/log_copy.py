"""Copying a log exactly as stored: pages read from one store, and written to another.

`LogCopyReader` returns pages of checked events. `ServerCopyTarget` turns a page into one change.
Nothing is derived; a rebuild must follow before the copy is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from limpet.stores import chain, store_copy
from limpet.stores.port import RawEvent, RawKey
from limpet.stores.server import checked_reads
from limpet.stores.server.driver import (
    Driver,
    EventErasure,
    FeedHead,
    FeedRow,
    StreamRow,
    TenantChange,
    contention_error,
)
from limpet.stores.stream_paths import StreamBase

STREAMS_MAX = 10_000
"""Streams that are cached from one page to the next."""

COPY_TRIES_MAX = 8
"""How often a page is read again because events were erased meanwhile."""

_PAGE_ROWS = 500

replace = msgspec.structs.replace


class LogCopyReader:
    """Reads pages of a log as stored. Caches the bases of streams, which never change once written."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._streams: dict[tuple[str, int], StreamRow] = {}

    def page(self, tenant: str, after: int, limit: int) -> list[RawEvent]:
        """Return a tenant's events after a position, each checked, all as of one moment. Raises Conflict if erasures keep coming."""
        epoch = self._driver.head(tenant).epoch
        for _ in range(COPY_TRIES_MAX):
            rows = self._driver.feed(tenant, after=after, limit=limit)
            uses = self._blob_uses(tenant, rows)
            # An erasure between the two reads would show in one of them only.
            before, epoch = epoch, self._driver.head(tenant).epoch
            if before == epoch:
                checked_reads.check_positions(rows, after)
                return [self._raw_event(tenant, row, uses) for row in rows]
        raise contention_error()

    def _blob_uses(self, tenant: str, rows: Sequence[FeedRow]) -> dict[int, list[bytes]]:
        used: dict[int, list[bytes]] = {}
        if rows:
            first, last = rows[0].event.address.position, rows[-1].event.address.position
            for position, hash_ in checked_reads.blob_uses(self._driver, tenant, after=first - 1, until=last):
                used.setdefault(position, []).append(hash_)
        return used

    def _raw_event(self, tenant: str, row: FeedRow, uses: Mapping[int, list[bytes]]) -> RawEvent:
        checked_reads.checked_event(tenant, row, row.stream)
        event, place, erasure = row.event, row.event.address, row.erasure
        if erasure is not None and event.payload is not None:
            raise chain.damaged_event_error(place, "it is marked as erased, but has its content")
        return RawEvent(
            stream=row.stream, position=place.position, number=place.stream, version=place.version,
            header=event.header, payload=event.payload, salt=event.salt, digest=event.digest, link=event.link,
            base=self._base(tenant, place), blobs=tuple(sorted(uses.get(place.position, ()))),
            erased=_erased_fields(tenant, place.position, erasure) if erasure is not None else None,
        )  # fmt: skip

    def _base(self, tenant: str, place: chain.EventAddress) -> tuple[int, int] | None:
        stream = self._streams.get((tenant, place.stream))
        if stream is None or stream.version < place.version:
            stream = checked_reads.find_stream(self._driver, tenant, place.stream)
            if stream is None:
                raise checked_reads.unnamed_stream_error(place.stream)
            if len(self._streams) >= STREAMS_MAX:
                self._streams.clear()
            self._streams[tenant, place.stream] = stream
        bases = (base for base in stream.bases if base.stretch == place.position)
        return next(((base.source, base.version) for base in bases), None)


def _erased_fields(tenant: str, position: int, erasure: EventErasure) -> tuple[int, int, bytes | None]:
    redaction = checked_reads.checked_redaction(tenant, position, erasure)
    return erasure.notice, erasure.cause, redaction


class ServerCopyTarget:
    """The tenant that a page is pasted into, as of its present head. `plan_page` compares the page with it."""

    def __init__(self, driver: Driver, tenant: str, keys: Sequence[RawKey]) -> None:
        self._driver = driver
        self._tenant = tenant
        self._head = driver.head(tenant)
        self._streams: dict[int, StreamRow | None] = {}
        self._keys = self._load_keys(sorted(key.key for key in keys))

    def _load_keys(self, names: Sequence[str]) -> dict[str, RawKey]:
        """Return the stored keys from the first of the names to the last. Reads pages: the names are many and dense."""
        stored: dict[str, RawKey] = {}
        if names:
            first = self._driver.key(self._tenant, names[0])
            page = [first] if first is not None else []
            after = names[0]
            while True:
                stored |= {each.key: checked_reads.checked_key(self._tenant, each) for each in page}
                page = self._driver.keys(self._tenant, after=after, limit=_PAGE_ROWS)
                if not page or page[0].key > names[-1]:
                    break
                after = page[-1].key
        return stored

    def head(self) -> tuple[int, bytes]:
        """Return position and link of the last event."""
        return self._head.position, self._head.link

    def stream_name_and_version(self, number: int) -> tuple[str, int] | None:
        """Return name and version of a stream."""
        if number not in self._streams:
            self._streams[number] = checked_reads.find_stream(self._driver, self._tenant, number)
        stream = self._streams[number]
        return (stream.name, stream.version) if stream is not None else None

    def stream_number(self, name: str) -> int:
        """Return the number of the stream that has a name; 0 if none has."""
        stream = checked_reads.find_stream(self._driver, self._tenant, name)
        return stream.number if stream is not None else 0

    def link_at(self, position: int) -> bytes:
        """Return the link of an event; empty if there is none."""
        rows = self._driver.feed(self._tenant, after=position - 1, limit=1)
        return rows[0].event.link if rows else b""

    def missing_blobs(self, hashes: Collection[bytes]) -> Collection[bytes]:
        """Return those of the blobs that are not stored."""
        stored = self._driver.blobs(self._tenant, hashes) if hashes else {}
        return [hash_ for hash_ in hashes if hash_ not in stored]

    def find_raw_key(self, key: str) -> RawKey | None:
        """Return the stored use of an idempotency key."""
        return self._keys.get(key)

    def build_change(self, plan: store_copy.CopyPlan) -> TenantChange:
        """Return the change that stores the page."""
        again = {raw.position for raw in plan.newly_erased}
        numbers = tuple({raw.number: None for raw in plan.newly_erased})
        left = list(self._remaining_uses(again, numbers)) if again else []
        bases = [
            (raw.number, StreamBase(raw.position, raw.version, *raw.base))
            for raw in plan.new_events
            if raw.base is not None
        ]
        added = [(raw.position, hash_) for raw in (*plan.newly_erased, *plan.new_events) for hash_ in raw.blobs]
        return TenantChange(
            tenant=self._tenant,
            before=self._head,
            after=FeedHead(*plan.head, self._head.epoch + 1),
            streams=tuple(self._new_streams(plan, bases)),
            bases=tuple(bases),
            rows=tuple(self._feed_row(raw, plan) for raw in plan.new_events),
            keys=tuple(checked_reads.key_row(self._tenant, used) for used in plan.new_keys),
            blobs=plan.blobs,
            blob_uses=(*left, *added),
            erasures=tuple((raw.position, self._event_erasure(raw)) for raw in plan.newly_erased),
            renames=tuple(self._renamed_streams(plan, bases)),
            drop_blob_uses=numbers,
            drop_keys=tuple(self._driver.keys_covering(self._tenant, again)) if again else (),
            drop_blobs=tuple(self._unused_blobs(again, {hash_ for _, hash_ in added})),
            pending_work=b"" if again else None,
        )

    def _new_streams(self, plan: store_copy.CopyPlan, bases: Sequence[tuple[int, StreamBase]]) -> Iterator[StreamRow]:
        last = {raw.number: raw.version for raw in plan.new_events}
        for raw in plan.new_events:
            if raw.number == raw.position:
                name = plan.new_streams[raw.number]
                own = tuple(base for number, base in bases if number == raw.number)
                row = StreamRow(raw.number, name, raw.version, last[raw.number], own)
                yield replace(row, bases=(), checksum=checked_reads.stream_checksum(self._tenant, row))

    def _renamed_streams(
        self, plan: store_copy.CopyPlan, bases: Sequence[tuple[int, StreamBase]]
    ) -> Iterator[tuple[int, str, bytes]]:
        """Yield existing streams that get a name or a base."""
        for number in dict.fromkeys((*plan.renamed_streams, *(number for number, _ in bases))):
            self.stream_name_and_version(number)
            stream = self._streams[number]
            if stream is not None:
                name = plan.renamed_streams.get(number, stream.name)
                own = (*stream.bases, *(base for each, base in bases if each == number))
                row = replace(stream, name=name, bases=own)
                yield number, name, checked_reads.stream_checksum(self._tenant, row)

    def _feed_row(self, raw: RawEvent, plan: store_copy.CopyPlan) -> FeedRow:
        name = plan.new_streams.get(raw.number) or plan.renamed_streams.get(raw.number)
        if name is None and (stored := self.stream_name_and_version(raw.number)) is not None:
            name = stored[0]
        ordinal = chain.kind_and_ordinal(raw.header)[1]
        erasure = self._event_erasure(raw) if raw.erased is not None else None
        return FeedRow(name or raw.stream, store_copy.raw_event_row(raw), ordinal, erasure)

    def _event_erasure(self, raw: RawEvent) -> EventErasure:
        assert raw.erased is not None, "the plan has read it"
        return checked_reads.event_erasure(self._tenant, raw.position, *raw.erased)

    def _remaining_uses(self, again: set[int], numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the blob uses of the other events of streams with newly erased ones."""
        own: set[int] = set()
        for number in numbers:
            stream = self._streams[number]
            assert stream is not None, "the plan has read it"
            own |= {row.event.address.position for row in checked_reads.own_events(self._driver, self._tenant, stream)}
        for position, hash_ in self._every_blob_use():
            if position in own and position not in again:
                yield position, hash_

    def _unused_blobs(self, again: set[int], needed: set[bytes]) -> set[bytes]:
        """Return the blobs that only the newly erased events refer to. Walks all uses: such a page is rare."""
        erased: set[bytes] = set()
        others: set[bytes] = set()
        if again:
            for position, hash_ in self._every_blob_use():
                (erased if position in again else others).add(hash_)
        return erased - others - needed

    def _every_blob_use(self) -> Iterator[tuple[int, bytes]]:
        return checked_reads.blob_uses(self._driver, self._tenant, until=self._head.position)
