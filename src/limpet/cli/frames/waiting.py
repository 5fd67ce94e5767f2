"""What of a frame tree waits for a person: approvals, tools of unknown outcome, frames past their time, failures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from limpet.cli import figures
from limpet.core.values.frame_state import SuspensionStatus, ToolStatus

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame, Suspension, ToolRun, TreeState
    from limpet.core.values.json_values import Json


class Waiting(NamedTuple):
    """One thing that waits: of which frame, of which kind, in words, and what names it."""

    frame_id: str
    kind: str
    text: str
    ref: str = ""

    def document(self) -> dict[str, Json]:
        """Return it as a document shows it."""
        return {
            "frame": self.frame_id,
            "kind": self.kind,
            "text": self.text,
            "ref": self.ref or None,
        }


def of_tree(tree: TreeState, now_us: int) -> list[Waiting]:
    """Return everything of a tree that waits, frame by frame."""
    return [found for frame in tree.frames.values() for found in _of(tree, frame, now_us)]


def _of(tree: TreeState, frame: Frame, now_us: int) -> Iterator[Waiting]:
    if frame.suspension is not None:
        yield _suspended(frame, frame.suspension, now_us)
    for tool in frame.tools:
        if tool.status is ToolStatus.UNKNOWN:
            what = f"does not know the outcome of {tool.name} ({tool.effect}): resolve it"
            yield Waiting(frame.frame_id, "unknown_tool", what, tool.tool_id)
    deadline = tree.deadline(frame.frame_id)
    if deadline is not None and deadline <= now_us:
        what = f"is overdue since {figures.span((now_us - deadline) / 1e6)}"
        yield Waiting(frame.frame_id, "overdue", what)
    for child in frame.failures:
        what = f"has a failed child that nobody has dealt with: {child}"
        yield Waiting(frame.frame_id, "failed_child", what, child)


def _suspended(frame: Frame, standing: Suspension, now_us: int) -> Waiting:
    what, ref = subject(frame, standing), standing.suspension_id
    status = status_now(standing, now_us)
    if status is SuspensionStatus.WAITING:
        text = f"waits for approval ({what}), {until(standing, now_us)}"
        return Waiting(frame.frame_id, "approval", text, ref)
    text = f"stands still: its suspension ({what}) is {status}; suspend it anew"
    return Waiting(frame.frame_id, f"suspension_{status}", text, ref)


def asked_about(frame: Frame, standing: Suspension) -> ToolRun | None:
    """Return the tool that a suspension is about: the one that its purpose names, else the one that is meant to run."""
    named = [tool for tool in frame.tools if standing.purpose in (tool.name, tool.tool_id)]
    meant = [tool for tool in frame.tools if tool.status is ToolStatus.INTENT]
    return next(iter(named or meant), None)


def subject(frame: Frame | None, standing: Suspension) -> str:
    """Return what a suspension is about, and what running that does."""
    tool = asked_about(frame, standing) if frame else None
    if tool is None:
        return standing.purpose or standing.reason
    return f"{tool.name}, {tool.effect}"


def status_now(standing: Suspension, now_us: int) -> SuspensionStatus:
    """Return where a suspension stands at a moment: one that was not decided in time has expired."""
    over = standing.expires_us is not None and standing.expires_us <= now_us
    if over and standing.status is SuspensionStatus.WAITING:
        return SuspensionStatus.EXPIRED
    return standing.status


def until(standing: Suspension, now_us: int) -> str:
    """Return until when a suspension waits, in words."""
    if standing.expires_us is None:
        return "never expires"
    return f"expires in {figures.span((standing.expires_us - now_us) / 1e6)}"
