"""OpenAI Chat Completions and Responses: dicts to messages, messages to requests.

A chat dict is stored verbatim beside the parsed message, and is sent back unchanged except for what the provider would
refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import content_parts
from limpet.core.formats.content_parts import ContentPart
from limpet.core.values import ids
from limpet.core.values.messages import CATEGORY_OF_ROLE, PREVALIDATED, ROLES, Message, ToolCallRequest, ToolCallResult
from limpet.core.values.validation import EMPTY, Json, freeze_object, json_text, thaw

if TYPE_CHECKING:
    # For type checkers only: no client library is needed at run time.
    from openai.types.chat import ChatCompletionMessageParam
    from openai.types.responses import ResponseInputParam

_ROLE_OF_OPENAI_ROLE: Final = {**{role: role for role in ROLES}, "developer": "system"}


def parse_message(raw: Mapping[str, Json], *, envelope: Mapping[str, Json] = EMPTY) -> Message:
    """Return the message of an OpenAI chat dict. `envelope` holds the fields that are stored beside the dict."""
    kept = freeze_object("a message", raw)
    role = kept.get("role")
    role = _ROLE_OF_OPENAI_ROLE.get(role) if isinstance(role, str) else None
    if role is None:
        raise errors.WrongRole(
            f"{kept.get('role')!r} is not a role.", hint="Use system, developer, user, assistant or tool."
        )
    content = None if role == "tool" else _parse_content(kept)
    calls = _parse_calls(kept) if "tool_calls" in kept else ()
    results = _parse_results(kept) if role == "tool" else ()
    if not envelope and "id" not in kept and _needs_no_check(role, content, calls, results):
        made, now = ids.new_id_and_time("msg")
        return Message(
            role, content, CATEGORY_OF_ROLE[role], made, now,
            EMPTY, 0, calls, results, None, PREVALIDATED, kept,
        )  # fmt: skip
    read = content_parts.ParsedMessage(role, content, calls, results)
    return content_parts.build_message(read, envelope, openai=kept)


def _needs_no_check(
    role: str, content: Json, calls: tuple[ToolCallRequest, ...], results: tuple[ToolCallResult, ...]
) -> bool:
    """Whether a message with checked parts needs no further check: its role fits and it is not empty."""
    if calls and role != "assistant":
        return False
    return bool(calls or results) if content is None else type(content) is str


def _parse_content(raw: Mapping[str, Json]) -> Json:
    content = raw.get("content")
    if content is None:
        for kind in ("refusal", "audio"):
            if raw.get(kind) is not None:
                return [{"type": kind, kind: raw[kind]}]
    return content


def _parse_calls(raw: Mapping[str, Json]) -> tuple[ToolCallRequest, ...]:
    calls = raw.get("tool_calls")
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise errors.InvalidMessage("tool_calls must be a list of calls.")
    return tuple(_parse_call(call) for call in cast("list[Json]", calls))


def _parse_call(call: Json) -> ToolCallRequest:
    try:
        if call.get("type", "function") == "custom":
            text = call["custom"]["input"]
            return _tool_call_request(call["id"], call["custom"]["name"], {"input": text}, None)
        function = call["function"]
        given, name, text = call["id"], function["name"], function["arguments"]
    except (KeyError, TypeError, AttributeError) as error:
        raise errors.InvalidMessage("a tool call has id, type and function with name and arguments.") from error
    return _tool_call_request(given, name, parse_arguments(name, text), text)


def _tool_call_request(given: Json, name: Json, args: Mapping[str, Json], text: str | None) -> ToolCallRequest:
    if not isinstance(given, str) or not given:
        raise errors.InvalidMessage(f"the call to {name!r} has no id.", hint="Give it one: its result has to name it.")
    return ToolCallRequest(id=given, name=name, args=args, arguments=text)


def parse_arguments(name: str, text: Json) -> Mapping[str, Json]:
    """Return the object in a provider's argument text; empty text means no arguments."""
    if isinstance(text, str):
        if not text.strip():
            return {}
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _arguments_error(name) from error
        if isinstance(value, dict):
            return cast("Mapping[str, Json]", value)
    raise _arguments_error(name)


def _arguments_error(name: str) -> errors.NotJson:
    return errors.NotJson(
        f"the arguments of the call to {name!r} are not the text of a JSON object.",
        hint='Store the call with arguments "{}" and tell the model in its result what was wrong.',
        facts={"tool": str(name)},
    )


def _parse_results(raw: Mapping[str, Json]) -> tuple[ToolCallResult, ...]:
    call_id = raw.get("tool_call_id")
    if not isinstance(call_id, str):
        raise errors.InvalidMessage("a tool message needs tool_call_id.", hint="Copy the id from the call it answers.")
    return (ToolCallResult(tool_call_id=call_id, result=raw.get("content")),)


_CHAT_PART_TYPES: Final = frozenset({"image_url", "input_audio", "file"})
_AUDIO_FORMATS: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}

PartWriter = Callable[[ContentPart], dict[str, Json]]


