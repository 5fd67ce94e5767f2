"""A server in RAM for stores over a driver: dicts under one lock. It shows how little a driver has to decide."""

from __future__ import annotations

import heapq
import queue
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.stores import port
from limpet.stores.server import checked_reads
from limpet.stores.server.driver import (
    AppliedUnderContention,
    ChangeResult,
    Driver,
    DuplicateRow,
    FeedHead,
    FeedRow,
    HeadMoved,
    KeyRow,
    NoteRow,
    ProjectionRow,
    SnapshotRow,
    StreamRow,
    TenantChange,
)
from tests.contract.ram_pipeline import RamLine

replace = msgspec.structs.replace


class Books:
    """What the server keeps of one tenant."""

    def __init__(self) -> None:
        self.head = FeedHead()
        self.streams: dict[int, StreamRow] = {}
        self.rows: list[FeedRow] = []
        self.claims: dict[tuple[int, str], int] = {}
        self.keys: dict[str, KeyRow] = {}
        self.projections: dict[tuple[str, str], ProjectionRow] = {}
        self.snapshots: dict[int, SnapshotRow] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.uses: set[tuple[int, bytes]] = set()
        self.notes: dict[str, NoteRow] = {}
        self.noted = 0

    def stream(self, stream: str | int) -> StreamRow | None:
        if isinstance(stream, int):
            return self.streams.get(stream)
        return next((each for each in self.streams.values() if each.name == stream), None)

    def number(self, position: int) -> int:
        return self.rows[position - 1].event.address.stream

    def taken(self, change: TenantChange) -> bool:
        renamed = {number: name for number, name, _ in change.renames}
        names = {renamed.get(number, stream.name) for number, stream in self.streams.items()}
        claims = {place for place in self.claims if place[0] not in change.drop_claims}
        return (
            any(stream.number in self.streams or stream.name in names for stream in change.streams)
            or any(kept.event.address.position <= len(self.rows) for kept in change.rows)
            or any((stretch, text) in claims for stretch, text, _ in change.claims)
            or any(each.key in self.keys.keys() - change.drop_keys for each in change.keys)
        )

    def take(self, change: TenantChange) -> None:
        self.drop(change)
        for number, name, mark in change.renames:
            self.streams[number] = replace(self.streams[number], name=name, checksum=mark)
            for at, kept in enumerate(self.rows):
                if kept.event.address.stream == number:
                    self.rows[at] = replace(kept, stream=name)
        for position, blank in change.erasures:
            kept = self.rows[position - 1]
            row = replace(kept.event, payload=None, salt=None)
            self.rows[position - 1] = replace(kept, event=row, erasure=blank)
        self.streams |= {stream.number: stream for stream in change.streams}
        for number, base in change.bases:
            stream = self.streams[number]
            self.streams[number] = replace(stream, bases=(*stream.bases, base))
        for kept in change.rows:
            self.rows.append(kept)
            place = kept.event.address
            self.streams[place.stream] = replace(self.streams[place.stream], version=place.version)
        self.keys |= {each.key: each for each in change.keys}
        self.blobs |= change.blobs
        self.snapshots |= {
            stream.number: each
            for each in change.snapshots
            if (stream := self.stream(each.snapshot.stream))
        }
        self.derive(change)
        self.head = change.after

    def drop(self, change: TenantChange) -> None:
        for place in change.drop_projections:
            self.projections.pop(place, None)
        for number in change.drop_snapshots:
            self.snapshots.pop(number, None)
        for key in change.drop_keys:
            self.keys.pop(key, None)
        for hash_ in change.drop_blobs:
            self.blobs.pop(hash_, None)
        if change.drop_claims:
            kept = self.claims.items()
            self.claims = {p: v for p, v in kept if p[0] not in change.drop_claims}
        if change.drop_blob_uses:
            gone = change.drop_blob_uses
            self.uses = {use for use in self.uses if self.number(use[0]) not in gone}

    def derive(self, change: TenantChange) -> None:
        self.claims |= {(stretch, text): version for stretch, text, version in change.claims}
        self.uses |= set(change.blob_uses)
        for kept in change.projections:
            self.projections[kept.projection.kind, kept.projection.id] = kept


def swap(books: Books, stream: str, other: str) -> None:
    """Let two streams have each other's name, beneath the store."""
    one, two = books.stream(stream), books.stream(other)
    assert one is not None and two is not None
    books.streams[one.number] = replace(one, name=other)
    books.streams[two.number] = replace(two, name=stream)


