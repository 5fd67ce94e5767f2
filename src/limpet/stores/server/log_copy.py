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
"""Streams that are remembered from one page to the next."""

COPY_TRIES_MAX = 8
"""How often a page is read again because something was erased meanwhile."""

_PAGE_ROWS = 500

replace = msgspec.structs.replace


class LogCopyReader:
    """Pages of what is kept. What a stream goes on from is remembered: that never changes once it is written."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._streams: dict[tuple[str, int], StreamRow] = {}

    def page(self, tenant: str, after: int, limit: int) -> list[RawEvent]:
        """Return a tenant's events after a position, each checked, as they were at one moment."""
        epoch = self._driver.head(tenant).epoch
        for _ in range(COPY_TRIES_MAX):
            found = self._driver.feed(tenant, after=after, limit=limit)
            uses = self._blob_uses(tenant, found)
            # What was erased in between may be in one of them only.
            before, epoch = epoch, self._driver.head(tenant).epoch
            if before == epoch:
                checked_reads.check_positions(found, after)
                return [self._raw_event(tenant, kept, uses) for kept in found]
        raise contention_error()

    def _blob_uses(self, tenant: str, found: Sequence[FeedRow]) -> dict[int, list[bytes]]:
        used: dict[int, list[bytes]] = {}
        if found:
            first, last = found[0].event.address.position, found[-1].event.address.position
            for position, hash_ in blob_uses(self._driver, tenant, first - 1, last):
                used.setdefault(position, []).append(hash_)
        return used

    def _raw_event(self, tenant: str, kept: FeedRow, uses: Mapping[int, list[bytes]]) -> RawEvent:
        checked_reads.checked_event(tenant, kept, kept.stream)
        row, place, blank = kept.event, kept.event.address, kept.erasure
        if blank is not None and row.payload is not None:
            raise chain.damaged_event_error(place, "it is said to be erased, and is not")
        return RawEvent(
            stream=kept.stream, position=place.position, number=place.stream, version=place.version,
            header=row.header, payload=row.payload, salt=row.salt, digest=row.digest, link=row.link,
            base=self._base(tenant, place), blobs=tuple(sorted(uses.get(place.position, ()))),
            erased=_erased_fields(tenant, place.position, blank) if blank is not None else None,
        )  # fmt: skip

    def _base(self, tenant: str, place: chain.EventAddress) -> tuple[int, int] | None:
        known = self._streams.get((tenant, place.stream))
        if known is None or known.version < place.version:
            known = checked_reads.find_stream(self._driver, tenant, place.stream)
            if known is None:
                raise checked_reads.unnamed_stream_error(place.stream)
            if len(self._streams) >= STREAMS_MAX:
                self._streams.clear()
            self._streams[tenant, place.stream] = known
        based = (base for base in known.bases if base.stretch == place.position)
        return next(((base.source, base.version) for base in based), None)


def _erased_fields(
    tenant: str, position: int, blank: EventErasure
) -> tuple[int, int, bytes | None]:
    return blank.notice, blank.cause, checked_reads.checked_redaction(tenant, position, blank)


