"""The one gate for JSON values: what is refused, with which error, and that all else comes through."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, UserDict
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import pytest

from limpet import Message, ToolCallRequest, ToolCallResult, errors, limits
from limpet.core.formats import codec
from limpet.core.values.validation import checked_id, freeze, thaw


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another text"


class Number(int):
    pass


class Real(float):
    pass


class Level(IntEnum):
    HIGH = 3


class Mine(dict[str, Any]):
    def items(self) -> Any:
        return [("forged", 1)]


def nested(depth: int, leaf: object = None) -> Any:
    value: Any = leaf
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def stored(message: Message) -> Message:
    return codec.decode_message(codec._json_decoder.decode(codec.encode_message(message)))


ENTRANCES = {
    "content": lambda value: Message("user", [value]),
    "metadata": lambda value: Message("user", "x", metadata={"k": value}),
    "args": lambda value: ToolCallRequest("c", "f", {"k": value}),
    "result": lambda value: ToolCallResult("c", value),
    "extra": lambda value: Message.from_dict({"role": "user", "content": "x", "later": value}),
}
NOT_JSON = [
    math.nan, math.inf, -math.inf, b"bytes", bytearray(b"x"), {1, 2}, frozenset(), object(), 1j,
    {1: "x"}, {None: "x"}, {("a",): 1}, {b"k": 1}, range(3), iter([]), Level, ...,
]  # fmt: skip


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: type(value).__name__)
def test_what_json_can_not_say_is_refused_everywhere(entrance: str, value: Any):
    with pytest.raises(errors.NotJson):
        ENTRANCES[entrance](value)


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udcff" * 3, "ok \ud83d"])
def test_lone_surrogates_are_refused_everywhere(entrance: str, text: str):
    with pytest.raises(errors.BadEncoding, match="surrogates"):
        ENTRANCES[entrance](text)
    with pytest.raises(errors.BadEncoding):
        ENTRANCES[entrance]({text: 1})


def test_lone_surrogates_in_plain_content_and_ids_are_refused():
    with pytest.raises(errors.BadEncoding):
        Message("user", "\ud800")
    with pytest.raises(errors.BadEncoding):
        Message("user", "x", id="\ud800")


def test_nesting_is_accepted_up_to_its_limit_and_refused_past_it():
    assert freeze(nested(limits.DEPTH_MAX)) == nested(limits.DEPTH_MAX)
    with pytest.raises(errors.TooDeep) as caught:
        freeze(nested(limits.DEPTH_MAX + 1))
    assert caught.value.facts["depth_max"] == limits.DEPTH_MAX


def test_nesting_far_past_the_interpreters_own_limit_is_refused_not_crashed():
    with pytest.raises(errors.TooDeep):
        freeze(nested(sys.getrecursionlimit() * 3))


def test_frozen_values_put_together_do_not_slip_past_the_depth_limit():
    half = freeze(nested(40))
    with pytest.raises(errors.TooDeep):
        freeze({"a": nested(40, half)})


def test_a_value_that_contains_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(errors.TooDeep):
        freeze(loop)


def test_every_legal_character_round_trips():
    whole = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    for start in range(0, len(whole), 100_000):
        text = whole[start : start + 100_000]
        message = Message("user", text, metadata={"k": text[:500], text[:50]: 1})
        again = stored(message)
        assert again == message and again.content == text


@pytest.mark.parametrize("text", ["\0", "a\0b", "\r\n", "\u2028", "\ufeff", "\ufffe", "\x7f", "\u00e9", "e\u0301"])
def test_awkward_text_round_trips_unchanged(text: str):
    assert stored(Message("user", text)).content == text


@pytest.mark.parametrize(
    "number",
    [0, -1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**64), 10**40, -0.0, 0.1,
     1e308, 5e-324, 1e16, 123456789.123456789],
    ids=repr,
)  # fmt: skip
def test_numbers_round_trip_exactly_with_their_type(number: float):
    again = stored(Message("user", "x", metadata={"n": number})).metadata["n"]
    assert (repr(again), type(again)) == (repr(number), type(number))


@pytest.mark.parametrize("value", [True, False, None])
def test_booleans_and_null_stay_what_they_are(value: object):
    assert stored(Message("user", [value])).content[0] is value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Number(7), 7),
        (Real(1.5), 1.5),
        (Level.HIGH, 3),
        (Text("text"), "text"),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (UserDict({"a": 1}), {"a": 1}),
        ((1, (2,)), [1, [2]]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_become_the_plain_value_they_hold(value: object, plain: object):
    frozen = freeze(value)
    assert frozen == plain
    assert type(thaw(frozen)) is type(plain)
    message = Message("user", "x", metadata={"k": value})
    assert stored(message) == message
    assert stored(message).metadata["k"] == plain


def test_a_dict_subclass_can_not_say_one_thing_now_and_another_later():
    made = Message("user", "x", metadata=Mine(real=1))
    assert stored(made) == made


@pytest.mark.parametrize("what", ["id", "call", "tool name", "result"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("x" * 257, errors.Refused),
        ("é" * 129, errors.Refused),
        ("a\0b", errors.Refused),
        ("a\nb", errors.Refused),
        (5, errors.Refused),
        (b"x", errors.Refused),
    ],
    ids=["long", "long-utf8", "nul", "newline", "int", "bytes"],
)
def test_ids_are_short_printable_text(what: str, value: Any, error: type[Exception]):
    make = {
        "id": lambda: Message("user", "x", id=value),
        "call": lambda: ToolCallRequest(value, "f"),
        "tool name": lambda: ToolCallRequest("c", value),
        "result": lambda: ToolCallResult(value, 1),
    }
    with pytest.raises(error):
        make[what]()


@pytest.mark.parametrize("value", ["x" * 256, "é" * 128, "日本", "a b/c:d", "../../etc/passwd"])
def test_any_printable_text_is_an_id(value: str):
    assert Message("user", "x", id=value).id == value


def test_a_message_over_its_limit_is_refused_with_both_numbers():
    fits = Message("user", "x" * (limits.MESSAGE_BYTES_MAX - 200))
    assert codec.encode_message(fits)
    with pytest.raises(errors.TooLarge) as caught:
        codec.encode_message(Message("user", "x" * limits.MESSAGE_BYTES_MAX))
    assert caught.value.facts["bytes_max"] == limits.MESSAGE_BYTES_MAX
    assert int(str(caught.value.facts["bytes"])) > limits.MESSAGE_BYTES_MAX
    assert "x" * 20 not in str(caught.value)


def test_size_is_counted_in_bytes_not_characters():
    with pytest.raises(errors.TooLarge):
        codec.encode_message(Message("user", "語" * (limits.MESSAGE_BYTES_MAX // 3 + 1)))


class Liar(str):
    """Text that says of itself what is not so."""

    __slots__ = ()

    def isascii(self) -> bool:
        return True


class Shifty(float):
    """A number that turns into another when asked."""

    __slots__ = ()

    def __float__(self) -> float:
        return float("nan")


def test_a_number_too_large_to_be_written_is_refused_where_it_enters():
    with pytest.raises(errors.NotJson, match="bits"):
        Message("user", [{"n": 10**5000}])
    assert freeze(2**8000) == 2**8000


def test_values_that_lie_about_themselves_are_taken_by_what_they_are():
    with pytest.raises(errors.BadEncoding):
        freeze({"a": Liar("\ud800")})
    with pytest.raises(errors.BadEncoding):
        checked_id("an id", Liar("\ud800"))
    assert freeze([Shifty(1.5)]) == [1.5]


@pytest.mark.parametrize("parts", [5, "x", {"a": 1}])
def test_tool_calls_that_are_no_list_are_refused(parts: Any):
    with pytest.raises(errors.InvalidMessage, match="list"):
        Message("assistant", "x", tool_calls=parts)
