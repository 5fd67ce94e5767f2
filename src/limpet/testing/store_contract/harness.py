"""How the contract suite opens a store and damages it, its test data, and the random walk.

`walk` takes random steps on a store and on a plain model, which must agree on everything. The seed
decides all steps, so a failure can be repeated.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, TypedDict, Unpack

import msgspec
import pytest

from limpet.stores.port import (
    Append,
    Appended,
    AppendOutcome,
    ClaimTaken,
    DerivedState,
    KeyRecord,
    KeyUse,
    NewEvent,
    Projection,
    Query,
    Report,
    Snapshot,
    Stale,
    Store,
    StoredEvent,
    StreamWrite,
)

TENANT = "acme"
OTHER = "globex"


class StoreHarness:
    """How the suite gets its stores. A subclass overrides `open_store`, and the rest if it can."""

    reopens: ClassVar[bool] = True
    """Whether a store opened again on the same folder is the same store."""

    walk_steps: ClassVar[int] = 200
    """Steps of each random walk."""

    def open_store(self, folder: Path) -> Store:
        """Open the store in this folder; create it the first time."""
        raise NotImplementedError

    def open_backup(self, target: str) -> Store:
        """Open a backup that `backup` has written to this path."""
        pytest.skip(f"this suite was not told how to open a backup such as {target}")

    def damage(self, store: Store, position: int) -> None:
        """Change one bit of the payload of TENANT's event at a position, bypassing the store."""
        pytest.skip(f"this suite was not told how to damage event {position} of {store}")

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        """Change one bit of the content of TENANT's blob, bypassing the store."""
        pytest.skip(f"this suite was not told how to damage blob {hash_.hex()} of {store}")

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        """Delete TENANT's blob, bypassing the store."""
        pytest.skip(f"this suite was not told how to lose blob {hash_.hex()} of {store}")

    def damage_note(self, store: Store, name: str) -> None:
        """Change TENANT's note, bypassing the store."""
        pytest.skip(f"this suite was not told how to damage note {name} of {store}")

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        """Swap the names of two of TENANT's streams, bypassing the store."""
        pytest.skip(f"this suite was not told how to swap {stream} and {other} of {store}")

    def damage_key(self, store: Store, key: str) -> None:
        """Make TENANT's idempotency key refer to events that do not exist, bypassing the store."""
        pytest.skip(f"this suite was not told how to damage key {key} of {store}")

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        """Delete the payload of TENANT's event at a position, bypassing the store.

        With `like`, mark the event as erased in the same way as the erased event at that position.
        """
        pytest.skip(f"this suite was not told how to blank event {position} of {store} like {like}")

    def tamper(self, store: Store) -> None:
        """Change some of TENANT's derived rows, bypassing the store."""
        pytest.skip(f"this suite was not told how to tamper with {store}")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        store = self.open_store(folder)
        yield store
        store.close()

    def reopen(self, store: Store, folder: Path) -> Store:
        """Close the store and open it again, or skip the test."""
        self.must_reopen()
        store.close()
        return self.open_store(folder)

    def must_reopen(self) -> None:
        """Skip the test if the store keeps nothing between two openings."""
        if not self.reopens:
            pytest.skip("this store keeps nothing between two openings")


def event(payload: bytes, *, ordinal: int = 0, time_us: int = 0, blobs: tuple[bytes, ...] = ()) -> NewEvent:
    return NewEvent("thing.happened", 1, time_us, payload, ordinal, blobs=blobs)


def write(
    stream: str,
    expected: int,
    *payloads: bytes,
    claims: tuple[tuple[str, int], ...] = (),
    blobs: tuple[bytes, ...] = (),
) -> StreamWrite:
    """Return a write of one event for each payload, each of which refers to all the blobs."""
    events = tuple(event(payload, blobs=blobs) for payload in payloads)
    return StreamWrite(stream, expected, events, claims)


def hash_of(content: bytes) -> bytes:
    """Return the hash under which a store keeps a blob."""
    return hashlib.sha256(content).digest()


def derive_nothing(*_: object) -> DerivedState:
    """A stream deriver for rebuilds whose result does not matter."""
    return DerivedState((), ())


