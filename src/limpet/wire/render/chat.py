"""OpenAI Chat Completions: what its call takes as `messages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from limpet import limits
from limpet.core.values.json_values import Json, thaw
from limpet.core.values.messages import Message, ToolCallRequest
from limpet.wire.render import parts, steps
from limpet.wire.render.parts import Part

_OWN: Final = frozenset({"image_url", "input_audio", "file"})
_FORMATS: Final = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}

Writer = Callable[[Part], dict[str, Json]]


def to_chat(messages: Sequence[Message]) -> list[dict[str, Json]]:
    """Return the `messages` of a Chat Completions call.

    A message from an OpenAI dict is that dict. Media in a tool's result follow in a user message,
    because a tool message holds text only. Raises OpenCalls or ResultWithoutCall.
    """
    ids = steps.CallIds(".+", limits.CHAT_CALL_ID_MAX, once=False)
    out: list[dict[str, Json]] = []
    for step in steps.steps(messages):
        names = ids.of(step.message)
        out.append(_message(step.message, names))
        below: list[Part] = []
        for answer in step.answers:
            out.append(_result(answer, names[answer.result.tool_call_id], below))
        below += step.said_beside()
        if shown := [_user_part(part) for part in parts.without_private(below)]:
            out.append({"role": "user", "content": shown})
    return out


def _message(message: Message, names: Mapping[str, str]) -> dict[str, Json]:
    if message.openai is not None:
        return _verbatim(message.openai, names)
    if message.role != "assistant":
        writer = _user_part if message.role == "user" else _text_part
        return {"role": message.role, "content": _content(message, writer)}
    said = _content(message, _assistant_part)
    if not message.tool_calls:
        return {"role": "assistant", "content": said}
    calls = [_call(call, names[call.id]) for call in message.tool_calls]
    return {"role": "assistant", "content": said or None, "tool_calls": calls}


def _verbatim(kept: Mapping[str, Json], names: Mapping[str, str]) -> dict[str, Json]:
    raw: dict[str, Json] = thaw(kept)
    if not raw.get("tool_calls"):
        # Null, or an empty list, comes from dumps; the provider takes neither back.
        raw.pop("tool_calls", None)
    for call in raw.get("tool_calls", ()):
        call["id"] = names[call["id"]]
        inner = call.get("custom" if call.get("type") == "custom" else "function")
        inner["name"] = steps.own_name(inner["name"])
    return _named(raw)


def _named(raw: dict[str, Json]) -> dict[str, Json]:
    """Return a message whose speaker has a name that the provider takes, or none."""
    if "name" in raw:
        name = raw.pop("name")
        if isinstance(name, str) and name:
            raw["name"] = steps.own_name(name)
    return raw


def _content(message: Message, writer: Writer) -> Json:
    if isinstance(message.content, str):
        return message.content
    return [writer(part) for part in parts.without_private(parts.read(message.content))] or ""


def _call(call: ToolCallRequest, name: str) -> dict[str, Json]:
    function = {"name": steps.tool_name(call.name), "arguments": argument_text(call)}
    return {"id": name, "type": "function", "function": function}


def argument_text(call: ToolCallRequest) -> str:
    """Return a call's arguments as text: the provider's own where there was one."""
    return call.arguments or parts.json_text(call.args)


def _result(answer: steps.Answer, name: str, below: list[Part]) -> dict[str, Json]:
    """Return a tool message; what it can't hold is added to what the user shows below."""
    raw = answer.message.openai
    if raw is not None:
        text = {"content": ""} if raw.get("content") is None else {}
        return _named({**thaw(raw), "tool_call_id": name, **text})
    texts: list[str] = []
    for part in parts.without_private(answer.parts()):
        if part.kind in ("image", "audio", "file") and not part.text:
            below.append(part)
            texts.append(f"[{part.kind}: shown below]")
        else:
            texts.append(parts.shown(part))
    content = steps.failed_text(answer, "\n".join(texts))
    return {"role": "tool", "tool_call_id": name, "content": content}


def _text_part(part: Part) -> dict[str, Json]:
    return {"type": "text", "text": parts.shown(part)}


def _assistant_part(part: Part) -> dict[str, Json]:
    if part.kind == "refusal":
        return {"type": "refusal", "refusal": part.text}
    return _text_part(part)


def _user_part(part: Part) -> dict[str, Json]:
    if part.type in _OWN and isinstance(part.raw.get(part.type), dict):
        return thaw(part.raw)
    if part.kind == "image" and (part.url or part.data):
        return {"type": "image_url", "image_url": {"url": part.url or parts.data_url(part)}}
    if part.kind == "audio" and part.data and part.media_type in _FORMATS:
        audio = {"data": part.data, "format": _FORMATS[part.media_type]}
        return {"type": "input_audio", "input_audio": audio}
    if part.kind == "file" and part.data and part.media_type == parts.PDF:
        file = {"filename": part.name or "file.pdf", "file_data": parts.data_url(part)}
        return {"type": "file", "file": file}
    return _text_part(part)
