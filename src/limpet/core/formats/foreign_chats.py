"""Conversations in files of other programs: OpenAI-style chats and Penguin sessions.

Reading is lenient: unknown fields become `extra` or session metadata, and an invalid message is left out with a note.
JSON with text that can't be stored is refused with a reason.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec, openai
from limpet.core.values import ids
from limpet.core.values.messages import (
    ROLES,
    Message,
    MessageCategory,
    ToolCallRequest,
    ToolCallResult,
    category_named,
    checked_id,
)
from limpet.core.values.session_state import DERIVED_METADATA
from limpet.core.values.validation import EMPTY, Json, checked_text, text_or_json


class ForeignChat(msgspec.Struct, kw_only=True):
    """A conversation of another program. `messages` are unchecked; a time of 0 is unknown."""

    id: str
    messages: list[Json]
    user_id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Json] = EMPTY
    created_us: int = 0
    active_us: int = 0
    root_id: str | None = None
    continued_from: str | None = None
    continued_to: str | None = None
    continuation_index: int = 0
    penguin: bool = False
    notes: list[str] = msgspec.field(default_factory=list[str])


def is_message(value: Json) -> bool:
    """Whether a JSON value looks like a message."""
    return isinstance(value, dict) and "role" in value


def is_chat(value: Json) -> bool:
    """Whether a JSON value looks like a chat with its messages."""
    return isinstance(value, dict) and isinstance(cast("dict[str, Json]", value).get("messages"), list)


def split_chats(value: Json) -> list[Json]:
    """Return the chats in a JSON value: the value itself, a chat of its messages, or its elements if one is a chat."""
    if isinstance(value, list) and value:
        items = cast("list[Json]", value)
        if is_message(items[0]):
            return [{"messages": items}]
        if any(map(is_chat, items)):
            return items
    return [value]


def parse_chat(value: Json) -> ForeignChat:
    """Return the chat of a JSON value; raise InvalidRequest if it is not a chat."""
    if not is_chat(value):
        raise errors.InvalidRequest("it is no chat.", hint='A chat is a list of messages, or {"messages": […]}.')
    given = cast("dict[str, Json]", value)
    messages = cast("list[Json]", given["messages"])
    user = given.get("user") or given.get("user_id")
    metadata = given.get("metadata")
    return ForeignChat(
        id=usable_id(given.get("id")) or f"chat_{fingerprint(messages)}",
        messages=messages,
        user_id=usable_id(user),
        title=usable_title(given.get("title")),
        metadata=cast("dict[str, Json]", metadata) if isinstance(metadata, dict) else EMPTY,
        created_us=parse_time_us(given.get("created") or given.get("created_at")),
    )


def fingerprint(value: Json) -> str:
    """Return a short hash of a JSON value."""
    return hashlib.sha256(codec.canonical_json(value)).hexdigest()[:24]


def usable_id(value: Json) -> str | None:
    """Return a value as an id; None if it is not a valid id."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    try:
        return checked_id("an id", value)
    except errors.Refused:
        return None


def usable_title(value: Json) -> str | None:
    """Return a value as a title, cut to its limit; None if it is not text."""
    if not isinstance(value, str):
        return None
    text = value.encode(errors="replace")[: limits.TITLE_BYTES_MAX].decode(errors="ignore")
    return checked_text(text) or None


def parse_time_us(value: Json) -> int:
    """Return a time, ISO 8601 or seconds since 1970, in microseconds; 0 if it is not a time."""
    try:
        if isinstance(value, str):
            return max(ids.microseconds(value), 0)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return max(int(value * 1_000_000), 0) if value < limits.TOKENS_MAX else 0
    except (ValueError, OverflowError):
        pass
    return 0


_KNOWN_MESSAGE_FIELDS: Final = frozenset(Message.__struct_fields__) | {"tool_call_id"}


def object_or_empty(value: Json) -> dict[str, Json]:
    """Return a dict unchanged, and an empty dict for any other value."""
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def parse_message(value: Json, note: Callable[[str], None], *, name: str) -> Message | None:
    """Return the message of a JSON object; None, with a note, if it is not a message."""
    if not isinstance(value, dict):
        note(f"{name} was left out: it is no object.")
        return None
    given = cast("dict[str, Json]", value)
    try:
        return _build_message(given)
    except errors.Refused as error:
        note(f"{name} was left out: {error.message}")
        return None


def _build_message(given: Mapping[str, Json]) -> Message:
    metadata = object_or_empty(given.get("metadata"))
    role, category = given.get("role"), given.get("category")
    extra = {key: item for key, item in given.items() if key not in _KNOWN_MESSAGE_FIELDS}
    named = category if isinstance(category, str) else None
    if named is not None and named not in MessageCategory.__members__:
        extra["original_category"] = named
    call_id = usable_id(given.get("tool_call_id") or metadata.get("tool_call_id"))
    if role not in ROLES or (role == "tool" and call_id is None):
        extra["original_role"] = role
        role, named = "system", "SYSTEM_OUTPUT"
    results = (ToolCallResult(call_id or "", given.get("content")),) if role == "tool" else ()
    calls = _message_calls(given, metadata) if role == "assistant" else ()
    content = given.get("content")
    if role == "tool":
        content = None
    elif not isinstance(content, (list, dict)):
        content = "" if content is None else text_or_json(content)
    tokens, timestamp = given.get("tokens"), given.get("timestamp")
    return Message(
        str(role),
        content,
        cast("MessageCategory", category_named(named) if named else None),
        usable_id(given.get("id")) or "",
        timestamp if isinstance(timestamp, str) and parse_time_us(timestamp) else "",
        metadata,
        tokens if type(tokens) is int and tokens > 0 else 0,
        calls,
        results,
        extra=extra or EMPTY,
    )


