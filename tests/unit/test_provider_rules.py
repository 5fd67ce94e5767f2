"""The checks on requests: each rule catches what it forbids, and lets good requests pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limpet.testing import providers

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (ROOT / "src/limpet/testing/providers.py").read_text(encoding="utf-8")
RULES = set(re.findall(r'Violation\(\s*"([a-z-]+)"', SOURCE))

Check = Callable[[Any], list[providers.Violation]]
CHECKS: dict[str, Check] = {
    "chat": providers.check_openai_chat,
    "responses": lambda items: providers.check_openai_responses({"input": items}),
    "anthropic": lambda messages: providers.check_anthropic({"messages": messages}),
    "gemini": lambda contents: providers.check_gemini({"contents": contents}),
}


# OpenAI Chat
USER = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "Hello."}


def chat_call(id_: str = "c1", name: str = "f", **changes: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {"id": id_, "type": "function", "function": function, **changes}


def calling(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def told(id_: str = "c1", content: Any = "42") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


# OpenAI Responses
def asked(id_: str = "c1", name: str = "f", **changes: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": "{}", **changes}


def output(id_: str = "c1", **changes: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id_, "output": "42", **changes}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}


# Anthropic
def text(said: str = "hi") -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(id_: str = "t1", **changes: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "f", "input": {}, **changes}


def result(id_: str = "t1", **changes: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": "42", **changes}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def model(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def image(media_type: str) -> dict[str, Any]:
    source = {"type": "base64", "media_type": media_type, "data": "aQ=="}
    return {"type": "image", "source": source}


# Gemini
def g_user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def g_model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def g_call(name: str = "f", **changes: Any) -> dict[str, Any]:
    return {"function_call": {"name": name, "args": {}, **changes}}


def g_told(name: str = "f", **changes: Any) -> dict[str, Any]:
    return {"function_response": {"name": name, "response": {"output": "42"}, **changes}}


HI = {"text": "hi"}

BAD: list[tuple[str, Any]] = [
    ("chat-not-empty", []),
    ("chat-role", [{"role": "model", "content": "x"}]),
    ("chat-content", [{"role": "user", "content": None}]),
    ("chat-content", [USER, {"role": "assistant"}]),
    ("chat-content", [USER, {"role": "assistant", "content": []}]),
    ("chat-content", [USER, calling(chat_call()), told(content=None)]),
    ("chat-part", [USER, {"role": "assistant", "content": [{"type": "image_url"}]}]),
    ("chat-part", [USER, calling(chat_call()), told(content=[{"type": "image_url"}])]),
    ("chat-call", [USER, {**SAID, "tool_calls": []}]),
    ("chat-call", [USER, {**SAID, "tool_calls": None}]),
    ("chat-call", [USER, calling(chat_call(function={"name": "f", "arguments": {}})), told()]),
    ("chat-name", [USER, calling(chat_call(name="a b")), told()]),
    ("chat-speaker", [{**USER, "name": "Ada Lovelace"}]),
    ("chat-id", [USER, calling(chat_call("x" * 41)), told("x" * 41)]),
    ("chat-id", [USER, calling(chat_call("")), told("")]),
    ("chat-id-unique", [USER, calling(chat_call(), chat_call()), told()]),
    ("chat-results-follow", [USER, calling(chat_call())]),
    ("chat-results-follow", [USER, calling(chat_call()), USER, told()]),
    ("chat-results-follow", [USER, calling(chat_call(), chat_call("c2")), told(), SAID, told("c2")]),
    ("chat-result-without-call", [USER, told()]),
    ("chat-result-without-call", [USER, calling(chat_call()), told(), SAID, told()]),
    ("chat-result-twice", [USER, calling(chat_call()), told(), told()]),
    ("responses-not-empty", []),
    ("responses-item", [{"role": "tool", "content": "x"}]),
    ("responses-item", [USER, {"type": None}]),
    ("responses-content", [{"role": "user", "content": []}]),
    ("responses-content", [USER, asked(), output(output={"a": 1})]),
    ("responses-part", [{"role": "user", "content": [{"type": "text", "text": "x"}]}]),
    ("responses-part", [USER, {"role": "assistant", "content": [{"type": "input_text"}]}]),
    ("responses-part", [USER, asked(), output(output=[{"type": "text"}])]),
    ("responses-call", [USER, asked(arguments={}), output()]),
    ("responses-name", [USER, asked(name="a.b"), output()]),
    ("responses-id", [USER, asked("x" * 65), output("x" * 65)]),
    ("responses-id", [USER, asked(""), output("")]),
    ("responses-item-id", [USER, asked(id="call_1"), output()]),
    ("responses-item-id", [USER, {"type": "reasoning", "id": "x", "summary": []}, asked(), output()]),
    ("responses-item-unique", [USER, THOUGHT, SAID, THOUGHT, SAID]),
    ("responses-id-unique", [USER, asked(), output(), asked(), output()]),
    ("responses-answered", [USER, asked()]),
    ("responses-answered", [USER, asked(), asked("c2"), output()]),
    ("responses-output-without-call", [USER, output()]),
    ("responses-output-without-call", [USER, output(), asked()]),
    ("responses-output-twice", [USER, asked(), output(), output()]),
    ("responses-output-kind", [USER, asked(), output(type="custom_tool_call_output")]),
    ("responses-reasoning", [USER, THOUGHT]),
    ("responses-reasoning", [USER, THOUGHT, USER]),
    ("anthropic-not-empty", []),
    ("anthropic-first", [model(text())]),
    ("anthropic-role", [USER, {"role": "system", "content": "x"}]),
    ("anthropic-role", [USER, model(use()), {"role": "tool", "content": [result()]}]),
    ("anthropic-alternate", [USER, USER]),
    ("anthropic-fields", [{**USER, "name": "ada"}]),
    ("anthropic-content", [USER, model()]),
    ("anthropic-blank", [user(text(" \n"))]),
    ("anthropic-blank", [{"role": "user", "content": ""}]),
    ("anthropic-place", [user(use())]),
    ("anthropic-place", [USER, model(image("image/png"))]),
    ("anthropic-place", [USER, model(use()), user(result(content=[use()]))]),
    ("anthropic-id", [USER, model(use("a.b")), user(result("a.b"))]),
    ("anthropic-name", [USER, model(use(name="a.b")), user(result())]),
    ("anthropic-input", [USER, model(use(input="{}")), user(result())]),
    ("anthropic-error", [USER, model(use()), user(result(content="", is_error=True))]),
    ("anthropic-signature", [USER, model({"type": "thinking", "thinking": "x"}, text())]),
    ("anthropic-media", [user(image("image/svg+xml"))]),
    ("anthropic-id-unique", [USER, model(use()), user(result()), model(use()), user(result())]),
    ("anthropic-results-next", [USER, model(use())]),
    ("anthropic-results-next", [USER, model(use()), user(text())]),
    ("anthropic-results-next", [USER, model(use(), use("t2")), user(result())]),
    ("anthropic-results-first", [USER, model(use()), user(text(), result())]),
    ("anthropic-result-without-call", [user(result())]),
    ("anthropic-result-without-call", [USER, model(use()), user(result()), SAID, user(result())]),
    ("anthropic-result-twice", [USER, model(use()), user(result(), result())]),
    ("anthropic-trailing", [USER, {"role": "assistant", "content": "Once "}]),
    ("gemini-not-empty", []),
    ("gemini-first", [g_model(HI)]),
    ("gemini-role", [g_user(HI), {"role": "assistant", "parts": [HI]}]),
    ("gemini-alternate", [g_user(HI), g_user(HI)]),
    ("gemini-parts", [g_user()]),
    ("gemini-part", [g_user({**HI, **g_told()})]),
    ("gemini-part", [g_user({"image": "x"})]),
    ("gemini-blank", [g_user({"text": ""})]),
    ("gemini-place", [g_user(g_call())]),
    ("gemini-place", [g_user(HI), g_model(g_call()), g_model(g_told())]),
    ("gemini-name", [g_user(HI), g_model(g_call("1f")), g_user(g_told("1f"))]),
    ("gemini-object", [g_user(HI), g_model(g_call()), g_user(g_told(response="42"))]),
    ("gemini-object", [g_user(HI), g_model(g_call(args="{}")), g_user(g_told())]),
    ("gemini-responses-next", [g_user(HI), g_model(g_call())]),
    ("gemini-responses-next", [g_user(HI), g_model(g_call()), g_user(HI)]),
    ("gemini-responses-next", [g_user(HI), g_model(g_call(), g_call()), g_user(g_told())]),
    ("gemini-responses-order", [g_user(HI), g_model(g_call(), g_call("g")), g_user(g_told("g"), g_told())]),
    ("gemini-responses-order", [g_user(HI), g_model(g_call(id="a")), g_user(g_told(id="b"))]),
    ("gemini-responses-order", [g_user(HI), g_model(g_call(id="a")), g_user(g_told("g", id="a"))]),
    ("gemini-responses-alone", [g_user(HI), g_model(g_call()), g_user(HI, g_told())]),
    ("gemini-responses-alone", [g_user(HI), g_model(g_call()), g_user(g_told(), HI)]),
    ("gemini-alternate", [g_user(HI), g_model(g_call()), g_user(g_told()), g_user(HI), g_user(HI)]),
    ("gemini-response-without-call", [g_user(g_told())]),
    ("gemini-responses-next", [g_user(HI), g_model({"functionCall": {"name": "f", "args": {}}})]),
]  # fmt: skip

GOOD: list[tuple[str, Any]] = [
    ("chat", [{"role": "developer", "content": "Be brief."}]),
    ("chat", [USER, calling(chat_call(), chat_call("c2")), told("c2"), told(), USER]),
    ("chat", [USER, calling(chat_call()), told(), calling(chat_call()), told()]),
    ("chat", [USER, {"role": "assistant", "content": None, "refusal": "No."}]),
    ("chat", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("responses", [USER, THOUGHT, asked(), asked("c2"), output("c2"), output(), SAID]),
    ("responses", [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]),
    ("anthropic", [USER, SAID, USER]),
    ("anthropic", [USER, model(text(), use(), use("t2")), user(result("t2"), result(), text())]),
    ("anthropic", [user(image("image/png"), text())]),
    ("anthropic", [USER, model({"type": "thinking", "thinking": "", "signature": "s"}, text())]),
    ("chat", [{**USER, "name": "ada-1"}]),
    ("responses", [USER, {**THOUGHT, "id": "rs_2"}, asked(id="fc_1"), output(id="fco_1"), SAID]),
    ("anthropic", [user({"type": "container_upload", "file_id": "f"}, text())]),
    ("gemini", [g_user(HI), g_model(HI, g_call(), g_call()), g_user(g_told(), g_told()), g_user(HI)]),
    ("gemini", [g_user(HI), g_model(g_call(id="a"), g_call(id="b")), g_user(g_told(id="b"), g_told(id="a"))]),
    ("gemini", [g_user(HI), g_model(g_call("ns:f")), g_user(g_told("ns:f"))]),
    ("gemini", [g_user({"inlineData": {"mimeType": "image/png", "data": "aQ=="}})]),
    ("gemini", [g_user({"inline_data": {"mime_type": "image/png", "data": "aQ=="}}), g_model(HI)]),
]


@pytest.mark.parametrize(("rule", "request_"), BAD, ids=[f"{n}-{bad[0]}" for n, bad in enumerate(BAD)])  # fmt: skip
def test_a_bad_request_is_refused_by_its_rule(rule: str, request_: Any):
    found = CHECKS[rule.partition("-")[0]](request_)
    assert rule in {violation.rule for violation in found}, found
    assert all(violation.where and violation.what for violation in found)


@pytest.mark.parametrize(("provider", "request_"), GOOD)
def test_a_good_request_passes(provider: str, request_: Any):
    assert CHECKS[provider](request_) == []


@pytest.mark.parametrize("system", ["", [{"type": "text", "text": " "}], [{"type": "text"}]])
def test_a_blank_system_prompt_is_refused(system: Any):
    found = providers.check_anthropic({"system": system, "messages": [USER]})
    assert [violation.rule for violation in found] == ["anthropic-blank"]


def test_every_rule_has_a_bad_request_here_and_a_line_in_the_explanation():
    page = (ROOT / "docs/explanation/provider-rules.md").read_text(encoding="utf-8")
    assert {rule for rule, _ in BAD} == RULES
    assert set(re.findall(r"`((?:chat|responses|anthropic|gemini)-[a-z-]+)`", page)) == RULES
