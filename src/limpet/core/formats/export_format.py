"""The lines of an export file: sessions as their events, one JSON object a line.

The file has a header, each session with its events in order, and a last line with counts and the SHA-256 of all
preceding bytes. Events of a session are numbered from 1 in the file, and references use these numbers. Event data is as
in the log, with large texts inline; of a fork or rewind only data that can't be derived is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from limpet import errors
from limpet.core.formats import codec
from limpet.core.values import events as e
from limpet.core.values.validation import EMPTY, Json

FORMAT_VERSION: Final = 1
"""The version of the format that is written, and the newest that is read."""


class HeaderLine(msgspec.Struct, frozen=True, tag="limpet-export", tag_field="line"):
    """The first line."""

    version: int = FORMAT_VERSION


class SessionLine(msgspec.Struct, frozen=True, tag="session", tag_field="line"):
    """The line before the events of a session."""

    id: str


class EventLine(msgspec.Struct, frozen=True, omit_defaults=True, tag="event", tag_field="line"):
    """One event. Only a message has tokens and a counter."""

    kind: str
    schema: int
    time_us: int
    data: msgspec.Raw
    tokens: int | None = None
    counter: str | None = None


class ClosingLine(msgspec.Struct, frozen=True, tag="end", tag_field="line"):
    """The last line."""

    sessions: int
    events: int
    messages: int
    sha256: str


ExportLine = HeaderLine | SessionLine | EventLine | ClosingLine


class ExportedFork(msgspec.Struct, frozen=True, omit_defaults=True):
    """The session is a fork of `source` from its event `version`; the preceding events are copies of the source's."""

    kind: ClassVar[str] = e.SessionForkedEvent.kind
    source: str
    version: int
    title: str | None = None
    metadata: Mapping[str, Json] = EMPTY


class ExportedRewind(msgspec.Struct, frozen=True):
    """The session was rewound to its event number `to`."""

    kind: ClassVar[str] = e.SessionRewoundEvent.kind
    to: int


UnchangedEvent = (
    e.MessageAddedEvent
    | e.WindowRecordedEvent
    | e.WindowCutEvent
    | e.SessionSummarizedEvent
    | e.SessionUpdatedEvent
    | e.SessionContinuedEvent
    | e.SessionResetEvent
    | e.SessionEndedEvent
)
"""Events, after the first, that are written as in the log."""

ExportedEvent = e.SessionCreatedEvent | UnchangedEvent | ExportedFork | ExportedRewind

_encoder = msgspec.json.Encoder()
_line_decoder = msgspec.json.Decoder(ExportLine)
_branch_decoders = {
    ExportedFork.kind: msgspec.json.Decoder(ExportedFork),
    ExportedRewind.kind: msgspec.json.Decoder(ExportedRewind),
}


def encode_line(line: ExportLine) -> bytes:
    """Return the bytes of a line with its line end."""
    return _encoder.encode(line) + b"\n"


def event_line(fact: ExportedEvent, time_us: int) -> EventLine:
    """Return the line of an event."""
    if isinstance(fact, e.MessageAddedEvent):
        data = msgspec.Raw(codec.encode_message(fact.message))
        return EventLine(fact.kind, codec.SCHEMA_WHOLE, time_us, data, fact.tokens, fact.counter)
    if isinstance(fact, ExportedFork | ExportedRewind):
        data = _encoder.encode(fact)
    else:
        if isinstance(fact, e.SessionCreatedEvent) and fact.until:
            fact = msgspec.structs.replace(fact, until=0)
        data = codec.encode_session_event(fact)
    return EventLine(fact.kind, codec.SESSION_EVENT_SCHEMAS[fact.kind], time_us, msgspec.Raw(data))


def decode_line(data: bytes) -> ExportLine:
    """Return the decoded line; raise DamagedFile if it is not valid."""
    try:
        return _line_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.DamagedFile(f"a line can't be read: {_decode_failure(error)}.") from error


def decode_exported_event(line: EventLine) -> ExportedEvent:
    """Return the event of a line; raise DamagedFile if it is not valid, NewerStore if a newer Limpet wrote it."""
    data = bytes(line.data)
    try:
        if line.kind in _branch_decoders:
            return _branch_decoders[line.kind].decode(data)
        fact = codec.decode_session_event(line.kind, line.schema, data, tokens=line.tokens, counter=line.counter)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.DamagedFile(f"its data can't be read: {_decode_failure(error)}.") from error
    except errors.Corrupt as error:
        cause = error.__cause__
        what = cause.message if isinstance(cause, errors.Error) else str(cause or error.message)
        raise errors.DamagedFile(f"its data can't be read: {what.rstrip('.')}.") from error
    assert not isinstance(fact, e.SessionForkedEvent | e.SessionRewoundEvent), "these are read above"
    if isinstance(fact, e.SessionOffloadedEvent | e.SessionErasedEvent):
        raise errors.DamagedFile("it tells what a memory has taken or a store has erased.")
    return fact


def _decode_failure(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)
