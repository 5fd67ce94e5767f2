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
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from limpet import errors
from limpet.cli import exit_codes, hints, output, target
from limpet.cli.options import CommonOptions, Confirmed, Limit, Reference, Switch
from limpet.cli.output import Cell, Output, OutputMode
from limpet.cli.subcommands import frame_tree_commands
from limpet.core.values import events, ids
from limpet.core.values.frame_state import FrameStatus, Scope, SuspensionStatus
from limpet.core.values.validation import thaw

if TYPE_CHECKING:
    from limpet.admin.log import LogEvent
    from limpet.core.values.frame_state import Frame, Suspension
    from limpet.core.values.validation import Json
    from limpet.wiring import Limpet


def suspension_document(of: Suspension, frame: Frame | None = None) -> dict[str, Json]:
    """Return a suspension as JSON, without the hash of its token."""
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


def list_suspensions(
    *,
    all: Switch = False,  # noqa: A002 - the name of the option
    actor: str | None = None,
    limit: Limit = 50,
    common: CommonOptions = CommonOptions(),
) -> None:
    """List the suspensions that wait for a decision, newest first.

    Example: limpet suspensions list --actor planner

    Args:
        all: Also suspensions that were decided or revoked, or have expired.
        actor: Only suspensions of this actor.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        scope = Scope(actor) if actor else None
        found = lp.index.list_suspensions(scope, waiting=not all, limit=limit + 1)
    shown = found[:limit]
    documents = [suspension_document(one) for one in shown]
    rows = ([document[name] for name in SUSPENSION_COLUMNS] for document in documents)
    if surface.print_data({"suspensions": documents, "more": len(found) > limit}, rows):
        if surface.mode is OutputMode.JSON:
            return
    elif shown:
        _print_suspensions(surface, shown)
    else:
        surface.note("There is no suspension." if all else "No suspension waits for a decision.")
    if len(found) > limit:
        words = [*["--all"][:all], *hints.given_options([("--actor", actor), ("--limit", limit * 10)])]
        more = hints.command_line("suspensions list", *words, on=common.store_options)
        surface.note(f"There are more: {more}")


SUSPENSION_COLUMNS = ("id", "status", "frame", "actor", "session", "purpose", "suspended_at", "expires_at", "reason")
"""The columns of a TSV line, in order."""


def _print_suspensions(surface: Output, shown: list[Suspension]) -> None:
    now = time.time_ns() // 1000
    known = [one.suspension_id for one in shown] + [one.frame_id for one in shown]
    short = target.short_ids(known, surface.symbols.cut)
    rows: list[list[Cell]] = []
    for one in shown:
        status = frame_tree_commands.current_status(one, now)
        rows.append([
            (short[one.suspension_id], "cyan"),
            (str(status), "yellow" if status is SuspensionStatus.WAITING else "dim"),
            short[one.frame_id],
            one.scope.actor_id,
            output.relative_time(one.suspended_at),
            one.purpose,
            one.reason,
        ])  # fmt: skip
    surface.print_table(["ID", "STATUS", "FRAME", "ACTOR", "ASKED", "PURPOSE", "REASON"], rows)


def show_suspension(suspension: Reference, /, *, common: CommonOptions = CommonOptions()) -> None:
    """Show a suspension: what it asks for, its actor, when it expires, and how it was decided.

    Example: limpet suspensions show @last
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        found = target.find_suspension(lp, suspension)
        frame = lp.index.get_frame(found.frame_id)
        user = _session_user(lp, found)
    told = suspension_document(found, frame) | {"goal": frame.goal, "user": user}
    rows = ((name, output.compact_json(value) if name == "payload" else value) for name, value in told.items())
    if not surface.print_data(told, rows):
        _print_suspension(surface, told, found, frame)
        if told["status"] == "waiting":
            command = partial(hints.command_line, named=found.suspension_id, on=common.store_options)
            surface.note(f"to approve: {command('approvals approve')}")
            surface.note(f" to reject: {command('approvals reject')}")


def _session_user(lp: Limpet, found: Suspension) -> str | None:
    """Return the user of the suspension's session; None without a session or a user."""
    if found.scope.session_id is not None:
        with contextlib.suppress(errors.NotFound):
            return lp.sessions.get_session(found.scope.session_id).user_id
    return None


