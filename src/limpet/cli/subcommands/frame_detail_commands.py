"""`limpet frames show`, `frames pack` and `frames pending`: a frame, a recorded pack, pending work."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from limpet.cli import output, target
from limpet.cli.options import CommonOptions, Positive, ProviderFormat, Reference
from limpet.cli.output import Cell, Output, OutputMode
from limpet.cli.subcommands import frame_tree_commands
from limpet.cli.subcommands.context_command import provider_request
from limpet.cli.subcommands.suspension_commands import suspension_document
from limpet.core.rules.frame_rules import pending_work
from limpet.core.values import ids
from limpet.core.values.frame_state import LIMIT_FIELDS, PendingWorkType, Scope
from limpet.core.values.validation import thaw

if TYPE_CHECKING:
    from limpet.core.values.context import ContextHandle
    from limpet.core.values.frame_state import Frame, PendingWork, ToolRun, TreeState
    from limpet.core.values.validation import Json
    from limpet.wiring import Limpet


def show_frame(frame: Reference, /, *, common: CommonOptions = CommonOptions()) -> None:
    """Show a frame: goal, tokens, effective limits, handles, tools in progress, results, suspension.

    Example: limpet frames show @last
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        found = target.find_frame(lp, frame)
        tree = lp.index.get_tree(found.frame_id)
    found = tree.frames.get(found.frame_id, found)
    document = _frame_document(found, tree)
    if not surface.print_data(document, output.flat_rows(document, ("inputs", "payload", "target"))):
        facts = _frame_facts(found, tree, surface)
        surface.print_facts([(name, output.escape_line(value)) for name, value in facts if value])


def _limits_in_force(frame: Frame, tree: TreeState) -> dict[str, int | None]:
    """Return the effective limits: for an open frame the strictest of its own and its ancestors' limits."""
    if frame.frame_id in tree.frames:
        return {name: tree.strictest_limit(frame.frame_id, name) for name in LIMIT_FIELDS}
    return {name: getattr(frame.budget, name) for name in LIMIT_FIELDS}


def _deadline_iso(frame: Frame, tree: TreeState) -> str | None:
    found = tree.deadline_of(frame.frame_id) if frame.frame_id in tree.frames else None
    return None if found is None else ids.iso(found)


def _used_below(frame: Frame, tree: TreeState) -> int:
    if frame.frame_id not in tree.frames:
        return 0
    return sum(one.budget.used for one in tree.open_descendants(frame.frame_id))


def _ordered_handles(frame: Frame) -> list[ContextHandle]:
    """Return the handles: pinned first, then by priority."""
    return sorted(frame.context_handles, key=lambda handle: (not handle.pinned, -handle.priority))


