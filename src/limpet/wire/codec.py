"""Events to payload bytes and back. Tags and versions are explicit; data only, nothing is revived.

A payload written by an older version climbs `UPCASTERS` step by step on reading. One written by a
newer version is refused if its kind or schema is unknown; unknown fields of a message are kept.
Large texts of a message become blobs (`wire.blobs`); a message without them is written as one always was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from limpet import errors, limits
from limpet.core.values import commands, events
from limpet.core.values.json_values import Json, freeze
from limpet.core.values.messages import CATEGORY_OF_ROLE, Message
from limpet.core.values.session_state import SessionInfo, SessionState
from limpet.wire import anthropic, blobs, openai

SCHEMAS: Final[Mapping[str, int]] = {
    events.SessionCreatedEvent.kind: 1,
    events.MessageAddedEvent.kind: 2,
    events.WindowRecordedEvent.kind: 1,
    events.WindowCutEvent.kind: 1,
    events.SessionSummarizedEvent.kind: 1,
    events.SessionUpdatedEvent.kind: 1,
    events.SessionContinuedEvent.kind: 1,
    events.SessionForkedEvent.kind: 1,
    events.SessionRewoundEvent.kind: 1,
    events.SessionResetEvent.kind: 1,
    events.SessionEndedEvent.kind: 1,
    events.SessionOffloadedEvent.kind: 1,
    events.SessionErasedEvent.kind: 1,
}
"""The newest schema that this version knows, by kind of event; it is what it writes, but of a message."""

WHOLE: Final = 1
PARTED: Final = 2
"""The schemas of a message: with every text in it, and with references to blobs in place of large ones."""

Upcaster = Callable[[dict[str, Json]], dict[str, Json]]
UPCASTERS: Final[dict[tuple[str, int], Upcaster]] = {
    (events.MessageAddedEvent.kind, WHOLE): lambda whole: whole,
}
"""From (kind, schema) to the function that lifts such a payload to the next schema."""

FOLD: Final = 4
"""Version of the folded state. A snapshot of another fold is not read but folded anew."""

_PLAIN: Final = {
    kind.kind: msgspec.json.Decoder(kind)
    for kind in (
        events.SessionCreatedEvent,
        events.WindowRecordedEvent,
        events.WindowCutEvent,
        events.SessionSummarizedEvent,
        events.SessionUpdatedEvent,
        events.SessionContinuedEvent,
        events.SessionForkedEvent,
        events.SessionRewoundEvent,
        events.SessionResetEvent,
        events.SessionEndedEvent,
        events.SessionOffloadedEvent,
        events.SessionErasedEvent,
    )
}
_encoder = msgspec.json.Encoder()
_sorting = msgspec.json.Encoder(order="sorted")
_json = msgspec.json.Decoder()
_state = msgspec.json.Decoder(SessionState)
_info = msgspec.json.Decoder(SessionInfo)


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """An event as it is stored: its payload with its schema, and the blobs that it refers to."""

    schema: int
    payload: bytes
    blobs: tuple[bytes, ...] = ()


def encoded(fact: events.SessionEvent) -> Encoded:
    """Return an event as it is stored; raise TooLarge if a message is larger than its limit."""
    if not isinstance(fact, events.MessageAddedEvent):
        return Encoded(SCHEMAS[fact.kind], _encoder.encode(fact))
    payload = encode_message(fact.message)
    # No text is larger than the whole: most messages need no look inside.
    if len(payload) > limits.BLOB_BYTES_MIN:
        parted, contents = blobs.taken_out(payload)
        if contents:
            return Encoded(PARTED, parted, contents)
    return Encoded(WHOLE, payload)


def needed(kind: str, schema: int, payload: bytes) -> list[bytes]:
    """Return the hashes of the blobs that a payload can't be read without."""
    parted = kind == events.MessageAddedEvent.kind and schema == PARTED
    return blobs.hashes(payload) if parted else []


def encode_event(fact: events.SessionEvent) -> bytes:
    """Return the whole payload of an event; raise TooLarge if a message is larger than its limit."""
    if isinstance(fact, events.MessageAddedEvent):
        return encode_message(fact.message)
    return _encoder.encode(fact)


def encode_message(message: Message) -> bytes:
    """Return a message's bytes: what came in, and whatever of its fields is not a default."""
    data: dict[str, Json] = {"id": message.id, "timestamp": message.timestamp}
    if message.openai is not None:
        data["openai"] = message.openai
    elif message.anthropic is not None:
        data["anthropic"] = message.anthropic
    else:
        data["role"] = message.role
        if message.content is not None:
            data["content"] = message.content
        if message.tool_calls:
            data["tool_calls"] = message.tool_calls
        if message.tool_results:
            data["tool_results"] = message.tool_results
    if message.category is not CATEGORY_OF_ROLE[message.role]:
        data["category"] = message.category.name
    if message.metadata:
        data["metadata"] = message.metadata
    if message.tokens:
        data["tokens"] = message.tokens
    if message.origin:
        data["origin"] = message.origin
    payload = _encoder.encode({**message.extra, **data} if message.extra else data)
    if len(payload) > limits.MESSAGE_BYTES_MAX:
        raise errors.TooLarge(
            f"the message has {len(payload):,} bytes; at most {limits.MESSAGE_BYTES_MAX:,} are kept.",
            hint="Keep large content outside and put a reference to it into the message.",
            facts={"bytes": len(payload), "bytes_max": limits.MESSAGE_BYTES_MAX},
        )
    return payload