def _print_suspension(surface: Output, told: Mapping[str, Json], found: Suspension, frame: Frame) -> None:
    surface.print_line(suspension_headline(told, found, surface), "bold")
    for line in payload_lines(found):
        surface.print_line(line)
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
    """Return one line: the tool or purpose, its effect, actor and user, waiting time and expiry."""
    now = time.time_ns() // 1000
    whom = f"{told['actor']} for {told['user']}" if told["user"] else str(told["actor"])
    parts = [str(told["effect"] or ""), whom]
    if told["status"] == "waiting":
        parts.append(f"waits {output.duration((now - found.suspended_us) / 1e6)}")
        until = None if found.expires_us is None else output.local_time(found.expires_us)
        parts.append(f"expires {until}" if until else "never expires")
    else:
        parts.append(str(told["status"]))
    name = str(told["tool"] or told["purpose"] or "suspension")
    return f"{name}   " + f" {surface.symbols.dot} ".join(part for part in parts if part)


def payload_lines(found: Suspension) -> list[str]:
    """Return the payload of a suspension, one line for each key."""
    payload: Json = thaw(found.payload)
    if payload is None:
        return []
    if not isinstance(payload, dict):
        return [f"  {output.escape_line(output.compact_json(payload))}"]
    told = {output.escape_line(name): value for name, value in cast("dict[str, Json]", payload).items()}
    width = max(map(len, told), default=0)
    return [f"  {name:<{width}}  {output.escape_line(output.compact_json(told[name]))}" for name in told]


@dataclass(frozen=True, kw_only=True)
class DecisionOptions(CommonOptions):
    """The reason and the author of a decision, and whether to ask first."""

    reason: str = ""
    """The reason. It is recorded and handed to the frame."""
    by: str | None = None
    """The name of the person who decides; else the user of the operating system."""
    yes: Confirmed = False


Verdict = Literal["approve", "edit", "reject", "revoke"]
_PAST_TENSE: Mapping[Verdict, str] = {
    "approve": "approved", "edit": "edited", "reject": "rejected", "revoke": "revoked",
}  # fmt: skip


def approve_suspension(suspension: Reference, /, *, said: DecisionOptions = DecisionOptions()) -> None:
    """Approve the request of a suspended frame: the frame continues with it. Asks first; exit 5 if it was decided already.

    Example: limpet suspensions approve @last --reason "the early one"
    """
    _decide(suspension, "approve", said)


def edit_suspension(suspension: Reference, /, *, payload: str, said: DecisionOptions = DecisionOptions()) -> None:
    """Approve a changed request: the suspended frame continues with another payload. Asks first.

    Example: limpet suspensions edit @last --payload '{"seat": "14C"}'

    Args:
        payload: The payload that the frame gets instead, as JSON.
    """
    _decide(suspension, "edit", said, payload)


def reject_suspension(suspension: Reference, /, *, said: DecisionOptions = DecisionOptions()) -> None:
    """Reject the request of a suspended frame: the frame continues without it. Asks first.

    Example: limpet suspensions reject @last --reason "too expensive"
    """
    _decide(suspension, "reject", said)


def revoke_suspension(suspension: Reference, /, *, said: DecisionOptions = DecisionOptions()) -> None:
    """Revoke the token of a suspension. The frame stays suspended until it is suspended again. Asks first.

    Example: limpet suspensions revoke @last --reason "the token leaked"
    """
    _decide(suspension, "revoke", said)


def _decide(reference: str, verdict: Verdict, said: DecisionOptions, payload_text: str | None = None) -> None:
    surface = Output(said)
    by = said.by or _current_user()
    payload = _parse_json("--payload", payload_text) if payload_text is not None else None
    with target.open_store(said) as lp:
        found = target.find_suspension(lp, reference)
        if found.status is not SuspensionStatus.WAITING:
            raise _already_decided(found, said)
        frame = lp.index.get_frame(found.frame_id)
        what = frame_tree_commands.suspension_subject(frame, found)
        question = f"{verdict} {what} for {found.scope.actor_id} in {target.store_name(said.url)}?"
        instead = [f"  instead: {payload_text}"] if payload_text is not None else []
        surface.confirm(question, [*payload_lines(found), *instead], yes=said.yes)
        before = target.head_position(lp, said.tenant)
        try:
            frame = _apply_decision(lp, found, verdict, {"by": by, "reason": said.reason}, payload)
        except errors.AlreadyDecided as error:
            raise _already_decided(lp.index.get_suspension(found.suspension_id), said) from error
        event = _first_event_position(lp, before, lambda fact: _ends_suspension(fact, found))
        if event is None:
            raise _already_decided(lp.index.get_suspension(found.suspension_id), said)
    _print_decision(surface, frame, found, (_PAST_TENSE[verdict], by, event))


