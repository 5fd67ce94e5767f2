"""The SDKs' own types, as judges of a request; where an SDK is not installed the test is skipped."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest


@cache
def adapter(module: str, name: str) -> Any:
    pydantic = pytest.importorskip("pydantic")
    return pydantic.TypeAdapter(list[getattr(pytest.importorskip(module), name)])


def taken(value: Any) -> None:
    """Go through what was parsed: pydantic looks into an Iterable only when somebody does."""
    if isinstance(value, dict):
        for item in value.values():
            taken(item)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for item in value:
            taken(item)


def parse_chat(messages: Any) -> None:
    parsed = adapter("openai.types.chat", "ChatCompletionMessageParam").validate_python(messages)
    taken(parsed)


def parse_responses(request: Any) -> None:
    types = adapter("openai.types.responses", "ResponseInputItemParam")
    taken(types.validate_python(request["input"]))


def parse_anthropic(request: Any) -> None:
    taken(adapter("anthropic.types", "MessageParam").validate_python(request["messages"]))
    taken(adapter("anthropic.types", "TextBlockParam").validate_python(request.get("system", [])))


def parse_gemini(request: Any) -> None:
    types = pytest.importorskip("google.genai.types")
    for content in [*request["contents"], request.get("system_instruction") or {"parts": []}]:
        types.Content.model_validate(content)
