"""The driver interface: what a server must be able to do, and the rows and changes it exchanges.

A driver reads rows, and applies one change to one tenant, completely or not at all. Each change
names the feed head it was made for; if that differs, or a row that must be new exists, nothing is
changed. So positions are gapless without a lock that is held across a round trip. Forks, erasures,
checksums and damage are handled above the driver, once for all servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.stores import chain, port, stream_paths

NOTE_TRIES_MAX = 100
"""How often a note is counted again because others have put one meanwhile."""


def contention_error() -> errors.Conflict:
    """Return the error for whoever was passed by others every time."""
    return errors.Conflict("other writers were faster every time.", hint="Retry.")


class FeedHead(msgspec.Struct, frozen=True, gc=False):
    """The end of a tenant's feed: position and link of its last event, and how often it was rebuilt or erased from."""

    position: int = 0
    link: bytes = chain.GENESIS_LINK
    epoch: int = 0


class StreamRow(msgspec.Struct, frozen=True, gc=False):
    """A stream: its number (the position of its first event), its own first and last version, and its bases.

    The mark is a checksum over all of it but the last version: kept as it comes.
    """

    number: int
    name: str
    first: int
    version: int
    bases: tuple[stream_paths.StreamBase, ...] = ()
    checksum: bytes = b""


class EventErasure(msgspec.Struct, frozen=True, gc=False):
    """What became of an erased event: the position of its notice, that of its cause, and what is read in its place."""

    notice: int
    cause: int
    redacted_payload: bytes | None = None


class FeedRow(msgspec.Struct, frozen=True, gc=False):
    """An event as it is kept, and the name of the stream that it belongs to."""

    stream: str
    event: chain.EventRow
    ordinal: int
    erasure: EventErasure | None = None


