"""Objects of the OpenAI and Anthropic SDKs go in as they are, where those SDKs are installed."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet import errors
from limpet.core.formats import intake

CHAT = {
    "role": "assistant", "content": None, "refusal": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{ "a":1 }'}}
    ],
}  # fmt: skip
COMPLETION = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": CHAT, "logprobs": None}],
}  # fmt: skip
ANSWER = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
    "stop_reason": "tool_use", "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
    ],
}  # fmt: skip


def completion(**changes: Any) -> Any:
    chat = pytest.importorskip("openai.types.chat")
    return chat.ChatCompletion.model_validate(COMPLETION | changes)


def answer() -> Any:
    return pytest.importorskip("anthropic.types").Message.model_validate(ANSWER)


def test_an_openai_message_its_choice_and_its_completion_are_the_same_message():
    whole = completion()
    for given in (whole.choices[0].message, whole.choices[0], whole, whole.to_dict()):
        message = intake.accept(given)
        assert message.raw() == CHAT
        assert message.tool_calls[0].arguments == '{ "a":1 }'


def test_dumps_of_an_openai_message_are_taken_too():
    given = completion().choices[0].message
    for dumped in (given.model_dump(), given.model_dump(exclude_unset=True), given.to_dict()):
        assert intake.accept(dumped).raw() == dumped


def test_what_the_sdk_computed_is_left_out():
    pydantic = pytest.importorskip("pydantic")
    chat = pytest.importorskip("openai.types.chat")

    class City(pydantic.BaseModel):
        name: str

    call = {"id": "c", "type": "function"}
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    given = chat.ParsedChatCompletionMessage[City](
        role="assistant",
        content='{"name":"Oslo"}',
        parsed=City(name="Oslo"),
        tool_calls=[{**call, "function": function}],
    )
    assert intake.accept(given).raw() == {
        "role": "assistant",
        "content": '{"name":"Oslo"}',
        "tool_calls": [{**call, "function": {"name": "f", "arguments": "{}"}}],
    }


def test_what_the_model_said_by_the_same_names_is_kept():
    said = {"parsed": 1, "parsed_output": 2, "parsed_arguments": 3}
    blocks = [{"type": "tool_use", "id": "t", "name": "f", "input": said}]
    types = pytest.importorskip("anthropic.types")
    message = intake.accept(types.Message.model_validate(ANSWER | {"content": blocks}))
    assert message.tool_calls[0].args == said


def test_a_session_takes_them():
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session()
        session.add_message(completion())
        session.add_message({"role": "tool", "tool_call_id": "c1", "content": "42"})
        session.add_messages([answer()])
        assert [call.call_id for call in session.pending_calls()] == ["toolu_1"]


@pytest.mark.parametrize("count", [0, 2])
def test_a_completion_of_several_choices_is_refused(count: int):
    several = COMPLETION["choices"] * count
    for given in (completion(choices=several), {**COMPLETION, "choices": several}):
        with pytest.raises(errors.InvalidMessage, match="choices"):
            intake.accept(given)


def test_an_anthropic_message_goes_in_with_its_signature():
    given = answer()
    for value in (given, given.to_dict(), given.model_dump(exclude_unset=True)):
        message = intake.accept(value)
        assert message.raw() == ANSWER
        assert (message.id, message.tool_calls[0].id) == ("msg_1", "toolu_1")
    assert intake.accept(given.model_dump()).tool_calls[0].args == {"a": 1}


def test_blocks_of_an_answer_are_taken_as_they_are():
    message = intake.accept({"role": "assistant", "content": answer().content})
    assert message.raw() == {"role": "assistant", "content": ANSWER["content"]}


@pytest.mark.parametrize("value", [object(), 5, b"x", iter("x"), Exception("x")])
def test_anything_else_is_refused(value: Any):
    with pytest.raises(errors.InvalidMessage, match="SDK"):
        intake.accept(value)
