"""Whatever is handed in: a message comes out, or an error of Limpet's own, and the input is left alone."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from limpet import Message, errors
from limpet.core.formats import intake

Draw = Any

KEYS = st.sampled_from([
    "role", "content", "tool_calls", "tool_call_id", "tool_results", "function", "custom", "name",
    "arguments", "input", "id", "type", "choices", "message", "category", "openai", "anthropic",
    "tool_use_id", "is_error", "text", "metadata", "tokens", "timestamp", "origin", "refusal", "audio",
    "parsed", "result", "args", "extra",
])  # fmt: skip
WORDS = st.sampled_from([
    "user", "assistant", "system", "tool", "developer", "function", "custom", "text", "tool_use",
    "tool_result", "message", "image", "DIALOG", "{}", "[1]", "not json", "c1", "", "\ud800", "2026-01-31",
])  # fmt: skip
ATOMS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | WORDS | st.binary(max_size=3)
    | st.sampled_from([object(), int, ..., 2**9_000, {1}, 1j])
)  # fmt: skip


class Dumped:
    """An SDK's object, nearly: it dumps itself, or breaks."""

    def __init__(self, name: str, inside: Any, defect: type[Exception] | None, options: bool):
        self.inside = inside
        setattr(self, name, self._any if options else self._none)
        self.defect = defect

    def _none(self) -> Any:
        if self.defect is not None:
            raise self.defect("broken")
        return self.inside

    def _any(self, **_: Any) -> Any:
        return self._none()


class Odd(dict[Any, Any]):
    """A dict of somebody's own."""


def with_itself(value: dict[str, Any], key: str) -> dict[str, Any]:
    value[key] = [value]
    return value


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(KEYS, inner, max_size=5)
    defects = st.none() | st.sampled_from([TypeError, ValueError, KeyError, RecursionError, OSError])
    dumps = st.sampled_from(["to_dict", "model_dump", "dict"])
    wrapped: list[Callable[[dict[str, Any]], Any]] = [
        Odd, UserDict, MappingProxyType, lambda d: SimpleNamespace(**d),
    ]  # fmt: skip
    return (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | dicts
        | st.builds(lambda d, make: make(d), dicts, st.sampled_from(wrapped))
        | st.builds(with_itself, dicts, KEYS)
        | st.builds(Dumped, dumps, inner, defects, st.booleans())
        | st.dictionaries(st.none() | st.integers(0, 2), inner, max_size=2)
    )


JUNK: st.SearchStrategy[Any] = st.recursive(ATOMS, objects, max_leaves=14)
CALL = st.fixed_dictionaries(
    {},
    optional={
        "id": st.just("c1") | ATOMS,
        "type": st.sampled_from(["function", "custom"]) | ATOMS,
        "function": st.fixed_dictionaries({}, optional={"name": WORDS, "arguments": WORDS | JUNK}) | JUNK,
        "custom": st.fixed_dictionaries({}, optional={"name": WORDS, "input": WORDS | JUNK}) | JUNK,
    },
)  # fmt: skip
BLOCK = st.fixed_dictionaries({"type": WORDS}, optional={
    "text": WORDS, "id": WORDS, "name": WORDS, "input": JUNK, "tool_use_id": WORDS | ATOMS,
    "content": JUNK, "is_error": ATOMS,
})  # fmt: skip
NEARLY = st.fixed_dictionaries({"role": WORDS}, optional={
    "content": WORDS | st.lists(BLOCK | JUNK, max_size=3) | JUNK, "tool_calls": st.lists(CALL | JUNK, max_size=2) | JUNK,
    "tool_call_id": WORDS | ATOMS, "id": WORDS | ATOMS, "category": WORDS | ATOMS, "openai": JUNK, "anthropic": JUNK,
    "tool_results": JUNK, "name": ATOMS,
})  # fmt: skip
CHOICES = st.fixed_dictionaries({"choices": st.lists(NEARLY | JUNK, max_size=2) | JUNK})


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(value=JUNK | NEARLY | CHOICES | st.builds(SimpleNamespace, choices=st.lists(NEARLY | JUNK)))
def test_a_message_or_one_of_our_errors(value: Any):
    before = repr(value)
    try:
        message = intake.accept(value)
    except errors.Error:
        pass
    else:
        assert isinstance(message, Message)
        assert intake.accept(message.to_dict()).to_dict() == message.to_dict()
    assert repr(value) == before, "what is handed in is left alone"


@pytest.mark.parametrize("depth", [1, 3, 5_000])
def test_choices_in_choices_are_no_message(depth: int):
    value: Any = {"choices": []}
    for _ in range(depth):
        value = {"choices": [{"message": value}]}
    with pytest.raises(errors.InvalidMessage):
        intake.accept(value)


def test_choices_that_hold_themselves_are_no_message():
    loop: list[Any] = []
    loop.append(loop)
    holder = SimpleNamespace()
    holder.choices = [holder]
    own: dict[str, Any] = {}
    own["choices"] = [{"message": own}]
    values: list[Any] = [{"choices": loop}, SimpleNamespace(choices=loop), holder, own]
    for value in values:
        with pytest.raises(errors.InvalidMessage):
            intake.accept(value)


@pytest.mark.parametrize("name", ["to_dict", "model_dump"])
def test_a_dump_that_takes_no_options_is_read(name: str):
    inside = {"role": "user", "content": "hi", "parsed": 1}
    kept = copy.deepcopy(inside)
    message = intake.accept(Dumped(name, inside, None, options=False))  # pyright: ignore[reportArgumentType]
    assert message.raw() == {"role": "user", "content": "hi"}
    assert inside == kept, "it may be the very inside of the object"


def test_an_object_that_breaks_is_named():
    with pytest.raises(errors.InvalidMessage, match="ValueError") as caught:
        intake.accept(Dumped("to_dict", {}, ValueError, options=True))  # pyright: ignore[reportArgumentType]
    assert isinstance(caught.value.__cause__, ValueError)