def blob_uses(driver: Driver, tenant: str, after: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield uses of blobs by positions after one and up to another."""
    while page := driver.blob_uses(tenant, after=after, limit=_PAGE_ROWS):
        for position, hash_ in page:
            if position > last:
                return
            yield position, hash_
        after = page[-1][0]


class ServerCopyTarget:
    """One page on its way into the log of a tenant, made for the head that it has now; what `fit` compares with."""

    def __init__(self, driver: Driver, tenant: str, keys: Sequence[RawKey]) -> None:
        self._driver = driver
        self._tenant = tenant
        self._head = driver.head(tenant)
        self._streams: dict[int, StreamRow | None] = {}
        self._keys = self._load_keys(sorted(key.key for key in keys))

    def _load_keys(self, names: Sequence[str]) -> dict[str, RawKey]:
        """Return the keys that are there, from the first of these to the last."""
        found: dict[str, RawKey] = {}
        if names:
            first = self._driver.key(self._tenant, names[0])
            page = [first] if first is not None else []
            after = names[0]
            while True:
                found |= {each.key: checked_reads.checked_key(self._tenant, each) for each in page}
                page = self._driver.keys(self._tenant, after=after, limit=_PAGE_ROWS)
                if not page or page[0].key > names[-1]:
                    break
                after = page[-1].key
        return found

    def head(self) -> tuple[int, bytes]:
        """Return position and link of the last event."""
        return self._head.position, self._head.link

    def stream_name_and_version(self, number: int) -> tuple[str, int] | None:
        """Return name and version of a stream."""
        if number not in self._streams:
            self._streams[number] = checked_reads.find_stream(self._driver, self._tenant, number)
        found = self._streams[number]
        return (found.name, found.version) if found is not None else None

    def stream_number(self, name: str) -> int:
        """Return the number of the stream that has a name."""
        found = checked_reads.find_stream(self._driver, self._tenant, name)
        return found.number if found is not None else 0

    def link_at(self, position: int) -> bytes:
        """Return the link of an event."""
        found = self._driver.feed(self._tenant, after=position - 1, limit=1)
        return found[0].event.link if found else b""

    def missing_blobs(self, hashes: Collection[bytes]) -> Collection[bytes]:
        """Return those of the blobs that are not there."""
        there = self._driver.blobs(self._tenant, hashes) if hashes else {}
        return [hash_ for hash_ in hashes if hash_ not in there]

    def find_raw_key(self, key: str) -> RawKey | None:
        """Return what an idempotency key was used for."""
        return self._keys.get(key)

    def build_change(self, fit: store_copy.CopyPlan) -> TenantChange:
        """Return the change that keeps what fits."""
        again = {raw.position for raw in fit.newly_erased}
        numbers = tuple({raw.number: None for raw in fit.newly_erased})
        left = list(self._remaining_uses(again, numbers)) if again else []
        bases = [
            (raw.number, StreamBase(raw.position, raw.version, *raw.base))
            for raw in fit.new_events
            if raw.base is not None
        ]
        added = [
            (raw.position, hash_)
            for raw in (*fit.newly_erased, *fit.new_events)
            for hash_ in raw.blobs
        ]
        return TenantChange(
            tenant=self._tenant,
            before=self._head,
            after=FeedHead(*fit.head, self._head.epoch + 1),
            streams=tuple(self._new_streams(fit, bases)),
            bases=tuple(bases),
            rows=tuple(self._feed_row(raw, fit) for raw in fit.new_events),
            keys=tuple(checked_reads.key_row(self._tenant, used) for used in fit.new_keys),
            blobs=fit.blobs,
            blob_uses=(*left, *added),
            erasures=tuple((raw.position, self._event_erasure(raw)) for raw in fit.newly_erased),
            renames=tuple(self._renamed_streams(fit, bases)),
            drop_blob_uses=numbers,
            drop_keys=tuple(self._driver.keys_covering(self._tenant, again)) if again else (),
            drop_blobs=tuple(self._unused_blobs(again, {hash_ for _, hash_ in added})),
            pending_work=b"" if again else None,
        )

    def _new_streams(
        self, fit: store_copy.CopyPlan, bases: Sequence[tuple[int, StreamBase]]
    ) -> Iterator[StreamRow]:
        last = {raw.number: raw.version for raw in fit.new_events}
        for raw in fit.new_events:
            if raw.number == raw.position:
                name = fit.new_streams[raw.number]
                own = tuple(base for number, base in bases if number == raw.number)
                made = StreamRow(raw.number, name, raw.version, last[raw.number], own)
                yield replace(
                    made, bases=(), checksum=checked_reads.stream_checksum(self._tenant, made)
                )

    def _renamed_streams(
        self, fit: store_copy.CopyPlan, bases: Sequence[tuple[int, StreamBase]]
    ) -> Iterator[tuple[int, str, bytes]]:
        """Yield the streams that were there and get a name or a base."""
        for number in dict.fromkeys((*fit.renamed_streams, *(number for number, _ in bases))):
            self.stream_name_and_version(number)
            there = self._streams[number]
            if there is not None:
                name = fit.renamed_streams.get(number, there.name)
                own = (*there.bases, *(base for each, base in bases if each == number))
                made = replace(there, name=name, bases=own)
                yield number, name, checked_reads.stream_checksum(self._tenant, made)

    def _feed_row(self, raw: RawEvent, fit: store_copy.CopyPlan) -> FeedRow:
        name = fit.new_streams.get(raw.number) or fit.renamed_streams.get(raw.number)
        if name is None and (there := self.stream_name_and_version(raw.number)) is not None:
            name = there[0]
        ordinal = chain.kind_and_ordinal(raw.header)[1]
        blank = self._event_erasure(raw) if raw.erased is not None else None
        return FeedRow(name or raw.stream, store_copy.raw_event_row(raw), ordinal, blank)

    def _event_erasure(self, raw: RawEvent) -> EventErasure:
        assert raw.erased is not None, "it was looked at"
        return checked_reads.event_erasure(self._tenant, raw.position, *raw.erased)

    def _remaining_uses(
        self, again: set[int], numbers: Sequence[int]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the uses of blobs by events of streams that stay as they are."""
        own: set[int] = set()
        for number in numbers:
            stream = self._streams[number]
            assert stream is not None, "it was looked at"
            own |= {
                k.event.address.position
                for k in checked_reads.own_events(self._driver, self._tenant, stream)
            }
        for position, hash_ in blob_uses(self._driver, self._tenant, 0, self._head.position):
            if position in own and position not in again:
                yield position, hash_

    def _unused_blobs(self, again: set[int], needed: set[bytes]) -> set[bytes]:
        """Return the blobs that only events refer to that are erased now. Rare, so that all uses are gone through."""
        gone: set[bytes] = set()
        others: set[bytes] = set()
        if again:
            for position, hash_ in blob_uses(self._driver, self._tenant, 0, self._head.position):
                (gone if position in again else others).add(hash_)
        return gone - others - needed
