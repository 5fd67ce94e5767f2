"""Frames from the outside: pushed, paid for, found again after reopening, and kept apart by tenant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import ContextHandle, FrameStatus, Limpet, Scope, StateIndex, TokenBudget, errors
from limpet.frames import HandleType, ResultRef
from limpet.sessions.requests import Settings
from tests.acceptance.conversation_steps import Opener, asking, engine_of, user
from tests.acceptance.stores.test_many_processes import start

SCOPE = Scope("planner")
S = FrameStatus


def kinds(lp: Limpet) -> list[str]:
    return [fact.event.kind for fact in lp.events.feed()]


def handle(id_: str = "h", content: str | None = "text") -> ContextHandle:
    return ContextHandle(handle_id=id_, handle_type=HandleType.DOCUMENT, content=content)


@pytest.mark.req("C-7", "C-8", "C-16")
def test_the_worked_example(lp: Limpet):
    root = lp.index.push_frame(SCOPE, goal="plan the trip", budget=8_000)
    lp.index.reserve(root.frame_id, 500, purpose="brief")
    lp.index.reserve(root.frame_id, 200, purpose="breadcrumbs")
    child = lp.index.push_frame(Scope("helper"), goal="compare", budget=3_000, parent_frame_id=root.frame_id)
    assert lp.index.record_usage(root.frame_id, 2_000).budget.available() == 2_300
    lp.index.record_usage(child.frame_id, 2_500)
    lp.index.pop_frame(child.frame_id, result_summary="found three")
    after = lp.index.get_frame(root.frame_id)
    assert after.budget.available() == 2_800 and after.status is S.ACTIVE


@pytest.mark.req("C-22")
def test_a_new_frame_is_as_the_document_says(lp: Limpet):
    frame = lp.index.push_frame(SCOPE, goal="plan", budget=TokenBudget(total=9), inputs={"to": "Oslo"})
    assert (frame.status, frame.depth, frame.parent_frame_id) == (S.ACTIVE, 0, None)
    assert (frame.context_handles, frame.result_refs) == ((), ())
    assert (frame.completed_at, frame.context_hash) == (None, None)
    assert frame.created_at.endswith("+00:00")
    child = lp.index.push_frame(SCOPE, goal="part", budget=4, parent_frame_id=frame.frame_id)
    assert (child.depth, child.root_id) == (1, frame.frame_id)
    assert [one.goal for one in lp.index.get_frame_ancestry(child.frame_id)] == ["plan", "part"]
    assert kinds(lp) == ["frame.pushed"] * 2


@pytest.mark.req("C-22")
def test_a_parent_must_be_there_and_open(lp: Limpet):
    with pytest.raises(errors.ParentFrameNotFound) as caught:
        lp.index.push_frame(SCOPE, goal="g", budget=1, parent_frame_id="nobody's")
    assert caught.value.facts == {"frame": "nobody's"}
    root = lp.index.push_frame(SCOPE, goal="g", budget=9)
    lp.index.pop_frame(root.frame_id)
    with pytest.raises(errors.InvalidTransition, match="completed"):
        lp.index.push_frame(SCOPE, goal="g", budget=1, parent_frame_id=root.frame_id)
    assert kinds(lp) == ["frame.pushed", "frame.popped"]


@pytest.mark.req("C-22", "C-28")
def test_the_same_push_again_is_the_same_frame(lp: Limpet):
    def push(id_: str, budget: int = 5, **more: Any) -> str:
        return lp.index.push_frame(SCOPE, goal="g", budget=budget, frame_id=id_, **more).frame_id

    assert push("mine") == push("mine") == "mine"
    lp.index.pop_frame("mine")
    assert lp.index.push_frame(SCOPE, goal="g", budget=5, frame_id="mine").status is S.COMPLETED
    with pytest.raises(errors.DuplicateFrame):
        push("mine", 6)
    assert push("root") == "root" and push("below", 1, parent_frame_id="root") == "below"
    assert push("below", 1, parent_frame_id="root") == "below"
    with pytest.raises(errors.DuplicateFrame):
        push("below", 1)
    assert kinds(lp).count("frame.pushed") == 3
    assert lp.index.get_frame("root").budget.subcall_allocation == 1


@pytest.mark.req("C-28")
def test_every_verb_leaves_one_event_and_its_repetition_none(lp: Limpet):
    index = lp.index
    root = index.push_frame(SCOPE, goal="g", budget=100).frame_id
    other = index.push_frame(SCOPE, goal="g", budget=9).frame_id
    steps: list[tuple[str, Any]] = [
        ("frame.pushed", lambda key: index.push_frame(SCOPE, goal="c", budget=1, parent_frame_id=root, key=key)),
        ("frame.updated", lambda key: index.update_frame(root, goal="other", key=key)),
        ("frame.updated", lambda key: index.reserve(root, 9, key=key)),
        ("frame.updated", lambda key: index.release_reservation(root, 3, key=key)),
        ("frame.updated", lambda key: index.record_usage(root, 2, settles="", key=key)),
        ("frame.handle_added", lambda key: index.add_context_handle(root, handle(), key=key)),
        ("frame.compacted", lambda key: index.remove_handle(root, "h", key=key)),
        ("frame.result_added", lambda key: index.add_result(root, ResultRef("note", "n"), key=key)),
        ("frame.updated", lambda key: index.begin_tool(root, "mail", tool_id="t", key=key)),
        ("frame.updated", lambda key: index.resolve_tool(root, "t", "retry", key=key)),
        ("frame.popped", lambda key: index.pop_frame(other, S.CANCELLED, key=key)),
    ]  # fmt: skip
    for number, (kind, act) in enumerate(steps):
        before = kinds(lp)
        first, again = act(f"key {number}"), act(f"key {number}")
        assert kinds(lp) == [*before, kind]
        assert getattr(first, "frame_id", "") == getattr(again, "frame_id", "")
    before = kinds(lp)
    with pytest.raises(errors.KeyReused):
        index.update_frame(root, goal="another", key="key 1")
    assert kinds(lp) == before


@pytest.mark.req("C-27")
def test_a_pop_sets_the_time_and_a_closed_frame_keeps_what_it_had(lp: Limpet):
    frame_id = lp.index.push_frame(SCOPE, goal="g", budget=9).frame_id
    lp.index.add_context_handle(frame_id, handle())
    lp.index.add_result(frame_id, ResultRef("note", "n1", "a note"))
    closed = lp.index.pop_frame(frame_id, S.FAILED, result_summary="half", reason="no seats")
    again = lp.index.get_frame(frame_id)
    assert again == closed
    assert (again.status, again.result_summary, again.reason) == (S.FAILED, "half", "no seats")
    assert again.completed_at is not None
    assert [one.handle_id for one in again.context_handles] == ["h"]
    assert [one.ref_id for one in again.result_refs] == ["n1"]
    for status in (S.ACTIVE, S.WAITING, S.SUSPENDED):
        with pytest.raises(errors.InvalidRequest):
            lp.index.pop_frame(frame_id, status)
    with pytest.raises(errors.InvalidTransition):
        lp.index.pop_frame(frame_id)


@pytest.mark.req("C-24", "C-25")
def test_an_actor_without_frames_finds_nothing_and_leaves_no_trace(lp: Limpet):
    state = lp.index.resume_actor(Scope("nobody"))
    assert (state.current_frame, state.frame_stack, state.pending_work) == (None, (), ())
    assert lp.index.find_top_of_stack(Scope("nobody")) is None
    assert kinds(lp) == []


@pytest.mark.req("C-24")
def test_the_top_of_the_stack_is_the_deepest_then_the_newest(lp: Limpet):
    root = lp.index.push_frame(SCOPE, goal="root", budget=9).frame_id
    lp.index.push_frame(SCOPE, goal="old", budget=1, parent_frame_id=root, frame_id="a")
    lp.index.push_frame(SCOPE, goal="new", budget=1, parent_frame_id=root, frame_id="b")
    lp.index.push_frame(SCOPE, goal="another root", budget=1)
    top = lp.index.find_top_of_stack(SCOPE)
    assert top is not None and top.goal == "new"
    state = lp.index.resume_actor(SCOPE)
    assert [frame.goal for frame in state.frame_stack] == ["root", "new"]
    assert state.leaves[:2] == ("b", "a")
    assert state.recovery_summary.frames_recovered == 2


@pytest.mark.req("C-25")
def test_a_tools_result_is_in_the_conversation_in_the_same_step(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_message(user())
    call = asking("c1")
    session.add_message(call)
    frame_id = lp.index.push_frame(Scope("planner", "s"), goal="g", budget=9).frame_id
    tool = lp.index.begin_tool(frame_id, "tool_c1", call_id="c1", message_id=call.id)
    with pytest.raises(errors.InvalidTransition):
        lp.index.begin_tool(frame_id, "tool_c1", call_id="c1", message_id=call.id)
    lp.index.end_tool(frame_id, tool.tool_id, {"ok": True})
    assert session.reload().pending_calls() == []
    results = session.messages[-1].tool_results
    assert [(one.tool_call_id, one.result) for one in results] == [("c1", '{"ok":true}')]
    assert kinds(lp)[-2:] == ["session.message_added", "frame.updated"]


@pytest.mark.req("C-25", "C-27")
def test_a_closed_frame_leaves_no_call_open_even_if_two_frames_ran_it(lp: Limpet):
    session = lp.sessions.create_session("s")
    call = asking("c1", "c2")
    session.add_messages([user(), call])
    scope = Scope("planner", "s")
    root = lp.index.push_frame(scope, goal="g", budget=9).frame_id
    child = lp.index.push_frame(scope, goal="g", budget=1, parent_frame_id=root).frame_id
    lp.index.begin_tool(root, "tool_c1", call_id="c1", message_id=call.id)
    lp.index.begin_tool(child, "tool_c1", call_id="c1", message_id=call.id)
    lp.index.begin_tool(child, "tool_c2", call_id="c2", message_id=call.id)
    lp.index.pop_frame(root, S.CANCELLED, cascade=True)
    assert session.reload().pending_calls() == []
    results = session.messages[-1].tool_results
    assert sorted(one.tool_call_id for one in results) == ["c1", "c2"]
    assert all(one.is_error and "unknown" in str(one.result) for one in results)


@pytest.mark.req("C-18", "C-19")
@pytest.mark.parametrize("bound", [1, 3])
def test_more_trees_than_are_kept_in_memory_are_all_there(opener: Opener, bound: int):
    lp = opener(cached_trees=bound)
    ids = [lp.index.push_frame(SCOPE, goal=f"g{n}", budget=10).frame_id for n in range(12)]
    for turn in range(3):
        for frame_id in ids:
            lp.index.record_usage(frame_id, 2)
            assert len(engine_of(lp).trees) <= bound
            assert lp.index.get_frame(frame_id).budget.used == 2 * (turn + 1)
    assert len(lp.index.list_frames(SCOPE)) == 12
    assert len(engine_of(lp).trees) <= bound


@pytest.mark.req("C-19")
def test_the_bound_of_trees_comes_from_the_argument_or_the_environment(opener: Opener, monkeypatch: pytest.MonkeyPatch):
    def bound(**options: Any) -> int:
        return engine_of(opener(**options)).trees._size

    assert bound() == 1_000
    monkeypatch.setenv("LIMPET_CACHED_TREES", "7")
    assert (bound(), bound(cached_trees=8)) == (7, 8)
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("LIMPET_CACHED_TREES", wrong)
        with pytest.raises(errors.InvalidRequest, match="LIMPET_CACHED_TREES"):
            opener()
    with pytest.raises(errors.InvalidRequest, match="cached_trees"):
        opener(cached_trees=0)


@pytest.mark.req("C-20", "C-22")
def test_frames_handles_and_tokens_of_another_tenant_are_unknown(lp: Limpet):
    """The errors are word for word those of what never was."""
    theirs = StateIndex(engine_of(lp), Settings(tenant="theirs"))
    frame_id = lp.index.push_frame(SCOPE, goal="g", budget=9, frame_id="ours").frame_id
    lp.index.add_context_handle(frame_id, handle())
    token = lp.index.suspend_frame(frame_id, reason="r")

    def told(act: Any) -> tuple[Any, ...]:
        with pytest.raises(errors.Error) as caught:
            act()
        error = caught.value
        return (type(error), str(error).replace("never", "ours"), sorted(error.facts))

    for act in (
        theirs.get_frame,
        lambda id_: theirs.remove_handle(id_, "h"),
        lambda id_: theirs.pop_frame(id_, cascade=True),
        lambda id_: theirs.push_frame(SCOPE, goal="g", budget=0, parent_frame_id=id_),
    ):
        assert told(lambda act=act: act("ours")) == told(lambda act=act: act("never"))
    forged = f"never.{token.token_id.partition('.')[2]}"
    assert told(lambda: theirs.resume_frame(token)) == told(lambda: theirs.resume_frame(forged))
    with pytest.raises(errors.SuspensionNotFound):
        theirs.decide_suspension(token.suspension_id, "approve", by="eve")
    assert theirs.list_frames() == [] == theirs.list_suspensions(waiting=False)
    assert theirs.push_frame(SCOPE, goal="theirs", budget=1, frame_id="ours").goal == "theirs"
    assert lp.index.resume_frame(token).goal == "g"


ELSEWHERE = """
import json, sys
import limpet
from limpet import Scope
with limpet.connect(sys.argv[1]) as lp:
    state = lp.index.resume_actor(Scope("planner"))
    lp.index.resume_frame(sys.argv[2], payload={"edited": True})
    child = lp.index.push_frame(
        Scope("helper"), goal="elsewhere", budget=10, parent_frame_id=state.frame_stack[0].frame_id
    )
    lp.index.record_usage(child.frame_id, 4)
    lp.index.pop_frame(child.frame_id)
    print(json.dumps([[one.goal for one in state.frame_stack],
        [[str(one.work_type), one.description] for one in state.pending_work]]))
