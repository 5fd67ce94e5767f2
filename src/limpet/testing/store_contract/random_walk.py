"""Random steps on a store and on a plain model, which must agree on everything.

The seed decides all steps, so a failure can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from limpet.stores.port import (
    Append,
    Appended,
    AppendOutcome,
    ClaimTaken,
    KeyRecord,
    KeyUse,
    NewEvent,
    Projection,
    Query,
    Snapshot,
    Stale,
    Store,
    StoredEvent,
    StreamWrite,
)
from limpet.testing.store_contract.harness import feed_all, hash_of, verify_store

_TENANTS = ("acme", "globex", "a\x00b")
_STREAMS = ("s", "s\x00", "t", "ü", "v")
_KINDS = ("row", "other")
_TEXTS = ("", "a", "b", "b\x00")
_BLOBS = tuple(b"%d" % number * 1_000 for number in range(60))
_CHECK_EVERY = 25
_SAME_TIME = 30
"""Microseconds of the walk that projections take for one, so that many rows have equal times."""


def walk(
    open_store: Callable[[], Store], *, steps: int, seed: int, reopen_every: int | None = None
) -> None:
    """Take so many random steps on a store and on a model; raise AssertionError where they differ.

    With `reopen_every` the store is closed and opened again, on average, after so many steps.
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
    """One tenant's truth, kept as plainly as can be."""

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
        rows = [row for row in self.rows.values() if _meets(row, query)]
        rows.sort(key=lambda row: (row.time_us, row.id), reverse=True)
        return rows[query.offset :][: query.limit]


def _stored(new: NewEvent, model: _TenantModel, stream: str) -> StoredEvent:
    position, version = len(model.events) + 1, model.version(stream) + 1
    return StoredEvent(
        position, stream, version, new.kind, new.schema, new.time_us, new.ordinal, new.tokens,
        new.counter, new.payload, b"",
    )  # fmt: skip


def _meets(row: Projection, query: Query) -> bool:
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
    """Return the events without their links, which the model does not know."""
    return [msgspec.structs.replace(e, link=b"") for e in events]


class _RandomWalk:
    """A store, the models of its tenants, and the dice."""

    def __init__(self, store: Store, dice: random.Random) -> None:
        self.store = store
        self.dice = dice
        # Dice of their own: those who came before them take the same steps as ever.
        self._blobs = random.Random(0)
        self.now_us = 0
        self.models = {tenant: _TenantModel() for tenant in _TENANTS}
        self._verbs = (
            self._commit,
            self._commit,
            self._commit,
            self._look,
            self._page,
            self._forget,
        )

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
        return Append(
            tenant=tenant,
            writes=writes,
            projections=tuple(rows),
            drops=tuple(drop for drop in drops if drop not in written),
            snapshots=tuple(self._snapshot(write) for write in writes[: dice.randrange(2)]),
            key=key if dice.randrange(3) == 0 else None,
            time_us=self.now_us,
        )

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
        return NewEvent(
            "a.b", dice.randrange(1, 4), self.now_us, payload, ordinal, tokens, counter, blobs
        )

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
