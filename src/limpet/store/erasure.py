"""What is erased of a log, and how the log says so itself: values and rules, the same on every backend.

An event that is erased keeps header, digest and link; its payload and its salt go. Whoever reads finds a
stand-in in place of the payload, or nothing. Every stream of which something went ends with a notice: an event
whose kind ends with `.erased`, and which says how many went and proves which. Without a notice that comes later
in the same stream and names it, an event without payload is damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from limpet import errors
from limpet.store.port import Blobs, Derived, NewEvent, StoredEvent

NOTICE: Final = ".erased"
"""How the kind of a notice ends."""

PREFIX: Final = "erased:"
"""How the name of a stream begins that was erased whole; its number follows."""

SCHEMA: Final = 1


class StandIn(msgspec.Struct, frozen=True):
    """What is read from now on in place of an event's payload: one of the same kind and schema.

    `cause` is the position of the event because of which this one has to go, itself included; `blobs` are the
    contents that the payload refers to.
    """

    position: int
    payload: bytes
    cause: int
    blobs: tuple[bytes, ...] = ()


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What goes of one stream, on condition that it is at version `expected`; `kind` is that of its notice.

    The `whole` stream goes and gives its name back, or the events that `stand_ins` name, which are its own. `rows` are
    kind and id of all rows that are derived from a whole stream, if the caller knows them: then it goes even if its
    events can't be read any more.
    """

    stream: str
    expected: int
    kind: str
    whole: bool = False
    stand_ins: tuple[StandIn, ...] = ()
    rows: tuple[tuple[str, str], ...] | None = None


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What goes of one tenant's log, at once. `todo` is told by `pending` until all of it is through.

    `head` is where the feed was when it was looked through: anything written since may have what is to go, in a
    stream that is not among the shares. None: whatever was written.
    """

    tenant: str
    shares: tuple[Share, ...]
    time_us: int
    head: int | None = None
    todo: bytes = b""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What went: events that had a payload, and blobs, keys, claims and rows; `link` is that of the last notice."""

    events: int
    blobs: int
    keys: int
    claims: int
    rows: int
    link: bytes


class Told(msgspec.Struct, frozen=True):
    """What a notice says: how many events went, and the proof of which."""

    events: int
    digest: str


def derived_rows(
    share: Share, derive: Callable[[], Derived]
) -> tuple[tuple[tuple[str, str], ...], Derived | None]:
    """Return kind and id of the rows that are derived from a stream, and all that is; None if it can't be read.

    Raises Corrupt if it can't be, and would have to be.
    """
    try:
        found = derive()
    except errors.Corrupt:
        if not share.whole or share.rows is None:
            raise
        return share.rows, None
    return tuple((row.kind, row.id) for row in found.projections), found


def proof(gone: Iterable[tuple[int, bytes]]) -> Told:
    """Return what a notice says of events, given by position and digest in the order of the feed."""
    made, count = hashlib.sha256(), 0
    for position, digest in gone:
        made.update(position.to_bytes(8, "big") + digest)
        count += 1
    return Told(count, made.hexdigest())


def notice(kind: str, time_us: int, ordinal: int, told: Told) -> NewEvent:
    """Return the event that says so."""
    assert kind.endswith(NOTICE), "a notice is known by its kind"
    return NewEvent(kind, SCHEMA, time_us, msgspec.json.encode(told), ordinal)


def told(payload: bytes) -> Told | None:
    """Return what a notice says; None if it can't be read."""
    try:
        return msgspec.json.decode(payload, type=Told)
    except msgspec.MsgspecError:
        return None


def is_notice(kind: str) -> bool:
    """Whether an event says that others were erased. Nobody erases one of these: it has no caller's text."""
    return kind.endswith(NOTICE)


def erased_name(number: int) -> str:
    """Return what a stream is called once it is erased."""
    return f"{PREFIX}{number}"


def is_erased(stream: str) -> bool:
    """Whether that is the name of a stream that was erased."""
    return stream.startswith(PREFIX)


class Again(Protocol):
    """How an erasure is done again in a copy of the log that was made before it."""

    def now_us(self) -> int:
        """Return the time."""
        ...

    def derive(self, stream: str, events: Iterator[StoredEvent], blobs: Blobs, /) -> Derived:
        """Return what a stream leads to."""
        ...

    def kind(self, stream: str, /) -> str:
        """Return the kind of a stream's notice."""
        ...

    def todo(self, tenant: str, /) -> bytes:
        """Return what is pending of a tenant once it is erased."""
        ...

    def stand_ins(
        self, gone: Sequence[tuple[StoredEvent, StoredEvent]], blobs: Blobs, /
    ) -> list[StandIn]:
        """Return what is read in place of events, each given with the one because of which it goes."""
        ...
