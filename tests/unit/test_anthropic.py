"""Anthropic dicts: what each one means, that it comes back exactly as it came, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Message, MessageCategory, errors
from limpet.core.formats import codec, intake

USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": [None]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
HIDDEN = {"type": "redacted_thinking", "data": "b3BhcXVl"}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aQ=="}}
PDF = {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
SERVED = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]
CACHED = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
ANSWER: dict[str, Any] = {
    "id": "msg_01", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
    "content": [THINKING, {"type": "text", "text": "Let me see."}, USE], "usage": {"output_tokens": 9},
}  # fmt: skip

DICTS: dict[str, dict[str, Any]] = {
    "answer": ANSWER,
    "call": {"role": "assistant", "content": [USE]},
    "thinking": {"role": "assistant", "content": [THINKING, HIDDEN, {"type": "text", "text": "a"}]},
    "server tools": {"role": "assistant", "content": [*SERVED, {"type": "text", "text": "a"}]},
    "nothing said": {"type": "message", "role": "assistant", "content": []},
    "image": {"role": "user", "content": [PNG, {"type": "text", "text": "What is it?"}]},
    "document": {"role": "user", "content": [PDF]},
    "cached": {"role": "user", "content": [CACHED]},
    "result": {"role": "user", "content": [RESULT]},
    "result of parts": {"role": "user", "content": [{**RESULT, "content": [PNG]}]},
    "empty result": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
    "failed": {"role": "user", "content": [{**RESULT, "is_error": True}]},
    "result and text": {"role": "user", "content": [RESULT, {"type": "text", "text": "And now?"}]},
}


def stored(message: Message) -> Message:
    return codec.decode_message(json.loads(codec.encode_message(message)))


@pytest.mark.req("A-8", "B-4")
@pytest.mark.parametrize("name", DICTS)
def test_a_dict_comes_back_as_it_came_also_from_the_store(name: str):
    given = copy.deepcopy(DICTS[name])
    message = intake.accept(given)
    assert given == DICTS[name]
    assert message.anthropic == given and message.openai is None
    assert stored(message) == message
    assert json.dumps(stored(message).raw()) == json.dumps(given)
    assert intake.accept(message) is message
    assert message.anthropic is not None
    assert intake.accept(message.anthropic).anthropic == given
    assert intake.accept(message.to_dict()) == message


@pytest.mark.req("A-6")
def test_a_tool_use_is_a_call_and_the_rest_is_content():
    message = intake.accept(ANSWER)
    (call,) = message.tool_calls
    assert (call.id, call.name, call.args) == ("toolu_1", "f", USE["input"])
    assert call.arguments is None
    assert message.content == ANSWER["content"][:2]
    assert message.id == "msg_01"
    assert intake.accept(DICTS["call"]).content is None


@pytest.mark.req("A-7")
def test_a_user_message_with_results_has_role_tool():
    message = intake.accept(DICTS["failed"])
    assert (message.role, message.category) == ("tool", MessageCategory.SYSTEM_OUTPUT)
    (result,) = message.tool_results
    assert (result.tool_call_id, result.result, result.is_error) == ("toolu_1", "42", True)
    assert message.content is None
    assert intake.accept(DICTS["empty result"]).tool_results[0].result is None


def test_what_the_user_says_beside_results_is_content_of_the_tool_message():
    message = intake.accept(DICTS["result and text"])
    assert message.role == "tool"
    assert message.content == [{"type": "text", "text": "And now?"}]


def test_calls_and_results_are_paired_in_a_session():
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session()
        session.add_message(ANSWER)
        assert [call.call_id for call in session.pending_calls()] == ["toolu_1"]
        with pytest.raises(errors.OpenCalls):
            session.add_message(DICTS["image"])
        session.add_message(DICTS["result and text"])
        assert session.pending_calls() == []
        assert [message.raw() for message in session.messages] == [ANSWER, DICTS["result and text"]]


def test_bare_text_blocks_are_taken_as_openai():
    given = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert intake.accept(given).openai == given


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"role": "system", "content": [CACHED]}, errors.WrongRole),
        ({"type": "message", "role": "assistant", "content": [5]}, errors.InvalidMessage),
        ({"role": "user", "content": [USE]}, errors.WrongRole),
        ({"role": "assistant", "content": [RESULT]}, errors.WrongRole),
        ({"role": "assistant", "content": [{**USE, "id": ""}]}, errors.InvalidMessage),
        ({"role": "assistant", "content": [{**USE, "input": "{}"}]}, errors.InvalidMessage),
        ({"role": "assistant", "content": [{**USE, "name": 5}]}, errors.Refused),
        ({"role": "user", "content": [{**RESULT, "tool_use_id": 5}]}, errors.InvalidMessage),
        ({"role": "user", "content": [{**RESULT, "is_error": "no"}]}, errors.InvalidMessage),
        ({"role": "user", "content": [PNG, "text"]}, errors.InvalidMessage),
        ({"role": "user", "content": [PNG, {"type": "text", "text": {1}}]}, errors.NotJson),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_dict_that_means_nothing_is_refused(given: Any, error: type[errors.Error]):
    with pytest.raises(error) as caught:
        intake.accept(given)
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    "changed", [{"content": "other"}, {"tool_calls": ()}, {"openai": {"role": "user", "content": "x"}}]
)
def test_nothing_beside_the_dict_may_say_otherwise(changed: dict[str, Any]):
    with pytest.raises(errors.InvalidMessage):
        intake.accept(msgspec.structs.replace(intake.accept(ANSWER), **changed))


def test_an_anthropic_dict_that_is_none_is_corrupt_in_the_store():
    with pytest.raises(errors.Corrupt):
        codec.decode_session_event("session.message_added", 1, b'{"anthropic":{"role":"ghost"}}', tokens=1, counter="x")


def test_what_was_said_is_told_apart_by_the_dict():
    one, other = intake.accept(DICTS["cached"]), intake.accept({**DICTS["cached"], "x": 1})
    assert codec.comparable_message(one) != codec.comparable_message(other)
    assert "anthropic" not in codec.comparable_message(Message("user", "hi"))