def _frame_document(frame: Frame, tree: TreeState) -> dict[str, Json]:
    told = frame.resumption
    return {
        **frame_tree_commands.frame_summary(frame),
        "budget": frame_tree_commands.frame_account(frame, _used_below(frame, tree)).document(),
        "reservations": dict(frame.reservations),
        "limits": _limits_in_force(frame, tree),
        "deadline": _deadline_iso(frame, tree),
        "inputs": thaw(frame.inputs),
        "handles": [_handle_document(handle) for handle in _ordered_handles(frame)],
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


def _handle_document(handle: ContextHandle) -> dict[str, Json]:
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
    """Return a tool as JSON."""
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


def _frame_facts(frame: Frame, tree: TreeState, surface: Output) -> Iterator[tuple[str, str]]:
    dot, scope = surface.symbols.dot, frame.scope
    of = frame_tree_commands.frame_account(frame, _used_below(frame, tree))
    yield "frame", frame.frame_id
    yield "goal", frame.goal
    yield ("status", f"{frame.status} {dot} begun {output.relative_time(frame.created_at)}{_end_text(frame, tree)}")
    where = (f"{scope.actor_id}", f"session {scope.session_id}" if scope.session_id else "",
             f"thread {scope.thread_id}" if scope.thread_id else "")  # fmt: skip
    yield "of", f" {dot} ".join(part for part in where if part)
    if frame.parent_frame_id:
        yield "under", f"{frame.parent_frame_id} {dot} depth {frame.depth}, root {frame.root_id}"
    bar = frame_tree_commands.account_bar(of, plain=surface.ascii)
    yield "budget", f"{bar}  {frame_tree_commands.account_equation(of)}"
    if of.with_descendants != of.own:
        yield ("", f"{of.own:,} spent by itself {dot} {of.with_descendants:,} with all descendants")
    for purpose, amount in frame.reservations.items():
        yield "reserved", f"{amount:,} for {purpose or 'no named purpose'}"
    yield "limits", f" {dot} ".join(_limit_texts(_limits_in_force(frame, tree), frame))
    if frame.inputs is not None:
        yield "inputs", output.compact_json(thaw(frame.inputs))
    for handle in _ordered_handles(frame):
        kind = f"{handle.handle_type}, {handle.priority.name.lower()}{', pinned' if handle.pinned else ''}"
        size = output.quantity(handle.size, "token")
        yield "handle", f"{handle.handle_id} {dot} {kind}, {size} {dot} {handle.description}"
    yield from _work_facts(frame, dot)
    yield "summary", frame.result_summary
    yield "reason", frame.reason


def _work_facts(frame: Frame, dot: str) -> Iterator[tuple[str, str]]:
    for tool in frame.tools:
        yield ("tool", f"{tool.name} ({tool.effect}) {dot} {tool.status}, attempt {tool.attempt} {dot} {tool.tool_id}")
    for child in frame.children:
        yield "child", child
    for child in frame.failures:
        yield "failed", child
    for result in frame.result_refs:
        yield "result", f"{result.result_type} {result.ref_id} {dot} {result.summary}"
    standing, now = frame.suspension, time.time_ns() // 1000
    if standing is not None:
        status = frame_tree_commands.current_status(standing, now)
        left = f", {frame_tree_commands.expiry_text(standing, now)}" if status == "waiting" else ""
        yield "suspended", f"{standing.reason} {dot} {standing.suspension_id} {dot} {status}{left}"
        if standing.payload is not None:
            yield "asks about", output.compact_json(thaw(standing.payload))
    if frame.resumption is not None:
        told = frame.resumption
        by = f" by {told.by}" if told.by else ""
        why = f": {told.reason}" if told.reason else ""
        yield "resumed", f"{told.decision}{by}{why} {dot} {told.suspension_id}"


def _end_text(frame: Frame, tree: TreeState) -> str:
    if frame.completed_at is not None:
        return f", closed {output.relative_time(frame.completed_at)}"
    deadline = tree.deadline_of(frame.frame_id)
    if deadline is None:
        return ""
    left = deadline / 1e6 - time.time()
    return f", {output.duration(left)} left" if left > 0 else f", overdue since {output.duration(-left)}"


def _limit_texts(limits: Mapping[str, int | None], frame: Frame) -> Sequence[str]:
    """Return the limits that are set, as texts."""
    context, calls, depth, timeout = (limits[name] for name in LIMIT_FIELDS)
    told = [
        f"{context:,} tokens of context" if context is not None else "",
        f"{frame.tool_calls:,} of {calls:,} tool calls" if calls is not None else "",
        f"frames down to depth {depth:,}" if depth is not None else "",
        f"{output.duration(timeout / 1000)} of time" if timeout is not None else "",
    ]
    return [part for part in told if part] or ["none"]


def show_pack(
    frame: Reference,
    /,
    *,
    at: Positive | None = None,
    provider: ProviderFormat = None,
    common: CommonOptions = CommonOptions(),
) -> None:
    """Show the context pack that a model saw for a frame: the last recorded one, or that of an event.

    Example: limpet frames pack @last --as openai

    Args:
        at: Show the pack recorded with this event of the frame's tree, by its version.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        pack = lp.index.pack_of(target.find_frame(lp, frame).frame_id, version=at)
    if provider is not None:
        surface.print_json(provider_request(pack, provider))
    elif surface.mode is OutputMode.JSON:
        surface.print_json(pack.to_dict())
    elif surface.mode is OutputMode.PIPE:
        for entry in pack.ledger.handles:
            cells = (entry.handle_id or "", entry.count, entry.fate, entry.tokens, entry.used)
            surface.print_row(*cells, entry.priority.label, entry.rule)
    else:
        for line in (*pack.explain().splitlines(), f"hash {pack.context_hash}"):
            surface.console.print(output.escape_line(line))


def show_pending_work(actor: str, /, *, session: str | None = None, common: CommonOptions = CommonOptions()) -> None:
    """Show the pending work that an actor would find if it resumed now. Resumes and changes nothing.

    Example: limpet frames pending planner

    Args:
        actor: The actor's id.
        session: Only work of this session: its id, a prefix of it, or @last.
    """
    surface = Output(common)
    with target.open_store(common) as lp:
        stack, others = _stack_and_other_frames(lp, Scope(actor, target.session_id_or_reference(lp, session)))
    work = pending_work((*stack, *others))
    document: Json = {
        "actor": actor, "stack": [frame.frame_id for frame in stack],
        "others": [frame.frame_id for frame in others], "pending": [_pending_document(one) for one in work],
    }  # fmt: skip
    rows = ((one.frame_id, one.work_type, one.ref_id, _tool_state(one), one.description) for one in work)
    if not surface.print_data(document, rows) and work:
        _print_pending(surface, work)
    if not work and surface.mode is not OutputMode.JSON:
        surface.note(f"{actor} has no pending work." if stack else f"{actor} has no open frame.")


def _stack_and_other_frames(lp: Limpet, scope: Scope) -> tuple[list[Frame], list[Frame]]:
    """Return the stack that an actor would resume, root first, and its other open frames, oldest first."""
    rows = lp.index.list_frames(scope, limit=target.ALL_ROWS)
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


def _tool_state(work: PendingWork) -> str | None:
    return f"{work.tool.status}, {work.tool.effect}" if work.tool else None


def _pending_document(work: PendingWork) -> dict[str, Json]:
    return {
        "frame": work.frame_id,
        "type": str(work.work_type),
        "description": work.description,
        "ref": work.ref_id or None,
        "tool": tool_document(work.tool) if work.tool else None,
    }


def _print_pending(surface: Output, work: tuple[PendingWork, ...]) -> None:
    ids = target.short_ids([one.frame_id for one in work] + [one.ref_id for one in work], surface.symbols.cut)
    rows: list[list[Cell]] = [
        [
            (ids[one.frame_id], "cyan"),
            _WORK_TYPE_LABELS[one.work_type],
            ids[one.ref_id],
            _tool_state(one) or "",
            one.description,
        ]
        for one in work
    ]
    surface.print_table(["FRAME", "WAITS FOR", "REF", "TOOL", "WHAT"], rows)


_WORK_TYPE_LABELS: Mapping[PendingWorkType, str] = {
    PendingWorkType.WAITING_FOR_SUBCALL: "a child",
    PendingWorkType.WAITING_FOR_USER: "a person",
    PendingWorkType.TOOL_IN_PROGRESS: "a tool",
    PendingWorkType.UNHANDLED_ERROR: "a failure",
}
