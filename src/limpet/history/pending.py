"""Work that waits: what frames say about it, in the order in which they are given."""

from __future__ import annotations

from collections.abc import Iterable

from limpet.core.values.frame_state import (
    Frame,
    FrameStatus,
    PendingWork,
    PendingWorkType,
    SuspensionStatus,
)


def pending_work(frames: Iterable[Frame]) -> tuple[PendingWork, ...]:
    """Return everything that waits for somebody: subcalls, people, tools in progress, failures nobody dealt with."""
    return tuple(work for frame in frames for work in _of(frame))


def _of(frame: Frame) -> list[PendingWork]:
    found: list[PendingWork] = []
    if frame.status is FrameStatus.WAITING:
        what = f"Frame '{frame.goal}' waiting"
        found.append(_work(frame, PendingWorkType.WAITING_FOR_SUBCALL, what))
    standing = frame.suspension
    if standing is not None and standing.status is not SuspensionStatus.CLOSED:
        over = standing.status is not SuspensionStatus.WAITING
        what = f"Frame '{frame.goal}' suspended: {standing.reason}"
        what += f" ({standing.status})" if over else ""
        found.append(_work(frame, PendingWorkType.WAITING_FOR_USER, what, standing.suspension_id))
    for tool in frame.tools:
        found.append(
            PendingWork(
                frame_id=frame.frame_id,
                work_type=PendingWorkType.TOOL_IN_PROGRESS,
                description=f"Tool '{tool.name}' incomplete",
                ref_id=tool.tool_id,
                tool=tool,
            )
        )
    for child in frame.failures:
        what = f"Child '{child}' of frame '{frame.goal}' failed"
        found.append(_work(frame, PendingWorkType.UNHANDLED_ERROR, what, child))
    return found


def _work(frame: Frame, kind: PendingWorkType, what: str, ref_id: str = "") -> PendingWork:
    return PendingWork(frame_id=frame.frame_id, work_type=kind, description=what, ref_id=ref_id)
