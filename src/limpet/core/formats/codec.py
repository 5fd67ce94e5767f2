"""Encoding and decoding of events, states, rows and commands.

A payload of an older schema is upcast step by step on reading; a kind or schema of a newer version is refused with
NewerStore. Large texts of a message are stored as blobs: the payload holds the SHA-256 of each in place of the text, and
lists their paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeVar, cast, get_args

import msgspec

from limpet import errors, limits
from limpet.core.formats import anthropic, openai
from limpet.core.values import commands, events
from limpet.core.values.frame_state import Frame, Suspension, TreeState
from limpet.core.values.messages import CATEGORY_OF_ROLE, Message
from limpet.core.values.session_state import SessionInfo, SessionState
from limpet.core.values.validation import Json, freeze

_T = TypeVar("_T")
TextPath = tuple[str | int, ...]

_CHARACTER_BYTES_MAX = 4
"""The most bytes that one character takes in UTF-8."""


class PayloadWithBlobs(msgspec.Struct, frozen=True):
    """A payload without its large texts, and the path and size of each."""

    message: dict[str, Json]
    blobs: tuple[tuple[TextPath, int], ...]


NO_TEXTS: Final[Mapping[bytes, str]] = MappingProxyType({})

_json_decoder = msgspec.json.Decoder()
_payload_with_blobs_decoder = msgspec.json.Decoder(PayloadWithBlobs)
_encoder = msgspec.json.Encoder()


def extract_texts(payload: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """Return a payload without its large texts, and these as blobs; an unchanged payload if it has none."""
    message: dict[str, Json] = _json_decoder.decode(payload)
    found = [(path, text.encode()) for path, text in _large_texts(message, ())]
    places: list[tuple[TextPath, int]] = []
    blobs: dict[str, bytes] = {}
    for path, content in found:
        if len(content) > limits.BLOB_BYTES_MIN:
            name = hashlib.sha256(content).hexdigest()
            blobs[name] = content
            _set_at(message, path, name)
            places.append((path, len(content)))
    if not places:
        return payload, ()
    return _encoder.encode(PayloadWithBlobs(message, tuple(places))), tuple(blobs.values())


def payload_without_texts(payload: bytes) -> bytes:
    """Return a payload without large texts in the schema of payloads with blobs."""
    return _encoder.encode(PayloadWithBlobs(_json_decoder.decode(payload), ()))


def _large_texts(value: Json, path: TextPath) -> Iterator[tuple[TextPath, str]]:
    if isinstance(value, str):
        if len(value) * _CHARACTER_BYTES_MAX > limits.BLOB_BYTES_MIN:
            yield path, value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Json]", value).items():
            yield from _large_texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Json]", value)):
            yield from _large_texts(item, (*path, index))


def blob_hashes(payload: bytes) -> list[bytes]:
    """Return the hashes of the blobs that a payload refers to; raise Corrupt if it can't be read."""
    return [hash_ for _, hash_ in _blob_references(_decode_payload_with_blobs(payload))]


def decode_texts(contents: Mapping[bytes, bytes]) -> dict[bytes, str]:
    """Return the texts of blobs; raise Corrupt for a blob that is not UTF-8."""
    try:
        return {hash_: content.decode() for hash_, content in contents.items()}
    except UnicodeDecodeError as error:
        raise errors.Corrupt("a blob of a stored message is no text.") from error


def restore_texts(payload: bytes, texts: Mapping[bytes, str]) -> dict[str, Json]:
    """Return the complete message of a payload; raise Corrupt if one of its texts is missing."""
    parted = _decode_payload_with_blobs(payload)
    for path, hash_ in _blob_references(parted):
        if hash_ not in texts:
            raise errors.Corrupt(f"the blob {hash_.hex()} is missing.", facts={"blob": hash_.hex()})
        _set_at(parted.message, path, texts[hash_])
    return parted.message


def _decode_payload_with_blobs(payload: bytes) -> PayloadWithBlobs:
    try:
        return _payload_with_blobs_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a stored message does not say which blobs it needs.") from error


def _blob_references(parted: PayloadWithBlobs) -> list[tuple[TextPath, bytes]]:
    try:
        return [(path, bytes.fromhex(_value_at(parted.message, path))) for path, _ in parted.blobs]
    except (LookupError, TypeError, ValueError) as error:
        raise errors.Corrupt("a stored message does not say which blobs it needs.") from error


