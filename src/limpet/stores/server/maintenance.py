"""Verification, rebuild and erasure of a tenant's log on a server.

`TenantVerification` checks the log up to the head it had at the start. `TenantRebuild` derives
everything again into a temporary file and then installs it. `ServerErasure` builds the one change
that removes payloads, appends notices and replaces derived rows. Each is made for one head, and is
repeated if other processes have written meanwhile.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from array import array
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import AbstractContextManager
from typing import IO

import msgspec

from limpet import errors
from limpet.stores import chain, port
from limpet.stores.erasure import (
    Erasure,
    ErasureCounts,
    NoticeContent,
    RedactedPayload,
    StreamErasure,
    derived_row_ids,
    erased_stream_name,
    erasure_proof,
    is_erased_stream,
    is_notice,
    make_notice,
)
from limpet.stores.server import checked_reads
from limpet.stores.server.changes import ChangeBuilder, DerivedRows, StreamDerivation
from limpet.stores.server.driver import (
    Driver,
    EventErasure,
    FeedHead,
    FeedRow,
    ProjectionRow,
    StreamRow,
    TenantChange,
)
from limpet.stores.server.tenant_cache import CachedTenant

PAGE_ROWS = 512
VERIFY_TRIES_MAX = 3
"""How often a tenant is looked at again of which something was erased meanwhile."""

_PAGE_BLOBS = 16


class _NoticeCheck:
    """Erased events that name one notice: what the notice has to say of them."""

    __slots__ = ("_made", "count", "first", "streams")

    def __init__(self, first: int) -> None:
        self._made = hashlib.sha256()
        self.first = first
        self.count = 0
        self.streams: set[int] = set()

    def add(self, row: chain.EventRow) -> None:
        self._made.update(row.place.position.to_bytes(8, "big") + row.digest)
        self.streams.add(row.place.stream)
        self.count += 1

    def proved_by(self, row: chain.EventRow) -> bool:
        said = msgspec.json.encode(NoticeContent(self.count, self._made.hexdigest()))
        kind, _ = chain.kind_and_ordinal(row.header)
        return is_notice(kind) and self.streams == {row.place.stream} and row.payload == said


class TenantVerification:
    """One tenant's log, and what is wrong with it. Memory: four bytes for each event, and the hashes of blobs."""

    def __init__(self, driver: Driver, tenant: str) -> None:
        self._driver = driver
        self._tenant = tenant
        self.head = driver.head(tenant)
        self.faults: list[str] = []
        self.hashes: set[bytes] = set()
        self._versions = array("I", bytes(4 * (self.head.position + 1)))
        self._missing: dict[int, int] = {}
        self._gone: dict[int, _NoticeCheck] = {}

    def log(self) -> Iterator[int]:
        """Check all that nothing can be put in the place of; yield how many events were checked at a time."""
        yield from self._events()
        self._check_gone()
        self._check_streams()
        self._check_keys()
        self._check_blobs()

    def derived(self) -> None:
        """Check what is derived from the log, and what hangs on it."""
        for kept in self._projections():
            if kept.mark != checked_reads.projection_checksum(self._tenant, kept.projection):
                self.faults.append("a row of projections is damaged.")
        farthest = 0
        for position, hash_ in self._uses():
            farthest = max(farthest, position)
            if position <= self.head.position and hash_ not in self.hashes:
                self.faults.append(chain.missing_blob_fault(hash_, position))
        if farthest > self.head.position and farthest > self._driver.head(self._tenant).position:
            self.faults.append("blobs are said to belong to events that are not there.")

    def _events(self) -> Iterator[int]:
        before, position, last = chain.GENESIS_LINK, 0, self.head.position
        while position < last:
            limit = min(PAGE_ROWS, last - position)
            page = [
                kept
                for kept in self._driver.feed(self._tenant, after=position, limit=limit)
                if kept.row.place.position <= last
            ]
            if not page:
                break
            for kept in page:
                self._check(kept, before, position + 1)
                before, position = kept.row.link, kept.row.place.position
            yield len(page)
        if position < last:
            lost = last - position
            self.faults.append(
                f"the log ends at position {position:,}, but {lost:,} more event(s) had been acknowledged."
            )
        elif before != self.head.link:
            self.faults.append(
                f"the log differs from what was acknowledged at position {position:,}."
            )
        elif checked_reads.continues_after(self._driver, self._tenant, last):
            self.faults.append(f"the head says that the log ends at {last:,}, but it goes on.")

    def _check(self, kept: FeedRow, before: bytes, expected: int) -> None:
        row, place = kept.row, kept.row.place
        if place.position != expected:
            self.faults.append(f"events {expected:,} to {place.position - 1:,} are missing.")
        elif not chain.is_linked(row, before):
            self.faults.append(chain.damaged_event_error(place, "the chain breaks here").message)
        else:
            self._open(kept)
        self._follow(place)
        if kept.blank is not None:
            self._gone.setdefault(kept.blank.notice, _NoticeCheck(place.position)).add(row)
        # What names this notice comes before it.
        if (gone := self._gone.get(place.position)) is not None and gone.proved_by(row):
            del self._gone[place.position]

    def _open(self, kept: FeedRow) -> None:
        row = kept.row
        try:
            event = checked_reads.checked_event(self._tenant, kept, "")
            if event.ordinal != kept.ordinal:
                raise chain.damaged_event_error(row.place, "its ordinal is not what was written")
            if kept.blank is not None and row.payload is not None:
                raise errors.Corrupt("a row of erased is damaged.")
        except errors.Corrupt as error:
            self.faults.append(error.message)

    def _follow(self, place: chain.EventAddress) -> None:
        number = place.stream
        if not 0 < number < len(self._versions):
            self.faults.append(checked_reads.unnamed_stream_error(number).message)
            return
        last = self._versions[number]
        if last and place.version != last + 1:
            lost = place.version - last - 1
            self._missing[number] = self._missing.get(number, 0) + lost
        self._versions[number] = max(place.version, 0)

    def _check_gone(self) -> None:
        for gone in self._gone.values():
            self.faults.append(
                f"{gone.count:,} event(s), from position {gone.first:,} on, are erased, but no notice in the log says so."
            )

    def _check_streams(self) -> None:
        strayed = False
        for stream in self.streams():
            last, lost = self._versions[stream.number], self._missing.get(stream.number, 0)
            self._versions[stream.number] = 0
            if not last or lost or stream.version < last:
                has = last - lost if last else 0
                self.faults.append(
                    f"stream {stream.number:,} has {has} of {stream.version} events."
                )
            if stream.mark != checked_reads.stream_checksum(self._tenant, stream):
                self.faults.append("a row of streams is damaged.")
            strayed = strayed or any(self._strays(stream, at) for at in range(len(stream.bases)))
        if strayed:
            self.faults.append("streams are said to go on from what is not there.")
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

    def _strays(self, stream: StreamRow, at: int) -> bool:
        base = stream.bases[at]
        own = base.source == stream.number
        if base.version >= base.first or own == (base.stretch == stream.number):
            return True
        return not own and self._driver.stream(self._tenant, base.source) is None

    def streams(self) -> Iterator[StreamRow]:
        """Yield the streams that the tenant had at this head."""
        after = 0
        while page := self._driver.streams(self._tenant, after=after, limit=PAGE_ROWS):
            for stream in page:
                if stream.number > self.head.position:
                    return
                yield stream
            after = page[-1].number

    def _check_blobs(self) -> None:
        after = b""
        while page := self._driver.every_blob(self._tenant, after=after, limit=_PAGE_BLOBS):
            for hash_, content in page:
                self.hashes.add(hash_)
                if not chain.blob_matches(hash_, content):
                    self.faults.append(chain.damaged_blob_error(hash_).message)
            after = page[-1][0]

    def _projections(self) -> Iterator[ProjectionRow]:
        after = ("", "")
        while page := self._driver.projections(self._tenant, after=after, limit=PAGE_ROWS):
            yield from page
            after = (page[-1].projection.kind, page[-1].projection.id)

    def _uses(self) -> Iterator[tuple[int, bytes]]:
        after = 0
        while page := self._driver.uses(self._tenant, after=after, limit=PAGE_ROWS):
            yield from page
            after = page[-1][0]