def blobs_of(store: Store, *contents: bytes, tenant: str = TENANT) -> list[bytes]:
    """Return the contents that the store has as blobs, in this order."""
    hashes = [hash_of(content) for content in contents]
    found = store.blobs(tenant, hashes)
    return [found[hash_] for hash_ in hashes if hash_ in found]


class AppendFields(TypedDict, total=False):
    """The fields of an `Append` beside its writes. Without `tenant` it is TENANT."""

    tenant: str
    projections: tuple[Projection, ...]
    drops: tuple[tuple[str, str], ...]
    snapshots: tuple[Snapshot, ...]
    key: KeyUse | None
    time_us: int


def make_append(*writes: StreamWrite, **fields: Unpack[AppendFields]) -> Append:
    """Return an append of some writes."""
    fields.setdefault("tenant", TENANT)
    return Append(writes=writes, **fields)


def commit(store: Store, *appends: Append) -> list[AppendOutcome]:
    """Commit appends together under the write lock; repeat those once that lost a race in their tenant.

    A store that can't exclude other writers reports a lost race. It is safe to repeat these appends, because
    they depend on nothing that was read.
    """
    with store.write_lock():
        outcomes = store.commit(appends)
        if lost := [at for at, outcome in enumerate(outcomes) if lost_race(outcome)]:
            for at, outcome in zip(lost, store.commit([appends[at] for at in lost]), strict=True):
                outcomes[at] = outcome
        return outcomes


def lost_race(outcome: AppendOutcome) -> bool:
    """Whether another writer of the tenant was faster."""
    return isinstance(outcome, Stale) and not outcome.stream


def commit_all(store: Store, *appends: Append) -> None:
    """Commit appends that must all be accepted."""
    outcomes = commit(store, *appends)
    assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes


def try_append(store: Store, *writes: StreamWrite, key: KeyUse | None = None, time_us: int = 0) -> AppendOutcome:
    """Commit one append and return its outcome."""
    return commit(store, make_append(*writes, key=key, time_us=time_us))[0]


def append(store: Store, *writes: StreamWrite, **fields: Unpack[AppendFields]) -> None:
    """Commit one append that must be accepted."""
    commit_all(store, make_append(*writes, **fields))


def occasion(store: Store, tenant: str = TENANT) -> StreamWrite:
    """Return a write for an append that needs none, because every append has at least one."""
    return write("occasions", store.version(tenant, "occasions"), b"")


def project(store: Store, *rows: Projection, tenant: str = TENANT) -> None:
    append(store, occasion(store, tenant), tenant=tenant, projections=rows)


def feed_all(store: Store, tenant: str = TENANT, limit: int = 256) -> list[StoredEvent]:
    """Read a tenant's whole feed, page by page."""
    events: list[StoredEvent] = []
    while page := store.feed(tenant, after=events[-1].position if events else 0, limit=limit):
        events += page
    return events


def verify_store(store: Store) -> Report:
    """Run `verify` to its end and return the report."""
    *progress, report = store.verify()
    assert isinstance(report, Report), "verify yields its report last"
    assert progress == sorted(progress, key=_count), "verify counts upwards"
    return report


def _count(progress: int | Report) -> int:
    assert isinstance(progress, int), "verify yields one report"
    return progress


def visible_state(store: Store, tenant: str = TENANT) -> tuple[object, ...]:
    """Return everything that can be read of a tenant by the names that the suite uses, for comparisons."""
    report = verify_store(store)
    streams, claims, keys = "abc", ("c1", "c2", "c3"), ("k1", "k2", "k3")
    return (
        feed_all(store, tenant),
        [store.version(tenant, stream) for stream in streams],
        [store.read(tenant, stream) for stream in streams],
        [store.find_claim(tenant, stream, claim) for stream in streams for claim in claims],
        [store.find_key(tenant, key) for key in keys],
        [store.snapshot(tenant, stream) for stream in streams],
        store.notes(tenant),
        store.query_projections(tenant, Query(kind="row")),
        [store.query_projections(tenant, Query(kind="row", terms=(term,))) for term in ("t1", "t2")],
        blobs_of(store, b"x1", b"x2", b"x3", tenant=tenant),
        sorted(store.tenants()),
        (report.faults, report.events, report.tenants),
    )


