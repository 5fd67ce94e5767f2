"""The values and rules of an erasure, for every backend.

An erased event keeps header, digest and link. Its payload and salt are removed. Readers get a
redacted payload, or none. Every stream with erased events ends with a notice: an event whose
kind ends with `.erased`, with the number of erased events and a hash over their positions and
digests. An event without payload is damage unless a later notice of its stream covers it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from limpet import errors
from limpet.stores.port import BlobLoader, DerivedState, NewEvent, StoredEvent

NOTICE_SUFFIX: Final = ".erased"
"""How the kind of a notice ends."""

ERASED_STREAM_PREFIX: Final = "erased:"
"""The beginning of the name of a completely erased stream; its number follows."""

NOTICE_SCHEMA: Final = 1


class RedactedPayload(msgspec.Struct, frozen=True):
    """What readers get in place of an erased payload: an event of the same kind and schema.

    `cause` is the position of the event that required this erasure, possibly itself; `blobs` are the contents that
    the payload refers to.
    """

    position: int
    payload: bytes
    cause: int
    blobs: tuple[bytes, ...] = ()


class StreamErasure(msgspec.Struct, frozen=True, kw_only=True):
    """What is erased of one stream if it is at version `expected`; `kind` is the kind of its notice.

    Either the `whole` stream, which loses its name, or its own events that `stand_ins` name. `rows` are kind and id of
    all rows derived from a whole stream, if the caller knows them: then it can be erased even if its events are
    unreadable.
    """

    stream: str
    expected: int
    kind: str
    whole: bool = False
    redactions: tuple[RedactedPayload, ...] = ()
    derived_rows: tuple[tuple[str, str], ...] | None = None


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What is erased of one tenant's log at once. `pending` returns `todo` until it is completed.

    `head` is the position up to which the feed was searched: a later event could hold what is to go, in a stream that
    is not among the shares. None: any later event is accepted.
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


class NoticeContent(msgspec.Struct, frozen=True):
    """The content of a notice: how many events were erased, and the proof of which."""

    events: int
    digest: str


def derived_row_ids(
    share: StreamErasure, derive: Callable[[], DerivedState]
) -> tuple[tuple[tuple[str, str], ...], DerivedState | None]:
    """Return kind and id of the rows derived from a stream, and everything derived; None if it is unreadable.

    Raises Corrupt if it is unreadable but needed.
    """
    try:
        found = derive()
    except errors.Corrupt:
        if not share.whole or share.derived_rows is None:
            raise
        return share.derived_rows, None
    return tuple((row.kind, row.id) for row in found.projections), found


def erasure_proof(gone: Iterable[tuple[int, bytes]]) -> NoticeContent:
    """Return the proof of a notice for events, given by position and digest in the order of the feed."""
    made, count = hashlib.sha256(), 0
    for position, digest in gone:
        made.update(position.to_bytes(8, "big") + digest)
        count += 1
    return NoticeContent(count, made.hexdigest())


def make_notice(kind: str, time_us: int, ordinal: int, told: NoticeContent) -> NewEvent:
    """Return the notice of an erasure."""
    assert kind.endswith(NOTICE_SUFFIX), "a notice is known by its kind"
    return NewEvent(kind, NOTICE_SCHEMA, time_us, msgspec.json.encode(told), ordinal)


def decode_notice(payload: bytes) -> NoticeContent | None:
    """Return the content of a notice; None if it is unreadable."""
    try:
        return msgspec.json.decode(payload, type=NoticeContent)
    except msgspec.MsgspecError:
        return None


def is_notice(kind: str) -> bool:
    """Return whether an event is a notice. Notices are never erased: they hold no text of a caller."""
    return kind.endswith(NOTICE_SUFFIX)


def erased_stream_name(number: int) -> str:
    """Return the name of an erased stream."""
    return f"{ERASED_STREAM_PREFIX}{number}"


def is_erased_stream(stream: str) -> bool:
    """Return whether a name is that of an erased stream."""
    return stream.startswith(ERASED_STREAM_PREFIX)


class ErasureReplay(Protocol):
    """How an erasure is repeated in an older copy of the log."""

    def now_us(self) -> int:
        """Return the time."""
        ...

    def derive(self, stream: str, events: Iterator[StoredEvent], blobs: BlobLoader, /) -> DerivedState:
        """Return what is derived from a stream."""
        ...

    def notice_kind(self, stream: str, /) -> str:
        """Return the kind of a stream's notice."""
        ...

    def pending_work(self, tenant: str, /) -> bytes:
        """Return the pending work of a tenant after the erasure."""
        ...

    def redactions(
        self, gone: Sequence[tuple[StoredEvent, StoredEvent]], blobs: BlobLoader, /
    ) -> list[RedactedPayload]:
        """Return the stand-ins of events, each given with the event that required its erasure."""
        ...
