"""What an actor finds when it comes back: its stack, and the work that waits for somebody."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from limpet.values.frame import Frame, ToolRun


class PendingWorkType(StrEnum):
    """What is waited for, or has to be settled."""

    WAITING_FOR_SUBCALL = "waiting_for_subcall"
    WAITING_FOR_USER = "waiting_for_user"
    TOOL_IN_PROGRESS = "tool_in_progress"
    UNHANDLED_ERROR = "unhandled_error"


class PendingWork(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not through: where, of which kind, in words, and what names it.

    `ref_id` is a tool's, a suspension's or a child's id; `tool` is there for a tool.
    """

    frame_id: str
    work_type: PendingWorkType
    description: str
    ref_id: str = ""
    tool: ToolRun | None = None


class RecoverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """How much was found, at which version of the tree, and how long it took."""

    frames_recovered: int = 0
    pending_work_items: int = 0
    last_event_seq: int = 0
    recovery_time_ms: int = 0


class ActorResumeState(msgspec.Struct, frozen=True, kw_only=True):
    """Where an actor was: `frame_stack` from the root to `current_frame`, and everything that waits.

    `leaves` are the ids of all its open frames that have no open child of its own, the current one first.
    """

    current_frame: Frame | None = None
    frame_stack: tuple[Frame, ...] = ()
    pending_work: tuple[PendingWork, ...] = ()
    leaves: tuple[str, ...] = ()
    recovery_summary: RecoverySummary = RecoverySummary()
