"""Token counters: exact against the reference, honest where they estimate, never wrong in silence."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import Message, ToolCallRequest, ToolCallResult, errors, limits, tokens
from limpet.core.formats import intake
from limpet.core.tokens import counters, estimates
from tests.unit import multilingual_text, reference

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
COUNTERS = ["o200k_base", "cl100k_base", "claude-estimate-1", "gemini-estimate-1", "estimate-2"]
TOOL = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books a ferry.",
        "parameters": {"type": "object", "properties": {"to": {"type": "string"}}},
    },
}


@pytest.mark.req("A-11")
@pytest.mark.slow
@pytest.mark.parametrize("script", [*multilingual_text.WORDS, "wild"])
def test_exact_counts_are_those_of_the_reference(script: str):
    """22,000 strings in twelve scripts and none: the same tokens, not only as many."""
    texts = multilingual_text.wild(4_000) if script == "wild" else multilingual_text.strings(script, 1_500)
    for name, every in (("o200k_base", 1), ("cl100k_base", 5)):
        known, ours = reference.encoding(name), counters.load_tokenizer(name)
        chosen = texts[::every]
        theirs = [known.encode_ordinary(text) for text in chosen]
        assert [ours.encode_ordinary(text) for text in chosen] == theirs
        counter = tokens.named(name)
        assert [counter.text(text) for text in chosen[:200]] == [len(ids) for ids in theirs[:200]]


@pytest.mark.slow
@pytest.mark.parametrize("script", multilingual_text.WORDS)
def test_estimate_is_within_its_margin(script: str):
    """Within 15 % for 95 % of the strings, and hardly ever too low by more than the margin."""
    texts = multilingual_text.strings(script, 1_000, seed=2)
    exact, guess = tokens.named("o200k_base"), tokens.named("estimate")
    pairs = [(exact.text(text), guess.text(text)) for text in texts]
    near = sum(abs(mine - real) <= 0.15 * real for real, mine in pairs)
    low = sum(mine * (1 + guess.margin) < real for real, mine in pairs)
    assert near >= 0.95 * len(pairs)
    assert low <= 0.01 * len(pairs)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-2024-11-20", "o200k_base"),
        ("openai/gpt-4.1", "o200k_base"),
        ("ft:gpt-4o-mini-2024-07-18:acme:claude:x1", "o200k_base:tile-5667"),
        ("gpt-5", "o200k_base:tile-140"),
        ("gpt-5.1", "o200k_base:tile-140"),
        ("gpt-5-2025-08-07", "o200k_base:tile-140"),
        ("gpt-5-mini", "o200k_base:patch-1.62"),
        ("gpt-5.2-pro-2025-12-11", "o200k_base:patch-1.2"),
        ("gpt-5.4-mini-2026-03-17", "o200k_base:patch-1.62-2500"),
        ("gpt-5.4-nano", "o200k_base:patch-2.46"),
        ("gpt-5.6-sol", "o200k_base:patch-1.2"),
        ("gpt-5.10", "o200k_base:patch-1.2"),
        ("o3", "o200k_base:tile-150"),
        ("o4-mini-2025-04-16", "o200k_base:patch-1.72"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("gpt-35-turbo", "cl100k_base"),
        ("claude-3-5-sonnet-20241022", "claude-estimate-1"),
        ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", "claude-estimate-1"),
        ("claude-sonnet-4-20250514", "claude-estimate-1"),
        ("anthropic/claude-sonnet-4.5", "claude-estimate-1"),
        ("claude-haiku-4-5@20251001", "claude-estimate-1"),
        ("claude-opus-4-7", "claude-4.7-estimate-1"),
        ("claude-opus-5", "claude-4.7-estimate-1"),
        ("claude-fable-5-2", "claude-4.7-estimate-1"),
        ("claude-haiku-5-5", "claude-4.7-estimate-1"),
        ("models/gemini-2.5-pro", "gemini-estimate-1"),
        ("gemini-1.5-flash-002", "gemini-estimate-1"),
        ("gemini-3-pro-preview", "gemini-3-estimate-1"),
        ("gemini-4-argon", "gemini-3-estimate-1"),
        ("gemini-flash-latest", "gemini-3-estimate-1"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3"),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "llama3"),
        ("deepseek-chat", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen3"),
        ("Qwen/Qwen2.5-7B", "qwen3"),
        ("open-mistral-nemo", "mistral_v3"),
        ("mixtral-8x7b-instruct", "mistral_v2"),
        ("gemma-3-27b-it", "gemma3"),
        ("glm-4.6", "glm4"),
        ("moonshotai/kimi-k2", "kimi_k2"),
    ],
)
def test_model_finds_its_counter(model: str, name: str):
    counter = tokens.for_model(model)
    assert counter.name == name
    assert tokens.named(name) is counter
    assert counter.exact == (counter.margin == 0)


@pytest.mark.parametrize("model", ["", "gpt-6", "gpt-6.1-sol", "o5", "llama-4", "qwen3.5-9b", "my-gpt-4o", "x" * 9_999])
def test_unknown_model_is_no_guess(model: str):
    with pytest.raises(errors.UnknownModel, match="'estimate'") as caught:
        tokens.for_model(model)
    assert len(str(caught.value)) < 1_000


def test_unknown_counter_is_told_the_known_ones():
    with pytest.raises(errors.UnknownCounter, match="o200k_base"):
        tokens.named("o200k")


@pytest.mark.parametrize("name", tokens.names())
def test_every_counter_loads_passes_its_known_answer_and_counts(name: str):
    counter = tokens.named(name)
    assert counter.text("") == 0
    assert 1 <= counter.text("hello") <= 3
    assert counter.text("<|endoftext|>") > 1  # ordinary text: it forges no control token
    assert counter.message(Message("user", "hello")) >= counter.text("hello")
    assert counter.reply > 0


class Damaged:
    """A tokenizer that is another one than its name says, as after a bad release."""

    sound = staticmethod(counters.load_tokenizer)

    def __init__(self, name: str) -> None:
        self._sound = self.sound(name)

    def encode_ordinary(self, text: str) -> list[int]:
        return self._sound.encode_ordinary(text.replace("你好", "你 好"))


@pytest.mark.parametrize("name", counters.KNOWN_TOKENS_SHA256)
def test_damaged_tokenizer_counts_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counters, "load_tokenizer", Damaged)
    monkeypatch.setattr(counters, "_encoders", {})
    for _ in range(2):  # the second look is no milder
        with pytest.raises(errors.WrongTokenizer, match="splintr-rs"):
            counters.vocabulary_count(name)("hello")


def test_missing_vocabulary_is_a_wrong_tokenizer():
    with pytest.raises(errors.WrongTokenizer, match="no vocabulary"):
        counters.load_tokenizer("no-such-thing")


def test_vocabulary_is_loaded_once(monkeypatch: pytest.MonkeyPatch):
    loads: list[str] = []
    sound = counters.load_tokenizer("o200k_base")
    monkeypatch.setattr(counters, "load_tokenizer", lambda name: loads.append(name) or sound)
    monkeypatch.setattr(counters, "_encoders", {})
    count = counters.vocabulary_count("o200k_base")
    threads = [threading.Thread(target=count, args=("hello",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == ["o200k_base"]


def test_importing_the_room_loads_no_vocabulary():
    program = "import sys, limpet.tokens as t; t.for_model('gpt-4o'); print('splintr' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.req("A-11")
def test_message_is_counted_as_the_provider_publishes_it():
    """OpenAI: three tokens for a message and one for its role, its text, one for a name; three prime the reply."""
    counter = tokens.for_model("gpt-4o")
    talk = [Message("system", "Be brief."), Message("user", "Find me a flight to Oslo.")]
    assert [counter.message(message) for message in talk] == [4 + 3, 4 + 7]
    assert tokens.total(counter, talk) == 7 + 11 + 3
    named = Message("user", "Hello", openai={"role": "user", "content": "Hello", "name": "ada"})
    assert counter.message(named) == counter.message(Message("user", "Hello")) + 1 + counter.text("ada")


def test_messages_count_by_the_formula_that_openai_publishes():
    """OpenAI's Cookbook: 3 for each message, every value of its dict, 1 more for a name, 3 for the reply."""
    talk = [
        {"role": "system", "content": "You help people who wait for a ferry."},
        {"role": "system", "name": "first_mate", "content": "The boat to Oslo leaves at nine."},
        {"role": "user", "name": "ada", "content": "When is the last one back?"},
        {"role": "assistant", "content": "At half past ten. 船は出ました。"},
        {"role": "developer", "content": "Mention the fare."},
    ]
    for model, name in (("gpt-4-0613", "cl100k_base"), ("gpt-4o", "o200k_base")):
        known = reference.encoding(name)
        values = [value for raw in talk for value in raw.values()]
        names = sum("name" in raw for raw in talk)
        expected = 3 * len(talk) + sum(len(known.encode_ordinary(v)) for v in values) + names + 3
        counted = tokens.total(tokens.for_model(model), [intake.accept(raw) for raw in talk])
        assert counted == expected


