"""Anthropic Messages: dicts to messages, messages to requests.

A dict is stored verbatim beside the parsed message. A user message with `tool_result` blocks becomes a message of role
`tool`; its other blocks are the content of that message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict, cast

from limpet import errors, limits
from limpet.core.formats import content_parts
from limpet.core.formats.content_parts import ContentPart
from limpet.core.values.messages import Message, ToolCallRequest, ToolCallResult
from limpet.core.values.validation import EMPTY, FrozenDict, FrozenList, Json, freeze_object, thaw

if TYPE_CHECKING:
    # For type checkers only: no client library is needed at run time.
    from anthropic.types import MessageParam, TextBlockParam

ANTHROPIC_BLOCK_TYPES: Final = frozenset(
    {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"}
    | {"search_result", "server_tool_use", "container_upload", "mcp_tool_use", "mcp_tool_result"}
)
"""Types of content blocks that only Anthropic has, beside those that end in `_tool_result`."""

_ANTHROPIC_TEXT_KEYS: Final = ("cache_control", "citations")


def is_anthropic(raw: Mapping[str, Json]) -> bool:
    """Whether a dict with a list as content is in Anthropic's format.

    A list of bare text blocks is the same in both formats and counts as OpenAI's.
    """
    if raw.get("type") == "message":
        return True
    return any(
        isinstance(block, Mapping) and _is_anthropic_block(block)  # pyright: ignore[reportUnknownArgumentType] - JSON
        for block in raw["content"]
    )


def _is_anthropic_block(block: Mapping[str, Json]) -> bool:
    kind = block.get("type")
    if not isinstance(kind, str):
        return False
    return (
        kind in ANTHROPIC_BLOCK_TYPES
        or kind.endswith("_tool_result")
        or (kind == "text" and any(key in block for key in _ANTHROPIC_TEXT_KEYS))
    )


def parse_message(raw: Mapping[str, Json], *, envelope: Mapping[str, Json] = EMPTY) -> Message:
    """Return the message of an Anthropic dict. `envelope` holds the fields that are stored beside the dict."""
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
        blocks = [_checked_block(block) for block in content]
        calls = tuple(_parse_call(block) for block in blocks if block["type"] == "tool_use")
        results = tuple(_parse_result(block) for block in blocks if block["type"] == "tool_result")
        if calls or results:
            rest = [block for block in blocks if block["type"] not in ("tool_use", "tool_result")]
            content = FrozenList(rest) if rest else None
    elif not isinstance(content, str):
        raise errors.InvalidMessage("the content of an Anthropic message is text or a list of blocks.")
    read = content_parts.ParsedMessage("tool" if results and role == "user" else role, content, calls, results)
    return content_parts.build_message(read, envelope, anthropic=kept)


def _checked_block(block: Json) -> Mapping[str, Json]:
    if isinstance(block, FrozenDict) and isinstance(block.get("type"), str):
        return block
    raise errors.InvalidMessage("a block of an Anthropic message is a dict with a type.")


def _parse_call(block: Mapping[str, Json]) -> ToolCallRequest:
    given, name, args = (block.get(key) for key in ("id", "name", "input"))
    if not isinstance(given, str) or not given or not isinstance(args, FrozenDict):
        raise errors.InvalidMessage(
            "a tool_use block has id, name and input, and input is an object.", hint="Its result has to name the id."
        )
    return ToolCallRequest(given, cast("str", name), args)


def _parse_result(block: Mapping[str, Json]) -> ToolCallResult:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        raise errors.InvalidMessage(
            "a tool_result block needs tool_use_id.", hint="Copy the id from the call it answers."
        )
    return ToolCallResult(call_id, block.get("content"), block.get("is_error") or False)


_IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_VERBATIM_PART_TYPES: Final = frozenset({"image", "document", "search_result"})
_TEXT_BLOCK_KEYS: Final = ("type", "text", "cache_control", "citations")

Block = dict[str, Json]


class AnthropicRequest(TypedDict):
    """The arguments `system` and `messages` of `client.messages.create`."""

    system: NotRequired[list[TextBlockParam]]
    messages: list[MessageParam]


def to_anthropic(messages: Sequence[Message]) -> AnthropicRequest:
    """Return the arguments of a Messages call; `system` only if there is a system prompt.

    The system messages at the start are the system prompt; later ones become tagged text of the user. Roles alternate:
    neighbours of the same role become one message, results first. Blank text is left out. If the first message is not
    the user's, OPENING_USER_TEXT is put before it. Raises OpenCalls or ResultWithoutCall.
    """
    texts, rest = content_parts.split_system_messages(messages)
    ids = content_parts.ProviderCallIds("[a-zA-Z0-9_-]+", limits.ANTHROPIC_CALL_ID_MAX, once=True)
    turns: list[Block] = []
    for step in content_parts.answered_messages(rest):
        names = ids.ids_of_message(step.message)
        role = "assistant" if step.message.role == "assistant" else "user"
        _append_content(turns, role, _message_content(step.message, names))
        _append_content(turns, "user", _result_blocks(step, names))
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": content_parts.OPENING_USER_TEXT})
    _strip_final_answer(turns)
    system: list[TextBlockParam] = [{"type": "text", "text": text} for text in texts]
    request = AnthropicRequest(messages=cast("list[MessageParam]", turns))
    return {"system": system, **request} if system else request


def _append_content(turns: list[Block], role: str, content: str | list[Block]) -> None:
    if not content:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] = [*_as_blocks(turns[-1]["content"]), *_as_blocks(content)]
    else:
        turns.append({"role": role, "content": content})


def _as_blocks(content: str | list[Block]) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _strip_final_answer(turns: list[Block]) -> None:
    """Strip white space from the end of a final assistant message, which the model continues."""
    last = turns[-1]
    if last["role"] != "assistant":
        return
    if isinstance(last["content"], str):
        last["content"] = last["content"].rstrip()
    elif last["content"][-1].get("type") == "text":
        last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()


def _message_content(message: Message, names: Mapping[str, str]) -> str | list[Block]:
    if message.role == "system":
        return [_part_block(part) for part in content_parts.system_as_user_parts(message)]
    if message.anthropic is not None:
        return _verbatim_content(message.anthropic["content"], names)
    if isinstance(message.content, str) and not message.tool_calls:
        return message.content if message.content.strip() else ""
    found = [part for part in content_parts.read_parts(message.content) if not content_parts.is_blank(part)]
    if message.role == "assistant":
        said = [block for part in found for block in _assistant_blocks(part)]
    else:
        said = [_part_block(part) for part in content_parts.without_private(found)]
    calls = [
        {"type": "tool_use", "id": names[call.id], "name": content_parts.tool_name(call.name),
         "input": thaw(call.args)}
        for call in message.tool_calls
    ]  # fmt: skip
    return said + calls


def _verbatim_content(content: Json, names: Mapping[str, str]) -> str | list[Block]:
    if isinstance(content, str):
        return content if content.strip() else ""
    blocks = _without_blank_blocks(content)
    for block in blocks:
        if block["type"] == "tool_use":
            block["id"] = names[block["id"]]
            block["name"] = content_parts.original_or_tool_name(block["name"], limits.ANTHROPIC_TOOL_NAME_MAX)
    return blocks


def _without_blank_blocks(content: Json) -> list[Block]:
    blocks = cast("list[Block]", thaw(content))
    return [b for b in blocks if b.get("type") != "text" or str(b.get("text", "")).strip()]


def _assistant_blocks(part: ContentPart) -> list[Block]:
    if part.kind != "private":
        # Anthropic accepts no images in assistant messages.
        return [_part_block(ContentPart(kind="text", text=content_parts.text_or_placeholder(part), raw=part.raw))]
    foreign = part.type in ("", "reasoning")
    unsigned = part.type == "thinking" and not part.raw.get("signature")
    return [] if foreign or unsigned else [thaw(part.raw)]


def _part_block(part: ContentPart) -> Block:
    if part.type in _VERBATIM_PART_TYPES and part.kind != "text":
        return thaw(part.raw)
    if part.kind == "image" and part.url.startswith("http"):
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.kind == "image" and part.data and part.media_type in _IMAGE_TYPES:
        return {"type": "image", "source": _base64_source(part)}
    if part.kind == "file" and (source := _document_source(part)):
        title = {"title": part.name} if part.name else {}
        return {"type": "document", "source": source, **title}
    if part.type == "text":
        return {key: thaw(part.raw[key]) for key in _TEXT_BLOCK_KEYS if key in part.raw}
    return {"type": "text", "text": content_parts.text_or_placeholder(part)}


def _base64_source(part: ContentPart) -> Block:
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _document_source(part: ContentPart) -> Block | None:
    if part.text.strip():
        return {"type": "text", "media_type": "text/plain", "data": part.text}
    if part.media_type == content_parts.PDF and part.data:
        return _base64_source(part)
    if part.media_type == content_parts.PDF and part.url.startswith("http"):
        return {"type": "url", "url": part.url}
    return None


def _result_blocks(step: content_parts.AnsweredMessage, names: Mapping[str, str]) -> list[Block]:
    """Return the results of a message's calls, followed by the user's other blocks."""
    blocks = [_result_block(answer, names[answer.result.tool_call_id]) for answer in step.answers]
    for carrier in step.result_messages():
        if carrier.anthropic is not None:
            blocks += _without_blank_blocks(carrier.content or [])
    return blocks


def _result_block(answer: content_parts.CallAnswer, name: str) -> Block:
    if answer.message.anthropic is not None:
        return _verbatim_result_block(answer, name)
    block: Block = {"type": "tool_result", "tool_use_id": name}
    found = [p for p in content_parts.without_private(answer.parts()) if not content_parts.is_blank(p)]
    if len(found) == 1 and found[0].kind == "text":
        block["content"] = found[0].text
    elif found:
        block["content"] = [_part_block(part) for part in found]
    elif answer.result.is_error:
        block["content"] = content_parts.result_text(answer, "")
    if answer.result.is_error:
        block["is_error"] = True
    return block


def _verbatim_result_block(answer: content_parts.CallAnswer, name: str) -> Block:
    kept = cast("Mapping[str, Json]", answer.message.anthropic)["content"]
    own = answer.result.tool_call_id
    found = next(b for b in kept if b["type"] == "tool_result" and b["tool_use_id"] == own)
    block: Block = {**thaw(found), "tool_use_id": name}
    if isinstance(block.get("content"), list):
        block["content"] = _without_blank_blocks(block["content"])
    if answer.result.is_error and not block.get("content"):
        block["content"] = content_parts.result_text(answer, "")
    return block
