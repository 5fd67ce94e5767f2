"""The lines of the journal: one commit as readable JSON with a checksum.

Every entry is a row of the log exactly as stored. Content is written as JSON if it is JSON, else
as text, else as base64, and reads back as the same bytes. The checksum covers the line and the
checksum of the line before.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import hashlib
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from limpet.stores import chain
from limpet.stores.sqlite.database import NUMBER_MASK, TENANT_SHIFT

JOURNAL_FORMAT: Final = 1
"""The format of a journal. A newer one is refused."""

CHECKSUM_CHARS: Final = 32
_LINE_END: Final = b'"}\n'
_CHECKSUM_FIELD: Final = b',"sum":"'
_CHECKSUM_TAIL_BYTES: Final = len(_CHECKSUM_FIELD) + CHECKSUM_CHARS + len(_LINE_END)
_CONTENT_FORMS: Final = 3
"""Writes a content."""


_INT_BITS: Final = 63
"""Bits of a SQLite integer without its sign."""

TenantNumber = Annotated[int, Meta(ge=1, lt=1 << (_INT_BITS - TENANT_SHIFT))]
"""A tenant's number."""

NumberInTenant = Annotated[int, Meta(ge=1, le=NUMBER_MASK)]
"""A position, a stream's number or a version: numbers within a tenant."""

NumberOrZero = Annotated[int, Meta(ge=0, le=NUMBER_MASK)]
"""The same, or 0 for none."""

TimeUs = Annotated[int, Meta(ge=-(1 << _INT_BITS), le=(1 << _INT_BITS) - 1)]
HexText = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{2})*\Z")]
Sha256Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
StoreIdHex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class UnreadableLine(Exception):
    """A line is damaged. The message is for people."""