def test_calls_results_and_parts_count():
    counter = tokens.for_model("gpt-4o")
    text = '{ "to" :  "OSL" }'
    call = Message("assistant", tool_calls=[ToolCallRequest("c", "book", {"to": "OSL"}, text)])
    assert counter.message(call) == 4 + 12 + counter.text("book") + counter.text(text)
    unsaid = Message("assistant", tool_calls=[ToolCallRequest("c", "book", {"to": "OSL"})])
    assert counter.message(unsaid) == 4 + 12 + counter.text("book") + counter.text('{"to":"OSL"}')
    result = Message("tool", tool_results=[ToolCallResult("c", {"rows": [1, 2]})])
    assert counter.message(result) == 4 + 12 + counter.text('{"rows":[1,2]}')
    parts = [{"type": "text", "text": "one"}, {"type": "thinking", "thinking": "two"}, "three"]
    assert counter.message(Message("user", parts)) == 4 + 2 + counter.text('"three"') + 1
    nested = [{"type": "tool_result", "content": [{"type": "text", "text": "one two"}]}]
    assert counter.message(Message("user", nested)) == 4 + 2
    odd = [{"type": "strange", "n": 1}]
    assert counter.message(Message("user", odd)) == 5 + counter.text('{"type":"strange","n":1}')


