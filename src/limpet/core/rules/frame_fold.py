"""The fold of a frame tree: the transition table, and the state of a tree after each event.

Pure. The fold never refuses, because the log is a record of what happened. `TRANSITIONS` is the
only source of the allowed status changes.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, assert_never

import msgspec

from limpet import errors, limits
from limpet.core.values import events, ids
from limpet.core.values.context import ContextHandle, HandlePages, handle_pages, pages_with_handle
from limpet.core.values.frame_state import (
    Frame,
    FrameStatus,
    Resumption,
    Suspension,
    SuspensionStatus,
    TokenBudget,
    ToolRun,
    ToolStatus,
    TreeState,
)
from limpet.core.values.validation import EMPTY


class HandleIdCache:
    """Caches the set of handle ids of a frame, so that a duplicate is found without a scan of all handles.

    A set is shared by a frame's states: it may contain ids of a later state, but it misses none. The key is the id() of
    the pages; the stored pages prove that it was not reused.
    """

    SIZE: Final = 64

    def __init__(self) -> None:
        self._ids_by_pages: OrderedDict[int, tuple[HandlePages, set[str]]] = OrderedDict()

    def may_contain(self, pages: HandlePages, handle_id: str) -> bool:
        """Whether the pages may have a handle of that id; False is certain."""
        found = self._ids_by_pages.get(id(pages))
        if found is None or found[0] is not pages:
            found = self._store(pages, {handle.handle_id for page in pages for handle in page})
        return handle_id in found[1]

    def with_handle(self, before: HandlePages, handle: ContextHandle) -> HandlePages:
        """Return the pages with a further handle; their cached ids move to the new pages."""
        after, found = pages_with_handle(before, handle), self._ids_by_pages.pop(id(before), None)
        if found is not None and found[0] is before:
            found[1].add(handle.handle_id)
            self._store(after, found[1])
        return after

    def _store(self, pages: HandlePages, known: set[str]) -> tuple[HandlePages, set[str]]:
        made = self._ids_by_pages[id(pages)] = (pages, known)
        while len(self._ids_by_pages) > self.SIZE:
            self._ids_by_pages.popitem(last=False)
        return made


_handle_id_cache: Final = HandleIdCache()


def find_handle(frame: Frame, handle_id: str) -> ContextHandle | None:
    """Return the handle of a frame by its id; None if it has none."""
    return frame.handle(handle_id) if _handle_id_cache.may_contain(frame.handle_pages, handle_id) else None


_S = FrameStatus

_FROM_ACTIVE_OR_WAITING: Final = {
    _S.SUSPENDED: "suspend", _S.COMPLETED: "pop", _S.FAILED: "pop, overdue", _S.CANCELLED: "pop, cascade",
}  # fmt: skip

TRANSITIONS: Final[Mapping[FrameStatus, Mapping[FrameStatus, str]]] = {
    _S.ACTIVE: {_S.WAITING: "pushes a child, or waits", **_FROM_ACTIVE_OR_WAITING},
    _S.WAITING: {_S.ACTIVE: "last child popped", **_FROM_ACTIVE_OR_WAITING},
    _S.SUSPENDED: {_S.ACTIVE: "resume", _S.WAITING: "resume", _S.FAILED: "cascade", _S.CANCELLED: "cascade"},
    _S.COMPLETED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}
"""The statuses that may follow a status, and the cause of each change. The diagram in the docs is made from it."""

SETTLED_TOOL_STATUSES: Final = (ToolStatus.FINISHED, ToolStatus.ABANDONED)

replace = msgspec.structs.replace
FramesById = dict[str, Frame]


class FrameWrite(msgspec.Struct, frozen=True):
    """An event of a command, and the texts that the event refers to by hash."""

    event: events.FrameEvent
    texts: tuple[str, ...] = ()


def invalid_transition_error(frame: Frame, wanted: str, hint: str = "") -> errors.InvalidTransition:
    """Return the error for an action that the status of a frame does not allow."""
    return errors.InvalidTransition(
        f"the frame {frame.frame_id!r} is {frame.status}: it can't {wanted}.",
        hint=hint,
        facts={"frame": frame.frame_id, "status": str(frame.status), "wanted": wanted},
    )


def check_deadline(tree: TreeState, frame: Frame, now_us: int) -> None:
    """Raise TimeLimitExceeded if the deadline of a frame or of one of its ancestors has passed."""
    until = tree.deadline_of(frame.frame_id)
    if until is not None and now_us >= until:
        raise errors.TimeLimitExceeded(
            f"the time of the frame {frame.frame_id!r} was up at {ids.iso(until)}.",
            hint="Pop it; give frames that take longer a timeout_ms of None.",
            facts={"frame": frame.frame_id, "deadline": ids.iso(until)},
        )


def text_hash(text: str) -> str:
    """Return the hash under which a text is stored."""
    return hashlib.sha256(text.encode()).hexdigest()


def evolve(tree: TreeState | None, event: events.FrameEvent, *, version: int, time_us: int) -> TreeState:
    """Return the tree after an event of the log."""
    return replace(evolve_one(tree, event, time_us=time_us), version=version)


def evolve_one(tree: TreeState | None, event: events.FrameEvent, *, time_us: int) -> TreeState:
    """Return the tree after an event, one version later."""
    if tree is None:
        if not isinstance(event, events.FramePushedEvent):
            raise errors.Corrupt("a frame tree's log does not begin with its root.")
        tree = TreeState(root_id=event.frame_id, due=limits.SNAPSHOT_EVERY)
    if isinstance(event, events.TreeErasedEvent):
        return replace(tree, version=tree.version + 1)
    frames: FramesById = dict(tree.frames)
    closed, burden = ((), 0) if tree.moves_closed_frames else (tree.closed, tree.burden)
    left = _apply_event(tree, frames, event, time_us)
    if left is not None:
        closed, burden = (*closed, left), burden + left.state_size
    version, due = tree.version + 1, tree.due
    if version >= due:
        weight = sum(1 + frame.handle_count + len(frame.result_refs) for frame in frames.values())
        due = version + max(limits.SNAPSHOT_EVERY, weight)
    return TreeState(
        root_id=tree.root_id, version=version, updated_us=time_us, frames=frames,
        closed=closed, burden=burden, due=due,
    )  # fmt: skip


def _apply_event(tree: TreeState, frames: FramesById, event: events.FrameEvent, time_us: int) -> Frame | None:
    """Apply an event to `frames`; return the frame that it closed."""
    match event:
        case events.FramePushedEvent():
            _apply_push(tree, frames, event, time_us)
            return None
        case events.FramePoppedEvent():
            return _apply_pop(frames, event, time_us)
        case events.ActorResumedEvent():
            _mark_tools_unknown(frames, event, time_us)
            return None
        case events.TreeErasedEvent():
            return None
        case _:
            pass
    frame = frames[event.frame_id]
    match event:
        case events.FrameUpdatedEvent():
            frame = _apply_update(frame, event, time_us)
        case events.FrameSuspendedEvent():
            frame = _apply_suspension(frame, event, time_us)
        case events.FrameResumedEvent():
            frame = _apply_resumption(frame, event)
        case events.HandleAddedEvent():
            frame = replace(frame, handle_pages=_handle_id_cache.with_handle(frame.handle_pages, event.handle))
        case events.ResultAddedEvent():
            frame = replace(frame, result_refs=(*frame.result_refs, event.result))
        case events.FrameCompactedEvent():
            frame = _apply_compaction(frame, event)
        case _:
            assert_never(event)
    frames[event.frame_id] = replace(frame, updated_us=time_us)
    if isinstance(event, (events.FrameSuspendedEvent, events.FrameResumedEvent)):
        _pause_or_restart_clocks(frames, event.frame_id, time_us)
    return None


def _apply_push(tree: TreeState, frames: FramesById, event: events.FramePushedEvent, time_us: int) -> None:
    parent = frames.get(event.parent_frame_id) if event.parent_frame_id else None
    timeout = event.budget.timeout_ms
    frames[event.frame_id] = Frame(
        frame_id=event.frame_id,
        root_id=tree.root_id,
        scope=event.scope,
        goal=event.goal,
        budget=event.budget,
        parent_frame_id=event.parent_frame_id,
        inputs=event.inputs,
        depth=parent.depth + 1 if parent else 0,
        created_us=time_us,
        updated_us=time_us,
        deadline_us=None if timeout is None else time_us + timeout * 1000,
    )
    if parent is not None:
        given = parent.budget.subcall_allocation + event.budget.total
        waits = event.waits and parent.status is _S.ACTIVE
        frames[parent.frame_id] = replace(
            parent,
            budget=replace(parent.budget, subcall_allocation=given),
            children=(*parent.children, event.frame_id),
            status=_S.WAITING if waits else parent.status,
            updated_us=time_us,
        )


def _apply_pop(frames: FramesById, event: events.FramePoppedEvent, time_us: int) -> Frame:
    frame = frames.pop(event.frame_id)
    suspension = frame.suspension
    closed = replace(
        frame,
        status=event.status,
        completed_us=time_us,
        updated_us=time_us,
        result_summary=event.result_summary,
        reason=event.reason,
        budget=replace(frame.budget, reserved=0) if frame.budget.reserved else frame.budget,
        reservations=EMPTY,
        tools=(),
        failures=(),
        suspension=replace(suspension, status=SuspensionStatus.CLOSED) if suspension else None,
        stood_us=None,
    )
    parent = frames.get(frame.parent_frame_id) if frame.parent_frame_id else None
    if parent is not None:
        frames[parent.frame_id] = _without_child(parent, closed, time_us)
        if parent.stood_us is not None:
            _pause_or_restart_clocks(frames, parent.frame_id, time_us)
    return closed


def _without_child(parent: Frame, child: Frame, time_us: int) -> Frame:
    children: tuple[str, ...] = ()
    if len(parent.children) > 1:
        children = tuple([one for one in parent.children if one != child.frame_id])
    status, suspension = parent.status, parent.suspension
    if not children and status is _S.WAITING:
        status = _S.ACTIVE
    if not children and suspension and suspension.previous is _S.WAITING:
        suspension = replace(suspension, previous=_S.ACTIVE)
    failures = parent.failures
    if child.status is _S.FAILED:
        failures = (*failures, child.frame_id)[-limits.FAILURES_KEPT :]
    budget = parent.budget.settle(child.budget)
    return replace(
        parent,
        budget=budget,
        settled=parent.settled + budget.used - parent.budget.used,
        children=children,
        status=status,
        suspension=suspension,
        failures=failures,
        updated_us=time_us,
    )


def _pause_or_restart_clocks(frames: FramesById, frame_id: str, time_us: int) -> None:
    """Stop the clocks of a frame and its ancestors that have a suspended descendant; restart the others."""
    tree = TreeState(root_id="", frames=frames)
    for frame in tree.ancestry(frame_id):
        below = (frame, *tree.open_descendants(frame.frame_id))
        stands = any(one.status is _S.SUSPENDED for one in below)
        if stands and frame.stood_us is None:
            frames[frame.frame_id] = replace(frame, stood_us=time_us)
        elif not stands and frame.stood_us is not None:
            stood, until = time_us - frame.stood_us, frame.deadline_us
            frames[frame.frame_id] = replace(frame, stood_us=None, deadline_us=None if until is None else until + stood)


def _apply_update(frame: Frame, event: events.FrameUpdatedEvent, time_us: int) -> Frame:
    if event.goal is not msgspec.UNSET:
        frame = replace(frame, goal=event.goal)
    if event.inputs is not msgspec.UNSET:
        frame = replace(frame, inputs=event.inputs)
    if event.status is not None:
        frame = replace(frame, status=event.status)
    if event.reserved or event.released or event.used:
        frame = _apply_tokens(frame, event)
    if event.tool is not None:
        frame = _apply_tool(frame, event.tool)
    if event.pack is not None:
        frame = replace(frame, context_hash=event.pack.digest)
    if event.handled:
        frame = replace(frame, failures=tuple(one for one in frame.failures if one not in event.handled))
    if frame.suspension and (event.suspension or event.token_hash):
        frame = replace(frame, suspension=_changed_suspension(frame.suspension, event, time_us))
    return frame


def _changed_suspension(suspension: Suspension, event: events.FrameUpdatedEvent, time_us: int) -> Suspension:
    if event.token_hash:
        return replace(suspension, token_hash=event.token_hash, expires_us=event.expires_us)
    return replace(
        suspension, status=event.suspension, decided_us=time_us, decided_by=event.by, decision_reason=event.reason
    )


def _apply_tokens(frame: Frame, event: events.FrameUpdatedEvent) -> Frame:
    purposes = dict(frame.reservations)
    for purpose, amount in event.reserved.items():
        purposes[purpose] = purposes.get(purpose, 0) + amount
    for purpose, amount in event.released.items():
        purposes[purpose] = purposes.get(purpose, 0) - amount
    left = {purpose: amount for purpose, amount in purposes.items() if amount > 0}
    budget: TokenBudget = replace(
        frame.budget, reserved=sum(left.values()), used=min(frame.budget.used + event.used, limits.TOKENS_MAX)
    )
    return replace(frame, budget=budget, reservations=left)


def _apply_tool(frame: Frame, tool: ToolRun) -> Frame:
    known = any(one.tool_id == tool.tool_id for one in frame.tools)
    if tool.status in SETTLED_TOOL_STATUSES:
        tools = tuple(one for one in frame.tools if one.tool_id != tool.tool_id)
    elif known:
        tools = tuple(tool if one.tool_id == tool.tool_id else one for one in frame.tools)
    else:
        tools = (*frame.tools, tool)
    return replace(frame, tools=tools, tool_calls=frame.tool_calls + (not known))


def _apply_suspension(frame: Frame, event: events.FrameSuspendedEvent, time_us: int) -> Frame:
    before = frame.suspension
    suspension = Suspension(
        suspension_id=event.suspension_id, frame_id=frame.frame_id, root_id=frame.root_id, scope=frame.scope,
        reason=event.reason, purpose=event.purpose, payload=event.payload,
        previous=before.previous if before else frame.status, suspended_us=time_us, expires_us=event.expires_us,
        token_hash=event.token_hash,
    )  # fmt: skip
    return replace(frame, status=_S.SUSPENDED, suspension=suspension, resumption=None)


def _apply_resumption(frame: Frame, event: events.FrameResumedEvent) -> Frame:
    before = frame.suspension
    resumption = Resumption(
        suspension_id=event.suspension_id, decision=event.decision, payload=event.payload,
        purpose=before.purpose if before else "", by=event.by, reason=event.reason,
    )  # fmt: skip
    status = before.previous if before else _S.ACTIVE
    return replace(frame, status=status, suspension=None, resumption=resumption)


def _apply_compaction(frame: Frame, event: events.FrameCompactedEvent) -> Frame:
    gone, handles = set(event.removed), frame.context_handles
    kept = [handle for handle in handles if handle.handle_id not in gone]
    # The replacements take the position, and so the age, of the first removed handle.
    first = next((at for at, handle in enumerate(handles) if handle.handle_id in gone), 0)
    kept[first:first] = event.replaced
    return replace(frame, handle_pages=handle_pages(kept))


def _mark_tools_unknown(frames: FramesById, event: events.ActorResumedEvent, time_us: int) -> None:
    lost = set(event.unknown)
    for frame_id, frame in frames.items():
        if lost.isdisjoint(tool.tool_id for tool in frame.tools):
            continue
        tools = tuple(
            replace(tool, status=ToolStatus.UNKNOWN, changed_us=time_us) if tool.tool_id in lost else tool
            for tool in frame.tools
        )
        frames[frame_id] = replace(frame, tools=tools, updated_us=time_us)
