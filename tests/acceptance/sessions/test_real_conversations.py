"""Whole agent conversations go in and come back equal: the generated corpus, and recorded ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import limpet
from limpet import Limpet
from tests import corpus
from tests.acceptance.conversation_steps import Opener, feed

Conversation = list[corpus.ChatMessage]
RECORDED = "agent-conversations.jsonl.gz"


def generated() -> list[Conversation]:
    return [*corpus.conversations(seed=11, count=25), *corpus.conversations(seed=12, count=25, parallel=True)]


@pytest.fixture(params=["generated", "recorded"])
def talks(request: pytest.FixtureRequest, data_dir: Path | None) -> list[Conversation]:
    if request.param == "generated":
        return generated()
    if data_dir is None or not (data_dir / RECORDED).exists():
        pytest.skip("there are no recorded conversations here")
    found = list(corpus.read_recorded(data_dir / RECORDED))
    assert len(found) == 100
    return found


def raws(session: limpet.Session) -> Conversation:
    return [message.raw() for message in session.messages]


def one_by_one(lp: Limpet, id_: str, talk: Conversation) -> None:
    session = lp.sessions.create_session(id_)
    for message in talk:
        session.add_message(message)


def at_once(lp: Limpet, id_: str, talk: Conversation) -> None:
    lp.sessions.create_session(id_).add_messages(talk)


def call_ids(talk: Conversation) -> Iterator[str]:
    for message in talk:
        for call in message.get("tool_calls") or ():  # pyright: ignore[reportGeneralTypeIssues] - a chat dict
            yield call["id"]


@pytest.mark.req("A-1", "A-6", "A-8", "A-9")
@pytest.mark.parametrize("way", [one_by_one, at_once])
def test_each_conversation_comes_back_equal_also_after_reopening(
    backend: str, opener: Opener, talks: list[Conversation],
    way: Callable[[Limpet, str, Conversation], None],
):  # fmt: skip
    lp = opener()
    for number, talk in enumerate(talks):
        way(lp, f"talk-{number}", talk)
    if backend == "sqlite":
        lp.close()
        lp = opener()
    for number, talk in enumerate(talks):
        session = lp.sessions.get_session(f"talk-{number}")
        assert raws(session) == talk
        assert session.pending_calls() == []
    assert lp.admin.verify().ok


@pytest.mark.req("A-1", "A-6")
@pytest.mark.parametrize("size", [5000, 40])
def test_laid_end_to_end_they_are_one_conversation(backend: str, opener: Opener, talks: list[Conversation], size: int):
    lp = opener(max_messages_per_session=size)
    session = lp.sessions.create_session("all")
    for talk in talks:
        session.add_messages(talk)
    if backend == "sqlite":
        lp.close()
        lp = opener(max_messages_per_session=size)
    chain = lp.sessions.session_chain("all")
    found = [m.raw() for part in chain for m in part.messages if m.origin is None]
    assert found == [message for talk in talks for message in talk]
    assert len(chain) == 1 if size == 5000 else len(chain) > 3
    feed(lp)


@pytest.mark.req("A-6")
def test_call_ids_repeat_in_what_is_tested_here(talks: list[Conversation]):
    """Otherwise the tests above would not show that they may."""
    repeating = [talk for talk in talks if len(set(call_ids(talk))) < len(list(call_ids(talk)))]
    assert len(repeating) >= 5
