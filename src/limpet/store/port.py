"""The store port: what every backend promises, in prose and in types. Bytes in, bytes out.

A store keeps, per tenant, one log of events, each belonging to one stream, and beside it what is
derived from the log: claims, idempotency keys, projections, snapshots; and blobs, large content that
events refer to; and notes, small records that change in place. It does not know what a message is.

Promises, each proved on every backend by `limpet.testing.contract`:

1. **All or nothing.** An `Append` takes effect whole (events of all its streams, their blobs, claims,
   key, projections, snapshots) or leaves no trace. Several appends committed together each have their
   own outcome.
2. **Conditional.** A write whose `expected` is not the stream's version has the outcome `Stale`;
   one whose claim is taken, `Claimed`; one whose key was used, `Replayed`. None leaves a trace.
3. **Acknowledged means kept.** When `commit` returns, its appends are durable at the level that
   `durability` names, and visible to every read that begins afterwards, in any process.
4. **Gapless feed.** Positions of a tenant's events are 1, 2, 3 … in commit order; a reader that has
   seen position n never finds a lower one appearing later. Versions of a stream likewise, but for those
   that a rewind leaves out.
5. **Isolation.** No call sees, changes or reveals another tenant's data.
6. **Damage is found.** Every event read is checked against its digest; `verify` checks the chain.
   Damage raises Corrupt with the place; it is never skipped, never read as truth.
7. **Errors are ours.** Driver errors come out as Unavailable or Corrupt with the cause kept; after an
   Unavailable from `commit` the effect is unknown, and a retry with the same key or the same claims
   has exactly one effect.
8. **Safe in company.** Several threads and processes may use one store. What is decided within a `turn` and
   committed in it rests on a tenant that nobody else has changed meanwhile: file stores keep others out, stores
   on a server refuse what was decided on less than is there.
9. **Blobs once.** A tenant's blob is kept once by the SHA-256 of its content, however many events bring
   it, and lasts as long as one of them. Its content is checked against its hash at every read; `verify`
   reports every blob that is damaged, and every event that lacks one.
10. **The log is the truth.** Claims, projections, snapshots and the uses of blobs can be dropped and made
   again from the log: `rebuild` does so whole or not at all (on a server: each tenant), and only if the log is as
   it was written. Of a claim that the log has twice, because the first was lost meanwhile, the first counts.
11. **Based by reference.** A write with a base makes its stream go on from a version of a stream: a new
   stream from any other (a fork), or a stream from its own past (a rewind). Nothing is copied. Up to the
   base's version the stream is what the base was there, events, ordinals and claims; then come its own
   events, numbered above all that either had. What it had beyond the base is not in it any more, and is
   still there for whoever asks how it was `at` a version. That never changes, whatever becomes of the base.
12. **Notes are compared and set.** A note is put only if it has the version that the caller saw, and a version
   is never given twice, not even to a note that was dropped and made again. Notes are as durable as events, and
   are not derived.
13. **News is noticed.** Whoever waits for a tenant's feed to go on is woken by a commit of this process, and
   hears of those of other processes shortly after.
14. **Erased is gone.** `erase` takes payloads out of the log, all or nothing, and all that was derived from
   them; the chain still verifies, and a notice in the log says that it was meant. Once `scrub` has returned,
   no file of the store has anything of it. An event without payload that no notice names is damage.
15. **Copied as it is.** What `copy` and `keys` give of one store, `paste` keeps in another byte for byte: positions,
   links, erasures and keys stay, so cursors and proofs hold there too. Each page goes in whole or not at all, on the
   head that it follows, and only if every event in it is as it was written: so a copy that was stopped anywhere
   goes on from the head of what is there. What was erased meanwhile is erased in the copy as well. `rebuild` has to
   follow before the copy is used.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

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
from limpet.values.frozen import Json

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
    """Commits on their way to a server, for the holder of the turn: one is sent while those before it are worked on.

    Used in a `with`, at whose end nothing may be on its way; whatever is then has an outcome that nobody knows. The
    server takes a commit only if it has taken those before it. While some are on their way, nothing else of the store
    is asked or changed in this turn.
    """

    def send(self, appends: Sequence[Append]) -> bool:
        """Send appends to be committed together, if each is going to be appended as far as is known.

        False: nothing was sent, and `commit` has to tell.
        """
        ...

    def receive(self) -> list[Outcome]:
        """Wait for the outcomes of the commit that was sent first of those on their way.

        As those of `commit`; Stale("", position) also if it has to be decided again for any other reason.
        """
        ...

    def ready(self) -> bool:
        """Whether something of an answer is there already."""
        ...

    def fileno(self) -> int:
        """Return what can be polled for an answer, unless one is `ready`."""
        ...


class Store(Protocol):
    """The verbs of a store. See the promises above."""

    @property
    def durability(self) -> str:
        """The level that holds now: `power-loss`, `process-crash` or `none`."""
        ...

    def turn(self) -> AbstractContextManager[bool]:
        """Hold the right to decide: until the body ends no other thread of this store object commits.

        Nor any other process, where it can be kept out. Where it can't (a server), a commit finds out: an append of
        a tenant to which others have added since this store object last knew its end has the outcome
        Stale("", position), and `held` says so of what is answered without an append.

        Yields whether this store object knows of no commit by others since its last turn: what was cached of the
        store then still holds, or a commit will say that it does not.

        Not to be taken twice by one thread. Several commits may be made within one turn.

        Raises StoreBusy, naming the holder, if it is not had within limits.TURN_WAIT_S.
        """
        ...

    @property
    def crowded(self) -> bool:
        """Whether other processes had the turn lately when it was wanted: `hand_over` is worth a try."""
        ...

    def hand_over(self, appends: Sequence[Append]) -> list[Appended | None] | None:
        """Have appends committed by whoever holds the turn. Called outside `turn`.

        Returns for each whether it was appended; one that was not is to be decided again. None if
        nobody took them: the caller's thread then enters `turn` and commits them itself. They may
        have been appended even so, by one who could not tell: hand over only what can be repeated.
        """
        ...

    def served(self) -> list[tuple[str, str]]:
        """Return tenant and stream of what was committed for other processes since this was asked.

        Asked after each `commit`: whatever was cached of these streams does not hold any more.
        """
        ...

    def leave_turn(self) -> None:
        """Give the turn back if this thread holds it still: an interrupt can come before `turn` could."""
        ...

    def held(self, tenant: str) -> bool:
        """Whether nobody else has added to a tenant since this turn began. Called inside `turn`.

        False: whatever was read of it, or cached, may not hold any more, and is to be looked at again.
        """
        ...

    def commit(self, appends: Sequence[Append]) -> list[Outcome]:
        """Commit appends together, each with its own outcome, in order. Called inside `turn`."""
        ...

    def sending(self) -> Sending | None:
        """Return a way to send commits ahead of outcomes; None where a commit takes no time but its own.

        Made anywhere, used inside `turn`."""
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

        Of more than that the first, or the `newest`. `at`: of the stream as it was at that version, which
        it has or had; None: as it is now. What a base brings has this stream's name, as if it were here.
        """
        ...

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[StoredEvent]:
        """Return the tenant's events with position > after, in order, at most `limit`."""
        ...

    def head(self, tenant: str) -> int:
        """Return the position of the tenant's last event; 0 if it has none."""
        ...

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of the tenant's blobs by hash, in one look; those it lacks are left out.

        Raises Corrupt for one whose content is not what was written.
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
        """Drop idempotency keys used before that moment; return how many. Takes the turn itself."""
        ...

    def note(self, tenant: str, name: str) -> Note | None:
        """Return a note, None if it is not there. Raises Corrupt if it is not what was written."""
        ...

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Put a note, or drop it (None), if it is at version `expected` (0: not there); return whether it was.

        Takes the turn itself. A name has 1 to limits.NOTE_NAME_BYTES_MAX bytes, a value up to
        limits.NOTE_BYTES_MAX; TooLarge otherwise.
        """
        ...

    def notes(
        self, tenant: str, prefix: str = "", *, after: str = "", limit: int = 256
    ) -> list[tuple[str, Note]]:
        """Return notes whose names begin with a prefix, those after a name, by name, at most `limit`."""
        ...

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Return True as soon as the tenant's feed has a position > after; False when the time is up.

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
        """Return the stream's newest snapshot. One that fails its checksum counts as absent.

        So does one of a version that a rewind has left out. A base's snapshots are not the stream's.
        """
        ...

    def tenants(self) -> list[str]:
        """Return every tenant that has events."""
        ...

    def verify(self) -> Iterator[int | Report]:
        """Check everything; yield events checked so far, and the report last."""
        ...

    def rebuild(self, derive: Derive) -> Generator[int | Rebuilt]:
        """Drop all that is derived, and make it again from the log, whole or not at all. Takes the turn itself.

        Yields events gone through so far, each once to prove it and once to derive from it, and what was
        made last. Snapshots are dropped only; idempotency keys are not derived, and stay. To be run to
        its end, or closed, by one thread, which uses the store for nothing else meanwhile.

        Raises Corrupt, and changes nothing, if the log or a blob is not as it was written. Where others can't be kept
        out, each tenant is made again whole or not at all; Conflict names one that was written to every time.
        """
        ...

    def rebuilt(self, tenant: str) -> int:
        """Return how often it was rebuilt or erased from: what was cached of a tenant holds while that stays.

        Another number as well once a server was found to have lost what was acknowledged.
        """
        ...

    def forks(self, tenant: str, stream: str) -> list[tuple[str, int]]:
        """Return the other streams that go on from this one, each with the version that it goes on from."""
        ...

    def erase(self, erasure: Erasure, derive: Derive) -> Erased | Stale:
        """Take payloads out of the log, and all that is derived from them; takes the turn itself.

        What remains is derived again. A stream that goes whole gives its name back; none may go on from it that
        stays. It may be damaged if it is said which rows go with it; Corrupt otherwise. Counts as a rebuild: whatever
        was cached does not hold any more. `scrub` has to follow.
        """
        ...

    def pending(self) -> bytes | None:
        """Return what erasures had to do, one after the other, until `scrub` is through; None: nothing is left."""
        ...

    def scrub(self, done: bytes = b"", left: bytes = b"") -> None:
        """See to it that nothing of what was erased is left in any file; then nothing is pending.

        But for what is `left` of what is `done`, the beginning of what was pending, and for the rest. What is `left` is
        pending afterwards even if nothing was: a copy takes over so what its source has still to do. Raises StoreBusy
        if somebody reads for too long; until it is through, an empty line more is pending.
        """
        ...

    def copy(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[Raw]:
        """Return the tenant's events with position > after as they are kept, in order, at most `limit`; one look.

        Each is checked against its digest. What was erased comes without payload and says so.
        """
        ...

    def keys(self, tenant: str, *, after: str = "", limit: int = 256) -> list[RawKey]:
        """Return the tenant's idempotency keys, those after one, by the UTF-8 bytes of their text, at most `limit`."""
        ...

    def paste(
        self,
        tenant: str,
        events: Sequence[Raw],
        *,
        blobs: Mapping[bytes, bytes] = {},
        keys: Sequence[RawKey] = (),
    ) -> None:
        """Keep events exactly as they are, with the blobs they need and keys, whole or not at all. Takes the turn itself.

        The first that is new follows the tenant's head, the others each other; links and digests have to be right. Before
        those may come events that are there already, and are erased: they are erased here too, with the keys that
        led to them, and `scrub` has to follow. A stream that comes with the name of an erased one takes it and keeps it.
        A key that is there already has to be equal. Nothing is derived: `rebuild` has to follow before use. Until then
        only `copy`, `keys`, `head`, `blobs`, notes and `paste` are to be called.

        Raises Conflict if the feed is not where the events go on, or has others, Corrupt if one is not as it was written
        or lacks a blob.
        """
        ...

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: path, size, versions, durability, counts; `blobs` is how many it keeps."""
        ...

    def backup(self, target: str) -> Iterator[tuple[int, int]]:
        """Copy the store, consistent under load, to a new file; yield (done, total).

        Raises NoBackup, and writes nothing, if it has no file that could be copied; InvalidRequest if there is one
        at the target.
        """
        ...

    def close(self) -> None:
        """Give back every resource. Closing twice is fine."""
        ...
