"""`limpet suspensions`: list, show, approve, edit, reject, revoke.

Also `frames resolve` and `frames cancel`. A suspension token is never shown: only its hash is
stored.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from limpet import errors
from limpet.cli import confirm, exit_codes, formatting, hints, output, target
from limpet.cli.options import CommonOptions
from limpet.cli.output import Output, OutputMode
from limpet.cli.subcommands import frame_tree_commands
from limpet.cli.subcommands.session_commands import compact_json
from limpet.core.values import events, ids
from limpet.core.values.frame_state import FrameStatus, Scope, SuspensionStatus
from limpet.core.values.validation import thaw

if TYPE_CHECKING:
    from limpet.admin.log import LogEvent
    from limpet.core.values.frame_state import Frame, Suspension
    from limpet.core.values.validation import Json
    from limpet.wiring import Limpet


def suspension_document(of: Suspension, frame: Frame | None = None) -> dict[str, Json]:
    """Return what every document says of a suspension. What is kept of its token is not in it."""
    tool = frame_tree_commands.tool_of_suspension(frame, of) if frame else None
    return {
        "id": of.suspension_id,
        "frame": of.frame_id,
        "root": of.root_id,
        "actor": of.scope.actor_id,
        "session": of.scope.session_id,
        "thread": of.scope.thread_id,
        "status": str(frame_tree_commands.current_status(of, time.time_ns() // 1000)),
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


def list_suspensions(*, all_: bool, actor: str | None, limit: int, common: CommonOptions) -> int:
    """Print suspensions, newest first."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        scope = Scope(actor) if actor else None
        found = lp.index.list_suspensions(scope, waiting=not all_, limit=limit + 1)
    shown = found[:limit]
    if surface.mode is OutputMode.JSON:
        surface.print_json({"suspensions": [suspension_document(one) for one in shown], "more": len(found) > limit})
        return exit_codes.DONE
    if surface.mode is OutputMode.PIPE:
        for one in shown:
            told = suspension_document(one)
            surface.print_row(*(told[name] for name in SUSPENSION_COLUMNS))
    elif shown:
        _print_suspensions(surface, shown)
    else:
        surface.note("Nothing was ever asked." if all_ else "Nothing waits for a decision.")
    if len(found) > limit:
        words = [*["--all"][:all_], *(hints.option_words("--actor", actor) if actor else ())]
        more = hints.command_line("suspensions list", *words, "--limit", str(limit * 10), on=common.store_options)
        surface.note(f"There are more: {more}")
    return exit_codes.DONE


SUSPENSION_COLUMNS = ("id", "status", "frame", "actor", "session", "purpose", "suspended_at", "expires_at", "reason")
"""What a line of TSV holds, in order."""


def _print_suspensions(surface: Output, shown: list[Suspension]) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    now = time.time_ns() // 1000
    known = [one.suspension_id for one in shown] + [one.frame_id for one in shown]
    short = target.short_ids(known, surface.symbols.cut)
    rows: list[list[Text]] = []
    for one in shown:
        status = frame_tree_commands.current_status(one, now)
        cells = (
            Text(short[one.suspension_id], style="cyan"),
            Text(str(status), style="yellow" if status is SuspensionStatus.WAITING else "dim"),
            Text(short[one.frame_id]),
            Text(output.escape_line(one.scope.actor_id)),
            Text(formatting.relative_time(one.suspended_at)),
            Text(output.escape_line(one.purpose)),
            Text(output.escape_line(one.reason)),
        )
        rows.append(list(cells))
    surface.print_table(["ID", "STATUS", "FRAME", "ACTOR", "ASKED", "PURPOSE", "REASON"], rows)


