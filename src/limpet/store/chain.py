"""How damage is detected: header, digest and link of an event, the same bytes on every backend.

    header  what happened where and when, as a JSON array without any text of a caller
    digest  SHA-256(salt ‖ length of header ‖ header ‖ payload), checked on every read
    link    SHA-256(previous link ‖ digest ‖ header), a chain per tenant, checked by verify
    blob    stored under SHA-256(content); the payload holds the hash, so the chain covers the content

The chain still verifies after payload and salt are erased; without its salt a digest reveals nothing of the
payload.
"""

from __future__ import annotations

import hashlib

import msgspec

from limpet import errors
from limpet.store.port import NewEvent, StoredEvent

FORMAT = 1
SALT_BYTES = 16
GENESIS = bytes(32)
"""The link before a tenant's first event."""

_Header = tuple[int, str, int, int, int, int, int, int, int | None, str | None]
_decoder = msgspec.json.Decoder(_Header)
_encoder = msgspec.json.Encoder()


class Place(msgspec.Struct, frozen=True, gc=False):
    """The place of an event: position in the feed, number of its stream, version in the stream."""

    position: int
    stream: int
    version: int


def header(event: NewEvent, place: Place) -> bytes:
    """Return the header's bytes."""
    return _encoder.encode(
        (
            FORMAT, event.kind, event.schema, event.time_us,
            place.position, place.stream, place.version,
            event.ordinal, event.tokens, event.counter,
        )
    )  # fmt: skip


def digest(salt: bytes, header_: bytes, payload: bytes) -> bytes:
    """Return the digest of header and payload under a salt."""
    return hashlib.sha256(salt + len(header_).to_bytes(4, "big") + header_ + payload).digest()


def link(before: bytes, digest_: bytes, header_: bytes) -> bytes:
    """Return the link that binds an event to all before it."""
    return hashlib.sha256(before + digest_ + header_).digest()


def blob_hash(content: bytes) -> bytes:
    """Return the hash under which a blob is stored."""
    return hashlib.sha256(content).digest()


def is_blob(hash_: bytes, content: bytes) -> bool:
    """Return whether a content has that hash."""
    return blob_hash(content) == hash_


class Row(msgspec.Struct, frozen=True, gc=False):
    """The stored columns of an event. `payload` and `salt` are both None once erased."""

    place: Place
    header: bytes
    payload: bytes | None
    salt: bytes | None
    digest: bytes
    link: bytes


def opened(row: Row, stream: str, stand_in: bytes | None = None) -> StoredEvent:
    """Check a row against its digest and place and return the event; raise Corrupt if it differs.

    `stand_in` is returned in place of an erased payload.
    """
    if (row.payload is None) != (row.salt is None):
        raise damaged(row.place, "half of it is missing")
    if row.payload is not None and digest(row.salt or b"", row.header, row.payload) != row.digest:
        raise damaged(row.place, "its content is not what was written")
    try:
        fields = _decoder.decode(row.header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        if _format(row.header) > FORMAT:
            raise errors.NewerStore(facts={"format": _format(row.header)}) from error
        raise damaged(row.place, "its header can't be read") from error
    format_, kind, schema, time_us, position, number, version, ordinal, tokens, counter = fields
    if format_ > FORMAT:
        raise errors.NewerStore(facts={"format": format_})
    if Place(position, number, version) != row.place:
        raise damaged(row.place, "it is not where it was written")
    erased = row.payload is None
    return StoredEvent(
        position, stream, version, kind, schema, time_us, ordinal, tokens, counter,
        stand_in if erased else row.payload, row.link, erased,
    )  # fmt: skip


def kind_and_ordinal(header_: bytes) -> tuple[str, int]:
    """Return kind and ordinal of a header; the kind is empty if the header is unreadable."""
    try:
        fields = _decoder.decode(header_)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "", 0
    return fields[1], fields[7]


def _format(header_: bytes) -> int:
    """Return the format of a header, which may be newer than this code; 0 if it is unreadable."""
    try:
        entries = msgspec.json.decode(header_, type=list[object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    return entries[0] if entries and isinstance(entries[0], int) else 0


def linked(row: Row, before: bytes) -> bool:
    """Return whether a row follows the previous link."""
    return link(before, row.digest, row.header) == row.link


def damaged(place: Place, why: str) -> errors.Corrupt:
    """Return the error for a damaged event."""
    return errors.Corrupt(
        f"the event at position {place.position:,} (version {place.version:,} of its stream) is damaged: {why}.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"position": place.position, "version": place.version},
    )


def damaged_blob(hash_: bytes) -> errors.Corrupt:
    """Return the error for a blob whose content does not match its hash."""
    return errors.Corrupt(
        f"the blob {hash_.hex()} is damaged: its content is not what was written.",
        hint="Nothing was changed. `limpet verify` lists all damage.",
        facts={"blob": hash_.hex()},
    )


def missing_blob(hash_: bytes, position: int) -> str:
    """Return the fault of an event whose blob is missing."""
    return f"the blob {hash_.hex()} of the event at position {position:,} is missing."
