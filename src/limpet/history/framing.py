"""The rules of frames: which events a command makes, or why it is refused. Pure; the clock is an argument."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from limpet import errors, limits
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values import messages
from limpet.core.values.context import TARGET_VERSION_KEY, ContextHandle, HandleType
from limpet.core.values.frame_state import (
    Frame,
    FrameStatus,
    SuspensionStatus,
    ToolStatus,
    TreeState,
)
from limpet.history import pointing, suspending, tooling
from limpet.history.frames import (
    TRANSITIONS,
    Made,
    check_time,
    evolve_one,
    refused,
    text_hash,
)

_S = FrameStatus
replace = msgspec.structs.replace

OVERDUE: Final = "its time limit was reached"
PARENT_CLOSED: Final = "a frame above it was closed"
REMOVE: Final = "remove"
"""The strategy of a handle that somebody takes away by its id."""

ORPHANED: Final = "its session takes no more messages"


def decide(tree: TreeState | None, command: c.FrameCommand, *, now_us: int) -> tuple[Made, ...]:
    """Return what the command makes happen in its tree; nothing if it is so already.

    `tree` has the command's frame, or the parent of one that is pushed, among its open frames.
    Raises a kind of Refused, Conflict or NotFound.
    """
    if isinstance(command, c.PushFrame):
        return (Made(_push(tree, command, now_us)),)
    assert tree is not None, "whatever is not pushed is in a tree"
    frame = tree.frames[command.frame_id]
    match command:
        case c.UpdateFrame():
            return _made(_update(frame, command))
        case c.SpendTokens():
            return _made(_spend(frame, command))
        case c.PopFrame():
            return tuple(map(Made, _pop(tree, frame, command)))
        case c.AddHandle() | c.CompactFrame():
            return _handles(frame, command)
        case c.AddResult():
            return _made(_add_result(frame, command))
        case c.RecordPack():
            event = e.FrameUpdatedEvent(frame_id=frame.frame_id, pack=command.selection)
            return (Made(event, command.texts),)
        case c.SuspendFrame() | c.EndSuspension() | c.RevokeSuspension():
            return _made(suspending.decide(frame, command, now_us))
        case c.BeginTool() | c.EndTool() | c.RetryTool():
            return tooling.decide(tree, frame, command, now_us)
        case c.ResumeActor():
            return _made(_resume_actor(tree, command))
        case c.ExpireTree():
            return tuple(map(Made, _expire(tree, command)))
    assert_never(command)


def _made(event: e.FrameEvent | None) -> tuple[Made, ...]:
    return () if event is None else (Made(event),)


def _push(tree: TreeState | None, command: c.PushFrame, now_us: int) -> e.FramePushedEvent:
    budget = command.budget
    if budget.used or budget.reserved or budget.subcall_allocation:
        raise errors.InvalidRequest(
            "a new frame's budget has a total and limits; nothing of it is used yet.",
            hint="For example TokenBudget(total=8_000).",
        )
    if tree is not None and command.parent_frame_id is not None:
        parent = tree.frames[command.parent_frame_id]
        if parent.status is _S.SUSPENDED:
            raise refused(parent, "get children", "Resume it first.")
        most = tree.limit(parent.frame_id, "max_subframe_depth")
        if most is not None and parent.depth >= most:
            raise errors.MaxDepthExceeded(
                f"the parent is at depth {parent.depth}; frames here go down to {most}.",
                hint="Do the work in the parent, or raise max_subframe_depth of every frame above.",
                facts={"depth": parent.depth + 1, "depth_max": most},
            )
        check_time(tree, parent, now_us)
        if len(tree.frames) >= limits.FRAMES_OPEN_MAX:
            raise errors.LimitExceeded(
                f"the tree has {len(tree.frames):,} open frames, as many as it may.",
                hint="Pop some first.",
                facts={"frames": len(tree.frames), "frames_max": limits.FRAMES_OPEN_MAX},
            )
        parent.budget.check(budget.total)
    return e.FramePushedEvent(
        frame_id=command.frame_id,
        scope=command.scope,
        goal=command.goal,
        budget=budget,
        parent_frame_id=command.parent_frame_id,
        inputs=command.inputs,
        waits=command.waits,
        named=command.named,
    )


def _update(frame: Frame, command: c.UpdateFrame) -> e.FrameUpdatedEvent | None:
    goal = msgspec.UNSET if command.goal == frame.goal else command.goal
    inputs = msgspec.UNSET if command.inputs == frame.inputs else command.inputs
    status = None if command.status is frame.status else command.status
    if status is not None:
        if status.final or status is _S.SUSPENDED:
            verb = "pop_frame" if status.final else "suspend_frame"
            raise errors.InvalidRequest(f"a frame becomes {status} by {verb}.")
        if frame.status is _S.SUSPENDED or status not in TRANSITIONS[frame.status]:
            raise refused(frame, f"become {status}", "Resume it first.")
    handled = tuple(child for child in command.handled if child in frame.failures)
    if goal is inputs is msgspec.UNSET and status is None and not handled:
        return None
    return e.FrameUpdatedEvent(
        frame_id=frame.frame_id, goal=goal, inputs=inputs, status=status, handled=handled
    )


def _spend(frame: Frame, command: c.SpendTokens) -> e.FrameUpdatedEvent | None:
    purpose, aside = command.purpose, frame.reservations.get(command.purpose, 0)
    release = aside if command.release is None or command.settle else command.release
    if command.settle and not aside:
        raise _nothing_aside(purpose, command.use, aside)
    if release > aside:
        raise _nothing_aside(purpose, release, aside)
    frame.budget.check(command.reserve)
    if not (command.reserve or release or command.use):
        return None
    return e.FrameUpdatedEvent(
        frame_id=frame.frame_id,
        reserved={purpose: command.reserve} if command.reserve else {},
        released={purpose: release} if release else {},
        used=command.use,
    )


def _nothing_aside(purpose: str, requested: int, reserved: int) -> errors.BudgetError:
    return errors.BudgetError(
        f"{requested:,} tokens of the reservation {purpose!r} are named; it has {reserved:,}.",
        hint="Reserve them first, with the same purpose.",
        facts={"requested": requested, "reserved": reserved, "purpose": purpose},
    )


def _pop(tree: TreeState, frame: Frame, command: c.PopFrame) -> list[e.FrameEvent]:
    status = command.final_status
    if frame.status is _S.SUSPENDED and not (command.cascade and status is not _S.COMPLETED):
        raise refused(frame, f"become {status}", "Resume it first, or cancel it with cascade=True.")
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
    closing = _closing(tree, frame) if frame.children else []
    closing.append(_popped(frame, status, reason=command.reason, summary=command.result_summary))
    return closing


def _closing(tree: TreeState, frame: Frame) -> list[e.FrameEvent]:
    below = tree.below(frame.frame_id)
    return [_popped(one, _S.CANCELLED, reason=PARENT_CLOSED) for one in below]


def _popped(
    frame: Frame, status: FrameStatus, *, reason: str, summary: str = ""
) -> e.FramePoppedEvent:
    return e.FramePoppedEvent(
        frame_id=frame.frame_id,
        status=status,
        result_summary=summary,
        reason=reason,
        abandoned=tuple([tool.tool_id for tool in frame.tools]) if frame.tools else (),
    )


def _handles(frame: Frame, command: c.AddHandle | c.CompactFrame) -> tuple[Made, ...]:
    adds = isinstance(command, c.AddHandle)
    return _add_handle(frame, command) if adds else _compact(frame, command)


def _add_handle(frame: Frame, command: c.AddHandle) -> tuple[Made, ...]:
    handle, texts = stored(command.handle)
    present = pointing.found(frame, handle.handle_id)
    if present == handle or (present is not None and unbound(present) == handle):
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
    return (Made(e.HandleAddedEvent(frame_id=frame.frame_id, handle=handle), texts),)


def unbound(handle: ContextHandle) -> ContextHandle:
    """Return a handle without the version that its messages are numbered in."""
    if (
        handle.handle_type is not HandleType.MESSAGE_RANGE
        or TARGET_VERSION_KEY not in handle.target
    ):
        return handle
    return replace(
        handle, target={k: v for k, v in handle.target.items() if k != TARGET_VERSION_KEY}
    )


def stored(handle: ContextHandle) -> tuple[ContextHandle, tuple[str, ...]]:
    """Return a handle as it is kept, and the text that is kept beside it."""
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


def _add_result(frame: Frame, command: c.AddResult) -> e.ResultAddedEvent:
    if len(frame.result_refs) >= limits.FRAME_RESULTS_MAX:
        raise errors.LimitExceeded(
            f"the frame has {len(frame.result_refs):,} results, as many as it may.",
            hint="Put many into one artifact, and refer to that.",
            facts={"results_max": limits.FRAME_RESULTS_MAX},
        )
    return e.ResultAddedEvent(frame_id=frame.frame_id, result=command.result)


def _compact(frame: Frame, command: c.CompactFrame) -> tuple[Made, ...]:
    known = {handle.handle_id: handle for handle in frame.context_handles}
    planned = command.strategy != REMOVE
    for handle_id in command.removed:
        handle = known.get(handle_id)
        if handle is None and not planned:
            raise errors.HandleNotFound(
                f"the frame has no handle {handle_id!r}.",
                facts={"frame": frame.frame_id, "handle": handle_id},
            )
        if planned and (handle is None or handle.stays):
            # It was planned on handles that somebody has changed since.
            raise errors.Conflict(
                f"the handles of the frame {frame.frame_id!r} changed meanwhile.",
                hint="Nothing was removed. Compact again.",
                facts={"frame": frame.frame_id, "handle": handle_id},
            )
    if not command.removed and not command.replaced:
        return ()
    kept = [stored(handle) for handle in command.replaced]
    event = e.FrameCompactedEvent(
        frame_id=frame.frame_id,
        removed=command.removed,
        replaced=tuple(handle for handle, _ in kept),
        strategy=command.strategy,
        target_budget=command.target_budget,
        original_tokens=command.original_tokens,
        final_tokens=command.final_tokens,
        level=command.level,
    )
    return (Made(event, tuple(text for _, texts in kept for text in texts)),)


def _resume_actor(tree: TreeState, command: c.ResumeActor) -> e.ActorResumedEvent:
    unknown = [
        tool.tool_id
        for frame in tree.frames.values()
        if command.scope.covers(frame.scope)
        for tool in frame.tools
        if tool.status is ToolStatus.STARTED
    ]
    return e.ActorResumedEvent(
        frame_id=command.frame_id, scope=command.scope, unknown=tuple(unknown)
    )


def _expire(tree: TreeState, command: c.ExpireTree) -> list[e.FrameEvent]:
    made: list[e.FrameEvent] = []
    for frame_id in tuple(tree.frames):
        frame = tree.frames.get(frame_id)
        if frame is None:
            continue
        events = _expired(tree, frame, command)
        for event in events:
            tree = evolve_one(tree, event, time_us=command.now_us)
        made += events
    return made


def _expired(tree: TreeState, frame: Frame, command: c.ExpireTree) -> list[e.FrameEvent]:
    over = frame.deadline_us is not None and frame.deadline_us <= command.now_us
    reason = OVERDUE if over and frame.stood_us is None else ""
    if frame.scope.session_id in command.orphaned:
        reason = ORPHANED
    if reason:
        return [*_closing(tree, frame), _popped(frame, _S.FAILED, reason=reason)]
    standing = frame.suspension
    waiting = standing is not None and standing.status is SuspensionStatus.WAITING
    if standing and waiting and not suspending.waits(standing, command.now_us):
        return [e.FrameUpdatedEvent(frame_id=frame.frame_id, suspension=SuspensionStatus.EXPIRED)]
    return []
