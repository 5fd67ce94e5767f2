"""`limpet suspensions list` and `show`: what waits for a person's word. A token is never shown: none is kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from limpet import errors
from limpet.cli import again, exits, figures, target, visible
from limpet.cli.frames import naming, waiting
from limpet.cli.options import Common
from limpet.cli.showing import compact
from limpet.cli.surface import Face, Surface
from limpet.core.values import ids
from limpet.core.values.frame_state import Scope, SuspensionStatus
from limpet.core.values.json_values import thaw

if TYPE_CHECKING:
    from limpet.core.values.frame_state import Frame, Suspension
    from limpet.core.values.json_values import Json
    from limpet.wiring import Limpet


def document(of: Suspension, frame: Frame | None = None) -> dict[str, Json]:
    """Return what every document says of a suspension. What is kept of its token is not in it."""
    tool = waiting.asked_about(frame, of) if frame else None
    return {
        "id": of.suspension_id,
        "frame": of.frame_id,
        "root": of.root_id,
        "actor": of.scope.actor_id,
        "session": of.scope.session_id,
        "thread": of.scope.thread_id,
        "status": str(waiting.status_now(of, time.time_ns() // 1000)),
        "purpose": of.purpose,
        "reason": of.reason,
        "payload": thaw(of.payload),
        "tool": tool.name if tool else None,
        "effect": str(tool.effect) if tool else None,
        "suspended_at": of.suspended_at,
        "expires_at": of.expires_at,
        "decided_at": None if of.decided_us is None else ids.iso(of.decided_us),
        "decided_by": of.decided_by,
        "decision_reason": of.decision_reason,
    }


def list_(*, all_: bool, actor: str | None, limit: int, common: Common) -> int:
    """Print suspensions, newest first."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        scope = Scope(actor) if actor else None
        found = lp.index.list_suspensions(scope, waiting=not all_, limit=limit + 1)
    shown = found[:limit]
    if surface.face is Face.JSON:
        surface.document(
            {"suspensions": [document(one) for one in shown], "more": len(found) > limit}
        )
        return exits.DONE
    if surface.face is Face.PIPE:
        for one in shown:
            told = document(one)
            surface.row(*(told[name] for name in COLUMNS))
    elif shown:
        _show_list(surface, shown)
    else:
        surface.note("Nothing was ever asked." if all_ else "Nothing waits for a decision.")
    if len(found) > limit:
        words = [*["--all"][:all_], *(again.option("--actor", actor) if actor else ())]
        more = again.command("suspensions list", *words, "--limit", str(limit * 10), on=common.on)
        surface.note(f"There are more: {more}")
    return exits.DONE


COLUMNS = (
    "id",
    "status",
    "frame",
    "actor",
    "session",
    "purpose",
    "suspended_at",
    "expires_at",
    "reason",
)
"""What a line of TSV holds, in order."""


def _show_list(surface: Surface, shown: list[Suspension]) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    now = time.time_ns() // 1000
    known = [one.suspension_id for one in shown] + [one.frame_id for one in shown]
    short = naming.shortened(known, surface.glyphs.cut)
    rows: list[list[Text]] = []
    for one in shown:
        status = waiting.status_now(one, now)
        cells = (
            Text(short[one.suspension_id], style="cyan"),
            Text(str(status), style="yellow" if status is SuspensionStatus.WAITING else "dim"),
            Text(short[one.frame_id]),
            Text(visible.line(one.scope.actor_id)),
            Text(figures.ago(one.suspended_at)),
            Text(visible.line(one.purpose)),
            Text(visible.line(one.reason)),
        )
        rows.append(list(cells))
    surface.listed(["ID", "STATUS", "FRAME", "ACTOR", "ASKED", "PURPOSE", "REASON"], rows)


def show(reference: str, common: Common) -> int:
    """Print a suspension: what is asked about, by whom, until when, and how it was decided."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        found = naming.suspension(lp, reference)
        frame = lp.index.get_frame(found.frame_id)
        user = _user(lp, found)
    told = document(found, frame) | {"goal": frame.goal, "user": user}
    if surface.face is Face.JSON:
        surface.document(told)
    elif surface.face is Face.PIPE:
        for name, value in told.items():
            surface.row(name, compact(value) if name == "payload" else value)
    else:
        _show(surface, told, found, frame)
        if told["status"] == "waiting":
            surface.note(
                f"to decide: {again.command('approvals approve', named=found.suspension_id, on=common.on)}"
            )
            surface.note(
                f"       or: {again.command('approvals reject', named=found.suspension_id, on=common.on)}"
            )
    return exits.DONE


def _user(lp: Limpet, found: Suspension) -> str | None:
    """Return whose session a suspension is about, if it is about one that is there."""
    if found.scope.session_id is not None:
        with contextlib.suppress(errors.NotFound):
            return lp.sessions.get_session(found.scope.session_id).user_id
    return None


def _show(surface: Surface, told: Mapping[str, Json], found: Suspension, frame: Frame) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    heading = headline(told, found, surface)
    surface.console.print(Text(visible.line(heading), style="bold"), soft_wrap=True)
    for line in payload_lines(found):
        surface.console.print(Text(line), soft_wrap=True)
    facts = [
        ("reason", found.reason),
        (
            "frame",
            f"{frame.frame_id} {surface.glyphs.dot} {frame.status} {surface.glyphs.dot} {frame.goal}",
        ),
        ("id", found.suspension_id),
    ]
    if told["decided_at"]:
        by = f" by {told['decided_by']}" if told["decided_by"] else ""
        why = f": {told['decision_reason']}" if told["decision_reason"] else ""
        facts.append((str(told["status"]), f"{told['decided_at']}{by}{why}"))
    surface.facts([(name, visible.line(value)) for name, value in facts])


def headline(told: Mapping[str, Json], found: Suspension, surface: Surface) -> str:
    """Return what is asked about, what it does, for whom, since when and until when."""
    now = time.time_ns() // 1000
    whom = f"{told['actor']} for {told['user']}" if told["user"] else str(told["actor"])
    parts = [str(told["effect"] or ""), whom]
    if told["status"] == "waiting":
        parts.append(f"waits {figures.span((now - found.suspended_us) / 1e6)}")
        parts.append(
            "never expires"
            if found.expires_us is None
            else f"expires {figures.clock(found.expires_us)}"
        )
    else:
        parts.append(str(told["status"]))
    name = str(told["tool"] or told["purpose"] or "suspension")
    return f"{name}   " + f" {surface.glyphs.dot} ".join(part for part in parts if part)


def payload_lines(found: Suspension) -> list[str]:
    """Return what is asked about, a line for each of its names."""
    payload: Json = thaw(found.payload)
    if payload is None:
        return []
    if not isinstance(payload, dict):
        return [f"  {visible.line(compact(payload))}"]
    told = {visible.line(name): value for name, value in cast("dict[str, Json]", payload).items()}
    width = max(map(len, told), default=0)
    return [f"  {name:<{width}}  {visible.line(compact(told[name]))}" for name in told]
