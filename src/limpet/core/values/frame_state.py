"""Frames, token budgets, suspensions, tool runs, the state of a frame tree, and the state of a resumed actor.

The state of a tree holds open frames and the most recently closed ones. Older closed frames are rows of their own, so
that the state does not grow with finished work.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self, cast

import msgspec
from msgspec.structs import force_setattr

from limpet import errors, limits
from limpet.core.values import ids
from limpet.core.values.context import HANDLES_PER_PAGE, ContextHandle, HandlePages, ResultRef
from limpet.core.values.validation import EMPTY, FrozenDict, Json, checked_id, checked_token_count, freeze

LIMIT_FIELDS: Final = ("max_context_tokens", "max_tool_calls", "max_subframe_depth", "timeout_ms")
"""The budget fields that are limits of a frame, not token counts."""

replace = msgspec.structs.replace


class TokenBudget(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The tokens and limits of a frame: `total` = used + reserved + subcall_allocation + available.

    `subcall_allocation` is allocated to open children. `used` includes the tokens that closed children spent. Usage is
    recorded even beyond the total; `overdrawn` is the excess. A limit of None means no limit; the strictest limit among
    a frame and its ancestors applies.
    """

    total: int
    used: int = 0
    reserved: int = 0
    subcall_allocation: int = 0
    max_context_tokens: int | None = 4_000
    max_tool_calls: int | None = 10
    max_subframe_depth: int | None = 3
    timeout_ms: int | None = 120_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            # Every command of a frame makes budgets: a valid number skips the function call.
            if type(value) is int and 0 <= value <= limits.TOKENS_MAX:
                continue
            if value is not None or name not in LIMIT_FIELDS:
                checked_token_count(name, cast("int", value))
        if self.timeout_ms is not None and self.timeout_ms > limits.FRAME_TIMEOUT_MS_MAX:
            raise errors.InvalidRequest(
                f"timeout_ms is at most {limits.FRAME_TIMEOUT_MS_MAX:,}.", hint="None is no limit."
            )

    def available(self) -> int:
        """Return the free tokens; 0 if the budget is overdrawn."""
        return max(0, self.total - self._taken())

    @property
    def overdrawn(self) -> int:
        """The tokens that are used, reserved or allocated beyond the total."""
        return max(0, self._taken() - self.total)

    def _taken(self) -> int:
        return self.used + self.reserved + self.subcall_allocation

    def reserve(self, amount: int) -> Self:
        """Reserve tokens; raise InsufficientTokens if fewer are available."""
        self.check(amount)
        return replace(self, reserved=self.reserved + amount)

    def release_reservation(self, amount: int) -> Self:
        """Release reserved tokens, at most as many as are reserved."""
        released = min(checked_token_count("amount", amount), self.reserved)
        return replace(self, reserved=self.reserved - released)

    def consume_reserved(self, amount: int, used: int | None = None) -> Self:
        """Spend a reservation: release `amount` of it and record `used` (None: all of it) as spent."""
        spent = amount if used is None else used
        return self.release_reservation(amount).record_usage(spent)

    def allocate_for_subcall(self, amount: int) -> Self:
        """Allocate tokens to a child; raise InsufficientTokens if fewer are available."""
        self.check(amount)
        return replace(self, subcall_allocation=self.subcall_allocation + amount)

    def release_subcall_allocation(self, amount: int) -> Self:
        """Take tokens back from a child, at most as many as are allocated."""
        released = min(checked_token_count("amount", amount), self.subcall_allocation)
        return replace(self, subcall_allocation=self.subcall_allocation - released)

    def record_usage(self, amount: int) -> Self:
        """Record spent tokens, available or not."""
        used = self.used + checked_token_count("amount", amount)
        return replace(self, used=min(used, limits.TOKENS_MAX))

    def settle(self, child: TokenBudget) -> Self:
        """Close a child's budget: release its allocation and add its used tokens.

        `used` is capped at limits.TOKENS_MAX, so that a budget can always be closed.
        """
        used = min(self.used + child.used, limits.TOKENS_MAX)
        left = max(0, self.subcall_allocation - child.total)
        return replace(self, subcall_allocation=left, used=used)

    def check(self, amount: int) -> None:
        """Raise InsufficientTokens if fewer are available."""
        free = self.available()
        if checked_token_count("amount", amount) > free:
            raise insufficient_tokens_error(amount, free)