def _value_at(value: Json, path: TextPath) -> Json:
    for step in path:
        value = value[step]
    return value


def _set_at(value: Json, path: TextPath, text: str) -> None:
    _value_at(value, path[:-1])[path[-1]] = text


_SESSION_EVENT_TYPES: Final = get_args(events.SessionEvent)

SESSION_EVENT_SCHEMAS: Final[Mapping[str, int]] = {
    **{kind.kind: 1 for kind in _SESSION_EVENT_TYPES},
    events.MessageAddedEvent.kind: 2,
}
"""The newest known schema by kind of event. New events have it; messages without blobs have SCHEMA_WHOLE."""

SCHEMA_WHOLE: Final = 1
SCHEMA_WITH_BLOBS: Final = 2
"""The schemas of a message: with all texts inline, and with references to blobs in place of large texts."""

Upcaster = Callable[[dict[str, Json]], dict[str, Json]]
UPCASTERS: Final[dict[tuple[str, int], Upcaster]] = {(events.MessageAddedEvent.kind, SCHEMA_WHOLE): lambda whole: whole}
"""The functions that convert a payload to the next schema, by kind and schema."""

SESSION_FOLD_VERSION: Final = 4
"""Version of the folded state. A snapshot of another version is ignored and the state is folded again."""

_SESSION_EVENT_DECODERS: Final[Mapping[str, msgspec.json.Decoder[events.SessionEvent]]] = {
    kind.kind: msgspec.json.Decoder(kind) for kind in _SESSION_EVENT_TYPES if kind is not events.MessageAddedEvent
}
_canonical_encoder = msgspec.json.Encoder(order="sorted")
_state_decoder = msgspec.json.Decoder(SessionState)
_info_decoder = msgspec.json.Decoder(SessionInfo)


class EncodedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as it is stored: its payload with its schema, and the blobs that it refers to."""

    schema: int
    payload: bytes
    blobs: tuple[bytes, ...] = ()


def encode_with_blobs(fact: events.SessionEvent) -> EncodedEvent:
    """Return an event as it is stored; raise TooLarge if a message is larger than its limit."""
    if not isinstance(fact, events.MessageAddedEvent):
        return EncodedEvent(SESSION_EVENT_SCHEMAS[fact.kind], _encoder.encode(fact))
    payload = encode_message(fact.message)
    # A payload below the limit has no text above it, so most messages are not searched.
    if len(payload) > limits.BLOB_BYTES_MIN:
        parted, contents = extract_texts(payload)
        if contents:
            return EncodedEvent(SCHEMA_WITH_BLOBS, parted, contents)
    return EncodedEvent(SCHEMA_WHOLE, payload)


def required_blob_hashes(kind: str, schema: int, payload: bytes) -> list[bytes]:
    """Return the hashes of the blobs that a payload needs."""
    parted = kind == events.MessageAddedEvent.kind and schema == SCHEMA_WITH_BLOBS
    return blob_hashes(payload) if parted else []


def encode_session_event(fact: events.SessionEvent) -> bytes:
    """Return the whole payload of an event; raise TooLarge if a message is larger than its limit."""
    if isinstance(fact, events.MessageAddedEvent):
        return encode_message(fact.message)
    return _encoder.encode(fact)


def encode_message(message: Message) -> bytes:
    """Return a message's bytes: the provider's dict or the content fields, and other fields that differ from their default."""
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


def decode_session_event(
    kind: str,
    schema: int,
    payload: bytes,
    *,
    tokens: int | None,
    counter: str | None,
    texts: Mapping[bytes, str] = NO_TEXTS,
) -> events.SessionEvent:
    """Return the event of a payload whose digest was checked; `texts` are the texts of its blobs by hash.

    Raises NewerStore for an unknown kind or schema, and Corrupt for an invalid payload or a missing blob.
    """
    known = SESSION_EVENT_SCHEMAS.get(kind, 0)
    if schema > known:
        raise _newer_event_error(kind, schema)
    try:
        if kind == events.MessageAddedEvent.kind:
            parted = schema == SCHEMA_WITH_BLOBS
            data = restore_texts(payload, texts) if parted else _json_decoder.decode(payload)
            data = upcast(kind, schema, data)
            return events.MessageAddedEvent(decode_message(data), tokens or 0, counter or "")
        if schema == known:
            return _SESSION_EVENT_DECODERS[kind].decode(payload)
        lifted = upcast(kind, schema, _json_decoder.decode(payload))
        return _SESSION_EVENT_DECODERS[kind].decode(_encoder.encode(lifted))
    except (msgspec.MsgspecError, errors.Refused) as error:
        raise errors.Corrupt(f"a stored {kind} can't be read.", facts={"kind": kind}) from error


def _newer_event_error(kind: str, schema: int) -> errors.NewerStore:
    return errors.NewerStore(
        f"an event of kind {kind} with schema {schema} was written by a newer Limpet.",
        hint="In an up-to-date clone of Limpet: pip install .",
        facts={"kind": kind, "schema": schema},
    )


def upcast(kind: str, schema: int, data: dict[str, Json]) -> dict[str, Json]:
    """Convert a payload from its stored schema to the newest one, step by step."""
    if not isinstance(cast("object", data), dict):
        raise errors.NotJson("a payload must be an object.")
    if schema < 1:
        raise errors.NotJson("a payload's schema is a number from 1 on.")
    for step in range(schema, SESSION_EVENT_SCHEMAS[kind]):
        data = UPCASTERS[kind, step](data)
    return data


def decode_message(data: Mapping[str, Json]) -> Message:
    """Return the message that encode_message described."""
    if (raw := data.get("openai")) is not None:
        return openai.parse_message(raw, envelope=data)
    if (raw := data.get("anthropic")) is not None:
        return anthropic.parse_message(raw, envelope=data)
    return Message.from_dict(data)


encode_state: Final[Callable[[SessionState], bytes]] = _encoder.encode
encode_info: Final[Callable[[SessionInfo], bytes]] = _encoder.encode


def decode_state(data: bytes) -> SessionState | None:
    """Return the state of a snapshot; None if it is invalid: the state is folded again then."""
    try:
        state = _state_decoder.decode(data)
    except msgspec.MsgspecError:
        return None
    return msgspec.structs.replace(state, metadata=freeze(state.metadata))


def decode_info(data: bytes, *, id: str, user_id: str | None, active_us: int) -> SessionInfo:
    """Return a listing row. Its key columns `id`, `user_id` and `active_us` are not in the bytes."""
    row = _decode_row(_info_decoder, data, "session row")
    return msgspec.structs.replace(row, id=id, user_id=user_id, active_us=active_us)


def _decode_row(decoder: msgspec.json.Decoder[_T], data: bytes, what: str) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, errors.Refused) as error:
        raise errors.Corrupt(f"a stored {what} can't be read.") from error


def digest(data: bytes) -> bytes:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).digest()


def canonical_json(value: object) -> bytes:
    """Return JSON bytes with sorted keys: equal values give equal bytes."""
    return _canonical_encoder.encode(value)


_SESSION_FIELDS_NOT_COMPARED: Final = frozenset(
    {"next_id", "carried", "max_messages", "named", "cut", "summary", "there", "opening"}
)
"""Fields that Limpet fills in, and settings: they are not part of the caller's request."""


def session_command_bytes(request: commands.SessionCommand) -> bytes:
    """Return the bytes by which two commands are compared: the caller's request without generated values.

    Fields with their default value are left out, so that a later version may add fields. Messages are compared without
    id and timestamp.
    """
    fields: dict[str, Json] = {}
    for field in msgspec.structs.fields(request):
        value = getattr(request, field.name)
        if field.name not in _SESSION_FIELDS_NOT_COMPARED and value != field.default:
            fields[field.name] = value
    if isinstance(request, commands.CreateSession) and not request.named:
        del fields["session_id"]
    if isinstance(request, commands.ForkSession) and not request.named:
        del fields["fork_id"]
    if "messages" in fields:
        messages = cast("tuple[Message, ...]", fields["messages"])
        fields["messages"] = [comparable_message(message) for message in messages]
    return canonical_json([request.__struct_config__.tag, fields])


def comparable_message(message: Message) -> Json:
    """Return the comparable fields of a message: without id and timestamp, which may be generated."""
    whole = message.to_dict()
    fields = {key: whole[key] for key in ("role", "content", "category", "metadata", "tool_results")} | {
        "tool_calls": [[call.name, call.args] for call in message.tool_calls],
        "openai": message.openai,
    }
    # Left out if it is None, so that stored hashes from before this field existed are still equal.
    return fields if message.anthropic is None else fields | {"anthropic": message.anthropic}


