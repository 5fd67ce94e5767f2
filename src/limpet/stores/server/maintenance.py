"""Verification, rebuild, erasure and copying of a tenant's log on a server.

`TenantVerification` checks the log up to the head it had at the start. `TenantRebuild` derives everything again into a
temporary file and then installs it. `ServerErasure` builds the one change that removes payloads, appends notices and
replaces derived rows. Each is made for one head, and is repeated if other processes have written meanwhile.
`LogCopyReader` and `ServerCopyTarget` copy a log exactly as stored; a rebuild must follow before the copy is used.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO

import msgspec

from limpet import errors
from limpet.stores import chain, port, store_copy
from limpet.stores.chain import (
    NoticeContent,
    StreamBase,
    erased_stream_name,
    erasure_proof,
    is_erased_stream,
    is_notice,
    make_notice,
)
from limpet.stores.port import Erasure, ErasureCounts, RawEvent, RawKey, RedactedPayload, StreamErasure
from limpet.stores.server import checked_reads
from limpet.stores.server.changes import ChangeBuilder, DerivedRows, StreamDerivation
from limpet.stores.server.driver import (
    Driver,
    EventErasure,
    FeedHead,
    FeedRow,
    StreamRow,
    TenantChange,
    contention_error,
)
from limpet.stores.server.tenant_cache import CachedTenant

PAGE_ROWS = 512
VERIFY_TRIES_MAX = 3
"""How often a tenant is verified again because events were erased meanwhile."""

_PAGE_BLOBS = 16


class _NoticeCheck:
    """Erased events that name one notice: the content that the notice must have."""

    __slots__ = ("_hash", "count", "first", "streams")

    def __init__(self, first: int) -> None:
        self._hash = hashlib.sha256()
        self.first = first
        self.count = 0
        self.streams: set[int] = set()

    def add(self, row: chain.EventRow) -> None:
        self._hash.update(row.address.position.to_bytes(8, "big") + row.digest)
        self.streams.add(row.address.stream)
        self.count += 1

    def is_matched_by(self, row: chain.EventRow) -> bool:
        content = msgspec.json.encode(NoticeContent(self.count, self._hash.hexdigest()))
        kind, _ = chain.kind_and_ordinal(row.header)
        return is_notice(kind) and self.streams == {row.address.stream} and row.payload == content


class TenantVerification:
    """Checks one tenant's log up to its present head; `faults` lists the damage. It holds four bytes an event and all blob hashes."""

    def __init__(self, driver: Driver, tenant: str) -> None:
        self._driver = driver
        self._tenant = tenant
        self.head = driver.head(tenant)
        self.faults: list[str] = []
        self.blob_hashes: set[bytes] = set()
        self._versions = array("I", bytes(4 * (self.head.position + 1)))
        self._missing: dict[int, int] = {}
        self._notices: dict[int, _NoticeCheck] = {}

    def check_log(self) -> Iterator[int]:
        """Check what can't be derived again: events, notices, streams, keys, blobs. Yields the number of events of each page."""
        yield from self._check_events()
        self.faults += [
            f"{gone.count:,} event(s), from position {gone.first:,} on, are erased, but no notice in the log says so."
            for gone in self._notices.values()
        ]
        self._check_streams()
        self._check_keys()
        self._check_blobs()

    def check_derived(self) -> None:
        """Check projections, and that each blob which events refer to exists."""
        after = ("", "")
        while page := self._driver.projections(self._tenant, after=after, limit=PAGE_ROWS):
            for row in page:
                if row.checksum != checked_reads.projection_checksum(self._tenant, row.projection):
                    self.faults.append("a row of projections is damaged.")
            after = (page[-1].projection.kind, page[-1].projection.id)
        farthest = 0
        for position, hash_ in checked_reads.blob_uses(self._driver, self._tenant):
            farthest = max(farthest, position)
            if position <= self.head.position and hash_ not in self.blob_hashes:
                self.faults.append(chain.missing_blob_fault(hash_, position))
        if farthest > self.head.position and farthest > self._driver.head(self._tenant).position:
            self.faults.append("blobs are referred to by events that do not exist.")

    def _check_events(self) -> Iterator[int]:
        before, position, last = chain.GENESIS_LINK, 0, self.head.position
        while position < last:
            limit = min(PAGE_ROWS, last - position)
            page = [
                kept
                for kept in self._driver.feed(self._tenant, after=position, limit=limit)
                if kept.event.address.position <= last
            ]
            if not page:
                break
            for kept in page:
                self._check_event(kept, before, position + 1)
                before, position = kept.event.link, kept.event.address.position
            yield len(page)
        if position < last:
            lost = last - position
            self.faults.append(
                f"the log ends at position {position:,}, but {lost:,} more event(s) had been acknowledged."
            )
        elif before != self.head.link:
            self.faults.append(f"the log differs from what was acknowledged at position {position:,}.")
        elif checked_reads.continues_after(self._driver, self._tenant, last):
            self.faults.append(f"the head says that the log ends at {last:,}, but it goes on.")

    def _check_event(self, kept: FeedRow, before: bytes, expected: int) -> None:
        row, place = kept.event, kept.event.address
        if place.position != expected:
            self.faults.append(f"events {expected:,} to {place.position - 1:,} are missing.")
        elif not chain.is_linked(row, before):
            self.faults.append(chain.damaged_event_error(place, "the chain breaks here").message)
        else:
            self._check_payload(kept)
        self._check_version(place)
        if kept.erasure is not None:
            self._notices.setdefault(kept.erasure.notice, _NoticeCheck(place.position)).add(row)
        # Erased events come before the notice that they name.
        if (gone := self._notices.get(place.position)) is not None and gone.is_matched_by(row):
            del self._notices[place.position]

    def _check_payload(self, kept: FeedRow) -> None:
        row = kept.event
        try:
            event = checked_reads.checked_event(self._tenant, kept, "")
            if event.ordinal != kept.ordinal:
                raise chain.damaged_event_error(row.address, "its ordinal is not what was written")
            if kept.erasure is not None and row.payload is not None:
                raise errors.Corrupt("a row of erased is damaged.")
        except errors.Corrupt as error:
            self.faults.append(error.message)

    def _check_version(self, place: chain.EventAddress) -> None:
        number = place.stream
        if not 0 < number < len(self._versions):
            self.faults.append(checked_reads.unnamed_stream_error(number).message)
            return
        last = self._versions[number]
        if last and place.version != last + 1:
            lost = place.version - last - 1
            self._missing[number] = self._missing.get(number, 0) + lost
        self._versions[number] = max(place.version, 0)

    def _check_streams(self) -> None:
        has_bad_base = False
        for stream in self.streams():
            last, lost = self._versions[stream.number], self._missing.get(stream.number, 0)
            self._versions[stream.number] = 0
            if not last or lost or stream.version < last:
                has = last - lost if last else 0
                self.faults.append(f"stream {stream.number:,} has {has} of {stream.version} events.")
            if stream.checksum != checked_reads.stream_checksum(self._tenant, stream):
                self.faults.append("a row of streams is damaged.")
            has_bad_base = has_bad_base or any(self._is_bad_base(stream, at) for at in range(len(stream.bases)))
        if has_bad_base:
            self.faults.append("streams are forked from versions or streams that do not exist.")
        for number, last in enumerate(self._versions):
            if last:
                self.faults.append(checked_reads.unnamed_stream_error(number).message)
        self._versions = array("I")

    def _check_keys(self) -> None:
        after = ""
        while page := self._driver.keys(self._tenant, after=after, limit=PAGE_ROWS):
            for kept in page:
                try:
                    checked_reads.checked_key(self._tenant, kept)
                except errors.Corrupt:
                    self.faults.append("a row of keys is damaged.")
            after = page[-1].key

    def _is_bad_base(self, stream: StreamRow, at: int) -> bool:
        base = stream.bases[at]
        own = base.source == stream.number
        if base.version >= base.first or own == (base.stretch == stream.number):
            return True
        return not own and self._driver.stream(self._tenant, base.source) is None

    def streams(self) -> Iterator[StreamRow]:
        """Yield the streams that the tenant has at this head."""
        after = 0
        while page := self._driver.streams(self._tenant, after=after, limit=PAGE_ROWS):
            for stream in page:
                if stream.number > self.head.position:
                    return
                yield stream
            after = page[-1].number

    def _check_blobs(self) -> None:
        after = b""
        while page := self._driver.list_blobs(self._tenant, after=after, limit=_PAGE_BLOBS):
            for hash_, content in page:
                self.blob_hashes.add(hash_)
                if not chain.blob_matches(hash_, content):
                    self.faults.append(chain.damaged_blob_error(hash_).message)
            after = page[-1][0]


