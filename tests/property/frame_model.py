"""Frames as plain Python has them: a model that knows nothing of events, folds, rows or stores.

Each verb says first what must come of it: `No`, with the error and its numbers, or a function that takes
what the engine answered, changes the model, and returns the events that must be in the log: frame and kind.
What the engine keeps as a number is worked out anew here: an account from who spent what, and a deadline
from how long a clock has run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from limpet import errors

Told = list[tuple[str, str]]
Effect = Callable[[Any], Told]
FINAL = ("completed", "failed", "cancelled")
UPDATED, POPPED = "frame.updated", "frame.popped"


class No(Exception):
    """It must be refused, with this error and these facts."""

    def __init__(self, error: type[errors.Error], **facts: Any) -> None:
        super().__init__(error.__name__, facts)
        self.error = error
        self.facts = facts


@dataclass
class Pause:
    """A suspension."""

    id: str
    frame: str
    token: str
    purpose: str
    payload: Any
    previous: str
    expires: int | None
    status: str = "waiting"
    by: str = ""

    def over(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now


@dataclass
class Tool:
    name: str
    status: str
    attempt: int = 1


@dataclass
class Work:
    """A frame."""

    id: str
    parent: Work | None
    actor: str
    session: str | None
    goal: str
    inputs: Any
    total: int
    depth_max: int | None
    calls_max: int | None
    made: tuple[Any, ...]
    created: int
    left: int | None
    status: str = "active"
    spent: int = 0
    from_below: int = 0
    aside: dict[str, int] = field(default_factory=dict[str, int])
    handles: dict[str, Any] = field(default_factory=dict[str, Any])
    results: list[str] = field(default_factory=list[str])
    tools: dict[str, Tool] = field(default_factory=dict[str, Tool])
    calls: int = 0
    children: list[Work] = field(default_factory=list["Work"])
    failures: list[str] = field(default_factory=list[str])
    pause: Pause | None = None
    since: int | None = None
    seen: str | None = None

    def __post_init__(self) -> None:
        self.since = self.created

    @property
    def root(self) -> Work:
        return self.parent.root if self.parent else self

    def above(self) -> list[Work]:
        """Itself and everything above, from the root."""
        return [*(self.parent.above() if self.parent else []), self]

    def below(self) -> Iterator[Work]:
        """Itself and everything below."""
        yield self
        for child in self.children:
            yield from child.below()

    @property
    def depth(self) -> int:
        return len(self.above()) - 1

    @property
    def used(self) -> int:
        return self.spent + self.from_below

    @property
    def given(self) -> int:
        return sum(child.total for child in self.children)

    @property
    def free(self) -> int:
        return max(0, self.total - self.used - sum(self.aside.values()) - self.given)

    def deadline(self) -> int | None:
        return None if self.left is None or self.since is None else self.since + self.left


class Model:
    """All frames of one tenant."""

    def __init__(self) -> None:
        self.now = 0
        self.open: dict[str, Work] = {}
        self.closed: dict[str, Work] = {}
        self.pauses: dict[str, Pause] = {}
        self.of_frame: dict[str, list[Pause]] = {}
        self.touched: dict[str, int] = {}
        self.tools_seen: dict[str, set[str]] = {}

    # What all verbs share.

    def time(self, work: Work) -> int:
        """A tree's time never goes back."""
        return max(self.now, self.touched[work.root.id])

    def find(self, frame_id: str) -> Work:
        if frame_id in self.open:
            return self.open[frame_id]
        if frame_id in self.closed:
            raise No(errors.InvalidTransition, frame=frame_id, status=self.closed[frame_id].status)
        raise No(errors.FrameNotFound, frame=frame_id)

    def _told(self, work: Work, kind: str) -> Told:
        self.touched[work.root.id] = self.time(work)
        return [(work.id, kind)]

    def _in_time(self, work: Work) -> None:
        times = [moment for one in work.above() if (moment := one.deadline()) is not None]
        if times and self.time(work) >= min(times):
            raise No(errors.TimeLimitExceeded, frame=work.id)

    def _clocks(self, work: Work | None) -> None:
        """A clock runs unless something at or below it is suspended."""
        while work is not None:
            stands = any(one.status == "suspended" for one in work.below())
            if stands and work.since is not None:
                if work.left is not None:
                    work.left -= self.time(work) - work.since
                work.since = None
            elif not stands and work.since is None:
                work.since = self.time(work)
            work = work.parent

    # Frames.

    def push(self, frame_id: str | None, parent_id: str | None, made: tuple[Any, ...]) -> Effect:
        actor, session, goal, inputs, total, depth_max, calls_max, timeout, waits = made
        if frame_id is not None and frame_id.rpartition(".")[2].isdigit():
            raise No(errors.InvalidRequest)
        known = self.open.get(frame_id or "") or self.closed.get(frame_id or "")
        if known is not None:
            if known.made != (frame_id, parent_id, *made):
                raise No(errors.DuplicateFrame, frame=frame_id)
            return lambda _: []
        parent = None
        if parent_id is not None:
            if parent_id not in self.open and parent_id not in self.closed:
                raise No(errors.ParentFrameNotFound, frame=parent_id)
            parent = self.find(parent_id)
            self._fits(parent, total)

        def effect(frame: Any) -> Told:
            self.touched.setdefault(frame.root_id, self.now)
            created = self.time(parent) if parent else self.now
            work = Work(
                frame.frame_id, parent, actor, session, goal, inputs, total, depth_max, calls_max,
                (frame_id, parent_id, *made), created, None if timeout is None else timeout * 1000,
            )  # fmt: skip
            self.open[work.id] = work
            if parent is not None:
                parent.children.append(work)
                if waits and parent.status == "active":
                    parent.status = "waiting"
            return self._told(work, "frame.pushed")

        return effect

    def _fits(self, parent: Work, total: int) -> None:
        if parent.status == "suspended":
            raise No(errors.InvalidTransition, frame=parent.id, status="suspended")
        depths = [one.depth_max for one in parent.above() if one.depth_max is not None]
        if depths and parent.depth >= min(depths):
            raise No(errors.MaxDepthExceeded, depth=parent.depth + 1, depth_max=min(depths))
        self._in_time(parent)
        if total > parent.free:
            raise No(errors.InsufficientTokens, requested=total, available=parent.free)

    def update(self, frame_id: str, goal: str | None, inputs: Any, status: str | None, handled: list[str]) -> Effect:
        work = self.find(frame_id)
        moves = status is not None and status != work.status
        if moves and status in (*FINAL, "suspended"):
            raise No(errors.InvalidRequest)
        if moves and work.status == "suspended":
            raise No(errors.InvalidTransition, frame=frame_id, status="suspended")
        failures = [one for one in work.failures if one not in handled]
        differs = (
            (goal is not None and goal != work.goal)
            or (inputs is not None and inputs != work.inputs)
            or moves
            or failures != work.failures
        )

        def effect(_: Any) -> Told:
            work.goal = work.goal if goal is None else goal
            work.inputs = work.inputs if inputs is None else inputs
            work.status = status if moves and status else work.status
            work.failures = failures
            return self._told(work, UPDATED) if differs else []

        return effect

    def pop(self, frame_id: str, status: str, cascade: bool) -> Effect:
        if status not in FINAL:
            raise No(errors.InvalidRequest)
        work = self.find(frame_id)
        if work.status == "suspended" and not (cascade and status != "completed"):
            raise No(errors.InvalidTransition, frame=frame_id, status="suspended")
        if work.children and not cascade:
            raise No(errors.OpenChildren, frame=frame_id, children=[one.id for one in work.children])
        if status == "completed" and work.tools:
            raise No(errors.InvalidTransition, frame=frame_id, tools=list(work.tools))
        return lambda _: self.close(work, status)

    def close(self, work: Work, status: str) -> Told:
        """Close a frame and, before it, what is below, level by level from the deepest."""
        levels, told = [[work]], Told()
        while levels[-1]:
            levels.append([child for one in levels[-1] for child in one.children])
        for level in reversed(levels):
            for one in reversed(level):
                told += self._told(one, POPPED)
                self._close(one, status if one is work else "cancelled")
        return told

    def _close(self, work: Work, status: str) -> None:
        moment = self.time(work)
        work.status, work.aside, work.tools = status, {}, {}
        if work.pause is not None:
            work.pause.status = "closed"
        del self.open[work.id]
        self.closed[work.id] = work
        parent = work.parent
        if parent is None:
            return
        parent.children.remove(work)
        parent.from_below += work.used
        if status == "failed":
            parent.failures.append(work.id)
        if not parent.children:
            if parent.status == "waiting":
                parent.status = "active"
            if parent.pause is not None and parent.pause.previous == "waiting":
                parent.pause.previous = "active"
        self.touched[work.root.id] = moment
        self._clocks(parent)

    # Accounts.

    def reserve(self, frame_id: str, amount: int, purpose: str) -> Effect:
        work = self.find(frame_id)
        if amount > work.free:
            raise No(errors.InsufficientTokens, requested=amount, available=work.free)
        return self._spend(work, purpose, amount, 0, 0)

    def release(self, frame_id: str, amount: int | None, purpose: str) -> Effect:
        work = self.find(frame_id)
        aside = work.aside.get(purpose, 0)
        if amount is not None and amount > aside:
            raise No(errors.BudgetError, requested=amount, reserved=aside, purpose=purpose)
        return self._spend(work, purpose, 0, aside if amount is None else amount, 0)

    def use(self, frame_id: str, amount: int, settles: str | None) -> Effect:
        work = self.find(frame_id)
        aside = 0 if settles is None else work.aside.get(settles, 0)
        if settles is not None and not aside:
            raise No(errors.BudgetError, requested=amount, reserved=0, purpose=settles)
        return self._spend(work, settles or "", 0, aside, amount)

    def _spend(self, work: Work, purpose: str, more: int, less: int, used: int) -> Effect:
        def effect(_: Any) -> Told:
            work.aside[purpose] = work.aside.get(purpose, 0) + more - less
            if not work.aside[purpose]:
                del work.aside[purpose]
            work.spent += used
            return self._told(work, UPDATED) if more or less or used else []

        return effect

    # Handles and results.

    def add_handle(self, frame_id: str, handle: Any) -> Effect:
        work = self.find(frame_id)
        present = work.handles.get(handle.handle_id)
        if present is not None and present != handle:
            raise No(errors.DuplicateHandle, frame=frame_id, handle=handle.handle_id)

        def effect(_: Any) -> Told:
            work.handles[handle.handle_id] = handle
            return [] if present else self._told(work, "frame.handle_added")

        return effect

    def remove_handle(self, frame_id: str, handle_id: str) -> Effect:
        work = self.find(frame_id)
        if handle_id not in work.handles:
            raise No(errors.HandleNotFound, frame=frame_id, handle=handle_id)

        def effect(_: Any) -> Told:
            del work.handles[handle_id]
            return self._told(work, "frame.compacted")

        return effect

    def packed(self, work: Work, context_hash: str) -> Told:
        """What a model is about to see is noted, unless it is what it saw last."""
        changed, work.seen = work.seen != context_hash, context_hash
        return self._told(work, UPDATED) if changed else []

    def compacted(self, work: Work, kept: list[str]) -> Told:
        """Which handles go is not the model's business, but that critical ones stay is."""
        lost = [handle for id_, handle in work.handles.items() if id_ not in kept]
        assert all(handle.priority != 100 for handle in lost), lost
        work.handles = {id_: work.handles[id_] for id_ in kept}
        return self._told(work, "frame.compacted") if lost else []

    def add_result(self, frame_id: str, ref: str) -> Effect:
        work = self.find(frame_id)

        def effect(_: Any) -> Told:
            work.results.append(ref)
            return self._told(work, "frame.result_added")

        return effect
