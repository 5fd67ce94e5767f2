"""The rules of the log that every backend shares: the bytes of an event, the path of a stream, erasure.

    header  what happened where and when, as a JSON array without any text of a caller
    digest  SHA-256(salt ‖ length of header ‖ header ‖ payload), checked on every read
    link    SHA-256(previous link ‖ digest ‖ header), a chain per tenant, checked by verify
    blob    stored under SHA-256(content); the payload holds the hash, so the chain covers it

The chain still verifies after payload and salt are erased. A digest without its salt reveals nothing of the payload.
Random bytes for salts are drawn in blocks, because one system call per event would dominate its cost.

A stream is written in stretches. The first begins at version 1. Each later stretch begins where a write named a base,
and its versions are above all that the stream had. Events before a stretch are read from its base. So a version always
means the same event, and the path to it never changes.

An erased event keeps header, digest and link. Its payload and salt are removed. Readers get a redacted payload, or
none. Every stream with erased events ends with a notice: an event whose kind ends with `.erased`, with the number of
erased events and a hash over their positions and digests. An event without payload is damage unless a later notice of
its stream covers it.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.stores.port import NewEvent, StoredEvent, StreamWrite

HEADER_FORMAT = 1
SALT_BYTES = 16
GENESIS_LINK = bytes(32)
"""The link before a tenant's first event."""

CHECKSUM_BYTES = 8
UNBOUNDED = (1 << 62) - 1
"""Above every version, every position and every time."""

_Header = tuple[int, str, int, int, int, int, int, int, int | None, str | None]
_header_decoder = msgspec.json.Decoder(_Header)
_header_encoder = msgspec.json.Encoder()
_row_encoder = msgspec.msgpack.Encoder()


class EventAddress(msgspec.Struct, frozen=True, gc=False):
    """The place of an event: position in the feed, number of its stream, version in the stream."""

    position: int
    stream: int
    version: int


def encode_header(event: NewEvent, place: EventAddress) -> bytes:
    return _header_encoder.encode(
        (
            HEADER_FORMAT, event.kind, event.schema, event.time_us,
            place.position, place.stream, place.version,
            event.ordinal, event.tokens, event.counter,
        )
    )  # fmt: skip


def event_digest(salt: bytes, header_: bytes, payload: bytes) -> bytes:
    """Return the digest of header and payload under a salt."""
    return hashlib.sha256(salt + len(header_).to_bytes(4, "big") + header_ + payload).digest()


def next_link(before: bytes, digest_: bytes, header_: bytes) -> bytes:
    """Return the link that binds an event to all before it."""
    return hashlib.sha256(before + digest_ + header_).digest()


def row_checksum(*fields: object) -> bytes:
    """Return the checksum of a row that no event digest covers.

    Structs are encoded as maps: their field names are part of the format.
    """
    return hashlib.sha256(_row_encoder.encode(fields)).digest()[:CHECKSUM_BYTES]


def blob_hash(content: bytes) -> bytes:
    """Return the hash under which a blob is stored."""
    return hashlib.sha256(content).digest()


def blob_matches(hash_: bytes, content: bytes) -> bool:
    return blob_hash(content) == hash_


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """The stored columns of an event. `payload` and `salt` are both None once erased."""

    address: EventAddress
    header: bytes
    payload: bytes | None
    salt: bytes | None
    digest: bytes
    link: bytes