def verify(driver: Driver) -> Iterator[int | port.Report]:
    """Check every tenant; yield events checked so far, the report last."""
    seen, reported = 0, 0
    faults: list[str] = []
    unlisted = driver.unlisted_tenants()
    tenants = sorted({*driver.tenants(), *unlisted})
    faults += [f"Tenant {tenant!r} has a log, but is in no list of tenants." for tenant in unlisted]
    for tenant in tenants:
        count = 0
        for count in _verify_tenant(driver, tenant, faults):
            # A second try of a tenant begins to count again: the number never falls.
            reported = max(reported, seen + count)
            yield reported
        seen += count
    for tenant in driver.tenants_with_notes():
        faults += [f"Tenant {tenant!r}: {fault}" for fault in _note_faults(driver, tenant)]
    yield port.Report(seen, len(tenants), tuple(faults))


def _verify_tenant(driver: Driver, tenant: str, faults: list[str]) -> Iterator[int]:
    """Check one tenant and add its damage to the faults; yield its events checked so far."""
    for tries_left in reversed(range(VERIFY_TRIES_MAX)):
        verification, seen = TenantVerification(driver, tenant), 0
        for count in verification.check_log():
            seen += count
            yield seen
        verification.check_derived()
        # An erasure in the middle of the check looks like damage.
        is_final = not verification.faults or driver.head(tenant).epoch == verification.head.epoch
        if is_final or not tries_left:
            faults += [f"Tenant {tenant!r}: {fault}" for fault in verification.faults]
            return