"""


@pytest.mark.req("C-13", "C-18", "C-24")
def test_another_process_comes_back_to_the_work_and_the_first_sees_it(fast_dir: Path):
    path = fast_dir / "state.db"
    with limpet.connect(path) as lp:
        root = lp.index.push_frame(SCOPE, goal="plan", budget=100)
        child = lp.index.push_frame(SCOPE, goal="ask", budget=50, parent_frame_id=root.frame_id)
        lp.index.begin_tool(child.frame_id, "mail")
        token = lp.index.suspend_frame(child.frame_id, reason="approval", payload={"to": "ann"})
        there = start(ELSEWHERE, path, token.token_id)
        out, err = there.communicate(timeout=300)
        assert err == ""
        stack, work = json.loads(out)
        assert stack == ["plan", "ask"]
        assert work == [
            ["waiting_for_subcall", "Frame 'plan' waiting"],
            ["waiting_for_user", "Frame 'ask' suspended: approval"],
            ["tool_in_progress", "Tool 'mail' incomplete"],
        ]
        here = lp.index.get_frame(child.frame_id)
        assert here.status is S.ACTIVE and here.resumption is not None
        assert here.resumption.payload == {"edited": True}
        assert [tool.status for tool in here.tools] == ["unknown"]
        assert lp.index.get_frame(root.frame_id).budget.used == 4
        with pytest.raises(errors.InvalidSuspensionToken):
            lp.index.resume_frame(token)
        before = [frame.frame_id for frame in lp.index.list_frames()]
    with limpet.connect(path) as lp:
        assert [frame.frame_id for frame in lp.index.list_frames()] == before
        assert lp.index.get_frame(child.frame_id) == here
        assert lp.admin.verify().ok
