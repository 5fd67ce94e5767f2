"""The store port: what every backend promises. Bytes in, bytes out.

A store keeps one log of events per tenant; each event belongs to one stream. Beside the log it keeps what is
derived from it (claims, projections, snapshots), idempotency keys, blobs (large content that events refer to)
and notes (small records that change in place). It does not know what a message is.

Promises, each proved on every backend by `limpet.testing.contract`:

1. **All or nothing.** An `Append` takes effect completely (events of all its streams, blobs, claims, key,
   projections, snapshots) or leaves no trace. Appends that are committed together have separate outcomes.
2. **Conditional.** A write whose `expected` is not the stream's version gets `Stale`; one whose claim is taken,
   `Claimed`; one whose key was used, `Replayed`. None of them leaves a trace.
3. **Acknowledged means durable.** When `commit` returns, its appends are durable at the level that `durability`
   names, and visible to every later read in any process.
4. **Gapless feed.** Positions of a tenant's events are 1, 2, 3 … in commit order; no event appears later below a
   position that was read. The same holds for versions of a stream, except those that a rewind leaves out.
5. **Isolation.** No call sees, changes or reveals another tenant's data.
6. **Damage is detected.** Every event that is read is checked against its digest; `verify` checks the chain.
   Damage raises Corrupt with its place; it is never skipped and never read as data.
7. **Typed errors.** Driver errors become Unavailable or Corrupt, with the cause kept. After Unavailable from
   `commit` the effect is unknown, and a retry with the same key or claims has exactly one effect.
8. **Safe under concurrency.** Threads and processes may share a store. A decision made and committed within one
   `turn` rests on the tenant's present state: file stores lock others out, stores on a server refuse a commit
   that was decided on an older state.
9. **Blobs once.** A tenant's blob is kept once, under the SHA-256 of its content, as long as an event refers to
   it. Every read checks its hash; `verify` reports damaged and missing blobs.
10. **The log is the truth.** Claims, projections, snapshots and uses of blobs can be dropped and made again:
   `rebuild` does so completely or not at all (on a server: for each tenant), and only from an undamaged log. If
   the log has a claim twice, because the first was lost, the first one counts.
11. **Forks and rewinds by reference.** A write with a base makes its stream continue from a version of a stream:
   another one (a fork) or itself (a rewind). Nothing is copied. Up to the base version the stream has the base's
   events, ordinals and claims; then come its own events, numbered above all that either had. What it had beyond
   the base is no longer in it, but can be read with `at` a version. That never changes.
12. **Notes are compared and set.** A note is written only if it still has the version that the caller saw. No
   version is used twice, even after the note was dropped. Notes are as durable as events, and are not derived.
13. **Waiters are woken.** A caller that waits for a tenant's feed is woken by commits of this process, and shortly
   after by those of other processes.
14. **Erased is gone.** `erase` removes payloads from the log, and all that was derived from them, completely or
   not at all. The chain still verifies, and a notice in the log says that the erasure was intended. After `scrub`
   no file of the store has any of it. An event without payload that no notice names is damage.
15. **Exact copies.** What `copy` and `keys` return of one store, `paste` writes to another byte for byte:
   positions, links, erasures and keys stay, so cursors and proofs hold there too. A page is written completely
   or not at all, after the head that it follows, and only if every event in it is undamaged; so an interrupted
   copy continues from the target's head. Later erasures are applied to the copy as well. `rebuild` must follow
   before the copy is used.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from limpet.core.values.json_values import Json
from limpet.store.records import (
    Append,
    Appended,
    Blobs,
    Claimed,
    Derive,
    Derived,
    KeyUse,
    NewEvent,
    Note,
    Outcome,
    Projection,
    Query,
    Raw,
    RawKey,
    Replayed,
    Snapshot,
    Stale,
    StoredEvent,
    StreamWrite,
)
from limpet.store.reports import Rebuilt, Report

if TYPE_CHECKING:
    from limpet.store.erasure import Erased, Erasure

__all__ = [
    "Append",
    "Appended",
    "Blobs",
    "Claimed",
    "Derive",
    "Derived",
    "KeyUse",
    "NewEvent",
    "Note",
    "Outcome",
    "Projection",
    "Query",
    "Raw",
    "RawKey",
    "Rebuilt",
    "Replayed",
    "Report",
    "Snapshot",
    "Stale",
    "Store",
    "StoredEvent",
    "StreamWrite",
]


class Sending(AbstractContextManager["Sending"], Protocol):
    """Pipelined commits to a server, for the holder of the write lock: one is sent while earlier ones are executed.

    Used in a `with` statement, at whose end nothing may be in flight; the outcome of a commit that is still in flight
    is unknown. The server executes a commit only if it executed those before it. While commits are in flight, nothing
    else of the store is read or changed by the holder.
    """

    def send(self, appends: Sequence[Append]) -> bool:
        """Send appends as one commit, if all of them will be appended as far as is known.

        Returns False if nothing was sent: use `commit` for these.
        """
        ...

    def receive(self) -> list[Outcome]:
        """Wait for the outcomes of the oldest commit in flight.

        As those of `commit`; also Stale("", position) if it must be decided again for any other reason.
        """
        ...

    def ready(self) -> bool:
        """Return whether a part of an answer has arrived."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to poll for an answer, unless one is `ready`."""
        ...