def decode_event(
    kind: str,
    schema: int,
    payload: bytes,
    *,
    tokens: int | None,
    counter: str | None,
    texts: Mapping[bytes, str] = blobs.NONE,
) -> events.SessionEvent:
    """Return the event of a payload that has passed its digest; `texts` has the blobs it needs, by hash.

    Raises NewerStore for a kind or schema this version does not know, Corrupt for bytes it can't be,
    or for a blob that is not there.
    """
    known = SCHEMAS.get(kind, 0)
    if schema > known:
        raise errors.NewerStore(
            f"an event of kind {kind} with schema {schema} was written by a newer Limpet.",
            hint="In an up-to-date clone of Limpet: pip install .",
            facts={"kind": kind, "schema": schema},
        )
    try:
        if kind == events.MessageAddedEvent.kind:
            parted = schema == PARTED
            data = blobs.put_back(payload, texts) if parted else _json.decode(payload)
            data = lift(kind, schema, data)
            return events.MessageAddedEvent(message_of(data), tokens or 0, counter or "")
        if schema == known:
            return _PLAIN[kind].decode(payload)
        lifted = lift(kind, schema, _json.decode(payload))
        return _PLAIN[kind].decode(_encoder.encode(lifted))
    except (msgspec.MsgspecError, errors.Refused) as error:
        raise errors.Corrupt(f"a stored {kind} can't be read.", facts={"kind": kind}) from error


def lift(kind: str, schema: int, data: dict[str, Json]) -> dict[str, Json]:
    """Climb the upcasters from a stored schema to the one in force."""
    if not isinstance(cast("object", data), dict):
        raise errors.NotJson("a payload must be an object.")
    if schema < 1:
        raise errors.NotJson("a payload's schema is a number from 1 on.")
    for step in range(schema, SCHEMAS[kind]):
        data = UPCASTERS[kind, step](data)
    return data


def message_of(data: Mapping[str, Json]) -> Message:
    """Return the message that encode_message described."""
    if (raw := data.get("openai")) is not None:
        return openai.message(raw, envelope=data)
    if (raw := data.get("anthropic")) is not None:
        return anthropic.message(raw, envelope=data)
    return Message.from_dict(data)


def encode_state(state: SessionState) -> bytes:
    """Return a state's bytes, for a snapshot."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> SessionState | None:
    """Return the state of a snapshot, or None if it is not one (it is folded anew then)."""
    try:
        return _frozen_metadata(_state.decode(data))
    except msgspec.MsgspecError:
        return None


def _frozen_metadata(state: SessionState) -> SessionState:
    return msgspec.structs.replace(state, metadata=freeze(state.metadata))


def encode_info(row: SessionInfo) -> bytes:
    """Return a listing row's bytes."""
    return _encoder.encode(row)


def decode_info(data: bytes, *, id: str, user_id: str | None, active_us: int) -> SessionInfo:
    """Return a listing row, with what it is found by, which its bytes do not say again."""
    try:
        row = _info.decode(data)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a stored session row can't be read.") from error
    return msgspec.structs.replace(row, id=id, user_id=user_id, active_us=active_us)


def digest(data: bytes) -> bytes:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).digest()


def canonical(value: object) -> bytes:
    """Return JSON bytes that are the same for equal values, whatever the order of their keys."""
    return _sorting.encode(value)


TAGS: Final[Mapping[type, str]] = {
    commands.CreateSession: "create",
    commands.AddMessages: "add",
    commands.UpdateSession: "update",
    commands.ContinueSession: "continue",
    commands.EndSession: "end",
    commands.ResetSession: "reset",
    commands.ForkSession: "fork",
    commands.RewindSession: "rewind",
    commands.TrimSession: "trim",
    commands.SummarizeSession: "summarize",
    commands.OffloadSession: "offload",
}
"""The stored names of commands."""

_MADE: Final = frozenset(
    {"next_id", "carried", "max_messages", "named", "cut", "summary", "there", "opening"}
)
"""Fields that Limpet fills in, or that are settings: not what the caller said."""


def command_bytes(request: commands.SessionCommand) -> bytes:
    """Return what makes two commands the same: what the caller said, nothing made on the way.

    Fields that are as they are by default are left out, so a later version may add some. A message
    counts by what it says, without its id and timestamp.
    """
    fields: dict[str, Json] = {}
    for field in msgspec.structs.fields(request):
        value = getattr(request, field.name)
        if field.name not in _MADE and value != field.default:
            fields[field.name] = value
    if isinstance(request, commands.CreateSession) and not request.named:
        del fields["session_id"]
    if isinstance(request, commands.ForkSession) and not request.named:
        del fields["fork_id"]
    if "messages" in fields:
        messages = cast("tuple[Message, ...]", fields["messages"])
        fields["messages"] = [said(message) for message in messages]
    return canonical([TAGS[type(request)], fields])


def said(message: Message) -> Json:
    """Return what a message says, without the id and timestamp that may have been made for it."""
    whole = message.to_dict()
    told = {
        key: whole[key] for key in ("role", "content", "category", "metadata", "tool_results")
    } | {
        "tool_calls": [[call.name, call.args] for call in message.tool_calls],
        "openai": message.openai,
    }
    # Said only where it is, so that commands from before it could be are still the same.
    return told if message.anthropic is None else told | {"anthropic": message.anthropic}