def show_suspension(reference: str, common: CommonOptions) -> int:
    """Print a suspension: what is asked about, by whom, until when, and how it was decided."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        found = target.find_suspension(lp, reference)
        frame = lp.index.get_frame(found.frame_id)
        user = _session_user(lp, found)
    told = suspension_document(found, frame) | {"goal": frame.goal, "user": user}
    if surface.mode is OutputMode.JSON:
        surface.print_json(told)
    elif surface.mode is OutputMode.PIPE:
        for name, value in told.items():
            surface.print_row(name, compact_json(value) if name == "payload" else value)
    else:
        _print_suspension(surface, told, found, frame)
        if told["status"] == "waiting":
            surface.note(
                f"to decide: {hints.command_line('approvals approve', named=found.suspension_id, on=common.store_options)}"
            )
            surface.note(
                f"       or: {hints.command_line('approvals reject', named=found.suspension_id, on=common.store_options)}"
            )
    return exit_codes.DONE


def _session_user(lp: Limpet, found: Suspension) -> str | None:
    """Return whose session a suspension is about, if it is about one that is there."""
    if found.scope.session_id is not None:
        with contextlib.suppress(errors.NotFound):
            return lp.sessions.get_session(found.scope.session_id).user_id
    return None


def _print_suspension(surface: Output, told: Mapping[str, Json], found: Suspension, frame: Frame) -> None:
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for rich

    heading = suspension_headline(told, found, surface)
    surface.console.print(Text(output.escape_line(heading), style="bold"), soft_wrap=True)
    for line in payload_lines(found):
        surface.console.print(Text(line), soft_wrap=True)
    facts = [
        ("reason", found.reason),
        ("frame", f"{frame.frame_id} {surface.symbols.dot} {frame.status} {surface.symbols.dot} {frame.goal}"),
        ("id", found.suspension_id),
    ]
    if told["decided_at"]:
        by = f" by {told['decided_by']}" if told["decided_by"] else ""
        why = f": {told['decision_reason']}" if told["decision_reason"] else ""
        facts.append((str(told["status"]), f"{told['decided_at']}{by}{why}"))
    surface.print_facts([(name, output.escape_line(value)) for name, value in facts])


def suspension_headline(told: Mapping[str, Json], found: Suspension, surface: Output) -> str:
    """Return what is asked about, what it does, for whom, since when and until when."""
    now = time.time_ns() // 1000
    whom = f"{told['actor']} for {told['user']}" if told["user"] else str(told["actor"])
    parts = [str(told["effect"] or ""), whom]
    if told["status"] == "waiting":
        parts.append(f"waits {formatting.duration((now - found.suspended_us) / 1e6)}")
        parts.append(
            "never expires" if found.expires_us is None else f"expires {formatting.local_time(found.expires_us)}"
        )
    else:
        parts.append(str(told["status"]))
    name = str(told["tool"] or told["purpose"] or "suspension")
    return f"{name}   " + f" {surface.symbols.dot} ".join(part for part in parts if part)


def payload_lines(found: Suspension) -> list[str]:
    """Return what is asked about, a line for each of its names."""
    payload: Json = thaw(found.payload)
    if payload is None:
        return []
    if not isinstance(payload, dict):
        return [f"  {output.escape_line(compact_json(payload))}"]
    told = {output.escape_line(name): value for name, value in cast("dict[str, Json]", payload).items()}
    width = max(map(len, told), default=0)
    return [f"  {name:<{width}}  {output.escape_line(compact_json(told[name]))}" for name in told]


@dataclass(frozen=True, kw_only=True)
class DecisionCommandOptions:
    """What a person says about a suspension: the word, why, who, the payload of an edit, and whether to ask."""

    word: str
    reason: str = ""
    by: str | None = None
    payload: str | None = None
    yes: bool = False


_PAST_TENSE: Mapping[str, str] = {"approve": "approved", "edit": "edited", "reject": "rejected", "revoke": "revoked"}


def decide_suspension(reference: str, said: DecisionCommandOptions, common: CommonOptions) -> int:
    """Approve, edit, reject or revoke a suspension; exit 5 if somebody else was first."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    by = said.by or _current_user()
    payload = _parse_json("--payload", said.payload) if said.payload is not None else None
    with target.open_store(common) as lp:
        found = target.find_suspension(lp, reference)
        _require_waiting(found, common)
        frame = lp.index.get_frame(found.frame_id)
        _confirm_decision(surface, found, frame, said, common)
        before = _head_position(lp, common)
        try:
            frame = _apply_decision(lp, found, said, by, payload)
        except errors.AlreadyDecided as error:
            raise _already_decided(lp.index.get_suspension(found.suspension_id), common) from error
        event = _first_event_position(lp, before, lambda fact: _ends_suspension(fact, found))
        if event is None:
            raise _already_decided(lp.index.get_suspension(found.suspension_id), common)
    _print_decision(surface, frame, found, (_PAST_TENSE[said.word], by, event))
    return exit_codes.DONE


