"""Finds frames: lists, an actor's stack, pending work, frames at a past position, and overdue ones, which it fails.

The functions `tree_at`, `frame_at` and `pack_at` fold a frame tree up to a position of the log.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import sys
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec

from limpet import errors
from limpet.core.formats import codec
from limpet.core.rules import frame_fold, frame_rules, session_rules
from limpet.core.values import commands, events
from limpet.core.values.commands import CommandRequest
from limpet.core.values.context import PackSelection
from limpet.core.values.frame_state import ActorResumeState, Frame, RecoverySummary, Scope, ToolStatus, TreeState
from limpet.core.values.session_state import SessionStatus
from limpet.core.values.validation import checked_id, checked_instance, checked_limit
from limpet.core.windows.pack import ContextPack
from limpet.frames import packs
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import iter_stream
from limpet.runtime.state_cache import iter_rows
from limpet.stores import port


def list_frames(
    engine: Engine, tenant: str, scope: Scope | None = None, *, open_only: bool = True, limit: int = 100
) -> list[Frame]:
    engine.check()
    checked_limit(limit, sys.maxsize)
    checked_scope(scope, optional=True)
    working = list(_open_trees(engine, tenant, scope))
    found = _sorted_open_frames(working, scope)
    if not open_only and len(found) < limit:
        closed = [frame for tree in working for frame in tree.closed if _in_scope(scope, frame)]
        closed.sort(key=_creation_order, reverse=True)
        # A frame that left its tree's state during this call has a row, too.
        seen = {frame.frame_id for frame in (*found, *closed)}
        rows = (frame for frame in _closed_frames(engine, tenant, scope) if frame.frame_id not in seen)
        every = heapq.merge(closed, rows, key=_creation_order, reverse=True)
        found += itertools.islice(every, limit - len(found))
    return found[:limit]


def _closed_frames(engine: Engine, tenant: str, scope: Scope | None) -> Iterator[Frame]:
    """Yield the closed frames of a scope that have rows of their own, the newest first."""
    query = port.Query(kind=state_cache.FRAME_KIND, owner=scope.actor_id if scope else None)
    for row in iter_rows(engine.store, tenant, query):
        frame = codec.decode_frame(row.document)
        if not frame.open and _in_scope(scope, frame):
            yield frame


def _open_trees(engine: Engine, tenant: str, scope: Scope | None) -> Iterator[TreeState]:
    terms = state_cache.scope_terms(scope) if scope else ()
    query = port.Query(kind=state_cache.TREE_KIND, lookup=state_cache.ROW_OPEN, terms=terms)
    for row in iter_rows(engine.store, tenant, query):
        tree = engine.trees.current(tenant, row.id)
        if tree is not None:
            yield tree


def leaves(engine: Engine, tenant: str, scope: Scope) -> list[Frame]:
    engine.check()
    checked_scope(scope)
    return _leaf_frames(_sorted_open_frames(_open_trees(engine, tenant, scope), scope))


def resume_actor(engine: Engine, tenant: str, scope: Scope) -> ActorResumeState:
    engine.check()
    checked_scope(scope)
    began = engine.now_us()
    found = _sorted_open_frames(_open_trees(engine, tenant, scope), scope)
    touched: set[str] = set()
    running = [frame for frame in found if any(tool.status is ToolStatus.STARTED for tool in frame.tools)]
    for frame in found[:1] + running:
        if frame.root_id not in touched:
            touched.add(frame.root_id)
            command = commands.ResumeActor(frame_id=frame.frame_id, scope=scope)
            with contextlib.suppress(errors.InvalidTransition, errors.FrameNotFound):
                # Another process may have closed the frame since it was found.
                engine.run(CommandRequest(tenant=tenant, command=command))
    return _resume_state(
        engine, tenant, _sorted_open_frames(_open_trees(engine, tenant, scope), scope) if touched else found, began
    )


def _resume_state(engine: Engine, tenant: str, found: list[Frame], began: int) -> ActorResumeState:
    tree = engine.trees.current(tenant, found[0].root_id) if found else None
    if tree is None or found[0].frame_id not in tree.frames:
        return ActorResumeState()
    stack = tree.ancestry(found[0].frame_id)
    inside = {frame.frame_id for frame in stack}
    others = sorted(found, key=_creation_order)
    work = frame_rules.pending_work((*stack, *(frame for frame in others if frame.frame_id not in inside)))
    summary = RecoverySummary(
        frames_recovered=len(stack), pending_work_items=len(work), last_event_seq=tree.version,
        recovery_time_ms=max(0, engine.now_us() - began) // 1000,
    )  # fmt: skip
    return ActorResumeState(
        current_frame=stack[-1], frame_stack=stack, pending_work=work,
        leaves=tuple(frame.frame_id for frame in _leaf_frames(found)), recovery_summary=summary,
    )  # fmt: skip


def _in_scope(scope: Scope | None, frame: Frame) -> bool:
    return scope is None or scope.covers(frame.scope)


def _creation_order(frame: Frame) -> tuple[int, str]:
    return frame.created_us, frame.frame_id


def _sorted_open_frames(working: Iterable[TreeState], scope: Scope | None) -> list[Frame]:
    """Return the open frames of a scope in some trees, the deepest first, then the newest."""
    frames = (frame for tree in working for frame in tree.frames.values() if _in_scope(scope, frame))
    return sorted(frames, key=lambda frame: (frame.depth, *_creation_order(frame)), reverse=True)


def _leaf_frames(found: list[Frame]) -> list[Frame]:
    parents = {frame.parent_frame_id for frame in found}
    return [frame for frame in found if frame.frame_id not in parents]


def checked_scope(scope: Scope | None, *, optional: bool = False) -> None:
    """Raise InvalidRequest unless the argument is a Scope, or None where that is allowed."""
    if scope is not None or not optional:
        hint = 'For example Scope(actor_id="planner").'
        checked_instance("a scope", scope, Scope, hint=hint)


class FrameDifference(msgspec.Struct, frozen=True):
    """A frame at two positions; None where it did not exist. `changed` names the fields that differ."""

    before: Frame | None
    after: Frame | None

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the fields that differ; all names if the frame is missing at one position."""
        names = ["context_handles" if name == "handle_pages" else name for name in Frame.__struct_fields__]
        return tuple(name for name in names if getattr(self.before, name, None) != getattr(self.after, name, None))


