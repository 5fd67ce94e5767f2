"""Counters of a caller's own: what passes for one, and that no two of them share what they counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from limpet import Message, errors, tokens
from tests.acceptance.conversation_steps import Opener, answer, user


class PerMessage:
    """Counts every message as so many tokens."""

    exact = True
    margin = 0.0
    reply = 1

    def __init__(self, each: int, name: str = "mine") -> None:
        self.each = each
        self.name = name

    def text(self, text: str) -> int:
        return self.each if text else 0

    def message(self, message: Message) -> int:
        assert message.role
        return self.each

    def tools(self, definitions: Iterable[Mapping[str, Any]]) -> int:
        return self.each * len(list(definitions))


WHOLE = {"name": "n", "exact": True, "margin": 0.0, "reply": 3, "text": len, "message": len, "tools": len}  # fmt: skip


@pytest.mark.parametrize(
    "counter",
    [
        Message("user", "I count nothing."),
        SimpleNamespace(message=len),
        *(SimpleNamespace(**{**WHOLE, field: None}) for field in WHOLE),
        PerMessage,
    ],
)
def test_what_is_no_counter_is_refused(opener: Opener, counter: Any):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        with pytest.raises(errors.InvalidRequest, match="counter is a name"):
            session.window(100, counter=counter)


def test_a_counter_of_ones_own_counts(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_messages([user("hello"), answer("hi")])
        window = session.window(100, counter=PerMessage(10))
        assert (window.tokens, window.counter) == (31, "mine")


@pytest.mark.parametrize("name", ["mine", "o200k_base"])
def test_two_counters_of_one_name_do_not_share_their_counts(opener: Opener, name: str):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_messages([user("hello"), answer("hi")])
        real = session.window(1_000, counter="o200k_base").tokens
        for each in (10, 20, 10):
            assert session.window(1_000, counter=PerMessage(each, name)).tokens == 3 * each + 1
        assert session.window(1_000, counter="o200k_base").tokens == real


def test_a_corrected_counter_is_known_by_its_name(opener: Opener):
    calibration = tokens.Calibration("claude-estimate-1").observe(1_000, 1_200)
    corrected = calibration.apply(tokens.named("claude-estimate-1"))
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.")
        session.add_messages([user("hello there"), answer("hi")])
        window = session.window(1_000, counter=corrected)
        assert window.tokens == session.window(1_000, counter=corrected.name).tokens
