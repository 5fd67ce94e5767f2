"""OpenAI Responses: what its call takes as `instructions` and `input`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from limpet import limits
from limpet.core.values.json_values import Json, thaw
from limpet.core.values.messages import Message
from limpet.wire.render import parts, steps
from limpet.wire.render.chat import argument_text
from limpet.wire.render.parts import Part

_OWN: Final = frozenset({"input_image", "input_file"})

Item = dict[str, Json]


def to_responses(messages: Sequence[Message]) -> dict[str, Json]:
    """Return {"instructions", "input"} of a Responses call; without a system prompt, only the input.

    The system messages at the start are the instructions, later ones stay in their place. Reasoning
    items in an assistant's content go before what follows from them. If nothing is said, OPENING is.
    Raises OpenCalls or ResultWithoutCall.
    """
    leading, rest = steps.split(messages)
    ids = steps.CallIds("[a-zA-Z0-9_-]+", limits.RESPONSES_CALL_ID_MAX, once=True)
    items: list[Item] = []
    for step in steps.steps(rest):
        names = ids.of(step.message)
        items += _message(step.message, names)
        for call, answer in step.in_order():
            items.append(_output(answer, names[call.id], custom=_is_custom(step.message, call.id)))
        if beside := parts.without_private(step.said_beside()):
            items.append({"role": "user", "content": [_input_part(part) for part in beside]})
    items = _once(items)
    if not items:
        items.append({"role": "user", "content": steps.OPENING})
    instructions = "\n\n".join(text for one in leading if (text := steps.system_text(one)))
    return {**({"instructions": instructions} if instructions else {}), "input": items}


def _once(items: list[Item]) -> list[Item]:
    """Return items without reasoning that came before: an answer may be kept as several messages."""
    seen: set[str] = set()
    kept: list[Item] = []
    for item in items:
        if item.get("type") == "reasoning":
            if item["id"] in seen:
                continue
            seen.add(item["id"])
        kept.append(item)
    return kept


def _message(message: Message, names: Mapping[str, str]) -> list[Item]:
    if message.role == "assistant":
        return _assistant(message, names)
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    found = parts.without_private(parts.read(message.content))
    writer = _input_part if message.role == "user" else _text_part
    return [{"role": message.role, "content": [writer(part) for part in found] or ""}]


def _assistant(message: Message, names: Mapping[str, str]) -> list[Item]:
    items: list[Item] = []
    for part in parts.read(message.content):
        if part.kind != "private" and not parts.is_blank(part):
            items.append({"role": "assistant", "content": parts.shown(part)})
        elif part.type == "reasoning" and str(part.raw.get("id")).startswith("rs"):
            items.append(thaw(part.raw))
    items += [_call(message, number, names) for number in range(len(message.tool_calls))]
    # Reasoning must lead to something: alone at the end it would be refused.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _call(message: Message, number: int, names: Mapping[str, str]) -> Item:
    call = message.tool_calls[number]
    said: Item = {"call_id": names[call.id], "name": steps.tool_name(call.name)}
    if _is_custom(message, call.id):
        return {"type": "custom_tool_call", **said, "input": call.args["input"]}
    return {"type": "function_call", **said, "arguments": argument_text(call)}


def _is_custom(message: Message, call_id: str) -> bool:
    """Whether a call is to a tool that takes any text, which only OpenAI's dicts tell."""
    calls = message.openai.get("tool_calls") if message.openai is not None else None
    return any(call["id"] == call_id and call.get("type") == "custom" for call in calls or ())


def _output(answer: steps.Answer, name: str, *, custom: bool) -> Item:
    kind = "custom_tool_call_output" if custom else "function_call_output"
    found = parts.without_private(answer.parts())
    if all(part.kind == "text" for part in found):
        text = steps.failed_text(answer, "\n".join(part.text for part in found))
        return {"type": kind, "call_id": name, "output": text}
    output = [_input_part(part) for part in found]
    if answer.result.is_error:
        output.insert(0, {"type": "input_text", "text": steps.FAILED.strip()})
    return {"type": kind, "call_id": name, "output": output}


def _text_part(part: Part) -> Item:
    return {"type": "input_text", "text": parts.shown(part)}


def _input_part(part: Part) -> Item:
    if part.type in _OWN:
        return thaw(part.raw)
    if part.kind == "image" and (part.url or part.data):
        url = part.url or parts.data_url(part)
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if part.kind == "file" and part.media_type == parts.PDF:
        if part.data:
            data, name = parts.data_url(part), part.name or "file.pdf"
            return {"type": "input_file", "filename": name, "file_data": data}
        if part.url:
            return {"type": "input_file", "file_url": part.url}
        if part.raw.get("type") == "file":
            return {"type": "input_file", "file_id": part.name}
    return _text_part(part)
