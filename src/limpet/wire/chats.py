"""Chats of other programs, in OpenAI's format, as files hold them: what is in a JSON value.

A list of messages; an object with `messages`; a list of such objects. `id`, `user`, `title`, `metadata` and
`created` of an object are taken along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import cast

import msgspec

from limpet import errors, limits
from limpet.core.values import ids
from limpet.core.values.json_values import EMPTY, Json, checked_text
from limpet.core.values.messages import checked_id
from limpet.wire import codec


class Chat(msgspec.Struct, kw_only=True):
    """A conversation from elsewhere. `messages` are as they came; moments are in microseconds, 0: not known."""

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
    return isinstance(value, dict) and isinstance(
        cast("dict[str, Json]", value).get("messages"), list
    )


def each(value: Json) -> list[Json]:
    """Return what are to be the chats of a JSON value: itself, its messages, or its elements if one of them is a chat."""
    if isinstance(value, list) and value:
        items = cast("list[Json]", value)
        if is_message(items[0]):
            return [{"messages": items}]
        if any(map(is_chat, items)):
            return items
    return [value]


def chat(value: Json) -> Chat:
    """Return a chat; raise InvalidRequest if the value is none."""
    if not is_chat(value):
        raise errors.InvalidRequest(
            "it is no chat.", hint='A chat is a list of messages, or {"messages": […]}.'
        )
    given = cast("dict[str, Json]", value)
    messages = cast("list[Json]", given["messages"])
    user = given.get("user") or given.get("user_id")
    metadata = given.get("metadata")
    return Chat(
        id=usable_id(given.get("id")) or f"chat_{fingerprint(messages)}",
        messages=messages,
        user_id=usable_id(user),
        title=usable_title(given.get("title")),
        metadata=cast("dict[str, Json]", metadata) if isinstance(metadata, dict) else EMPTY,
        created_us=moment(given.get("created") or given.get("created_at")),
    )


def fingerprint(value: Json) -> str:
    """Return a short name for a JSON value, the same every time."""
    return hashlib.sha256(codec.canonical(value)).hexdigest()[:24]


def usable_id(value: Json) -> str | None:
    """Return an id that can be kept, else None."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    try:
        return checked_id("an id", value)
    except errors.Refused:
        return None


def usable_title(value: Json) -> str | None:
    """Return a title, cut to its limit, else None."""
    if not isinstance(value, str):
        return None
    text = value.encode(errors="replace")[: limits.TITLE_BYTES_MAX].decode(errors="ignore")
    return checked_text(text) or None


def moment(value: Json) -> int:
    """Return a moment, ISO 8601 or seconds since 1970, in microseconds; 0 if it is none."""
    try:
        if isinstance(value, str):
            return max(ids.microseconds(value), 0)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return max(int(value * 1_000_000), 0) if value < limits.TOKENS_MAX else 0
    except (ValueError, OverflowError):
        pass
    return 0
