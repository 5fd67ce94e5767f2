"""Commands that change something: decide and revoke suspensions, resolve tools, cancel frames.

What can't be taken back is asked for on a terminal; whoever can't be asked has to say --yes.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpet import errors
from limpet.cli import again, asking, exits, figures, target
from limpet.cli.frames import naming, suspensions, waiting
from limpet.cli.options import Common
from limpet.cli.surface import Face, Surface
from limpet.core.values import events as e
from limpet.core.values import ids
from limpet.core.values.frame_state import FrameStatus, SuspensionStatus

if TYPE_CHECKING:
    from limpet.admin.log import Fact
    from limpet.core.values.frame_state import Frame, Suspension
    from limpet.core.values.json_values import Json
    from limpet.wiring import Limpet


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a person says about a suspension: the word, why, who, the payload of an edit, and whether to ask."""

    word: str
    reason: str = ""
    by: str | None = None
    payload: str | None = None
    yes: bool = False


_PAST: Mapping[str, str] = {
    "approve": "approved",
    "edit": "edited",
    "reject": "rejected",
    "revoke": "revoked",
}


def decide(reference: str, said: Said, common: Common) -> int:
    """Approve, edit, reject or revoke a suspension; exit 5 if somebody else was first."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    by = said.by or _user()
    payload = _json("--payload", said.payload) if said.payload is not None else None
    with target.opened(common) as lp:
        found = naming.suspension(lp, reference)
        _check_waiting(found, common)
        frame = lp.index.get_frame(found.frame_id)
        _ask_about(surface, found, frame, said, common)
        before = _head(lp, common)
        try:
            frame = _decided(lp, found, said, by, payload)
        except errors.AlreadyDecided as error:
            raise _too_late(lp.index.get_suspension(found.suspension_id), common) from error
        event = _position(lp, before, lambda fact: _ends(fact, found))
        if event is None:
            raise _too_late(lp.index.get_suspension(found.suspension_id), common)
    _tell_decision(surface, frame, found, (_PAST[said.word], by, event))
    return exits.DONE


def _decided(lp: Limpet, found: Suspension, said: Said, by: str, payload: Json) -> Frame:
    if said.word == "revoke":
        return lp.index.revoke_suspension(found.suspension_id, by=by, reason=said.reason)
    if said.word == "edit":
        return lp.index.decide_suspension(
            found.suspension_id, "edit", by=by, reason=said.reason, payload=payload
        )
    return lp.index.decide_suspension(found.suspension_id, said.word, by=by, reason=said.reason)


def _ends(fact: Fact, found: Suspension) -> bool:
    match fact.event:
        case e.FrameResumedEvent(suspension_id=id_):
            return id_ == found.suspension_id
        case e.FrameUpdatedEvent(frame_id=id_, suspension=SuspensionStatus.REVOKED):
            return id_ == found.frame_id
        case _:
            return False


def _check_waiting(found: Suspension, common: Common) -> None:
    if found.status is not SuspensionStatus.WAITING:
        raise _too_late(found, common)


def _too_late(found: Suspension, common: Common) -> exits.Failure:
    who = f" by {found.decided_by}" if found.decided_by else ""
    at = f"{ids.iso(found.decided_us)[:19]}Z" if found.decided_us is not None else None
    when = f" at {at}" if at else ""
    see = again.command("approvals show", named=found.suspension_id, on=common.on)
    return exits.Failure(
        exits.Problem(
            exits.CONFLICT,
            errors.AlreadyDecided.code,
            f"{found.suspension_id} was already {found.status}{who}{when}.",
            "Nothing was done.",
            f"See: {see}",
            {
                "suspension": found.suspension_id,
                "status": str(found.status),
                "by": found.decided_by,
                "at": at,
            },
        )
    )


def _ask_about(
    surface: Surface, found: Suspension, frame: Frame, said: Said, common: Common
) -> None:
    what = waiting.subject(frame, found)
    question = f"{said.word} {what} for {found.scope.actor_id} in {target.named(common.url)}?"
    asked = [*suspensions.payload_lines(found)]
    if said.payload is not None:
        asked.append(f"  instead: {said.payload}")
    asking.confirm(surface, question, asked, yes=said.yes)


def _tell_decision(
    surface: Surface, frame: Frame, found: Suspension, done: tuple[str, str, int]
) -> None:
    past, by, event = done
    if surface.face is Face.JSON:
        surface.document(
            {
                "suspension": found.suspension_id, "decision": past, "by": by, "event": event,
                "frame": frame.frame_id, "frame_status": str(frame.status),
            }
        )  # fmt: skip
    elif surface.face is Face.PIPE:
        surface.row(past, found.suspension_id, by, event, frame.frame_id, frame.status)
    else:
        after = "stays suspended" if past == "revoked" else f"is {frame.status} again"
        surface.say(
            f"{past} {found.suspension_id} as {by} (event {event:,}). {frame.frame_id} {after}.",
        )


def resolve(
    frame: str, tool: str, how: str, *, output: str | None, failed: bool, common: Common
) -> int:
    """Settle a tool of unknown outcome."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    if (output is None) is (how == "result"):
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "usage",
                "a result has its --output."
                if output is None
                else f"--output is no part of {how}.",
                "Nothing was done.",
                '--output is JSON, or else text: --output \'{"seat": "12A"}\'',
            )
        )
    with target.opened(common) as lp:
        found = naming.frame(lp, frame)
        run = naming.tool(found, tool)
        value = _json_or_text(output) if output is not None else None
        before = _head(lp, common)
        lp.index.resolve_tool(found.frame_id, run.tool_id, how, output=value, is_error=failed)
        event = _position(lp, before, lambda fact: _of_tool(fact, run.tool_id))
    past = {"retry": "runs again", "result": "has its result", "abandon": "is abandoned"}[how]
    if surface.face is Face.JSON:
        surface.document(
            {"frame": found.frame_id, "tool": run.tool_id, "name": run.name, "key": run.key, "how": how, "event": event}
        )  # fmt: skip
    elif surface.face is Face.PIPE:
        surface.row(how, found.frame_id, run.tool_id, run.name, event)
    else:
        surface.say(f"{run.name} ({run.tool_id}) of {found.frame_id} {past}{_at(event)}.")
    return exits.DONE


