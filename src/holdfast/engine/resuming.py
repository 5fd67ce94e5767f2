"""Coming back to frames: an actor's stack and pending work, and what nobody came back to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from holdfast import errors, limits
from holdfast.engine import trees
from holdfast.engine.engine import Engine
from holdfast.engine.requests import Settings
from holdfast.history import framing, pending
from holdfast.store import port
from holdfast.values import frame_command as c
from holdfast.values import frame_event as e
from holdfast.values.command import Request
from holdfast.values.frame import Frame, Scope, ToolStatus
from holdfast.values.resume import ActorResumeState, RecoverySummary
from holdfast.values.session import SessionStatus
from holdfast.wire import frames as wire


class Resuming:
    """Finds open frames of one tenant."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._tenant = settings.tenant

    def _rows(
        self, kind: str, lookup: str | None, limit: int | None, scope: Scope | None
    ) -> list[port.Projection]:
        """Return rows of a kind, newest first; those of a scope's actor, and of the scope itself for frames."""
        self._engine.check()
        if limit is not None and (type(cast("object", limit)) is not int or limit < 1):
            raise errors.InvalidRequest("limit is a number of rows, 1 or more.")
        _checked(scope)
        owner = scope.actor_id if scope and kind != trees.FRAME else None
        found: list[port.Projection] = []
        after: tuple[int, str] | None = None
        while limit is None or len(found) < limit:
            size = (
                limits.PAGE_SIZE_MAX
                if limit is None
                else min(limit - len(found), limits.PAGE_SIZE_MAX)
            )
            query = port.Query(kind=kind, lookup=lookup, owner=owner, after=after, limit=size)
            page = self._engine.store.query(self._tenant, query)
            found += page
            if len(page) < size:
                break
            after = (page[-1].time_us, page[-1].id)
        return found

    def list_frames(
        self, scope: Scope | None = None, *, open_only: bool = True, limit: int = 100
    ) -> list[Frame]:
        """Return frames as rows show them, newest first: those that are open, or all. Handles are left out."""
        if scope is not None and open_only:
            return self._open_rows(scope)[:limit]
        rows = self._rows(trees.FRAME, None, None, None)
        found = (wire.decode_frame(row.document) for row in rows)
        return [
            frame
            for frame in found
            if (scope is None or scope.covers(frame.scope)) and (frame.open or not open_only)
        ][:limit]

    def _open_rows(self, scope: Scope) -> list[Frame]:
        """Return the open frames of a scope as their rows show them, the deepest first, then the newest."""
        rows = self._rows(trees.FRAME, _checked(scope).actor_id, None, scope)
        found = (wire.decode_frame(row.document) for row in rows)
        mine = [frame for frame in found if scope.covers(frame.scope)]
        return sorted(mine, key=lambda f: (f.depth, f.created_us, f.frame_id), reverse=True)

    def leaves(self, scope: Scope) -> list[Frame]:
        """Return a scope's open frames that have no open child of its own, the deepest first, then the newest."""
        rows = self._open_rows(scope)
        parents = {frame.parent_frame_id for frame in rows}
        found = (
            self._engine.trees.find(self._tenant, frame.frame_id)
            for frame in rows
            if frame.frame_id not in parents
        )
        return [frame for frame in found if frame is not None and frame.open]

    def resume_actor(self, scope: Scope) -> ActorResumeState:
        """Come back to a scope's work after a restart: its stack, and everything that waits.

        Tools that had begun and not ended are of unknown outcome from here on: settle each with
        resolve_tool. Frames of other actors are left alone. Without an open frame the state is empty.
        """
        began = self._engine.now_us()
        rows = self._open_rows(scope)
        for row in rows[:1] + [row for row in rows[1:] if _runs(row)]:
            command = c.ResumeActor(frame_id=row.frame_id, scope=scope)
            try:
                self._engine.run(Request(tenant=self._tenant, command=command))
            except (errors.InvalidTransition, errors.FrameNotFound):
                continue
        return self._resumed(rows, began)

    def _resumed(self, rows: list[Frame], began: int) -> ActorResumeState:
        known = self._engine.trees
        tree = known.open_tree(self._tenant, rows[0].frame_id) if rows else None
        if tree is None:
            return ActorResumeState()
        stack = tree.ancestry(rows[0].frame_id)
        seen = {frame.frame_id for frame in stack}
        others = [
            frame
            for row in sorted(rows, key=lambda r: (r.created_us, r.frame_id))
            if row.frame_id not in seen
            and (frame := known.find(self._tenant, row.frame_id)) is not None
            and frame.open
        ]
        work = pending.pending_work((*stack, *others))
        parents = {frame.parent_frame_id for frame in rows}
        summary = RecoverySummary(
            frames_recovered=len(stack),
            pending_work_items=len(work),
            last_event_seq=tree.version,
            recovery_time_ms=max(0, self._engine.now_us() - began) // 1000,
        )
        return ActorResumeState(
            current_frame=stack[-1],
            frame_stack=stack,
            pending_work=work,
            leaves=tuple(row.frame_id for row in rows if row.frame_id not in parents),
            recovery_summary=summary,
        )

    def _expire(self, now_us: int) -> list[str]:
        found: list[str] = []
        seen: set[str] = set()
        while True:
            rows = self._engine.store.query(self._tenant, trees.alarms(now_us))
            fresh = [row.id for row in rows if row.id not in seen]
            if not fresh:
                break
            seen.update(fresh)
            for root_id in fresh:
                found += self._expire_tree(root_id, now_us, ())
        for root_id, gone in self._orphans():
            found += self._expire_tree(root_id, now_us, gone)
        return found

    def _orphans(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield trees with frames whose sessions take no more messages, and those sessions."""
        for row in self._rows(trees.TREE, trees.OPEN, None, None):
            tree = self._engine.trees.current(self._tenant, row.id)
            open_frames = tree.frames.values() if tree else ()
            named = {frame.scope.session_id for frame in open_frames} - {None}
            gone = tuple(sorted(one for one in named if one and self._is_over(one)))
            if gone:
                yield row.id, gone

    def _is_over(self, session_id: str) -> bool:
        state = self._engine.states.current(self._tenant, session_id)
        # A conversation that went on in another session is not over.
        return (
            state is not None
            and state.status is not SessionStatus.ACTIVE
            and not state.continuations
        )

    def _expire_tree(self, root_id: str, now_us: int, orphaned: tuple[str, ...]) -> list[str]:
        tree = self._engine.trees.current(self._tenant, root_id)
        command = c.ExpireTree(frame_id=root_id, now_us=now_us, orphaned=orphaned)
        try:
            self._engine.run(Request(tenant=self._tenant, command=command))
        except (errors.InvalidTransition, errors.FrameNotFound):
            return []
        stream, after = trees.stream_of(root_id), tree.version if tree else 0
        found: list[str] = []
        while page := self._engine.store.read(self._tenant, stream, after=after):
            found += [fact.event.frame_id for fact in map(trees.recorded, page) if _expired(fact)]
            after = page[-1].version
        return found


def _expired(fact: trees.TreeEvent) -> bool:
    match fact.event:
        case e.FramePoppedEvent(reason=reason):
            return reason in (framing.OVERDUE, framing.ORPHANED, framing.PARENT_CLOSED)
        case e.FrameUpdatedEvent(suspension=changed):
            return changed is not None
        case _:
            return False


def _runs(frame: Frame) -> bool:
    return any(tool.status is ToolStatus.STARTED for tool in frame.tools)


def _checked(scope: Scope | None) -> Scope:
    if scope is not None and not isinstance(cast("object", scope), Scope):
        raise errors.InvalidRequest(
            f"a scope is a Scope, not {type(scope).__name__}.",
            hint='For example Scope(actor_id="planner").',
        )
    return scope or Scope("-")