def verify(driver: Driver) -> Iterator[int | port.Report]:
    """Check every tenant; yield events checked so far, the report last."""
    seen, told = 0, 0
    faults: list[str] = []
    adrift = driver.adrift()
    tenants = sorted({*driver.tenants(), *adrift})
    faults += [f"Tenant {tenant!r} has a log, but is in no list of tenants." for tenant in adrift]
    for tenant in tenants:
        count = 0
        for count in _verify_tenant(driver, tenant, faults):
            told = max(told, seen + count)
            yield told
        seen += count
    for tenant in driver.noted():
        faults += [f"Tenant {tenant!r}: {fault}" for fault in _note_faults(driver, tenant)]
    yield port.Report(seen, len(tenants), tuple(faults))


def _verify_tenant(driver: Driver, tenant: str, faults: list[str]) -> Iterator[int]:
    """Check one tenant, add what is wrong to the faults; yield its events checked so far."""
    for tries_left in reversed(range(VERIFY_TRIES_MAX)):
        proof, seen = TenantVerification(driver, tenant), 0
        for count in proof.log():
            seen += count
            yield seen
        proof.derived()
        # What was erased while it was looked at is no damage.
        same = not proof.faults or driver.head(tenant).epoch == proof.head.epoch
        if same or not tries_left:
            faults += [f"Tenant {tenant!r}: {fault}" for fault in proof.faults]
            return