def to_chat(messages: Sequence[Message]) -> list[ChatCompletionMessageParam]:
    """Return the `messages` of a Chat Completions call.

    A message from an OpenAI dict becomes that dict. Media in a tool result follow in a user message, because a tool
    message holds text only. Raises OpenCalls or ResultWithoutCall.
    """
    ids = content_parts.ProviderCallIds(".+", limits.CHAT_CALL_ID_MAX, once=False)
    out: list[dict[str, Json]] = []
    for step in content_parts.answered_messages(messages):
        names = ids.ids_of_message(step.message)
        out.append(_chat_message(step.message, names))
        below: list[ContentPart] = []
        for answer in step.answers:
            out.append(_chat_result(answer, names[answer.result.tool_call_id], below))
        below += step.user_parts_beside_results()
        if shown := [_chat_user_part(part) for part in content_parts.without_private(below)]:
            out.append({"role": "user", "content": shown})
    return cast("list[ChatCompletionMessageParam]", out)


def _chat_message(message: Message, names: Mapping[str, str]) -> dict[str, Json]:
    if message.openai is not None:
        return _chat_verbatim(message.openai, names)
    if message.role != "assistant":
        writer = _chat_user_part if message.role == "user" else _chat_text_part
        return {"role": message.role, "content": _chat_content(message, writer)}
    said = _chat_content(message, _chat_assistant_part)
    if not message.tool_calls:
        return {"role": "assistant", "content": said}
    calls = [_chat_call(call, names[call.id]) for call in message.tool_calls]
    return {"role": "assistant", "content": said or None, "tool_calls": calls}


def _chat_verbatim(kept: Mapping[str, Json], names: Mapping[str, str]) -> dict[str, Json]:
    raw: dict[str, Json] = thaw(kept)
    if not raw.get("tool_calls"):
        # SDK dumps contain null or an empty list; OpenAI refuses both.
        raw.pop("tool_calls", None)
    for call in raw.get("tool_calls", ()):
        call["id"] = names[call["id"]]
        inner = call.get("custom" if call.get("type") == "custom" else "function")
        inner["name"] = content_parts.original_or_tool_name(inner["name"])
    return _chat_with_valid_name(raw)


def _chat_with_valid_name(raw: dict[str, Json]) -> dict[str, Json]:
    """Return a message whose `name` is valid or missing."""
    if "name" in raw:
        name = raw.pop("name")
        if isinstance(name, str) and name:
            raw["name"] = content_parts.original_or_tool_name(name)
    return raw


def _chat_content(message: Message, writer: PartWriter) -> Json:
    if isinstance(message.content, str):
        return message.content
    return [writer(part) for part in content_parts.without_private(content_parts.read_parts(message.content))] or ""


def _chat_call(call: ToolCallRequest, name: str) -> dict[str, Json]:
    function = {"name": content_parts.tool_name(call.name), "arguments": argument_text(call)}
    return {"id": name, "type": "function", "function": function}


def argument_text(call: ToolCallRequest) -> str:
    """Return a call's arguments as text: the provider's verbatim text if there is one."""
    return call.arguments or json_text(call.args)


def _chat_result(answer: content_parts.CallAnswer, name: str, below: list[ContentPart]) -> dict[str, Json]:
    """Return a tool message; media that it can't hold are added to `below`."""
    raw = answer.message.openai
    if raw is not None:
        text = {"content": ""} if raw.get("content") is None else {}
        return _chat_with_valid_name({**thaw(raw), "tool_call_id": name, **text})
    said = content_parts.text_with_media_below(answer.parts(), ("image", "audio", "file"), below)
    return {"role": "tool", "tool_call_id": name, "content": content_parts.result_text(answer, said)}


def _chat_text_part(part: ContentPart) -> dict[str, Json]:
    return {"type": "text", "text": content_parts.text_or_placeholder(part)}


def _chat_assistant_part(part: ContentPart) -> dict[str, Json]:
    if part.kind == "refusal":
        return {"type": "refusal", "refusal": part.text}
    return _chat_text_part(part)


def _chat_user_part(part: ContentPart) -> dict[str, Json]:
    if part.type in _CHAT_PART_TYPES and isinstance(part.raw.get(part.type), dict):
        return thaw(part.raw)
    if part.kind == "image" and (part.url or part.data):
        return {"type": "image_url", "image_url": {"url": part.url or content_parts.data_url(part)}}
    if part.kind == "audio" and part.data and part.media_type in _AUDIO_FORMATS:
        audio = {"data": part.data, "format": _AUDIO_FORMATS[part.media_type]}
        return {"type": "input_audio", "input_audio": audio}
    if part.kind == "file" and part.data and part.media_type == content_parts.PDF:
        file = {"filename": part.name or "file.pdf", "file_data": content_parts.data_url(part)}
        return {"type": "file", "file": file}
    return _chat_text_part(part)


_RESPONSES_PART_TYPES: Final = frozenset({"input_image", "input_file"})

ResponsesItem = dict[str, Json]


class ResponsesRequest(TypedDict):
    """The arguments `instructions` and `input` of `client.responses.create`."""

    instructions: NotRequired[str]
    input: ResponseInputParam


