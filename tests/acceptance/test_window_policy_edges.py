"""A window policy at its edges: numbers out of all proportion, summaries that are none or too long, races."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast
from holdfast import Message, WindowPolicy, errors
from tests.acceptance.scenes import Opener, answer, user

POLICY = WindowPolicy(budget=1_000)


def talk(session: holdfast.Session, turns: int) -> None:
    for number in range(turns):
        session.add_message(user(f"Question {number}: what was decided on day {number}? " * 3))
        session.add_message(answer(f"On day {number} we decided on plan {number}."))


def nothing(*_: object) -> Any:
    return None


def test_a_summariser_that_says_nothing_has_failed(opener: Opener):
    with opener() as hf:
        session = hf.sessions.create_session("s", policy=POLICY)
        talk(session, 40)
        with pytest.raises(errors.InvalidRequest, match="returns the text"):
            session.summarize(nothing)
        assert hf.sessions.get_session("s").state.summary is None
        manager = holdfast.StateManager(100)
        with pytest.raises(errors.InvalidRequest, match="returns the text"):
            manager.summarize(list(session.messages), nothing)


@pytest.mark.parametrize("wrong", [None, 5])
def test_a_summariser_that_says_nothing_has_failed_for_async_callers(wrong: object):
    def plain(*_: object) -> Any:
        return wrong

    async def awaited(*_: object) -> Any:
        return wrong

    async def run() -> None:
        async with holdfast.connect_async("volatile:", policy=POLICY) as hf:
            session = await hf.sessions.create_session("s")
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
    with opener() as hf:
        policy = WindowPolicy(budget=2**53, model="claude-sonnet-4-5")
        session = hf.sessions.create_session("s", policy=policy)
        session.add_message(user("Where?"))
        with pytest.raises(errors.InvalidRequest, match="usage"):
            session.add_message(answer("Kiel."), window=session.window(), usage=10**400)
        assert session.reload().message_count == 1


def test_a_cut_that_was_taken_back_meanwhile_is_a_conflict(opener: Opener):
    with opener() as hf:
        session = hf.sessions.create_session("s", policy=POLICY)
        talk(session, 40)
        late = hf.sessions.get_session("s")

        def overtaken(messages: Sequence[Message], before: str | None) -> str:
            hf.sessions.get_session("s").set_policy(WindowPolicy(budget=100_000))
            return "second"

        with pytest.raises(errors.Conflict):
            late.summarize(overtaken)