def _apply_decision(lp: Limpet, found: Suspension, verdict: Verdict, signed: Mapping[str, str], payload: Json) -> Frame:
    if verdict == "revoke":
        return lp.index.revoke_suspension(found.suspension_id, **signed)
    if verdict == "edit":
        return lp.index.decide_suspension(found.suspension_id, "edit", **signed, payload=payload)
    return lp.index.decide_suspension(found.suspension_id, verdict, **signed)


def _ends_suspension(fact: LogEvent, found: Suspension) -> bool:
    match fact.event:
        case events.FrameResumedEvent(suspension_id=id_):
            return id_ == found.suspension_id
        case events.FrameUpdatedEvent(frame_id=id_, suspension=SuspensionStatus.REVOKED):
            return id_ == found.frame_id
        case _:
            return False


def _already_decided(found: Suspension, common: CommonOptions) -> exit_codes.CommandFailure:
    who = f" by {found.decided_by}" if found.decided_by else ""
    at = f"{ids.iso(found.decided_us)[:19]}Z" if found.decided_us is not None else None
    when = f" at {at}" if at else ""
    see = hints.command_line("approvals show", named=found.suspension_id, on=common.store_options)
    return exit_codes.failure(
        exit_codes.CONFLICT,
        errors.AlreadyDecided.code,
        f"{found.suspension_id} was already {found.status}{who}{when}.",
        "Nothing was done.",
        f"See: {see}",
        facts={"suspension": found.suspension_id, "status": str(found.status), "by": found.decided_by, "at": at},
    )


def _print_decision(surface: Output, frame: Frame, found: Suspension, done: tuple[str, str, int]) -> None:
    past, by, event = done
    document: Json = {
        "suspension": found.suspension_id, "decision": past, "by": by, "event": event,
        "frame": frame.frame_id, "frame_status": str(frame.status),
    }  # fmt: skip
    if not surface.print_data(document, [(past, found.suspension_id, by, event, frame.frame_id, frame.status)]):
        after = "stays suspended" if past == "revoked" else f"is {frame.status} again"
        surface.print_line(f"{past} {found.suspension_id} as {by} (event {event:,}). {frame.frame_id} {after}.")


def resolve_tool(
    frame: Reference,
    tool: str,
    how: Literal["retry", "result", "abandon"],
    /,
    *,
    output: str | None = None,
    failed: Switch = False,
    common: CommonOptions = CommonOptions(),
) -> None:
    """Resolve a tool of unknown outcome: retry it with the same key, set its result, or abandon it.

    Example: limpet frames resolve @last book_flight result --output '{"seat": "12A"}'

    Args:
        tool: Its id, a prefix of it, or its name if that is unique in the frame.
        how: How to resolve the tool.
        output: The result: JSON, or text if it is not valid JSON.
        failed: Record the result as an error.
    """
    surface = Output(common)
    if (output is None) is (how == "result"):
        told = "result needs --output." if output is None else f"{how} takes no --output."
        raise exit_codes.usage_failure(told, '--output is JSON or text: --output \'{"seat": "12A"}\'')
    with target.open_store(common) as lp:
        found = target.find_frame(lp, frame)
        run = target.find_tool(found, tool)
        value = _parse_json_or_text(output) if output is not None else None
        before = target.head_position(lp, common.tenant)
        lp.index.resolve_tool(found.frame_id, run.tool_id, how, output=value, is_error=failed)
        event = _first_event_position(lp, before, lambda fact: _concerns_tool(fact, run.tool_id))
    past = {"retry": "runs again", "result": "has its result", "abandon": "is abandoned"}[how]
    document: Json = {
        "frame": found.frame_id, "tool": run.tool_id, "name": run.name, "key": run.key, "how": how, "event": event,
    }  # fmt: skip
    if not surface.print_data(document, [(how, found.frame_id, run.tool_id, run.name, event)]):
        surface.print_line(f"{run.name} ({run.tool_id}) of {found.frame_id} {past}{_event_suffix(event)}.")


