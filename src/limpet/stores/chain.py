"""Header, digest and link of an event: the same bytes on every backend.

    header  what happened where and when, as a JSON array without any text of a caller
    digest  SHA-256(salt ‖ length of header ‖ header ‖ payload), checked on every read
    link    SHA-256(previous link ‖ digest ‖ header), a chain per tenant, checked by verify
    blob    stored under SHA-256(content); the payload holds the hash, so the chain covers it

The chain still verifies after payload and salt are erased. A digest without its salt reveals
nothing of the payload. Random bytes for salts are drawn in blocks, because one system call per
event would dominate its cost.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from limpet import errors
from limpet.stores.port import NewEvent, StoredEvent

HEADER_FORMAT = 1
SALT_BYTES = 16
GENESIS_LINK = bytes(32)
"""The link before a tenant's first event."""

_Header = tuple[int, str, int, int, int, int, int, int, int | None, str | None]
_header_decoder = msgspec.json.Decoder(_Header)
_header_encoder = msgspec.json.Encoder()


class EventAddress(msgspec.Struct, frozen=True, gc=False):
    """The place of an event: position in the feed, number of its stream, version in the stream."""

    position: int
    stream: int
    version: int


def encode_header(event: NewEvent, place: EventAddress) -> bytes:
    """Return the header's bytes."""
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


def blob_hash(content: bytes) -> bytes:
    """Return the hash under which a blob is stored."""
    return hashlib.sha256(content).digest()


def blob_matches(hash_: bytes, content: bytes) -> bool:
    """Return whether a content has that hash."""
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
    """Return whether a row follows the previous link."""
    return next_link(before, row.digest, row.header) == row.link


def damaged_event_error(place: EventAddress, why: str) -> errors.Corrupt:
    """Return the error for a damaged event."""
    return errors.Corrupt(
        f"the event at position {place.position:,} (version {place.version:,} of its stream) is damaged: {why}.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"position": place.position, "version": place.version},
    )


def unexplained_erasure_error(place: EventAddress) -> errors.Corrupt:
    """Return the error for an event without payload that no notice names."""
    return damaged_event_error(place, "its content is gone, and nothing says that it was erased")


def damaged_blob_error(hash_: bytes) -> errors.Corrupt:
    """Return the error for a blob whose content does not match its hash."""
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
    """Gives random bytes out of a supply. Safe for threads. No byte is ever given twice; a forked process must not go on with one."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._pool, self._offset = b"", 0

    def __call__(self, size: int) -> bytes:
        """Return so many bytes."""
        with self._lock:
            at, end = self._offset, self._offset + size
            if end > len(self._pool):
                self._pool = self._random(max(POOL_BYTES, size))
                at, end = 0, size
            self._offset = end
            return self._pool[at:end]
