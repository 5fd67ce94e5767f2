"""The store in RAM: the whole contract, kept in dicts, gone when the process ends.

For tests and throw-away work. Rows are really sealed and linked, and checked on every read, so code
above meets the same store as on a file. Every public verb takes the lock once and works on one
tenant's books; `_Books` does the keeping and knows nothing of locks or other tenants.
"""

from __future__ import annotations

import heapq
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from holdfast import errors, limits
from holdfast.store import chain, port
from holdfast.values.frozen import Json

Salts = Callable[[int], bytes]
"""Gives so many random bytes."""

_PROGRESS_EVERY = 1_000


class VolatileStore:
    """A store in RAM. Safe for threads; one process only; nothing outlives `close`."""

    def __init__(self, *, salts: Salts = os.urandom) -> None:
        self._salts = salts
        self._books: dict[str, _Books] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._holder: threading.Thread | None = None
        self._closed = False

    @property
    def durability(self) -> str:
        """Nothing survives the process."""
        return "none"

    @contextmanager
    def turn(self) -> Generator[bool]:
        """Hold the right to decide among the threads of this process. Not re-entrant.

        Raises StoreBusy, naming the thread that has it, after limits.TURN_WAIT_S.
        """
        assert self._holder is not threading.current_thread(), "this thread has the turn already"
        if not self._turn.acquire(timeout=limits.TURN_WAIT_S):
            holder = self._holder.name if self._holder else "unknown"
            raise errors.StoreBusy(
                f"thread {holder} has held the store's turn for {limits.TURN_WAIT_S:g} s.",
                hint="Retry, or look at what that thread waits for.",
                facts={"holder": holder},
            )
        self._holder = threading.current_thread()
        try:
            self._refuse_if_closed()
            yield False
        finally:
            self.leave_turn()

    @property
    def crowded(self) -> bool:
        """Never: there are no other processes."""
        return False

    def hand_over(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:  # noqa: ARG002
        """Nobody else is there to commit them."""
        return None

    def served(self) -> list[tuple[str, str]]:
        """Nobody: see above."""
        return []

    def leave_turn(self) -> None:
        """Give the turn back if this thread holds it still."""
        if self._holder is threading.current_thread():
            self._holder = None
            self._turn.release()

    def commit(self, appends: Sequence[port.Append]) -> list[port.Outcome]:
        """Take each append whole or not at all, in order."""
        assert self._holder is threading.current_thread(), "commit is called inside turn"
        with self._lock:
            self._refuse_if_closed()
            return [self._take(append) for append in appends]

    def version(self, tenant: str, stream: str) -> int:
        """Return the stream's version; 0 if it does not exist."""
        with self._of(tenant) as books:
            return books.version(stream)

    def read(
        self,
        tenant: str,
        stream: str,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
    ) -> list[port.StoredEvent]:
        """Return the stream's events with after < version <= until, in order, at most `limit`."""
        with self._of(tenant) as books:
            return books.read(stream, after, until, limit)

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""
        with self._of(tenant) as books:
            return [chain.opened(row, name) for name, row in books.rows[after : after + limit]]

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash; those it lacks are left out."""
        with self._of(tenant) as books:
            found = {hash_: books.blobs[hash_] for hash_ in hashes if hash_ in books.blobs}
        for hash_, content in found.items():
            if not chain.is_blob(hash_, content):
                raise chain.damaged_blob(hash_)
        return found

    def seek(self, tenant: str, stream: str, ordinal: int) -> int:
        """Return the lowest version whose event has at least this ordinal; 0 if there is none."""
        with self._of(tenant) as books:
            return books.seek(stream, ordinal)

    def find_claim(self, tenant: str, stream: str, claim: str) -> int:
        """Return the version of the event that made the claim; 0 if it is free."""
        with self._of(tenant) as books:
            return books.claim(stream, claim)

    def find_key(self, tenant: str, key: str) -> port.Replayed | None:
        """Return what an idempotency key was used for."""
        with self._of(tenant) as books:
            return books.replayed(key)

    def forget_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop idempotency keys used before that moment; return how many."""
        with self._of(tenant) as books:
            return books.forget_keys(before_us)

    def find(self, tenant: str, kind: str, id: str) -> port.Projection | None:
        """Return one projection."""
        with self._of(tenant) as books:
            return books.projections.get(kind, {}).get(id)

    def query(self, tenant: str, query: port.Query) -> list[port.Projection]:
        """Return one page of projections."""
        with self._of(tenant) as books:
            return books.query(query)

    def snapshot(self, tenant: str, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot."""
        with self._of(tenant) as books:
            return books.snapshots.get(stream)

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""
        with self._lock:
            self._refuse_if_closed()
            return sorted(self._books)

    def verify(self) -> Iterator[int | port.Report]:
        """Check rows' digests, places and links, and blobs; yield events checked so far, the report last."""
        with self._lock:
            self._refuse_if_closed()
            logs = {tenant: list(books.rows) for tenant, books in self._books.items()}
            blobs = {t: (dict(books.blobs), dict(books.uses)) for t, books in self._books.items()}
        checked = 0
        faults: list[str] = []
        for tenant, rows in sorted(logs.items()):
            faults.extend(f"Tenant {tenant!r}: {why}" for why in _blob_faults(*blobs[tenant]))
            before = chain.GENESIS
            for position, (_, row) in enumerate(rows, start=1):
                faults.extend(f"Tenant {tenant!r}: {why}" for why in _faults(row, position, before))
                before = row.link
                checked += 1
                if checked % _PROGRESS_EVERY == 0:
                    yield checked
        yield port.Report(events=checked, tenants=len(logs), faults=tuple(faults))

    def status(self) -> Mapping[str, Json]:
        """Return facts for people."""
        with self._lock:
            self._refuse_if_closed()
            return {
                "backend": "volatile",
                "durability": self.durability,
                "tenants": len(self._books),
                "events": sum(len(books.rows) for books in self._books.values()),
                "blobs": sum(len(books.blobs) for books in self._books.values()),
            }

    def backup(self, target: str) -> Iterator[tuple[int, int]]:  # noqa: ARG002 - the port's parameter
        """Refuse: there is no file to copy."""
        self._refuse_if_closed()
        raise errors.Refused(
            "a volatile store has no file to back up.",
            hint='Open a store on a file instead: holdfast.connect("state.db").',
        )

    def close(self) -> None:
        """Forget everything. Closing twice is fine."""
        with self._lock:
            self._closed = True
            self._books.clear()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise errors.EngineClosed

    @contextmanager
    def _of(self, tenant: str) -> Generator[_Books]:
        with self._lock:
            self._refuse_if_closed()
            yield self._books.get(tenant) or _Books()

    def _take(self, append: port.Append) -> port.Outcome:
        books = self._books.get(append.tenant) or _Books()
        outcome = books.take(append, self._salts)
        if isinstance(outcome, port.Appended):
            self._books[append.tenant] = books
        return outcome


class _Stream:
    """Where a stream's events stand: the position and the ordinal of each version."""

    __slots__ = ("claims", "number", "ordinals", "positions")

    def __init__(self, number: int) -> None:
        self.number = number
        self.positions: list[int] = []
        self.ordinals: list[int] = []
        self.claims: dict[str, int] = {}

    def note(self, write: port.StreamWrite) -> None:
        """Note the ordinals and claims of a write."""
        self.ordinals.extend(event.ordinal for event in write.events)
        self.claims.update({claim: write.expected + 1 + at for claim, at in write.claims})


class _Use(msgspec.Struct, frozen=True):
    """An idempotency key's use, and when."""

    replayed: port.Replayed
    time_us: int


class _Books:
    """Everything kept for one tenant."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, chain.Row]] = []
        self.streams: dict[str, _Stream] = {}
        self.keys: dict[str, _Use] = {}
        self.projections: dict[str, dict[str, port.Projection]] = {}
        self.snapshots: dict[str, port.Snapshot] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.uses: dict[int, tuple[bytes, ...]] = {}

    def take(self, append: port.Append, salts: Salts) -> port.Outcome:
        """Take an append whole, or refuse it and change nothing."""
        _check(append)
        refusal = self._replay(append.key) or self._stale(append) or self._taken(append)
        if refusal is not None:
            return refusal
        # Whatever can fail is done before the first change.
        streams = self._streams_for(append.writes)
        rows = self._sealed(append.writes, streams, salts)
        blobs = [_hashed(event.blobs) for write in append.writes for event in write.events]
        first = len(self.rows) + 1
        self.streams.update(streams)
        for write in append.writes:
            streams[write.stream].note(write)
        for name, row in rows:
            self.rows.append((name, row))
            streams[name].positions.append(row.place.position)
        for position, brought in enumerate(blobs, start=first):
            if brought:
                self.blobs.update(brought)
                self.uses[position] = tuple(brought)
        outcome = port.Appended(first, len(self.rows))
        self._derive(append, outcome)
        return outcome

    def version(self, stream: str) -> int:
        """Return the stream's version."""
        known = self.streams.get(stream)
        return len(known.positions) if known else 0

    def read(
        self, stream: str, after: int, until: int | None, limit: int
    ) -> list[port.StoredEvent]:
        """Return a range of the stream."""
        known = self.streams.get(stream)
        places = known.positions[after:until][:limit] if known else []
        return [chain.opened(self.rows[position - 1][1], stream) for position in places]

    def seek(self, stream: str, ordinal: int) -> int:
        """Return the lowest version with at least this ordinal. Ordinals of a stream never fall."""
        known = self.streams.get(stream)
        before = bisect_left(known.ordinals, ordinal) if known else 0
        return before + 1 if known and before < len(known.ordinals) else 0

    def claim(self, stream: str, claim: str) -> int:
        """Return the version that made the claim."""
        known = self.streams.get(stream)
        return known.claims.get(claim, 0) if known else 0

    def replayed(self, key: str) -> port.Replayed | None:
        """Return what a key was used for."""
        use = self.keys.get(key)
        return use.replayed if use else None

    def forget_keys(self, before_us: int) -> int:
        """Drop keys used before that moment."""
        old = [key for key, use in self.keys.items() if use.time_us < before_us]
        for key in old:
            del self.keys[key]
        return len(old)

    def query(self, query: port.Query) -> list[port.Projection]:
        """Return one page, newest first, the higher id first among equals."""
        rows = self.projections.get(query.kind, {}).values()
        found = (row for row in rows if _matches(row, query))
        return heapq.nlargest(query.offset + query.limit, found, key=_rank)[query.offset :]

    def _replay(self, key: port.KeyUse | None) -> port.Replayed | None:
        return self.replayed(key.key) if key else None

    def _stale(self, append: port.Append) -> port.Stale | None:
        for write in append.writes:
            actual = self.version(write.stream)
            if actual != write.expected:
                return port.Stale(write.stream, actual)
        return None

    def _taken(self, append: port.Append) -> port.Claimed | None:
        for write in append.writes:
            made: dict[str, int] = {}
            for claim, index in write.claims:
                version = self.claim(write.stream, claim) or made.get(claim, 0)
                if version:
                    return port.Claimed(write.stream, claim, version)
                made[claim] = write.expected + 1 + index
        return None

    def _streams_for(self, writes: Sequence[port.StreamWrite]) -> dict[str, _Stream]:
        streams: dict[str, _Stream] = {}
        number = len(self.streams)
        for write in writes:
            known = self.streams.get(write.stream)
            if known is None:
                number += 1
            streams[write.stream] = known or _Stream(number)
        return streams

    def _sealed(
        self, writes: Sequence[port.StreamWrite], streams: Mapping[str, _Stream], salts: Salts
    ) -> list[tuple[str, chain.Row]]:
        rows: list[tuple[str, chain.Row]] = []
        before = self.rows[-1][1].link if self.rows else chain.GENESIS
        for write in writes:
            number = streams[write.stream].number
            for version, event in enumerate(write.events, start=write.expected + 1):
                place = chain.Place(len(self.rows) + len(rows) + 1, number, version)
                header = chain.header(event, place)
                salt = salts(chain.SALT_BYTES)
                digest = chain.digest(salt, header, event.payload)
                before = chain.link(before, digest, header)
                rows.append(
                    (write.stream, chain.Row(place, header, event.payload, salt, digest, before))
                )
        return rows

    def _derive(self, append: port.Append, outcome: port.Appended) -> None:
        for row in append.projections:
            self.projections.setdefault(row.kind, {})[row.id] = row
        for kind, id_ in append.drops:
            self.projections.get(kind, {}).pop(id_, None)
        self.snapshots.update({snapshot.stream: snapshot for snapshot in append.snapshots})
        if append.key is not None:
            used = port.Replayed(append.key.command_hash, outcome.first, outcome.last)
            self.keys[append.key.key] = _Use(used, append.time_us)


def _check(append: port.Append) -> None:
    names = {write.stream for write in append.writes}
    assert append.writes, "an append has at least one write"
    assert len(names) == len(append.writes), "an append writes a stream once"
    for write in append.writes:
        assert write.events, "a write has at least one event"
        assert all(0 <= at < len(write.events) for _, at in write.claims), "a claim names its event"


def _hashed(contents: Sequence[bytes]) -> dict[bytes, bytes]:
    return {chain.blob_hash(content): content for content in contents}


def _blob_faults(
    blobs: Mapping[bytes, bytes], uses: Mapping[int, tuple[bytes, ...]]
) -> Iterator[str]:
    for hash_, content in blobs.items():
        if not chain.is_blob(hash_, content):
            yield chain.damaged_blob(hash_).message
    for position, hashes in uses.items():
        yield from (chain.missing_blob(hash_, position) for hash_ in hashes if hash_ not in blobs)


def _rank(row: port.Projection) -> tuple[int, str]:
    return row.time_us, row.id


def _matches(row: port.Projection, query: port.Query) -> bool:
    return (
        (query.owner is None or row.owner == query.owner)
        and (query.status is None or row.status == query.status)
        and (query.lookup is None or row.lookup == query.lookup)
        and (query.since_us is None or row.time_us >= query.since_us)
        and (query.until_us is None or row.time_us <= query.until_us)
        and set(query.terms) <= set(row.terms)
        and (query.after is None or _rank(row) < query.after)
    )


def _faults(row: chain.Row, position: int, before: bytes) -> Iterator[str]:
    try:
        chain.opened(row, "")
    except errors.Corrupt as error:
        yield error.message
    if row.place.position != position or not chain.linked(row, before):
        yield f"the event at position {position:,} is not linked to the one before."


_: type[port.Store] = VolatileStore