_TENANTS = ("acme", "globex", "a\x00b")
_STREAMS = ("s", "s\x00", "t", "ü", "v")
_KINDS = ("row", "other")
_TEXTS = ("", "a", "b", "b\x00")
_BLOBS = tuple(b"%d" % number * 1_000 for number in range(60))
_CHECK_EVERY = 25
_SAME_TIME = 30
"""Times of projections are rounded to this many microseconds, so that many rows have equal times."""


def walk(open_store: Callable[[], Store], *, steps: int, seed: int, reopen_every: int | None = None) -> None:
    """Take random steps on a store and on a model; raise AssertionError if they differ.

    With `reopen_every` the store is closed and opened again after that many steps on average.
    """
    walker = _RandomWalk(open_store(), random.Random(seed))
    try:
        for number in range(1, steps + 1):
            try:
                walker.step()
                if number % _CHECK_EVERY == 0 or number == steps:
                    walker.compare_everything()
            except AssertionError as error:
                error.add_note(f"at step {number} of the walk with seed {seed}")
                raise
            if reopen_every and walker.dice.randrange(reopen_every) == 0:
                walker.store.close()
                walker.store = open_store()
    finally:
        walker.store.close()


class _TenantModel:
    """The expected content of one tenant, in plain lists and dicts."""

    def __init__(self) -> None:
        self.events: list[StoredEvent] = []
        self.claims: dict[tuple[str, str], int] = {}
        self.keys: dict[str, tuple[KeyRecord, int]] = {}
        self.rows: dict[tuple[str, str], Projection] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.blobs: dict[bytes, bytes] = {}

    def of_stream(self, stream: str) -> list[StoredEvent]:
        return [e for e in self.events if e.stream == stream]

    def version(self, stream: str) -> int:
        return len(self.of_stream(stream))

    def seek(self, stream: str, ordinal: int) -> int:
        return min((e.version for e in self.of_stream(stream) if e.ordinal >= ordinal), default=0)

    def take(self, append: Append) -> AppendOutcome:
        if append.key and append.key.key in self.keys:
            return self.keys[append.key.key][0]
        for write in append.writes:
            if self.version(write.stream) != write.expected:
                return Stale(write.stream, self.version(write.stream))
        claims = dict(self.claims)
        for write in append.writes:
            for claim, index in write.claims:
                if (write.stream, claim) in claims:
                    return ClaimTaken(write.stream, claim, claims[write.stream, claim])
                claims[write.stream, claim] = write.expected + index + 1
        self.claims = claims
        return self._take(append)

    def _take(self, append: Append) -> Appended:
        first = len(self.events) + 1
        for write in append.writes:
            for new in write.events:
                self.events.append(_stored(new, self, write.stream))
                self.blobs |= {hash_of(content): content for content in new.blobs}
        for row in append.projections:
            self.rows[row.kind, row.id] = row
        for drop in append.drops:
            self.rows.pop(drop, None)
        for snapshot in append.snapshots:
            self.snapshots[snapshot.stream] = snapshot
        if append.key:
            used = KeyRecord(append.key.command_hash, first, len(self.events))
            self.keys[append.key.key] = used, append.time_us
        return Appended(first, len(self.events))

    def forget_keys(self, before_us: int) -> int:
        old = [key for key, (_, time_us) in self.keys.items() if time_us < before_us]
        for key in old:
            del self.keys[key]
        return len(old)

    def query(self, query: Query) -> list[Projection]:
        rows = [row for row in self.rows.values() if meets(row, query)]
        rows.sort(key=lambda row: (row.time_us, row.id), reverse=True)
        return rows[query.offset :][: query.limit]


def _stored(new: NewEvent, model: _TenantModel, stream: str) -> StoredEvent:
    fields = (new.kind, new.schema, new.time_us, new.ordinal, new.tokens, new.counter, new.payload)
    return StoredEvent(len(model.events) + 1, stream, model.version(stream) + 1, *fields, b"")


