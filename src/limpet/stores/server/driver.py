"""The driver interface: what a server must be able to do, and the rows and changes it exchanges.

A driver reads rows, and applies one change to one tenant, completely or not at all. Each change
names the feed head it was made for; if that differs, or a row that must be new exists, nothing is
changed. So positions are gapless without a lock that is held across a round trip. Forks, erasures,
checksums and damage are handled above the driver, once for all servers.

Words: an event is a stream's own unless it comes from one of its bases. A base is a version of a
stream that another stream, or the same one after a rewind, continues from. A stretch is a run of
own events after one base; its number is the position of its first event.
"""

# pyright: reportReturnType=false
# A verb of a protocol has a docstring instead of a body.

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import msgspec

from limpet import errors
from limpet.core.values.validation import Json
from limpet.stores import chain, port

NOTE_TRIES_MAX = 100
"""How often `put_note` tries again because other writers have put a note of the tenant meanwhile."""


def contention_error() -> errors.Conflict:
    """Return the error for a change whose every try came after another writer's."""
    return errors.Conflict("other writers were faster in every try.", hint="Retry.")


class FeedHead(msgspec.Struct, frozen=True, gc=False):
    """The end of a tenant's feed: position and link of its last event, and the number of its rebuilds and erasures."""

    position: int = 0
    link: bytes = chain.GENESIS_LINK
    epoch: int = 0


class StreamRow(msgspec.Struct, frozen=True, gc=False):
    """A stream: its number (the position of its first event), its own first and last version, and its bases.

    `checksum` is computed above the driver and stored unchanged.
    """

    number: int
    name: str
    first: int
    version: int
    bases: tuple[chain.StreamBase, ...] = ()
    checksum: bytes = b""


class EventErasure(msgspec.Struct, frozen=True, gc=False):
    """The erasure of an event: the positions of its notice and of its cause, and the payload to read instead, if any."""

    notice: int
    cause: int
    redacted_payload: bytes | None = None


class FeedRow(msgspec.Struct, frozen=True, gc=False):
    """A stored event and the name of its stream."""

    stream: str
    event: chain.EventRow
    ordinal: int
    erasure: EventErasure | None = None


class KeyRow(msgspec.Struct, frozen=True, gc=False):
    """A stored use of an idempotency key. The command's hash is prefixed with a checksum over all fields."""

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
    """One change to one tenant, applied completely if the tenant's head is `before`, else not at all.

    Added rows must be new: `streams`, `bases`, `rows`, `claims` and `keys`. Put rows replace existing ones:
    `blobs`, `blob_uses`, `projections` and `snapshots`. Dropping a row that does not exist does nothing. Drops, renames
    and erasures come first, so that a name, claim or key which they free can be added. The head may stay the same if
    only keys are added.
    """

    tenant: str
    before: FeedHead
    after: FeedHead
    streams: tuple[StreamRow, ...] = ()
    """New streams, with `first` and `version` as after this change and without their bases."""
    bases: tuple[tuple[int, chain.StreamBase], ...] = ()
    """Number of a stream, and a base that it gets."""
    rows: tuple[FeedRow, ...] = ()
    """New events, by position, without a gap. An event of a copied log may come with its erasure."""
    claims: tuple[tuple[int, str, int], ...] = ()
    """Stretch, text, version."""
    keys: tuple[KeyRow, ...] = ()
    blobs: Mapping[bytes, bytes] = msgspec.field(default_factory=dict[bytes, bytes])
    """By hash. Put if they are missing or damaged."""
    blob_uses: tuple[tuple[int, bytes], ...] = ()
    """Position of an event, and hash of a blob that it refers to. May repeat."""
    projections: tuple[ProjectionRow, ...] = ()
    snapshots: tuple[SnapshotRow, ...] = ()

    erasures: tuple[tuple[int, EventErasure], ...] = ()
    """Positions of events that lose payload and salt, and the new erasure of each, which replaces an earlier one."""
    renames: tuple[tuple[int, str, bytes], ...] = ()
    """Number, new name and new checksum of existing streams. A stream that gets a base is listed with its old name."""
    drop_projections: tuple[tuple[str, str], ...] = ()
    """Kind and id."""
    drop_claims: tuple[int, ...] = ()
    """Stretches that lose all claims."""
    drop_snapshots: tuple[int, ...] = ()
    """Streams by number."""
    drop_blob_uses: tuple[int, ...] = ()
    """Streams, by number, whose events lose all uses of blobs."""
    drop_keys: tuple[str, ...] = ()
    drop_blobs: tuple[bytes, ...] = ()
    pending_work: bytes | None = None
    """Appended to the pending work of the store's erasures; None: the change is no erasure."""


