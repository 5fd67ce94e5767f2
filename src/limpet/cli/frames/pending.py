"""`limpet frames pending`: what an actor would find if it came back now. Looks only: nothing is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from limpet.cli import exits, target, visible
from limpet.cli.frames import naming
from limpet.cli.frames.showing import tool_document
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.rules.frame_rules import pending_work
from limpet.core.values.frame_state import PendingWorkType, Scope

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame, PendingWork
    from limpet.core.values.json_values import Json
    from limpet.wiring import Limpet


def run(actor: str, session: str | None, common: Common) -> int:
    """Print the work of an actor that waits."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        stack, others = _frames(lp, Scope(actor, naming.session(lp, session)))
    work = pending_work((*stack, *others))
    if surface.face is Face.JSON:
        surface.document(
            {
                "actor": actor,
                "stack": [frame.frame_id for frame in stack],
                "others": [frame.frame_id for frame in others],
                "pending": [_document(one) for one in work],
            }
        )
    elif surface.face is Face.PIPE:
        for one in work:
            surface.row(one.frame_id, one.work_type, one.ref_id, _effect(one), one.description)
    elif work:
        _show(surface, work)
    if not work and surface.face is not Face.JSON:
        surface.note(f"Nothing of {actor} waits." if stack else f"{actor} has no open frame.")
    return exits.DONE


def _frames(lp: Limpet, scope: Scope) -> tuple[list[Frame], list[Frame]]:
    """Return the stack that an actor would come back to, root first, and its other open frames, oldest first."""
    rows = lp.index.list_frames(scope, limit=naming.ALL)
    if not rows:
        return [], []
    tree = lp.index.get_tree(rows[0].frame_id)
    if rows[0].frame_id not in tree.frames:
        return [], []
    stack = list(tree.ancestry(rows[0].frame_id))
    seen = {frame.frame_id for frame in stack}
    others = [
        lp.index.get_frame(row.frame_id)
        for row in sorted(rows, key=lambda row: (row.created_us, row.frame_id))
        if row.frame_id not in seen
    ]
    return stack, [frame for frame in others if frame.open]


def _effect(work: PendingWork) -> str | None:
    return f"{work.tool.status}, {work.tool.effect}" if work.tool else None


def _document(work: PendingWork) -> dict[str, Json]:
    return {
        "frame": work.frame_id,
        "type": str(work.work_type),
        "description": work.description,
        "ref": work.ref_id or None,
        "tool": tool_document(work.tool) if work.tool else None,
    }


def _show(surface: Surface, work: tuple[PendingWork, ...]) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    ids = naming.shortened(
        [one.frame_id for one in work] + [one.ref_id for one in work], surface.glyphs.cut
    )
    rows = [
        [
            Text(ids[one.frame_id], style="cyan"),
            Text(_KINDS[one.work_type]),
            Text(ids[one.ref_id]),
            Text(_effect(one) or ""),
            Text(visible.line(one.description)),
        ]
        for one in work
    ]
    surface.listed(["FRAME", "WAITS FOR", "REF", "TOOL", "WHAT"], rows)


_KINDS: Mapping[PendingWorkType, str] = {
    PendingWorkType.WAITING_FOR_SUBCALL: "a child",
    PendingWorkType.WAITING_FOR_USER: "a person",
    PendingWorkType.TOOL_IN_PROGRESS: "a tool",
    PendingWorkType.UNHANDLED_ERROR: "a failure",
}