class PastTree(msgspec.Struct, frozen=True):
    """A tree at a past position: its open frames, its closed frames, and the last pack of each frame."""

    tree: TreeState
    closed: dict[str, Frame]
    packs: dict[str, PackSelection]


def tree_at(engine: Engine, tenant: str, frame_id: str, position: int) -> PastTree:
    """Return a frame's tree at a position, from all its events; raise FrameNotFound if the frame did not exist."""
    engine.check()
    root = engine.trees.root_of(tenant, checked_id("a frame's id", frame_id))
    stream = state_cache.tree_stream(root or "")
    until = engine.store.version(tenant, stream, position=position) if root else 0
    tree = None
    closed: dict[str, Frame] = {}
    seen: dict[str, PackSelection] = {}
    found = iter_stream(engine.store, tenant, stream, at=until) if until else ()
    for fact in map(state_cache.decode_tree_event, found):
        tree = frame_fold.evolve(tree, fact.event, version=fact.version, time_us=fact.time_us)
        if isinstance(fact.event, events.FramePoppedEvent):
            closed[fact.event.frame_id] = tree.closed[-1]
        if isinstance(fact.event, events.FrameUpdatedEvent) and fact.event.pack is not None:
            seen[fact.event.frame_id] = fact.event.pack
    if until and (tree is None or tree.version < until):
        raise errors.Corrupt(f"the log of {stream} ends before version {until:,}.")
    if tree is None or (frame_id not in tree.frames and frame_id not in closed):
        raise errors.FrameNotFound(
            f"there was no frame {frame_id!r} at position {position:,}.",
            facts={"frame": frame_id, "position": position},
        )
    return PastTree(tree, closed, seen)