def insufficient_tokens_error(requested: int, available: int) -> errors.InsufficientTokens:
    """Return the error for a request of more tokens than are available."""
    return errors.InsufficientTokens(
        f"{requested:,} tokens are asked for; {available:,} are available.",
        hint="Ask for fewer, release a reservation, or wait for a child to give its rest back.",
        facts={"requested": requested, "available": available},
    )


class FrameStatus(StrEnum):
    """The status of a frame. The last three are final."""

    ACTIVE = "active"
    WAITING = "waiting"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the frame is closed."""
        return self in FINAL_STATUSES


FINAL_STATUSES: Final = frozenset({FrameStatus.COMPLETED, FrameStatus.FAILED, FrameStatus.CANCELLED})


class ToolStatus(StrEnum):
    """The status of a tool run. UNKNOWN: the process stopped while the run was started."""

    INTENT = "intent"
    STARTED = "started"
    UNKNOWN = "unknown"
    FINISHED = "finished"
    ABANDONED = "abandoned"


class ToolEffect(StrEnum):
    """The effect of a second run of a tool: none, the same as one run, or harmful."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    DESTRUCTIVE = "destructive"


class Decision(StrEnum):
    """How a suspension ended."""

    RESUMED = "resumed"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"


class SuspensionStatus(StrEnum):
    """The status of a suspension. A waiting one can be resumed or decided."""

    WAITING = "waiting"
    RESUMED = "resumed"
    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    EXPIRED = "expired"
    REVOKED = "revoked"
    CLOSED = "closed"


