"""The verbs of a driver over the file. What they mean is in `limpet.stores.server.driver`."""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from limpet import errors
from limpet.core.values.validation import Json
from limpet.stores import port
from limpet.stores.server import checked_reads
from limpet.stores.server.driver import (
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
from pocket.books import Books, Everything
from pocket.file import PocketFile

replace = msgspec.structs.replace
LOOK_S = 0.02
"""How often the file is looked at for what other processes have written."""


class PocketDriver:
    """Looks, and changes. None of them decides anything."""

    def __init__(self, path: Path) -> None:
        self.file = PocketFile(path)
        self._closed = threading.Event()

    @property
    def durability(self) -> str:
        """A file that is synced before it takes the place of the old one, and so is its folder."""
        return "power-loss"

    def _everything(self) -> Everything:
        if self._closed.is_set():
            raise errors.EngineClosed
        return self.file.read()

    def _of(self, tenant: str) -> Books:
        return self._everything().tenants.get(tenant) or Books()

    @contextlib.contextmanager
    def _changing(self, tenant: str) -> Generator[Books]:
        self._everything()
        with self.file.changing() as everything:
            yield everything.tenants.setdefault(tenant, Books())

    def head(self, tenant: str) -> FeedHead:
        return self._of(tenant).head

    def tenants(self) -> list[str]:
        return sorted(name for name, books in self._everything().tenants.items() if books.rows)

    def unlisted_tenants(self) -> list[str]:
        return []

    def tenants_with_notes(self) -> list[str]:
        return sorted(name for name, books in self._everything().tenants.items() if books.notes)

    def stream(self, tenant: str, stream: str | int) -> StreamRow | None:
        books = self._of(tenant)
        return books.stream(stream)

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[StreamRow]:
        books = self._of(tenant)
        numbers = sorted(number for number in books.streams if number > after)
        return [books.streams[number] for number in numbers[:limit]]

    def own_events(
        self, tenant: str, stream: str | int, *, low: int, high: int, limit: int, newest: bool = False
    ) -> tuple[StreamRow | None, list[FeedRow]]:
        books = self._of(tenant)
        found = books.stream(stream)
        if found is None:
            return None, []
        own = [
            kept
            for kept in books.rows
            if kept.event.address.stream == found.number and low <= kept.event.address.version <= high
        ]
        return found, own[max(0, len(own) - limit) :] if newest else own[:limit]

    def feed(self, tenant: str, *, after: int, limit: int) -> list[FeedRow]:
        return self._of(tenant).rows[after : after + limit]

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        books = self._of(tenant)
        found = books.stream(stream)
        places = [kept.event.address for kept in books.rows[:position]]
        own = (p.version for p in places if found and p.stream == found.number)
        return max(own, default=0)

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        _, own = self.own_events(tenant, number, low=low, high=high, limit=1 << 62)
        return next((k.event.address.version for k in own if k.ordinal >= ordinal), 0)

    def claims(self, tenant: str, claims: Collection[str], stretches: Collection[int]) -> list[tuple[int, str, int]]:
        kept = self._of(tenant).claims
        places = ((stretch, text) for stretch in stretches for text in claims)
        return [(*place, kept[place]) for place in places if place in kept]

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        return sum(stretch in stretches for stretch, _ in self._of(tenant).claims)

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        books = self._of(tenant)
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
        return [books.keys[key] for key in sorted(books.keys) if key > after][:limit]

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        books = self._of(tenant)
        return [
            use.key for use in books.keys.values() if any(use.first <= position <= use.last for position in positions)
        ]

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        with self._changing(tenant) as books:
            old = [key for key, use in books.keys.items() if use.time_us < before_us]
            for key in old:
                del books.keys[key]
            return len(old)

    def projection(self, tenant: str, kind: str, id: str) -> ProjectionRow | None:
        return self._of(tenant).projections.get((kind, id))

    def query_projections(self, tenant: str, query: port.Query) -> list[ProjectionRow]:
        books = self._of(tenant)
        found = [kept for kept in books.projections.values() if _matches(kept, query)]
        return heapq.nlargest(query.offset + query.limit, found, key=_rank)[query.offset :]

    def projections(self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500) -> list[ProjectionRow]:
        books = self._of(tenant)
        places = sorted(place for place in books.projections if place > after)
        return [books.projections[place] for place in places[:limit]]

    def snapshot(self, tenant: str, stream: str) -> SnapshotRow | None:
        found = self.stream(tenant, stream)
        return self._of(tenant).snapshots.get(found.number) if found else None

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        kept = self._of(tenant).blobs
        return {hash_: kept[hash_] for hash_ in hashes if hash_ in kept}

    def list_blobs(self, tenant: str, *, after: bytes = b"", limit: int = 100) -> list[tuple[bytes, bytes]]:
        books = self._of(tenant)
        return sorted(pair for pair in books.blobs.items() if pair[0] > after)[:limit]

    def blob_uses(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[tuple[int, bytes]]:
        books = self._of(tenant)
        every = sorted(use for use in books.uses if use[0] > after)
        last = every[:limit][-1][0] if every else 0
        return [use for use in every if use[0] <= last]

    def unused_blobs(self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]) -> set[bytes]:
        books = self._of(tenant)
        used = {hash_ for position, hash_ in books.uses if books.number(position) not in but}
        return {hash_ for hash_ in hashes if hash_ in books.blobs and hash_ not in used}

    def note(self, tenant: str, name: str) -> NoteRow | None:
        return self._of(tenant).notes.get(name)

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        with self._changing(tenant) as books:
            before = books.notes.get(name)
            if (before.note.version if before else 0) != expected:
                return False
            if value is None:
                books.notes.pop(name, None)
                return True
            books.noted += 1
            note = port.Note(value, books.noted)
            books.notes[name] = NoteRow(name, note, checked_reads.note_checksum(tenant, name, note))
            return True

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[NoteRow]:
        books = self._of(tenant)
        names = sorted(n for n in books.notes if n.startswith(prefix) and n > after)
        return [books.notes[name] for name in names[:limit]]

    def apply(self, changes: Sequence[TenantChange]) -> list[ChangeResult]:
        outcomes: list[ChangeResult] = []
        self._everything()
        with self.file.changing() as everything:
            for change in changes:
                books = everything.tenants.setdefault(change.tenant, Books())
                outcomes.append(self._applied(books, change))
                if outcomes[-1] is None and change.pending_work is not None:
                    everything.pending = (everything.pending or b"") + change.pending_work
        return outcomes

    def pipeline(self) -> None:
        """Nothing is gained by sending ahead to a file."""

    def _applied(self, books: Books, change: TenantChange) -> ChangeResult:
        if books.head != change.before:
            return HeadMoved(books.head)
        if books.taken(change):
            return DuplicateRow()
        books.take(change)
        return None

    def replace_derived(self, tenant: str, before: FeedHead, derived: Iterable[TenantChange]) -> bool:
        pieces = list(derived)
        with self._changing(tenant) as books:
            if books.head != before:
                return False
            books.claims, books.uses, books.projections, books.snapshots = {}, set(), {}, {}
            books.head = replace(before, epoch=before.epoch + 1)
            for piece in pieces:
                books.derive(piece)
            return True

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        return True

    def release_advisory_lock(self, tenant: str) -> None:
        pass

    def pending_erasures(self) -> bytes | None:
        return self._everything().pending

    def scrub(self, done: bytes, left: bytes) -> None:
        self._everything()
        # The file is written anew: what was dropped is in no byte of it, and the old one is gone.
        with self.file.changing() as everything:
            rest = left + (everything.pending or b"").removeprefix(done)
            everything.pending = rest or None

    def listen(self) -> Iterator[tuple[str, int]]:
        seen: dict[str, int] = {}
        yield "", 0
        while not self._closed.wait(LOOK_S):
            with contextlib.suppress(errors.Error):
                for tenant, books in self._everything().tenants.items():
                    if seen.get(tenant) != books.head.position:
                        seen[tenant] = books.head.position
                        yield tenant, books.head.position

    def status(self) -> Mapping[str, Json]:
        every = self._everything().tenants
        return {
            "backend": "pocket",
            "store": str(self.file.path),
            "tenants": len(self.tenants()),
            "events": sum(len(books.rows) for books in every.values()),
            "blobs": sum(len(books.blobs) for books in every.values()),
        }

    def close(self) -> None:
        self._closed.set()


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


_: type[Driver] = PocketDriver