@pytest.mark.parametrize(
    "row",
    [
        {"type": "file", "name": "a.txt", "text": "seen", "size": 70_000},
        {"file": {"name": "a.txt"}, "image": {"source": {"of": "data"}}},
        {"type": "text", "content": {"deep": [1, 2, 3]}},
        {"source": {"url": "https://example.com/"}},
    ],
)
def test_rows_of_a_tool_are_no_parts(row: dict[str, object]):
    """A tool may call its fields as it likes: all of them are sent, as JSON, and none is media."""
    counter = tokens.for_model("gpt-4o")
    whole = counter.text(msgspec.json.encode(row).decode())
    one = Message("tool", tool_results=[ToolCallResult("c", row)])
    many = Message("tool", tool_results=[ToolCallResult("c", [row, row])])
    assert counter.message(one) == 16 + whole
    both = counter.text(msgspec.json.encode([row, row]).decode())
    assert 16 + both <= counter.message(many) <= 16 + 2 * (whole + 2)


def test_tools_count_as_json():
    gpt, claude = tokens.for_model("gpt-4o"), tokens.for_model("claude-sonnet-4-5")
    assert gpt.tools([]) == claude.tools([]) == 0
    assert gpt.tools([TOOL, TOOL]) == 2 * gpt.tools([TOOL]) > 2 * 20
    assert claude.tools([TOOL]) > 530