def frame_at(engine: Engine, tenant: str, frame_id: str, position: int) -> Frame:
    past = tree_at(engine, tenant, frame_id, position)
    return past.tree.frames.get(frame_id) or past.closed[frame_id]


def pack_at(engine: Engine, tenant: str, frame_id: str, position: int) -> ContextPack:
    """Return the last pack that was recorded for a frame up to a position, byte for byte; raise NotFound if none was."""
    chosen = tree_at(engine, tenant, frame_id, position).packs.get(frame_id)
    if chosen is None:
        raise errors.NotFound(
            f"no pack of the frame {frame_id!r} was recorded by position {position:,}.",
            facts={"frame": frame_id, "position": position},
        )
    packs.check_sessions_exist(engine, tenant, chosen)
    return packs.rebuild_pack(engine.store, tenant, chosen)


def frame_difference(engine: Engine, tenant: str, frame_id: str, first: int, last: int) -> FrameDifference:
    """Return a frame at two positions; raise FrameNotFound if it existed at neither."""
    before = after = None
    with contextlib.suppress(errors.FrameNotFound):
        before = frame_at(engine, tenant, frame_id, first)
    try:
        after = frame_at(engine, tenant, frame_id, last)
    except errors.FrameNotFound:
        if before is None:
            raise
    return FrameDifference(before, after)


_EXPIRY_REASONS = (frame_rules.REASON_OVERDUE, frame_rules.REASON_ORPHANED, frame_rules.REASON_PARENT_CLOSED)


def expire_frames(engine: Engine, tenant: str, now_us: int) -> list[str]:
    """Fail overdue and orphaned frames and expire suspensions; return the ids of the frames that changed."""
    expired: list[str] = []
    seen: set[str] = set()
    while True:
        rows = engine.store.query_projections(tenant, state_cache.overdue_trees_query(now_us))
        fresh = [row.id for row in rows if row.id not in seen]
        if not fresh:
            break
        seen.update(fresh)
        for root_id in fresh:
            expired += _expire_tree(engine, tenant, root_id, now_us, ())
    for root_id, ended in _orphaned_trees(engine, tenant):
        expired += _expire_tree(engine, tenant, root_id, now_us, ended)
    return expired


def _orphaned_trees(engine: Engine, tenant: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    query = port.Query(kind=state_cache.TREE_KIND, lookup=state_cache.ROW_OPEN)
    for row in iter_rows(engine.store, tenant, query):
        tree = engine.trees.current(tenant, row.id)
        frames = tree.frames.values() if tree else ()
        sessions = {frame.scope.session_id for frame in frames} - {None}
        ended = tuple(sorted(name for name in sessions if name and _has_ended(engine, tenant, name)))
        if ended:
            yield row.id, ended


def _has_ended(engine: Engine, tenant: str, session_id: str) -> bool:
    """Whether a conversation takes no more messages, neither in this session nor in a continuation."""
    find = partial(engine.states.current, tenant)
    state = find(session_id)
    while state is not None and not state.hidden and (following := session_rules.find_continuation(state, find)):
        state = following
    return state is not None and state.status is not SessionStatus.ACTIVE


def _expire_tree(engine: Engine, tenant: str, root_id: str, now_us: int, orphaned: tuple[str, ...]) -> list[str]:
    tree = engine.trees.current(tenant, root_id)
    command = commands.ExpireTree(frame_id=root_id, now_us=now_us, orphaned=orphaned)
    try:
        engine.run(CommandRequest(tenant=tenant, command=command))
    except (errors.InvalidTransition, errors.FrameNotFound):
        return []
    stream, after = state_cache.tree_stream(root_id), tree.version if tree else 0
    facts = map(state_cache.decode_tree_event, iter_stream(engine.store, tenant, stream, after=after))
    return [fact.event.frame_id for fact in facts if _is_expiry(fact.event)]


def _is_expiry(event: events.FrameEvent) -> bool:
    match event:
        case events.FramePoppedEvent(reason=reason):
            return reason in _EXPIRY_REASONS
        case events.FrameUpdatedEvent(suspension=changed):
            return changed is not None
        case _:
            return False