def _concerns_tool(fact: LogEvent, tool_id: str) -> bool:
    event = fact.event
    return isinstance(event, events.FrameUpdatedEvent) and event.tool is not None and event.tool.tool_id == tool_id  # fmt: skip


def cancel_frame(
    frame: Reference,
    /,
    *,
    cascade: Switch = False,
    reason: str = "",
    yes: Confirmed = False,
    common: CommonOptions = CommonOptions(),
) -> None:
    """Cancel a frame: its parent is charged for the used tokens and gets the rest of the budget back. Asks first.

    Example: limpet frames cancel @last --reason "not needed any more"

    Args:
        cascade: First cancel the open frames below it. Also needed for a suspended frame.
        reason: The reason. It is recorded.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        found = target.find_frame(lp, frame)
        tree = lp.index.get_tree(found.frame_id)
        below = tree.open_descendants(found.frame_id) if found.frame_id in tree.frames else ()
        if not found.open:
            raise _closed_frame(found)
        if (below or found.suspension) and not cascade:
            raise _open_children(found, len(below))
        more = f" and {output.quantity(len(below), 'open frame')} below it" if below else ""
        surface.confirm(
            f"cancel {found.frame_id} ({found.goal}){more} in {target.store_name(common.url)}?",
            [f"  {one.frame_id}  {one.status}  {one.goal}" for one in reversed(below)],
            yes=yes,
        )
        before = target.head_position(lp, common.tenant)
        lp.index.pop_frame(found.frame_id, FrameStatus.CANCELLED, reason=reason, cascade=cascade)
        event = _first_event_position(lp, before, lambda fact: _pops_frame(fact, found.frame_id))
    cancelled = [*(one.frame_id for one in below), found.frame_id]
    document: Json = {"frame": found.frame_id, "cancelled": cancelled, "reason": reason, "event": event}
    if not surface.print_data(document, (("cancelled", one) for one in cancelled)):
        surface.print_line(f"cancelled {found.frame_id}{more}{_event_suffix(event)}.")


def _pops_frame(fact: LogEvent, frame_id: str) -> bool:
    return isinstance(fact.event, events.FramePoppedEvent) and fact.event.frame_id == frame_id


def _closed_frame(frame: Frame) -> exit_codes.CommandFailure:
    when = f" at {frame.completed_at}" if frame.completed_at else ""
    return exit_codes.failure(
        exit_codes.CONFLICT,
        errors.InvalidTransition.code,
        f"{frame.frame_id} was {frame.status}{when}.",
        "A closed frame can't be changed. Nothing was done.",
        "",
        facts={"frame": frame.frame_id, "status": str(frame.status)},
        command=("frames show",),
        subject=frame.frame_id,
    )


def _open_children(frame: Frame, below: int) -> exit_codes.CommandFailure:
    held = f"has {output.quantity(below, 'open frame')} below it" if below else "is suspended"
    return exit_codes.failure(
        exit_codes.FAILED,
        (errors.OpenChildren if below else errors.InvalidTransition).code,
        f"{frame.frame_id} {held}.",
        "Nothing was done.",
        "To cancel it anyway, add --cascade. To show the tree:",
        facts={"frame": frame.frame_id, "open": below},
        command=("frames tree",),
        subject=frame.frame_id,
    )


def _event_suffix(event: int | None) -> str:
    return f" (event {event:,})" if event is not None else ""


def _current_user() -> str:
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise exit_codes.usage_failure(
            "the name of the person who decides is unknown.", "Give the name: --by ola", "USER is not set.", "nobody"
        ) from error


def _parse_json(option: str, text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        told = f"{option} is not JSON: {error}."
        raise exit_codes.usage_failure(told, f'{option} \'{{"seat": "12A"}}\'', code="bad_json") from error


def _parse_json_or_text(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _first_event_position(lp: Limpet, after: int, is_it: Callable[[LogEvent], bool]) -> int | None:
    """Return the position of the first matching event after a position."""
    return next((fact.position for fact in lp.events.feed(after) if is_it(fact)), None)
