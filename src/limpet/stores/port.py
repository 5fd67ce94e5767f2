"""The store port: values, verbs, and the promises that every backend keeps.

A store keeps one log of events per tenant. Each event belongs to one stream. Beside the log it keeps derived data
(claims, projections, snapshots), idempotency keys, blobs (large content that events refer to) and notes (small records
that change in place). It does not know what a message is.

The promises, each proved on every backend by `limpet.testing.store_contract`:

1. **All or nothing.** An `Append` takes effect completely (events of all its streams, blobs, claims, key, projections,
   snapshots) or leaves no trace. Appends that are committed together have separate outcomes.
2. **Conditional.** A write whose `expected` is not the stream's version gets `Stale`. A write whose claim is taken gets
   `ClaimTaken`. A write whose key was used gets `KeyRecord`. None of them leaves a trace.
3. **Acknowledged means durable.** When `commit` returns, its appends are durable at the level that `durability` names,
   and visible to every later read in any process.
4. **Gapless feed.** Positions of a tenant's events are 1, 2, 3 … in commit order. No event appears later below a
   position that was read. The same holds for versions of a stream, except those that a rewind leaves out.
5. **Isolation.** No call sees, changes or reveals another tenant's data.
6. **Damage is detected.** Every event that is read is checked against its digest. `verify` checks the chain. Damage
   raises Corrupt with its place. It is never skipped and never read as data.
7. **Typed errors.** Driver errors become Unavailable or Corrupt, with the cause kept. After Unavailable from `commit`
   the effect is unknown, and a retry with the same key or claims has exactly one effect.
8. **Safe under concurrency.** Threads and processes may share a store. A decision made and committed under one
   `write_lock` rests on the tenant's present state: file stores lock other processes out, stores on a server refuse a
   commit that was decided on an older state.
9. **Blobs once.** A tenant's blob is kept once, under the SHA-256 of its content, as long as an event refers to it.
   Every read checks its hash. `verify` reports damaged and missing blobs.
10. **The log is the truth.** Claims, projections, snapshots and uses of blobs can be dropped and derived again.
    `rebuild` does so completely or not at all (on a server: for each tenant), and only from an undamaged log. If the
    log has a claim twice, because the first was lost, the first one counts.
11. **Forks and rewinds by reference.** A write with a base makes its stream continue from a version of a stream:
    another one (a fork) or itself (a rewind). Nothing is copied. Up to the base version the stream has the base's
    events, ordinals and claims. Its own events follow, numbered above all that either had. What it had beyond the base
    is no longer in it, but can be read with `at` a version. That never changes.
12. **Notes are compared and set.** A note is written only if it still has the version that the caller saw. No version
    is used twice, even after the note was dropped. Notes are as durable as events, and are not derived.
13. **Waiting callers are woken.** A caller that waits for a tenant's feed is woken by commits of this process, and
    shortly after by those of other processes.
14. **Erased is gone.** `erase` removes payloads from the log, and all that was derived from them, completely or not at
    all. The chain still verifies, and a notice in the log says that the erasure was intended. After `scrub` no file of
    the store has any of it. An event without payload that no notice names is damage.
15. **Exact copies.** What `copy_events` and `copy_keys` return of one store, `paste` writes to another byte for byte:
    positions, links, erasures and keys stay, so cursors and proofs hold there too. A page is written completely or not
    at all, after the head that it follows, and only if every event in it is undamaged. An interrupted copy continues
    from the target's head. Later erasures are applied to the copy as well. `rebuild` must follow before the copy is
    used.
"""

# pyright: reportReturnType=false
# A verb of a protocol has a docstring instead of a body.

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, runtime_checkable

import msgspec

from limpet.core.values.validation import Json


class NewEvent(msgspec.Struct, frozen=True, gc=False):
    """An event to append. All fields but payload and blobs form its header, which holds no text of a caller.

    `ordinal` never decreases within a stream; a session counts its messages with it. `blobs` are large contents. The
    payload holds the SHA-256 of each, so that the event's digest covers them too.
    """

    kind: str
    schema: int
    time_us: int
    payload: bytes
    ordinal: int = 0
    tokens: int | None = None
    counter: str | None = None
    blobs: tuple[bytes, ...] = ()


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """A stored event, checked against its digest. If it is `erased`, `payload` is the redacted payload or None."""

    position: int
    stream: str
    version: int
    kind: str
    schema: int
    time_us: int
    ordinal: int
    tokens: int | None
    counter: str | None
    payload: bytes | None
    link: bytes
    erased: bool = False


