"""Random conversations under random policies: every window fits, and changes its beginning only at a cut."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import limpet
from limpet import Message, ToolCallRequest, ToolCallResult, WindowPolicy, errors
from limpet.core.values import messages
from limpet.core.values.context import CompactionLevel, Fate
from limpet.core.values.session_state import Cut

WORDS = ("alpha", "Oslo", "42", "must", "decide", "file_a.py", "前文", "because", "\n", "why?")


class Talker:
    """Says what comes next in a conversation, by chance: questions, calls, results in any order, answers."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._waiting: list[str] = []
        self._calls = 0

    def text(self, most: int) -> str:
        return " ".join(self.dice.choices(WORDS, k=self.dice.randint(1, most)))

    def next(self) -> Message:
        dice = self.dice
        if self._waiting:
            call = self._waiting.pop(dice.randrange(len(self._waiting)))
            size = dice.choice((3, 3, 40, 200))
            return Message("tool", tool_results=[ToolCallResult(call, self.text(size))])
        kind = dice.random()
        if kind < 0.45:
            calls = [
                ToolCallRequest(id=f"c{self._calls + n}", name="look", args={"at": self.text(3)})
                for n in range(dice.randint(1, 3))
            ]
            self._calls += len(calls)
            self._waiting = [call.id for call in calls]
            return Message("assistant", tool_calls=calls)
        if kind < 0.72:
            return Message("assistant", self.text(30))
        metadata = {"pinned": True} if dice.random() < 0.01 else {}
        if dice.random() < 0.005:
            return Message("system", self.text(10), limpet.MessageCategory.CONTEXT)
        return Message("user", self.text(30), metadata=metadata)

    def policy(self) -> WindowPolicy:
        dice = self.dice
        high = dice.choice((1.0, 0.9, 0.7))
        return WindowPolicy(
            budget=dice.choice((600, 1_000, 2_500)),
            reserve=dice.choice((0, 50, 200)),
            counter=dice.choice(("o200k_base", "estimate")),
            high=high,
            low=high * dice.choice((0.3, 0.6, 0.9)),
            stubs=dice.random() < 0.7,
            summary=dice.choice((None, "en", "zh")),
        )


@pytest.mark.req("A-10", "A-11", "A-12", "A-13")
@pytest.mark.parametrize("seed", range(12))
def test_windows_by_a_policy(seed: int):
    talker = Talker(seed)
    policy = talker.policy()
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session("s", system="Be brief.", policy=policy)
        before: limpet.Window | None = None
        cut: Cut | None = None
        made, cuts, overflows = 0, 0, list[errors.ContextOverflow]()
        for _ in range(400):
            session.add_messages([talker.next() for _ in range(talker.dice.choice((1, 1, 1, 4)))])
            cuts += cut != session.state.cut
            try:
                window = session.window()
            except errors.ContextOverflow as overflow:
                overflows.append(overflow)
                before, cut = None, session.state.cut
                continue
            check(session, window, policy)
            whole = window.level is CompactionLevel.NONE and not left_out_since(session, window)
            if whole and before is not None and cut == session.state.cut:
                assert window.messages[: len(before)] == before.messages, "only a cut may do that"
            before, cut = (window if whole else None), session.state.cut
            made += whole
        required = [overflow.facts["required"] for overflow in overflows]
        assert all(isinstance(size, int) and size > policy.budget for size in required)
        assert made > 200
        assert cuts > 3


def check(session: limpet.Session, window: limpet.Window, policy: WindowPolicy) -> None:
    assert window.tokens <= policy.budget
    assert window.ledger.messages() == session.message_count
    assert not [g for g in messages.group_messages(window.messages) if g.fault]
    assert window.messages[0].content == "Be brief."
    summaries = [m for m in window if m.id.startswith("summary_")]
    assert len(summaries) == (window.summary_at >= 0) <= 1
    under = window.ledger.messages(Fate.SUMMARISED)
    assert bool(under) <= bool(summaries)
    if window.exact and window.level is CompactionLevel.NONE and not left_out_since(session, window):
        live = sum(window.sizes)
        assert live == session.state.live, "the running total is the window"


def left_out_since(session: limpet.Session, window: limpet.Window) -> bool:
    """Whether something after the cut had to be left out: then the policy can't be met by a cut."""
    first = session.state.cut.first if session.state.cut else 1
    return any(e.fate is Fate.LEFT_OUT and e.last >= first for e in window.ledger) or any(
        e.fate is Fate.SHORTENED and e.last >= (session.state.cut.stubs if session.state.cut else 0)
        for e in window.ledger
    )


@pytest.mark.parametrize("seed", range(3))
def test_every_process_sees_the_same_window(tmp_path: Path, seed: int):
    talker = Talker(100 + seed)
    path = tmp_path / "state.db"
    with limpet.connect(path) as one, limpet.connect(path) as other:
        mine = one.sessions.create_session("s", system="Be brief.", policy=talker.policy())
        theirs = other.sessions.get_session("s")
        for _ in range(120):
            mine.reload().add_message(talker.next())
            theirs.reload().add_message(talker.next())
            mine.reload()
            assert mine.state == theirs.state
            try:
                assert mine.window() == theirs.window()
            except errors.ContextOverflow:
                continue
        assert mine.state.cut is not None
