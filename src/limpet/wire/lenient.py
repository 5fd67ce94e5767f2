"""Messages of other programs, read whatever is odd about them.

What has no place in a message stays beside it: unknown fields in `extra`, a role or category that is not ours
as `original_role` and `original_category`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from limpet import errors
from limpet.core.values.json_values import EMPTY, Json
from limpet.core.values.messages import (
    ROLES,
    Message,
    MessageCategory,
    ToolCallRequest,
    ToolCallResult,
    category_named,
)
from limpet.wire import openai
from limpet.wire.chats import moment, usable_id

_PLACED: Final = frozenset(Message.__struct_fields__) | {"tool_call_id"}


def as_object(value: Json) -> dict[str, Json]:
    """Return an object as it is, and an empty one for anything else."""
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def message(value: Json, note: Callable[[str], None], *, name: str) -> Message | None:
    """Return the message that an object stands for; None, and a note, if it stands for none."""
    if not isinstance(value, dict):
        note(f"{name} was left out: it is no object.")
        return None
    given = cast("dict[str, Json]", value)
    try:
        return _message(given)
    except errors.Refused as error:
        note(f"{name} was left out: {error.message}")
        return None


def _message(given: Mapping[str, Json]) -> Message:
    metadata = as_object(given.get("metadata"))
    role, category = given.get("role"), given.get("category")
    extra = {key: item for key, item in given.items() if key not in _PLACED}
    named = category if isinstance(category, str) else None
    if named is not None and named not in MessageCategory.__members__:
        extra["original_category"] = named
    call_id = usable_id(given.get("tool_call_id") or metadata.get("tool_call_id"))
    if role not in ROLES or (role == "tool" and call_id is None):
        extra["original_role"] = role
        role, named = "system", "SYSTEM_OUTPUT"
    results = (ToolCallResult(call_id or "", given.get("content")),) if role == "tool" else ()
    calls = _calls(given, metadata) if role == "assistant" else ()
    content = None if role == "tool" else _content(given.get("content"))
    tokens = given.get("tokens")
    return Message(
        str(role),
        content,
        cast("MessageCategory", category_named(named) if named else None),
        usable_id(given.get("id")) or "",
        _timestamp(given.get("timestamp")),
        metadata,
        tokens if type(tokens) is int and tokens > 0 else 0,
        calls,
        results,
        extra=extra or EMPTY,
    )


def _timestamp(value: Json) -> str:
    return value if isinstance(value, str) and moment(value) else ""


def _content(content: Json) -> Json:
    if content is None:
        return ""
    if isinstance(content, (str, list, dict)):
        return cast("Json", content)
    return msgspec.json.encode(content).decode()


def _calls(given: Mapping[str, Json], metadata: Mapping[str, Json]) -> tuple[ToolCallRequest, ...]:
    found = given.get("tool_calls") or metadata.get("tool_calls")
    if not isinstance(found, list):
        return ()
    made = (_call(as_object(call)) for call in cast("list[Json]", found))
    return tuple(call for call in made if call is not None)


def _call(call: Mapping[str, Json]) -> ToolCallRequest | None:
    function = as_object(call.get("function")) or call
    given, name = usable_id(call.get("id")), usable_id(function.get("name"))
    if given is None or name is None:
        return None
    arguments = function.get("arguments", function.get("args"))
    if isinstance(arguments, str):
        try:
            return ToolCallRequest(given, name, openai.arguments(name, arguments), arguments)
        except errors.Refused:
            return ToolCallRequest(given, name, {"text": arguments})
    return ToolCallRequest(given, name, as_object(arguments))
