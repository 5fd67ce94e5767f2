"""A request takes no more tokens than its window was counted with, whatever rendering puts in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet import Message, StateManager, ToolCallRequest, ToolCallResult, Window, errors, tokens
from limpet.core.formats import intake
from tests.property import conversations as talks

EXACT = "o200k_base"
SAID = {
    "text", "content", "output", "arguments", "parts", "messages", "contents", "system", "name",
    "system_instruction", "instructions", "function", "tool_calls", "refusal", "function_call",
    "function_response",
}  # fmt: skip
"""Where a request says something to the model; not ids, and not what media are made of."""


def texts(value: Any) -> Iterator[str]:
    """Every text of a request that a model reads."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in ("args", "response") or (key == "input" and isinstance(item, dict)):
                yield json.dumps(item, ensure_ascii=False, separators=(",", ":"))
            elif key in SAID or (key == "input" and isinstance(item, list)):
                yield from texts(item)


def edge(messages: list[Message], counter: str, share: float) -> Window | None:
    """A window at the edge of a budget: all of it, or a part."""
    whole = StateManager(10**9, counter=counter).window(messages).tokens
    try:
        window = StateManager(max(1, int(whole * share)), counter=counter).window(messages)
    except errors.ContextOverflow:
        return None
    assert window.tokens <= window.budget
    return window


some = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
shares = st.sampled_from([1.0, 1.0, 0.8, 0.5, 0.3])


@pytest.mark.req("A-10")
@some
@given(messages=talks.conversations(), share=shares)
def test_a_chat_request_counted_anew_takes_no_more(messages: list[Message], share: float):
    window = edge(messages, EXACT, share)
    if window is not None and window.messages:
        counter = tokens.named(EXACT)
        again = [counter.message(intake.accept(message)) for message in window.to_openai()]
        assert sum(again) + counter.reply <= window.tokens


@pytest.mark.req("A-10")
@pytest.mark.parametrize(
    ("render", "name"),
    [
        ("to_openai", EXACT),
        ("to_openai_responses", EXACT),
        ("to_anthropic", "claude-estimate-1"),
        ("to_gemini", "gemini-estimate-1"),
    ],
)
@some
@given(messages=talks.conversations(), share=shares)
def test_the_words_of_a_request_take_no_more(messages: list[Message], share: float, render: str, name: str):
    window = edge(messages, name, share)
    if window is not None and window.messages:
        counter = tokens.named(name)
        assert sum(map(counter.text, texts(getattr(window, render)()))) <= window.tokens


PICTURE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}


@pytest.mark.parametrize(
    "result",
    [
        ToolCallResult("c", "", is_error=True),
        ToolCallResult("c", "no", is_error=True),
        ToolCallResult("c", [{"type": "text", "text": "a"}] * 40),
        ToolCallResult("c", [{"type": "text", "text": "a"}, PICTURE], is_error=True),
        ToolCallResult("c", []),
        ToolCallResult("c", [1, "a", None, {"b": 2}]),
        ToolCallResult("c", [{"type": "hologram"}] * 9),
        ToolCallResult("c", [{"inline_data": {"mime_type": "audio/ogg", "data": "aGVsbG8="}}]),
    ],
)
def test_what_rendering_adds_to_a_result_is_counted(result: ToolCallResult):
    counter = tokens.named(EXACT)
    plain = [
        Message("user", "go"),
        Message("assistant", tool_calls=[ToolCallRequest("c", "f"), ToolCallRequest("d", "f")]),
        Message("tool", tool_results=[result, ToolCallResult("d", "ok")]),
    ]
    window = StateManager(10**9, counter=EXACT).window(plain)
    again = [counter.message(intake.accept(message)) for message in window.to_openai()]
    assert sum(again) + counter.reply <= window.tokens


def test_all_that_a_chat_dict_sends_back_is_counted():
    counter = tokens.named(EXACT)
    said = "Let me think about that for a while. " * 20
    bare = {"role": "assistant", "content": "Yes."}
    without = counter.message(intake.accept(bare))
    for more in ({"reasoning_content": said}, {"refusal": said}, {"function_call": {"name": said}}):
        assert counter.message(intake.accept(bare | more)) >= without + counter.text(said)