class Scope(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The actor of a frame, optionally with a session and a thread."""

    actor_id: str
    session_id: str | None = None
    thread_id: str | None = None

    def __post_init__(self) -> None:
        checked_id("an actor's id", self.actor_id)
        for what, value in (("a session's id", self.session_id), ("a thread's id", self.thread_id)):
            if value is not None:
                checked_id(what, value)

    def covers(self, other: Scope) -> bool:
        """Return whether another scope lies within this one; a field that is None here matches any value."""
        return (
            self.actor_id == other.actor_id
            and self.session_id in (None, other.session_id)
            and self.thread_id in (None, other.thread_id)
        )


class ToolRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool run of a frame. `key` is the tool's idempotency key, the same for every attempt.

    `call_id` and `message_id` name the call in the session's conversation, if it was made there.
    """

    tool_id: str
    name: str
    key: str
    effect: ToolEffect = ToolEffect.DESTRUCTIVE
    status: ToolStatus = ToolStatus.STARTED
    call_id: str | None = None
    message_id: str | None = None
    attempt: int = 1
    summary: str = ""
    changed_us: int = 0

    @property
    def safe_to_retry(self) -> bool:
        """Whether a repeated run is harmless."""
        return self.effect is not ToolEffect.DESTRUCTIVE or self.status is ToolStatus.INTENT


class Suspension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A suspension of a frame: its reason, expiry and outcome, without the token.

    `previous` is the status to restore. `payload` is the subject of the approval, for example a call's arguments.
    """

    suspension_id: str
    frame_id: str
    root_id: str
    scope: Scope
    reason: str
    purpose: str = ""
    payload: Json = None
    previous: FrameStatus = FrameStatus.ACTIVE
    status: SuspensionStatus = SuspensionStatus.WAITING
    suspended_us: int = 0
    expires_us: int | None = None
    decided_us: int | None = None
    decided_by: str = ""
    decision_reason: str = ""
    token_hash: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "payload", freeze(self.payload))

    @property
    def suspended_at(self) -> str:
        """The time of the suspension as ISO 8601."""
        return ids.iso(self.suspended_us)

    @property
    def expires_at(self) -> str | None:
        """The expiry as ISO 8601; None if the suspension does not expire."""
        return None if self.expires_us is None else ids.iso(self.expires_us)


class Resumption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a resumed frame receives: the decision, its author, and the payload, edited or unchanged."""

    suspension_id: str
    decision: Decision
    payload: Json = None
    purpose: str = ""
    by: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "payload", freeze(self.payload))


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unit of work. `settled` is the part of `budget.used` that closed children spent.

    `tools` are unfinished tool runs, `children` the open children, `failures` failed children that are not handled yet.
    `deadline_us` is the frame's own deadline. Its clock stands still since `stood_us` while the frame or a descendant is
    suspended.
    """

    frame_id: str
    root_id: str
    scope: Scope
    goal: str
    budget: TokenBudget
    parent_frame_id: str | None = None
    inputs: Json = None
    status: FrameStatus = FrameStatus.ACTIVE
    depth: int = 0
    handle_pages: HandlePages = ()
    result_refs: tuple[ResultRef, ...] = ()
    created_us: int = 0
    updated_us: int = 0
    completed_us: int | None = None
    context_hash: str | None = None
    result_summary: str = ""
    reason: str = ""
    reservations: Mapping[str, int] = EMPTY
    settled: int = 0
    tools: tuple[ToolRun, ...] = ()
    tool_calls: int = 0
    children: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    suspension: Suspension | None = None
    resumption: Resumption | None = None
    deadline_us: int | None = None
    stood_us: int | None = None

    def __post_init__(self) -> None:
        # Every command makes a new Frame, most often from values that are already frozen.
        if self.inputs is not None and type(self.inputs) is not FrozenDict:
            force_setattr(self, "inputs", freeze(self.inputs))
        if type(self.reservations) is not FrozenDict:
            force_setattr(self, "reservations", freeze(self.reservations))

    @property
    def context_handles(self) -> tuple[ContextHandle, ...]:
        """The handles, oldest first."""
        return tuple(itertools.chain.from_iterable(self.handle_pages))

    @property
    def handle_count(self) -> int:
        """The number of handles."""
        pages = self.handle_pages
        return (len(pages) - 1) * HANDLES_PER_PAGE + len(pages[-1]) if pages else 0

    @property
    def open(self) -> bool:
        """Whether the frame is not closed."""
        return self.status not in FINAL_STATUSES

    @property
    def created_at(self) -> str:
        """The time of the push as ISO 8601."""
        return ids.iso(self.created_us)

    @property
    def completed_at(self) -> str | None:
        """The time of the pop as ISO 8601; None while the frame is open."""
        return None if self.completed_us is None else ids.iso(self.completed_us)

    @property
    def spent(self) -> int:
        """The tokens that the frame spent itself, without its children."""
        return self.budget.used - self.settled

    @property
    def state_size(self) -> int:
        """The approximate size of the frame in the state: handles, results and half kilobytes of text."""
        text = len(self.goal) + len(self.result_summary)
        if self.inputs is not None:
            text += len(msgspec.json.encode(self.inputs))
        return 1 + self.handle_count + len(self.result_refs) + text // 512

    def handle(self, handle_id: str) -> ContextHandle | None:
        """Return the handle of that id."""
        return next((h for h in self.context_handles if h.handle_id == handle_id), None)

    def tool(self, tool_id: str) -> ToolRun | None:
        """Return the unfinished tool run of that id."""
        return next((t for t in self.tools if t.tool_id == tool_id), None)

    def __repr__(self) -> str:
        free = self.budget.available()
        return f"<Frame {self.frame_id} {self.status}, {free:,} of {self.budget.total:,} tokens free>"


class TreeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The open frames of a tree at `version`, by id, parents before children.

    `closed` are recently closed frames, newest last, and `burden` is the sum of their `state_size`; they are moved to
    rows of their own in batches. `due` is the version of the next snapshot. The interval between snapshots grows with
    the state, so that the cost of an event does not depend on the size of the tree.
    """

    root_id: str
    version: int = 0
    updated_us: int = 0
    frames: Mapping[str, Frame] = EMPTY
    closed: tuple[Frame, ...] = ()
    burden: int = 0
    due: int = 0

    @property
    def id(self) -> str:
        """The root's id."""
        return self.root_id

    @property
    def moves_closed_frames(self) -> bool:
        """Whether the last event moves the closed frames to rows; the next event drops them from the state."""
        return self.burden >= limits.FRAMES_CLOSED_KEPT or not self.frames

    def closed_frame(self, frame_id: str) -> Frame | None:
        """Return a recently closed frame; None if it is open, moved to a row, or unknown."""
        return next((frame for frame in reversed(self.closed) if frame.frame_id == frame_id), None)

    def ancestry(self, frame_id: str) -> tuple[Frame, ...]:
        """Return the open frames from the root to a frame, both included."""
        found: list[Frame] = []
        at: str | None = frame_id
        while at is not None:
            frame = self.frames[at]
            found.append(frame)
            at = frame.parent_frame_id
        return tuple(reversed(found))

    def open_descendants(self, frame_id: str) -> tuple[Frame, ...]:
        """Return the open descendants of a frame, the deepest first."""
        found: list[Frame] = []
        waiting = list(self.frames[frame_id].children)
        while waiting:
            frame = self.frames[waiting.pop(0)]
            found.append(frame)
            waiting += frame.children
        return tuple(reversed(found))

    def strictest_limit(self, frame_id: str, name: str) -> int | None:
        """Return the strictest value of a limit among a frame and its ancestors; None if there is no limit."""
        found: list[int | None] = [getattr(frame.budget, name) for frame in self.ancestry(frame_id)]
        return min((value for value in found if value is not None), default=None)

    def deadline_of(self, frame_id: str) -> int | None:
        """Return the earliest deadline among a frame and its ancestors, without those whose clock is stopped."""
        found = (frame.deadline_us for frame in self.ancestry(frame_id) if frame.stood_us is None)
        return min((until for until in found if until is not None), default=None)

    def scopes(self) -> set[Scope]:
        """Return the scopes of the open and recently closed frames; an empty set if no frame is open."""
        frames = (*self.frames.values(), *self.closed) if self.frames else ()
        return {frame.scope for frame in frames}

    def next_expiry_us(self) -> int | None:
        """Return the earliest time at which a frame is overdue or a suspension expires."""
        moments: list[int] = []
        for frame in self.frames.values():
            if frame.deadline_us is not None and frame.stood_us is None:
                moments.append(frame.deadline_us)
            standing = frame.suspension
            if standing is not None and standing.status is SuspensionStatus.WAITING:
                moments += () if standing.expires_us is None else (standing.expires_us,)
        return min(moments, default=None)


