"""How the contract suite opens a store and damages it, and short ways to write its test data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from limpet.stores.port import (
    Append,
    Appended,
    AppendOutcome,
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
        """Open the store kept in this folder, making it the first time."""
        raise NotImplementedError

    def open_backup(self, target: str) -> Store:
        """Open what `backup` wrote to this path."""
        pytest.skip(f"this suite was not told how to open a backup such as {target}")

    def damage(self, store: Store, position: int) -> None:
        """Change one bit of the payload of TENANT's event there, beneath the store."""
        pytest.skip(f"this suite was not told how to damage event {position} of {store}")

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        """Change one bit of the content of TENANT's blob, beneath the store."""
        pytest.skip(f"this suite was not told how to damage blob {hash_.hex()} of {store}")

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        """Take TENANT's blob away, beneath the store."""
        pytest.skip(f"this suite was not told how to lose blob {hash_.hex()} of {store}")

    def damage_note(self, store: Store, name: str) -> None:
        """Change TENANT's note beneath the store."""
        pytest.skip(f"this suite was not told how to damage note {name} of {store}")

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        """Let two of TENANT's streams have each other's name, beneath the store."""
        pytest.skip(f"this suite was not told how to swap {stream} and {other} of {store}")

    def damage_key(self, store: Store, key: str) -> None:
        """Let TENANT's idempotency key say that it led to what is not there, beneath the store."""
        pytest.skip(f"this suite was not told how to damage key {key} of {store}")

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        """Take the payload of TENANT's event there away, beneath the store; `like`: say so as of that erased one."""
        pytest.skip(f"this suite was not told how to blank event {position} of {store} like {like}")

    def tamper(self, store: Store) -> None:
        """Change some of all that is derived, of TENANT, beneath the store."""
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


def event(
    payload: bytes, *, ordinal: int = 0, time_us: int = 0, blobs: tuple[bytes, ...] = ()
) -> NewEvent:
    """Return an event."""
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
    """Return what a blob is kept under."""
    return hashlib.sha256(content).digest()


def blobs_of(store: Store, *contents: bytes, tenant: str = TENANT) -> list[bytes]:
    """Return those of the contents that the store gives back for their hashes, in that order."""
    hashes = [hash_of(content) for content in contents]
    found = store.blobs(tenant, hashes)
    return [found[hash_] for hash_ in hashes if hash_ in found]


def make_append(
    *writes: StreamWrite,
    tenant: str = TENANT,
    projections: tuple[Projection, ...] = (),
    drops: tuple[tuple[str, str], ...] = (),
    snapshots: tuple[Snapshot, ...] = (),
    key: KeyUse | None = None,
    time_us: int = 0,
) -> Append:
    """Return an append of the suite's tenant."""
    return Append(
        tenant=tenant,
        writes=writes,
        projections=projections,
        drops=drops,
        snapshots=snapshots,
        key=key,
        time_us=time_us,
    )


def commit(store: Store, *appends: Append) -> list[AppendOutcome]:
    """Commit appends together, in a turn; those once more that others were faster than in their tenant.

    Where others can't be kept out, that is how they are noticed. These appends rest on nothing but what they say.
    """
    with store.write_lock():
        outcomes = store.commit(appends)
        passed = [at for at, each in enumerate(outcomes) if lost_race(each)]
        if passed:
            again = store.commit([appends[at] for at in passed])
            for at, outcome in zip(passed, again, strict=True):
                outcomes[at] = outcome
        return outcomes


def lost_race(outcome: AppendOutcome) -> bool:
    """Whether others were faster somewhere in the tenant."""
    return isinstance(outcome, Stale) and not outcome.stream


def commit_all(store: Store, *appends: Append) -> None:
    """Commit appends that must all be taken."""
    outcomes = commit(store, *appends)
    assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes


def project(store: Store, *rows: Projection, tenant: str = TENANT) -> None:
    """Write projections, with an event as every append has."""
    commit_all(store, append_with(store, tenant=tenant, projections=rows))


def drop(store: Store, *rows: tuple[str, str], tenant: str = TENANT) -> None:
    """Drop projections, with an event as every append has."""
    commit_all(store, append_with(store, tenant=tenant, drops=rows))


def append_with(
    store: Store,
    *,
    tenant: str = TENANT,
    projections: tuple[Projection, ...] = (),
    drops: tuple[tuple[str, str], ...] = (),
    snapshots: tuple[Snapshot, ...] = (),
) -> Append:
    """Return an append whose event does not matter to the test."""
    occasion = write("occasions", store.version(tenant, "occasions"), b"")
    return make_append(
        occasion, tenant=tenant, projections=projections, drops=drops, snapshots=snapshots
    )


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
    """Return all that the suite's small names show of a tenant, to compare before and after."""
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
        [
            store.query_projections(tenant, Query(kind="row", terms=(term,)))
            for term in ("t1", "t2")
        ],
        blobs_of(store, b"x1", b"x2", b"x3", tenant=tenant),
        sorted(store.tenants()),
        (report.faults, report.events, report.tenants),
    )