FIELD = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer"])},
    optional={
        "description": st.text("abc xyz", max_size=30),
        "enum": st.lists(st.text("abcz", min_size=1, max_size=6), min_size=1, max_size=40),
    },
)
FUNCTION = st.fixed_dictionaries({
    "name": st.text("abc_", min_size=1, max_size=20),
    "description": st.text("abc xyz", max_size=60),
    "properties": st.dictionaries(st.text("abc", min_size=1, max_size=9), FIELD, max_size=12),
})  # fmt: skip


def published(count: Callable[[str], int], functions: list[dict[str, Any]], begin: int) -> int:
    """What OpenAI's Cookbook gives for tools: so much for each function, field and value, and once for all."""
    tokens_ = 12
    for function in functions:
        tokens_ += begin + count(f"{function['name']}:{function['description']}")
        tokens_ += 3 if function["properties"] else 0
        for name, field in function["properties"].items():
            tokens_ += 3 + count(f"{name}:{field['type']}:{field.get('description', '')}")
            if "enum" in field:
                tokens_ += sum(3 + count(value) for value in field["enum"]) - 3
    return tokens_


@given(st.lists(FUNCTION, min_size=1, max_size=4))
def test_tools_take_no_more_than_they_count(functions: list[dict[str, Any]]):
    for model, begin in (("gpt-4o", 7), ("gpt-4", 10)):
        counter = tokens.for_model(model)
        definitions = [
            {"type": "function", "function": {
                "name": f["name"], "description": f["description"],
                "parameters": {"type": "object", "properties": f["properties"]}}}
            for f in functions
        ]  # fmt: skip
        assert counter.tools(definitions) >= published(counter.text, functions, begin)


def test_claude_takes_more_than_its_neighbour_above_all_of_rare_scripts():
    o200k, claude = tokens.named("o200k_base"), tokens.named("claude-estimate-1")
    ratios = {}
    for script in ("english", "chinese", "russian", "hindi"):
        text = "".join(multilingual_text.strings(script, 50))
        ratios[script] = claude.text(text) / o200k.text(text)
    assert 1.15 < ratios["english"] < ratios["chinese"] < ratios["russian"] < ratios["hindi"] < 3.5


@pytest.mark.parametrize("name", COUNTERS)
@given(text=TEXT, more=TEXT)
def test_counting_is_sound_for_any_text(name: str, text: str, more: str):
    counter = tokens.named(name)
    one, other, both = counter.text(text), counter.text(more), counter.text(text + more)
    assert one >= 0 and (one > 0) == bool(text)
    assert both == counter.text(text + more)
    if counter.exact:
        assert both <= one + other + 8  # what touches may be cut anew
        assert one <= len(text.encode())
    assert counter.message(Message("user", text)) >= one


@given(st.recursive(st.none() | st.integers(-9, 9) | TEXT, lambda x: st.lists(x) | st.dictionaries(TEXT, x)))
def test_any_content_is_counted(value: object):
    counter = tokens.for_model("gpt-4o")
    message = Message("tool", tool_results=[ToolCallResult("c", value)])
    assert counter.message(message) == counter.message(message) >= 15


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("text", ["\0" * 99, "a" * 300_000, " " * 300_000, "字" * 100_000, "é" * 100_000])
def test_hostile_text_is_counted(name: str, text: str):
    assert tokens.named(name).text(text) > 0


def test_deep_content_is_counted():
    part: object = {"type": "text", "text": "x"}
    for _ in range(limits.DEPTH_MAX // 2 - 1):
        part = {"type": "tool_result", "content": [part]}
    counter = tokens.for_model("gpt-4o")
    assert counter.message(Message("user", [part])) == counter.message(Message("user", "x"))


def test_repeated_text_is_remembered_for_each_counter():
    text = "a remembered text " * 40
    first = [tokens.named(name).text(text) for name in COUNTERS]
    assert [tokens.named(name).text(text) for name in COUNTERS] == first
    assert len(set(first)) > 1


def test_the_estimate_has_the_name_of_its_way_of_counting():
    counter = tokens.named("estimate")
    assert counter.name == estimates.ESTIMATE_NAME
    assert counter.text("Find me a flight.") == estimates.estimate_tokens("Find me a flight.")
