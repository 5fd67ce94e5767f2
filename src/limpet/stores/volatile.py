"""The store in RAM, for tests and throw-away work.

It keeps the full contract in dicts and is gone when the process ends. Rows are digested and
chained, and checked on every read, as on disk. Every public verb takes the lock once and works
on one tenant's data (`volatile_data`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from limpet import errors, limits
from limpet.core.values.json_values import Json
from limpet.stores import chain, port, store_copy, volatile_data
from limpet.stores.erasure import Erasure, ErasureCounts
from limpet.stores.port import check_note
from limpet.stores.volatile_data import (
    RandomBytes,
    TenantData,
    blob_faults,
    name_and_key_faults,
    row_faults,
)

_PROGRESS_EVERY = 1_000


class VolatileStore:
    """A store in RAM. Safe for threads; one process only; nothing outlives `close`."""

    def __init__(self, *, salts: RandomBytes = os.urandom) -> None:
        self._random = salts
        self._data_by_tenant: dict[str, TenantData] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._notes: dict[str, dict[str, port.Note]] = {}
        self._note_counts: dict[str, int] = {}
        self._write_lock = threading.Lock()
        self._holder: threading.Thread | None = None
        self._closed = False
        self._cache_epoch = 0
        self._pending: bytes | None = None

    @property
    def durability(self) -> str:
        """Nothing survives the process."""
        return "none"

    @contextmanager
    def write_lock(self) -> Generator[bool]:
        """Hold the right to decide among the threads of this process. Not re-entrant.

        Raises StoreBusy, naming the thread that has it, after limits.WRITE_LOCK_WAIT_S.
        """
        assert self._holder is not threading.current_thread(), "this thread has the turn already"
        if not self._write_lock.acquire(timeout=limits.WRITE_LOCK_WAIT_S):
            holder = self._holder.name if self._holder else "unknown"
            raise errors.StoreBusy(
                f"thread {holder} has held the store's turn for {limits.WRITE_LOCK_WAIT_S:g} s.",
                hint="Retry, or look at what that thread waits for.",
                facts={"holder": holder},
            )
        self._holder = threading.current_thread()
        try:
            self._refuse_if_closed()
            yield False
        finally:
            self.release_write_lock()

    @property
    def contended(self) -> bool:
        """Never: there are no other processes."""
        return False

    def hand_off(self, appends: Sequence[port.Append]) -> list[port.Appended | None] | None:  # noqa: ARG002
        """Nobody else is there to commit them."""
        return None

    def open_pipeline(self) -> None:
        """A commit is over when it returns: there is nothing to wait for meanwhile."""

    def take_handed_off(self) -> list[tuple[str, str]]:
        """Nobody: see above."""
        return []

    def release_write_lock(self) -> None:
        """Give the turn back if this thread holds it still."""
        if self._holder is threading.current_thread():
            self._holder = None
            self._write_lock.release()

    def is_unchanged(self, tenant: str) -> bool:  # noqa: ARG002 - the port's parameter
        """Always: nobody else is let in."""
        return True

    def commit(self, appends: Sequence[port.Append]) -> list[port.AppendOutcome]:
        """Take each append whole or not at all, in order."""
        assert self._holder is threading.current_thread(), "commit is called inside turn"
        with self._lock:
            self._refuse_if_closed()
            outcomes = [self._append(append) for append in appends]
            self._changed.notify_all()
            return outcomes

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        """Return the stream's version, now or at a position of the feed; 0 if it did not exist."""
        with self._tenant_data(tenant) as books:
            return books.version(stream, position)

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
    ) -> list[port.StoredEvent]:
        """Return the stream's events with after < version <= until, in order, at most `limit`."""
        with self._tenant_data(tenant) as books:
            return books.read(stream, after, until, limit, at, newest=newest)

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""
        with self._tenant_data(tenant) as books:
            page = books.rows[after : after + limit]
            return [books.event(row.address.position, name) for name, row in page]

    def head(self, tenant: str) -> int:
        """Return the position of the tenant's last event; 0 if it has none."""
        with self._tenant_data(tenant) as books:
            return len(books.rows)

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash; those it lacks are left out."""
        with self._tenant_data(tenant) as books:
            found = {hash_: books.blobs[hash_] for hash_ in hashes if hash_ in books.blobs}
        for hash_, content in found.items():
            if not chain.blob_matches(hash_, content):
                raise chain.damaged_blob_error(hash_)
        return found

    def find_ordinal(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        """Return the lowest version whose event has at least this ordinal; 0 if there is none."""
        with self._tenant_data(tenant) as books:
            return books.find_ordinal(stream, ordinal, at)

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        """Return the version of the event that made the claim; 0 if it is free."""
        with self._tenant_data(tenant) as books:
            return books.find_claim(stream, claim, at)

    def find_key(self, tenant: str, key: str) -> port.KeyRecord | None:
        """Return what an idempotency key was used for."""
        with self._tenant_data(tenant) as books:
            return books.find_key(key)

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop idempotency keys used before that moment; return how many."""
        with self._tenant_data(tenant) as books:
            return books.forget_keys(before_us)

    def note(self, tenant: str, name: str) -> port.Note | None:
        """Return a note, None if it is not there."""
        check_note(name)
        with self._lock:
            self._refuse_if_closed()
            return self._notes.get(tenant, {}).get(name)

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put or drop a note if it is at a version; return whether it was."""
        check_note(name, value)
        with self._lock:
            self._refuse_if_closed()
            noted = self._notes.setdefault(tenant, {})
            before = noted.get(name)
            if (before.version if before else 0) != expected:
                return False
            if value is None:
                noted.pop(name, None)
            else:
                version = self._note_counts[tenant] = self._note_counts.get(tenant, 0) + 1
                noted[name] = port.Note(value, version)
            return True

    def notes(
        self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256
    ) -> list[tuple[str, port.Note]]:
        """Return notes whose names begin with a prefix, those after a name, by name."""
        with self._lock:
            self._refuse_if_closed()
            noted = self._notes.get(tenant, {})
            names = sorted(name for name in noted if name.startswith(prefix) and name > after)
            return [(name, noted[name]) for name in names[:limit]]

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True as soon as the feed has a position > after; False when the time is up."""

        def there() -> bool:
            self._refuse_if_closed()
            books = self._data_by_tenant.get(tenant)
            return books is not None and len(books.rows) > after

        with self._changed:
            return self._changed.wait_for(there, timeout_s)

    def find_projection(self, tenant: str, kind: str, id: str) -> port.Projection | None:
        """Return one projection."""
        with self._tenant_data(tenant) as books:
            return books.projections.get(kind, {}).get(id)

    def query_projections(self, tenant: str, query: port.Query) -> list[port.Projection]:
        """Return one page of projections."""
        with self._tenant_data(tenant) as books:
            return books.query(query)

    def snapshot(self, tenant: str, stream: str) -> port.Snapshot | None:
        """Return the stream's newest snapshot."""
        with self._tenant_data(tenant) as books:
            return books.snapshot(stream)

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""
        with self._lock:
            self._refuse_if_closed()
            return sorted(self._data_by_tenant)

    def verify(self) -> Iterator[int | port.Report]:
        """Check rows' digests, places and links, and blobs; yield events checked so far, the report last."""
        with self._lock:
            self._refuse_if_closed()
            logs = {tenant: list(books.rows) for tenant, books in self._data_by_tenant.items()}
            blobs = {
                t: (dict(books.blobs), dict(books.blob_uses))
                for t, books in self._data_by_tenant.items()
            }
            gone = {
                tenant: [*volatile_data.erasure_faults(books), *name_and_key_faults(books)]
                for tenant, books in self._data_by_tenant.items()
            }
        checked = 0
        faults: list[str] = []
        for tenant, rows in sorted(logs.items()):
            faults.extend(f"Tenant {tenant!r}: {why}" for why in blob_faults(*blobs[tenant]))
            faults.extend(f"Tenant {tenant!r}: {why}" for why in gone[tenant])
            before = chain.GENESIS_LINK
            for position, (_, row) in enumerate(rows, start=1):
                faults.extend(
                    f"Tenant {tenant!r}: {why}" for why in row_faults(row, position, before)
                )
                before = row.link
                checked += 1
                if checked % _PROGRESS_EVERY == 0:
                    yield checked
        yield port.Report(events=checked, tenants=len(logs), faults=tuple(faults))

    def rebuild(self, derive: port.StreamDeriver) -> Generator[int | port.Rebuilt]:
        """Make all that is derived again from the log, and put it into place at once."""
        done, made = 0, port.Rebuilt()
        with self.write_lock():
            every = list(self._data_by_tenant.values())
            for books in every:
                books.check_log()
                done += len(books.rows)
                yield done
            fresh: list[dict[str, port.DerivedState]] = []
            for books in every:
                fresh.append(books.derive_all(derive))
                done += len(books.rows)
                yield done
            with self._lock:
                self._refuse_if_closed()
                for books, derived in zip(every, fresh, strict=True):
                    made = books.replace_derived(derived, made)
                self._cache_epoch += 1
        yield made

    def cache_epoch(self, tenant: str) -> int:  # noqa: ARG002 - here it is one count for all
        """Return how often it was rebuilt or erased from."""
        with self._lock:
            self._refuse_if_closed()
            return self._cache_epoch

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Return the other streams that go on from this one, each with the version that it goes on from."""
        with self._tenant_data(tenant) as books:
            return books.forks(stream)

    def erase(self, erasure: Erasure, derive: port.StreamDeriver) -> ErasureCounts | port.Stale:
        """Take payloads out of the log, and put what is left into place at once."""
        with self.write_lock():
            before = self._data_by_tenant.get(erasure.tenant) or TenantData()
            outcome = volatile_data.with_erasure(before, erasure, derive, self._random)
            if isinstance(outcome, port.Stale):
                return outcome
            with self._lock:
                self._refuse_if_closed()
                self._data_by_tenant[erasure.tenant], gone = outcome
                self._cache_epoch += 1
                self._pending = (self._pending or b"") + erasure.pending_work
            return gone

    def pending_erasures(self) -> bytes | None:
        """Return what the last erasure had to do, until `scrub` was called."""
        with self._lock:
            self._refuse_if_closed()
            return self._pending

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Nothing is left anywhere."""
        with self._lock:
            self._refuse_if_closed()
            self._pending = left + (self._pending or b"").removeprefix(done) or None

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[port.RawEvent]:
        """Return the tenant's events with position > after as they are kept; each is checked."""
        with self._tenant_data(tenant) as books:
            return volatile_data.copy_page(books, after, limit)

    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[port.RawKey]:
        """Return the tenant's idempotency keys after one, by their text."""
        with self._tenant_data(tenant) as books:
            return volatile_data.copy_keys(books, after, limit)

    def paste(
        self,
        tenant: str,
        events: Sequence[port.RawEvent],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[port.RawKey] = (),
    ) -> None:
        """Keep events exactly as they are; all of them are looked at before the first is put."""
        with self.write_lock(), self._tenant_data(tenant) as books:
            fit = store_copy.plan_page(volatile_data.VolatileCopyTarget(books), events, blobs, keys)
            if not fit:
                return
            volatile_data.write_page(books, fit)
            self._data_by_tenant[tenant] = books
            self._cache_epoch += 1
            if fit.newly_erased:
                self._pending = self._pending or b""
            self._changed.notify_all()

    def status(self) -> Mapping[str, Json]:
        """Return facts for people."""
        with self._lock:
            self._refuse_if_closed()
            return {
                "backend": "volatile",
                "durability": self.durability,
                "tenants": len(self._data_by_tenant),
                "events": sum(len(books.rows) for books in self._data_by_tenant.values()),
                "blobs": sum(len(books.blobs) for books in self._data_by_tenant.values()),
            }

    def backup(self, target: str) -> Iterator[tuple[int, int]]:  # noqa: ARG002 - the port's parameter
        """Refuse: there is no file to copy."""
        self._refuse_if_closed()
        raise errors.NoBackup(
            "a volatile store has no file to back up.",
            hint='Open a store on a file instead: limpet.connect("state.db").',
        )

    def close(self) -> None:
        """Forget everything. Closing twice is fine."""
        with self._lock:
            self._closed = True
            self._data_by_tenant.clear()
            self._notes.clear()
            self._changed.notify_all()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise errors.EngineClosed

    @contextmanager
    def _tenant_data(self, tenant: str) -> Generator[TenantData]:
        with self._lock:
            self._refuse_if_closed()
            yield self._data_by_tenant.get(tenant) or TenantData()

    def _append(self, append: port.Append) -> port.AppendOutcome:
        books = self._data_by_tenant.get(append.tenant) or TenantData()
        outcome = books.append(append, self._random)
        if isinstance(outcome, port.Appended):
            self._data_by_tenant[append.tenant] = books
        return outcome


_: type[port.Store] = VolatileStore