class Server:
    """All tenants, and those who listen."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.books: defaultdict[str, Books] = defaultdict(Books)
        self.pending: bytes | None = None
        self.guards: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.listeners: list[queue.SimpleQueue[tuple[str, int] | None]] = []


class RamDriver:
    """One store's way to the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.trips = 0
        self.late_s = 0.0
        self._closed = self._guarded = False
        self._heard: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()

    @property
    def durability(self) -> str:
        return "none"

    def _of(self, tenant: str) -> Books:
        self.trips += 1
        if self._closed:
            raise errors.EngineClosed
        with self.server.lock:
            return self.server.books[tenant]

    def head(self, tenant: str) -> FeedHead:
        return self._of(tenant).head

    def tenants(self) -> list[str]:
        with self.server.lock:
            books = self.server.books
            return sorted(tenant for tenant in books if books[tenant].rows)

    def unlisted_tenants(self) -> list[str]:
        return []

    def tenants_with_notes(self) -> list[str]:
        with self.server.lock:
            books = self.server.books
            return sorted(tenant for tenant in books if books[tenant].notes)

    def stream(self, tenant: str, stream: str | int) -> StreamRow | None:
        books = self._of(tenant)
        with self.server.lock:
            return books.stream(stream)

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[StreamRow]:
        books = self._of(tenant)
        with self.server.lock:
            numbers = sorted(number for number in books.streams if number > after)
            return [books.streams[number] for number in numbers[:limit]]

    def own_events(
        self,
        tenant: str,
        stream: str | int,
        *,
        low: int,
        high: int,
        limit: int,
        newest: bool = False,
    ) -> tuple[StreamRow | None, list[FeedRow]]:
        books = self._of(tenant)
        with self.server.lock:
            found = books.stream(stream)
            if found is None:
                return None, []
            own = [
                kept
                for kept in books.rows
                if kept.event.address.stream == found.number
                and low <= kept.event.address.version <= high
            ]
            return found, own[max(0, len(own) - limit) :] if newest else own[:limit]

    def feed(self, tenant: str, *, after: int, limit: int) -> list[FeedRow]:
        books = self._of(tenant)
        with self.server.lock:
            return books.rows[after : after + limit]

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        books = self._of(tenant)
        with self.server.lock:
            found = books.stream(stream)
            places = [kept.event.address for kept in books.rows[:position]]
            own = (p.version for p in places if found and p.stream == found.number)
            return max(own, default=0)

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        _, own = self.own_events(tenant, number, low=low, high=high, limit=1 << 62)
        return next((k.event.address.version for k in own if k.ordinal >= ordinal), 0)

    def claims(
        self, tenant: str, claims: Collection[str], stretches: Collection[int]
    ) -> list[tuple[int, str, int]]:
        kept = self._of(tenant).claims
        places = ((stretch, text) for stretch in stretches for text in claims)
        return [(*place, kept[place]) for place in places if place in kept]

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        return sum(stretch in stretches for stretch, _ in self._of(tenant).claims)

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        books = self._of(tenant)
        with self.server.lock:
            return [
                (stream.name, base.version)
                for stream in books.streams.values()
                for base in stream.bases
                if base.source == number != stream.number
            ]

    def key(self, tenant: str, key: str) -> KeyRow | None:
        return self._of(tenant).keys.get(key)

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[KeyRow]:
        books = self._of(tenant)
        with self.server.lock:
            return [books.keys[key] for key in sorted(books.keys) if key > after][:limit]

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        books = self._of(tenant)
        with self.server.lock:
            return [
                use.key
                for use in books.keys.values()
                if any(use.first <= position <= use.last for position in positions)
            ]

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        books = self._of(tenant)
        with self.server.lock:
            old = [key for key, use in books.keys.items() if use.time_us < before_us]
            for key in old:
                del books.keys[key]
            return len(old)

    def projection(self, tenant: str, kind: str, id: str) -> ProjectionRow | None:
        return self._of(tenant).projections.get((kind, id))

    def query_projections(self, tenant: str, query: port.Query) -> list[ProjectionRow]:
        books = self._of(tenant)
        with self.server.lock:
            found = [kept for kept in books.projections.values() if _matches(kept, query)]
            return heapq.nlargest(query.offset + query.limit, found, key=_rank)[query.offset :]

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[ProjectionRow]:
        books = self._of(tenant)
        with self.server.lock:
            places = sorted(place for place in books.projections if place > after)
            return [books.projections[place] for place in places[:limit]]

    def snapshot(self, tenant: str, stream: str) -> SnapshotRow | None:
        found = self.stream(tenant, stream)
        return self._of(tenant).snapshots.get(found.number) if found else None

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        kept = self._of(tenant).blobs
        return {hash_: kept[hash_] for hash_ in hashes if hash_ in kept}

    def list_blobs(
        self, tenant: str, *, after: bytes = b"", limit: int = 100
    ) -> list[tuple[bytes, bytes]]:
        books = self._of(tenant)
        with self.server.lock:
            return sorted(pair for pair in books.blobs.items() if pair[0] > after)[:limit]

    def blob_uses(
        self, tenant: str, *, after: int = 0, limit: int = 500
    ) -> list[tuple[int, bytes]]:
        books = self._of(tenant)
        with self.server.lock:
            every = sorted(use for use in books.uses if use[0] > after)
            last = every[:limit][-1][0] if every else 0
            return [use for use in every if use[0] <= last]

    def unused_blobs(
        self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]
    ) -> set[bytes]:
        books = self._of(tenant)
        with self.server.lock:
            used = {hash_ for position, hash_ in books.uses if books.number(position) not in but}
            return {hash_ for hash_ in hashes if hash_ in books.blobs and hash_ not in used}

    def note(self, tenant: str, name: str) -> NoteRow | None:
        return self._of(tenant).notes.get(name)

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        books = self._of(tenant)
        with self.server.lock:
            before = books.notes.get(name)
            if (before.note.version if before else 0) != expected:
                return False
            if value is None:
                books.notes.pop(name, None)
            else:
                books.noted += 1
                note = port.Note(value, books.noted)
                books.notes[name] = NoteRow(
                    name, note, checked_reads.note_checksum(tenant, name, note)
                )
            return True

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[NoteRow]:
        books = self._of(tenant)
        with self.server.lock:
            names = sorted(n for n in books.notes if n.startswith(prefix) and n > after)
            return [books.notes[name] for name in names[:limit]]

    def apply(self, changes: Sequence[TenantChange]) -> list[ChangeResult]:
        return [self._apply(change) for change in changes]

    def pipeline(self) -> RamLine:
        return RamLine(self.apply, self.late_s)

    def _apply(self, change: TenantChange) -> ChangeResult:
        books = self._of(change.tenant)
        with self.server.lock:
            if books.head != change.before:
                return HeadMoved(books.head)
            if books.taken(change):
                return DuplicateRow()
            books.take(change)
            if change.pending_work is not None:
                self.server.pending = (self.server.pending or b"") + change.pending_work
            self._tell((change.tenant, change.after.position))
            others = self.server.guards[change.tenant].locked() and not self._guarded
            return AppliedUnderContention() if others else None

    def _tell(self, news: tuple[str, int], but: object = None) -> None:
        with self.server.lock:
            for listener in self.server.listeners:
                if listener is not but:
                    listener.put(news)

    def replace_derived(
        self, before: Mapping[str, FeedHead], derived: Iterable[TenantChange]
    ) -> bool:
        pieces = list(derived)
        with self.server.lock:
            if any(self._of(tenant).head != head for tenant, head in before.items()):
                return False
            for tenant, head in before.items():
                books = self._of(tenant)
                books.claims, books.uses, books.projections, books.snapshots = {}, set(), {}, {}
                books.head = replace(head, epoch=head.epoch + 1)
            for piece in pieces:
                self._of(piece.tenant).derive(piece)
            return True

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        self._tell((tenant, 0), but=self._heard)
        self._guarded = self.server.guards[tenant].acquire(timeout=timeout_s)
        return self._guarded

    def release_advisory_lock(self, tenant: str) -> None:
        if self._guarded:
            self._guarded = False
            self.server.guards[tenant].release()

    def pending_erasures(self) -> bytes | None:
        return self.server.pending

    def scrub(self, done: bytes, left: bytes) -> None:
        with self.server.lock:
            rest = left + (self.server.pending or b"").removeprefix(done)
            self.server.pending = rest or None

    def listen(self) -> Iterator[tuple[str, int]]:
        with self.server.lock:
            self.server.listeners.append(self._heard)
        yield "", 0
        while news := self._heard.get():
            yield news

    def status(self) -> Mapping[str, Json]:
        with self.server.lock:
            every = self.server.books.values()
            return {
                "backend": "ram",
                "events": sum(len(books.rows) for books in every),
                "blobs": sum(len(books.blobs) for books in every),
            }

    def close(self) -> None:
        self._closed = True
        self._heard.put(None)


def _rank(kept: ProjectionRow) -> tuple[int, str]:
    return kept.projection.time_us, kept.projection.id


def _matches(kept: ProjectionRow, query: port.Query) -> bool:
    row = kept.projection
    return (
        row.kind == query.kind
        and query.owner in (None, row.owner)
        and query.status in (None, row.status)
        and query.lookup in (None, row.lookup)
        and (query.since_us is None or row.time_us >= query.since_us)
        and (query.until_us is None or row.time_us <= query.until_us)
        and set(query.terms) <= set(row.terms)
        and (query.after is None or _rank(kept) < query.after)
    )


_: type[Driver] = RamDriver