def _note_faults(driver: Driver, tenant: str) -> Iterator[str]:
    after = ""
    while page := driver.notes(tenant, "", after=after, limit=PAGE_ROWS):
        for kept in page:
            if kept.checksum != checked_reads.note_checksum(tenant, kept.name, kept.note):
                yield "a row of notes is damaged."
        after = page[-1].name


REBUILD_TRIES_MAX = 5
"""How often a tenant is derived again because other processes have written to it meanwhile."""

SPOOLED_CHANGE_ROWS = 500
"""Derived rows of one change."""

SPOOL_MEMORY_BYTES = 16 * 1024 * 1024
"""Derived rows beyond this go to a temporary file."""

_LENGTH_BYTES = 8

_derived_rows_decoder = msgspec.msgpack.Decoder(DerivedRows)


class TenantRebuild:
    """One rebuild of one tenant, for one head. The derived rows wait at the end of the spool until `install`."""

    def __init__(self, driver: Driver, tenant: str, derive: port.StreamDeriver, spool: IO[bytes]) -> None:
        self._driver = driver
        self._derive = derive
        self.tenant = tenant
        self.rebuilt = port.Rebuilt()
        self._head = FeedHead()
        self._spool = spool
        self._begin = self._end = 0
        self.done = False

    def prepare(self) -> Generator[int]:
        """Verify and derive; yield the number of events of each page. Raises Corrupt if the log is damaged."""
        for left in reversed(range(REBUILD_TRIES_MAX)):
            try:
                yield from self._prepare_once()
            except errors.Corrupt:
                # An erasure in the middle of the check looks like damage.
                if not left or self._driver.head(self.tenant) == self._head:
                    raise
            else:
                return

    def _prepare_once(self) -> Generator[int]:
        verification = TenantVerification(self._driver, self.tenant)
        self._head, self.rebuilt = verification.head, port.Rebuilt()
        self._begin = self._spool.seek(0, os.SEEK_END)
        yield from verification.check_log()
        raise_if_damaged(verification.faults)
        rows = DerivedRows([], [], [])
        for stream in verification.streams():
            rows.extend(self._derive_stream(stream, verification.blob_hashes))
            if len(rows) >= SPOOLED_CHANGE_ROWS:
                self._spool_rows(rows)
                rows = DerivedRows([], [], [])
            yield stream.version - stream.first + 1
        self._spool_rows(rows)
        self.rebuilt = msgspec.structs.replace(self.rebuilt, tenants=1)
        self._end = self._spool.tell()

    def install(
        self, write_lock: Callable[[], AbstractContextManager[bool]], invalidate: Callable[[list[str]], None]
    ) -> Generator[int]:
        """Replace the tenant's derived rows and set `done`. Yields as `prepare`, which is repeated if the head has moved.

        Rows are replaced with the write lock held.
        """
        for left in reversed(range(REBUILD_TRIES_MAX)):
            with write_lock():
                if not left:
                    # The last try derives inside the lock, so that at least this process can't get ahead of it.
                    yield from self.prepare()
                # The engine's caches do not see this change: the next batch must report that caches are stale.
                invalidate([self.tenant])
                self.done = self._driver.replace_derived(self.tenant, self._head, self._spooled_changes())
            if self.done:
                return
            if left > 1:
                yield from self.prepare()

    def _derive_stream(self, stream: StreamRow, hashes: set[bytes]) -> DerivedRows:
        tenant, rows = self.tenant, DerivedRows([], [], [])
        if not is_erased_stream(stream.name):
            derivation = StreamDerivation(self._driver, tenant, stream)
            blobs = functools.partial(checked_reads.read_blobs, self._driver, tenant)
            rows = derivation.rows(self._derive(stream.name, derivation.events(), blobs))
        raise_if_damaged([chain.missing_blob_fault(h, at) for at, h in rows.blob_uses if h not in hashes])
        before, events = self.rebuilt, stream.version - stream.first + 1
        self.rebuilt = port.Rebuilt(
            before.events + events, before.tenants, before.streams + 1,
            before.claims + len(rows.claims), before.projections + len(rows.projections),
        )  # fmt: skip
        return rows

    def _spool_rows(self, rows: DerivedRows) -> None:
        if len(rows):
            data = msgspec.msgpack.encode(rows)
            self._spool.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def _spooled_changes(self) -> Iterator[TenantChange]:
        self._spool.seek(self._begin)
        while self._spool.tell() < self._end:
            length = int.from_bytes(self._spool.read(_LENGTH_BYTES), "big")
            rows = _derived_rows_decoder.decode(self._spool.read(length))
            yield TenantChange(
                tenant=self.tenant, before=self._head, after=self._head, claims=tuple(rows.claims),
                blob_uses=tuple(rows.blob_uses), projections=tuple(rows.projections),
            )  # fmt: skip