FRAME_EVENT_SCHEMA: Final = 1
"""The schema of all frame events."""

TREE_FOLD_VERSION: Final = 2
"""Version of the folded tree. A snapshot of another version is ignored and the tree is folded again."""

_FRAME_FIELDS_NOT_COMPARED: Final[Mapping[type, frozenset[str]]] = {
    commands.SuspendFrame: frozenset({"suspension_id", "token_hash", "again"}),
    commands.EndTool: frozenset({"max_messages"}),
    commands.AddHandle: frozenset({"at"}),
    commands.RecordPack: frozenset({"texts"}),
}
"""Fields that Limpet fills in, and settings: they are not part of the caller's request."""

_FRAME_EVENT_DECODERS: Final[Mapping[str, msgspec.json.Decoder[events.FrameEvent]]] = {
    kind.kind: msgspec.json.Decoder(kind) for kind in get_args(events.FrameEvent)
}
_tree_decoder = msgspec.json.Decoder(TreeState)
_frame_decoder = msgspec.json.Decoder(Frame)
_suspension_decoder = msgspec.json.Decoder(Suspension)


def frame_command_bytes(command: commands.FrameCommand) -> bytes:
    """Return the bytes by which two commands are compared: the caller's request without generated values."""
    made = _FRAME_FIELDS_NOT_COMPARED.get(type(command), frozenset())
    if isinstance(command, commands.PushFrame) and not command.named:
        made = frozenset({"frame_id"})
    elif isinstance(command, commands.BeginTool):
        made = frozenset({"key"} if command.named else {"key", "tool_id"})
    fields = {
        field.name: value
        for field in msgspec.structs.fields(command)
        if field.name not in made and field.name != "named" and (value := getattr(command, field.name)) != field.default
    }
    return _canonical_encoder.encode([command.__struct_config__.tag, fields])


encode_frame_event: Final[Callable[[events.FrameEvent], bytes]] = _encoder.encode


def decode_frame_event(kind: str, schema: int, payload: bytes) -> events.FrameEvent:
    """Return the event of a payload; raise NewerStore for an unknown kind or schema, Corrupt for an invalid payload."""
    decoder = _FRAME_EVENT_DECODERS.get(kind)
    if decoder is None or schema > FRAME_EVENT_SCHEMA:
        raise _newer_event_error(kind, schema)
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, errors.Refused) as error:
        raise errors.Corrupt(f"a stored {kind} can't be read.", facts={"kind": kind}) from error


def frame_event_hashes(event: events.FrameEvent) -> list[bytes]:
    """Return the hashes of the texts that an event refers to."""
    found: list[str | None] = []
    match event:
        case events.HandleAddedEvent():
            found = [event.handle.content_hash]
        case events.FrameCompactedEvent():
            found = [handle.content_hash for handle in event.replaced]
        case events.FrameUpdatedEvent():
            found = [event.output_hash, *(event.pack.hashes if event.pack else ())]
        case _:
            pass
    return [bytes.fromhex(one) for one in dict.fromkeys(found) if one is not None]


encode_tree: Final[Callable[[TreeState], bytes]] = _encoder.encode


def decode_tree(data: bytes) -> TreeState | None:
    """Return the tree of a snapshot; None if it is invalid: the tree is folded again then."""
    try:
        return _tree_decoder.decode(data)
    except (msgspec.MsgspecError, errors.Refused):
        return None


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame's row: a closed frame complete, an open frame without its changing fields."""
    if frame.open:
        budget = msgspec.structs.replace(frame.budget, used=0, reserved=0, subcall_allocation=0)
        frame = Frame(
            frame_id=frame.frame_id, root_id=frame.root_id, scope=frame.scope, goal=frame.goal,
            budget=budget, parent_frame_id=frame.parent_frame_id, depth=frame.depth,
            created_us=frame.created_us,
        )  # fmt: skip
    return _encoder.encode(frame)


def decode_frame(data: bytes) -> Frame:
    """Return the frame of a row."""
    return _decode_row(_frame_decoder, data, "frame")


def encode_suspension(suspension: Suspension) -> bytes:
    """Return the bytes of a suspension's row. The hash of its token stays in the log."""
    return _encoder.encode(msgspec.structs.replace(suspension, token_hash=""))


def decode_suspension(data: bytes) -> Suspension:
    """Return the suspension of a row."""
    return _decode_row(_suspension_decoder, data, "suspension")
