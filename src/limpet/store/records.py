"""What goes into a store and what comes out of it: plain values, the same for every backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec


class NewEvent(msgspec.Struct, frozen=True, gc=False):
    """An event to append. Everything but the payload becomes its header, which holds no caller's text.

    `ordinal` is a number of the stream's own that never falls (a session counts its messages with it).
    `blobs` are the contents that the payload refers to by their SHA-256, which it has to hold: so the
    digest covers them too.
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
    """An event as read back, checked against its digest. Once `erased`, `payload` is a stand-in, or None."""

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

    `claims` are texts unique in the stream for ever, each paired with the index of the event that
    makes it. `base` names a stream and a version, which that stream has or had: this one goes on from
    there, with the version after the higher of `expected` and the base's. It is the stream itself, or
    another, and then `expected` is 0. A stream that names version 0 of itself begins anew.
    """

    stream: str
    expected: int
    events: tuple[NewEvent, ...]
    claims: tuple[tuple[str, int], ...] = ()
    base: tuple[str, int] | None = None

    @property
    def before(self) -> int:
        """The version after which the events are numbered."""
        return self.expected if self.base is None else max(self.expected, self.base[1])


class Projection(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A derived row, one shape for every kind. `terms` are exact-match texts it can be found by."""

    kind: str
    id: str
    owner: str = ""
    status: str = ""
    time_us: int = 0
    lookup: str = ""
    terms: tuple[str, ...] = ()
    document: bytes = b""


class KeyUse(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key and the hash of the command it stands for."""

    key: str
    command_hash: bytes


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """A stream's folded state at a version, with the fold's own version."""

    stream: str
    version: int
    fold: int
    state: bytes


class Note(msgspec.Struct, frozen=True, gc=False):
    """A small record of a tenant's, outside the log. Every change gives it a higher version."""

    value: bytes
    version: int


class Raw(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An event exactly as it is kept, to be kept the same elsewhere.

    `stream` is the name that its stream has now, `number` the position of that stream's first event. `base`: a
    stretch begins with this event, and goes on from the stream with that number, at that version. `blobs` are the
    hashes of those it refers to. `erased`: its payload and salt are gone; the position of its notice, that of its
    cause (0: its whole stream went), and what is read in its place.
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
    """An idempotency key exactly as it is kept: what it was used for, and when."""

    key: str
    command_hash: bytes
    first: int
    last: int
    time_us: int


class Derived(msgspec.Struct, frozen=True, gc=False):
    """What a whole stream leads to: its claims and blobs' hashes with their versions, and projections.

    Claims come by version. Of one that a stretch has twice the first counts: `paths.claimed`.
    """

    claims: tuple[tuple[str, int], ...]
    projections: tuple[Projection, ...]
    blobs: tuple[tuple[bytes, int], ...] = ()


Blobs = Callable[[Collection[bytes]], Mapping[bytes, bytes]]
"""From hashes to the contents of a tenant's blobs that are there."""

Derive = Callable[[str, Iterator[StoredEvent], Blobs], Derived]
"""From a stream's name and all its events to what is derived from them. Raises Corrupt if it lacks a blob."""


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One atomic step of one tenant: at least one write, each with at least one event, no stream twice.

    Conditions are looked at in this order: the key, then the versions of all streams, then all claims.
    Projections are put before drops are made.
    """

    tenant: str
    writes: tuple[StreamWrite, ...]
    projections: tuple[Projection, ...] = ()
    drops: tuple[tuple[str, str], ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    key: KeyUse | None = None
    time_us: int = 0


class Appended(msgspec.Struct, frozen=True, gc=False):
    """It is in the log, at these positions."""

    first: int
    last: int


class Stale(msgspec.Struct, frozen=True, gc=False):
    """A stream was at another version than expected; without a name, the feed was at another position.

    Then others were faster somewhere in the tenant, and nothing that was cached of it may be trusted.
    """

    stream: str
    actual: int


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A claim is taken, by the event at this version of the stream."""

    stream: str
    claim: str
    version: int


class Replayed(msgspec.Struct, frozen=True, gc=False):
    """The key was used before, for a command with this hash that made these positions."""

    command_hash: bytes
    first: int
    last: int


Outcome = Appended | Stale | Claimed | Replayed


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
