"""`limpet frames list`: frames of a tenant, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet.cli import again, exits, figures, target, visible
from limpet.cli.frames import books, naming
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values.frame_state import Scope

if TYPE_CHECKING:
    from rich.text import Text

    from limpet.core.values.frame_state import Frame
    from limpet.core.values.json_values import Json
    from limpet.wiring import Limpet


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which frames; every condition given must hold."""

    actor: str | None = None
    session: str | None = None
    all: bool = False
    limit: int = 50


def run(wanted: Filter, common: Common) -> int:
    """Print frames, newest first."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        found = _found(lp, wanted)
    shown = found[: wanted.limit]
    if surface.face is Face.JSON:
        surface.document({"frames": [summary(frame) for frame in shown], "count": len(found)})
        return exits.DONE
    if surface.face is Face.PIPE:
        for frame in shown:
            _row(surface, frame)
    elif shown:
        _show(surface, shown)
    else:
        surface.note("No frame matches." if wanted.all else "No open frame matches.")
    if len(found) > len(shown):
        surface.note(f"There are {len(found):,}: {_whole(wanted, len(found), common)}")
    return exits.DONE


def _found(lp: Limpet, wanted: Filter) -> list[Frame]:
    session = naming.session(lp, wanted.session)
    scope = Scope(wanted.actor, session) if wanted.actor else None
    rows = lp.index.list_frames(scope, open_only=not wanted.all, limit=naming.ALL)
    mine = [frame for frame in rows if session in (None, frame.scope.session_id)]
    return sorted(mine, key=lambda frame: (frame.created_us, frame.frame_id), reverse=True)


def _whole(wanted: Filter, count: int, common: Common) -> str:
    given = [("--actor", wanted.actor), ("--session", wanted.session), ("--limit", count)]
    words = [word for name, value in given if value for word in again.option(name, value)]
    return again.command("frames list", *words, *["--all"][: wanted.all], on=common.on)


def summary(frame: Frame) -> dict[str, Json]:
    """Return what every document says of a frame."""
    scope = frame.scope
    return {
        "id": frame.frame_id,
        "root": frame.root_id,
        "parent": frame.parent_frame_id,
        "depth": frame.depth,
        "actor": scope.actor_id,
        "session": scope.session_id,
        "thread": scope.thread_id,
        "goal": frame.goal,
        "status": str(frame.status),
        "budget": _budget(frame),
        "tools_in_progress": len(frame.tools),
        "tool_calls": frame.tool_calls,
        "created_at": frame.created_at,
        "completed_at": frame.completed_at,
    }


def _budget(frame: Frame) -> dict[str, Json]:
    told = books.account(frame).document()
    # What is below a frame is known where its tree is shown.
    return {name: told[name] for name in told if "descendants" not in name}


def _row(surface: Surface, frame: Frame) -> None:
    of, scope = books.account(frame), frame.scope
    surface.row(
        frame.frame_id, scope.actor_id, scope.session_id, frame.status, frame.depth, of.total, of.used,
        of.reserved, of.lent, of.free, frame.created_at, frame.goal,
    )  # fmt: skip


def _show(surface: Surface, frames: list[Frame]) -> None:
    ids = naming.shortened((frame.frame_id for frame in frames), surface.glyphs.cut)
    surface.listed(
        ["ID", "ACTOR", "STATUS", ">USED", ">FREE", "BEGUN", "GOAL"],
        [_cells(frame, ids[frame.frame_id]) for frame in frames],
    )


def _cells(frame: Frame, short: str) -> list[Text]:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    of = books.account(frame)
    free = f"-{of.overdrawn:,}" if of.overdrawn else f"{of.free:,}" if frame.open else ""
    return [
        Text(short, style="cyan"),
        Text(visible.line(frame.scope.actor_id)),
        Text(str(frame.status), style=STYLES.get(frame.status, "dim")),
        Text(f"{of.used:,}"),
        Text(free, style="red" if of.overdrawn else ""),
        Text(figures.ago(frame.created_at)),
        Text(visible.line(frame.goal)),
    ]


STYLES = {"active": "green", "waiting": "", "suspended": "yellow", "failed": "red"}
"""How a status is shown; what is over is dim."""
