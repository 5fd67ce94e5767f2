"""Commands on frames, as values. Each is decided against the state of one frame tree.

`frame_id` names the frame; the engine finds its tree.
"""

from __future__ import annotations

import msgspec

from limpet.values.budget import TokenBudget
from limpet.values.context import CompactionLevel
from limpet.values.frame import Decision, FrameStatus, Scope, ToolEffect
from limpet.values.frozen import Json
from limpet.values.handle import ContextHandle, ResultRef
from limpet.values.pack import PackSelection


class AboutFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A command about a frame: the one that it names, or begins."""

    frame_id: str


class PushFrame(AboutFrame, frozen=True, kw_only=True):
    """Begin a frame. `named`: the caller chose the id, and asking again is the same frame; else it is empty."""

    scope: Scope
    goal: str
    budget: TokenBudget
    parent_frame_id: str | None = None
    inputs: Json = None
    waits: bool = True
    named: bool = False


class UpdateFrame(AboutFrame, frozen=True, kw_only=True):
    """Change what is named. `handled` are failed children that were dealt with."""

    goal: str | msgspec.UnsetType = msgspec.UNSET
    inputs: Json | msgspec.UnsetType = msgspec.UNSET
    status: FrameStatus | None = None
    handled: tuple[str, ...] = ()


class SpendTokens(AboutFrame, frozen=True, kw_only=True):
    """Set tokens aside, give them back, or record what was spent.

    `release` None gives back all that was set aside for the purpose; `use` with `settle` spends out of it
    and gives the rest back.
    """

    purpose: str = ""
    reserve: int = 0
    release: int | None = 0
    use: int = 0
    settle: bool = False


class PopFrame(AboutFrame, frozen=True, kw_only=True):
    """Close a frame; with `cascade` its open descendants too, as cancelled."""

    final_status: FrameStatus
    result_summary: str = ""
    reason: str = ""
    cascade: bool = False


class AddHandle(AboutFrame, frozen=True, kw_only=True):
    """Add a handle to a frame. `at` is the version of the session in which its messages are numbered."""

    handle: ContextHandle
    at: int | None = None


class AddResult(AboutFrame, frozen=True, kw_only=True):
    """Add a result to a frame."""

    result: ResultRef


class CompactFrame(AboutFrame, frozen=True, kw_only=True):
    """Drop handles of a frame, and add others in their place."""

    removed: tuple[str, ...]
    replaced: tuple[ContextHandle, ...] = ()
    strategy: str = ""
    target_budget: int = 0
    original_tokens: int = 0
    final_tokens: int = 0
    level: CompactionLevel = CompactionLevel.NONE


class RecordPack(AboutFrame, frozen=True, kw_only=True):
    """Record the pack that a model is about to see. `texts` are the texts that the selection names by hash."""

    selection: PackSelection
    texts: tuple[str, ...] = ()


class SuspendFrame(AboutFrame, frozen=True, kw_only=True):
    """Suspend a frame. `again`: a new token replaces the present one."""

    suspension_id: str
    token_hash: str
    reason: str
    purpose: str = ""
    payload: Json = None
    expires_in_us: int | None = None
    again: bool = False


class EndSuspension(AboutFrame, frozen=True, kw_only=True):
    """Resume a suspended frame: by its token's hash, or by an operator's decision."""

    suspension_id: str
    decision: Decision
    token_hash: str | None = None
    purpose: str | None = None
    payload: Json | msgspec.UnsetType = msgspec.UNSET
    by: str = ""
    reason: str = ""


class RevokeSuspension(AboutFrame, frozen=True, kw_only=True):
    """Revoke the token; the frame stays suspended."""

    suspension_id: str
    by: str = ""
    reason: str = ""


class BeginTool(AboutFrame, frozen=True, kw_only=True):
    """Record that a tool will run (`intent`), or that it runs now."""

    tool_id: str
    name: str
    key: str
    effect: ToolEffect = ToolEffect.DESTRUCTIVE
    call_id: str | None = None
    message_id: str | None = None
    summary: str = ""
    intent: bool = False
    named: bool = False


class EndTool(AboutFrame, frozen=True, kw_only=True):
    """Record a tool's result: in the session whose call it answers, or in the frame's log."""

    tool_id: str
    output: Json = None
    is_error: bool = False
    abandon: bool = False
    max_messages: int | None = None


class RetryTool(AboutFrame, frozen=True, kw_only=True):
    """Record that a tool of unknown outcome runs again, with the same key."""

    tool_id: str


class ResumeActor(AboutFrame, frozen=True, kw_only=True):
    """Record that an actor resumed the stack that ends in this frame."""

    scope: Scope


class ExpireTree(AboutFrame, frozen=True, kw_only=True):
    """Fail overdue and orphaned frames of a tree, and expire suspensions, as of a moment.

    `orphaned` are ids of sessions that take no more messages.
    """

    now_us: int
    orphaned: tuple[str, ...] = ()


FrameCommand = (
    PushFrame
    | UpdateFrame
    | SpendTokens
    | PopFrame
    | AddHandle
    | AddResult
    | CompactFrame
    | RecordPack
    | SuspendFrame
    | EndSuspension
    | RevokeSuspension
    | BeginTool
    | EndTool
    | RetryTool
    | ResumeActor
    | ExpireTree
)