class StreamWrite(msgspec.Struct, frozen=True, gc=False):
    """Events for one stream, on condition that it is at version `expected` (0: it does not exist).

    `claims` are texts that a stream can have only once, each with the index of the event that makes the claim. `base`
    is a stream and one of its present or past versions: the written stream continues from there, numbered from one
    above the higher of `expected` and the base version. If the base is another stream, `expected` is 0. A base at
    version 0 of the same stream empties the stream.
    """

    stream: str
    expected: int
    events: tuple[NewEvent, ...]
    claims: tuple[tuple[str, int], ...] = ()
    base: tuple[str, int] | None = None


class Projection(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A derived row. All kinds have the same fields. A query finds rows by exact `terms`."""

    kind: str
    id: str
    owner: str = ""
    status: str = ""
    time_us: int = 0
    lookup: str = ""
    terms: tuple[str, ...] = ()
    document: bytes = b""


class KeyUse(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key and the hash of the command that uses it."""

    key: str
    command_hash: bytes


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """The state of a stream at a version. `fold` is the version of the function that computed the state."""

    stream: str
    version: int
    fold: int
    state: bytes


class Note(msgspec.Struct, frozen=True, gc=False):
    """A small record of a tenant, stored outside the log. Every change gives it a higher version."""

    value: bytes
    version: int


class RawEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An event exactly as stored, to be copied to another store unchanged.

    `stream` is the present name of its stream, `number` the position of that stream's first event. `base` is set if
    the stream was forked or rewound here: number and version of the stream that it continues. `blobs` are the hashes
    of the blobs that the payload refers to. `erased` is set once payload and salt are removed: the position of the
    notice, the position of the cause (0: the whole stream was erased), and the redacted payload.
    """

    stream: str
    position: int
    number: int
    version: int
    header: bytes
    payload: bytes | None
    salt: bytes | None
    digest: bytes
    link: bytes
    base: tuple[int, int] | None = None
    blobs: tuple[bytes, ...] = ()
    erased: tuple[int, int, bytes | None] | None = None


class RawKey(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key exactly as stored: the hash of its command, the positions of its events, and its time."""

    key: str
    command_hash: bytes
    first: int
    last: int
    time_us: int


class DerivedState(msgspec.Struct, frozen=True, gc=False):
    """The state derived from all events of a stream: claims and hashes of blobs with their versions, and projections.

    Claims are in the order of their versions. If a claim occurs twice, the first one counts: `chain.claims_by_stretch`.
    """

    claims: tuple[tuple[str, int], ...]
    projections: tuple[Projection, ...]
    blobs: tuple[tuple[bytes, int], ...] = ()


BlobLoader = Callable[[Collection[bytes]], Mapping[bytes, bytes]]
"""Maps hashes to the contents of a tenant's blobs; missing blobs are left out."""

StreamDeriver = Callable[[str, Iterator[StoredEvent], BlobLoader], DerivedState]
"""Maps a stream's name and all its events to the derived state. Raises Corrupt if a blob is missing."""


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One atomic change of one tenant: at least one write, each with at least one event, no stream twice.

    Conditions are checked in this order: the key, the versions of all streams, all claims. Projections are put before
    `drops` are deleted.
    """

    tenant: str
    writes: tuple[StreamWrite, ...]
    projections: tuple[Projection, ...] = ()
    drops: tuple[tuple[str, str], ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    key: KeyUse | None = None
    time_us: int = 0


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The append is in the log. Its events have the positions from `first` to `last`."""

    first: int
    last: int


class Stale(msgspec.Struct, frozen=True, gc=False):
    """A stream was at another version than expected. If `stream` is empty, the feed was at another position.

    Another writer has changed the tenant, so all cached state of the tenant may be outdated.
    """

    stream: str
    actual: int


class ClaimTaken(msgspec.Struct, frozen=True, gc=False):
    """A claim is taken: the event at this version of the stream has made it."""

    stream: str
    claim: str
    version: int


class KeyRecord(msgspec.Struct, frozen=True, gc=False):
    """The key was used before, by a command with this hash whose events have the positions from `first` to `last`."""

    command_hash: bytes
    first: int
    last: int


AppendOutcome = Appended | Stale | ClaimTaken | KeyRecord


class Query(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A page of projections of one kind, newest first, continuing after a cursor or at an offset.

    Every condition given must hold; `since_us` and `until_us` are inclusive; `terms` must all be among
    the row's. Rows of the same time come by id, descending by code point. `after` is the (time_us, id)
    of the last row of the page before; `offset` counts from there.
    """

    kind: str
    owner: str | None = None
    status: str | None = None
    lookup: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    terms: tuple[str, ...] = ()
    after: tuple[int, str] | None = None
    offset: int = 0
    limit: int = 100


class Report(msgspec.Struct, frozen=True):
    """The result of `verify`: the numbers of checked events and tenants, and one sentence for each fault."""

    events: int
    tenants: int
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not self.faults


class Rebuilt(msgspec.Struct, frozen=True):
    """The result of `rebuild`: how many events were read, and how many rows were derived from them."""

    events: int = 0
    tenants: int = 0
    streams: int = 0
    claims: int = 0
    projections: int = 0


class RedactedPayload(msgspec.Struct, frozen=True):
    """The payload that readers get in place of an erased one. It has the same kind and schema.

    `cause` is the position of the event that required this erasure, possibly itself; `blobs` are the contents that
    the payload refers to.
    """

    position: int
    payload: bytes
    cause: int
    blobs: tuple[bytes, ...] = ()


class StreamErasure(msgspec.Struct, frozen=True, kw_only=True):
    """What is erased of one stream if it is at version `expected`; `kind` is the kind of its notice.

    Either the `whole` stream, which loses its name, or its own events that `redactions` name. `derived_rows` are kind
    and id of all rows derived from a whole stream, if the caller knows them: then the stream can be erased even if its
    events are unreadable.
    """

    stream: str
    expected: int
    kind: str
    whole: bool = False
    redactions: tuple[RedactedPayload, ...] = ()
    derived_rows: tuple[tuple[str, str], ...] | None = None


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What is erased of one tenant's log at once. `pending_erasures` returns `pending_work` until it is completed.

    `head` is the position up to which the caller searched the feed for content to erase. If the feed has later events,
    the erasure is refused with Stale. None: later events are accepted.
    """

    tenant: str
    streams: tuple[StreamErasure, ...]
    time_us: int
    head: int | None = None
    pending_work: bytes = b""


class ErasureCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How much was erased: events with a payload, blobs, keys, claims and rows; `link` is that of the last notice."""

    events: int
    blobs: int
    keys: int
    claims: int
    rows: int
    link: bytes


class ErasureReplay(Protocol):
    """How an erasure is repeated in an older copy of the log."""

    def now_us(self) -> int:
        """Return the current time."""

    def derive(self, stream: str, events: Iterator[StoredEvent], blobs: BlobLoader, /) -> DerivedState:
        """Return what is derived from a stream."""

    def notice_kind(self, stream: str, /) -> str:
        """Return the kind of a stream's notice."""

    def pending_work(self, tenant: str, /) -> bytes:
        """Return the pending work of a tenant after the erasure."""

    def redactions(
        self, gone: Sequence[tuple[StoredEvent, StoredEvent]], blobs: BlobLoader, /
    ) -> list[RedactedPayload]:
        """Return the redacted payloads of events, each given with the event that required its erasure."""


class StorePipeline(AbstractContextManager["StorePipeline"], Protocol):
    """Pipelined commits to a server, for the holder of the write lock: one is sent while earlier ones are executed.

    Used in a `with` statement, at whose end nothing may be in flight; the outcome of a commit that is still in flight
    is unknown. The server executes a commit only if it executed those before it. While commits are in flight, nothing
    else of the store is read or changed by the holder.
    """

    def send(self, appends: Sequence[Append]) -> bool:
        """Send appends as one commit, if all of them will be appended as far as is known.

        Returns False if nothing was sent: use `commit` for these.
        """

    def receive(self) -> list[AppendOutcome]:
        """Wait for the outcomes of the oldest commit in flight.

        As those of `commit`; also Stale("", position) if it must be decided again for any other reason.
        """

    def has_answer(self) -> bool:
        """Return whether a part of an answer has arrived."""

    def fileno(self) -> int:
        """Return the descriptor to poll for an answer, unless `has_answer`."""


class Store(Protocol):
    """The verbs of a store. The promises are in the module docstring."""

    @property
    def durability(self) -> str:
        """The present durability: `power-loss`, `process-crash` or `none`."""

    def acquire_write_lock(self) -> bool:
        """Acquire the write lock: until it is released, no other thread of this store object commits.

        File stores also lock out other processes. A server can't: there the commit of an append decided on an outdated
        state of its tenant gets the outcome Stale("", position), and `is_unchanged` checks a decision without an append.

        Returns True if no other store object is known to have committed since this one last held the lock. Then cached
        state is valid, or `commit` refuses what was decided on it. A thread must not acquire the lock twice. Several
        commits may be made before it is released. After any exception, an interrupt included, this thread does not
        hold it.

        Raises EngineClosed; StoreBusy, naming the holder, if the lock is not free within limits.WRITE_LOCK_WAIT_S.
        """

    def release_write_lock(self) -> None:
        """Release the write lock if this thread still holds it: after an interrupt it may or may not."""

    def write_lock(self) -> AbstractContextManager[bool]:
        """Hold the write lock for the body of a `with`; yields what `acquire_write_lock` returns."""

    @property
    def contended(self) -> bool:
        """Whether other processes recently held the lock when it was wanted, so that `hand_off` may help."""

    def hand_off(self, appends: Sequence[Append]) -> list[Appended | None] | None:
        """Have the process that holds the write lock commit appends. The caller does not hold the lock.

        Returns for each append its positions, or None if it must be decided again. Returns None if no process took the
        appends: then acquire the write lock and call `commit`. Even then they may have been appended, if the answer was
        lost; so only appends that can be repeated may be handed off.
        """

    def take_handed_off(self) -> list[tuple[str, str]]:
        """Return tenant and stream of each write that was committed for another process since the last call.

        Called after each `commit`: cached state of these streams is outdated.
        """

    def is_unchanged(self, tenant: str) -> bool:
        """Return whether no other store object has appended to a tenant since the write lock was acquired.

        If False, cached state of the tenant may be outdated. The caller holds the write lock.
        """

    def commit(self, appends: Sequence[Append]) -> list[AppendOutcome]:
        """Commit appends together, in order, each with its own outcome. The caller holds the write lock."""

    def open_pipeline(self) -> StorePipeline | None:
        """Return a pipeline for commits; None if a commit does not wait for a server. For the holder of the write lock."""

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        """Return the stream's version, now or when the feed was at a position; 0 if it did not exist."""

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
        """Return the stream's events with after < version <= until, in order, at most `limit`.

        Of more than `limit` the first ones, or the `newest`. `at`: the stream as it was at that version; None: as it is
        now. Events of a base have this stream's name.
        """

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""

    def head(self, tenant: str) -> int:
        """Return the position of the tenant's last event; 0 if it has none."""

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash, in one read; missing ones are left out.

        Raises Corrupt for a blob whose content does not match its hash.
        """

    def find_ordinal(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        """Return the lowest version whose event has at least this ordinal; 0 if there is none."""

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        """Return the version of the event that made the claim; 0 if it is free."""

    def find_key(self, tenant: str, key: str) -> KeyRecord | None:
        """Return what an idempotency key was used for."""

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop the idempotency keys that were used before a moment; return how many. Takes the write lock."""

    def note(self, tenant: str, name: str) -> Note | None:
        """Return a note, or None. Raises Corrupt if it is damaged."""

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Write a note, or drop it (None), if it has version `expected` (0: it does not exist); return whether it had.

        Takes the write lock. A name has 1 to limits.NOTE_NAME_BYTES_MAX bytes, a value up to limits.NOTE_BYTES_MAX;
        TooLarge otherwise.
        """

    def notes(self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256) -> list[tuple[str, Note]]:
        """Return notes whose names begin with a prefix, after a name, in the order of names, at most `limit`."""

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True once the tenant's feed has a position > after; False after the timeout.

        Not to be called by the holder of the write lock. Raises EngineClosed if the store is closed meanwhile.
        """

    def find_projection(self, tenant: str, kind: str, id: str) -> Projection | None:
        """Return one projection."""

    def query_projections(self, tenant: str, query: Query) -> list[Projection]:
        """Return one page of projections."""

    def snapshot(self, tenant: str, stream: str) -> Snapshot | None:
        """Return the stream's newest snapshot, or None. A damaged one counts as absent.

        So does one of a version that a rewind left out. Snapshots of a base do not count.
        """

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""

    def verify(self) -> Iterator[int | Report]:
        """Check everything; yield the number of events checked so far, and the report last."""

    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        """Delete all derived rows and derive them again from the log, completely or not at all. Takes the write lock.

        Yields the number of events processed, each once for verification and once for derivation, and the result last.
        Snapshots are only dropped; idempotency keys are not derived and stay. One thread runs it to its end, or closes it,
        and uses the store for nothing else meanwhile.

        Raises Corrupt, and changes nothing, if the log or a blob is damaged. On a server each tenant is rebuilt completely
        or not at all; Conflict names a tenant that other processes wrote to during every try.
        """

    def cache_epoch(self, tenant: str) -> int:
        """Return a number that changes with every rebuild or erasure of a tenant: cached state is valid for one number.

        It also changes when a server is found to have lost acknowledged events.
        """

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Return the other streams that have this one as their base, each with the base version."""

    def erase(self, erasure: Erasure, derive: StreamDeriver) -> ErasureCounts | Stale:
        """Remove payloads from the log, and all that is derived from them. Takes the write lock.

        What remains is derived again. A stream that is erased completely loses its name, and may not be the base of a
        stream that stays. It may be damaged if its derived rows are given; otherwise Corrupt is raised. Caches are outdated
        afterwards, as after a rebuild. `scrub` must follow.
        """

    def pending_erasures(self) -> bytes | None:
        """Return the pending work of erasures, concatenated, until `scrub` has completed; None if there is none."""

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Remove erased content from every file, then replace `done`, the beginning of the pending work, by `left`.

        Work that was added after `done` stays pending. `left` becomes pending even if nothing was pending before: so a
        copy takes over the pending work of its source. Until the scrub completes, an empty line is pending too. Raises
        StoreBusy if a reader holds on for too long.
        """

    def copy_events(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[RawEvent]:
        """Return the tenant's events with position > after as stored, in order, at most `limit`, in one read.

        Each is checked against its digest. An erased event has no payload and is marked.
        """

    def copy_keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[RawKey]:
        """Return the tenant's idempotency keys after a key, in the order of their UTF-8 bytes, at most `limit`."""

    def paste(
        self, tenant: str, events: Sequence[RawEvent], *, blobs: Mapping[bytes, bytes] = {}, keys: Sequence[RawKey] = ()
    ) -> None:
        """Write events exactly as given, with their blobs and keys, completely or not at all. Takes the write lock.

        The first new event follows the tenant's head and the others follow it; links and digests must be right. Erased
        events that are already there may come before: they are erased here too, with the keys that led to them, and
        `scrub` must follow. A stream that comes under the name of an erased one keeps that name. A key that is already
        there must be equal. Nothing is derived: `rebuild` must follow before use. Until then only `copy_events`, `copy_keys`, `head`,
        `blobs`, notes and `paste` may be called.

        Raises Conflict if the events do not continue the feed, Corrupt if one is damaged or lacks a blob.
        """

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: path, size, versions, durability, counts; `blobs` is their number."""

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copy the store, consistent under load, to a new file; yield (done, total).

        Raises NoBackup, and writes nothing, if the store has no file to copy; InvalidRequest if the target exists.
        """

    def close(self) -> None:
        """Release every resource. Closing twice is fine."""


DURABILITY_LEVELS: Final = ("none", "process-crash", "power-loss")
"""Durability levels, weakest first."""


class IndexRowPut(Protocol):
    """Insert or replace a row."""

    @property
    def table(self) -> str: ...
    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...


class IndexRangeDrop(Protocol):
    """Drop the rows of a table with first <= key < last."""

    @property
    def table(self) -> str: ...
    @property
    def first(self) -> bytes: ...
    @property
    def last(self) -> bytes: ...


class ReadableDocuments(Protocol):
    """The readable documents of one store, each under a safe file name. Threads and processes may share them."""

    def safe_name(self, text: str, apart: str = "") -> str:
        """Return a file name for any text. Different texts have different names. `apart` separates tenants."""

    def write_lock(self) -> AbstractContextManager[None]:
        """Hold the lock that every writer needs; raise StoreBusy if it does not become free in time."""

    def put(self, name: str, document: Mapping[str, Json]) -> None:
        """Replace a document atomically; the previous one becomes its backup."""

    def get(self, name: str) -> dict[str, Json] | None:
        """Return a document, or its backup if it is missing or does not verify; None if neither is readable."""

    def get_primary(self, name: str) -> dict[str, Json] | None:
        """Return a document; None if it is missing or does not verify."""

    def exists(self, name: str) -> bool:
        """Whether a document exists, whatever its content."""

    def checksum(self, name: str) -> bytes | None:
        """Return the checksum of a document; None if it is missing."""

    def drop(self, name: str) -> None:
        """Remove a document and its backup."""


@runtime_checkable
class HasReadableDocuments(Protocol):
    """A store that keeps readable documents."""

    documents: ReadableDocuments


class WriteLockGuard:
    """Holds the write lock for the body of a `with`. A class, since an interrupt could leave a generator suspended."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> bool:
        return self._store.acquire_write_lock()

    def __exit__(self, *_: object) -> None:
        self._store.release_write_lock()