def decode_event(row: EventRow, stream: str, stand_in: bytes | None = None) -> StoredEvent:
    """Check a row against its digest and place and return the event; raise Corrupt if it differs.

    `stand_in` is returned in place of an erased payload.
    """
    if (row.payload is None) != (row.salt is None):
        raise damaged_event_error(row.address, "half of it is missing")
    if row.payload is not None and event_digest(row.salt or b"", row.header, row.payload) != row.digest:
        raise damaged_event_error(row.address, "its content is not what was written")
    try:
        fields = _header_decoder.decode(row.header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if _header_format(row.header) > HEADER_FORMAT:
            raise errors.NewerStore(facts={"format": _header_format(row.header)}) from error
        raise damaged_event_error(row.address, "its header can't be read") from error
    format_, kind, schema, time_us, position, number, version, ordinal, tokens, counter = fields
    if format_ > HEADER_FORMAT:
        raise errors.NewerStore(facts={"format": format_})
    if EventAddress(position, number, version) != row.address:
        raise damaged_event_error(row.address, "it is not where it was written")
    erased = row.payload is None
    return StoredEvent(
        position, stream, version, kind, schema, time_us, ordinal, tokens, counter,
        stand_in if erased else row.payload, row.link, erased,
    )  # fmt: skip


def kind_and_ordinal(header_: bytes) -> tuple[str, int]:
    """Return kind and ordinal of a header; the kind is empty if the header is unreadable."""
    try:
        fields = _header_decoder.decode(header_)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "", 0
    return fields[1], fields[7]


def _header_format(header_: bytes) -> int:
    """Return the format of a header, which may be newer than this code; 0 if it is unreadable."""
    try:
        entries = msgspec.json.decode(header_, type=list[object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    return entries[0] if entries and isinstance(entries[0], int) else 0


def is_linked(row: EventRow, before: bytes) -> bool:
    return next_link(before, row.digest, row.header) == row.link


def damaged_event_error(place: EventAddress, why: str) -> errors.Corrupt:
    return errors.Corrupt(
        f"the event at position {place.position:,} (version {place.version:,} of its stream) is damaged: {why}.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"position": place.position, "version": place.version},
    )


def unexplained_erasure_error(place: EventAddress) -> errors.Corrupt:
    """Return the error for an event without payload that no notice names."""
    return damaged_event_error(place, "its content is gone, and nothing says that it was erased")


def damaged_blob_error(hash_: bytes) -> errors.Corrupt:
    return errors.Corrupt(
        f"the blob {hash_.hex()} is damaged: its content is not what was written.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"blob": hash_.hex()},
    )


def missing_blob_fault(hash_: bytes, position: int) -> str:
    """Return the fault of an event whose blob is missing."""
    return f"the blob {hash_.hex()} of the event at position {position:,} is missing."


POOL_BYTES: Final = 4096


class RandomPool:
    """Random bytes, drawn in blocks. Thread-safe. Never returns a byte twice, so a forked process must not use its parent's."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._pool, self._offset = b"", 0

    def __call__(self, size: int) -> bytes:
        with self._lock:
            at, end = self._offset, self._offset + size
            if end > len(self._pool):
                self._pool = self._random(max(POOL_BYTES, size))
                at, end = 0, size
            self._offset = end
            return self._pool[at:end]


class StreamBase(msgspec.Struct, frozen=True):
    """The base of a stretch: the stretch with the key `stretch` and first version `first` continues `source` at `version`.

    After a rewind, `source` is the stretch's own stream.
    """

    stretch: int
    first: int
    source: int
    version: int


class Span(msgspec.Struct, frozen=True):
    """Versions of one stretch of a stream, from `low` to `high`, both included."""

    stream: int
    stretch: int
    low: int
    high: int


BaseLookup = Callable[[int], Sequence[StreamBase]]
"""Maps a stream to the bases of its stretches, in the order of their first versions."""


def resolve_path(stream: int, at: int, bases: BaseLookup) -> tuple[Span, ...]:
    """Return the spans that a stream was made of at a version, oldest first.

    The first stretch of a stream has the stream's own key, whether or not it has a base.
    """
    spans: list[Span] = []
    known: dict[int, Sequence[StreamBase]] = {}
    most = at
    while at > 0:
        # A stream that was rewound often is met at every hop.
        found = known[stream] = known[stream] if stream in known else bases(stream)
        base = next((each for each in reversed(found) if each.first <= at), None)
        forked = bool(found) and found[0].source != stream
        if base is None and forked:
            # The version lies in the stream that this one was forked from, up to the base version.
            most, base = min(most, at), found[0]
        else:
            low = base.first if base else 1
            if low <= (high := min(at, most)):
                spans.append(Span(stream, base.stretch if base else stream, low, high))
        if base is None:
            break
        stream, at = base.source, base.version
    return tuple(reversed(spans))


def clip(spans: Iterable[Span], after: int, until: int) -> list[Span]:
    """Return the spans of a path, cut to after < version <= until."""
    cut = ((span, max(span.low, after + 1), min(span.high, until)) for span in spans)
    return [Span(span.stream, span.stretch, low, high) for span, low, high in cut if low <= high]


def locate(spans: Iterable[Span], index: int) -> tuple[int, int]:
    """Return the stream and version of an event by its index on a path, from 0."""
    for span in spans:
        length = span.high - span.low + 1
        if index < length:
            return span.stream, span.low + index
        index -= length
    raise IndexError(index)


def previous_version(write: StreamWrite) -> int:
    """Return the version after which the events of a write are numbered."""
    return write.expected if write.base is None else max(write.expected, write.base[1])


def last_version(spans: Sequence[Span]) -> int:
    """Return the last version of a path, 0 if it is empty."""
    return spans[-1].high if spans else 0


def find_claim_version(spans: Iterable[Span], claims: Collection[tuple[int, int]]) -> int:
    """Return the version of a claim among (stretch, version) that a path has; 0 if it has none."""
    ends = {span.stretch: span.high for span in spans}
    return next((version for stretch, version in claims if version <= ends.get(stretch, 0)), 0)


def claims_by_stretch(
    stream: int, bases: Sequence[StreamBase], claims: Iterable[tuple[str, int]]
) -> list[tuple[int, str, int]]:
    """Return stretch, text and version of a stream's claims, which are given in the order of their versions.

    The first claim of a text in a stretch counts. A log can have it twice if the table of claims was lost in between.
    """
    firsts = [base.first for base in bases]
    stretches = [stream, *(base.stretch for base in bases)]
    found: dict[tuple[int, str], int] = {}
    for text, version in claims:
        found.setdefault((stretches[bisect_right(firsts, version)], text), version)
    return [(stretch, text, version) for (stretch, text), version in found.items()]


NOTICE_SUFFIX: Final = ".erased"
"""The end of a notice's kind."""

ERASED_STREAM_PREFIX: Final = "erased:"
"""The beginning of the name of a completely erased stream; its number follows."""

NOTICE_SCHEMA: Final = 1


class NoticeContent(msgspec.Struct, frozen=True):
    """The content of a notice: how many events were erased, and the proof of which."""

    events: int
    digest: str


def erasure_proof(gone: Iterable[tuple[int, bytes]]) -> NoticeContent:
    """Return the proof of a notice for events, given by position and digest in the order of the feed."""
    made, count = hashlib.sha256(), 0
    for position, digest in gone:
        made.update(position.to_bytes(8, "big") + digest)
        count += 1
    return NoticeContent(count, made.hexdigest())


def make_notice(kind: str, time_us: int, ordinal: int, content: NoticeContent) -> NewEvent:
    assert kind.endswith(NOTICE_SUFFIX), "the kind of a notice ends with the suffix"
    return NewEvent(kind, NOTICE_SCHEMA, time_us, msgspec.json.encode(content), ordinal)


def is_notice(kind: str) -> bool:
    """Return whether an event is a notice. Notices are never erased: they hold no text of a caller."""
    return kind.endswith(NOTICE_SUFFIX)


def erased_stream_name(number: int) -> str:
    return f"{ERASED_STREAM_PREFIX}{number}"


def is_erased_stream(stream: str) -> bool:
    return stream.startswith(ERASED_STREAM_PREFIX)


def check_note(name: str, value: bytes | None = None) -> None:
    """Raise TooLarge for a note that is larger than its limits."""
    assert name, "a note has a name"
    if len(name.encode()) > limits.NOTE_NAME_BYTES_MAX:
        raise errors.TooLarge(
            f"a note's name has at most {limits.NOTE_NAME_BYTES_MAX:,} bytes.",
            facts={"bytes_max": limits.NOTE_NAME_BYTES_MAX},
        )
    if value is not None and len(value) > limits.NOTE_BYTES_MAX:
        raise errors.TooLarge(
            f"the note has {len(value):,} bytes; at most {limits.NOTE_BYTES_MAX:,} are kept.",
            hint="Keep what is large in the log or on the shelf.",
            facts={"bytes": len(value), "bytes_max": limits.NOTE_BYTES_MAX},
        )
