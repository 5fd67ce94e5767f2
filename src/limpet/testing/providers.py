"""What providers demand of a conversation, as checks on a request before it is sent.

Each function returns what is wrong, and an empty list if nothing is. The rules, and where each provider
states them, are in docs/explanation/provider-rules.md; the names here are the names there. Nothing
of Limpet's own rendering is used, so these can judge it, or anybody's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

Json = Any
Dict = Mapping[str, Json]


class Violation(NamedTuple):
    """A rule that a request breaks, where, and how."""

    rule: str
    where: str
    what: str


_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONG_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_GEMINI_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")
_CALL_ID: Final = re.compile(r"(?s:.){1,64}")
_CHAT_PARTS: Final[Mapping[str, frozenset[str]]] = {
    "system": frozenset({"text"}),
    "developer": frozenset({"text"}),
    "user": frozenset({"text", "image_url", "input_audio", "file"}),
    "assistant": frozenset({"text", "refusal"}),
    "tool": frozenset({"text"}),
}
_RESPONSES_PARTS: Final = frozenset({"input_text", "input_image", "input_file"})
_OUTPUTS: Final = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_ITEM_IDS: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SHOWN_BLOCKS: Final = frozenset({"text", "image", "document", "search_result"})
_USER_BLOCKS: Final = _SHOWN_BLOCKS | {"tool_result", "container_upload"}
_RESULT_BLOCKS: Final = _SHOWN_BLOCKS | {"tool_reference", "browser_state"}
_GEMINI_DATA: Final = frozenset(
    {"text", "inline_data", "file_data", "function_call", "function_response"}
    | {"executable_code", "code_execution_result", "tool_call", "tool_response"}
)


def check_openai_chat(messages: Sequence[Dict]) -> list[Violation]:
    """Return the rules of Chat Completions that these `messages` break."""
    return list(_chat(messages))


def check_openai_responses(request: Dict) -> list[Violation]:
    """Return the rules of Responses that the `input` of this request breaks."""
    return list(_responses(request.get("input") or []))


def check_anthropic(request: Dict) -> list[Violation]:
    """Return the rules of Messages that `system` and `messages` of this request break."""
    return [*_anthropic_system(request.get("system")), *_anthropic(request.get("messages") or [])]


def check_gemini(request: Dict) -> list[Violation]:
    """Return the rules of Gemini that the `contents` of this request break, in snake_case or camelCase."""
    return list(_gemini(request.get("contents") or []))


def _items(value: Json) -> list[Dict]:
    """Return the dicts of a list; an empty list for any other value."""
    listed = cast("list[Json]", value) if isinstance(value, list) else []
    return [cast("Dict", item) for item in listed if isinstance(item, dict)]


def _matches(pattern: re.Pattern[str], value: Json) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _repeated(values: Sequence[Json]) -> list[Json]:
    return [value for value, count in Counter(values).items() if count > 1]


# OpenAI Chat Completions


def _chat(messages: Sequence[Dict]) -> Iterator[Violation]:
    if not messages:
        yield Violation("chat-not-empty", "messages", "there is no message")
    waiting: set[Json] = set()
    known: set[Json] = set()
    for number, message in enumerate(messages):
        where, role = f"messages[{number}]", message.get("role")
        if role not in _CHAT_PARTS:
            yield Violation("chat-role", where, f"{role!r} is not a role")
            continue
        yield from _chat_content(where, role, message)
        if "name" in message and not _matches(_NAME, message["name"]):
            yield Violation("chat-speaker", where, f"{message['name']!r} is not a name")
        if role == "tool":
            call = message.get("tool_call_id")
            if call not in known:
                yield Violation("chat-result-without-call", where, f"no call {call!r} before it")
            elif call not in waiting:
                yield Violation("chat-result-twice", where, f"{call!r} has a result already")
            waiting.discard(call)
            continue
        if waiting:
            yield Violation("chat-results-follow", where, f"no result yet for {waiting}")
        calls = _items(message.get("tool_calls"))
        yield from _chat_calls(where, role, message, calls)
        known = {call.get("id") for call in calls}
        waiting = set(known)
    if waiting:
        yield Violation("chat-results-follow", "the end", f"no result for {waiting}")


def _chat_content(where: str, role: str, message: Dict) -> Iterator[Violation]:
    content = message.get("content")
    if isinstance(content, list):
        if not content:
            yield Violation("chat-content", where, "a list of parts must not be empty")
        for part in _items(cast("Json", content)):
            if part.get("type") not in _CHAT_PARTS[role]:
                yield Violation("chat-part", where, f"{part.get('type')!r} is not for {role}")
    elif not isinstance(content, str):
        instead = ("tool_calls", "function_call", "refusal", "audio")
        if role != "assistant" or not any(message.get(key) for key in instead):
            yield Violation("chat-content", where, f"a message of {role} needs content")


def _chat_calls(where: str, role: str, message: Dict, calls: list[Dict]) -> Iterator[Violation]:
    if "tool_calls" in message and (role != "assistant" or not calls):
        yield Violation("chat-call", where, "tool_calls are an assistant's, and not empty")
    for call in calls:
        kind = call.get("type")
        inner = call.get(kind) if kind in ("function", "custom") else None
        text = {"function": "arguments", "custom": "input"}.get(str(kind), "")
        if not isinstance(inner, dict) or not isinstance(inner.get(text), str):  # pyright: ignore[reportUnknownMemberType] - JSON
            yield Violation("chat-call", where, "a call has type, name and its text")
        elif not _matches(_NAME, cast("Dict", inner).get("name")):
            yield Violation("chat-name", where, f"{inner.get('name')!r} is not a name")  # pyright: ignore[reportUnknownMemberType] - JSON
        given = call.get("id")
        if not isinstance(given, str) or not 0 < len(given) <= 40:
            yield Violation("chat-id", where, f"{given!r} is not an id of 1 to 40 characters")
    for repeated in _repeated([call.get("id") for call in calls]):
        yield Violation("chat-id-unique", where, f"two calls have the id {repeated!r}")


# OpenAI Responses


def _responses(items: Sequence[Dict]) -> Iterator[Violation]:
    if not items:
        yield Violation("responses-not-empty", "input", "there is no item")
    calls: dict[Json, Json] = {}
    answered: set[Json] = set()
    yield from _responses_ids(items)
    for number, item in enumerate(items):
        where, kind = f"input[{number}]", item.get("type", "message")
        if kind == "message":
            yield from _responses_message(where, item)
        elif kind in _OUTPUTS:
            yield from _responses_call(where, item)
            if item.get("call_id") in calls:
                yield Violation("responses-id-unique", where, f"{item.get('call_id')!r} again")
            calls[item.get("call_id")] = kind
        elif kind in _OUTPUTS.values():
            yield from _responses_output(where, item, calls, answered)
            answered.add(item.get("call_id"))
        elif kind == "reasoning":
            after: Dict = items[number + 1] if number + 1 < len(items) else {}
            if after.get("role") != "assistant" and after.get("type") not in (*_OUTPUTS, kind):
                yield Violation("responses-reasoning", where, "nothing follows from it")
        elif not isinstance(kind, str):
            yield Violation("responses-item", where, f"{kind!r} is not a type")
    if missing := calls.keys() - answered:
        yield Violation("responses-answered", "the end", f"no output for {missing}")


def _responses_ids(items: Sequence[Dict]) -> Iterator[Violation]:
    given = [item["id"] for item in items if item.get("id") is not None]
    for repeated in _repeated(given):
        yield Violation("responses-item-unique", "input", f"two items have the id {repeated!r}")
    for number, item in enumerate(items):
        begin = _ITEM_IDS.get(str(item.get("type", "message")), "")
        if item.get("id") is not None and not str(item["id"]).startswith(begin):
            yield Violation("responses-item-id", f"input[{number}]", f"an id begins with {begin!r}")


def _responses_message(where: str, item: Dict) -> Iterator[Violation]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        yield Violation("responses-item", where, f"{role!r} is not a role")
        return
    if not isinstance(content, str) and not (isinstance(content, list) and content):
        yield Violation("responses-content", where, "content is text, or parts")
    allowed = {"output_text", "refusal"} if role == "assistant" else _RESPONSES_PARTS
    for part in _items(content):
        if part.get("type") not in allowed:
            yield Violation("responses-part", where, f"{part.get('type')!r} is not for {role}")


def _responses_call(where: str, item: Dict) -> Iterator[Violation]:
    given = item.get("call_id")
    if not _matches(_CALL_ID, given):
        yield Violation("responses-id", where, f"{given!r} is not an id of 1 to 64 characters")
    if not _matches(_LONG_NAME, item.get("name")):
        yield Violation("responses-name", where, f"{item.get('name')!r} is not a name")
    text = item.get("arguments" if item.get("type") == "function_call" else "input")
    if not isinstance(text, str):
        yield Violation("responses-call", where, "a call has its arguments as text")


def _responses_output(where: str, item: Dict, calls: Mapping[Json, Json], answered: set[Json]) -> Iterator[Violation]:
    given, output = item.get("call_id"), item.get("output")
    if given not in calls:
        yield Violation("responses-output-without-call", where, f"no call {given!r} before it")
    elif given in answered:
        yield Violation("responses-output-twice", where, f"{given!r} has an output already")
    elif _OUTPUTS[calls[given]] != item.get("type"):
        yield Violation("responses-output-kind", where, f"{given!r} is a {calls[given]}")
    if not isinstance(output, str | list):
        yield Violation("responses-content", where, "an output is text, or parts")
    for part in _items(output):
        if part.get("type") not in _RESPONSES_PARTS:
            yield Violation("responses-part", where, f"{part.get('type')!r} is not for an output")


# Anthropic Messages


def _anthropic_system(system: Json) -> Iterator[Violation]:
    texts = [block.get("text") for block in _items(system)] if isinstance(system, list) else [system]
    if system is not None and any(not isinstance(t, str) or not t.strip() for t in texts):
        yield Violation("anthropic-blank", "system", "a system prompt must not be blank")


def _anthropic(messages: Sequence[Dict]) -> Iterator[Violation]:
    if not messages:
        yield Violation("anthropic-not-empty", "messages", "there is no message")
        return
    if messages[0].get("role") != "user":
        yield Violation("anthropic-first", "messages[0]", "the first message is the user's")
    waiting: list[Json] = []
    seen: list[Json] = []
    before = None
    for number, message in enumerate(messages):
        where, role = f"messages[{number}]", message.get("role")
        if role not in ("user", "assistant"):
            yield Violation("anthropic-role", where, f"{role!r} is not a role")
        if role == before:
            yield Violation("anthropic-alternate", where, f"{role} twice in a row")
        if message.keys() - {"role", "content"}:
            yield Violation("anthropic-fields", where, "a message has role and content only")
        blocks = _items(message.get("content"))
        yield from _anthropic_content(where, message)
        yield from _anthropic_results(where, blocks, waiting)
        waiting = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
        seen += waiting
        before = role
    if waiting:
        yield Violation("anthropic-results-next", "the end", f"no result for {waiting}")
    for repeated in _repeated(seen):
        yield Violation("anthropic-id-unique", "messages", f"two calls have the id {repeated!r}")
    yield from _anthropic_end(messages[-1])


def _anthropic_content(where: str, message: Dict) -> Iterator[Violation]:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        yield Violation("anthropic-content", where, "a message has text or blocks")
    for block in _items(content):
        kind = block.get("type")
        if kind not in _USER_BLOCKS if role == "user" else kind in _USER_BLOCKS - {"text"}:
            yield Violation("anthropic-place", where, f"{kind!r} is not for {role}")
        yield from _anthropic_block(where, block)
        if kind == "tool_result":
            for inner in _items(block.get("content")):
                if inner.get("type") not in _RESULT_BLOCKS:
                    yield Violation("anthropic-place", where, f"{inner.get('type')!r} in a result")
                yield from _anthropic_block(where, inner)


def _anthropic_block(where: str, block: Dict) -> Iterator[Violation]:
    match block.get("type"):
        case "text":
            if not str(block.get("text") or "").strip():
                yield Violation("anthropic-blank", where, "text must not be blank")
        case "tool_use":
            yield from _anthropic_call(where, block)
        case "tool_result":
            if block.get("is_error") and not block.get("content"):
                yield Violation("anthropic-error", where, "a failed call has a content")
        case "thinking":
            if not block.get("signature"):
                yield Violation("anthropic-signature", where, "thinking comes with its signature")
        case "image":
            source = cast("Dict", block.get("source") or {})
            if source.get("type") == "base64" and source.get("media_type") not in _IMAGES:
                yield Violation("anthropic-media", where, f"{source.get('media_type')!r}")
        case _:
            pass


def _anthropic_call(where: str, block: Dict) -> Iterator[Violation]:
    if not _matches(_ID, block.get("id")):
        yield Violation("anthropic-id", where, f"{block.get('id')!r} is not an id")
    if not _matches(_LONG_NAME, block.get("name")):
        yield Violation("anthropic-name", where, f"{block.get('name')!r} is not a name")
    if not isinstance(block.get("input"), dict):
        yield Violation("anthropic-input", where, "input is an object")


def _anthropic_results(where: str, blocks: list[Dict], waiting: list[Json]) -> Iterator[Violation]:
    found = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if missing := [call for call in waiting if call not in found]:
        yield Violation("anthropic-results-next", where, f"no result for {missing}")
    for call in found:
        if call not in waiting:
            yield Violation("anthropic-result-without-call", where, f"no call {call!r} just before")
    for call in _repeated(found):
        yield Violation("anthropic-result-twice", where, f"{call!r} has two results")
    if any(block.get("type") != "tool_result" for block in blocks[: len(found)]):
        yield Violation("anthropic-results-first", where, "results go before anything else")


def _anthropic_end(last: Dict) -> Iterator[Violation]:
    content, where = last.get("content"), "the end"
    blocks = [{"text": content}] if isinstance(content, str) else _items(content)
    text = str(blocks[-1].get("text") or "") if blocks else ""
    if last.get("role") == "assistant" and text != text.rstrip():
        yield Violation("anthropic-trailing", where, "the last answer ends in white space")


# Gemini


def _gemini(contents: Sequence[Dict]) -> Iterator[Violation]:
    if not contents:
        yield Violation("gemini-not-empty", "contents", "there is no content")
        return
    if contents[0].get("role") != "user":
        yield Violation("gemini-first", "contents[0]", "the first content is the user's")
    calls: list[Dict] = []
    before = None
    for number, content in enumerate(contents):
        where, role = f"contents[{number}]", content.get("role")
        if role not in ("user", "model"):
            yield Violation("gemini-role", where, f"{role!r} is not a role")
        parts = [_snake_case(part) for part in _items(content.get("parts"))]
        if role == before:
            yield Violation("gemini-alternate", where, f"{role} twice in a row")
        if not parts:
            yield Violation("gemini-parts", where, "a content has parts")
        for part in parts:
            yield from _gemini_part(where, role, part)
        yield from _gemini_responses(where, parts, calls)
        calls = [part["function_call"] for part in parts if "function_call" in part]
        # What the user says after responses has a content of its own.
        before = None if any("function_response" in part for part in parts) else role
    if calls:
        yield Violation("gemini-responses-next", "the end", f"no response for {len(calls)} call(s)")


def _snake_case(part: Dict) -> Dict:
    return {re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", key): part[key] for key in part}


def _gemini_part(where: str, role: Json, part: Dict) -> Iterator[Violation]:
    if len(_GEMINI_DATA & part.keys()) != 1:
        yield Violation("gemini-part", where, "a part is of one kind")
    if "text" in part and not str(part["text"] or ""):
        yield Violation("gemini-blank", where, "text must not be empty")
    for key, whose, value in (("function_call", "model", "args"), ("function_response", "user", "response")):
        if key not in part:
            continue
        inner = cast("Dict", part[key])
        if role != whose:
            yield Violation("gemini-place", where, f"{key} is not for {role}")
        if not _matches(_GEMINI_NAME, inner.get("name")):
            yield Violation("gemini-name", where, f"{inner.get('name')!r} is not a name")
        if not isinstance(inner.get(value), dict):
            yield Violation("gemini-object", where, f"{value} is an object")


def _gemini_responses(where: str, parts: list[Dict], calls: list[Dict]) -> Iterator[Violation]:
    found = [cast("Dict", p["function_response"]) for p in parts if "function_response" in p]
    if found and not calls:
        yield Violation("gemini-response-without-call", where, "no call just before")
    elif len(found) != len(calls):
        what = f"{len(found)} response(s) for {len(calls)} call(s)"
        yield Violation("gemini-responses-next", where, what)
    elif _unpaired(calls, found):
        yield Violation("gemini-responses-order", where, "responses and calls do not go together")
    if found and len(parts) > len(found):
        yield Violation("gemini-responses-alone", where, "responses share no content with others")


def _unpaired(calls: list[Dict], found: list[Dict]) -> bool:
    """Whether responses do not match the calls: in any order if calls have ids, else in the order of the calls."""
    pairs = [[(one.get("id"), one.get("name")) for one in side] for side in (calls, found)]
    if all(call.get("id") for call in calls):
        pairs = [sorted(side, key=str) for side in pairs]
    return pairs[0] != pairs[1]
