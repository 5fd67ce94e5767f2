"""A window policy at its edges: numbers out of all proportion, summaries that are none or too long, races."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import limpet
from limpet import Message, MessageCategory, WindowPolicy, errors
from tests.acceptance.conversation_steps import Opener, answer, feed, user

POLICY = WindowPolicy(budget=1_000)


def talk(session: limpet.Session, turns: int) -> None:
    for number in range(turns):
        session.add_message(user(f"Question {number}: what was decided on day {number}? " * 3))
        session.add_message(answer(f"On day {number} we decided on plan {number}."))


def kinds(lp: limpet.Limpet) -> list[str]:
    return [recorded.kind for recorded in feed(lp)]


def nothing(*_: object) -> Any:
    return None


def test_a_summariser_that_says_nothing_has_failed(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", policy=POLICY)
        talk(session, 40)
        with pytest.raises(errors.InvalidRequest, match="returns the text"):
            session.summarize(nothing)
        assert lp.sessions.get_session("s").state.summary is None
        manager = limpet.StateManager(100)
        with pytest.raises(errors.InvalidRequest, match="returns the text"):
            manager.summarize(list(session.messages), nothing)


@pytest.mark.parametrize("wrong", [None, 5])
def test_a_summariser_that_says_nothing_has_failed_for_async_callers(wrong: object):
    def plain(*_: object) -> Any:
        return wrong

    async def awaited(*_: object) -> Any:
        return wrong

    async def run() -> None:
        async with limpet.connect_async("volatile:", policy=POLICY) as lp:
            session = await lp.sessions.create_session("s")
            said = [m for n in range(40) for m in (user(f"Question {n}? " * 9), answer("Yes."))]
            await session.add_messages(said)
            for summarizer in (plain, awaited):
                with pytest.raises(errors.InvalidRequest, match="returns the text"):
                    await session.summarize(summarizer)
            assert session.state.summary is None

    asyncio.run(run())


def test_numbers_that_no_float_holds_are_refused_before_anything_is_written(opener: Opener):
    with pytest.raises(errors.InvalidRequest, match="budget"):
        WindowPolicy(budget=10**400)
    with opener() as lp:
        policy = WindowPolicy(budget=2**53, model="claude-sonnet-4-5")
        session = lp.sessions.create_session("s", policy=policy)
        session.add_message(user("Where?"))
        with pytest.raises(errors.InvalidRequest, match="usage"):
            session.add_message(answer("Kiel."), window=session.window(), usage=10**400)
        assert session.reload().message_count == 1


def test_a_cut_that_was_taken_back_meanwhile_is_a_conflict(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", policy=POLICY)
        talk(session, 40)
        late = lp.sessions.get_session("s")

        def overtaken(messages: Sequence[Message], before: str | None) -> str:
            lp.sessions.get_session("s").set_policy(WindowPolicy(budget=100_000))
            return "second"

        with pytest.raises(errors.Conflict):
            late.summarize(overtaken)


def test_a_summary_names_each_message_once_after_a_larger_window(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", policy=WindowPolicy(budget=300, summary="en"))
        for number in range(18):
            session.add_message(user(f"question {number} decided 7."))
            session.add_message(answer(f"answer {number}"))
        first = session.state.summary
        assert first is not None
        session.set_policy(WindowPolicy(budget=430, summary="en"))
        summary = session.state.summary
        assert summary is not None and summary.last >= first.last
        assert f"(messages 1–{summary.last})" in summary.text


@pytest.mark.parametrize("budget", [500, 900])
def test_a_summary_for_larger_windows_does_not_drive_out_the_conversation(opener: Opener, budget: int):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=WindowPolicy(budget=2_000))  # fmt: skip
        talk(session, 60)
        session.summarize(lambda messages, before: "They decided on it. " * 150)
        window = session.window(budget)
        assert window.tokens <= budget
        assert window.summary_at == 1
        assert len(window) > 6, "the newest of what was said is there too"
        assert window.ledger.messages() == session.message_count


def test_a_lower_policy_keeps_the_conversation_beside_a_long_summary(opener: Opener):
    with opener() as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=WindowPolicy(budget=2_000))  # fmt: skip
        talk(session, 60)
        session.summarize(lambda messages, before: "They decided on it. " * 150)
        session.set_policy(WindowPolicy(budget=700))
        talk(session, 8)
        window = session.window()
        assert window.tokens <= 700
        assert window.summary_at == 1
        assert len(window) > 4, "more than the current turn"


def test_what_no_cut_can_take_out_is_not_looked_at_with_each_append(opener: Opener):
    with opener() as lp:
        policy = WindowPolicy(budget=1_000)
        session = lp.sessions.create_session("s", policy=policy)
        facts = [Message("system", f"fact {n}", MessageCategory.CONTEXT) for n in range(300)]
        session.add_messages(facts)
        talk(session, 30)
        cuts = kinds(lp).count("session.window_cut")
        assert 0 < cuts <= 10, "a cut follows as much as it frees, not each append"
        assert session.window().tokens <= 1_000


def test_corrections_go_along_into_the_next_session(opener: Opener):
    with opener(max_messages_per_session=10) as lp:
        policy = WindowPolicy(budget=4_000, model="claude-sonnet-4-5")
        session = lp.sessions.create_session("s", policy=policy)
        session.add_message(user("Where does the ferry leave?"))
        window = session.window()
        session.add_message(answer("In Kiel."), window=window, usage=3 * window.tokens)
        known = session.state.corrections
        talk(session, 8)
        assert session.id != "s"
        assert session.state.corrections == known
        assert session.window().counter.endswith(f"*{known[0].factor:.3f}")
        assert lp.sessions.get_session(session.id).state == session.state


def test_what_is_pinned_stays_in_sight_in_the_next_sessions(opener: Opener):
    with opener(max_messages_per_session=10) as lp:
        session = lp.sessions.create_session("s")
        session.add_message(Message("user", "I am allergic to nuts.", metadata={"pinned": True}))
        talk(session, 20)
        chain = lp.sessions.session_chain("s")
        assert len(chain) > 2
        for each in chain:
            said = [str(message.content) for message in each.window(4_000)]
            assert said.count("I am allergic to nuts.") == 1
            assert sum(text.startswith("Continuing from") for text in said) <= 1