def _note_faults(driver: Driver, tenant: str) -> Iterator[str]:
    after = ""
    while page := driver.notes(tenant, "", after=after, limit=PAGE_ROWS):
        for kept in page:
            if kept.mark != checked_reads.note_checksum(tenant, kept.name, kept.note):
                yield "a row of notes is damaged."
        after = page[-1].name


REBUILD_TRIES_MAX = 5
"""How often a tenant is begun anew because others have written to it meanwhile."""

SPOOLED_CHANGE_ROWS = 500
"""Rows of one piece of what was derived."""

SPOOL_MEMORY_BYTES = 16 * 1024 * 1024
"""What waits in memory before it goes to the file."""

_LENGTH_BYTES = 8

_derived_rows_decoder = msgspec.msgpack.Decoder(DerivedRows)


def open_spool() -> IO[bytes]:
    """Return where what was derived waits until all of it is there."""
    return tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES)


class TenantRebuild:
    """One rebuild of one tenant, made for the head that it has now. What comes of it waits at the end of the spool."""

    def __init__(
        self, driver: Driver, tenant: str, derive: port.StreamDeriver, spool: IO[bytes]
    ) -> None:
        self._driver = driver
        self._derive = derive
        self.tenant = tenant
        self.made = port.Rebuilt()
        self._head = FeedHead()
        self._spool = spool
        self._begin = self._end = 0
        self.done = False

    def steps(self) -> Generator[int]:
        """Prove and derive; yield events gone through at a time. Raises Corrupt if the log is not as it was written."""
        for left in reversed(range(REBUILD_TRIES_MAX)):
            try:
                yield from self._steps()
            except errors.Corrupt:
                # What others have erased in the middle of it is no damage.
                if not left or self._driver.head(self.tenant) == self._head:
                    raise
            else:
                return

    def _steps(self) -> Generator[int]:
        proof = TenantVerification(self._driver, self.tenant)
        self._head, self.made = proof.head, port.Rebuilt()
        self._begin = self._spool.seek(0, os.SEEK_END)
        yield from proof.log()
        raise_if_damaged(proof.faults)
        piece = DerivedRows([], [], [])
        for stream in proof.streams():
            piece.take(self._derived(self.tenant, stream, proof.hashes))
            if len(piece) >= SPOOLED_CHANGE_ROWS:
                self._put(piece)
                piece = DerivedRows([], [], [])
            yield stream.version - stream.first + 1
        self._put(piece)
        self._count(tenants=1)
        self._end = self._spool.tell()

    def finish(
        self, turn: Callable[[], AbstractContextManager[bool]], doubt: Callable[[list[str]], None]
    ) -> Generator[int]:
        """Put it all into place, then it is `done`. If others have written meanwhile, it is begun anew: yields as `steps`.

        In a turn, in which all that is known is doubted; where it was outrun every time, the last proof is in one, too.
        """
        for left in reversed(range(REBUILD_TRIES_MAX)):
            with turn():
                if not left:
                    yield from self.steps()
                # Told to nobody here: the next turn has to hear of it.
                doubt([self.tenant])
                self.done = self._driver.replace({self.tenant: self._head}, self._pieces())
            if self.done:
                return
            if left > 1:
                yield from self.steps()

    def _derived(self, tenant: str, stream: StreamRow, hashes: set[bytes]) -> DerivedRows:
        events, spread = stream.version - stream.first + 1, DerivedRows([], [], [])
        if not is_erased_stream(stream.name):
            deriving = StreamDerivation(self._driver, tenant, stream, stream.name)
            blobs = functools.partial(checked_reads.read_blobs, self._driver, tenant)
            spread = deriving.spread(self._derive(stream.name, deriving.events(), blobs))
        raise_if_damaged(
            [chain.missing_blob_fault(h, at) for at, h in spread.uses if h not in hashes]
        )
        self._count(
            events=events, streams=1, claims=len(spread.claims), projections=len(spread.projections)
        )
        return spread

    def _count(self, **more: int) -> None:
        made = {name: getattr(self.made, name) + count for name, count in more.items()}
        self.made = msgspec.structs.replace(self.made, **made)

    def _put(self, piece: DerivedRows) -> None:
        if len(piece):
            data = msgspec.msgpack.encode(piece)
            self._spool.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def _pieces(self) -> Iterator[TenantChange]:
        self._spool.seek(self._begin)
        while self._spool.tell() < self._end:
            length = int.from_bytes(self._spool.read(_LENGTH_BYTES), "big")
            piece = _derived_rows_decoder.decode(self._spool.read(length))
            yield TenantChange(
                tenant=self.tenant,
                before=self._head,
                after=self._head,
                claims=tuple(piece.claims),
                uses=tuple(piece.uses),
                projections=tuple(piece.projections),
            )


