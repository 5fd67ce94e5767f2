"""A store that fails on demand: for tests of code that must retry without losing or doubling.

Failing before the effect and failing after it look the same to a caller, as they do with a real
disk or network; code that is right about one and wrong about the other is wrong.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from limpet import errors
from limpet.core.values.validation import Json
from limpet.stores.port import (
    Append,
    Appended,
    AppendOutcome,
    Erasure,
    ErasureCounts,
    KeyRecord,
    Note,
    Projection,
    Query,
    RawEvent,
    RawKey,
    Rebuilt,
    Report,
    Snapshot,
    Stale,
    Store,
    StoredEvent,
    StreamDeriver,
)


class FaultyStore:
    """Another store, whose N-th mutating call raises Unavailable, before its effect or after it.

    Mutating calls are `commit`, `hand_over`, `forget_keys`, `put_note`, `rebuild`, `erase`, `scrub` and `paste`, counted from 1; `calls` tells how many there were
    and `failed` whether the fault has happened. All calls but that one pass through.
    """

    def __init__(self, store: Store, *, fail_at: int, before: bool = True) -> None:
        assert fail_at >= 1, "calls are counted from 1"
        self.fail_at = fail_at
        self.before = before
        self.calls = 0
        self._store = store
        self._lock = threading.Lock()

    @property
    def failed(self) -> bool:
        """Whether the fault has happened."""
        return self.calls >= self.fail_at

    @property
    def durability(self) -> str:
        """The wrapped store's."""
        return self._store.durability

    def acquire_write_lock(self) -> bool:
        """Pass through."""
        return self._store.acquire_write_lock()

    def write_lock(self) -> AbstractContextManager[bool]:
        """Pass through."""
        return self._store.write_lock()

    def release_write_lock(self) -> None:
        """Pass through."""
        self._store.release_write_lock()

    def is_unchanged(self, tenant: str) -> bool:
        """Pass through."""
        return self._store.is_unchanged(tenant)

    @property
    def contended(self) -> bool:
        """Pass through."""
        return self._store.contended

    def hand_off(self, appends: Sequence[Append]) -> list[Appended | None] | None:
        """Hand over, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        outcomes = self._store.hand_off(appends)
        self._fail(fails)
        return outcomes

    def open_pipeline(self) -> None:
        """Nothing is sent ahead: every commit is a call that can fail."""

    def take_handed_off(self) -> list[tuple[str, str]]:
        """Pass through."""
        return self._store.take_handed_off()

    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        """Commit, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        outcomes = self._store.commit(appends)
        self._fail(fails)
        return outcomes

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop old keys, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        forgotten = self._store.delete_keys(tenant, before_us=before_us)
        self._fail(fails)
        return forgotten

    def note(self, tenant: str, name: str) -> Note | None:
        """Pass through."""
        return self._store.note(tenant, name)

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put a note, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        put = self._store.put_note(tenant, name, value, expected=expected)
        self._fail(fails)
        return put

    def notes(self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256) -> list[tuple[str, Note]]:
        """Pass through."""
        return self._store.notes(tenant, prefix, after=after, limit=limit)

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Pass through."""
        return self._store.wait(tenant, after, timeout_s)

    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        """Rebuild, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        yield from self._store.rebuild(derive)
        self._fail(fails)

    def cache_epoch(self, tenant: str) -> int:
        """Pass through."""
        return self._store.cache_epoch(tenant)

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        """Pass through."""
        return self._store.version(tenant, stream, position=position)

    def read(
        self,
        tenant: str,
        stream: str,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        at: int | None = None,
        newest: bool = False,
    ) -> list[StoredEvent]:
        """Pass through."""
        return self._store.read(tenant, stream, after=after, until=until, limit=limit, at=at, newest=newest)

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Pass through."""
        return self._store.feed(tenant, after=after, limit=limit)

    def head(self, tenant: str) -> int:
        """Pass through."""
        return self._store.head(tenant)

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Pass through."""
        return self._store.blobs(tenant, hashes)

    def find_ordinal(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        """Pass through."""
        return self._store.find_ordinal(tenant, stream, ordinal, at=at)

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        """Pass through."""
        return self._store.find_claim(tenant, stream, claim, at=at)

    def find_key(self, tenant: str, key: str) -> KeyRecord | None:
        """Pass through."""
        return self._store.find_key(tenant, key)

    def find_projection(self, tenant: str, kind: str, id: str) -> Projection | None:
        """Pass through."""
        return self._store.find_projection(tenant, kind, id)

    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        """Pass through."""
        return self._store.query_projections(tenant, query)

    def snapshot(self, tenant: str, stream: str) -> Snapshot | None:
        """Pass through."""
        return self._store.snapshot(tenant, stream)

    def tenants(self) -> list[str]:
        """Pass through."""
        return self._store.tenants()

    def verify(self) -> Iterator[int | Report]:
        """Pass through."""
        return self._store.verify()

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Pass through."""
        return self._store.forks(tenant, stream)

    def erase(self, erasure: Erasure, derive: StreamDeriver) -> ErasureCounts | Stale:
        """Erase, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        outcome = self._store.erase(erasure, derive)
        self._fail(fails)
        return outcome

    def pending_erasures(self) -> bytes | None:
        """Pass through."""
        return self._store.pending_erasures()

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Scrub, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        self._store.scrub(done, left)
        self._fail(fails)

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        """Pass through."""
        return self._store.copy_events(tenant, after=after, limit=limit)

    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[RawKey]:
        """Pass through."""
        return self._store.copy_keys(tenant, after=after, limit=limit)

    def paste(
        self, tenant: str, events: Sequence[RawEvent], *, blobs: Mapping[bytes, bytes] = {}, keys: Sequence[RawKey] = ()
    ) -> None:
        """Paste, or fail if this is the call that fails."""
        fails = self._counted()
        self._fail(fails and self.before)
        self._store.paste(tenant, events, blobs=blobs, keys=keys)
        self._fail(fails)

    def status(self) -> Mapping[str, Json]:
        """Pass through."""
        return self._store.status()

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Pass through."""
        return self._store.backup(target)

    def close(self) -> None:
        """Close the wrapped store."""
        self._store.close()

    def _counted(self) -> bool:
        with self._lock:
            self.calls += 1
            return self.calls == self.fail_at

    def _fail(self, now: bool) -> None:
        if now:
            raise errors.Unavailable(
                f"mutating call {self.fail_at:,} failed, as it was told to.", facts={"call": self.fail_at}
            )


def seeded(store: Store, *, seed: int, within: int) -> FaultyStore:
    """Return a store that fails once within so many mutating calls, where and how the seed says."""
    dice = random.Random(seed)
    return FaultyStore(store, fail_at=dice.randint(1, within), before=dice.random() < 0.5)


_: type[Store] = FaultyStore
