"""`limpet frames show`: one frame with its account, limits, handles, tools, results and suspension."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from limpet.cli import exits, figures, target, visible
from limpet.cli.frames import books, listing, naming, waiting
from limpet.cli.frames.suspensions import document as suspension_document
from limpet.cli.options import Common
from limpet.cli.showing import compact
from limpet.cli.surface import Face, Surface
from limpet.core.values import ids
from limpet.core.values.budget import LIMIT_FIELDS
from limpet.core.values.json_values import thaw

if TYPE_CHECKING:
    from limpet.core.values.context import ContextHandle
    from limpet.core.values.frame_state import Frame, ToolRun, TreeState
    from limpet.core.values.json_values import Json


def run(reference: str, common: Common) -> int:
    """Print a frame."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common) as lp:
        frame = naming.frame(lp, reference)
        tree = lp.index.get_tree(frame.frame_id)
    frame = tree.frames.get(frame.frame_id, frame)
    if surface.face is Face.JSON:
        surface.document(_document(frame, tree))
    elif surface.face is Face.PIPE:
        for name, value in _flat(_document(frame, tree)):
            surface.row(name, value)
    else:
        surface.facts(
            [(name, visible.line(value)) for name, value in _lines(frame, tree, surface) if value]
        )
    return exits.DONE


def _limits(frame: Frame, tree: TreeState) -> dict[str, int | None]:
    """Return the limits in force: the strictest among an open frame and those above it."""
    if frame.frame_id in tree.frames:
        return {name: tree.limit(frame.frame_id, name) for name in LIMIT_FIELDS}
    return {name: getattr(frame.budget, name) for name in LIMIT_FIELDS}


def _deadline(frame: Frame, tree: TreeState) -> str | None:
    found = tree.deadline(frame.frame_id) if frame.frame_id in tree.frames else None
    return None if found is None else ids.iso(found)


def _below(frame: Frame, tree: TreeState) -> int:
    if frame.frame_id not in tree.frames:
        return 0
    return sum(one.budget.used for one in tree.below(frame.frame_id))


def _handles(frame: Frame) -> list[ContextHandle]:
    """Return the handles, the most important first."""
    return sorted(frame.context_handles, key=lambda handle: (not handle.pinned, -handle.priority))


def _document(frame: Frame, tree: TreeState) -> dict[str, Json]:
    told = frame.resumption
    return {
        **listing.summary(frame),
        "budget": books.account(frame, _below(frame, tree)).document(),
        "reservations": dict(frame.reservations),
        "limits": _limits(frame, tree),
        "deadline": _deadline(frame, tree),
        "inputs": thaw(frame.inputs),
        "handles": [_handle(handle) for handle in _handles(frame)],
        "tools": [tool_document(tool) for tool in frame.tools],
        "results": [
            {"type": result.result_type, "ref": result.ref_id, "summary": result.summary}
            for result in frame.result_refs
        ],
        "children": list(frame.children),
        "failed_children": list(frame.failures),
        "suspension": suspension_document(frame.suspension, frame) if frame.suspension else None,
        "resumption": {
            "suspension": told.suspension_id, "decision": str(told.decision), "by": told.by,
            "reason": told.reason, "payload": thaw(told.payload),
        } if told else None,
        "result_summary": frame.result_summary,
        "reason": frame.reason,
        "updated_at": ids.iso(frame.updated_us) if frame.updated_us else None,
    }  # fmt: skip


def _handle(handle: ContextHandle) -> dict[str, Json]:
    return {
        "id": handle.handle_id,
        "type": str(handle.handle_type),
        "priority": handle.priority.name.lower(),
        "pinned": handle.pinned,
        "tokens": handle.size,
        "description": handle.description,
        "target": thaw(handle.target),
        "content_hash": handle.content_hash,
    }


def tool_document(tool: ToolRun) -> dict[str, Json]:
    """Return what every document says of a tool."""
    return {
        "id": tool.tool_id,
        "name": tool.name,
        "status": str(tool.status),
        "effect": str(tool.effect),
        "key": tool.key,
        "attempt": tool.attempt,
        "summary": tool.summary,
        "call": tool.call_id,
        "message": tool.message_id,
        "changed_at": ids.iso(tool.changed_us) if tool.changed_us else None,
    }