def _apply_decision(lp: Limpet, found: Suspension, said: DecisionCommandOptions, by: str, payload: Json) -> Frame:
    if said.word == "revoke":
        return lp.index.revoke_suspension(found.suspension_id, by=by, reason=said.reason)
    if said.word == "edit":
        return lp.index.decide_suspension(found.suspension_id, "edit", by=by, reason=said.reason, payload=payload)
    return lp.index.decide_suspension(found.suspension_id, said.word, by=by, reason=said.reason)


def _ends_suspension(fact: LogEvent, found: Suspension) -> bool:
    match fact.event:
        case events.FrameResumedEvent(suspension_id=id_):
            return id_ == found.suspension_id
        case events.FrameUpdatedEvent(frame_id=id_, suspension=SuspensionStatus.REVOKED):
            return id_ == found.frame_id
        case _:
            return False


def _require_waiting(found: Suspension, common: CommonOptions) -> None:
    if found.status is not SuspensionStatus.WAITING:
        raise _already_decided(found, common)


def _already_decided(found: Suspension, common: CommonOptions) -> exit_codes.CommandFailure:
    who = f" by {found.decided_by}" if found.decided_by else ""
    at = f"{ids.iso(found.decided_us)[:19]}Z" if found.decided_us is not None else None
    when = f" at {at}" if at else ""
    see = hints.command_line("approvals show", named=found.suspension_id, on=common.store_options)
    return exit_codes.CommandFailure(
        exit_codes.CommandProblem(
            exit_codes.CONFLICT,
            errors.AlreadyDecided.code,
            f"{found.suspension_id} was already {found.status}{who}{when}.",
            "Nothing was done.",
            f"See: {see}",
            {"suspension": found.suspension_id, "status": str(found.status), "by": found.decided_by, "at": at},
        )
    )


def _confirm_decision(
    surface: Output, found: Suspension, frame: Frame, said: DecisionCommandOptions, common: CommonOptions
) -> None:
    what = frame_tree_commands.suspension_subject(frame, found)
    question = f"{said.word} {what} for {found.scope.actor_id} in {target.store_name(common.url)}?"
    asked = [*payload_lines(found)]
    if said.payload is not None:
        asked.append(f"  instead: {said.payload}")
    confirm.require_confirmation(surface, question, asked, yes=said.yes)


def _print_decision(surface: Output, frame: Frame, found: Suspension, done: tuple[str, str, int]) -> None:
    past, by, event = done
    if surface.mode is OutputMode.JSON:
        surface.print_json(
            {
                "suspension": found.suspension_id, "decision": past, "by": by, "event": event,
                "frame": frame.frame_id, "frame_status": str(frame.status),
            }
        )  # fmt: skip
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(past, found.suspension_id, by, event, frame.frame_id, frame.status)
    else:
        after = "stays suspended" if past == "revoked" else f"is {frame.status} again"
        surface.print_sentence(f"{past} {found.suspension_id} as {by} (event {event:,}). {frame.frame_id} {after}.")


