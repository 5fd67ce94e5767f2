"""The lines of an exported file: sessions as the events that made them, one JSON object a line.

A header, then each session with its events in order, then a closing line with counts and the SHA-256 of
all bytes before it. Events of a session are numbered from 1 as they stand there; what refers to one uses
these numbers. An event's data is as the log has it, with large texts in their place; but of a fork or a
rewind only what can't be worked out again is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from limpet import errors
from limpet.core.values import events as e
from limpet.core.values.json_values import EMPTY, Json
from limpet.wire import codec

VERSION: Final = 1
"""The newest version of the format that is read, and the one that is written."""


class Header(msgspec.Struct, frozen=True, tag="limpet-export", tag_field="line"):
    """The first line."""

    version: int = VERSION


class Begin(msgspec.Struct, frozen=True, tag="session", tag_field="line"):
    """A session: what follows, up to the next one, are its events."""

    id: str


class Event(msgspec.Struct, frozen=True, omit_defaults=True, tag="event", tag_field="line"):
    """One event. Tokens and counter are those of a message."""

    kind: str
    schema: int
    time_us: int
    data: msgspec.Raw
    tokens: int | None = None
    counter: str | None = None


class Closing(msgspec.Struct, frozen=True, tag="end", tag_field="line"):
    """The last line."""

    sessions: int
    events: int
    messages: int
    sha256: str


Line = Header | Begin | Event | Closing


class Forked(msgspec.Struct, frozen=True, omit_defaults=True):
    """From here on the session is its own: what came before was that of `source`, up to event `version`."""

    kind: ClassVar[str] = e.SessionForkedEvent.kind
    source: str
    version: int
    title: str | None = None
    metadata: Mapping[str, Json] = EMPTY


class Rewound(msgspec.Struct, frozen=True):
    """The session went back to one of its events."""

    kind: ClassVar[str] = e.SessionRewoundEvent.kind
    to: int


Follows = (
    e.MessageAddedEvent
    | e.WindowRecordedEvent
    | e.WindowCutEvent
    | e.SessionSummarizedEvent
    | e.SessionUpdatedEvent
    | e.SessionContinuedEvent
    | e.SessionResetEvent
    | e.SessionEndedEvent
)
"""Events that are written as they are in the log, after the first."""

Fact = e.SessionCreatedEvent | Follows | Forked | Rewound

_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(Line)
_branches = {
    Forked.kind: msgspec.json.Decoder(Forked),
    Rewound.kind: msgspec.json.Decoder(Rewound),
}


def encoded(line: Line) -> bytes:
    """Return a line with its end."""
    return _encoder.encode(line) + b"\n"


def line_of(fact: Fact, time_us: int) -> Event:
    """Return the line of an event."""
    if isinstance(fact, e.MessageAddedEvent):
        data = msgspec.Raw(codec.encode_message(fact.message))
        return Event(fact.kind, codec.WHOLE, time_us, data, fact.tokens, fact.counter)
    if isinstance(fact, Forked | Rewound):
        data = _encoder.encode(fact)
    else:
        if isinstance(fact, e.SessionCreatedEvent) and fact.until:
            fact = msgspec.structs.replace(fact, until=0)
        data = codec.encode_event(fact)
    return Event(fact.kind, codec.SCHEMAS[fact.kind], time_us, msgspec.Raw(data))


def decoded(data: bytes) -> Line:
    """Return what a line says; raise DamagedFile if it is none."""
    try:
        return _lines.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.DamagedFile(f"a line can't be read: {_told(error)}.") from error


def fact_of(line: Event) -> Fact:
    """Return the event of a line; raise DamagedFile if it is none, NewerStore if a newer Limpet wrote it."""
    data = bytes(line.data)
    try:
        if line.kind in _branches:
            return _branches[line.kind].decode(data)
        fact = codec.decode_event(
            line.kind, line.schema, data, tokens=line.tokens, counter=line.counter
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.DamagedFile(f"its data can't be read: {_told(error)}.") from error
    except errors.Corrupt as error:
        cause = error.__cause__
        what = cause.message if isinstance(cause, errors.Error) else str(cause or error.message)
        raise errors.DamagedFile(f"its data can't be read: {what.rstrip('.')}.") from error
    assert not isinstance(fact, e.SessionForkedEvent | e.SessionRewoundEvent), (
        "these are read above"
    )
    if isinstance(fact, e.SessionOffloadedEvent | e.SessionErasedEvent):
        raise errors.DamagedFile("it tells what a memory has taken or a store has erased.")
    return fact


def _told(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)
