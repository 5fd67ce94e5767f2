"""A store with frames for the tests of the command line: a tree in which much waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import limpet
from limpet import FrameStatus, Scope, TokenBudget
from limpet.frames import ToolEffect

ME = Scope("planner", "ses_1")
HOSTILE = "\x1b[2J\x1b]0;owned\x07 csi:\x9b31m bidi:\u202e\r\nnext\u2028"


def budget(total: int) -> TokenBudget:
    return TokenBudget(total=total, timeout_ms=None)


def trip(folder: Path) -> str:
    """Make the tree of a trip: a root, a child that waits for approval, one at work. Return the token."""
    with limpet.connect(folder / "state.db") as lp:
        lp.sessions.create_session("ses_1", user_id="ada", title="Oslo")
        index = lp.index
        index.push_frame(ME, goal="plan the trip", budget=budget(8_000), frame_id="frm_8K")
        index.record_usage("frm_8K", 2_000)
        index.reserve("frm_8K", 700, purpose="answer")
        push(lp, "frm_8M", "compare flights", 1_800, 1_500)
        push(lp, "frm_8N", "check visa rules", 1_200, 310)
        index.reserve("frm_8N", 200)
        index.begin_tool("frm_8M", "book_flight", effect=ToolEffect.DESTRUCTIVE, intent=True)
        return index.suspend_frame(
            "frm_8M", reason="booking costs money", purpose="book_flight", expires_in_s=41 * 60 + 45,
            payload={"flight": "SK 4718", "seat": "12A", "price": 214.0},
        ).token_id  # fmt: skip


def push(lp: Any, frame_id: str, goal: str, total: int, used: int, parent: str = "frm_8K") -> None:
    lp.index.push_frame(ME, goal=goal, budget=budget(total), parent_frame_id=parent, frame_id=frame_id)
    lp.index.record_usage(frame_id, used)


def trouble(folder: Path) -> None:
    """Add to the trip: a tool of unknown outcome, a failed child, an account that is overdrawn."""
    with limpet.connect(folder / "state.db") as lp:
        lp.index.begin_tool("frm_8N", "send_mail", tool_id="tol_mail")
        push(lp, "frm_8P", "ask the embassy", 300, 450)
        lp.index.pop_frame("frm_8P", FrameStatus.FAILED, reason="nobody answers")
        lp.index.record_usage("frm_8N", 900)
        lp.index.resume_actor(ME)


def hostile(folder: Path) -> str:
    """Make a store in which every text is hostile; return the suspension's id."""
    with limpet.connect(folder / "state.db") as lp:
        root = lp.index.push_frame(Scope("planner"), goal=HOSTILE, budget=500, inputs={"a": HOSTILE})
        index, id_ = lp.index, root.frame_id
        index.add_result(id_, limpet.frames.ResultRef("note", "ref_1", HOSTILE))
        handle = limpet.ContextHandle(
            handle_id="h1", handle_type=limpet.frames.HandleType.DOCUMENT, description=HOSTILE, content="x"
        )
        index.add_context_handle(id_, handle)
        index.begin_tool(id_, "tool", summary=HOSTILE)
        index.suspend_frame(id_, reason=HOSTILE, payload={HOSTILE: HOSTILE})
        return index.list_suspensions()[0].suspension_id
