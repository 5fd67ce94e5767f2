"""Gemini: messages to the `system_instruction` and `contents` of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict, cast

from limpet import limits
from limpet.core.formats import content_parts
from limpet.core.formats.content_parts import ContentPart
from limpet.core.values.messages import Message
from limpet.core.values.validation import Json, thaw

if TYPE_CHECKING:
    # For type checkers only: no client library is needed at run time.
    from google.genai.types import ContentDict, PartDict

_INLINE_MEDIA_TYPES: Final = ("image/", "audio/", "video/", "text/", content_parts.PDF)

GeminiItem = dict[str, Json]


class GeminiRequest(TypedDict):
    """The `contents` of `client.models.generate_content`, and the `system_instruction` of its config."""

    system_instruction: NotRequired[ContentDict]
    contents: list[ContentDict]


def to_gemini(messages: Sequence[Message]) -> GeminiRequest:
    """Return the arguments of a Gemini call; `system_instruction` only if there is a system prompt.

    The system messages at the start are the instruction; later ones become tagged text of the user. Neighbours of one
    role become one content, except that the responses to calls are a content of their own, in the order of the calls.
    Blank text is left out. If the first content is not the user's, OPENING_USER_TEXT is put before it. Raises OpenCalls
    or ResultWithoutCall.
    """
    system, rest = content_parts.split_system_messages(messages)
    ids = content_parts.ProviderCallIds("[a-zA-Z0-9_-]+", limits.GEMINI_CALL_ID_MAX, once=True)
    turns: list[GeminiItem] = []
    for step in content_parts.answered_messages(rest):
        names = ids.ids_of_message(step.message)
        role = "model" if step.message.role == "assistant" else "user"
        _append_items(turns, role, _message_parts(step.message) + _function_calls(step.message, names))
        below: list[ContentPart] = []
        _append_items(turns, "user", _function_responses(step, names, below))
        _append_items(turns, "user", _content_parts([*below, *step.user_parts_beside_results()]))
    if not turns or turns[0]["role"] != "user":
        turns.insert(0, {"role": "user", "parts": [{"text": content_parts.OPENING_USER_TEXT}]})
    texts: list[PartDict] = [{"text": text} for text in system]
    request = GeminiRequest(contents=cast("list[ContentDict]", turns))
    return {"system_instruction": {"parts": texts}, **request} if texts else request


def _append_items(turns: list[GeminiItem], role: str, items: list[GeminiItem]) -> None:
    # Gemini ignores or refuses other parts beside function responses.
    if items and turns and turns[-1]["role"] == role and "function_response" not in turns[-1]["parts"][0]:
        turns[-1]["parts"] += items
    elif items:
        turns.append({"role": role, "parts": items})


def _message_parts(message: Message) -> list[GeminiItem]:
    if message.role == "system":
        return _content_parts(content_parts.system_as_user_parts(message))
    return _content_parts(content_parts.read_parts(message.content), own=message.role == "assistant")


def _content_parts(found: Sequence[ContentPart], *, own: bool = False) -> list[GeminiItem]:
    """Return parts. Thoughts, which have no type, are sent back only in the model's own contents."""
    return [
        _content_part(part)
        for part in found
        if not content_parts.is_blank(part) and (part.kind != "private" or (own and not part.type))
    ]


def _content_part(part: ContentPart) -> GeminiItem:
    if part.raw and not part.type:
        return thaw(part.raw)
    if part.text:
        return {"text": part.text}
    if part.data and part.media_type.startswith(_INLINE_MEDIA_TYPES):
        return {"inline_data": {"mime_type": part.media_type, "data": part.data}}
    if part.url.startswith("http"):
        return {"file_data": {"mime_type": part.media_type, "file_uri": part.url}}
    return {"text": content_parts.text_or_placeholder(part)}


def _function_calls(message: Message, names: Mapping[str, str]) -> list[GeminiItem]:
    return [
        {"function_call": {"id": names[call.id], "name": _function_name(call.name), "args": thaw(call.args)}}
        for call in message.tool_calls
    ]


def _function_name(name: str) -> str:
    fitting = content_parts.tool_name(name, dots=True)
    if fitting[0].isalpha() or fitting[0] == "_":
        return fitting
    return f"_{fitting}"[: limits.TOOL_NAME_MAX]


def _function_responses(
    step: content_parts.AnsweredMessage, names: Mapping[str, str], below: list[ContentPart]
) -> list[GeminiItem]:
    """Return the responses in the order of the calls; media that they can't hold are added to `below`."""
    return [
        {
            "function_response": {
                "id": names[call.id], "name": _function_name(call.name), "response": _function_response(answer, below),
            }
        }
        for call, answer in step.answers_in_call_order()
    ]  # fmt: skip


def _function_response(answer: content_parts.CallAnswer, below: list[ContentPart]) -> GeminiItem:
    value: Json = answer.result.result
    if isinstance(value, dict) and not answer.result.is_error and not {"error", "output"} & {*value}:
        return thaw(value)
    text = content_parts.text_with_media_below(answer.parts(), ("image", "audio", "video", "file"), below)
    if answer.result.is_error:
        return {"error": text or "the tool gave no reason."}
    return {"output": text}
