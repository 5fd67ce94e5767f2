"""What an actor finds when it resumes: its frame stack and pending work."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from limpet.values.frame import Frame, ToolRun


class PendingWorkType(StrEnum):
    """The kind of pending work."""

    WAITING_FOR_SUBCALL = "waiting_for_subcall"
    WAITING_FOR_USER = "waiting_for_user"
    TOOL_IN_PROGRESS = "tool_in_progress"
    UNHANDLED_ERROR = "unhandled_error"


class PendingWork(msgspec.Struct, frozen=True, kw_only=True):
    """One item of pending work: its frame, kind, description and reference.

    `ref_id` is the id of a tool, a suspension or a child; `tool` is set for a tool.
    """

    frame_id: str
    work_type: PendingWorkType
    description: str
    ref_id: str = ""
    tool: ToolRun | None = None


class RecoverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """How much was recovered, at which version of the tree, and how long it took."""

    frames_recovered: int = 0
    pending_work_items: int = 0
    last_event_seq: int = 0
    recovery_time_ms: int = 0


class ActorResumeState(msgspec.Struct, frozen=True, kw_only=True):
    """Where an actor was: `frame_stack` from the root to `current_frame`, and all pending work.

    `leaves` are the ids of its open frames without open children of its own, the current one first.
    """

    current_frame: Frame | None = None
    frame_stack: tuple[Frame, ...] = ()
    pending_work: tuple[PendingWork, ...] = ()
    leaves: tuple[str, ...] = ()
    recovery_summary: RecoverySummary = RecoverySummary()
