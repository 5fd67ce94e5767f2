"""Frames: units of work with a goal, a token budget, tools and suspensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from limpet.core.values.context import CompactionResult, HandlePages, HandleType, ResultRef
    from limpet.core.values.frame_state import (
        ActorResumeState,
        Decision,
        PendingWork,
        PendingWorkType,
        RecoverySummary,
        Resumption,
        Suspension,
        SuspensionStatus,
        ToolEffect,
        ToolRun,
        ToolStatus,
        TreeState,
    )
    from limpet.core.windows.pack import (
        ContextPackMetadata,
        ContextSegment,
        ConversationMoment,
        FrameBreadcrumb,
        HandleEntry,
        PackLedger,
        PackSource,
        SegmentType,
        TokenBreakdown,
        TokenSummary,
    )
    from limpet.frames.async_state_index import AsyncStateIndex
    from limpet.frames.queries import FrameDifference

__all__ = [
    "ActorResumeState", "AsyncStateIndex", "CompactionResult", "ContextPackMetadata", "ContextSegment",
    "ConversationMoment", "Decision", "FrameBreadcrumb", "FrameDifference", "HandleEntry", "HandlePages",
    "HandleType", "PackLedger", "PackSource", "PendingWork", "PendingWorkType", "RecoverySummary", "ResultRef",
    "Resumption", "SegmentType", "Suspension", "SuspensionStatus", "TokenBreakdown", "TokenSummary", "ToolEffect",
    "ToolRun", "ToolStatus", "TreeState",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__, __all__, "limpet.core.values.frame_state", "limpet.core.values.context",
        "limpet.core.windows.pack", "limpet.frames.queries",
        "limpet.frames.async_state_index",
    )  # fmt: skip