class Store(Protocol):
    """The verbs of a store. The promises are in the module docstring."""

    @property
    def durability(self) -> str:
        """The present durability: `power-loss`, `process-crash` or `none`."""
        ...

    def turn(self) -> AbstractContextManager[bool]:
        """Hold the write lock: until the body ends, no other thread of this store object commits.

        File stores also lock out other processes. A server can't: there the commit of an append decided on an outdated
        state of its tenant gets the outcome Stale("", position), and `held` tells it of answers without an append.

        Yields whether no other store object is known to have committed since the last turn: then caches are valid, or a
        commit will refuse.

        A thread must not take it twice. Several commits may be made within one turn.

        Raises StoreBusy, naming the holder, if the lock is not free within limits.WRITE_LOCK_WAIT_S.
        """
        ...

    @property
    def crowded(self) -> bool:
        """Whether other processes recently held the lock when it was wanted, so that `hand_over` may help."""
        ...

    def hand_over(self, appends: Sequence[Append]) -> list[Appended | None] | None:
        """Have the process that holds the write lock commit appends. Called outside `turn`.

        Returns for each append whether it was appended; decide the others again. Returns None if no process took them:
        enter `turn` and commit. They may have been appended even then, if the answer was lost: hand over only what can be
        repeated.
        """
        ...

    def served(self) -> list[tuple[str, str]]:
        """Return tenant and stream of what was committed for other processes since the last call.

        Called after each `commit`: cached state of these streams is outdated.
        """
        ...

    def leave_turn(self) -> None:
        """Release the write lock if this thread still holds it: an interrupt can come before `turn` releases it."""
        ...

    def held(self, tenant: str) -> bool:
        """Return whether no other store object has appended to a tenant since this turn began. Called inside `turn`.

        If False, what was read or cached of the tenant may be outdated.
        """
        ...

    def commit(self, appends: Sequence[Append]) -> list[Outcome]:
        """Commit appends together, in order, each with its own outcome. Called inside `turn`."""
        ...

    def sending(self) -> Sending | None:
        """Return a pipeline for commits; None if a commit does not wait for a server. Used inside `turn`."""
        ...

    def version(self, tenant: str, stream: str, *, position: int | None = None) -> int:
        """Return the stream's version, now or when the feed was at a position; 0 if it did not exist."""
        ...

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
        ...

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""
        ...

    def head(self, tenant: str) -> int:
        """Return the position of the tenant's last event; 0 if it has none."""
        ...

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash, in one read; missing ones are left out.

        Raises Corrupt for a blob whose content does not match its hash.
        """
        ...

    def seek(self, tenant: str, stream: str, ordinal: int, *, at: int | None = None) -> int:
        """Return the lowest version whose event has at least this ordinal; 0 if there is none."""
        ...

    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        """Return the version of the event that made the claim; 0 if it is free."""
        ...

    def find_key(self, tenant: str, key: str) -> Replayed | None:
        """Return what an idempotency key was used for."""
        ...

    def forget_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop idempotency keys used before that moment; return how many. Takes the write lock."""
        ...

    def note(self, tenant: str, name: str) -> Note | None:
        """Return a note, or None. Raises Corrupt if it is damaged."""
        ...

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Write a note, or drop it (None), if it has version `expected` (0: it does not exist); return whether it had.

        Takes the write lock. A name has 1 to limits.NOTE_NAME_BYTES_MAX bytes, a value up to limits.NOTE_BYTES_MAX;
        TooLarge otherwise.
        """
        ...

    def notes(
        self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256
    ) -> list[tuple[str, Note]]:
        """Return notes whose names begin with a prefix, after a name, in the order of names, at most `limit`."""
        ...

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True once the tenant's feed has a position > after; False after the timeout.

        Not to be called inside `turn`. Raises EngineClosed if the store is closed meanwhile.
        """
        ...

    def find(self, tenant: str, kind: str, id: str) -> Projection | None:
        """Return one projection."""
        ...

    def query(self, tenant: str, query: Query) -> list[Projection]:
        """Return one page of projections."""
        ...

    def snapshot(self, tenant: str, stream: str) -> Snapshot | None:
        """Return the stream's newest snapshot, or None. A damaged one counts as absent.

        So does one of a version that a rewind left out. Snapshots of a base do not count.
        """
        ...

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""
        ...

    def verify(self) -> Iterator[int | Report]:
        """Check everything; yield the number of events checked so far, and the report last."""
        ...

    def rebuild(self, derive: Derive) -> Generator[int | Rebuilt]:
        """Drop all that is derived and make it again from the log, completely or not at all. Takes the write lock.

        Yields the number of events processed, each once for verification and once for derivation, and the result last.
        Snapshots are only dropped; idempotency keys are not derived and stay. One thread runs it to its end, or closes it,
        and uses the store for nothing else meanwhile.

        Raises Corrupt, and changes nothing, if the log or a blob is damaged. On a server each tenant is rebuilt completely
        or not at all; Conflict names a tenant that others wrote to every time.
        """
        ...

    def rebuilt(self, tenant: str) -> int:
        """Return a number that changes when a tenant was rebuilt or erased from: caches of it are valid while it stays.

        It also changes when a server was found to have lost acknowledged events.
        """
        ...

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Return the other streams that have this one as their base, each with the base version."""
        ...

    def erase(self, erasure: Erasure, derive: Derive) -> Erased | Stale:
        """Remove payloads from the log, and all that is derived from them. Takes the write lock.

        What remains is derived again. A stream that is erased completely loses its name, and may not be the base of a
        stream that stays. It may be damaged if its derived rows are given; otherwise Corrupt is raised. Caches are outdated
        afterwards, as after a rebuild. `scrub` must follow.
        """
        ...

    def pending(self) -> bytes | None:
        """Return the pending work of erasures, concatenated, until `scrub` has completed; None if there is none."""
        ...

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """Remove what was erased from every file; afterwards nothing is pending.

        Except: `left` replaces `done`, the beginning of what was pending, and what came later stays pending. `left` is
        pending even if nothing was before: so a copy takes over the pending work of its source. Raises StoreBusy if a
        reader holds on for too long; until it completes, an empty line is pending too.
        """
        ...

    def copy(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[Raw]:
        """Return the tenant's events with position > after as stored, in order, at most `limit`, in one read.

        Each is checked against its digest. An erased event has no payload and is marked.
        """
        ...

    def keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[RawKey]:
        """Return the tenant's idempotency keys after a key, in the order of their UTF-8 bytes, at most `limit`."""
        ...

    def paste(
        self,
        tenant: str,
        events: Sequence[Raw],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[RawKey] = (),
    ) -> None:
        """Write events exactly as given, with their blobs and keys, completely or not at all. Takes the write lock.

        The first new event follows the tenant's head and the others follow it; links and digests must be right. Erased
        events that are already there may come before: they are erased here too, with the keys that led to them, and
        `scrub` must follow. A stream that comes under the name of an erased one keeps that name. A key that is already
        there must be equal. Nothing is derived: `rebuild` must follow before use. Until then only `copy`, `keys`, `head`,
        `blobs`, notes and `paste` may be called.

        Raises Conflict if the events do not continue the feed, Corrupt if one is damaged or lacks a blob.
        """
        ...

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: path, size, versions, durability, counts; `blobs` is their number."""
        ...

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copy the store, consistent under load, to a new file; yield (done, total).

        Raises NoBackup, and writes nothing, if the store has no file to copy; InvalidRequest if the target exists.
        """
        ...

    def close(self) -> None:
        """Release every resource. Closing twice is fine."""
        ...
