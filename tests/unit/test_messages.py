"""Messages: their fields, that they never change, and that they survive being written down."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from limpet import Message, MessageCategory, ToolCallRequest, ToolCallResult, errors
from limpet.core.values import ids
from limpet.core.values.messages import category_named

FIXED = ids.Factory(now_us=lambda: 1_700_000_000_000_000, random=bytes)
PARTS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "hologram", "hologram": [1, {"depth": None}]},
]


def calling(*calls: ToolCallRequest, content: str | None = None) -> Message:
    return Message("assistant", content, tool_calls=calls)


@pytest.mark.req("B-3")
def test_fields_are_taken_by_position_in_the_documented_order():
    made = Message("user", "hi", MessageCategory.CONTEXT, "m1", "2026-01-31T12:00:00+00:00", {"a": 1}, 7)
    assert (made.role, made.content, made.category) == ("user", "hi", MessageCategory.CONTEXT)
    assert (made.id, made.timestamp) == ("m1", "2026-01-31T12:00:00.000000+00:00")
    assert (made.metadata, made.tokens) == ({"a": 1}, 7)


@pytest.mark.req("B-3", "A-8")
def test_everything_but_role_and_content_has_a_default():
    made = Message("user", "hi")
    assert made.id.startswith("msg_")
    assert datetime.fromisoformat(made.timestamp).utcoffset() == timedelta(0)
    assert (made.metadata, made.tokens, made.tool_calls, made.tool_results) == ({}, 0, (), ())
    assert (made.origin, made.openai, made.extra) == (None, None, {})


@pytest.mark.req("B-3")
def test_ids_are_unique_and_wide():
    made = {Message("user", "x").id for _ in range(20_000)}
    assert len(made) == 20_000
    assert all(len(id_.removeprefix("msg_")) >= 16 for id_ in made)


def test_ids_and_timestamps_come_from_the_factory_in_force():
    with ids.using(FIXED):
        one, other = Message("user", "x"), Message("user", "x")
    assert one == other
    assert one.timestamp == "2023-11-14T22:13:20.000000+00:00"
    assert Message("user", "x").id != one.id


@pytest.mark.req("B-1")
@pytest.mark.parametrize(
    ("role", "category"),
    [("system", MessageCategory.SYSTEM), ("user", MessageCategory.DIALOG), ("assistant", MessageCategory.DIALOG)],
)
def test_category_follows_the_role_unless_given(role: str, category: MessageCategory):
    assert Message(role, "x").category is category
    assert Message(role, "x", MessageCategory.CONTEXT).category is MessageCategory.CONTEXT


@pytest.mark.req("B-1")
def test_four_categories_by_falling_importance():
    order = [MessageCategory.SYSTEM, MessageCategory.CONTEXT]
    order += [MessageCategory.DIALOG, MessageCategory.SYSTEM_OUTPUT]
    assert list(MessageCategory) == order
    assert [category.value for category in order] == [1, 2, 3, 4]
    assert Message("tool", tool_results=[ToolCallResult("c", 1)]).category is order[3]


@pytest.mark.req("B-1")
@pytest.mark.parametrize("name", ["ERROR", "INTERNAL", "UNKNOWN", "INVENTED_LATER"])
def test_category_of_another_version_is_read_and_its_name_kept(name: str):
    made = Message.from_dict({"role": "assistant", "content": "x", "category": name})
    assert isinstance(made.category, MessageCategory)
    assert made.category is category_named(name)
    assert made.to_dict()["original_category"] == name
    again = Message.from_dict(made.to_dict())
    assert again == made


@pytest.mark.req("A-5")
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_roles_that_carry_content(role: str):
    assert Message(role, "x").role == role


@pytest.mark.req("A-5")
@pytest.mark.parametrize("role", ["", "User", "bot", "function", "developer", None, 1, ["user"]])
def test_any_other_role_is_refused(role: Any):
    with pytest.raises(errors.WrongRole, match="Use system, user, assistant or tool"):
        Message(role, "x")


@pytest.mark.req("A-8")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Message("user", "x", tool_calls=[ToolCallRequest("c", "f")]),
        lambda: Message("system", "x", tool_calls=[ToolCallRequest("c", "f")]),
        lambda: Message("user", "x", tool_results=[ToolCallResult("c")]),
        lambda: Message("assistant", "x", tool_results=[ToolCallResult("c")]),
    ],
)
def test_calls_belong_to_assistants_and_results_to_tools(make: Callable[[], Message]):
    with pytest.raises(errors.WrongRole):
        make()


@pytest.mark.req("A-8")
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_message_with_nothing_in_it_is_refused(role: str):
    with pytest.raises(errors.InvalidMessage):
        Message(role)


@pytest.mark.req("A-8")
def test_content_may_stand_beside_calls_and_may_be_empty_text():
    assert calling(ToolCallRequest("c", "f"), content="Looking.").content == "Looking."
    assert Message("user", "").content == ""


@pytest.mark.req("A-6")
def test_a_call_without_an_id_gets_one_and_a_given_one_is_kept():
    assert ToolCallRequest(name="f").id.startswith("call_")
    assert ToolCallRequest(name="f").id != ToolCallRequest(name="f").id
    assert ToolCallRequest("toolu_1", "f").id == "toolu_1"


@pytest.mark.req("A-6")
@pytest.mark.parametrize("args", ["{}", [], [1], 5, None, {1}, b"{}"])
def test_args_must_be_an_object(args: Any):
    with pytest.raises(errors.NotJson):
        ToolCallRequest("c", "f", args)


@pytest.mark.req("A-7")
@pytest.mark.parametrize("value", [None, 0, False, "", "text", 1.5, [], {}, [{"a": [None]}]])
def test_a_result_carries_any_json_value(value: Any):
    made = ToolCallResult("c", value)
    assert (made.result, type(made.result) is bool) == (value, type(value) is bool)
    assert made.is_error is False
    assert ToolCallResult("c", value, is_error=True).is_error is True


@pytest.mark.req("A-7")
@pytest.mark.parametrize("flag", [0, 1, None, "no"])
def test_is_error_is_a_boolean_and_nothing_like_one(flag: Any):
    with pytest.raises(errors.InvalidMessage):
        ToolCallResult("c", 1, flag)


@pytest.mark.req("B-4")
def test_content_is_text_or_parts_and_unknown_parts_pass_through():
    made = Message("user", PARTS)
    assert made.content == PARTS
    assert Message.from_dict(made.to_dict()).content == PARTS
    assert Message("user", {"type": "image_url", "image_url": {"url": "u"}}).content == {
        "type": "image_url",
        "image_url": {"url": "u"},
    }


@pytest.mark.parametrize("content", [5, 1.5, True, False])
def test_content_of_another_kind_is_refused(content: Any):
    with pytest.raises(errors.InvalidMessage):
        Message("user", content)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "content", "y"),
        lambda m: m.metadata.update(a=2),
        lambda m: m.metadata.__setitem__("a", 2),
        lambda m: m.metadata["deep"].append(1),
        lambda m: m.metadata["deep"][0].pop("x"),
        lambda m: m.content[0].__setitem__("text", "y"),
        lambda m: m.content.sort(),
        lambda m: m.tool_calls[0].args.clear(),
        lambda m: setattr(m.tool_calls[0], "name", "g"),
        lambda m: m.extra.setdefault("new", 1),
    ],
)
def test_no_part_of_a_message_can_be_changed(change: Callable[[Any], object]):
    made = Message(
        "assistant",
        [{"type": "text", "text": "x"}],
        metadata={"a": 1, "deep": [{"x": 1}]},
        tool_calls=[ToolCallRequest("c", "f", {"a": 1})],
    )
    before = made.to_dict()
    with pytest.raises((TypeError, AttributeError)):
        change(made)
    assert made.to_dict() == before


def test_what_the_caller_keeps_and_changes_does_not_reach_the_message():
    content, metadata, args = [{"type": "text", "text": "x"}], {"a": [1]}, {"b": [2]}
    made = Message("assistant", content, metadata=metadata, tool_calls=[ToolCallRequest("c", "f", args)])
    content[0]["text"] = "changed"
    metadata["a"].append(2)
    args["b"].append(3)
    assert made.content == [{"type": "text", "text": "x"}]
    assert made.metadata == {"a": [1]}
    assert made.tool_calls[0].args == {"b": [2]}


def test_what_a_message_hands_out_can_be_changed_without_reaching_it():
    made = Message("user", [{"type": "text"}], metadata={"a": [1]})
    for taken in (made.to_dict(), made.raw(), made.to_api_format()):
        taken["content"][0]["type"] = "changed"
        taken.clear()
    assert made.content == [{"type": "text"}]


def test_frozen_content_equals_and_encodes_like_plain_containers():
    made = Message("user", [{"a": [1, {"b": 2}]}], metadata={"k": [1]})
    plain = [{"a": [1, {"b": 2}]}]
    assert made.content == plain
    assert plain == made.content
    assert made.metadata == {"k": [1]}
    assert isinstance(made.content, list) and isinstance(made.metadata, dict)
    assert json.dumps(made.content) == '[{"a": [1, {"b": 2}]}]'


def test_messages_are_equal_by_value_hashable_and_copyable():
    made = calling(ToolCallRequest("c", "f", {"a": [1]}), content="x")
    twin = Message.from_dict(made.to_dict())
    assert twin == made and hash(twin) == hash(made) and len({made, twin}) == 1
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert Message("user", "x", id="a") != Message("user", "x", id="b")


def test_repr_shows_no_text_of_the_conversation():
    secret = "correct horse battery staple"
    made = [
        Message("user", secret, metadata={"k": secret}),
        calling(ToolCallRequest("c", "f", {"password": secret}), content=secret),
        Message("tool", tool_results=[ToolCallResult("c", secret)]),
    ]
    for message in made:
        assert secret not in repr(message) and secret not in str(message)
        assert message.id in repr(message) and message.role in repr(message)


@pytest.mark.parametrize(
    "message",
    [
        Message("user", "hi", metadata={"a": [1, None]}, tokens=4),
        Message("user", PARTS, MessageCategory.CONTEXT),
        calling(ToolCallRequest("c", "f", {"a": 1}, '{"a": 1}'), ToolCallRequest("d", "g")),
        Message("tool", tool_results=[ToolCallResult("c", None), ToolCallResult("d", {}, True)]),
        Message("system", "", origin="session_1"),
    ],
    ids=lambda message: f"{message.role}-{message.category.name}",
)
def test_to_dict_and_from_dict_are_inverse(message: Message):
    written = json.loads(json.dumps(message.to_dict()))
    assert Message.from_dict(written) == message
    assert Message.from_dict(written).to_dict() == message.to_dict()


def test_fields_of_a_later_version_survive():
    data = {"role": "user", "content": "x", "mood": {"score": [1, 2]}, "v9": None}
    made = Message.from_dict(data)
    assert made.extra == {"mood": {"score": [1, 2]}, "v9": None}
    again = made.to_dict()
    assert again["mood"] == {"score": [1, 2]} and again["v9"] is None
    assert Message.from_dict(again) == made
    assert data == {"role": "user", "content": "x", "mood": {"score": [1, 2]}, "v9": None}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00.000000+00:00"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000000+00:00"),
        ("2026-01-31T14:30:00.25+02:30", "2026-01-31T12:00:00.250000+00:00"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00.000000+00:00"),
    ],
)
@pytest.mark.req("A-8")
def test_timestamps_are_kept_in_utc_with_their_offset(given: str, stored: str):
    assert Message("user", "x", timestamp=given).timestamp == stored


@pytest.mark.parametrize("timestamp", ["yesterday", "2026-13-01", 5, 5.5, b"2026-01-01", "99999999"])
def test_a_timestamp_that_is_none_is_refused(timestamp: Any):
    with pytest.raises(errors.InvalidMessage, match=r"ISO 8601|must be text"):
        Message("user", "x", timestamp=timestamp)


@pytest.mark.parametrize("tokens", [-1, 1.5, "5", None, True])
def test_tokens_are_a_count(tokens: Any):
    with pytest.raises(errors.InvalidMessage):
        Message("user", "x", tokens=tokens)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"content": "x"},
        {"role": "assistant", "content": "x", "tool_calls": 5},
        {"role": "assistant", "content": "x", "tool_calls": [5]},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "nme": "f"}]},
        {"role": "tool", "tool_results": [{"result": 1}]},
        {"role": "user", "content": "x", "category": [1]},
        {"role": "user", "content": "x", "timestamp": 5},
        {"role": "user", "content": "x", "metadata": [1]},
        {"role": "user", "content": "x", "tokens": "many"},
    ],
    ids=str,
)
def test_a_dict_that_is_no_message_is_refused_with_a_typed_error(data: dict[str, Any]):
    with pytest.raises(errors.Refused):
        Message.from_dict(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message("user", "x", extra=cast("Any", {"a": {1}})),
        lambda: Message("user", "x", openai=cast("Any", {"a": {1}})),
        lambda: Message("user", "x", origin=cast("Any", 5)),
        lambda: ToolCallRequest("c", "f", {}, cast("Any", 5)),
        lambda: ToolCallRequest("c", "f", {}, "\ud800"),
        lambda: ToolCallRequest("c", cast("Any", 5)),
        lambda: Message("assistant", "x", tool_calls=cast("Any", [{"name": "f"}])),
        lambda: Message("user", "x", cast("Any", "DIALOG")),
    ],
    ids=["extra", "openai", "origin", "arguments", "arguments-surrogate", "name", "calls", "category"],
)  # fmt: skip
def test_no_field_takes_what_can_not_be_stored(make: Callable[[], object]):
    with pytest.raises(errors.Refused):
        make()


def test_extra_and_provider_dict_given_directly_are_frozen():
    extra, raw = {"a": [1]}, {"role": "user", "content": ["x"]}
    made = Message("user", "x", extra=extra, openai=raw)
    extra["a"].append(2)
    raw["content"] = "changed"
    assert made.extra == {"a": [1]}
    assert made.raw() == {"role": "user", "content": ["x"]}


@pytest.mark.req("B-5")
def test_a_message_turns_into_a_dict_and_back():
    calls = [ToolCallRequest("c1", "look", {"at": [1, {"b": None}]})]
    messages = [
        Message("user", [{"type": "text", "text": "x"}], metadata={"k": 1}, tokens=7),
        Message("assistant", "hm", tool_calls=calls),
        Message("tool", tool_results=[ToolCallResult("c1", {"rows": 2}, is_error=True)]),
        Message("system", "s", MessageCategory.CONTEXT),
    ]
    for message in messages:
        plain = message.to_dict()
        assert plain["category"] == message.category.name
        assert Message.from_dict(plain) == message
        assert Message.from_dict(json.loads(json.dumps(plain))) == message
        assert message.to_api_format() == {"role": message.role, "content": plain["content"]}
    plain = messages[0].to_dict() | {"category": "NOISE", "later": {"field": 1}}
    unknown = Message.from_dict(plain)
    assert unknown.category is MessageCategory.DIALOG
    assert unknown.to_dict()["later"] == {"field": 1}


@pytest.mark.req("B-5")
@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", 1), ("a" * 7, 2), ("a" * 8, 3), ("你好", 3),
        ([{"type": "image_url", "image_url": {"url": "x"}}], 1_000),
        ([{"type": "input_audio"}], 500), ([{"type": "file"}], 250),
        ([{"type": "text", "text": "a" * 8}, {"type": "image"}], 1_003),
    ],
)  # fmt: skip
def test_tokens_are_estimated_where_nobody_counted(content: Any, tokens: int):
    assert Message("user", content).fallback_estimate_tokens() == tokens
    assert Message("user", content, tokens=77).fallback_estimate_tokens() == 77
