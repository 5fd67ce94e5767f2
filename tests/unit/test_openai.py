"""OpenAI chat dicts: what each one means, and that it comes back exactly as it came."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

from limpet import Message, MessageCategory, errors
from limpet.core.formats import codec, intake


def call(id_: Any = "call_1", name: Any = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def custom(id_: str = "call_2") -> dict[str, Any]:
    return {"id": id_, "type": "custom", "custom": {"name": "grep", "input": "needle \0"}}


CHATS: dict[str, dict[str, Any]] = {
    "user": {"role": "user", "content": "hi"},
    "system": {"role": "system", "content": "Be brief."},
    "developer": {"role": "developer", "content": "Be brief.", "name": "ops"},
    "assistant": {"role": "assistant", "content": "hello", "refusal": None, "annotations": []},
    "parts": {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x", "y": 1}]},
    "null content": {"role": "assistant", "content": None, "tool_calls": [call()]},
    "absent content": {"role": "assistant", "tool_calls": [call()]},
    "content and calls": {"role": "assistant", "content": "a", "tool_calls": [call()]},
    "no calls": {"role": "assistant", "content": "a", "tool_calls": None, "function_call": None},
    "refusal": {"role": "assistant", "content": None, "refusal": "I can't help with that."},
    "audio": {"role": "assistant", "content": None, "audio": {"id": "audio_1"}},
    "custom tool": {"role": "assistant", "content": None, "tool_calls": [custom(), call()]},
    "spaced arguments": {
        "role": "assistant",
        "tool_calls": [call(arguments='{ "a" :  1.0,\n "b": "\\u00e9"}\n')],
    },
    "empty arguments": {"role": "assistant", "tool_calls": [call(arguments="")]},
    "tool": {"role": "tool", "tool_call_id": "call_1", "content": "42", "name": "f"},
    "tool parts": {
        "role": "tool",
        "tool_call_id": "call_1",
        "content": [{"type": "text", "text": "42"}],
    },
    "tool null": {"role": "tool", "tool_call_id": "call_1", "content": None},
    "own id": {"role": "assistant", "id": "msg_abc", "content": "x"},
    "extra fields": {"role": "user", "content": "x", "vendor": {"deep": [1, {"k": None}]}, "n": 2**70},
}  # fmt: skip


def stored(message: Message) -> Message:
    return codec.decode_message(json.loads(codec.encode_message(message)))


@pytest.mark.req("A-8", "B-4")
@pytest.mark.parametrize("name", CHATS)
def test_a_chat_dict_comes_back_as_it_came_also_from_the_store(name: str):
    given = copy.deepcopy(CHATS[name])
    message = intake.accept(given)
    assert given == CHATS[name]
    assert message.raw() == given
    assert list(message.raw()) == list(given)
    again = stored(message)
    assert again == message
    assert json.dumps(again.raw()) == json.dumps(given)


def test_changing_the_dict_afterwards_changes_nothing():
    given = copy.deepcopy(CHATS["parts"])
    message = intake.accept(given)
    given["content"][0]["text"] = "changed"
    message.raw()["content"].clear()
    assert message.raw() == CHATS["parts"]


@pytest.mark.req("A-8")
def test_absent_and_null_content_mean_the_same_but_go_out_as_they_came():
    null, absent = intake.accept(CHATS["null content"]), intake.accept(CHATS["absent content"])
    assert null.content is absent.content is None
    assert "content" in null.raw() and "content" not in absent.raw()


def test_developer_is_a_system_message():
    message = intake.accept(CHATS["developer"])
    assert (message.role, message.category) == ("system", MessageCategory.SYSTEM)


@pytest.mark.parametrize("kind", ["refusal", "audio"])
def test_an_answer_without_text_has_its_refusal_or_audio_as_content(kind: str):
    message = intake.accept(CHATS[kind])
    assert message.content == [{"type": kind, kind: CHATS[kind][kind]}]


@pytest.mark.req("A-6")
def test_arguments_are_read_and_their_text_is_kept_to_the_letter():
    message = intake.accept(CHATS["spaced arguments"])
    (made,) = message.tool_calls
    assert made.args == {"a": 1.0, "b": "é"}
    assert made.arguments == CHATS["spaced arguments"]["tool_calls"][0]["function"]["arguments"]
    (empty,) = intake.accept(CHATS["empty arguments"]).tool_calls
    assert (empty.args, empty.arguments) == ({}, "")


def test_a_custom_tools_input_is_any_text():
    made = intake.accept(CHATS["custom tool"]).tool_calls[0]
    assert (made.id, made.name, made.args) == ("call_2", "grep", {"input": "needle \0"})


@pytest.mark.req("A-7")
def test_a_tool_dict_is_the_result_of_its_call():
    message = intake.accept(CHATS["tool"])
    (result,) = message.tool_results
    assert (result.tool_call_id, result.result, result.is_error) == ("call_1", "42", False)
    assert (message.role, message.category) == ("tool", MessageCategory.SYSTEM_OUTPUT)
    assert intake.accept(CHATS["tool null"]).tool_results[0].result is None


def test_a_string_id_of_the_provider_is_the_messages_id():
    assert intake.accept(CHATS["own id"]).id == "msg_abc"
    assert intake.accept({"role": "user", "content": "x", "id": 5}).id.startswith("msg_")


def test_our_own_dicts_and_messages_are_accepted_as_such():
    message = Message("user", "x", metadata={"a": 1})
    assert intake.accept(message) is message
    assert intake.accept(message.to_dict()) == message
    kept = intake.accept(CHATS["extra fields"])
    assert intake.accept(kept.to_dict()) == kept


@pytest.mark.req("A-6")
@pytest.mark.parametrize("missing", [None, "", ...])
def test_a_call_without_an_id_has_one_id_for_ever(missing: Any):
    """Generated once and stored, or refused; never another at each reading."""
    made = call(missing)
    if missing is ...:
        del made["id"]
    chat = {"role": "assistant", "content": None, "tool_calls": [made]}
    try:
        message = intake.accept(chat)
    except errors.InvalidMessage:
        return
    assert stored(message).tool_calls == message.tool_calls
    assert stored(stored(message)) == message


@pytest.mark.parametrize(
    ("chat", "error"),
    [
        ({"role": "function", "content": "x"}, errors.WrongRole),
        ({"content": "x"}, errors.WrongRole),
        ({"role": None, "content": "x"}, errors.WrongRole),
        ({"role": ["user"], "content": "x"}, errors.WrongRole),
        ({"role": {"a": 1}, "content": "x"}, errors.WrongRole),
        ({"role": "user"}, errors.InvalidMessage),
        ({"role": "user", "content": None}, errors.InvalidMessage),
        ({"role": "user", "content": 5}, errors.InvalidMessage),
        ({"role": "tool", "content": "x"}, errors.InvalidMessage),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, errors.InvalidMessage),
        ({"role": "user", "content": "x", "tool_calls": [call()]}, errors.WrongRole),
        ({"role": "assistant", "tool_calls": {}}, errors.InvalidMessage),
        ({"role": "assistant", "tool_calls": ["x"]}, errors.InvalidMessage),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, errors.InvalidMessage),
        ({"role": "assistant", "tool_calls": [call(5)]}, errors.Refused),
        ({"role": "assistant", "tool_calls": [call(name=5)]}, errors.Refused),
        ({"role": "assistant", "tool_calls": [call(arguments="[]")]}, errors.NotJson),
        ({"role": "assistant", "tool_calls": [call(arguments="{")]}, errors.NotJson),
        ({"role": "assistant", "tool_calls": [call(arguments='{"a": NaN}')]}, errors.NotJson),
        ({"role": "assistant", "tool_calls": [call(arguments={"a": 1})]}, errors.NotJson),
        ({"role": "assistant", "tool_calls": [call(arguments=None)]}, errors.NotJson),
        ({"role": "assistant", "tool_calls": [call(arguments='{"a":' * 99_999)]}, errors.Refused),
        ({"role": "user", "content": "x", "extra": {1}}, errors.NotJson),
        ({"role": "user", "content": "\ud800"}, errors.BadEncoding),
        ("just text", errors.InvalidMessage),
        (None, errors.InvalidMessage),
        (["user", "x"], errors.InvalidMessage),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_dict_that_means_nothing_is_refused(chat: Any, error: type[errors.Error]):
    with pytest.raises(error) as caught:
        intake.accept(chat)
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"tokens": -5}, errors.InvalidMessage),
        ({"timestamp": "soon"}, errors.InvalidMessage),
        ({"id": "a\0b"}, errors.InvalidRequest),
        ({"metadata": {"n": float("nan")}}, errors.NotJson),
        ({"content": "other"}, errors.InvalidMessage),
        ({"role": "nobody"}, errors.InvalidMessage),
    ],
)
def test_a_changed_copy_of_a_message_read_from_a_dict_is_checked_when_handed_in(
    changed: dict[str, Any], kind: type[errors.Error]
):
    read = intake.accept({"role": "user", "content": "hi"})
    with pytest.raises(kind):
        intake.accept(msgspec.structs.replace(read, **changed))


def test_a_copy_with_metadata_of_its_own_is_frozen_when_handed_in():
    read = intake.accept({"role": "user", "content": "hi"})
    given = {"tags": ["a"]}
    kept = intake.accept(msgspec.structs.replace(read, metadata=given))
    given["tags"].append("b")
    assert kept.metadata == {"tags": ["a"]}
    assert kept.raw() == {"role": "user", "content": "hi"}