def _message_calls(given: Mapping[str, Json], metadata: Mapping[str, Json]) -> tuple[ToolCallRequest, ...]:
    found = given.get("tool_calls") or metadata.get("tool_calls")
    if not isinstance(found, list):
        return ()
    made = (_message_call(object_or_empty(call)) for call in cast("list[Json]", found))
    return tuple(call for call in made if call is not None)


def _message_call(call: Mapping[str, Json]) -> ToolCallRequest | None:
    function = object_or_empty(call.get("function")) or call
    given, name = usable_id(call.get("id")), usable_id(function.get("name"))
    if given is None or name is None:
        return None
    arguments = function.get("arguments", function.get("args"))
    if isinstance(arguments, str):
        try:
            return ToolCallRequest(given, name, openai.parse_arguments(name, arguments), arguments)
        except errors.Refused:
            return ToolCallRequest(given, name, {"text": arguments})
    return ToolCallRequest(given, name, object_or_empty(arguments))


PENGUIN_SESSION_FIELDS: Final = frozenset({"id", "messages", "created_at", "last_active", "metadata"})
"""Fields of a Penguin session that are read; other fields become metadata."""

_DERIVED_PENGUIN_FIELDS: Final = frozenset({*DERIVED_METADATA, "token_count", "created_at", "last_active"})
"""Fields of an index entry or of session metadata that Limpet computes itself."""


def is_penguin_session(value: Json) -> bool:
    """Whether a JSON value looks like a Penguin session."""
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):  # pyright: ignore[reportUnknownMemberType]
        return False
    given = cast("dict[str, Json]", value)
    return "last_active" in given or str(given.get("id", "")).startswith("session_")


def parse_penguin_session(value: Json, index: Mapping[str, Json] = EMPTY) -> ForeignChat:
    """Return the Penguin session of a JSON value; raise InvalidRequest if it is not a session."""
    given = cast("dict[str, Json]", value) if isinstance(value, dict) else {}
    messages = given.get("messages")
    if not isinstance(messages, list):
        raise errors.InvalidRequest("it is no session: it has no list of messages.")
    listed = cast("list[Json]", messages)
    name = usable_id(given.get("id")) or f"session_{fingerprint(listed)}"
    entry = index.get(name)
    known = {**object_or_empty(entry), **object_or_empty(given.get("metadata"))}
    kept = {key: item for key, item in known.items() if key not in _DERIVED_PENGUIN_FIELDS}
    rest = {key: item for key, item in given.items() if key not in PENGUIN_SESSION_FIELDS and item}
    if rest:
        kept["penguin"] = rest
    return ForeignChat(
        id=name, messages=listed, title=usable_title(known.get("title")), metadata=kept,
        created_us=parse_time_us(given.get("created_at")), active_us=parse_time_us(given.get("last_active")),
        continued_from=usable_id(known.get("continued_from")),
        continued_to=usable_id(known.get("continued_to")), penguin=True,
    )  # fmt: skip


_JSON_ESCAPES: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class UnreadableJson(ValueError):
    """JSON that can't be stored. The text is the reason, as the predicate of a sentence."""


def decode_json(data: bytes) -> Json:
    """Return the value of JSON, with or without a byte order mark; raise UnreadableJson if it is not valid."""
    text = data.removeprefix(codecs.BOM_UTF8)
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableJson(_decode_failure(text, error)) from error


def decode_json_lossy(data: bytes) -> Json:
    """Return the value of JSON with invalid characters replaced; None if it is not JSON."""
    try:
        return json.loads(data.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None


def _decode_failure(text: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is not JSON: nested too deep"
    try:
        text.decode()
    except UnicodeDecodeError as wrong:
        return f"is not UTF-8 text: byte {wrong.start:,} is 0x{text[wrong.start]:02x}"
    half = _lone_surrogate(text)
    if half is not None:
        return f"has half of a character, \\u{half}, which no encoding can carry"
    return f"is not JSON: {error}"


def _lone_surrogate(text: bytes) -> str | None:
    """Return the first escaped surrogate without its other half."""
    high, end = "", -1
    for found in _JSON_ESCAPES.finditer(text):
        code = (found[1] or b"").decode().lower()
        low = code[:2] in ("dc", "dd", "de", "df")
        if high and not (low and found.start() == end):
            return high
        if low and not high:
            return code
        high, end = (code, found.end()) if code[:2] in ("d8", "d9", "da", "db") else ("", -1)
    return high or None