def to_responses(messages: Sequence[Message]) -> ResponsesRequest:
    """Return the arguments of a Responses call; `instructions` only if there is a system prompt.

    The system messages at the start are the instructions; later ones stay where they are. Reasoning items precede the
    text and calls of their message. Without any other message the input is OPENING_USER_TEXT. Raises OpenCalls or
    ResultWithoutCall.
    """
    system, rest = content_parts.split_system_messages(messages)
    ids = content_parts.ProviderCallIds("[a-zA-Z0-9_-]+", limits.RESPONSES_CALL_ID_MAX, once=True)
    items: list[ResponsesItem] = []
    for step in content_parts.answered_messages(rest):
        names = ids.ids_of_message(step.message)
        items += _responses_message_items(step.message, names)
        for call, answer in step.answers_in_call_order():
            items.append(_responses_output(answer, names[call.id], custom=_is_custom_call(step.message, call.id)))
        if beside := content_parts.without_private(step.user_parts_beside_results()):
            items.append({"role": "user", "content": [_responses_input_part(part) for part in beside]})
    items = _without_repeated_reasoning(items)
    if not items:
        items.append({"role": "user", "content": content_parts.OPENING_USER_TEXT})
    request = ResponsesRequest(input=cast("ResponseInputParam", items))
    return {"instructions": "\n\n".join(system), **request} if system else request


def _without_repeated_reasoning(items: list[ResponsesItem]) -> list[ResponsesItem]:
    """Return items without repeated reasoning: one answer may be stored as several messages with the same item."""
    seen: set[str] = set()
    kept: list[ResponsesItem] = []
    for item in items:
        if item.get("type") == "reasoning":
            if item["id"] in seen:
                continue
            seen.add(item["id"])
        kept.append(item)
    return kept


def _responses_message_items(message: Message, names: Mapping[str, str]) -> list[ResponsesItem]:
    if message.role == "assistant":
        return _responses_assistant_items(message, names)
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    found = content_parts.without_private(content_parts.read_parts(message.content))
    writer = _responses_input_part if message.role == "user" else _responses_text_part
    return [{"role": message.role, "content": [writer(part) for part in found] or ""}]


def _responses_assistant_items(message: Message, names: Mapping[str, str]) -> list[ResponsesItem]:
    items: list[ResponsesItem] = []
    for part in content_parts.read_parts(message.content):
        if part.kind != "private" and not content_parts.is_blank(part):
            items.append({"role": "assistant", "content": content_parts.text_or_placeholder(part)})
        elif part.type == "reasoning" and str(part.raw.get("id")).startswith("rs"):
            items.append(thaw(part.raw))
    items += [_responses_call(message, number, names) for number in range(len(message.tool_calls))]
    # OpenAI refuses a reasoning item that no text or call follows.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _responses_call(message: Message, number: int, names: Mapping[str, str]) -> ResponsesItem:
    call = message.tool_calls[number]
    said: ResponsesItem = {"call_id": names[call.id], "name": content_parts.tool_name(call.name)}
    if _is_custom_call(message, call.id):
        return {"type": "custom_tool_call", **said, "input": call.args["input"]}
    return {"type": "function_call", **said, "arguments": argument_text(call)}


def _is_custom_call(message: Message, call_id: str) -> bool:
    """Whether a call is a custom call, whose input is plain text. Only OpenAI's dicts contain this."""
    calls = message.openai.get("tool_calls") if message.openai is not None else None
    return any(call["id"] == call_id and call.get("type") == "custom" for call in calls or ())


def _responses_output(answer: content_parts.CallAnswer, name: str, *, custom: bool) -> ResponsesItem:
    kind = "custom_tool_call_output" if custom else "function_call_output"
    found = content_parts.without_private(answer.parts())
    if all(part.kind == "text" for part in found):
        text = content_parts.result_text(answer, "\n".join(part.text for part in found))
        return {"type": kind, "call_id": name, "output": text}
    output = [_responses_input_part(part) for part in found]
    if answer.result.is_error:
        output.insert(0, {"type": "input_text", "text": content_parts.ERROR_PREFIX.strip()})
    return {"type": kind, "call_id": name, "output": output}


def _responses_text_part(part: ContentPart) -> ResponsesItem:
    return {"type": "input_text", "text": content_parts.text_or_placeholder(part)}


def _responses_input_part(part: ContentPart) -> ResponsesItem:
    if part.type in _RESPONSES_PART_TYPES:
        return thaw(part.raw)
    if part.kind == "image" and (part.url or part.data):
        url = part.url or content_parts.data_url(part)
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if part.kind == "file" and part.media_type == content_parts.PDF:
        if part.data:
            data, name = content_parts.data_url(part), part.name or "file.pdf"
            return {"type": "input_file", "filename": name, "file_data": data}
        if part.url:
            return {"type": "input_file", "file_url": part.url}
        if part.raw.get("type") == "file":
            return {"type": "input_file", "file_id": part.name}
    return _responses_text_part(part)
