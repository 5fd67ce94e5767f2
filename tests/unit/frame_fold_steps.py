"""A frame tree folded in memory: commands decided and their events evolved, without any store."""

from __future__ import annotations

from typing import Any

from limpet import Scope, TokenBudget
from limpet.core.rules import frame_fold, frame_rules
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.frame_state import Decision, Frame, FrameStatus, TreeState

S = FrameStatus
SCOPE = Scope("a")
UNLIMITED: dict[str, Any] = {"max_tool_calls": None, "max_subframe_depth": None, "timeout_ms": None}


class Grown:
    """A tree, and a clock that stands until it is moved. The root is `r`."""

    def __init__(self, total: int = 1_000, **limited: Any) -> None:
        self.now = 1_000_000
        self.tree: TreeState | None = None
        self.push("r", None, total, **limited)

    def do(self, command: c.FrameCommand) -> list[e.FrameEvent]:
        """Decide and evolve; return the events."""
        made = [one.event for one in frame_rules.decide(self.tree, command, now_us=self.now)]
        for event in made:
            self.tree = frame_fold.evolve_one(self.tree, event, time_us=self.now)
        return made

    def push(
        self, frame_id: str, parent: str | None = "r", total: int = 0, *, waits: bool = True, **limited: Any
    ) -> Frame:  # fmt: skip
        budget = TokenBudget(total=total, **{**UNLIMITED, **limited})
        self.do(
            c.PushFrame(
                frame_id=frame_id, scope=SCOPE, goal=f"goal {frame_id}", budget=budget,
                parent_frame_id=parent, waits=waits, named=True,
            )
        )  # fmt: skip
        return self[frame_id]

    def __getitem__(self, frame_id: str) -> Frame:
        assert self.tree is not None
        return self.tree.frames[frame_id]

    def last(self, frame_id: str) -> Frame:
        """A frame, or what it was when it was just closed."""
        assert self.tree is not None
        found = self.tree.frames.get(frame_id) or self.tree.closed_frame(frame_id)
        assert found is not None and found.frame_id == frame_id
        return found

    def spend(self, frame_id: str, **how: Any) -> list[e.FrameEvent]:
        return self.do(c.SpendTokens(frame_id=frame_id, **how))

    def pop(self, frame_id: str, status: FrameStatus = S.COMPLETED, *, cascade: bool = False) -> Frame:
        self.do(c.PopFrame(frame_id=frame_id, final_status=status, cascade=cascade))
        assert self.tree is not None
        return self.tree.closed[-1]

    def suspend(self, frame_id: str, id_: str = "sus", expires_in_us: int | None = None) -> None:
        self.do(
            c.SuspendFrame(
                frame_id=frame_id, suspension_id=id_, token_hash=f"hash of {id_}", reason="why",
                purpose="approval", payload={"n": 1}, expires_in_us=expires_in_us,
            )
        )  # fmt: skip

    def resume(self, frame_id: str, id_: str = "sus", **how: Any) -> None:
        given: dict[str, Any] = {"decision": Decision.RESUMED, "token_hash": f"hash of {id_}", **how}
        self.do(c.EndSuspension(frame_id=frame_id, suspension_id=id_, **given))

    def begin(self, frame_id: str, tool_id: str = "t", *, intent: bool = False) -> None:
        self.do(
            c.BeginTool(
                frame_id=frame_id, tool_id=tool_id, name="mail", key=f"key of {tool_id}", intent=intent
            )
        )  # fmt: skip

    def expire(self) -> list[e.FrameEvent]:
        return self.do(c.ExpireTree(frame_id="r", now_us=self.now))
