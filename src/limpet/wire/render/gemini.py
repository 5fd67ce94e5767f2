"""Gemini: what its call takes as `system_instruction` and `contents`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from limpet import limits
from limpet.core.values.json_values import Json, thaw
from limpet.core.values.messages import Message
from limpet.wire.render import parts, steps
from limpet.wire.render.parts import Part

_SHOWN: Final = ("image/", "audio/", "video/", "text/", parts.PDF)

Item = dict[str, Json]


def to_gemini(messages: Sequence[Message]) -> dict[str, Json]:
    """Return {"system_instruction", "contents"}; without a system prompt, only the contents.

    The system messages at the start are the instruction, later ones are said by the user in tags.
    Neighbours of one role become one content; only the responses of a content's calls stand alone in the
    next one, in the order of the calls. Blank text is left out. If the user does not begin, OPENING
    does. Raises OpenCalls or ResultWithoutCall.
    """
    leading, rest = steps.split(messages)
    ids = steps.CallIds("[a-zA-Z0-9_-]+", limits.GEMINI_CALL_ID_MAX, once=True)
    turns: list[Item] = []
    for step in steps.steps(rest):
        names = ids.of(step.message)
        role = "model" if step.message.role == "assistant" else "user"
        _add(turns, role, _said(step.message) + _calls(step.message, names))
        below: list[Part] = []
        _add(turns, "user", _responses(step, names, below))
        _add(turns, "user", _parts([*below, *step.said_beside()]))
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "parts": [{"text": steps.OPENING}]})
    texts = [{"text": text} for one in leading if (text := steps.system_text(one))]
    return {**({"system_instruction": {"parts": texts}} if texts else {}), "contents": turns}


def _add(turns: list[Item], role: str, items: list[Item]) -> None:
    # A model that gets other words among responses takes them for no question, or refuses them.
    if (
        items
        and turns
        and turns[-1]["role"] == role
        and "function_response" not in turns[-1]["parts"][0]
    ):
        turns[-1]["parts"] += items
    elif items:
        turns.append({"role": role, "parts": items})


def _said(message: Message) -> list[Item]:
    found = steps.as_user(message) if message.role == "system" else parts.read(message.content)
    return _parts(found, own=message.role == "assistant")


def _parts(found: Sequence[Part], *, own: bool = False) -> list[Item]:
    """Return parts; thoughts, which have no type, go only back into the model's own words."""
    return [
        _part(part)
        for part in found
        if not parts.is_blank(part) and (part.kind != "private" or (own and not part.type))
    ]


def _part(part: Part) -> Item:
    if part.raw and not part.type:
        return thaw(part.raw)
    if part.text:
        return {"text": part.text}
    if part.data and part.media_type.startswith(_SHOWN):
        return {"inline_data": {"mime_type": part.media_type, "data": part.data}}
    if part.url.startswith("http"):
        return {"file_data": {"mime_type": part.media_type, "file_uri": part.url}}
    return {"text": parts.shown(part)}


def _calls(message: Message, names: Mapping[str, str]) -> list[Item]:
    return [
        {"function_call": {"id": names[call.id], "name": _name(call.name), "args": thaw(call.args)}}
        for call in message.tool_calls
    ]


def _name(name: str) -> str:
    fitting = steps.tool_name(name, dots=True)
    if fitting[0].isalpha() or fitting[0] == "_":
        return fitting
    return f"_{fitting}"[: limits.TOOL_NAME_MAX]


def _responses(step: steps.Step, names: Mapping[str, str], below: list[Part]) -> list[Item]:
    """Return the responses in the order of the calls; media that they can't hold are added to `below`."""
    responses: list[Item] = []
    for call, answer in step.in_order():
        said = {"id": names[call.id], "name": _name(call.name)}
        responses.append({"function_response": {**said, "response": _response(answer, below)}})
    return responses


def _response(answer: steps.Answer, below: list[Part]) -> Item:
    value: Json = answer.result.result
    if (
        isinstance(value, dict)
        and not answer.result.is_error
        and not {"error", "output"} & {*value}
    ):
        return thaw(value)
    texts: list[str] = []
    for part in parts.without_private(answer.parts()):
        if part.kind in ("image", "audio", "video", "file") and not part.text:
            below.append(part)
            texts.append(f"[{part.kind}: shown below]")
        else:
            texts.append(parts.shown(part))
    text = "\n".join(texts)
    if answer.result.is_error:
        return {"error": text or "the tool gave no reason."}
    return {"output": text}
