"""Two hundred thousand windows of random conversations: each fits, is whole, and accounts for all."""

from __future__ import annotations

import pytest

from limpet.core.values.context import CompactionLevel
from tests.property.window_checks import Talk, check, pieces

PARTS = 8
CONVERSATIONS = 1_250
BUDGETS = 20


@pytest.mark.slow
@pytest.mark.req("A-10")
@pytest.mark.req("A-12")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_window_of_every_conversation_is_right(part: int):
    fitted = 0
    for number in range(CONVERSATIONS):
        talk = Talk(part * CONVERSATIONS + number)
        messages = talk.messages(talk.dice.choice((1, 2, 5, 12, 30)))
        given = pieces(messages)
        copies = [message.to_dict() for message in messages] if number % 50 == 0 else []
        for _ in range(BUDGETS):
            budget = talk.dice.choice((8, 40, 150, 400, 1_000, 4_000)) + talk.dice.randrange(60)
            least = talk.dice.choice(list(CompactionLevel))
            fitted += check(given, budget, least) is not None
        if copies:
            assert [message.to_dict() for message in messages] == copies, "the input is untouched"
            again = [check(given, 300, CompactionLevel.NONE) for _ in range(2)]
            assert again[0] == again[1], "the same every time"
    assert fitted > CONVERSATIONS * BUDGETS // 2


@pytest.mark.slow
def test_the_checks_have_something_to_check():
    """Of the random conversations enough are broken, shortened, summarised and overflowing."""
    seen: set[str] = set()
    for seed in range(300):
        talk = Talk(seed)
        given = pieces(talk.messages(30))
        for budget in (60, 300, 900):
            for least in CompactionLevel:
                window = check(given, budget, least)
                seen |= {"overflow"} if window is None else {str(e.fate) for e in window.ledger}
                seen |= {e.rule for e in window.ledger} if window else set()
    assert seen >= {"overflow", "kept", "shortened", "summarised", "left out"}
    assert seen >= {"pinned", "current question", "initial system prompt", "context"}
    assert seen >= {"a result whose call is not before it", "a call without all of its results"}
    assert pieces(Talk(1).messages(3))[0].number == 1
