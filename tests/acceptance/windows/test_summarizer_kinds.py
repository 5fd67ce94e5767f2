"""What may write a summary: the rest is refused by name, blocking or awaited, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import limpet
from limpet import InvalidRequest, Message, WindowPolicy

POLICY = WindowPolicy(budget=600)
TALK = [{"role": role, "content": f"{number} " * 30} for number in range(30) for role in ("user", "assistant")]


def nothing(messages: Sequence[Message], before: str | None) -> None:
    """Forget to return what the model said."""


async def nothing_awaited(messages: Sequence[Message], before: str | None) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("wrong", ["en", nothing], ids=["a text", "nothing"])
def test_what_is_no_summariser_is_refused(wrong: Any):
    with limpet.connect("volatile:", policy=POLICY) as lp:
        session = lp.sessions.create_session("s")
        for at in range(0, len(TALK), 2):
            session.add_messages(TALK[at : at + 2])
        before = session.state
        with pytest.raises(InvalidRequest, match="a summariser"):
            session.summarize(wrong)
        with pytest.raises(InvalidRequest, match="a summariser"):
            limpet.StateManager(600).summarize(TALK, wrong)
        assert session.reload().state == before


@pytest.mark.parametrize("wrong", ["en", nothing, nothing_awaited], ids=["a text", "nothing", "awaited"])
def test_what_is_no_summariser_is_refused_when_awaited(wrong: Any):
    async def run() -> None:
        async with limpet.connect_async("volatile:", policy=POLICY) as lp:
            session = await lp.sessions.create_session("s")
            for at in range(0, len(TALK), 2):
                await session.add_messages(TALK[at : at + 2])
            before = session.state
            with pytest.raises(InvalidRequest, match="a summariser"):
                await session.summarize(wrong)
            await session.reload()
            assert session.state == before

    asyncio.run(run())


def test_a_wrong_language_is_refused_before_a_model_is_asked():
    asked: list[int] = []

    def model(messages: Sequence[Message], before: str | None) -> str:
        asked.append(len(messages))
        return "They counted."

    with limpet.connect("volatile:", policy=POLICY) as lp:
        session = lp.sessions.create_session("s")
        for at in range(0, len(TALK), 2):
            session.add_messages(TALK[at : at + 2])
        with pytest.raises(InvalidRequest, match="language"):
            session.summarize(model, language="xx")
        assert asked == []
        session.summarize(model)
        assert len(asked) == 1