class KeyRow(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key's use, as it is kept: the command's hash stands behind a checksum over all of it."""

    key: str
    command_hash: bytes
    first: int
    last: int
    time_us: int


class SnapshotRow(msgspec.Struct, frozen=True, gc=False):
    """A snapshot and the checksum over it."""

    snapshot: port.Snapshot
    checksum: bytes


class ProjectionRow(msgspec.Struct, frozen=True, gc=False):
    """A projection and the checksum over it."""

    projection: port.Projection
    checksum: bytes


class NoteRow(msgspec.Struct, frozen=True, gc=False):
    """A note and the checksum over it."""

    name: str
    note: port.Note
    checksum: bytes


class TenantChange(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One change to one tenant, applied whole on condition that its head is `before`, else not at all.

    What is added must not be there: `streams`, `bases`, `rows`, `claims` and `keys`. What is put takes the place of
    what is there. Drops of something that is not there do nothing. In this order: drops, renames and blanks, then the
    rest: a name, a claim or a key that they give back may be taken by what is added.
    Positions in `blanks` and `rows` are the tenant's; a stretch is named by the position of its first event.
    The head may stay as it is, if only keys are added.
    """

    tenant: str
    before: FeedHead
    after: FeedHead
    streams: tuple[StreamRow, ...] = ()
    """New ones. Their `first` and `version` are those after this change; their bases come with `bases`, not here."""
    bases: tuple[tuple[int, stream_paths.StreamBase], ...] = ()
    """By the number of the stream that gets them."""
    rows: tuple[FeedRow, ...] = ()
    """In the order of their positions, without a gap. One of a copied log may come with its blank: that is kept too."""
    claims: tuple[tuple[int, str, int], ...] = ()
    """Stretch, text, version."""
    keys: tuple[KeyRow, ...] = ()
    blobs: Mapping[bytes, bytes] = msgspec.field(default_factory=dict[bytes, bytes])
    """Put if they are not there, or are damaged."""
    blob_uses: tuple[tuple[int, bytes], ...] = ()
    """Position of an event, hash of a blob that it refers to. Repeated ones are fine."""
    projections: tuple[ProjectionRow, ...] = ()
    snapshots: tuple[SnapshotRow, ...] = ()

    erasures: tuple[tuple[int, EventErasure], ...] = ()
    """Events whose payload and salt go, and what becomes of them; a blank that is there is replaced."""
    renames: tuple[tuple[int, str, bytes], ...] = ()
    """Streams by number, what they are called from now on, and their mark. One that gets a base may keep its name."""
    drop_projections: tuple[tuple[str, str], ...] = ()
    """Kind and id, before projections are put."""
    drop_claims: tuple[int, ...] = ()
    """Stretches all of whose claims go."""
    drop_snapshots: tuple[int, ...] = ()
    """Streams by number."""
    drop_blob_uses: tuple[int, ...] = ()
    """Streams by number, all of whose events' uses of blobs go."""
    drop_keys: tuple[str, ...] = ()
    drop_blobs: tuple[bytes, ...] = ()
    pending_work: bytes | None = None
    """Added to what is pending of the store; None: this is no erasure."""


class HeadMoved(msgspec.Struct, frozen=True, gc=False):
    """Nothing was changed: the tenant's head is this one."""

    head: FeedHead


class DuplicateRow(msgspec.Struct, frozen=True, gc=False):
    """Nothing was changed: the head is as expected, but something that had to be new is there already."""


class AppliedUnderContention(msgspec.Struct, frozen=True, gc=False):
    """It was applied, and others have or want the tenant's guard: who wins every time hears of nobody otherwise."""


ChangeResult = HeadMoved | DuplicateRow | AppliedUnderContention | None
"""What became of a change; None: it was applied."""


class ChangePipeline(AbstractContextManager["ChangePipeline"], Protocol):
    """One connection over which changes are sent before the answers to those before have come. Used in a `with`, by one thread.

    At its end the connection goes back, or is thrown away if something is still on its way.
    """

    def send(self, changes: Sequence[TenantChange]) -> bool:
        """Send changes of different tenants; False: nothing was sent, `apply` has to do it."""
        ...

    def receive(self) -> list[ChangeResult]:
        """Wait for what became of those that were sent first. Taken also means: nothing was done, and `apply` has to do it."""
        ...

    def has_answer(self) -> bool:
        """Whether something of an answer is there."""
        ...

    def fileno(self) -> int:
        """Return what can be polled for an answer."""
        ...


class Driver(Protocol):
    """One server as one store sees it. Safe for threads. Every error that comes out is one of `limpet.errors`.

    Unavailable means that it is not known whether a change was applied. Only `listen` keeps anything going.
    """

    @property
    def durability(self) -> str:
        """What survives once `apply` has returned, as the server's settings say: see the port."""
        ...

    def head(self, tenant: str) -> FeedHead:
        """Return a tenant's head."""
        ...

    def tenants(self) -> list[str]:
        """Return every tenant that has events, sorted."""
        ...

    def unlisted_tenants(self) -> list[str]:
        """Return tenants that have events and are not among `tenants`, sorted: what named them was lost.

        May look through everything that the server has. A driver that finds tenants by their events has none.
        """
        ...

    def tenants_with_notes(self) -> list[str]:
        """Return every tenant that has notes, with or without events, sorted."""
        ...

    def stream(self, tenant: str, stream: str | int) -> StreamRow | None:
        """Return a stream by name or number, with its bases in the order of their first versions."""
        ...

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[StreamRow]:
        """Return streams by number, those after one."""
        ...

    def own_events(
        self,
        tenant: str,
        stream: str | int,
        *,
        low: int,
        high: int,
        limit: int,
        newest: bool = False,
    ) -> tuple[StreamRow | None, list[FeedRow]]:
        """Return a stream, and its own events with low <= version <= high by version; one look.

        Of more than `limit` the first, or the `newest`. What its bases bring is not among them.
        """
        ...

    def feed(self, tenant: str, *, after: int, limit: int) -> list[FeedRow]:
        """Return events with position > after, in order."""
        ...

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        """Return the version of a stream's last own event up to a position; 0 if it had none."""
        ...

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        """Return the lowest own version within low … high whose event has at least this ordinal; 0: none."""
        ...

    def claims(
        self, tenant: str, claims: Collection[str], stretches: Collection[int]
    ) -> list[tuple[int, str, int]]:
        """Return stretch, text and version of those of these claims that these stretches have."""
        ...

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        """Return how many claims stretches have."""
        ...

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        """Return the names of other streams that have a base in one, and the base's version, in their order."""
        ...

    def key(self, tenant: str, key: str) -> KeyRow | None:
        """Return what an idempotency key was used for."""
        ...

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[KeyRow]:
        """Return keys by their text, those after one."""
        ...

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        """Return keys whose first … last has one of these positions."""
        ...

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Drop keys used before that moment; return how many."""
        ...

    def projection(self, tenant: str, kind: str, id: str) -> ProjectionRow | None:
        """Return one row."""
        ...

    def query_projections(self, tenant: str, query: port.Query) -> list[ProjectionRow]:
        """Return one page of rows, as the port says."""
        ...

    def projections(
        self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500
    ) -> list[ProjectionRow]:
        """Return rows of all kinds by (kind, id), those after one."""
        ...

    def snapshot(self, tenant: str, stream: str) -> SnapshotRow | None:
        """Return the newest snapshot of a stream."""
        ...

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return contents by hash, those that are there; unchecked."""
        ...

    def list_blobs(
        self, tenant: str, *, after: bytes = b"", limit: int = 100
    ) -> list[tuple[bytes, bytes]]:
        """Return blobs by hash, those after one."""
        ...

    def blob_uses(
        self, tenant: str, *, after: int = 0, limit: int = 500
    ) -> list[tuple[int, bytes]]:
        """Return uses of blobs by position: of those after one, whole positions, about `limit` of them."""
        ...

    def unused_blobs(
        self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]
    ) -> set[bytes]:
        """Return those of the blobs that are there and that no event but those of these streams refers to."""
        ...

    def note(self, tenant: str, name: str) -> NoteRow | None:
        """Return a note."""
        ...

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Compare and set, as the port says. The mark is `remote.marks.note(tenant, name, note)`."""
        ...

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[NoteRow]:
        """Return notes by name, in the order of their UTF-8 bytes, as the port says."""
        ...

    def apply(self, changes: Sequence[TenantChange]) -> list[ChangeResult]:
        """Apply changes of different tenants, each by itself, in as few round trips as can be; None: it was applied."""
        ...

    def pipeline(self) -> ChangePipeline | None:
        """Return a line for changes that are sent ahead of answers; None if there is none, and `apply` does all."""
        ...

    def replace_derived(
        self, before: Mapping[str, FeedHead], derived: Iterable[TenantChange]
    ) -> bool:
        """Drop all that is derived (claims, uses, projections, snapshots) of tenants, and put what changes bring.

        Each tenant's head gets the next epoch. Changes bring only what is derived, each claim of a stretch once; their
        heads do not matter. Whole or not at all (a server that holds tenants apart: each of them): nothing that is
        brought is left out. False if a tenant's head is another by now.
        """
        ...

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        """Try to be the only one among all stores that has a tenant's guard; return whether it is had within a time.

        Asked for only while several stores write to one tenant, so that they wait for one another instead of
        deciding in vain again and again. Nothing rests on it: `apply` does not ask for it. A store has one at a
        time. It ends by itself soon after its holder died. First of all, also if it is free, all others that listen
        are told, by (tenant, 0); those who do not are told by Wanted when they next apply something. Who waits looks
        every few milliseconds at least, or is woken. A driver without all this returns True at once.
        """
        ...

    def release_advisory_lock(self, tenant: str) -> None:
        """Give the guard back, if it is had."""
        ...

    def pending_erasures(self) -> bytes | None:
        """Return what erasures left to do, as the port says."""
        ...

    def scrub(self, done: bytes, left: bytes) -> None:
        """Do what can be done so that no file has what was erased; then set what is pending, as the port says."""
        ...

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield tenant and position whenever a tenant's feed has gone on, by anybody. Ends when the driver is closed.

        Run by one thread. After news may have been missed it yields ("", 0); (tenant, 0) if another asks for a guard.
        May raise when the server can't be heard: it is called again then, and begins with ("", 0).
        """
        ...

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: backend, server, version, settings, counts."""
        ...

    def close(self) -> None:
        """Give back every connection. Closing twice is fine."""
        ...