def rebuild(
    driver: Driver,
    derive: port.StreamDeriver,
    write_lock: Callable[[], AbstractContextManager[bool]],
    invalidate: Callable[[list[str]], None],
) -> Generator[int | port.Rebuilt]:
    """Verify and derive all tenants, then replace their derived rows one by one; yield events read so far, the counts last.

    Nothing is replaced before all of them are verified. Raises Conflict if tenants were written to during every try.
    """
    done, total = 0, port.Rebuilt()
    conflicts: list[str] = []
    # Derived rows of a whole store need not fit into memory.
    with tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES) as spool:
        rebuilds: list[TenantRebuild] = []
        for tenant in sorted({*driver.tenants(), *driver.unlisted_tenants()}):
            rebuilds.append(TenantRebuild(driver, tenant, derive, spool))
            for count in rebuilds[-1].prepare():
                done += count
                yield done
        for each in rebuilds:
            for _ in each.install(write_lock, invalidate):
                yield done
            fields = zip(*map(msgspec.structs.astuple, (total, each.rebuilt)), strict=True)
            total = port.Rebuilt(*map(sum, fields))
            conflicts += [] if each.done else [each.tenant]
    if conflicts:
        raise errors.Conflict(
            f"other processes wrote to {len(conflicts):,} tenant(s) during every try; their derived rows are unchanged.",
            hint="Retry when fewer write.",
            facts={"tenant": conflicts[0]},
        )
    yield total