class _LineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class LineContent(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes in the most readable of three forms that fits: JSON, text or base64."""

    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.json is UNSET) + (self.text is UNSET) + (self.base64 is UNSET) != _CONTENT_FORMS - 1:
            raise ValueError("a content is written in one way")
        if self.base64 is not UNSET:
            binascii.a2b_base64(self.base64, strict_mode=True)

    @property
    def bytes(self) -> bytes:
        if self.json is not UNSET:
            return builtins.bytes(self.json)
        if self.text is not UNSET:
            return self.text.encode()
        return base64.b64decode("" if self.base64 is UNSET else self.base64, validate=True)


def encode_content(content: bytes) -> LineContent:
    """Return bytes in the most readable form."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return LineContent(base64=base64.b64encode(content).decode())
    if content[:1] in (b"{", b"[", b'"') and b"\n" not in content:
        try:
            # Only what is read back as it is.
            if bytes(msgspec.json.decode(content, type=Raw)) == content:
                return LineContent(json=Raw(content))
        except (msgspec.MsgspecError, RecursionError):
            pass
    return LineContent(text=text)


def decode_content(content: LineContent | None) -> bytes | None:
    return None if content is None else content.bytes


class TenantEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant's number."""

    number: TenantNumber
    name: str


class StreamEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A stream's name; its number is the position of its first event."""

    tenant: TenantNumber
    number: NumberInTenant
    name: str


class EventEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An event. Its header says position, number of its stream, and version; erased, it has no content and no salt."""

    tenant: TenantNumber
    stream: str
    payload: LineContent | None = None
    header: Raw
    salt: HexText | None = None
    digest: Sha256Hex
    link: Sha256Hex


class BaseEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A base: the event at `position` begins a stretch that continues a version of the same or another stream."""

    tenant: TenantNumber
    position: NumberInTenant
    stream: NumberInTenant
    first: NumberInTenant
    source: NumberInTenant
    version: NumberOrZero


class KeyEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An idempotency key and the positions of its append."""

    tenant: TenantNumber
    key: str
    command: HexText
    first: NumberInTenant
    last: NumberInTenant
    time_us: TimeUs


class BlobEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A blob by its hash. Without content it is in a file of that name."""

    tenant: TenantNumber
    sha256: Sha256Hex
    content: LineContent | None = None


class NoteEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A note; the one without a name counts the versions of a tenant's notes."""

    tenant: str
    name: str
    version: NumberOrZero
    value: LineContent


class ErasedEntry(_LineEntry, frozen=True, kw_only=True, omit_defaults=True):
    """An erased event: the positions of its notice and of its cause, and its redacted payload."""

    tenant: TenantNumber
    position: NumberInTenant
    notice: NumberInTenant
    cause: NumberOrZero = 0
    stand_in: LineContent | None = None


class CommitLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit, the n-th. `pending` is the pending work of erasures; `dropped_…` are the keys of deleted rows."""

    n: int
    tenants: tuple[TenantEntry, ...] = ()
    streams: tuple[StreamEntry, ...] = ()
    events: tuple[EventEntry, ...] = ()
    bases: tuple[BaseEntry, ...] = ()
    keys: tuple[KeyEntry, ...] = ()
    blobs: tuple[BlobEntry, ...] = ()
    notes: tuple[NoteEntry, ...] = ()
    erased: tuple[ErasedEntry, ...] = ()
    pending: LineContent | None = None
    dropped_keys: tuple[tuple[TenantNumber, str], ...] = ()
    dropped_blobs: tuple[tuple[TenantNumber, Sha256Hex], ...] = ()
    dropped_notes: tuple[tuple[str, str], ...] = ()
    dropped_pending: bool = False


class SegmentHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a segment: store, number of the segment, commits before it, checksum of the line before."""

    limpet: str
    format: int
    store: StoreIdHex
    segment: int
    n: int
    after: str


_line_encoder = msgspec.json.Encoder()
_commit_decoder = msgspec.json.Decoder(CommitLine)
_event_header_decoder = msgspec.json.Decoder(list[object])
_segment_head_decoder = msgspec.json.Decoder(SegmentHead)


def encode_line(before: str, value: CommitLine | SegmentHead) -> tuple[bytes, str]:
    """Return a line and its checksum, which includes the checksum of the line before."""
    body = _line_encoder.encode(value)[:-1]
    check = _checksum(before, body)
    return body + _CHECKSUM_FIELD + check.encode() + _LINE_END, check


def _checksum(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:CHECKSUM_CHARS]


def stated_checksum(line: bytes) -> str:
    """Return the checksum in a line; empty if the line does not end as one does."""
    if (
        len(line) < _CHECKSUM_TAIL_BYTES
        or line[-_CHECKSUM_TAIL_BYTES : -len(_LINE_END) - CHECKSUM_CHARS] != _CHECKSUM_FIELD
    ):
        return ""
    return line[-len(_LINE_END) - CHECKSUM_CHARS : -len(_LINE_END)].decode("ascii", "replace")


def is_intact(line: bytes, before: str) -> bool:
    """Return whether a line is undamaged and follows the line with that checksum."""
    check = stated_checksum(line)
    return bool(check) and line.endswith(_LINE_END) and _checksum(before, line[:-_CHECKSUM_TAIL_BYTES]) == check


_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def event_address(event: EventEntry) -> chain.EventAddress:
    """Return an event's address; raise ValueError if its header is unreadable."""
    try:
        match _event_header_decoder.decode(event.header):
            case [int(), str(), int(), int(), int(position), int(stream), int(version), *_] if all(
                0 < each <= NUMBER_MASK for each in (position, stream, version)
            ):
                return chain.EventAddress(position, stream, version)
            case _:
                pass
    except _DECODE_ERRORS:
        pass
    raise ValueError("the header of an event says no place")


def decode_commit(line: bytes) -> CommitLine:
    """Return the commit in an intact line; raise UnreadableLine if it can't be decoded."""
    try:
        change = _commit_decoder.decode(line)
    except _DECODE_ERRORS as error:
        raise UnreadableLine(f"it can't be read ({error})") from error
    # Looked at here, where a line is read: whoever writes one has just made the headers.
    for index, event in enumerate(change.events):
        try:
            event_address(event)
        except ValueError as error:
            raise UnreadableLine(f"it can't be read ({error} - at `$.events[{index}]`)") from error
    return change


def decode_segment_head(line: bytes) -> SegmentHead:
    """Return the head of a segment; raise UnreadableLine if it is none."""
    try:
        head = _segment_head_decoder.decode(line)
    except _DECODE_ERRORS as error:
        raise UnreadableLine(f"it does not begin as a segment does ({error})") from error
    if head.limpet != "journal" or head.format < 1:
        raise UnreadableLine("it does not begin as a segment does")
    return head