def sum_rebuilt(one: port.Rebuilt, other: port.Rebuilt) -> port.Rebuilt:
    """Return what two rebuilds made."""
    fields = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return port.Rebuilt(*map(sum, fields))


def raise_if_damaged(faults: list[str]) -> None:
    """Raise Corrupt if there are faults."""
    if faults:
        raise errors.Corrupt(
            f"the store is damaged: {faults[0]}",
            hint="Nothing was changed. `limpet verify` lists all damage; a backup can replace it.",
            facts={"faults": len(faults)},
        )


class ServerErasure:
    """One erasure on its way, made for the head that the tenant has now."""

    def __init__(
        self,
        driver: Driver,
        erasure: Erasure,
        derive: port.StreamDeriver,
        random: Callable[[int], bytes],
    ) -> None:
        self._driver = driver
        self._erasure = erasure
        self._tenant = erasure.tenant
        self._derive = derive
        self.head = driver.head(erasure.tenant)
        self._batch = ChangeBuilder(
            driver, self._tenant, CachedTenant(self.head), random, careful=True
        )
        self._streams: list[StreamRow] = []
        self._blanks: dict[int, EventErasure] = {}
        self._brought: dict[bytes, bytes] = {}
        self._hashes: set[bytes] = set()
        self._drops: dict[tuple[str, str], None] = {}
        self._events = 0

    def stale(self) -> port.Stale | None:
        """Return what is not as expected: the feed's head, or the first stream that is at another version."""
        if self._erasure.head not in (None, self.head.position):
            return port.Stale("", self.head.position)
        for share in self._erasure.shares:
            stream = checked_reads.find_stream(self._driver, self._tenant, share.stream)
            actual = stream.version if stream is not None else 0
            if stream is None or actual != share.expected:
                return port.Stale(share.stream, actual)
            self._streams.append(stream)
        return None

    def change(self) -> tuple[TenantChange, ErasureCounts]:
        """Return the change that erases, and what goes by it."""
        shares = list(zip(self._erasure.shares, self._streams, strict=True))
        for share, stream in shares:
            self._forget_derived(share, stream)
        begin = self.head.position + 1
        writes = [self._take_out(*each, begin + at) for at, each in enumerate(shares)]
        told = port.Append(tenant=self._tenant, writes=tuple(writes), time_us=self._erasure.time_us)
        outcome = self._batch.append(told)
        assert isinstance(outcome, port.Appended), "versions were looked at before"
        notices = self._batch.change()
        made = DerivedRows([], [], [])
        for (share, stream), row in zip(shares, notices.rows, strict=True):
            if not share.whole:
                made.take(self._derived_again(share, stream, row))
        return self._whole(notices, made)

    def _forget_derived(self, share: StreamErasure, stream: StreamRow) -> None:
        """Note all that is derived from a stream, by deriving it once more."""
        events = StreamDerivation(self._driver, self._tenant, stream, share.stream).events()
        rows, before = derived_row_ids(
            share, lambda: self._derive(share.stream, events, self._contents)
        )
        self._drops |= dict.fromkeys(rows)
        used = (hash_ for hash_, _ in before.blobs) if before else self._used(stream)
        self._hashes.update(used)

    def _used(self, stream: StreamRow) -> Iterator[bytes]:
        """Yield the blobs that a stream's events are said to refer to, whatever is in them."""
        own = {
            kept.row.place.position
            for kept in checked_reads.own_events(self._driver, self._tenant, stream)
        }
        after = 0
        while page := self._driver.uses(self._tenant, after=after):
            yield from (hash_ for position, hash_ in page if position in own)
            after = page[-1][0]

    def _contents(self, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        brought = {hash_: self._brought[hash_] for hash_ in hashes if hash_ in self._brought}
        others = [hash_ for hash_ in hashes if hash_ not in brought]
        return brought | checked_reads.read_blobs(self._driver, self._tenant, others)

    def _take_out(self, share: StreamErasure, stream: StreamRow, position: int) -> port.StreamWrite:
        """Take payloads out of one stream; return the write of its notice, which gets that position."""
        stand_ins = {each.position: each for each in share.stand_ins}
        gone: list[tuple[int, bytes]] = []
        ordinal = 0
        for kept in checked_reads.own_events(self._driver, self._tenant, stream):
            at = kept.row.place.position
            kind, ordinal = chain.kind_and_ordinal(kept.row.header)
            stand_in = stand_ins.pop(at, None)
            if is_notice(kind) or not (share.whole or stand_in):
                continue
            self._blank(kept, position, stand_in)
            if kept.row.payload is not None:
                gone.append((at, kept.row.digest))
        assert not stand_ins, "a stand-in is for an event of its stream"
        self._events += len(gone)
        name = erased_stream_name(stream.number) if share.whole else share.stream
        self._batch.streams[name] = msgspec.structs.replace(stream, name=name)
        told = make_notice(share.kind, self._erasure.time_us, ordinal, erasure_proof(gone))
        return port.StreamWrite(name, share.expected, (told,))

    def _blank(self, kept: FeedRow, position: int, stand_in: RedactedPayload | None) -> None:
        at = kept.row.place.position
        # One that was erased before keeps the notice that proves it.
        by = kept.blank.notice if kept.blank is not None else position
        cause, payload = (stand_in.cause, stand_in.payload) if stand_in else (0, None)
        self._blanks[at] = checked_reads.event_erasure(self._tenant, at, by, cause, payload)
        for content in stand_in.blobs if stand_in else ():
            self._brought[chain.blob_hash(content)] = content

    def _derived_again(
        self, share: StreamErasure, stream: StreamRow, notice: FeedRow
    ) -> DerivedRows:
        deriving = StreamDerivation(self._driver, self._tenant, stream, share.stream)
        events = deriving.events(self._left(stream, notice))
        return deriving.spread(self._derive(share.stream, events, self._contents))

    def _left(self, stream: StreamRow, notice: FeedRow) -> Iterator[FeedRow]:
        """Yield a stream's own events as they are once the change is made."""
        for kept in checked_reads.own_events(self._driver, self._tenant, stream):
            blank = self._blanks.get(kept.row.place.position)
            if blank is None:
                yield kept
            else:
                row = msgspec.structs.replace(kept.row, payload=None, salt=None)
                yield FeedRow(kept.stream, row, kept.ordinal, blank)
        yield notice

    def _unnamed(self, stream: StreamRow) -> tuple[int, str, bytes]:
        """Return what a stream is called once it is erased, and its mark."""
        made = msgspec.structs.replace(stream, name=erased_stream_name(stream.number))
        return stream.number, made.name, checked_reads.stream_checksum(self._tenant, made)

    def _whole(
        self, notices: TenantChange, made: DerivedRows
    ) -> tuple[TenantChange, ErasureCounts]:
        driver, tenant, streams = self._driver, self._tenant, self._streams
        numbers = tuple(stream.number for stream in streams)
        stretches = [*numbers, *(base.stretch for stream in streams for base in stream.bases)]
        keys = driver.keys_of(tenant, list(self._blanks)) if self._blanks else []
        needed = {hash_ for _, hash_ in made.uses}
        unused = driver.unused(tenant, self._hashes, but=numbers) if self._hashes else set[bytes]()
        unused -= needed | set(self._brought)
        head = notices.after
        change = msgspec.structs.replace(
            notices,
            after=FeedHead(head.position, head.link, head.epoch + 1),
            claims=tuple(made.claims),
            uses=tuple(made.uses),
            projections=tuple(made.projections),
            blobs=self._brought,
            blanks=tuple(self._blanks.items()),
            renames=tuple(
                self._unnamed(stream)
                for share, stream in zip(self._erasure.shares, streams, strict=True)
                if share.whole
            ),
            drop_projections=tuple(self._drops),
            drop_claims=tuple(dict.fromkeys(stretches)),
            drop_snapshots=numbers,
            drop_uses=numbers,
            drop_keys=tuple(keys),
            drop_blobs=tuple(unused),
            todo=self._erasure.todo,
        )
        gone = ErasureCounts(
            events=self._events, blobs=len(unused), keys=len(keys),
            claims=driver.claims_of(tenant, change.drop_claims), rows=len(self._drops), link=head.link,
        )  # fmt: skip
        return change, gone
