"""Windows of whole conversations, at many budgets, rendered to every provider and checked by its rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import limpet
from limpet import StateManager, errors
from limpet.testing import providers
from tests import corpus
from tests.corpus import ChatMessage

BUDGETS = [500 * 256 ** (step / 59) for step in range(60)]
"""Sixty, from 500 to 128,000."""


def conversations(data_dir: Path | None) -> list[list[ChatMessage]]:
    found = [*corpus.conversations(3, 8), *corpus.conversations(4, 8, parallel=True)]
    recorded = data_dir / "agent-conversations.jsonl.gz" if data_dir else None
    if recorded is not None and recorded.exists():
        found += corpus.read_recorded(recorded)
    return found


def checked(window: limpet.Window) -> None:
    assert providers.check_openai_chat(window.to_openai()) == []
    assert providers.check_openai_responses(window.to_openai_responses()) == []
    assert providers.check_anthropic(window.to_anthropic()) == []
    assert providers.check_gemini(window.to_gemini()) == []


@pytest.mark.slow
@pytest.mark.req("A-12")
@pytest.mark.parametrize("part", range(4))
def test_every_conversation_at_sixty_budgets(data_dir: Path | None, part: int):
    for said in conversations(data_dir)[part::4]:
        seen = 0
        for budget in BUDGETS:
            seen = _at(said, int(budget), seen)


def _at(said: Sequence[ChatMessage], budget: int, seen: int) -> int:
    """Check one window, and its renderings if it is another than the one before."""
    try:
        window = StateManager(budget, counter="estimate").window(said)
    except errors.ContextOverflow:
        # Whether that is right is proved in the property tests.
        return seen
    assert window.tokens <= budget
    assert window.ledger.messages() == len(said)
    if len(window) != seen:
        checked(window)
    return len(window)


def test_calls_that_wait_can_not_be_sent():
    window = StateManager(1_000, counter="estimate").window([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    ])  # fmt: skip
    for render in (window.to_openai, window.to_openai_responses, window.to_anthropic, window.to_gemini):
        with pytest.raises(errors.OpenCalls):
            render()
