"""Whose call a result answers, whose frames are orphans, what a compaction may take. C-9, C-10, C-25, C-26."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import (
    CompactionLevel,
    CompactionStrategy,
    ContextHandle,
    ContextPack,
    ContextPriority,
    FrameStatus,
    Message,
    Scope,
    ToolCallRequest,
    errors,
)
from limpet.core.values import ids
from limpet.frames import HandleType

SCOPE = Scope("planner", "trip")


@pytest.fixture(params=["volatile:", "file"])
def lp(request: pytest.FixtureRequest, tmp_path: Path):
    url = tmp_path / "state.db" if request.param == "file" else request.param
    with limpet.connect(url) as opened:
        yield opened


def ask(session: limpet.Session, name: str) -> Message:
    """A question and a call whose id the provider uses every time."""
    said = Message("assistant", tool_calls=[ToolCallRequest("call_0", name, {})])
    session.add_messages([Message("user", f"{name}?"), said])
    return said


@pytest.mark.req("C-25")
@pytest.mark.parametrize("between", ["closed", "rewound", "reset", "deleted"])
@pytest.mark.parametrize("ending", ["result", "failed"])
def test_a_result_answers_its_own_call_though_providers_reuse_ids(lp: limpet.Limpet, between: str, ending: str):
    session = lp.sessions.create_session("trip", user_id="alice")
    said = ask(session, "pay")
    frame = lp.index.push_frame(SCOPE, goal="pay", budget=1_000)
    tool = lp.index.begin_tool(frame.frame_id, "pay", call_id="call_0", message_id=said.id)
    match between:
        case "closed":
            lp.sessions.close_pending_calls("trip")
        case "rewound":
            lp.sessions.rewind_session("trip", 1)
        case "reset":
            lp.sessions.reset_session("trip")
        case _:
            lp.sessions.delete_session("trip")
            lp.sessions.create_session("trip", user_id="bob")
    session = lp.sessions.get_session("trip")
    ask(session, "weather")
    if ending == "result":
        lp.index.end_tool(frame.frame_id, tool.tool_id, "alice's balance")
    else:
        lp.index.pop_frame(frame.frame_id, FrameStatus.FAILED)
    assert [call.name for call in lp.sessions.pending_calls("trip")] == ["weather"]


def test_a_result_follows_its_call_into_a_continuation(lp: limpet.Limpet):
    session = lp.sessions.create_session("trip")
    said = ask(session, "pay")
    frame = lp.index.push_frame(SCOPE, goal="pay", budget=1_000)
    tool = lp.index.begin_tool(frame.frame_id, "pay", call_id="call_0", message_id=said.id)
    later = lp.sessions.create_continuation_session(session)
    lp.index.end_tool(frame.frame_id, tool.tool_id, "paid")
    assert lp.sessions.get_session(later.id).messages[-1].tool_results[0].result == "paid"


@pytest.mark.req("C-24")
@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize("how", ["ended", "deleted", "open"])
def test_frames_whose_conversation_is_over_are_orphans(lp: limpet.Limpet, how: str, *, continued: bool):
    session = lp.sessions.create_session("trip")
    session.add_message(Message("user", "Go."))
    frame = lp.index.push_frame(SCOPE, goal="go", budget=1_000)
    last = lp.sessions.create_continuation_session(session) if continued else session
    if how == "ended":
        lp.sessions.end_session(last.id)
    elif how == "deleted":
        lp.sessions.delete_session("trip")
    assert lp.index.expire() == ([] if how == "open" else [frame.frame_id])
    found = lp.index.get_frame(frame.frame_id)
    assert (found.status, "session" in found.reason) == (
        (FrameStatus.ACTIVE, False) if how == "open" else (FrameStatus.FAILED, True)
    )


def page(number: int, priority: ContextPriority = ContextPriority.LOW) -> ContextHandle:
    return ContextHandle(handle_id=f"h{number}", handle_type=HandleType.DOCUMENT, content="x", priority=priority)


@pytest.mark.req("C-26")
def test_what_became_critical_while_a_compaction_was_planned_stays(lp: limpet.Limpet):
    frame = lp.index.push_frame(Scope("planner"), goal="read", budget=8_000)
    for number in range(3):
        lp.index.add_context_handle(frame.frame_id, page(number))
    tries: list[int] = []

    def without_the_first(pack: ContextPack) -> ContextPack:
        if not tries:
            lp.index.remove_handle(frame.frame_id, "h0")
            lp.index.add_context_handle(frame.frame_id, page(0, ContextPriority.CRITICAL))
        tries.append(1)
        left = tuple(s for s in pack.segments if s.handle_id not in ("h0", "h1")[len(tries) - 1 :])
        return limpet_replaced(pack, left)

    lp.index.compact_context(frame.frame_id, 1, CompactionStrategy.custom(without_the_first))
    kept = [handle.handle_id for handle in lp.index.get_frame(frame.frame_id).context_handles]
    assert "h0" in kept and "h1" not in kept and len(tries) == 2


def limpet_replaced(pack: ContextPack, segments: tuple[limpet.frames.ContextSegment, ...]) -> ContextPack:
    import msgspec

    return msgspec.structs.replace(pack, segments=segments)


@pytest.mark.req("C-9", "C-10")
def test_priorities_have_their_scores_and_all_are_written_in_snake_case():
    scores = {priority.label: priority.score() for priority in ContextPriority}
    assert scores == {"critical": 100, "high": 75, "medium": 50, "low": 25, "background": 10}
    levels = [level.label for level in CompactionLevel]
    assert levels == ["none", "light", "moderate", "aggressive", "critical"]


def test_a_root_leaves_room_for_the_ids_of_its_children(lp: limpet.Limpet):
    with pytest.raises(errors.InvalidRequest):
        lp.index.push_frame(Scope("planner"), goal="g", budget=10, frame_id="a" * 201)
    root = lp.index.push_frame(Scope("planner"), goal="g", budget=10, frame_id="a" * 200)
    child = lp.index.push_frame(Scope("planner"), goal="g", budget=5, parent_frame_id=root.frame_id)
    assert lp.index.pop_frame(child.frame_id).status is FrameStatus.COMPLETED


def test_a_clock_that_was_ahead_does_not_make_new_tokens_expire(lp: limpet.Limpet):
    engine = lp.index._engine
    now, random = engine.now_us(), engine.factory.random
    frame = lp.index.push_frame(Scope("planner"), goal="g", budget=10)
    engine.factory = ids.Factory(now_us=lambda: now + 10 * 86_400_000_000, random=random)
    lp.index.record_usage(frame.frame_id, 1)
    engine.factory = ids.Factory(now_us=lambda: now, random=random)
    token = lp.index.suspend_frame(frame.frame_id, reason="ask", expires_in_s=3_600)
    assert lp.index.resume_frame(token).status is FrameStatus.ACTIVE


def test_an_output_without_a_conversation_has_the_bound_of_a_message(lp: limpet.Limpet):
    frame = lp.index.push_frame(Scope("planner"), goal="g", budget=10)
    tool = lp.index.begin_tool(frame.frame_id, "dump")
    with pytest.raises(errors.TooLarge):
        lp.index.end_tool(frame.frame_id, tool.tool_id, "x" * 9_000_000)
    assert lp.index.get_frame(frame.frame_id).tools
    lp.index.record_usage(frame.frame_id, 2**53)
    assert lp.index.record_usage(frame.frame_id, 5).budget.used == 2**53


def test_a_clock_that_stood_goes_on_when_the_suspended_child_is_closed(lp: limpet.Limpet):
    root = lp.index.push_frame(Scope("planner"), goal="g", budget=100)
    child = lp.index.push_frame(Scope("planner"), goal="c", budget=5, parent_frame_id=root.frame_id)
    lp.index.suspend_frame(child.frame_id, reason="ask")
    assert lp.index.get_frame(root.frame_id).stood_us is not None
    lp.index.pop_frame(child.frame_id, FrameStatus.CANCELLED, cascade=True)
    after = lp.index.get_frame(root.frame_id)
    assert after.stood_us is None
    assert after.deadline_us is not None and root.deadline_us is not None
    assert after.deadline_us > root.deadline_us