def raise_if_damaged(faults: list[str]) -> None:
    if faults:
        raise errors.Corrupt(
            f"the store is damaged: {faults[0]}",
            hint="Nothing was changed. `limpet verify` lists all damage; a backup can replace it.",
            facts={"faults": len(faults)},
        )


class ServerErasure:
    """The change that makes one erasure, for the tenant's present head."""

    def __init__(
        self, driver: Driver, erasure: Erasure, derive: port.StreamDeriver, random: Callable[[int], bytes]
    ) -> None:
        self._driver = driver
        self._erasure = erasure
        self._tenant = erasure.tenant
        self._derive = derive
        self.head = driver.head(erasure.tenant)
        self._builder = ChangeBuilder(driver, self._tenant, CachedTenant(self.head), random, careful=True)
        self._streams: list[StreamRow] = []
        self._erasures: dict[int, EventErasure] = {}
        self._new_blobs: dict[bytes, bytes] = {}
        self._hashes: set[bytes] = set()
        self._dropped_projections: dict[tuple[str, str], None] = {}
        self._erased_count = 0

    def find_stale(self) -> port.Stale | None:
        """Return the first mismatch with the erasure's expectations: the feed's head, or a stream's version; None if none."""
        if self._erasure.head not in (None, self.head.position):
            return port.Stale("", self.head.position)
        for share in self._erasure.streams:
            stream = checked_reads.find_stream(self._driver, self._tenant, share.stream)
            actual = stream.version if stream is not None else 0
            if stream is None or actual != share.expected:
                return port.Stale(share.stream, actual)
            self._streams.append(stream)
        return None

    def build_change(self) -> tuple[TenantChange, ErasureCounts]:
        """Return the change that erases, and how much it erases."""
        shares = list(zip(self._erasure.streams, self._streams, strict=True))
        for share, stream in shares:
            self._collect_derived(share, stream)
        begin = self.head.position + 1
        writes = [self._erase_stream(*each, begin + at) for at, each in enumerate(shares)]
        append = port.Append(tenant=self._tenant, writes=tuple(writes), time_us=self._erasure.time_us)
        outcome = self._builder.append(append)
        assert isinstance(outcome, port.Appended), "`find_stale` has checked the versions"
        notices = self._builder.build_change()
        remaining = DerivedRows([], [], [])
        for (share, stream), row in zip(shares, notices.rows, strict=True):
            if not share.whole:
                remaining.extend(self._derive_remaining(share, stream, row))
        return self._assemble(shares, notices, remaining)

    def _collect_derived(self, share: StreamErasure, stream: StreamRow) -> None:
        """Collect the projections and blobs that a stream has now, by deriving it once more."""
        events = StreamDerivation(self._driver, self._tenant, stream).events()
        try:
            derived = self._derive(share.stream, events, self._read_blobs)
        except errors.Corrupt:
            if share.derived_rows is None:
                raise
            self._dropped_projections |= dict.fromkeys(share.derived_rows)
            self._hashes.update(self._used_blobs(stream))
        else:
            self._dropped_projections |= dict.fromkeys((row.kind, row.id) for row in derived.projections)
            self._hashes.update(hash_ for hash_, _ in derived.blobs)

    def _used_blobs(self, stream: StreamRow) -> Iterator[bytes]:
        """Yield the blobs that a stream's events refer to, without reading the events' payloads."""
        own = {row.event.address.position for row in checked_reads.own_events(self._driver, self._tenant, stream)}
        for position, hash_ in checked_reads.blob_uses(self._driver, self._tenant):
            if position in own:
                yield hash_

    def _read_blobs(self, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        new = {hash_: self._new_blobs[hash_] for hash_ in hashes if hash_ in self._new_blobs}
        others = [hash_ for hash_ in hashes if hash_ not in new]
        return new | checked_reads.read_blobs(self._driver, self._tenant, others)

    def _erase_stream(self, share: StreamErasure, stream: StreamRow, position: int) -> port.StreamWrite:
        """Erase payloads of one stream; return the write of its notice, which gets that position."""
        redactions = {each.position: each for each in share.redactions}
        erased: list[tuple[int, bytes]] = []
        ordinal = 0
        for row in checked_reads.own_events(self._driver, self._tenant, stream):
            at = row.event.address.position
            kind, ordinal = chain.kind_and_ordinal(row.event.header)
            redaction = redactions.pop(at, None)
            if is_notice(kind) or not (share.whole or redaction):
                continue
            self._erase_event(row, position, redaction)
            if row.event.payload is not None:
                erased.append((at, row.event.digest))
        assert not redactions, "a redaction is of an event of its stream"
        self._erased_count += len(erased)
        name = erased_stream_name(stream.number) if share.whole else share.stream
        self._builder.streams[name] = msgspec.structs.replace(stream, name=name)
        notice = make_notice(share.kind, self._erasure.time_us, ordinal, erasure_proof(erased))
        return port.StreamWrite(name, share.expected, (notice,))

    def _erase_event(self, row: FeedRow, position: int, redaction: RedactedPayload | None) -> None:
        at = row.event.address.position
        # An event that was erased before keeps its notice, whose hash covers the event.
        notice = row.erasure.notice if row.erasure is not None else position
        cause, payload = (redaction.cause, redaction.payload) if redaction else (0, None)
        self._erasures[at] = checked_reads.event_erasure(self._tenant, at, notice, cause, payload)
        for content in redaction.blobs if redaction else ():
            self._new_blobs[chain.blob_hash(content)] = content

    def _derive_remaining(self, share: StreamErasure, stream: StreamRow, notice: FeedRow) -> DerivedRows:
        derivation = StreamDerivation(self._driver, self._tenant, stream)
        events = derivation.events(self._remaining_events(stream, notice))
        return derivation.rows(self._derive(share.stream, events, self._read_blobs))

    def _remaining_events(self, stream: StreamRow, notice: FeedRow) -> Iterator[FeedRow]:
        """Yield a stream's own events as they will be after the change."""
        for row in checked_reads.own_events(self._driver, self._tenant, stream):
            erasure = self._erasures.get(row.event.address.position)
            if erasure is None:
                yield row
            else:
                event = msgspec.structs.replace(row.event, payload=None, salt=None)
                yield FeedRow(row.stream, event, row.ordinal, erasure)
        yield notice

    def _erased_name(self, stream: StreamRow) -> tuple[int, str, bytes]:
        renamed = msgspec.structs.replace(stream, name=erased_stream_name(stream.number))
        return stream.number, renamed.name, checked_reads.stream_checksum(self._tenant, renamed)

    def _assemble(
        self, shares: Sequence[tuple[StreamErasure, StreamRow]], notices: TenantChange, remaining: DerivedRows
    ) -> tuple[TenantChange, ErasureCounts]:
        driver, tenant, streams = self._driver, self._tenant, self._streams
        numbers = tuple(stream.number for stream in streams)
        stretches = [*numbers, *(base.stretch for stream in streams for base in stream.bases)]
        keys = driver.keys_covering(tenant, list(self._erasures)) if self._erasures else []
        needed = {hash_ for _, hash_ in remaining.blob_uses}
        unused = driver.unused_blobs(tenant, self._hashes, but=numbers) if self._hashes else set[bytes]()
        unused -= needed | set(self._new_blobs)
        head = notices.after
        change = msgspec.structs.replace(
            notices,
            after=FeedHead(head.position, head.link, head.epoch + 1),
            claims=tuple(remaining.claims),
            blob_uses=tuple(remaining.blob_uses),
            projections=tuple(remaining.projections),
            blobs=self._new_blobs,
            erasures=tuple(self._erasures.items()),
            renames=tuple(self._erased_name(stream) for share, stream in shares if share.whole),
            drop_projections=tuple(self._dropped_projections),
            drop_claims=tuple(dict.fromkeys(stretches)),
            drop_snapshots=numbers,
            drop_blob_uses=numbers,
            drop_keys=tuple(keys),
            drop_blobs=tuple(unused),
            pending_work=self._erasure.pending_work,
        )
        counts = ErasureCounts(
            events=self._erased_count, blobs=len(unused), keys=len(keys),
            claims=driver.count_claims(tenant, change.drop_claims), rows=len(self._dropped_projections), link=head.link,
        )  # fmt: skip
        return change, counts


STREAMS_MAX = 10_000
"""Streams that are cached from one page to the next."""

COPY_TRIES_MAX = 8
"""How often a page is read again because events were erased meanwhile."""


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
        redaction = erasure and checked_reads.checked_redaction(tenant, place.position, erasure)
        return RawEvent(
            stream=row.stream, position=place.position, number=place.stream, version=place.version,
            header=event.header, payload=event.payload, salt=event.salt, digest=event.digest, link=event.link,
            base=self._base(tenant, place), blobs=tuple(sorted(uses.get(place.position, ()))),
            erased=erasure and (erasure.notice, erasure.cause, redaction),
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
                page = self._driver.keys(self._tenant, after=after, limit=PAGE_ROWS)
                if not page or page[0].key > names[-1]:
                    break
                after = page[-1].key
        return stored

    def head(self) -> tuple[int, bytes]:
        return self._head.position, self._head.link

    def stream_name_and_version(self, number: int) -> tuple[str, int] | None:
        if number not in self._streams:
            self._streams[number] = checked_reads.find_stream(self._driver, self._tenant, number)
        stream = self._streams[number]
        return (stream.name, stream.version) if stream is not None else None

    def stream_number(self, name: str) -> int:
        stream = checked_reads.find_stream(self._driver, self._tenant, name)
        return stream.number if stream is not None else 0

    def link_at(self, position: int) -> bytes:
        rows = self._driver.feed(self._tenant, after=position - 1, limit=1)
        return rows[0].event.link if rows else b""

    def missing_blobs(self, hashes: Collection[bytes]) -> Collection[bytes]:
        stored = self._driver.blobs(self._tenant, hashes) if hashes else {}
        return [hash_ for hash_ in hashes if hash_ not in stored]

    def find_raw_key(self, key: str) -> RawKey | None:
        return self._keys.get(key)

    def build_change(self, plan: store_copy.CopyPlan) -> TenantChange:
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
                yield msgspec.structs.replace(row, bases=(), checksum=checked_reads.stream_checksum(self._tenant, row))

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
                row = msgspec.structs.replace(stream, name=name, bases=own)
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
        for position, hash_ in checked_reads.blob_uses(self._driver, self._tenant, until=self._head.position):
            if position in own and position not in again:
                yield position, hash_

    def _unused_blobs(self, again: set[int], needed: set[bytes]) -> set[bytes]:
        """Return the blobs that only the newly erased events refer to. Walks all uses: such a page is rare."""
        erased: set[bytes] = set()
        others: set[bytes] = set()
        if again:
            for position, hash_ in checked_reads.blob_uses(self._driver, self._tenant, until=self._head.position):
                (erased if position in again else others).add(hash_)
        return erased - others - needed