def meets(row: Projection, query: Query) -> bool:
    """Whether a row matches a query."""
    low, high = query.since_us, query.until_us
    return (
        row.kind == query.kind
        and query.owner in (None, row.owner)
        and query.status in (None, row.status)
        and query.lookup in (None, row.lookup)
        and (low is None or low <= row.time_us)
        and (high is None or row.time_us <= high)
        and all(term in row.terms for term in query.terms)
        and (query.after is None or (row.time_us, row.id) < query.after)
    )


def _without_links(events: list[StoredEvent]) -> list[StoredEvent]:
    return [msgspec.structs.replace(e, link=b"") for e in events]


class _RandomWalk:
    """A store, the models of its tenants, and the source of random numbers."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self.store = store
        self.dice = dice
        # Own random numbers, so that the steps of a seed stay the same.
        self._blobs = random.Random(0)
        self.now_us = 0
        self.models = {tenant: _TenantModel() for tenant in _TENANTS}
        self._verbs = (self._commit, self._commit, self._commit, self._look, self._page, self._forget)

    def step(self) -> None:
        self.now_us += self.dice.randrange(3)
        self.dice.choice(self._verbs)()

    def compare_everything(self) -> None:
        used = [tenant for tenant in _TENANTS if self.models[tenant].events]
        assert sorted(self.store.tenants()) == sorted(used)
        for tenant, model in self.models.items():
            self._compare(tenant, model)
        report = verify_store(self.store)
        total = sum(len(model.events) for model in self.models.values())
        assert (report.faults, report.events, report.tenants) == ((), total, len(used))
        kept = sum(len(model.blobs) for model in self.models.values())
        assert self.store.status()["blobs"] == kept

    def _compare(self, tenant: str, model: _TenantModel) -> None:
        store = self.store
        feed = feed_all(store, tenant)
        assert _without_links(feed) == model.events
        for stream in _STREAMS:
            assert store.version(tenant, stream) == model.version(stream)
            own = [e for e in feed if e.stream == stream]
            assert store.read(tenant, stream, limit=10_000) == own
            assert store.snapshot(tenant, stream) == model.snapshots.get(stream)
        for (stream, claim), version in model.claims.items():
            assert store.find_claim(tenant, stream, claim) == version
        for key, (used, _) in model.keys.items():
            assert store.find_key(tenant, key) == used
        assert store.blobs(tenant, [hash_of(content) for content in _BLOBS]) == model.blobs
        for kind in _KINDS:
            query = Query(kind=kind, limit=10_000)
            assert store.query_projections(tenant, query) == model.query(query)

    def _commit(self) -> None:
        # The models of a batch move on while it is made, so that most of its appends are taken.
        appends: list[Append] = []
        expected: list[AppendOutcome] = []
        for _ in range(self.dice.choice((1, 1, 2, 5))):
            append = self._append(self.dice.choice(_TENANTS))
            appends.append(append)
            expected.append(self.models[append.tenant].take(append))
        with self.store.write_lock():
            assert self.store.commit(appends) == expected

    def _append(self, tenant: str) -> Append:
        dice, model = self.dice, self.models[tenant]
        streams = dice.sample(_STREAMS, dice.choice((1, 1, 2, 3)))
        rows = [self._row() for _ in self._few()]
        drops = [(dice.choice(_KINDS), f"r{dice.randrange(12)}") for _ in self._few()]
        written = {(row.kind, row.id) for row in rows}
        key = KeyUse(f"k{dice.randrange(40)}", b"%d" % dice.randrange(3))
        writes = tuple(self._write(model, stream) for stream in streams)
        drops = tuple(drop for drop in drops if drop not in written)
        snapshots = tuple(self._snapshot(write) for write in writes[: dice.randrange(2)])
        key = key if dice.randrange(3) == 0 else None
        made = make_append(*writes, tenant=tenant, projections=tuple(rows), drops=drops, key=key, time_us=self.now_us)
        return msgspec.structs.replace(made, snapshots=snapshots)

    def _write(self, model: _TenantModel, stream: str) -> StreamWrite:
        dice = self.dice
        expected = model.version(stream) + dice.choice((0,) * 12 + (1, -1))
        ordinal = max((e.ordinal for e in model.of_stream(stream)), default=0)
        events: list[NewEvent] = []
        for _ in range(dice.choice((1, 1, 2, 6))):
            ordinal += dice.randrange(3)
            events.append(self._event(ordinal))
        claims = [(f"c{dice.randrange(400)}", dice.randrange(len(events))) for _ in self._few()]
        return StreamWrite(stream, max(expected, 0), tuple(events), tuple(claims))

    def _event(self, ordinal: int) -> NewEvent:
        dice = self.dice
        payload = dice.randbytes(dice.choice((0, 1, 20, 300)))
        tokens = dice.choice((None, 0, 7))
        counter = None if tokens is None else "words"
        blobs = tuple(self._blobs.sample(_BLOBS, self._blobs.choice((0, 0, 0, 1, 2))))
        return NewEvent("a.b", dice.randrange(1, 4), self.now_us, payload, ordinal, tokens, counter, blobs)

    def _row(self) -> Projection:
        dice = self.dice
        return Projection(
            kind=dice.choice(_KINDS),
            id=f"r{dice.randrange(12)}",
            owner=dice.choice(_TEXTS),
            status=dice.choice(_TEXTS),
            time_us=self.now_us // _SAME_TIME + dice.randrange(2),
            lookup=dice.choice(_TEXTS),
            terms=tuple(dice.sample(_TEXTS, dice.randrange(3))),
            document=dice.randbytes(dice.randrange(9)),
        )

    def _snapshot(self, write: StreamWrite) -> Snapshot:
        version = write.expected + len(write.events)
        return Snapshot(write.stream, version, self.dice.randrange(3), self.dice.randbytes(8))

    def _few(self) -> range:
        return range(self.dice.choice((0, 0, 1, 3)))

    def _look(self) -> None:
        dice, store = self.dice, self.store
        tenant, stream = dice.choice(_TENANTS), dice.choice(_STREAMS)
        model = self.models[tenant]
        length = model.version(stream)
        after, limit = dice.randrange(length + 2), dice.randrange(1, 9)
        until = dice.choice((None, dice.randrange(length + 2)))
        own = [e for e in model.of_stream(stream) if after < e.version <= (until or length)]
        page = store.read(tenant, stream, after=after, until=until, limit=limit)
        assert _without_links(page) == ([] if until == 0 else own[:limit])
        page = store.feed(tenant, after=after, limit=limit)
        assert _without_links(page) == model.events[after : after + limit]
        ordinal = dice.randrange(length + 3)
        assert store.find_ordinal(tenant, stream, ordinal) == model.seek(stream, ordinal)
        claim, row = f"c{dice.randrange(400)}", (dice.choice(_KINDS), f"r{dice.randrange(12)}")
        assert store.find_claim(tenant, stream, claim) == model.claims.get((stream, claim), 0)
        assert store.find_projection(tenant, *row) == model.rows.get(row)

    def _page(self) -> None:
        dice = self.dice
        tenant = dice.choice(_TENANTS)
        cursors = [(row.time_us, row.id) for row in self.models[tenant].rows.values()]
        newest = self.now_us // _SAME_TIME
        query = Query(
            kind=dice.choice(_KINDS),
            owner=dice.choice((None, None, *_TEXTS)),
            status=dice.choice((None, None, *_TEXTS)),
            lookup=dice.choice((None, None, *_TEXTS)),
            since_us=dice.choice((None, newest // 2)),
            until_us=dice.choice((None, newest - 1)),
            terms=tuple(dice.sample(_TEXTS, dice.choice((0, 0, 1, 2)))),
            after=dice.choice((None, dice.choice(cursors or [(newest, "r5")]))),
            offset=dice.choice((0, 0, 2)),
            limit=dice.randrange(1, 9),
        )
        assert self.store.query_projections(tenant, query) == self.models[tenant].query(query)

    def _forget(self) -> None:
        tenant = self.dice.choice(_TENANTS)
        before_us = self.now_us - self.dice.randrange(30)
        forgotten = self.models[tenant].forget_keys(before_us)
        assert self.store.delete_keys(tenant, before_us=before_us) == forgotten
