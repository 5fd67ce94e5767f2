"""Whatever is handed to a frame's verb: a typed error, or something in the log that can be read again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
import pytest

from limpet import ContextHandle, FrameStatus, Limpet, Scope, StateIndex, TokenBudget, errors
from limpet.core.values.frame_state import ToolEffect
from limpet.frames import HandleType, ResultRef
from limpet.runtime import state_cache
from tests.acceptance.conversation_steps import engine_of


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Other(StrEnum):
    ONE = "one"


class Box(msgspec.Struct):
    inside: Any = None


JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2**70, 1.5, math.nan, math.inf, "", "x", "\ud800", "\x00", "é" * 300,
    Text("text"), Number(3), Other.ONE, b"x", [], ["x"], [1], [None], {}, {"a": 1}, {1: 2}, (), ("x", 2),
    set[str](), {"x"}, object(), Box(), Box(Box()), FrameStatus.FAILED, FrameStatus.ACTIVE,
    ToolEffect.PURE, HandleType.URL, Scope("x"), TokenBudget(total=1), ResultRef("file", "r"),
    "completed", "pure", "2026-01-01T00:00:00Z", float, len,
]  # fmt: skip


def handle(id_: str) -> ContextHandle:
    return ContextHandle(handle_id=id_, handle_type=HandleType.DOCUMENT, content="text")


class Stage:
    """A root and, for each attempt, a child of its own in the state that the verb needs."""

    def __init__(self, index: StateIndex) -> None:
        self.index = index
        self.root = self.new()
        self.count = 0

    def new(self) -> str:
        return self.index.push_frame(Scope("a"), goal="g", budget=2**40).frame_id

    def child(self) -> str:
        if self.count % 200 == 0:
            self.root = self.new()
        self.count += 1
        frame = self.index.push_frame(Scope("a"), goal="g", budget=10, parent_frame_id=self.root, parent_waits=False)
        return frame.frame_id

    def arguments(self, verb: str) -> dict[str, Any]:
        """Return arguments with which a verb succeeds."""
        id_ = self.child()
        match verb:
            case "push_frame":
                return {"scope": Scope("b"), "goal": "g", "budget": 1, "parent_frame_id": self.root}
            case "reserve" | "record_usage":
                return {"frame_id": id_, "amount": 1}
            case "release_reservation":
                self.index.reserve(id_, 2)
                return {"frame_id": id_, "amount": 1}
            case "add_context_handle":
                return {"frame_id": id_, "handle": handle("h")}
            case "remove_handle":
                self.index.add_context_handle(id_, handle("h"))
                return {"frame_id": id_, "handle_id": "h"}
            case "add_result":
                return {"frame_id": id_, "result": ResultRef("file", "out.txt")}
            case "suspend_frame":
                return {"frame_id": id_, "reason": "wait"}
            case "resume_frame":
                return {"token": self.index.suspend_frame(id_, reason="wait")}
            case "decide_suspension":
                token = self.index.suspend_frame(id_, reason="wait")
                return {"suspension_id": token.suspension_id, "decision": "approve", "by": "eve"}
            case "revoke_suspension":
                token = self.index.suspend_frame(id_, reason="wait")
                return {"suspension_id": token.suspension_id}
            case "begin_tool":
                return {"frame_id": id_, "name": "search"}
            case "end_tool":
                tool = self.index.begin_tool(id_, "search")
                return {"frame_id": id_, "tool_id": tool.tool_id, "output": "found"}
            case "resolve_tool":
                tool = self.index.begin_tool(id_, "search")
                self.index.resume_actor(Scope("a"))
                return {"frame_id": id_, "tool_id": tool.tool_id, "how": "result", "output": "x"}
            case "assemble_context_pack":
                self.index.add_context_handle(id_, handle("h"))
                return {"scope": Scope("a"), "frame_id": id_, "budget_tokens": 4_000}
            case "compact_context":
                self.index.add_context_handle(id_, handle("h"))
                self.index.add_context_handle(id_, handle("other"))
                return {"frame_id": id_, "target_budget": 1}
            case "expire":
                return {"now": "2026-01-01T00:00:00Z"}
            case "resume_actor":
                self.index.begin_tool(id_, "search")
                return {"scope": Scope("a")}
            case _:
                return {"frame_id": id_}


VERBS = (
    "push_frame", "update_frame", "pop_frame", "reserve", "release_reservation", "record_usage",
    "add_context_handle", "remove_handle", "add_result", "suspend_frame", "resume_frame",
    "decide_suspension", "revoke_suspension", "begin_tool", "end_tool", "resolve_tool",
    "assemble_context_pack", "compact_context", "expire", "resume_actor",
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_no_argument_makes_a_log_that_cannot_be_read(lp: Limpet, verb: str) -> None:
    stage, call = Stage(lp.index), getattr(lp.index, verb)
    names = [name for name in inspect.signature(call).parameters if name != "key"]
    fed = 0
    accepted = call(**stage.arguments(verb))
    assert accepted is not None
    for name in names:
        for junk in JUNK:
            arguments = {**stage.arguments(verb), name: junk}
            refused(lambda given=arguments: call(**given))
            fed = readable(lp, fed)
    lp.admin.rebuild()


def refused(call: Callable[[], Any]) -> None:
    """Only errors of our own come out."""
    refusal: errors.Error | None = None
    try:
        call()
    except errors.Error as error:
        refusal = error
    assert not isinstance(refusal, errors.Corrupt), refusal
    assert "commit was interrupted" not in str(refusal), refusal


def readable(lp: Limpet, fed: int) -> int:
    """Read what is new in the log, as any other process would."""
    engine = engine_of(lp)
    while page := engine.store.feed("default", after=fed):
        for stored in page:
            state_cache.decode_tree_event(stored)
        fed = page[-1].position
    return fed