class HeadMoved(msgspec.Struct, frozen=True, gc=False):
    """Nothing was changed: the tenant's head is `head`, not the expected one."""

    head: FeedHead


class DuplicateRow(msgspec.Struct, frozen=True, gc=False):
    """Nothing was changed: the head is the expected one, but a row that must be new exists."""


class AppliedUnderContention(msgspec.Struct, frozen=True, gc=False):
    """The change was applied, and another store has or wants the tenant's advisory lock.

    Without this result, a writer that wins every race would not learn of the other writers.
    """


ChangeResult = HeadMoved | DuplicateRow | AppliedUnderContention | None
"""The result of a change; None: it was applied."""


class ChangePipeline(AbstractContextManager["ChangePipeline"], Protocol):
    """A connection on which changes are sent before earlier ones are answered. Used in a `with`, by one thread.

    At its end the connection returns to its pool, or is closed if an answer is outstanding.
    """

    def send(self, changes: Sequence[TenantChange]) -> bool:
        """Send changes of different tenants; return False, with nothing sent, if they need `apply`."""

    def receive(self) -> list[ChangeResult]:
        """Wait for the results of the oldest unanswered `send`. DuplicateRow may also mean that the change needs `apply`."""

    def has_answer(self) -> bool:
        """Whether part of an answer has arrived."""

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable with an answer."""


class Driver(Protocol):
    """One store's connection to its server. Thread-safe. Raises errors of `limpet.errors` only.

    After Unavailable, a change may have been applied or not. Values come back unchecked. No verb but `listen` leaves
    anything running.
    """

    @property
    def durability(self) -> str:
        """Which failures an applied change survives, by the server's settings: a level of the port."""

    def head(self, tenant: str) -> FeedHead:
        """Return a tenant's head."""

    def tenants(self) -> list[str]:
        """Return every tenant that has events, sorted."""

    def unlisted_tenants(self) -> list[str]:
        """Return tenants that have events but are missing from `tenants`, because a list was damaged; sorted.

        May scan the whole server. A driver that finds tenants by their events returns none.
        """

    def tenants_with_notes(self) -> list[str]:
        """Return every tenant that has notes, with or without events, sorted."""

    def stream(self, tenant: str, stream: str | int) -> StreamRow | None:
        """Return a stream by name or number, with its bases in the order of their first versions."""

    def streams(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[StreamRow]:
        """Return streams with number > after, by number."""

    def own_events(
        self, tenant: str, stream: str | int, *, low: int, high: int, limit: int, newest: bool = False
    ) -> tuple[StreamRow | None, list[FeedRow]]:
        """Return a stream, and its own events with low <= version <= high by version, as of one moment.

        Of more than `limit` events the first, or the `newest`. A stream that does not exist is None.
        """

    def feed(self, tenant: str, *, after: int, limit: int) -> list[FeedRow]:
        """Return events with position > after, in order."""

    def version_at(self, tenant: str, stream: str, position: int) -> int:
        """Return the version of a stream's last own event with a position up to `position`; 0 if there is none."""

    def find_ordinal(self, tenant: str, number: int, *, low: int, high: int, ordinal: int) -> int:
        """Return the lowest own version, low <= version <= high, whose event has at least this ordinal; 0 if there is none."""

    def claims(self, tenant: str, claims: Collection[str], stretches: Collection[int]) -> list[tuple[int, str, int]]:
        """Return stretch, text and version of those of the claims that exist in one of the stretches."""

    def count_claims(self, tenant: str, stretches: Collection[int]) -> int:
        """Return the number of claims in the stretches."""

    def forks(self, tenant: str, number: int) -> list[tuple[str, int]]:
        """Return names of other streams with a base in stream `number`, each with the base's version, by the base's stretch."""

    def key(self, tenant: str, key: str) -> KeyRow | None:
        """Return the use of an idempotency key."""

    def keys(self, tenant: str, *, after: str = "", limit: int = 500) -> list[KeyRow]:
        """Return uses of keys whose text is > after, by text."""

    def keys_covering(self, tenant: str, positions: Collection[int]) -> list[str]:
        """Return keys whose use, first … last, includes one of the positions."""

    def delete_keys(self, tenant: str, *, before_us: int) -> int:
        """Delete the idempotency keys of a tenant that were used before a moment; return how many."""

    def projection(self, tenant: str, kind: str, id: str) -> ProjectionRow | None:
        """Return one projection."""

    def query_projections(self, tenant: str, query: port.Query) -> list[ProjectionRow]:
        """Return one page of projections; see `Query` of the port."""

    def projections(self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 500) -> list[ProjectionRow]:
        """Return projections of all kinds with (kind, id) > after, in that order."""

    def snapshot(self, tenant: str, stream: str) -> SnapshotRow | None:
        """Return the newest snapshot of a stream."""

    def blobs(self, tenant: str, hashes: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the contents of those of the blobs that exist, by hash."""

    def list_blobs(self, tenant: str, *, after: bytes = b"", limit: int = 100) -> list[tuple[bytes, bytes]]:
        """Return blobs with a hash > after, by hash."""

    def blob_uses(self, tenant: str, *, after: int = 0, limit: int = 500) -> list[tuple[int, bytes]]:
        """Return uses of blobs with position > after, by position: about `limit`, never part of a position's uses."""

    def unused_blobs(self, tenant: str, hashes: Collection[bytes], *, but: Collection[int]) -> set[bytes]:
        """Return those of the blobs that exist and that no event outside the streams `but` refers to."""

    def note(self, tenant: str, name: str) -> NoteRow | None:
        """Return a note."""

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        """Compare and set, as in the port. The stored checksum is `checked_reads.note_checksum(tenant, name, note)`."""

    def notes(self, tenant: str, prefix: str, *, after: str, limit: int) -> list[NoteRow]:
        """Return notes whose name has the prefix and is > after, in the order of the names' UTF-8 bytes."""

    def apply(self, changes: Sequence[TenantChange]) -> list[ChangeResult]:
        """Apply changes of different tenants, each on its own, in as few round trips as possible; return the result of each."""

    def pipeline(self) -> ChangePipeline | None:
        """Return a pipeline; None if the driver has none."""

    def replace_derived(self, tenant: str, before: FeedHead, derived: Iterable[TenantChange]) -> bool:
        """Replace all derived rows of a tenant (claims, blob uses, projections, snapshots) by those of the changes, or none.

        The tenant's head gets the next epoch. The changes have derived rows only, each claim of a stretch once; their
        heads are ignored. Returns False, with nothing changed, if the tenant's head is not `before`.
        """

    def acquire_advisory_lock(self, tenant: str, timeout_s: float) -> bool:
        """Wait for a tenant's advisory lock; return False after the timeout.

        Used only while several stores write to one tenant, so that they take turns instead of losing races. No data
        depends on it, and `apply` does not check it. A store holds at most one. The lock expires soon after its holder
        has died. Before the wait, even if the lock is free, all other stores are notified: those that listen with
        (tenant, 0), the others with AppliedUnderContention at their next change. A waiter polls every few
        milliseconds or is woken. A driver without such locks returns True at once.
        """

    def release_advisory_lock(self, tenant: str) -> None:
        """Release the tenant's advisory lock if this store holds it."""

    def pending_erasures(self) -> bytes | None:
        """Return the pending work of erasures, as in the port."""

    def scrub(self, done: bytes, left: bytes) -> None:
        """Remove erased content from the server's files as far as possible; then set the pending work, as in the port."""

    def listen(self) -> Iterator[tuple[str, int]]:
        """Yield tenant and new position after each change, by any store. Ends when the driver is closed.

        Run by one thread. Yields ("", 0) if notifications may have been missed, and (tenant, 0) if another store wants
        the tenant's advisory lock. May raise if the connection fails; a new call begins with ("", 0).
        """

    def status(self) -> Mapping[str, Json]:
        """Return facts for people: backend, server, version, settings, counts."""

    def close(self) -> None:
        """Give back every connection. Closing twice is fine."""


class ErrorCase(NamedTuple):
    """A driver error as a Limpet error: its class, the message's text about the server, and the hint."""

    kind: type[errors.Error]
    what: str
    hint: str


UNKNOWN_HOST = ErrorCase(
    errors.Unavailable,
    "is not found by the name of its host",
    "Check the host in the URL; where it is right, see to the network's names (DNS), then retry.",
)
TIMEOUT = ErrorCase(
    errors.Unavailable, "did not answer in time", f"{errors.RETRY_HINT} ?timeout_s=60 in the URL waits longer."
)


def error_text(error: Exception) -> str:
    """Return the text of a client library's error in one line."""
    return " ".join(str(error).split())


def mapped_error(
    case: ErrorCase | None, shown: str, text: str, facts: Mapping[str, object], hint: str = ""
) -> errors.Error:
    """Return the error for a server's error text. Without a case it is Unavailable. `hint` replaces the case's."""
    text = text.rstrip(".")
    detail = text if text.endswith(("?", "!")) else f"{text}."
    if case is None:
        return errors.Unavailable(f"{shown} could not do it: {detail}", hint=errors.RETRY_HINT, facts=facts)
    return case.kind(f"{shown} {case.what}: {detail}", hint=hint or case.hint, facts=facts)
