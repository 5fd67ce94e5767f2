"""Careless use of the state index: refused at the door with a typed error, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import FrameStatus, Message, Scope, StateIndex, TokenBudget, ToolCallRequest, errors
from limpet.frames import Decision, ToolStatus

SCOPE = Scope("planner")


@pytest.fixture
def lp(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as opened:
        opened.index.push_frame(SCOPE, goal="plan", budget=8_000, frame_id="f")
        yield opened


JUNK: list[Callable[[StateIndex], Any]] = [
    lambda i: i.push_frame(SCOPE, goal="g", budget=5, parent_frame_id="f", parent_waits=1),  # pyright: ignore[reportArgumentType]
    lambda i: i.push_frame(SCOPE, goal="g", budget=5, frame_id="v1.5"),
    lambda i: i.push_frame(SCOPE, goal="g", budget=TokenBudget(total=5, timeout_ms=2**53)),
    lambda i: i.pop_frame("f", cascade="yes"),  # pyright: ignore[reportArgumentType]
    lambda i: i.begin_tool("f", "look", intent=1),  # pyright: ignore[reportArgumentType]
    lambda i: i.end_tool("f", "x", is_error=0),  # pyright: ignore[reportArgumentType]
    lambda i: i.suspend_frame("f", reason="r", expires_in_s=5e12),
    lambda i: i.suspend_frame("f", reason="r", expires_in_s=True),
    lambda i: i.update_frame("f", handled=None),  # pyright: ignore[reportArgumentType]
    lambda i: i.update_frame("f", handled="c"),
    lambda i: i.list_suspensions("planner"),  # pyright: ignore[reportArgumentType]
    lambda i: i.list_suspensions(limit=10**30),
    lambda i: i.resume_actor(None),  # pyright: ignore[reportArgumentType]
    lambda i: i.find_top_of_stack(None),  # pyright: ignore[reportArgumentType]
    lambda i: i.leaves("planner"),  # pyright: ignore[reportArgumentType]
    lambda i: i.assemble_context_pack(None),  # pyright: ignore[reportArgumentType]
    lambda i: i.assemble_context_pack(SCOPE, invariants="Be nice"),
    lambda i: i.assemble_context_pack(SCOPE, available_tools=None),  # pyright: ignore[reportArgumentType]
    lambda i: i.assemble_context_pack(Scope("other"), frame_id="f"),
    lambda i: i.pack_of("f", version="3"),  # pyright: ignore[reportArgumentType]
    lambda i: i.resolve_tool("f", "x", "retry", output="done"),
]


@pytest.mark.parametrize("careless", JUNK)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(lp: limpet.Limpet, careless: Callable[[StateIndex], Any]):
    before = [fact.position for fact in lp.events.feed()]
    with pytest.raises(errors.InvalidRequest):
        careless(lp.index)
    assert [fact.position for fact in lp.events.feed()] == before
    assert lp.index.get_frame("f").status is FrameStatus.ACTIVE


def test_a_decision_may_be_named_by_what_it_leads_to(lp: limpet.Limpet):
    token = lp.index.suspend_frame("f", reason="approval")
    with pytest.raises(errors.InvalidRequest):
        lp.index.decide_suspension(token.suspension_id, [], by="ola")  # pyright: ignore[reportArgumentType]
    frame = lp.index.decide_suspension(token.suspension_id, Decision.APPROVED, by="ola")
    assert frame.resumption is not None and frame.resumption.decision is Decision.APPROVED


@pytest.fixture
def asked(lp: limpet.Limpet) -> str:
    """A session with an open call, and a frame about it."""
    session = lp.sessions.create_session("trip")
    session.add_message(Message("user", "Book."))
    said = Message("assistant", tool_calls=[ToolCallRequest("c1", "book", {})])
    session.add_message(said)
    budget = TokenBudget(total=1_000, timeout_ms=100)
    lp.index.push_frame(Scope("planner", "trip"), goal="book", budget=budget, frame_id="w")
    return said.id


def test_a_call_that_the_conversation_does_not_wait_for_can_not_begin(lp: limpet.Limpet, asked: str):
    with pytest.raises(errors.CallNotFound) as caught:
        lp.index.begin_tool("w", "book", call_id="typo", message_id=asked)
    assert caught.value.facts["open"] == ["c1"]
    with pytest.raises(errors.CallNotFound):
        lp.index.begin_tool("w", "book", call_id="c1", message_id="another")
    assert not lp.index.get_frame("w").tools


@pytest.mark.parametrize("how", ["abandon", "cancel"])
def test_the_model_is_told_that_a_call_that_was_only_meant_was_not_run(lp: limpet.Limpet, asked: str, how: str):
    tool = lp.index.begin_tool("w", "book", call_id="c1", message_id=asked, intent=True)
    if how == "abandon":
        lp.index.resolve_tool("w", tool.tool_id, "abandon")
    else:
        lp.index.pop_frame("w", FrameStatus.CANCELLED)
    (result,) = lp.sessions.get_session("trip").messages[-1].tool_results
    assert "was not run" in result.result and result.is_error


def test_a_frame_whose_time_is_up_starts_nothing_that_it_only_meant(lp: limpet.Limpet, asked: str):
    assert asked
    tool = lp.index.begin_tool("w", "pay", intent=True)
    late = lp.index.get_frame("w").created_us + 200_000
    engine = lp.index._engine
    engine.factory = limpet_factory(late, engine.factory.random)
    with pytest.raises(errors.TimeLimitExceeded):
        lp.index.begin_tool("w", "pay", tool_id=tool.tool_id)
    assert lp.index.get_frame("w").tools[0].status is ToolStatus.INTENT


def limpet_factory(now_us: int, random: Callable[[int], bytes]):
    from limpet.core.values import ids

    return ids.Factory(now_us=lambda: now_us, random=random)
