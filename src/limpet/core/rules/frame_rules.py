"""The rules of frames: which events a command makes, or why it is refused.

Covers frames, tokens, handles, tool runs, suspensions, expiry and pending work. Pure: the time is an argument.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.rules import frame_fold
from limpet.core.rules.frame_fold import (
    TRANSITIONS,
    FrameWrite,
    check_deadline,
    evolve_one,
    invalid_transition_error,
    text_hash,
)
from limpet.core.values import commands, messages
from limpet.core.values import events as e
from limpet.core.values.context import TARGET_VERSION_KEY, ContextHandle, HandleType
from limpet.core.values.frame_state import (
    Decision,
    Frame,
    FrameStatus,
    PendingWork,
    PendingWorkType,
    Suspension,
    SuspensionStatus,
    ToolRun,
    ToolStatus,
    TreeState,
)
from limpet.core.values.validation import Json, json_text

UNKNOWN_OUTCOME_TEXT: Final = (
    "The outcome of this call is unknown: the run stopped before its result was recorded."
    " It may or may not have taken effect."
)
NOT_RUN_TEXT: Final = "This call was not run: the work that it belongs to was given up before it began."

replace = msgspec.structs.replace


def _begin_tool_event(tree: TreeState, frame: Frame, command: commands.BeginTool, now_us: int) -> e.FrameEvent | None:
    if frame.status is FrameStatus.SUSPENDED:
        raise invalid_transition_error(frame, "run tools", "Resume it first.")
    known = _same_tool_run(frame, command)
    if known is not None:
        if command.intent and known.status is ToolStatus.INTENT:
            return None
        if known.status is not ToolStatus.INTENT:
            raise errors.InvalidTransition(
                f"the tool {known.tool_id!r} ({known.name}) is {known.status}: it can't begin again.",
                hint="Settle it with end_tool or resolve_tool.",
                facts={"tool": known.tool_id, "status": str(known.status)},
            )
        check_deadline(tree, frame, now_us)
        return _tool_status_event(frame, known, ToolStatus.STARTED, now_us)
    check_deadline(tree, frame, now_us)
    most = tree.strictest_limit(frame.frame_id, "max_tool_calls")
    if most is not None and frame.tool_calls >= most:
        raise errors.ToolLimitExceeded(
            f"the frame {frame.frame_id!r} has made {frame.tool_calls:,} tool calls, as many as it may.",
            hint="Pop it, or give such frames a larger max_tool_calls.",
            facts={"frame": frame.frame_id, "calls": frame.tool_calls, "calls_max": most},
        )
    tool = ToolRun(
        tool_id=command.tool_id, name=command.name, key=command.key, effect=command.effect,
        status=ToolStatus.INTENT if command.intent else ToolStatus.STARTED, call_id=command.call_id,
        message_id=command.message_id, summary=command.summary, changed_us=now_us,
    )  # fmt: skip
    return e.FrameUpdatedEvent(frame_id=frame.frame_id, tool=tool)


def _same_tool_run(frame: Frame, command: commands.BeginTool) -> ToolRun | None:
    """Return the unfinished run with the id of the command or for the same call of the conversation."""
    for tool in frame.tools:
        if tool.tool_id == command.tool_id:
            return tool
        if command.call_id is not None and (tool.message_id, tool.call_id) == (command.message_id, command.call_id):
            return tool
    return None


def find_tool(frame: Frame, tool_id: str) -> ToolRun:
    """Return an unfinished tool run; raise ToolNotFound if there is none of that id."""
    tool = frame.tool(tool_id)
    if tool is None:
        raise errors.ToolNotFound(
            f"the frame {frame.frame_id!r} has no tool {tool_id!r} in progress.",
            hint="It may be through already; frame.tools has those that are not.",
            facts={"frame": frame.frame_id, "tool": tool_id},
        )
    return tool


def _end_tool_write(frame: Frame, command: commands.EndTool, now_us: int) -> FrameWrite:
    """Return the event of a finished run, with its output. A large output is stored as a text by its hash."""
    tool = find_tool(frame, command.tool_id)
    status = ToolStatus.ABANDONED if command.abandon else ToolStatus.FINISHED
    event = _tool_status_event(frame, tool, status, now_us)
    output = tool_output(tool, command)
    text = json_text(output)
    if len(text) > limits.BLOB_BYTES_MIN:
        return FrameWrite(replace(event, output_hash=text_hash(text)), (text,))
    return FrameWrite(replace(event, output=output))


def tool_output(tool: ToolRun, command: commands.EndTool) -> Json:
    """Return the result of a call: its output, or a fixed text if it was abandoned without one."""
    return abandoned_tool_output(tool) if command.abandon and command.output is None else command.output


def abandoned_tool_output(tool: ToolRun) -> str:
    """Return the result text of an abandoned call: it did not run, or its outcome is unknown."""
    return NOT_RUN_TEXT if tool.status is ToolStatus.INTENT else UNKNOWN_OUTCOME_TEXT


def _retry_tool_event(frame: Frame, command: commands.RetryTool, now_us: int) -> e.FrameEvent:
    tool = find_tool(frame, command.tool_id)
    if frame.status is FrameStatus.SUSPENDED:
        raise invalid_transition_error(frame, "run tools", "Resume it first.")
    if tool.status is not ToolStatus.INTENT:
        tool = replace(tool, attempt=tool.attempt + 1)
    return _tool_status_event(frame, tool, ToolStatus.STARTED, now_us)


def _tool_status_event(frame: Frame, tool: ToolRun, status: ToolStatus, now_us: int) -> e.FrameUpdatedEvent:
    return e.FrameUpdatedEvent(frame_id=frame.frame_id, tool=replace(tool, status=status, changed_us=now_us))


def _suspend_event(frame: Frame, command: commands.SuspendFrame, now_us: int) -> e.FrameEvent:
    standing = frame.suspension
    expires = None if command.expires_in_us is None else now_us + command.expires_in_us
    if command.again:
        if (
            standing is None
            or standing.suspension_id != command.suspension_id
            or standing.status is not SuspensionStatus.WAITING
        ):
            raise errors.AlreadyDecided("the suspension was ended meanwhile.")
        return e.FrameUpdatedEvent(frame_id=frame.frame_id, token_hash=command.token_hash, expires_us=expires)
    if standing is not None and is_suspension_open(standing, now_us):
        raise errors.AlreadySuspended(
            f"the frame {frame.frame_id!r} is suspended already.",
            hint="Resume it, decide it, or revoke its suspension first.",
            facts={"frame": frame.frame_id, "suspension": standing.suspension_id},
        )
    return e.FrameSuspendedEvent(
        frame_id=frame.frame_id, suspension_id=command.suspension_id, token_hash=command.token_hash,
        reason=command.reason, purpose=command.purpose, payload=command.payload, expires_us=expires,
    )  # fmt: skip


def is_suspension_open(suspension: Suspension, now_us: int) -> bool:
    """Whether a suspension can still be ended."""
    over = suspension.expires_us is not None and suspension.expires_us <= now_us
    return suspension.status is SuspensionStatus.WAITING and not over


def _resume_event(frame: Frame, command: commands.EndSuspension, now_us: int) -> e.FrameResumedEvent:
    standing = frame.suspension
    if standing is None or standing.suspension_id != command.suspension_id:
        raise _suspension_over_error(command)
    if command.token_hash is not None and not (
        hmac.compare_digest(standing.token_hash, command.token_hash) and command.purpose in (None, standing.purpose)
    ):
        raise errors.InvalidSuspensionToken
    if standing.status is SuspensionStatus.REVOKED:
        raise _suspension_over_error(command)
    if not is_suspension_open(standing, now_us):
        raise errors.SuspensionExpired(
            f"the suspension {standing.suspension_id!r} expired at {standing.expires_at}.",
            hint="Suspend the frame again for a new token.",
            facts={"suspension": standing.suspension_id, "expired": standing.expires_at},
        )
    unset = command.payload is msgspec.UNSET
    if (command.decision is Decision.EDITED) is unset and command.token_hash is None:
        raise errors.InvalidRequest(
            "an edit comes with the edited payload, and only an edit does.",
            hint='For example decide_suspension(id, "edit", payload={…}).',
        )
    return e.FrameResumedEvent(
        frame_id=frame.frame_id, suspension_id=standing.suspension_id, decision=command.decision,
        payload=standing.payload if unset else command.payload, by=command.by, reason=command.reason,
    )  # fmt: skip


def _suspension_over_error(command: commands.EndSuspension) -> errors.Error:
    if command.token_hash is not None:
        return errors.InvalidSuspensionToken()
    return _already_decided_error(command.suspension_id)


def _already_decided_error(suspension_id: str) -> errors.AlreadyDecided:
    return errors.AlreadyDecided(
        f"the suspension {suspension_id!r} does not wait any more. Nothing was done.",
        facts={"suspension": suspension_id},
    )


def _revoke_event(frame: Frame, command: commands.RevokeSuspension) -> e.FrameUpdatedEvent | None:
    standing = frame.suspension
    if standing is None or standing.suspension_id != command.suspension_id:
        raise _already_decided_error(command.suspension_id)
    if standing.status is not SuspensionStatus.WAITING:
        return None
    return e.FrameUpdatedEvent(
        frame_id=frame.frame_id, suspension=SuspensionStatus.REVOKED, by=command.by, reason=command.reason
    )


_S = FrameStatus

REASON_OVERDUE: Final = "its time limit was reached"
REASON_PARENT_CLOSED: Final = "a frame above it was closed"
REMOVE_STRATEGY: Final = "remove"
"""The strategy name of a removal by handle id."""

REASON_ORPHANED: Final = "its session takes no more messages"


def decide(tree: TreeState | None, command: commands.FrameCommand, *, now_us: int) -> tuple[FrameWrite, ...]:
    """Return the events that a command makes in its tree; none if nothing would change.

    The command's frame, or the parent of a pushed frame, is open in `tree`.
    Raises a kind of Refused, Conflict or NotFound.
    """
    if isinstance(command, commands.PushFrame):
        return (FrameWrite(_push_event(tree, command, now_us)),)
    assert tree is not None, "only a pushed frame may have no tree"
    frame = tree.frames[command.frame_id]
    match command:
        case commands.EndTool():
            return (_end_tool_write(frame, command, now_us),)
        case commands.RecordPack():
            return (FrameWrite(e.FrameUpdatedEvent(frame_id=frame.frame_id, pack=command.selection), command.texts),)
        case commands.AddHandle():
            return _add_handle_writes(frame, command)
        case commands.CompactFrame():
            return _compact_writes(frame, command)
        case commands.PopFrame():
            return tuple(map(FrameWrite, _pop_events(tree, frame, command)))
        case commands.ExpireTree():
            return tuple(map(FrameWrite, _expiry_events(tree, command)))
        case _:
            event = _single_event(tree, frame, command, now_us)
    return () if event is None else (FrameWrite(event),)


_SingleEventCommand = (
    commands.UpdateFrame
    | commands.SpendTokens
    | commands.AddResult
    | commands.SuspendFrame
    | commands.EndSuspension
    | commands.RevokeSuspension
    | commands.BeginTool
    | commands.RetryTool
    | commands.ResumeActor
)


def _single_event(tree: TreeState, frame: Frame, command: _SingleEventCommand, now_us: int) -> e.FrameEvent | None:
    match command:
        case commands.UpdateFrame():
            return _update_event(frame, command)
        case commands.SpendTokens():
            return _spend_event(frame, command)
        case commands.AddResult():
            return _result_event(frame, command)
        case commands.SuspendFrame():
            return _suspend_event(frame, command, now_us)
        case commands.EndSuspension():
            return _resume_event(frame, command, now_us)
        case commands.RevokeSuspension():
            return _revoke_event(frame, command)
        case commands.BeginTool():
            return _begin_tool_event(tree, frame, command, now_us)
        case commands.RetryTool():
            return _retry_tool_event(frame, command, now_us)
        case commands.ResumeActor():
            return _resume_actor_event(tree, command)


def _push_event(tree: TreeState | None, command: commands.PushFrame, now_us: int) -> e.FramePushedEvent:
    budget = command.budget
    if budget.used or budget.reserved or budget.subcall_allocation:
        raise errors.InvalidRequest(
            "a new frame's budget has a total and limits; nothing of it is used yet.",
            hint="For example TokenBudget(total=8_000).",
        )
    if tree is not None and command.parent_frame_id is not None:
        parent = tree.frames[command.parent_frame_id]
        if parent.status is _S.SUSPENDED:
            raise invalid_transition_error(parent, "get children", "Resume it first.")
        most = tree.strictest_limit(parent.frame_id, "max_subframe_depth")
        if most is not None and parent.depth >= most:
            raise errors.MaxDepthExceeded(
                f"the parent is at depth {parent.depth}; frames here go down to {most}.",
                hint="Do the work in the parent, or raise max_subframe_depth of every frame above.",
                facts={"depth": parent.depth + 1, "depth_max": most},
            )
        check_deadline(tree, parent, now_us)
        if len(tree.frames) >= limits.FRAMES_OPEN_MAX:
            raise errors.LimitExceeded(
                f"the tree has {len(tree.frames):,} open frames, as many as it may.",
                hint="Pop some first.",
                facts={"frames": len(tree.frames), "frames_max": limits.FRAMES_OPEN_MAX},
            )
        parent.budget.check(budget.total)
    return e.FramePushedEvent(**msgspec.structs.asdict(command))


def _update_event(frame: Frame, command: commands.UpdateFrame) -> e.FrameUpdatedEvent | None:
    goal = msgspec.UNSET if command.goal == frame.goal else command.goal
    inputs = msgspec.UNSET if command.inputs == frame.inputs else command.inputs
    status = None if command.status is frame.status else command.status
    if status is not None:
        if status.final or status is _S.SUSPENDED:
            verb = "pop_frame" if status.final else "suspend_frame"
            raise errors.InvalidRequest(f"a frame becomes {status} by {verb}.")
        if frame.status is _S.SUSPENDED or status not in TRANSITIONS[frame.status]:
            raise invalid_transition_error(frame, f"become {status}", "Resume it first.")
    handled = tuple(child for child in command.handled if child in frame.failures)
    if goal is inputs is msgspec.UNSET and status is None and not handled:
        return None
    return e.FrameUpdatedEvent(frame_id=frame.frame_id, goal=goal, inputs=inputs, status=status, handled=handled)


def _spend_event(frame: Frame, command: commands.SpendTokens) -> e.FrameUpdatedEvent | None:
    purpose, aside = command.purpose, frame.reservations.get(command.purpose, 0)
    release = aside if command.release is None or command.settle else command.release
    if command.settle and not aside:
        raise _reservation_error(purpose, command.use, aside)
    if release > aside:
        raise _reservation_error(purpose, release, aside)
    frame.budget.check(command.reserve)
    if not (command.reserve or release or command.use):
        return None
    return e.FrameUpdatedEvent(
        frame_id=frame.frame_id,
        reserved={purpose: command.reserve} if command.reserve else {},
        released={purpose: release} if release else {},
        used=command.use,
    )


def _reservation_error(purpose: str, requested: int, reserved: int) -> errors.BudgetError:
    return errors.BudgetError(
        f"{requested:,} tokens of the reservation {purpose!r} are named; it has {reserved:,}.",
        hint="Reserve them first, with the same purpose.",
        facts={"requested": requested, "reserved": reserved, "purpose": purpose},
    )


def _pop_events(tree: TreeState, frame: Frame, command: commands.PopFrame) -> list[e.FrameEvent]:
    status = command.final_status
    if frame.status is _S.SUSPENDED and not (command.cascade and status is not _S.COMPLETED):
        raise invalid_transition_error(frame, f"become {status}", "Resume it first, or cancel it with cascade=True.")
    if frame.children and not command.cascade:
        raise errors.OpenChildren(
            f"the frame {frame.frame_id!r} has {len(frame.children):,} open children.",
            hint="Pop them first, or ask for cascade=True.",
            facts={"frame": frame.frame_id, "children": list(frame.children)},
        )
    if status is _S.COMPLETED and frame.tools:
        raise errors.InvalidTransition(
            f"tools of the frame {frame.frame_id!r} are not through: {len(frame.tools):,}.",
            hint="end_tool or resolve_tool them first.",
            facts={"frame": frame.frame_id, "tools": [tool.tool_id for tool in frame.tools]},
        )
    closing = _cancel_events(tree, frame) if frame.children else []
    closing.append(_popped_event(frame, status, reason=command.reason, summary=command.result_summary))
    return closing


def _cancel_events(tree: TreeState, frame: Frame) -> list[e.FrameEvent]:
    below = tree.open_descendants(frame.frame_id)
    return [_popped_event(one, _S.CANCELLED, reason=REASON_PARENT_CLOSED) for one in below]


def _popped_event(frame: Frame, status: FrameStatus, *, reason: str, summary: str = "") -> e.FramePoppedEvent:
    return e.FramePoppedEvent(
        frame_id=frame.frame_id,
        status=status,
        result_summary=summary,
        reason=reason,
        abandoned=tuple([tool.tool_id for tool in frame.tools]) if frame.tools else (),
    )


def _add_handle_writes(frame: Frame, command: commands.AddHandle) -> tuple[FrameWrite, ...]:
    handle, texts = stored_handle(command.handle)
    present = frame_fold.find_handle(frame, handle.handle_id)
    if present == handle or (present is not None and without_version(present) == handle):
        return ()
    if present is not None:
        raise errors.DuplicateHandle(
            f"the frame has another handle {handle.handle_id!r}.",
            hint="Give the new one its own id, or remove the other first.",
            facts={"frame": frame.frame_id, "handle": handle.handle_id},
        )
    if frame.handle_count >= limits.FRAME_HANDLES_MAX:
        raise errors.LimitExceeded(
            f"the frame has {frame.handle_count:,} handles, as many as it may.",
            hint="compact_context lets go of some.",
            facts={"handles_max": limits.FRAME_HANDLES_MAX},
        )
    if command.at is not None:
        handle = replace(handle, target={**handle.target, TARGET_VERSION_KEY: command.at})
    return (FrameWrite(e.HandleAddedEvent(frame_id=frame.frame_id, handle=handle), texts),)


def without_version(handle: ContextHandle) -> ContextHandle:
    """Return a handle without the session version in its target."""
    if handle.handle_type is not HandleType.MESSAGE_RANGE or TARGET_VERSION_KEY not in handle.target:
        return handle
    return replace(handle, target={k: v for k, v in handle.target.items() if k != TARGET_VERSION_KEY})


def stored_handle(handle: ContextHandle) -> tuple[ContextHandle, tuple[str, ...]]:
    """Return a handle as it is stored, with a hash in place of its content, and the content as a text."""
    text = handle.content
    if text is None:
        return handle, ()
    size = handle.estimated_tokens
    kept = replace(
        handle,
        content=None,
        content_hash=text_hash(text),
        estimated_tokens=messages.estimate_text_tokens(text) if size is None else size,
    )
    return kept, (text,)


def _result_event(frame: Frame, command: commands.AddResult) -> e.ResultAddedEvent:
    if len(frame.result_refs) >= limits.FRAME_RESULTS_MAX:
        raise errors.LimitExceeded(
            f"the frame has {len(frame.result_refs):,} results, as many as it may.",
            hint="Put many into one artifact, and refer to that.",
            facts={"results_max": limits.FRAME_RESULTS_MAX},
        )
    return e.ResultAddedEvent(frame_id=frame.frame_id, result=command.result)


def _compact_writes(frame: Frame, command: commands.CompactFrame) -> tuple[FrameWrite, ...]:
    known = {handle.handle_id: handle for handle in frame.context_handles}
    planned = command.strategy != REMOVE_STRATEGY
    for handle_id in command.removed:
        handle = known.get(handle_id)
        if handle is None and not planned:
            raise errors.HandleNotFound(
                f"the frame has no handle {handle_id!r}.", facts={"frame": frame.frame_id, "handle": handle_id}
            )
        if planned and (handle is None or handle.never_dropped):
            # The compaction was planned before another command changed the handles.
            raise errors.Conflict(
                f"the handles of the frame {frame.frame_id!r} changed meanwhile.",
                hint="Nothing was removed. Compact again.",
                facts={"frame": frame.frame_id, "handle": handle_id},
            )
    if not command.removed and not command.replaced:
        return ()
    kept = [stored_handle(handle) for handle in command.replaced]
    event = e.FrameCompactedEvent(**msgspec.structs.asdict(command))
    event = replace(event, replaced=tuple(handle for handle, _ in kept))
    return (FrameWrite(event, tuple(text for _, texts in kept for text in texts)),)


def _resume_actor_event(tree: TreeState, command: commands.ResumeActor) -> e.ActorResumedEvent:
    unknown = [
        tool.tool_id
        for frame in tree.frames.values()
        if command.scope.covers(frame.scope)
        for tool in frame.tools
        if tool.status is ToolStatus.STARTED
    ]
    return e.ActorResumedEvent(frame_id=command.frame_id, scope=command.scope, unknown=tuple(unknown))


def _expiry_events(tree: TreeState, command: commands.ExpireTree) -> list[e.FrameEvent]:
    made: list[e.FrameEvent] = []
    for frame_id in tuple(tree.frames):
        frame = tree.frames.get(frame_id)
        if frame is None:
            continue
        events = _frame_expiry_events(tree, frame, command)
        for event in events:
            tree = evolve_one(tree, event, time_us=command.now_us)
        made += events
    return made


def _frame_expiry_events(tree: TreeState, frame: Frame, command: commands.ExpireTree) -> list[e.FrameEvent]:
    over = frame.deadline_us is not None and frame.deadline_us <= command.now_us
    reason = REASON_OVERDUE if over and frame.stood_us is None else ""
    if frame.scope.session_id in command.orphaned:
        reason = REASON_ORPHANED
    if reason:
        return [*_cancel_events(tree, frame), _popped_event(frame, _S.FAILED, reason=reason)]
    standing = frame.suspension
    waiting = standing is not None and standing.status is SuspensionStatus.WAITING
    if standing and waiting and not is_suspension_open(standing, command.now_us):
        return [e.FrameUpdatedEvent(frame_id=frame.frame_id, suspension=SuspensionStatus.EXPIRED)]
    return []


def pending_work(frames: Iterable[Frame]) -> tuple[PendingWork, ...]:
    """Return all pending work of frames: open subcalls, suspensions, unfinished tools and unhandled failures."""
    return tuple(work for frame in frames for work in _pending_work_of(frame))


def _pending_work_of(frame: Frame) -> list[PendingWork]:
    found: list[PendingWork] = []
    if frame.status is FrameStatus.WAITING:
        what = f"Frame '{frame.goal}' waiting"
        found.append(_pending_item(frame, PendingWorkType.WAITING_FOR_SUBCALL, what))
    standing = frame.suspension
    if standing is not None and standing.status is not SuspensionStatus.CLOSED:
        over = standing.status is not SuspensionStatus.WAITING
        what = f"Frame '{frame.goal}' suspended: {standing.reason}" + (f" ({standing.status})" if over else "")
        found.append(_pending_item(frame, PendingWorkType.WAITING_FOR_USER, what, standing.suspension_id))
    for tool in frame.tools:
        what = f"Tool '{tool.name}' incomplete"
        found.append(_pending_item(frame, PendingWorkType.TOOL_IN_PROGRESS, what, tool.tool_id, tool))
    for child in frame.failures:
        what = f"Child '{child}' of frame '{frame.goal}' failed"
        found.append(_pending_item(frame, PendingWorkType.UNHANDLED_ERROR, what, child))
    return found


def _pending_item(
    frame: Frame, kind: PendingWorkType, what: str, ref_id: str = "", tool: ToolRun | None = None
) -> PendingWork:
    return PendingWork(frame_id=frame.frame_id, work_type=kind, description=what, ref_id=ref_id, tool=tool)
