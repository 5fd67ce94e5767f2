"""What a summary begins with can be chosen; whoever reads it knows it again."""

from __future__ import annotations

import msgspec
import pytest

import limpet
from limpet import Limpet, Message, StateManager, WindowPolicy, errors
from limpet.core.values.session_state import SUMMARY_PREFIXES

MINE = "What came before — "
TALK = [
    {"role": role, "content": f"Flight SK{number} for Ada Lovelace, please." * 3}
    for number in range(60)
    for role in ("user", "assistant")
]


@pytest.mark.req("A-13")
def test_a_policy_has_its_own_prefix(lp: Limpet):
    policy = WindowPolicy(budget=1_200, summary="ja", summary_prefix=MINE)
    session = lp.sessions.create_session("s", policy=policy)
    for at in range(0, len(TALK), 2):
        session.add_messages(TALK[at : at + 2])
    text = lp.sessions.get_session("s").state.summary
    assert text is not None and text.text.startswith(f"{MINE}(messages 1–")
    assert text.text.count(MINE) == 1, "earlier summaries went in without their first words"
    session.summarize(lambda messages, before: "They booked.")
    assert session.state.summary and session.state.summary.text == f"{MINE}They booked."
    session.summarize(lambda messages, before: f"{MINE}They booked.")
    assert session.state.summary.text == f"{MINE}They booked."
    assert session.window(300).messages[0].content != ""


@pytest.mark.req("A-13")
def test_a_changed_prefix_leaves_nothing_of_the_old_one(lp: Limpet):
    session = lp.sessions.create_session("s", policy=WindowPolicy(budget=1_200, summary="en", summary_prefix=MINE))  # fmt: skip
    session.add_messages(TALK)
    session.set_policy(WindowPolicy(budget=900, summary="zh"))
    session.add_messages(TALK)
    kept = session.state.summary
    assert kept is not None and kept.text.startswith(SUMMARY_PREFIXES["zh"]) and MINE not in kept.text


@pytest.mark.parametrize(("language", "prefix"), SUMMARY_PREFIXES.items())
def test_without_a_language_it_is_the_policys(lp: Limpet, language: str, prefix: str):
    session = lp.sessions.create_session("s", policy=WindowPolicy(budget=1_200, summary=language))
    session.add_messages(TALK)
    session.summarize(lambda messages, before: "Done.")
    assert session.state.summary and session.state.summary.text == f"{prefix}Done."


def test_lists_have_it_too():
    manager = StateManager(900, summary_prefix=MINE)
    once = manager.summarize(TALK)
    told = [m for m in once if str(m.content).startswith(MINE)]
    assert len(told) == 1 and told[0].role == "system"
    again = manager.summarize([*once, *TALK], lambda messages, before: f"After {len(before or '')}.")
    texts = [str(m.content) for m in again if m.role == "system"]
    assert texts == [f"{MINE}After {len(str(told[0].content))}."]


def test_old_policies_are_read_and_written_as_they_were():
    policy = WindowPolicy(budget=1_200, summary="en")
    assert msgspec.to_builtins(policy) == {"budget": 1_200, "summary": "en", "shares": {}}


@pytest.mark.parametrize("wrong", ["", "  ", 7, "x" * 201, "\ud800"])
def test_what_can_not_begin_a_summary_is_refused(wrong: str):
    with pytest.raises((errors.InvalidRequest, errors.BadEncoding)):
        WindowPolicy(budget=1_200, summary_prefix=wrong)
    with pytest.raises((errors.InvalidRequest, errors.BadEncoding)):
        StateManager(1_200, summary_prefix=wrong)


def test_it_is_stored_with_the_session(tmp_path: object):
    policy = WindowPolicy(budget=1_200, summary="en", summary_prefix=MINE)
    with limpet.connect(f"{tmp_path}/state.db") as lp:
        lp.sessions.create_session("s", policy=policy).add_message(Message("user", "Hello."))
    with limpet.connect(f"{tmp_path}/state.db") as lp:
        assert lp.sessions.get_session("s").policy == policy
