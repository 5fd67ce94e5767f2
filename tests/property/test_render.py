"""Whatever was said by whom, every provider's request is valid, and says what was said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import limpet.render
from limpet import Message, ToolCallRequest, ToolCallResult
from limpet.core.formats import codec, intake
from limpet.testing import providers
from tests import corpus
from tests.property import conversations as talks
from tests.property import sdk_types

render: Any = limpet.render
"""The renderers without the types of the clients: these tests look into requests as plain dicts."""

Pairs = Iterator[tuple[int, Any]]


def chat_pairs(messages: Any) -> Pairs:
    """Each call's number with the result that stands for it."""
    for number, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            after = messages[number + 1 :]
            told = next(one for one in after if one.get("tool_call_id") == call["id"])
            yield json.loads(call["function"]["arguments"])["n"], told["content"]


def responses_pairs(request: Any) -> Pairs:
    outputs = {i["call_id"]: i["output"] for i in request["input"] if "output" in i}
    for item in request["input"]:
        if item.get("type") == "function_call":
            yield json.loads(item["arguments"])["n"], outputs[item["call_id"]]


def blocks(request: Any, kind: str) -> list[Any]:
    contents = [m["content"] for m in request["messages"] if isinstance(m["content"], list)]
    return [block for content in contents for block in content if block["type"] == kind]


def anthropic_pairs(request: Any) -> Pairs:
    results = {b["tool_use_id"]: b.get("content") for b in blocks(request, "tool_result")}
    for block in blocks(request, "tool_use"):
        yield block["input"]["n"], results[block["id"]]


def gemini_pairs(request: Any) -> Pairs:
    found = [part for content in request["contents"] for part in content["parts"]]
    responses = [part["function_response"] for part in found if "function_response" in part]
    calls = [part["function_call"] for part in found if "function_call" in part]
    for call, response in zip(calls, responses, strict=True):
        yield call["args"]["n"], response["response"]


Render = Callable[[list[Message]], Any]
FORMATS: dict[str, tuple[Render, Callable[..., Any], Callable[..., None], Callable[..., Pairs]]] = {
    "chat": (render.to_chat, providers.check_openai_chat, sdk_types.parse_chat, chat_pairs),
    "responses": (
        render.to_responses, providers.check_openai_responses, sdk_types.parse_responses,
        responses_pairs,
    ),
    "anthropic": (
        render.to_anthropic, providers.check_anthropic, sdk_types.parse_anthropic, anthropic_pairs
    ),
    "gemini": (render.to_gemini, providers.check_gemini, sdk_types.parse_gemini, gemini_pairs),
}  # fmt: skip

each_format = pytest.mark.parametrize("name", FORMATS)
some = settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def numbered(messages: list[Message]) -> dict[int, bool]:
    """Each call's number, and whether its result says it."""
    results = [(r.tool_call_id, r.result) for m in messages for r in m.tool_results]
    found: dict[int, bool] = {}
    for message in messages:
        here = {call.id: call.args["n"] for call in message.tool_calls}
        while here:
            id_, result = results.pop(0)
            number = here.pop(id_)
            found[number] = f"<{number}>" in json.dumps(result)
    return found


@pytest.mark.req("B-4", "B-5")
@each_format
@some
@given(messages=talks.conversations())
def test_every_request_is_valid_whoever_said_what(name: str, messages: list[Message]):
    to, check, _, pairs = FORMATS[name]
    before = [codec.encode_message(message) for message in messages]
    request = to(messages)
    if messages:
        assert check(request) == []
    assert json.loads(json.dumps(request)) == request == to(messages)
    assert before == [codec.encode_message(message) for message in messages]
    found = dict(pairs(request))
    for number, marked in numbered(messages).items():
        assert not marked or f"<{number}>" in json.dumps(found[number])
    assert found.keys() == numbered(messages).keys()


@pytest.mark.slow
@each_format
@some
@given(messages=talks.conversations())
def test_every_request_is_one_of_the_sdk_too(name: str, messages: list[Message]):
    to, _, parse, _ = FORMATS[name]
    parse(to(messages))


@each_format
@some
@given(content=talks.JSON, result=talks.JSON)
def test_content_that_only_looks_like_parts_is_rendered_too(name: str, content: Any, result: Any):
    whole = content if isinstance(content, str | list | dict) else [content]
    messages = [
        Message("user", whole),
        Message("assistant", whole, tool_calls=[ToolCallRequest("c", "f", {"n": 0})]),
        Message("tool", tool_results=[ToolCallResult("c", result)]),
    ]
    request = FORMATS[name][0](messages)
    assert json.loads(json.dumps(request)) == request
    assert len(list(FORMATS[name][3](request))) == 1


@some
@given(messages=talks.conversations())
def test_a_request_that_grows_begins_as_it_was(messages: list[Message]):
    """Otherwise a provider's prompt cache would be of no use."""
    whole, input_ = render.to_chat(messages), render.to_responses(messages)["input"]
    for end in range(len(messages)):
        if end and messages[end].role != "tool":
            part = render.to_chat(messages[:end])
            assert part == whole[: len(part)]
            items = render.to_responses(messages[:end])["input"]
            assert items == input_[: len(items)] or "begins" in items[0]["content"]


@some
@given(chats=talks.openai_chats())
def test_openai_to_openai_is_verbatim(chats: list[dict[str, Any]]):
    out = render.to_chat([intake.accept(chat) for chat in chats])
    assert json.dumps(out) == json.dumps(chats)


@some
@given(chats=talks.anthropic_messages())
def test_anthropic_to_anthropic_is_verbatim(chats: list[dict[str, Any]]):
    out = render.to_anthropic([intake.accept(chat) for chat in chats])
    assert json.dumps(out) == json.dumps({"messages": chats})


def recorded(data_dir: Path | None) -> list[list[corpus.ChatMessage]]:
    path = data_dir / "agent-conversations.jsonl.gz" if data_dir else None
    return list(corpus.read_recorded(path)) if path and path.exists() else []


@each_format
def test_agent_conversations_render_validly(name: str, data_dir: Path | None):
    to, check, parse, _ = FORMATS[name]
    generated = [*corpus.conversations(seed=21, count=10), *corpus.conversations(seed=22, count=10, parallel=True)]
    found = [*generated, *recorded(data_dir)]
    requests = [to([intake.accept(message) for message in talk]) for talk in found]
    assert [check(request) for request in requests] == [[]] * len(found)
    if name == "chat":
        assert requests == found
    for request in requests:
        parse(request)