class SuspensionToken(msgspec.Struct, frozen=True, kw_only=True):
    """The right to resume a suspended frame once. `token_id` is a secret: its possession is the permission."""

    token_id: str
    frame_id: str
    suspended_at: str
    expires_at: str | None = None
    suspension_id: str = ""

    def __repr__(self) -> str:
        return f"<SuspensionToken {self.suspension_id} of {self.frame_id}>"


class PendingWorkType(StrEnum):
    """The kind of pending work."""

    WAITING_FOR_SUBCALL = "waiting_for_subcall"
    WAITING_FOR_USER = "waiting_for_user"
    TOOL_IN_PROGRESS = "tool_in_progress"
    UNHANDLED_ERROR = "unhandled_error"


class PendingWork(msgspec.Struct, frozen=True, kw_only=True):
    """One item of pending work: its frame, kind, description and reference.

    `ref_id` is the id of a tool, a suspension or a child; `tool` is set for a tool.
    """

    frame_id: str
    work_type: PendingWorkType
    description: str
    ref_id: str = ""
    tool: ToolRun | None = None


class RecoverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """How much was recovered, at which version of the tree, and how long it took."""

    frames_recovered: int = 0
    pending_work_items: int = 0
    last_event_seq: int = 0
    recovery_time_ms: int = 0


class ActorResumeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a resumed actor: `frame_stack` from the root to `current_frame`, and all pending work.

    `leaves` are the ids of its open frames without open children of its own, the current one first.
    """

    current_frame: Frame | None = None
    frame_stack: tuple[Frame, ...] = ()
    pending_work: tuple[PendingWork, ...] = ()
    leaves: tuple[str, ...] = ()
    recovery_summary: RecoverySummary = RecoverySummary()