def resolve_tool(frame: str, tool: str, how: str, *, output: str | None, failed: bool, common: CommonOptions) -> int:
    """Settle a tool of unknown outcome."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    if (output is None) is (how == "result"):
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE,
                "usage",
                "a result has its --output." if output is None else f"--output is no part of {how}.",
                "Nothing was done.",
                '--output is JSON, or else text: --output \'{"seat": "12A"}\'',
            )
        )
    with target.open_store(common) as lp:
        found = target.find_frame(lp, frame)
        run = target.find_tool(found, tool)
        value = _parse_json_or_text(output) if output is not None else None
        before = _head_position(lp, common)
        lp.index.resolve_tool(found.frame_id, run.tool_id, how, output=value, is_error=failed)
        event = _first_event_position(lp, before, lambda fact: _concerns_tool(fact, run.tool_id))
    past = {"retry": "runs again", "result": "has its result", "abandon": "is abandoned"}[how]
    if surface.mode is OutputMode.JSON:
        surface.print_json(
            {"frame": found.frame_id, "tool": run.tool_id, "name": run.name, "key": run.key, "how": how, "event": event}
        )  # fmt: skip
    elif surface.mode is OutputMode.PIPE:
        surface.print_row(how, found.frame_id, run.tool_id, run.name, event)
    else:
        surface.print_sentence(f"{run.name} ({run.tool_id}) of {found.frame_id} {past}{_event_suffix(event)}.")
    return exit_codes.DONE


def _concerns_tool(fact: LogEvent, tool_id: str) -> bool:
    event = fact.event
    return isinstance(event, events.FrameUpdatedEvent) and event.tool is not None and event.tool.tool_id == tool_id  # fmt: skip


def cancel_frame(reference: str, *, cascade: bool, reason: str, yes: bool, common: CommonOptions) -> int:
    """Cancel a frame, and with cascade everything below it."""
    surface = Output(as_json=common.json, quiet=common.quiet)
    with target.open_store(common) as lp:
        frame = target.find_frame(lp, reference)
        tree = lp.index.get_tree(frame.frame_id)
        below = tree.open_descendants(frame.frame_id) if frame.frame_id in tree.frames else ()
        if not frame.open:
            raise exit_codes.CommandFailure(_closed_frame_problem(frame))
        if (below or frame.suspension) and not cascade:
            raise exit_codes.CommandFailure(_open_children_problem(frame, len(below)))
        more = f" and {formatting.quantity(len(below), 'open frame')} below it" if below else ""
        confirm.require_confirmation(
            surface,
            f"cancel {frame.frame_id} ({frame.goal}){more} in {target.store_name(common.url)}?",
            [f"  {one.frame_id}  {one.status}  {one.goal}" for one in reversed(below)],
            yes=yes,
        )
        before = _head_position(lp, common)
        lp.index.pop_frame(frame.frame_id, FrameStatus.CANCELLED, reason=reason, cascade=cascade)
        event = _first_event_position(lp, before, lambda fact: _pops_frame(fact, frame.frame_id))
    cancelled = [*(one.frame_id for one in below), frame.frame_id]
    if surface.mode is OutputMode.JSON:
        surface.print_json({"frame": frame.frame_id, "cancelled": cancelled, "reason": reason, "event": event})
    elif surface.mode is OutputMode.PIPE:
        for one in cancelled:
            surface.print_row("cancelled", one)
    else:
        surface.print_sentence(f"cancelled {frame.frame_id}{more}{_event_suffix(event)}.")
    return exit_codes.DONE


def _pops_frame(fact: LogEvent, frame_id: str) -> bool:
    return isinstance(fact.event, events.FramePoppedEvent) and fact.event.frame_id == frame_id


def _closed_frame_problem(frame: Frame) -> exit_codes.CommandProblem:
    when = f" at {frame.completed_at}" if frame.completed_at else ""
    return exit_codes.CommandProblem(
        exit_codes.CONFLICT,
        errors.InvalidTransition.code,
        f"{frame.frame_id} was {frame.status}{when}.",
        "A closed frame does not change any more. Nothing was done.",
        "",
        {"frame": frame.frame_id, "status": str(frame.status)},
        ("frames show",),
        subject=frame.frame_id,
    )


def _open_children_problem(frame: Frame, below: int) -> exit_codes.CommandProblem:
    held = f"has {formatting.quantity(below, 'open frame')} below it" if below else "is suspended"
    kind = errors.OpenChildren if below else errors.InvalidTransition
    return exit_codes.CommandProblem(
        exit_codes.FAILED,
        kind.code,
        f"{frame.frame_id} {held}.",
        "Nothing was done.",
        "To cancel it with all that, add --cascade. To see it:",
        {"frame": frame.frame_id, "open": below},
        ("frames tree",),
        subject=frame.frame_id,
    )


def _event_suffix(event: int | None) -> str:
    return f" (event {event:,})" if event is not None else ""


def _current_user() -> str:
    """Return who sits at this keyboard."""
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE, "nobody", "it is not known who decides.", "USER is not set.", "Say who: --by ola"
            )
        ) from error  # fmt: skip


def _parse_json(option: str, text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise exit_codes.CommandFailure(
            exit_codes.CommandProblem(
                exit_codes.USAGE,
                "bad_json",
                f"{option} is not JSON: {error}.",
                "Nothing was done.",
                f'{option} \'{{"seat": "12A"}}\'',
            )
        ) from error


def _parse_json_or_text(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _head_position(lp: Limpet, common: CommonOptions) -> int:
    heads: Mapping[str, Mapping[str, int]] = lp.admin.status().get("heads", {})
    return heads.get(common.tenant, {}).get("position", 0)


def _first_event_position(lp: Limpet, after: int, is_it: Callable[[LogEvent], bool]) -> int | None:
    """Return where in the log the first event of a kind stands after a position."""
    return next((fact.position for fact in lp.events.feed(after) if is_it(fact)), None)
