"""OpenAI chat dicts in. The dict is kept verbatim beside what is read from it, so it goes out as it came.

Nothing here decides whether a message may be added; it only says what the dict means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from limpet import errors
from limpet.core.values import ids
from limpet.core.values.json_values import EMPTY, Json, freeze_object
from limpet.core.values.messages import (
    CATEGORY_OF_ROLE,
    PREVALIDATED,
    Message,
    ToolCallRequest,
    ToolCallResult,
)
from limpet.wire import envelopes

_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def message(raw: Mapping[str, Json], *, envelope: Mapping[str, Json] = EMPTY) -> Message:
    """Return the message that an OpenAI chat dict stands for; its raw() gives the dict back.

    `envelope` holds the fields that are not in the dict, as they were stored beside it.
    """
    kept = freeze_object("a message", raw)
    role = kept.get("role")
    role = _ROLES.get(role) if isinstance(role, str) else None
    if role is None:
        raise errors.WrongRole(
            f"{kept.get('role')!r} is not a role.",
            hint="Use system, developer, user, assistant or tool.",
        )
    content = None if role == "tool" else _content(kept)
    calls = _calls(kept) if "tool_calls" in kept else ()
    results = _results(kept) if role == "tool" else ()
    if not envelope and "id" not in kept and _sound(role, content, calls, results):
        made, now = ids.new_id_and_time("msg")
        return Message(
            role, content, CATEGORY_OF_ROLE[role], made, now,
            EMPTY, 0, calls, results, None, PREVALIDATED, kept,
        )  # fmt: skip
    read = envelopes.Read(role, content, calls, results)
    return envelopes.open_message(read, envelope, openai=kept)


def _sound(
    role: str,
    content: Json,
    calls: tuple[ToolCallRequest, ...],
    results: tuple[ToolCallResult, ...],
) -> bool:
    """Whether nothing is left to check of a message whose parts are: who says what, and that something is said."""
    if calls and role != "assistant":
        return False
    return bool(calls or results) if content is None else type(content) is str


def _content(raw: Mapping[str, Json]) -> Json:
    content = raw.get("content")
    if content is None:
        for kind in ("refusal", "audio"):
            if raw.get(kind) is not None:
                return [{"type": kind, kind: raw[kind]}]
    return content


def _calls(raw: Mapping[str, Json]) -> tuple[ToolCallRequest, ...]:
    calls = raw.get("tool_calls")
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise errors.InvalidMessage("tool_calls must be a list of calls.")
    return tuple(_call(call) for call in cast("list[Json]", calls))


def _call(call: Json) -> ToolCallRequest:
    try:
        if call.get("type", "function") == "custom":
            text = call["custom"]["input"]
            return _named(call["id"], call["custom"]["name"], {"input": text}, None)
        function = call["function"]
        given, name, text = call["id"], function["name"], function["arguments"]
    except (KeyError, TypeError, AttributeError) as error:
        raise errors.InvalidMessage(
            "a tool call has id, type and function with name and arguments."
        ) from error
    return _named(given, name, arguments(name, text), text)


def _named(given: Json, name: Json, args: Mapping[str, Json], text: str | None) -> ToolCallRequest:
    if not isinstance(given, str) or not given:
        raise errors.InvalidMessage(
            f"the call to {name!r} has no id.", hint="Give it one: its result has to name it."
        )
    return ToolCallRequest(id=given, name=name, args=args, arguments=text)


def arguments(name: str, text: Json) -> Mapping[str, Json]:
    """Return the object that a provider's argument text stands for; empty text means no arguments."""
    if isinstance(text, str):
        if not text.strip():
            return {}
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _bad_arguments(name) from error
        if isinstance(value, dict):
            return cast("Mapping[str, Json]", value)
    raise _bad_arguments(name)


def _bad_arguments(name: str) -> errors.NotJson:
    return errors.NotJson(
        f"the arguments of the call to {name!r} are not the text of a JSON object.",
        hint='Store the call with arguments "{}" and tell the model in its result what was wrong.',
        facts={"tool": str(name)},
    )


def _results(raw: Mapping[str, Json]) -> tuple[ToolCallResult, ...]:
    call_id = raw.get("tool_call_id")
    if not isinstance(call_id, str):
        raise errors.InvalidMessage(
            "a tool message needs tool_call_id.", hint="Copy the id from the call it answers."
        )
    return (ToolCallResult(tool_call_id=call_id, result=raw.get("content")),)
