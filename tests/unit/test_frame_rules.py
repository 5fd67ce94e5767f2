"""What frames may become, what each command makes of them, and what the rules forbid. No store."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from limpet import FrameStatus, errors, limits
from limpet.core.rules import frame_fold, frame_rules
from limpet.core.values import commands as c
from limpet.core.values.events import FrameEvent, TreeErasedEvent
from limpet.core.values.frame_state import Decision, SuspensionStatus
from tests.unit.frame_fold_steps import Grown

S = FrameStatus
ALLOWED = {
    S.ACTIVE: {S.WAITING, S.SUSPENDED, S.COMPLETED, S.FAILED, S.CANCELLED},
    S.WAITING: {S.ACTIVE, S.SUSPENDED, S.COMPLETED, S.FAILED, S.CANCELLED},
    S.SUSPENDED: {S.ACTIVE, S.WAITING, S.FAILED, S.CANCELLED},
    S.COMPLETED: set[S](),
    S.FAILED: set[S](),
    S.CANCELLED: set[S](),
}
OPEN = (S.ACTIVE, S.WAITING, S.SUSPENDED)


def in_status(status: FrameStatus) -> Grown:
    """A tree whose frame `f` has a status."""
    grown = Grown()
    grown.push("f", "r", 100)
    if status is S.WAITING:
        grown.do(c.UpdateFrame(frame_id="f", status=S.WAITING))
    elif status is S.SUSPENDED:
        grown.suspend("f")
    return grown


@pytest.mark.req("C-28")
def test_there_are_nine_kinds_of_events():
    assert [kind.kind for kind in get_args(FrameEvent) if kind is not TreeErasedEvent] == [
        "frame.pushed", "frame.updated", "frame.popped", "frame.suspended", "frame.resumed",
        "frame.handle_added", "frame.result_added", "frame.compacted", "actor.resumed",
    ]  # fmt: skip


def test_the_table_is_the_one_that_was_agreed():
    assert {status: set(after) for status, after in frame_fold.TRANSITIONS.items()} == ALLOWED


def reach(grown: Grown, to: FrameStatus) -> None:
    """Ask for a status by every verb that leads there, until one does."""
    before = grown["f"].status
    if to is S.SUSPENDED:
        grown.suspend("f")
    elif to in (S.COMPLETED, S.FAILED, S.CANCELLED):
        grown.pop("f", to, cascade=before is S.SUSPENDED)
    elif before is S.SUSPENDED:
        if to is S.WAITING:
            grown.resume("f")
            grown.do(c.UpdateFrame(frame_id="f", status=S.WAITING))
            grown.suspend("f", "again")
            grown.resume("f", "again")
        else:
            grown.resume("f")
    else:
        grown.do(c.UpdateFrame(frame_id="f", status=to))


@pytest.mark.req("C-27")
@pytest.mark.parametrize("to", S)
@pytest.mark.parametrize("status", OPEN)
def test_a_frame_becomes_what_the_table_allows_and_nothing_else(status: FrameStatus, to: FrameStatus):
    grown = in_status(status)
    assert grown["f"].status is status
    if to in ALLOWED[status]:
        reach(grown, to)
        assert grown.last("f").status is to
    elif to is not status:
        with pytest.raises(errors.InvalidTransition) as caught:
            reach(grown, to)
        assert caught.value.facts["status"] == status
        assert grown["f"].status is status


@pytest.mark.req("C-15")
def test_a_suspended_frame_is_not_completed_and_not_popped_without_cascade():
    for status, cascade in ((S.COMPLETED, True), (S.FAILED, False), (S.CANCELLED, False)):
        grown = in_status(S.SUSPENDED)
        with pytest.raises(errors.InvalidTransition, match="Resume it first"):
            grown.pop("f", status, cascade=cascade)


def test_an_update_makes_no_frame_final_or_suspended():
    for status in (S.COMPLETED, S.FAILED, S.CANCELLED, S.SUSPENDED):
        with pytest.raises(errors.InvalidRequest):
            in_status(S.ACTIVE).do(c.UpdateFrame(frame_id="f", status=status))


# Accounts in a tree.


@pytest.mark.req("C-7", "C-8", "C-16")
def test_the_worked_example_in_a_tree():
    grown = Grown(8_000)
    grown.spend("r", purpose="brief", reserve=500)
    grown.spend("r", purpose="breadcrumbs", reserve=200)
    grown.push("child", "r", 3_000)
    grown.spend("r", use=2_000)
    assert grown["r"].budget.available() == 2_300
    grown.spend("child", use=2_500)
    grown.pop("child")
    root = grown["r"]
    assert root.budget.available() == 2_800
    assert (root.budget.used, root.settled, root.spent) == (4_500, 2_500, 2_000)
    assert root.budget.subcall_allocation == 0


@pytest.mark.req("C-8")
def test_a_child_that_is_too_large_is_not_there_at_all():
    grown = Grown(100)
    grown.push("a", "r", 60)
    before = grown.tree
    with pytest.raises(errors.InsufficientTokens) as caught:
        grown.push("b", "r", 41)
    assert caught.value.facts == {"requested": 41, "available": 40}
    assert grown.tree is before
    grown.push("b", "r", 40)
    assert grown["r"].budget.available() == 0


@pytest.mark.req("C-6", "C-7")
def test_what_a_child_spent_beyond_its_total_is_charged_too():
    grown = Grown(100)
    grown.push("a", "r", 60)
    grown.spend("a", use=150)
    grown.pop("a", S.FAILED)
    budget = grown["r"].budget
    assert (budget.used, budget.available(), budget.overdrawn) == (150, 0, 50)


@pytest.mark.req("C-6", "C-7")
def test_no_amount_of_spending_keeps_a_frame_from_being_closed():
    grown = Grown(100)
    for name in "ab":
        grown.push(name, "r", 10)
    for name in "ab":
        grown.spend(name, use=limits.TOKENS_MAX)
        grown.pop(name)
    root = grown["r"]
    assert (root.budget.used, root.budget.subcall_allocation) == (limits.TOKENS_MAX, 0)
    assert root.spent == 0
    assert grown.pop("r").status is S.COMPLETED


@pytest.mark.req("C-6")
def test_reservations_are_kept_by_purpose():
    grown = Grown(100)
    grown.spend("r", purpose="brief", reserve=30)
    grown.spend("r", purpose="tools", reserve=20)
    with pytest.raises(errors.BudgetError) as caught:
        grown.spend("r", purpose="tools", release=21)
    assert caught.value.facts == {"requested": 21, "reserved": 20, "purpose": "tools"}
    grown.spend("r", purpose="brief", use=10, settle=True)
    assert dict(grown["r"].reservations) == {"tools": 20}
    assert grown["r"].budget.available() == 100 - 20 - 10
    grown.spend("r", purpose="tools", release=None)
    assert grown["r"].budget.reserved == 0


@pytest.mark.req("C-27")
def test_a_pop_gives_reservations_back_and_cascades_from_the_deepest():
    grown = Grown(100)
    grown.push("a", "r", 50)
    grown.push("b", "a", 20)
    grown.push("c", "a", 20)
    grown.spend("a", reserve=5)
    grown.spend("b", use=7)
    with pytest.raises(errors.OpenChildren) as caught:
        grown.pop("a")
    assert caught.value.facts["children"] == ["b", "c"]
    made = grown.do(c.PopFrame(frame_id="a", final_status=S.COMPLETED, cascade=True))
    assert [event.frame_id for event in made] == ["c", "b", "a"]
    assert grown["r"].budget.used == 7 and grown["r"].budget.available() == 93


@pytest.mark.req("C-22")
def test_a_parent_waits_for_its_last_child_unless_it_need_not():
    grown = Grown()
    grown.push("a")
    grown.push("b")
    assert grown["r"].status is S.WAITING
    grown.pop("a")
    assert grown["r"].status is S.WAITING
    grown.pop("b")
    assert grown["r"].status is S.ACTIVE
    grown.push("c", waits=False)
    assert grown["r"].status is S.ACTIVE


# Limits: the strictest among a frame and those above it.


@pytest.mark.req("C-22")
def test_three_levels_below_the_root_and_no_deeper():
    grown = Grown(max_subframe_depth=3)
    for number, parent in enumerate(["r", "f0", "f1"]):
        assert grown.push(f"f{number}", parent).depth == number + 1
    with pytest.raises(errors.MaxDepthExceeded) as caught:
        grown.push("f3", "f2")
    assert caught.value.facts == {"depth": 4, "depth_max": 3}


@pytest.mark.req("C-22")
def test_no_child_widens_the_depth_of_those_above():
    grown = Grown(max_subframe_depth=2)
    grown.push("a", "r", max_subframe_depth=9)
    grown.push("b", "a", max_subframe_depth=None)
    with pytest.raises(errors.MaxDepthExceeded) as caught:
        grown.push("c", "b")
    assert caught.value.facts["depth_max"] == 2
    grown = Grown(max_subframe_depth=9)
    grown.push("a", "r", max_subframe_depth=1)
    with pytest.raises(errors.MaxDepthExceeded):
        grown.push("b", "a")


@pytest.mark.req("C-25")
def test_the_strictest_number_of_tool_calls_holds():
    grown = Grown(max_tool_calls=2)
    grown.push("a", "r", max_tool_calls=9)
    grown.begin("a", "t1")
    grown.begin("a", "t2", intent=True)
    grown.begin("a", "t2")
    with pytest.raises(errors.ToolLimitExceeded) as caught:
        grown.begin("a", "t3")
    assert caught.value.facts == {"frame": "a", "calls": 2, "calls_max": 2}
    grown.do(c.EndTool(frame_id="a", tool_id="t1"))
    with pytest.raises(errors.ToolLimitExceeded):
        grown.begin("a", "t3")


def test_a_frame_has_the_time_of_those_above_it_and_no_more():
    grown = Grown(timeout_ms=10)
    grown.push("a", "r", timeout_ms=1_000)
    grown.now += 9_999
    grown.begin("a", "t1")
    grown.now += 1
    for act in (lambda: grown.begin("a", "t2"), lambda: grown.push("b", "a")):
        with pytest.raises(errors.TimeLimitExceeded):
            act()
    made = grown.expire()
    assert [(event.frame_id, getattr(event, "status", None)) for event in made] == [
        ("a", S.CANCELLED), ("r", S.FAILED),
    ]  # fmt: skip


def test_clocks_stand_while_anything_below_is_suspended():
    grown = Grown(timeout_ms=10)
    grown.push("a", "r", timeout_ms=10)
    grown.push("b", "a", timeout_ms=None)
    grown.push("other", "r", timeout_ms=10)
    grown.now += 4_000
    grown.suspend("b")
    grown.now += 1_000_000
    assert [event.frame_id for event in grown.expire()] == ["other"]
    grown.resume("b")
    grown.now += 5_999
    assert grown.expire() == []
    grown.now += 1
    assert [event.frame_id for event in grown.expire()] == ["b", "a", "r"]


# Suspensions.


@pytest.mark.req("C-15")
@pytest.mark.parametrize("status", [S.ACTIVE, S.WAITING])
def test_a_resumed_frame_has_the_status_it_had(status: FrameStatus):
    grown = in_status(status)
    grown.suspend("f")
    with pytest.raises(errors.AlreadySuspended) as caught:
        grown.suspend("f", "second")
    assert caught.value.facts == {"frame": "f", "suspension": "sus"}
    grown.resume("f")
    told = grown["f"]
    assert told.status is status and told.suspension is None
    assert told.resumption is not None and told.resumption.payload == {"n": 1}


@pytest.mark.req("C-15")
def test_a_frame_that_waited_for_a_child_closed_meanwhile_is_active_again():
    grown = Grown()
    grown.push("a")
    grown.suspend("r")
    grown.pop("a")
    assert grown["r"].status is S.SUSPENDED
    grown.resume("r")
    assert grown["r"].status is S.ACTIVE


@pytest.mark.req("C-15", "C-20")
@pytest.mark.parametrize("how", [{"token_hash": "another"}, {"purpose": "another"}])
def test_only_the_token_for_its_purpose_resumes(how: dict[str, Any]):
    grown = in_status(S.SUSPENDED)
    with pytest.raises(errors.InvalidSuspensionToken):
        grown.resume("f", **how)
    assert grown["f"].status is S.SUSPENDED


@pytest.mark.req("C-15")
def test_a_token_is_used_once_and_only_for_its_own_suspension():
    grown = in_status(S.SUSPENDED)
    grown.resume("f")
    with pytest.raises(errors.InvalidSuspensionToken):
        grown.resume("f")
    grown.suspend("f", "later")
    with pytest.raises(errors.InvalidSuspensionToken):
        grown.resume("f")
    with pytest.raises(errors.AlreadyDecided):
        grown.resume("f", token_hash=None, decision=Decision.APPROVED)


@pytest.mark.req("C-15")
def test_an_expired_token_is_refused_and_a_new_one_resumes():
    grown = Grown()
    grown.suspend("r", expires_in_us=10)
    grown.now += 10
    with pytest.raises(errors.SuspensionExpired):
        grown.resume("r")
    grown.suspend("r", "new", expires_in_us=10)
    grown.resume("r", "new")
    assert grown["r"].status is S.ACTIVE


@pytest.mark.req("C-15")
def test_a_revoked_token_is_void_and_the_frame_stays():
    grown = in_status(S.SUSPENDED)
    revoke = c.RevokeSuspension(frame_id="f", suspension_id="sus", by="ann")
    assert len(grown.do(revoke)) == 1 and grown.do(revoke) == []
    with pytest.raises(errors.InvalidSuspensionToken):
        grown.resume("f")
    standing = grown["f"].suspension
    assert standing is not None and standing.status is SuspensionStatus.REVOKED
    assert grown["f"].status is S.SUSPENDED


@pytest.mark.req("C-15")
def test_nothing_is_pushed_under_a_suspended_frame_and_no_tool_begins_in_it():
    grown = in_status(S.SUSPENDED)
    for act in (lambda: grown.push("g", "f"), lambda: grown.begin("f")):
        with pytest.raises(errors.InvalidTransition):
            act()


@pytest.mark.req("C-13", "C-15")
def test_an_edit_comes_with_what_was_edited_and_nothing_else_does():
    decided: list[tuple[Decision, dict[str, Any]]] = [
        (Decision.EDITED, {}), (Decision.APPROVED, {"payload": 1}),
    ]  # fmt: skip
    for decision, payload in decided:
        with pytest.raises(errors.InvalidRequest):
            in_status(S.SUSPENDED).resume("f", token_hash=None, decision=decision, **payload)


# Pending work.


@pytest.mark.req("C-25")
def test_pending_work_says_what_waits_in_the_words_of_the_document():
    grown = Grown()
    grown.push("a")
    grown.push("b")
    grown.push("c")
    grown.begin("a")
    grown.suspend("b")
    grown.pop("c", S.FAILED)
    assert grown.tree is not None
    found = [
        (work.frame_id, str(work.work_type), work.description, work.ref_id)
        for work in frame_rules.pending_work(grown.tree.frames.values())
    ]
    assert found == [
        ("r", "waiting_for_subcall", "Frame 'goal r' waiting", ""),
        ("r", "unhandled_error", "Child 'c' of frame 'goal r' failed", "c"),
        ("a", "tool_in_progress", "Tool 'mail' incomplete", "t"),
        ("b", "waiting_for_user", "Frame 'goal b' suspended: why", "sus"),
    ]
    grown.do(c.UpdateFrame(frame_id="r", handled=("c",)))
    assert not grown["r"].failures


def test_a_frame_remembers_its_newest_failures_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "FAILURES_KEPT", 2)
    grown = Grown()
    for name in "abc":
        grown.push(name)
        grown.pop(name, S.FAILED)
    assert grown["r"].failures == ("b", "c")


# Tools.


def test_a_tool_that_runs_is_not_begun_again_and_a_retry_keeps_its_key():
    grown = in_status(S.ACTIVE)
    grown.begin("f")
    with pytest.raises(errors.InvalidTransition, match="can't begin again"):
        grown.begin("f")
    grown.do(c.ResumeActor(frame_id="f", scope=grown["f"].scope))
    assert [str(tool.status) for tool in grown["f"].tools] == ["unknown"]
    grown.do(c.RetryTool(frame_id="f", tool_id="t"))
    (tool,) = grown["f"].tools
    assert (str(tool.status), tool.attempt, tool.key) == ("started", 2, "key of t")
    with pytest.raises(errors.InvalidTransition, match="not through"):
        grown.pop("f")
    grown.do(c.EndTool(frame_id="f", tool_id="t"))
    with pytest.raises(errors.ToolNotFound):
        grown.do(c.EndTool(frame_id="f", tool_id="t"))
    assert grown.pop("f").tool_calls == 1
