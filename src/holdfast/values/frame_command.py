"""What callers ask for of frames, as values: each is decided against the state of one frame tree.

`frame_id` names the frame it is about; the engine finds the tree.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.values.budget import TokenBudget
from holdfast.values.context import CompactionLevel
from holdfast.values.frame import Decision, FrameStatus, Scope, ToolEffect
from holdfast.values.frozen import EMPTY, Json
from holdfast.values.handle import ContextHandle, ResultRef
from holdfast.values.pack import PackSelection


class PushFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Begin a frame. `named`: the caller chose the id, and asking again is the same frame."""

    frame_id: str
    scope: Scope
    goal: str
    budget: TokenBudget
    parent_frame_id: str | None = None
    inputs: Json = None
    waits: bool = True
    named: bool = False


class UpdateFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Change what is named. `handled` are failed children that were dealt with."""

    frame_id: str
    goal: str | msgspec.UnsetType = msgspec.UNSET
    inputs: Json | msgspec.UnsetType = msgspec.UNSET
    status: FrameStatus | None = None
    handled: tuple[str, ...] = ()


class SpendTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Set tokens aside, give them back, or record what was spent.

    `release` None gives back all that was set aside for the purpose; `use` with `settle` spends out of it
    and gives the rest back.
    """

    frame_id: str
    purpose: str = ""
    reserve: int = 0
    release: int | None = 0
    use: int = 0
    settle: bool = False


class PopFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Close a frame; with `cascade` its open descendants too, as cancelled."""

    frame_id: str
    final_status: FrameStatus
    result_summary: str = ""
    reason: str = ""
    cascade: bool = False


class AddHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Give a frame a handle."""

    frame_id: str
    handle: ContextHandle


class AddResult(msgspec.Struct, frozen=True, kw_only=True):
    """Note what a frame produced."""

    frame_id: str
    result: ResultRef


class CompactFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Let go of handles, and put others in their place."""

    frame_id: str
    removed: tuple[str, ...]
    replaced: tuple[ContextHandle, ...] = ()
    strategy: str = ""
    target_budget: int = 0
    original_tokens: int = 0
    final_tokens: int = 0
    level: CompactionLevel = CompactionLevel.NONE


class RecordPack(msgspec.Struct, frozen=True, kw_only=True):
    """Note what a model is about to see. `texts` are what the selection refers to by hash."""

    frame_id: str
    selection: PackSelection
    texts: tuple[str, ...] = ()


class SuspendFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Have a frame stand still. `again`: a new right to resume replaces the one before."""

    frame_id: str
    suspension_id: str
    token_hash: str
    reason: str
    purpose: str = ""
    payload: Json = None
    expires_us: int | None = None
    again: bool = False


class EndSuspension(msgspec.Struct, frozen=True, kw_only=True):
    """Let a suspended frame go on: by its token's hash, or by somebody's decision."""

    frame_id: str
    suspension_id: str
    decision: Decision
    token_hash: str | None = None
    purpose: str | None = None
    payload: Json | msgspec.UnsetType = msgspec.UNSET
    by: str = ""
    reason: str = ""


class RevokeSuspension(msgspec.Struct, frozen=True, kw_only=True):
    """Make the right to resume void; the frame stays suspended."""

    frame_id: str
    suspension_id: str
    by: str = ""
    reason: str = ""


class BeginTool(msgspec.Struct, frozen=True, kw_only=True):
    """Note that a tool is meant to run (`intent`), or runs from here on."""

    frame_id: str
    tool_id: str
    name: str
    key: str
    effect: ToolEffect = ToolEffect.DESTRUCTIVE
    call_id: str | None = None
    message_id: str | None = None
    summary: str = ""
    intent: bool = False
    named: bool = False


class EndTool(msgspec.Struct, frozen=True, kw_only=True):
    """Note a tool's result: in the session whose call it answers, or in the frame's own log."""

    frame_id: str
    tool_id: str
    output: Json = None
    is_error: bool = False
    abandon: bool = False
    max_messages: int | None = None
    metadata: Mapping[str, Json] = EMPTY


class RetryTool(msgspec.Struct, frozen=True, kw_only=True):
    """Note that a tool of unknown outcome runs once more, under the same key."""

    frame_id: str
    tool_id: str


class ResumeActor(msgspec.Struct, frozen=True, kw_only=True):
    """Note that an actor came back to the stack that ends in this frame."""

    frame_id: str
    scope: Scope


class ExpireTree(msgspec.Struct, frozen=True, kw_only=True):
    """Fail what is overdue or orphaned in a tree, expire suspensions, as of a moment.

    `orphaned` are ids of sessions that take no more messages.
    """

    frame_id: str
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
