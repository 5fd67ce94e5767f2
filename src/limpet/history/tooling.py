"""The rules of tool calls in progress: meant, started, finished or unknown, and how each is settled."""

from __future__ import annotations

from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.frame_state import Frame, FrameStatus, ToolRun, ToolStatus, TreeState
from limpet.core.values.json_values import Json
from limpet.history.frames import Made, check_time, refused, text_hash

UNKNOWN_OUTCOME: Final = (
    "The outcome of this call is unknown: the run stopped before its result was recorded."
    " It may or may not have taken effect."
)
NOT_RUN: Final = "This call was not run: the work that it belongs to was given up before it began."

replace = msgspec.structs.replace


Command = c.BeginTool | c.EndTool | c.RetryTool


def decide(tree: TreeState, frame: Frame, command: Command, now_us: int) -> tuple[Made, ...]:
    """Return what a command about a tool makes happen."""
    match command:
        case c.BeginTool():
            event = _begin(tree, frame, command, now_us)
            return () if event is None else (Made(event),)
        case c.EndTool():
            return (_end(frame, command, now_us),)
        case c.RetryTool():
            return (Made(_retry(frame, command, now_us)),)


def _begin(tree: TreeState, frame: Frame, command: c.BeginTool, now_us: int) -> e.FrameEvent | None:
    """Return the event of a tool that begins, or is meant to."""
    if frame.status is FrameStatus.SUSPENDED:
        raise refused(frame, "run tools", "Resume it first.")
    known = _same(frame, command)
    if known is not None:
        if command.intent and known.status is ToolStatus.INTENT:
            return None
        if known.status is not ToolStatus.INTENT:
            raise _in_progress(known)
        check_time(tree, frame, now_us)
        return _stands(frame, known, ToolStatus.STARTED, now_us)
    check_time(tree, frame, now_us)
    most = tree.limit(frame.frame_id, "max_tool_calls")
    if most is not None and frame.tool_calls >= most:
        raise errors.ToolLimitExceeded(
            f"the frame {frame.frame_id!r} has made {frame.tool_calls:,} tool calls, as many as it may.",
            hint="Pop it, or give such frames a larger max_tool_calls.",
            facts={"frame": frame.frame_id, "calls": frame.tool_calls, "calls_max": most},
        )
    tool = ToolRun(
        tool_id=command.tool_id,
        name=command.name,
        key=command.key,
        effect=command.effect,
        status=ToolStatus.INTENT if command.intent else ToolStatus.STARTED,
        call_id=command.call_id,
        message_id=command.message_id,
        summary=command.summary,
        changed_us=now_us,
    )
    return e.FrameUpdatedEvent(frame_id=frame.frame_id, tool=tool)


def _same(frame: Frame, command: c.BeginTool) -> ToolRun | None:
    """Return the tool in progress that a command means: by its id, or as the same call of the conversation."""
    for tool in frame.tools:
        if tool.tool_id == command.tool_id:
            return tool
        if command.call_id is not None and (tool.message_id, tool.call_id) == (
            command.message_id,
            command.call_id,
        ):
            return tool
    return None


def _in_progress(tool: ToolRun) -> errors.InvalidTransition:
    return errors.InvalidTransition(
        f"the tool {tool.tool_id!r} ({tool.name}) is {tool.status}: it can't begin again.",
        hint="Settle it with end_tool or resolve_tool.",
        facts={"tool": tool.tool_id, "status": str(tool.status)},
    )


def find(frame: Frame, tool_id: str) -> ToolRun:
    """Return a tool in progress; raise ToolNotFound otherwise."""
    tool = frame.tool(tool_id)
    if tool is None:
        raise errors.ToolNotFound(
            f"the frame {frame.frame_id!r} has no tool {tool_id!r} in progress.",
            hint="It may be through already; frame.tools has those that are not.",
            facts={"frame": frame.frame_id, "tool": tool_id},
        )
    return tool


def _end(frame: Frame, command: c.EndTool, now_us: int) -> Made:
    """Return the event of a tool that is through, with its output; whoever puts that elsewhere takes it out."""
    tool = find(frame, command.tool_id)
    status = ToolStatus.ABANDONED if command.abandon else ToolStatus.FINISHED
    event = _stands(frame, tool, status, now_us)
    output = outcome(tool, command)
    text = msgspec.json.encode(output).decode()
    if len(text) > limits.BLOB_BYTES_MIN:
        return Made(replace(event, output_hash=text_hash(text)), (text,))
    return Made(replace(event, output=output))


def outcome(tool: ToolRun, command: c.EndTool) -> Json:
    """Return what a call is answered with: its output, or the truth about one that was given up."""
    return abandoned(tool) if command.abandon and command.output is None else command.output


def abandoned(tool: ToolRun) -> str:
    """Return the truth about a call that is given up."""
    return NOT_RUN if tool.status is ToolStatus.INTENT else UNKNOWN_OUTCOME


def _retry(frame: Frame, command: c.RetryTool, now_us: int) -> e.FrameEvent:
    """Return the event of a tool that runs once more."""
    tool = find(frame, command.tool_id)
    if frame.status is FrameStatus.SUSPENDED:
        raise refused(frame, "run tools", "Resume it first.")
    if tool.status is ToolStatus.INTENT:
        return _stands(frame, tool, ToolStatus.STARTED, now_us)
    again = replace(tool, attempt=tool.attempt + 1)
    return _stands(frame, again, ToolStatus.STARTED, now_us)


def _stands(frame: Frame, tool: ToolRun, status: ToolStatus, now_us: int) -> e.FrameUpdatedEvent:
    return e.FrameUpdatedEvent(
        frame_id=frame.frame_id, tool=replace(tool, status=status, changed_us=now_us)
    )


def result_text(output: Json) -> str:
    """Return an output as the text of a tool's result."""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()
