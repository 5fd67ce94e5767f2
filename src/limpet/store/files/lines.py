"""A line of the journal: what one commit put and took away, as JSON that people can read, with its checksum.

Every entry is a row of the log exactly as it is kept: nothing that can be derived from it, nothing left out. A
content is written as the JSON that it is, else as text, else as base64; read back it is the same bytes. The
checksum at the end of a line is over the line and the checksum of the line before.
"""

from __future__ import annotations

import base64
import binascii
import builtins
import hashlib
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from limpet.store import chain
from limpet.store.sqlite.rows import NUMBER_MASK, TENANT_SHIFT

FORMAT: Final = 1
"""Of a journal; a number that is not known is refused."""

SUM_CHARS: Final = 32
_END: Final = b'"}\n'
_SUM: Final = b',"sum":"'
_TAIL_BYTES: Final = len(_SUM) + SUM_CHARS + len(_END)
_WAYS: Final = 3
"""To write a content."""


_INT_BITS: Final = 63
"""Of a number in SQLite, without its sign."""

Whose = Annotated[int, Meta(ge=1, lt=1 << (_INT_BITS - TENANT_SHIFT))]
"""A tenant's number."""

Number = Annotated[int, Meta(ge=1, le=NUMBER_MASK)]
"""A position, a stream's number, a version: whatever counts within a tenant."""

OrNone = Annotated[int, Meta(ge=0, le=NUMBER_MASK)]
"""The same, or 0: none."""

Moment = Annotated[int, Meta(ge=-(1 << _INT_BITS), le=(1 << _INT_BITS) - 1)]
Hex = Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{2})*\Z")]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Id = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class Bad(Exception):
    """A line is not what was written. What it says is for people."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Content(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """Some bytes, in the first of three ways in which people can read them."""

    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.json is UNSET) + (self.text is UNSET) + (self.base64 is UNSET) != _WAYS - 1:
            raise ValueError("a content is written in one way")
        if self.base64 is not UNSET:
            binascii.a2b_base64(self.base64, strict_mode=True)

    @property
    def bytes(self) -> bytes:
        """The bytes that were written."""
        if self.json is not UNSET:
            return builtins.bytes(self.json)
        if self.text is not UNSET:
            return self.text.encode()
        return base64.b64decode("" if self.base64 is UNSET else self.base64, validate=True)


def readable(content: bytes) -> Content:
    """Return a content as people can read it."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Content(base64=base64.b64encode(content).decode())
    if content[:1] in (b"{", b"[", b'"') and b"\n" not in content:
        try:
            # Only what is read back as it is.
            if bytes(msgspec.json.decode(content, type=Raw)) == content:
                return Content(json=Raw(content))
        except (msgspec.MsgspecError, RecursionError):
            pass
    return Content(text=text)


def read(content: Content | None) -> bytes | None:
    """Return the bytes of a content, if there is one."""
    return None if content is None else content.bytes


class Tenant(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant's number."""

    number: Whose
    name: str


class Stream(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """A stream's name; its number is the position of its first event."""

    tenant: Whose
    number: Number
    name: str


class Event(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """An event. Its header says position, number of its stream, and version; erased, it has no content and no salt."""

    tenant: Whose
    stream: str
    payload: Content | None = None
    header: Raw
    salt: Hex | None = None
    digest: Sha256
    link: Sha256


class Base(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """The event at a position begins a stretch of its stream, which goes on from a version of another, or its own."""

    tenant: Whose
    position: Number
    stream: Number
    first: Number
    source: Number
    version: OrNone


class Key(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """An idempotency key, and the positions of what was done under it."""

    tenant: Whose
    key: str
    command: Hex
    first: Number
    last: Number
    time_us: Moment


class Blob(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """A blob by its hash. Without content it is in a file of that name."""

    tenant: Whose
    sha256: Sha256
    content: Content | None = None


class Note(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """A note; the one without a name counts the versions of a tenant's notes."""

    tenant: str
    name: str
    version: OrNone
    value: Content


class Gone(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """An event that was erased: the positions of its notice and of its cause, and what is read in its place."""

    tenant: Whose
    position: Number
    notice: Number
    cause: OrNone = 0
    stand_in: Content | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit, the n-th. `pending` is what erasures have left to do; `dropped_…`: rows that are not there any more, by what they are known by."""

    n: int
    tenants: tuple[Tenant, ...] = ()
    streams: tuple[Stream, ...] = ()
    events: tuple[Event, ...] = ()
    bases: tuple[Base, ...] = ()
    keys: tuple[Key, ...] = ()
    blobs: tuple[Blob, ...] = ()
    notes: tuple[Note, ...] = ()
    erased: tuple[Gone, ...] = ()
    pending: Content | None = None
    dropped_keys: tuple[tuple[Whose, str], ...] = ()
    dropped_blobs: tuple[tuple[Whose, Sha256], ...] = ()
    dropped_notes: tuple[tuple[str, str], ...] = ()
    dropped_pending: bool = False


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a segment: whose it is, which one, how many commits came before, and after which checksum."""

    limpet: str
    format: int
    store: Id
    segment: int
    n: int
    after: str


_encoder = msgspec.json.Encoder()
_change = msgspec.json.Decoder(Change)
_header = msgspec.json.Decoder(list[object])
_head = msgspec.json.Decoder(Head)


def summed(before: str, value: Change | Head) -> tuple[bytes, str]:
    """Return a line and its checksum, which follows from the one before."""
    body = _encoder.encode(value)[:-1]
    check = _sum(before, body)
    return body + _SUM + check.encode() + _END, check


def _sum(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()[:SUM_CHARS]


def sum_of(line: bytes) -> str:
    """Return the checksum that a line says it has; empty if it does not end like a line."""
    if len(line) < _TAIL_BYTES or line[-_TAIL_BYTES : -len(_END) - SUM_CHARS] != _SUM:
        return ""
    return line[-len(_END) - SUM_CHARS : -len(_END)].decode("ascii", "replace")


def is_sound(line: bytes, before: str) -> bool:
    """Whether a line is as it was written, after the one with that checksum."""
    check = sum_of(line)
    return bool(check) and line.endswith(_END) and _sum(before, line[:-_TAIL_BYTES]) == check


_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def place_of(event: Event) -> chain.Place:
    """Return where an event stands; raise ValueError if its header does not say."""
    try:
        match _header.decode(event.header):
            case [int(), str(), int(), int(), int(position), int(stream), int(version), *_] if all(
                0 < each <= NUMBER_MASK for each in (position, stream, version)
            ):
                return chain.Place(position, stream, version)
            case _:
                pass
    except _UNREADABLE:
        pass
    raise ValueError("the header of an event says no place")


def change_of(line: bytes) -> Change:
    """Return what a sound line says; raise Bad if it can't be read."""
    try:
        change = _change.decode(line)
    except _UNREADABLE as error:
        raise Bad(f"it can't be read ({error})") from error
    # Looked at here, where a line is read: whoever writes one has just made the headers.
    for index, event in enumerate(change.events):
        try:
            place_of(event)
        except ValueError as error:
            raise Bad(f"it can't be read ({error} - at `$.events[{index}]`)") from error
    return change


def head_of(line: bytes) -> Head:
    """Return what the first line of a segment says; raise Bad if it is none of ours."""
    try:
        head = _head.decode(line)
    except _UNREADABLE as error:
        raise Bad(f"it does not begin as a segment does ({error})") from error
    if head.limpet != "journal" or head.format < 1:
        raise Bad("it does not begin as a segment does")
    return head