def _flat(facts: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in facts.items():
        if isinstance(value, dict) and name not in ("inputs", "payload", "target"):
            yield from _flat(cast("dict[str, Json]", value), f"{above}{name}.")
        elif isinstance(value, list):
            for item in cast("list[Json]", value):
                yield above + name, item if isinstance(item, str) else compact(item)
        elif isinstance(value, dict):
            yield above + name, compact(cast("Json", value))
        else:
            yield above + name, value


def _lines(frame: Frame, tree: TreeState, surface: Surface) -> Iterator[tuple[str, str]]:
    dot, scope = surface.glyphs.dot, frame.scope
    of = books.account(frame, _below(frame, tree))
    yield "frame", frame.frame_id
    yield "goal", frame.goal
    yield "status", f"{frame.status} {dot} begun {figures.ago(frame.created_at)}{_end(frame, tree)}"
    where = (f"{scope.actor_id}", f"session {scope.session_id}" if scope.session_id else "",
             f"thread {scope.thread_id}" if scope.thread_id else "")  # fmt: skip
    yield "of", f" {dot} ".join(part for part in where if part)
    if frame.parent_frame_id:
        yield "under", f"{frame.parent_frame_id} {dot} depth {frame.depth}, root {frame.root_id}"
    yield "budget", f"{books.bar(of, plain=surface.ascii)}  {books.equation(of)}"
    if of.whole != of.own:
        yield "", f"{of.own:,} spent by itself {dot} {of.whole:,} with everything below it"
    for purpose, amount in frame.reservations.items():
        yield "reserved", f"{amount:,} for {purpose or 'nothing in particular'}"
    yield "limits", f" {dot} ".join(_told_limits(_limits(frame, tree), frame))
    if frame.inputs is not None:
        yield "inputs", compact(thaw(frame.inputs))
    for handle in _handles(frame):
        pinned = ", pinned" if handle.pinned else ""
        yield (
            "handle",
            (
                f"{handle.handle_id} {dot} {handle.handle_type}, {handle.priority.name.lower()}{pinned},"
                f" {figures.count(handle.size, 'token')} {dot} {handle.description}"
            ),
        )
    yield from _work(frame, dot)
    yield "summary", frame.result_summary
    yield "reason", frame.reason


def _work(frame: Frame, dot: str) -> Iterator[tuple[str, str]]:
    for tool in frame.tools:
        yield (
            "tool",
            f"{tool.name} ({tool.effect}) {dot} {tool.status}, attempt {tool.attempt} {dot} {tool.tool_id}",
        )
    for child in frame.children:
        yield "child", child
    for child in frame.failures:
        yield "failed", child
    for result in frame.result_refs:
        yield "result", f"{result.result_type} {result.ref_id} {dot} {result.summary}"
    standing, now = frame.suspension, time.time_ns() // 1000
    if standing is not None:
        status = waiting.status_now(standing, now)
        left = f", {waiting.until(standing, now)}" if status == "waiting" else ""
        yield "suspended", f"{standing.reason} {dot} {standing.suspension_id} {dot} {status}{left}"
        if standing.payload is not None:
            yield "asks about", compact(thaw(standing.payload))
    if frame.resumption is not None:
        told = frame.resumption
        by = f" by {told.by}" if told.by else ""
        why = f": {told.reason}" if told.reason else ""
        yield "resumed", f"{told.decision}{by}{why} {dot} {told.suspension_id}"


def _end(frame: Frame, tree: TreeState) -> str:
    if frame.completed_at is not None:
        return f", closed {figures.ago(frame.completed_at)}"
    deadline = tree.deadline(frame.frame_id)
    if deadline is None:
        return ""
    left = deadline / 1e6 - time.time()
    return f", {figures.span(left)} left" if left > 0 else f", overdue since {figures.span(-left)}"


def _told_limits(limits: Mapping[str, int | None], frame: Frame) -> Sequence[str]:
    """Return the limits in words; what is not limited is left out."""
    context, calls, depth, timeout = (limits[name] for name in LIMIT_FIELDS)
    told = [
        f"{context:,} tokens of context" if context is not None else "",
        f"{frame.tool_calls:,} of {calls:,} tool calls" if calls is not None else "",
        f"frames down to depth {depth:,}" if depth is not None else "",
        f"{figures.span(timeout / 1000)} of time" if timeout is not None else "",
    ]
    return [part for part in told if part] or ["none"]
