"""Anthropic Messages dicts in. The dict is kept verbatim beside what is read from it.

A user message that carries `tool_result` blocks answers calls, so it is a message of role `tool`;
whatever else stands in it (what the user said beside the results) is that message's content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from limpet import errors
from limpet.core.values.json_values import EMPTY, FrozenDict, FrozenList, Json, freeze_object
from limpet.core.values.messages import Message, ToolCallRequest, ToolCallResult
from limpet.wire import envelopes

OWN_BLOCKS: Final = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"}
    | {"search_result", "server_tool_use", "container_upload", "mcp_tool_use", "mcp_tool_result"}
)
"""Types of content blocks that only this provider has; more end in `_tool_result`."""

_OWN_KEYS: Final = ("cache_control", "citations")


def is_anthropic(raw: Mapping[str, Json]) -> bool:
    """Whether a dict with a list as content is of this provider's making.

    A list of bare text blocks is the same in both formats; it is then OpenAI's, and goes out the same.
    """
    if raw.get("type") == "message":
        return True
    return any(isinstance(block, Mapping) and _is_own(block) for block in raw["content"])  # pyright: ignore[reportUnknownArgumentType] - JSON


def _is_own(block: Mapping[str, Json]) -> bool:
    kind = block.get("type")
    if not isinstance(kind, str):
        return False
    return (
        kind in OWN_BLOCKS
        or kind.endswith("_tool_result")
        or (kind == "text" and any(key in block for key in _OWN_KEYS))
    )


def message(raw: Mapping[str, Json], *, envelope: Mapping[str, Json] = EMPTY) -> Message:
    """Return the message that an Anthropic dict stands for; its raw() gives the dict back.

    `envelope` holds the fields that are not in the dict, as they were stored beside it.
    """
    kept = freeze_object("a message", raw)
    role, content = kept.get("role"), kept.get("content")
    if role not in ("user", "assistant"):
        raise errors.WrongRole(
            f"{role!r} is not a role of an Anthropic message.",
            hint='Use user or assistant; a system prompt is {"role": "system", "content": "…"}.',
        )
    calls: tuple[ToolCallRequest, ...] = ()
    results: tuple[ToolCallResult, ...] = ()
    if isinstance(content, FrozenList):
        blocks = [_checked(block) for block in content]
        calls = tuple(_call(block) for block in blocks if block["type"] == "tool_use")
        results = tuple(_result(block) for block in blocks if block["type"] == "tool_result")
        if calls or results:
            rest = [block for block in blocks if block["type"] not in ("tool_use", "tool_result")]
            content = FrozenList(rest) if rest else None
    elif not isinstance(content, str):
        raise errors.InvalidMessage(
            "the content of an Anthropic message is text or a list of blocks."
        )
    read = envelopes.Read("tool" if results and role == "user" else role, content, calls, results)
    return envelopes.open_message(read, envelope, anthropic=kept)


def _checked(block: Json) -> Mapping[str, Json]:
    if isinstance(block, FrozenDict) and isinstance(block.get("type"), str):
        return block
    raise errors.InvalidMessage("a block of an Anthropic message is a dict with a type.")


def _call(block: Mapping[str, Json]) -> ToolCallRequest:
    given, name, args = (block.get(key) for key in ("id", "name", "input"))
    if not isinstance(given, str) or not given or not isinstance(args, FrozenDict):
        raise errors.InvalidMessage(
            "a tool_use block has id, name and input, and input is an object.",
            hint="Its result has to name the id.",
        )
    return ToolCallRequest(given, cast("str", name), args)


def _result(block: Mapping[str, Json]) -> ToolCallResult:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise errors.InvalidMessage(
            "a tool_result block needs tool_use_id.", hint="Copy the id from the call it answers."
        )
    return ToolCallResult(call_id, block.get("content"), block.get("is_error") or False)