def _of_tool(fact: Fact, tool_id: str) -> bool:
    event = fact.event
    return isinstance(event, e.FrameUpdatedEvent) and event.tool is not None and event.tool.tool_id == tool_id  # fmt: skip


def cancel(reference: str, *, cascade: bool, reason: str, yes: bool, common: Common) -> int:
    """Cancel a frame, and with cascade everything below it."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        frame = naming.frame(lp, reference)
        tree = lp.index.get_tree(frame.frame_id)
        below = tree.below(frame.frame_id) if frame.frame_id in tree.frames else ()
        if not frame.open:
            raise exits.Failure(_closed(frame))
        if (below or frame.suspension) and not cascade:
            raise exits.Failure(_held(frame, len(below)))
        more = f" and {figures.count(len(below), 'open frame')} below it" if below else ""
        asking.confirm(
            surface,
            f"cancel {frame.frame_id} ({frame.goal}){more} in {target.named(common.url)}?",
            [f"  {one.frame_id}  {one.status}  {one.goal}" for one in reversed(below)],
            yes=yes,
        )
        before = _head(lp, common)
        lp.index.pop_frame(frame.frame_id, FrameStatus.CANCELLED, reason=reason, cascade=cascade)
        event = _position(lp, before, lambda fact: _pops(fact, frame.frame_id))
    cancelled = [*(one.frame_id for one in below), frame.frame_id]
    if surface.face is Face.JSON:
        surface.document(
            {"frame": frame.frame_id, "cancelled": cancelled, "reason": reason, "event": event}
        )
    elif surface.face is Face.PIPE:
        for one in cancelled:
            surface.row("cancelled", one)
    else:
        surface.say(f"cancelled {frame.frame_id}{more}{_at(event)}.")
    return exits.DONE


def _pops(fact: Fact, frame_id: str) -> bool:
    return isinstance(fact.event, e.FramePoppedEvent) and fact.event.frame_id == frame_id


def _closed(frame: Frame) -> exits.Problem:
    when = f" at {frame.completed_at}" if frame.completed_at else ""
    return exits.Problem(
        exits.CONFLICT,
        errors.InvalidTransition.code,
        f"{frame.frame_id} was {frame.status}{when}.",
        "A closed frame does not change any more. Nothing was done.",
        "",
        {"frame": frame.frame_id, "status": str(frame.status)},
        ("frames show",),
        named=frame.frame_id,
    )


def _held(frame: Frame, below: int) -> exits.Problem:
    held = f"has {figures.count(below, 'open frame')} below it" if below else "is suspended"
    kind = errors.OpenChildren if below else errors.InvalidTransition
    return exits.Problem(
        exits.FAILED,
        kind.code,
        f"{frame.frame_id} {held}.",
        "Nothing was done.",
        "To cancel it with all that, add --cascade. To see it:",
        {"frame": frame.frame_id, "open": below},
        ("frames tree",),
        named=frame.frame_id,
    )


def _at(event: int | None) -> str:
    return f" (event {event:,})" if event is not None else ""


def _user() -> str:
    """Return who sits at this keyboard."""
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise exits.Failure(
            exits.Problem(
                exits.USAGE, "nobody", "it is not known who decides.", "USER is not set.", "Say who: --by ola"
            )
        ) from error  # fmt: skip


def _json(option: str, text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise exits.Failure(
            exits.Problem(
                exits.USAGE,
                "bad_json",
                f"{option} is not JSON: {error}.",
                "Nothing was done.",
                f'{option} \'{{"seat": "12A"}}\'',
            )
        ) from error


def _json_or_text(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _head(lp: Limpet, common: Common) -> int:
    heads: Mapping[str, Mapping[str, int]] = lp.admin.status().get("heads", {})
    return heads.get(common.tenant, {}).get("position", 0)


def _position(lp: Limpet, after: int, is_it: Callable[[Fact], bool]) -> int | None:
    """Return where in the log the first event of a kind stands after a position."""
    return next((fact.position for fact in lp.events.feed(after) if is_it(fact)), None)
