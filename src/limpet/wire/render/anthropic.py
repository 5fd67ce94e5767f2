"""Anthropic Messages: what its call takes as `system` and `messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from limpet import limits
from limpet.core.values.json_values import Json, thaw
from limpet.core.values.messages import Message
from limpet.wire.render import parts, steps
from limpet.wire.render.parts import Part

_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_OWN: Final = frozenset({"image", "document", "search_result"})
_TEXT_KEYS: Final = ("type", "text", "cache_control", "citations")

Block = dict[str, Json]


def to_anthropic(messages: Sequence[Message]) -> dict[str, Json]:
    """Return {"system", "messages"} of a Messages call; without a system prompt, only the messages.

    The system messages at the start are the system prompt, later ones are said by the user in tags.
    Roles alternate: neighbours of the same role become one message, results first. Blank text is
    left out. If the user does not begin, OPENING does. Raises OpenCalls or ResultWithoutCall.
    """
    leading, rest = steps.split(messages)
    ids = steps.CallIds("[a-zA-Z0-9_-]+", limits.ANTHROPIC_CALL_ID_MAX, once=True)
    turns: list[Block] = []
    for step in steps.steps(rest):
        names = ids.of(step.message)
        role = "assistant" if step.message.role == "assistant" else "user"
        _add(turns, role, _content(step.message, names))
        _add(turns, "user", _results(step, names))
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "content": steps.OPENING})
    _trim_end(turns)
    texts = [text for one in leading if (text := steps.system_text(one))]
    system = [{"type": "text", "text": text} for text in texts]
    return {**({"system": system} if system else {}), "messages": turns}


def _add(turns: list[Block], role: str, content: str | list[Block]) -> None:
    if not content:
        return
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"] = [*_blocks(turns[-1]["content"]), *_blocks(content)]
    else:
        turns.append({"role": role, "content": content})


def _blocks(content: str | list[Block]) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _trim_end(turns: list[Block]) -> None:
    """Take white space off the end of an answer that the model is to go on with."""
    last = turns[-1]
    if last["role"] != "assistant":
        return
    if isinstance(last["content"], str):
        last["content"] = last["content"].rstrip()
    elif last["content"][-1].get("type") == "text":
        last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()


def _content(message: Message, names: Mapping[str, str]) -> str | list[Block]:
    if message.role == "system":
        return [_block(part) for part in steps.as_user(message)]
    if message.anthropic is not None:
        return _verbatim(message.anthropic["content"], names)
    if isinstance(message.content, str) and not message.tool_calls:
        return message.content if message.content.strip() else ""
    found = [part for part in parts.read(message.content) if not parts.is_blank(part)]
    if message.role == "assistant":
        said = [block for part in found for block in _assistant_blocks(part)]
    else:
        said = [_block(part) for part in parts.without_private(found)]
    calls = [
        {"type": "tool_use", "id": names[call.id], "name": steps.tool_name(call.name),
         "input": thaw(call.args)}
        for call in message.tool_calls
    ]  # fmt: skip
    return said + calls


def _verbatim(content: Json, names: Mapping[str, str]) -> str | list[Block]:
    if isinstance(content, str):
        return content if content.strip() else ""
    blocks = _without_blank(content)
    for block in blocks:
        if block["type"] == "tool_use":
            block["id"] = names[block["id"]]
            block["name"] = steps.own_name(block["name"], limits.ANTHROPIC_TOOL_NAME_MAX)
    return blocks


def _without_blank(content: Json) -> list[Block]:
    blocks = cast("list[Block]", thaw(content))
    return [b for b in blocks if b.get("type") != "text" or str(b.get("text", "")).strip()]


def _assistant_blocks(part: Part) -> list[Block]:
    if part.kind != "private":
        # An assistant shows no pictures here.
        return [_block(Part(kind="text", text=parts.shown(part), raw=part.raw))]
    foreign = part.type in ("", "reasoning")
    unsigned = part.type == "thinking" and not part.raw.get("signature")
    return [] if foreign or unsigned else [thaw(part.raw)]


def _block(part: Part) -> Block:
    if part.type in _OWN and part.kind != "text":
        return thaw(part.raw)
    if part.kind == "image" and part.url.startswith("http"):
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.kind == "image" and part.data and part.media_type in _IMAGES:
        return {"type": "image", "source": _data(part)}
    if part.kind == "file" and (source := _document(part)):
        title = {"title": part.name} if part.name else {}
        return {"type": "document", "source": source, **title}
    if part.type == "text":
        return {key: thaw(part.raw[key]) for key in _TEXT_KEYS if key in part.raw}
    return {"type": "text", "text": parts.shown(part)}


def _data(part: Part) -> Block:
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _document(part: Part) -> Block | None:
    if part.text.strip():
        return {"type": "text", "media_type": "text/plain", "data": part.text}
    if part.media_type == parts.PDF and part.data:
        return _data(part)
    if part.media_type == parts.PDF and part.url.startswith("http"):
        return {"type": "url", "url": part.url}
    return None


def _results(step: steps.Step, names: Mapping[str, str]) -> list[Block]:
    """Return the results of a message's calls, and after them what the user said beside them."""
    blocks = [_result(answer, names[answer.result.tool_call_id]) for answer in step.answers]
    for carrier in step.carriers():
        if carrier.anthropic is not None:
            blocks += _without_blank(carrier.content or [])
    return blocks


def _result(answer: steps.Answer, name: str) -> Block:
    if answer.message.anthropic is not None:
        return _verbatim_result(answer, name)
    block: Block = {"type": "tool_result", "tool_use_id": name}
    found = [p for p in parts.without_private(answer.parts()) if not parts.is_blank(p)]
    if len(found) == 1 and found[0].kind == "text":
        block["content"] = found[0].text
    elif found:
        block["content"] = [_block(part) for part in found]
    elif answer.result.is_error:
        block["content"] = steps.failed_text(answer, "")
    if answer.result.is_error:
        block["is_error"] = True
    return block


def _verbatim_result(answer: steps.Answer, name: str) -> Block:
    kept = cast("Mapping[str, Json]", answer.message.anthropic)["content"]
    own = answer.result.tool_call_id
    found = next(b for b in kept if b["type"] == "tool_result" and b["tool_use_id"] == own)
    block: Block = {**thaw(found), "tool_use_id": name}
    if isinstance(block.get("content"), list):
        block["content"] = _without_blank(block["content"])
    if answer.result.is_error and not block.get("content"):
        block["content"] = steps.failed_text(answer, "")
    return block
