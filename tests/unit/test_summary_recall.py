"""How much of its messages a summary still has: names, numbers, identifiers, in three scripts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import Message
from limpet.core.windows import summary as windows_summary


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Book SK4718 for Ada Lovelace.", {"sk4718", "ada lovelace"}),
        ("It costs 1,299.50 and leaves at 09:40.", {"1,299.50", "09:40"}),
        ("The order is REF-0042, of 2026-11-16.", {"ref-0042", "2026-11-16"}),
        ("Look into src/limpet/errors.py and maxTokens.", {"src/limpet/errors.py", "maxtokens"}),
        ("Nothing to keep here, really.", set[str]()),
        ("宿は「山の上ホテル」で、エレベーターの近く。", {"山の上ホテル", "エレベーター"}),
        ("请预订《北京饭店》，房间 1208。", {"北京饭店", "1208"}),
    ],
)  # fmt: skip
def test_marks_are_what_is_hard_to_guess_again(text: str, found: set[str]):
    assert windows_summary.key_terms(text) == found


def said(*texts: str, role: str = "user") -> list[Message]:
    return [Message(role=role, content=text) for text in texts]


@pytest.mark.req("A-13")
def test_a_summary_is_scored_by_what_it_still_has():
    messages = said("Put SK4718 on hold for Ada.", "No, take LH900 and pay 214 for Ada.")
    whole, nothing = windows_summary.recall_score(messages, "Ada takes LH900 for 214, not SK4718.")
    assert (whole, nothing) == (1.0, [])
    part, missing = windows_summary.recall_score(messages, "Ada takes LH900.")
    assert 0 < part < 1 and set(missing) == {"sk4718", "214"}
    assert windows_summary.recall_score(messages, "They talked about flights.")[0] == 0.0
    assert windows_summary.recall_score(said("hello there"), "anything") == (1.0, [])


def test_a_number_in_a_longer_one_is_not_it():
    assert windows_summary.recall_score(said("pay 214 now"), "It was 2140.")[0] == 0.0
    assert windows_summary.recall_score(said("pay 214 now"), "It was 214.")[0] == 1.0


def test_what_users_say_weighs_more_than_what_tools_print():
    both = [*said("My number is 4711."), *said("rows: 8822 and 9933", role="assistant")]
    assert windows_summary.recall_score(both, "4711")[0] == windows_summary.recall_score(both, "8822 9933")[0] == 0.5


def test_the_summary_before_counts_too():
    assert windows_summary.recall_score(said("and 12 more"), "12 more", before="order REF-1 stands")[0] < 1.0
    assert windows_summary.recall_score(said("and 12 more"), "12 more on REF-1", before="order REF-1 stands")[0] == 1


@given(st.lists(st.text(max_size=80), max_size=8), st.text(max_size=200))
def test_a_score_is_a_part_and_always_the_same(texts: list[str], summary: str):
    messages = said(*(text or "x" for text in map(_sound, texts)))
    score, missing = windows_summary.recall_score(messages, _sound(summary))
    assert 0 <= score <= 1 and (score < 1 or not missing)
    assert windows_summary.recall_score(messages, _sound(summary)) == (score, missing)
    everything = "\n".join(str(message.content) for message in messages)
    assert windows_summary.recall_score(messages, everything)[0] >= score or not messages


def _sound(text: str) -> str:
    return text.encode("utf-8", "ignore").decode()
