"""Proving a tenant's log, up to the head that it has when the look begins: others may go on meanwhile."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator

import msgspec

from limpet import errors
from limpet.store import chain, port
from limpet.store.erasure import Told, is_notice
from limpet.store.remote import marks, reading
from limpet.store.remote.driver import Driver, Kept, KeptProjection, Stream

CHUNK = 512
TRIES = 3
"""How often a tenant is looked at again of which something was erased meanwhile."""

_BLOBS = 16


class _Gone:
    """Erased events that name one notice: what the notice has to say of them."""

    __slots__ = ("_made", "count", "first", "streams")

    def __init__(self, first: int) -> None:
        self._made = hashlib.sha256()
        self.first = first
        self.count = 0
        self.streams: set[int] = set()

    def add(self, row: chain.Row) -> None:
        self._made.update(row.place.position.to_bytes(8, "big") + row.digest)
        self.streams.add(row.place.stream)
        self.count += 1

    def proved_by(self, row: chain.Row) -> bool:
        said = msgspec.json.encode(Told(self.count, self._made.hexdigest()))
        kind, _ = chain.kind_and_ordinal(row.header)
        return is_notice(kind) and self.streams == {row.place.stream} and row.payload == said


class Proof:
    """One tenant's log, and what is wrong with it. Memory: four bytes for each event, and the hashes of blobs."""

    def __init__(self, driver: Driver, tenant: str) -> None:
        self._driver = driver
        self._tenant = tenant
        self.head = driver.head(tenant)
        self.faults: list[str] = []
        self.hashes: set[bytes] = set()
        self._versions = array("I", bytes(4 * (self.head.position + 1)))
        self._missing: dict[int, int] = {}
        self._gone: dict[int, _Gone] = {}

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
            if kept.mark != marks.projection(self._tenant, kept.projection):
                self.faults.append("a row of projections is damaged.")
        farthest = 0
        for position, hash_ in self._uses():
            farthest = max(farthest, position)
            if position <= self.head.position and hash_ not in self.hashes:
                self.faults.append(chain.missing_blob(hash_, position))
        if farthest > self.head.position and farthest > self._driver.head(self._tenant).position:
            self.faults.append("blobs are said to belong to events that are not there.")

    def _events(self) -> Iterator[int]:
        before, position, last = chain.GENESIS, 0, self.head.position
        while position < last:
            limit = min(CHUNK, last - position)
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
        elif reading.beyond(self._driver, self._tenant, last):
            self.faults.append(f"the head says that the log ends at {last:,}, but it goes on.")

    def _check(self, kept: Kept, before: bytes, expected: int) -> None:
        row, place = kept.row, kept.row.place
        if place.position != expected:
            self.faults.append(f"events {expected:,} to {place.position - 1:,} are missing.")
        elif not chain.linked(row, before):
            self.faults.append(chain.damaged(place, "the chain breaks here").message)
        else:
            self._open(kept)
        self._follow(place)
        if kept.blank is not None:
            self._gone.setdefault(kept.blank.notice, _Gone(place.position)).add(row)
        # What names this notice comes before it.
        if (gone := self._gone.get(place.position)) is not None and gone.proved_by(row):
            del self._gone[place.position]

    def _open(self, kept: Kept) -> None:
        row = kept.row
        try:
            event = reading.opened(self._tenant, kept, "")
            if event.ordinal != kept.ordinal:
                raise chain.damaged(row.place, "its ordinal is not what was written")
            if kept.blank is not None and row.payload is not None:
                raise errors.Corrupt("a row of erased is damaged.")
        except errors.Corrupt as error:
            self.faults.append(error.message)

    def _follow(self, place: chain.Place) -> None:
        number = place.stream
        if not 0 < number < len(self._versions):
            self.faults.append(reading.nameless(number).message)
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
            if stream.mark != marks.stream(self._tenant, stream):
                self.faults.append("a row of streams is damaged.")
            strayed = strayed or any(self._strays(stream, at) for at in range(len(stream.bases)))
        if strayed:
            self.faults.append("streams are said to go on from what is not there.")
        for number, last in enumerate(self._versions):
            if last:
                self.faults.append(reading.nameless(number).message)
        self._versions = array("I")

    def _check_keys(self) -> None:
        after = ""
        while page := self._driver.keys(self._tenant, after=after, limit=CHUNK):
            for kept in page:
                try:
                    marks.checked_key(self._tenant, kept)
                except errors.Corrupt:
                    self.faults.append("a row of keys is damaged.")
            after = page[-1].key

    def _strays(self, stream: Stream, at: int) -> bool:
        base = stream.bases[at]
        own = base.source == stream.number
        if base.version >= base.first or own == (base.stretch == stream.number):
            return True
        return not own and self._driver.stream(self._tenant, base.source) is None

    def streams(self) -> Iterator[Stream]:
        """Yield the streams that the tenant had at this head."""
        after = 0
        while page := self._driver.streams(self._tenant, after=after, limit=CHUNK):
            for stream in page:
                if stream.number > self.head.position:
                    return
                yield stream
            after = page[-1].number

    def _check_blobs(self) -> None:
        after = b""
        while page := self._driver.every_blob(self._tenant, after=after, limit=_BLOBS):
            for hash_, content in page:
                self.hashes.add(hash_)
                if not chain.is_blob(hash_, content):
                    self.faults.append(chain.damaged_blob(hash_).message)
            after = page[-1][0]

    def _projections(self) -> Iterator[KeptProjection]:
        after = ("", "")
        while page := self._driver.projections(self._tenant, after=after, limit=CHUNK):
            yield from page
            after = (page[-1].projection.kind, page[-1].projection.id)

    def _uses(self) -> Iterator[tuple[int, bytes]]:
        after = 0
        while page := self._driver.uses(self._tenant, after=after, limit=CHUNK):
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
        for count in _checked(driver, tenant, faults):
            told = max(told, seen + count)
            yield told
        seen += count
    for tenant in driver.noted():
        faults += [f"Tenant {tenant!r}: {fault}" for fault in _note_faults(driver, tenant)]
    yield port.Report(seen, len(tenants), tuple(faults))


def _checked(driver: Driver, tenant: str, faults: list[str]) -> Iterator[int]:
    """Check one tenant, add what is wrong to the faults; yield its events checked so far."""
    for tries_left in reversed(range(TRIES)):
        proof, seen = Proof(driver, tenant), 0
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
    while page := driver.notes(tenant, "", after=after, limit=CHUNK):
        for kept in page:
            if kept.mark != marks.note(tenant, kept.name, kept.note):
                yield "a row of notes is damaged."
        after = page[-1].name
