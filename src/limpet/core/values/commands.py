"""Commands on sessions and on frames, as values.

A session command is decided against the state of one session, a frame command against the state of one frame tree. The
idempotency hash of a command covers its tag and its field names: do not rename them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from limpet.core.values.context import CompactionLevel, ContextHandle, PackSelection, ResultRef, WindowSelection
from limpet.core.values.events import SessionEvent
from limpet.core.values.frame_state import Decision, FrameStatus, Scope, TokenBudget, ToolEffect
from limpet.core.values.memory_records import ProfilePrompt
from limpet.core.values.messages import Message
from limpet.core.values.session_state import Cut, EndReason, ReportedUsage, SessionState, Summary, WindowPolicy
from limpet.core.values.validation import EMPTY, Json


class FrameCommandBase(msgspec.Struct, frozen=True, kw_only=True):
    """A command on the frame `frame_id`. The tag of the class is part of the idempotency hash."""

    frame_id: str


class PushFrame(FrameCommandBase, frozen=True, kw_only=True, tag="push"):
    """Push a frame. `named`: the caller chose `frame_id`, so that a repeated command is the same; else it is empty."""

    scope: Scope
    goal: str
    budget: TokenBudget
    parent_frame_id: str | None = None
    inputs: Json = None
    waits: bool = True
    named: bool = False


class UpdateFrame(FrameCommandBase, frozen=True, kw_only=True, tag="update_frame"):
    """Change the fields that are given. `handled` are failed children that need no more attention."""

    goal: str | msgspec.UnsetType = msgspec.UNSET
    inputs: Json | msgspec.UnsetType = msgspec.UNSET
    status: FrameStatus | None = None
    handled: tuple[str, ...] = ()


class SpendTokens(FrameCommandBase, frozen=True, kw_only=True, tag="spend"):
    """Reserve tokens, release a reservation, or record spent tokens.

    `release` None releases the whole reservation of `purpose`. With `settle`, `use` is spent and the reservation is
    released.
    """

    purpose: str = ""
    reserve: int = 0
    release: int | None = 0
    use: int = 0
    settle: bool = False


class PopFrame(FrameCommandBase, frozen=True, kw_only=True, tag="pop"):
    """Close a frame. With `cascade` its open descendants are cancelled."""

    final_status: FrameStatus
    result_summary: str = ""
    reason: str = ""
    cascade: bool = False


class AddHandle(FrameCommandBase, frozen=True, kw_only=True, tag="add_handle"):
    """Add a handle to a frame. `at` is the session version that its message numbers refer to."""

    handle: ContextHandle
    at: int | None = None


class AddResult(FrameCommandBase, frozen=True, kw_only=True, tag="add_result"):
    """Add a result to a frame."""

    result: ResultRef


class CompactFrame(FrameCommandBase, frozen=True, kw_only=True, tag="compact"):
    """Remove handles of a frame and add others in their place."""

    removed: tuple[str, ...]
    replaced: tuple[ContextHandle, ...] = ()
    strategy: str = ""
    target_budget: int = 0
    original_tokens: int = 0
    final_tokens: int = 0
    level: CompactionLevel = CompactionLevel.NONE


class RecordPack(FrameCommandBase, frozen=True, kw_only=True, tag="record_pack"):
    """Record the pack that a model is about to see. The selection refers to `texts` by their hashes."""

    selection: PackSelection
    texts: tuple[str, ...] = ()


class SuspendFrame(FrameCommandBase, frozen=True, kw_only=True, tag="suspend"):
    """Suspend a frame. With `again`, a suspended frame gets a new token in place of its present one."""

    suspension_id: str
    token_hash: str
    reason: str
    purpose: str = ""
    payload: Json = None
    expires_in_us: int | None = None
    again: bool = False


class EndSuspension(FrameCommandBase, frozen=True, kw_only=True, tag="end_suspension"):
    """Resume a suspended frame, by its token's hash or by an operator's decision."""

    suspension_id: str
    decision: Decision
    token_hash: str | None = None
    purpose: str | None = None
    payload: Json | msgspec.UnsetType = msgspec.UNSET
    by: str = ""
    reason: str = ""


class RevokeSuspension(FrameCommandBase, frozen=True, kw_only=True, tag="revoke"):
    """Revoke the token; the frame stays suspended."""

    suspension_id: str
    by: str = ""
    reason: str = ""


class BeginTool(FrameCommandBase, frozen=True, kw_only=True, tag="begin_tool"):
    """Record that a tool run has started, or with `intent` that it will start."""

    tool_id: str
    name: str
    key: str
    effect: ToolEffect = ToolEffect.DESTRUCTIVE
    call_id: str | None = None
    message_id: str | None = None
    summary: str = ""
    intent: bool = False
    named: bool = False


class EndTool(FrameCommandBase, frozen=True, kw_only=True, tag="end_tool"):
    """Record the result of a tool run. With `abandon`, the run was given up."""

    tool_id: str
    output: Json = None
    is_error: bool = False
    abandon: bool = False
    max_messages: int | None = None


class RetryTool(FrameCommandBase, frozen=True, kw_only=True, tag="retry_tool"):
    """Record that a tool run of unknown outcome starts again with the same key."""

    tool_id: str


class ResumeActor(FrameCommandBase, frozen=True, kw_only=True, tag="resume_actor"):
    """Record that an actor resumed its stack, of which this frame is the last."""

    scope: Scope


class ExpireTree(FrameCommandBase, frozen=True, kw_only=True, tag="expire"):
    """Fail frames of a tree that are overdue or whose session is in `orphaned`, and expire its suspensions.

    `orphaned` are ids of sessions that take no more messages. `now_us` is the time to compare with.
    """

    now_us: int
    orphaned: tuple[str, ...] = ()


FrameCommand = (
    PushFrame
    | UpdateFrame
    | SpendTokens
    | PopFrame
    | AddHandle
    | AddResult
    | CompactFrame
    | RecordPack
    | SuspendFrame
    | EndSuspension
    | RevokeSuspension
    | BeginTool
    | EndTool
    | RetryTool
    | ResumeActor
    | ExpireTree
)


class SessionCommandBase(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A command on a session; the tag of the class is part of the idempotency hash."""

    session_id: str


class CreateSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="create"):
    """Create a session with its first messages.

    With `or_get`, an existing session is returned instead of an error. `named`: the caller chose the id. `opening` is
    the profile of the user from long-term memory, not from the caller.
    """

    user_id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Json] = EMPTY
    messages: tuple[Message, ...] = ()
    or_get: bool = False
    named: bool = True
    policy: WindowPolicy | None = None
    opening: ProfilePrompt | None = None


class AddMessages(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="add"):
    """Append all messages or none; a full session (`max_messages`) is continued in a new one.

    `window` is the window that the model had seen before it made them; `usage` is what its provider charged.
    """

    messages: tuple[Message, ...]
    max_messages: int | None = None
    window: WindowSelection | None = None
    usage: ReportedUsage | None = None


class UpdateSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="update"):
    """Change title, metadata or policy."""

    title: str | None | msgspec.UnsetType = msgspec.UNSET
    set_metadata: Mapping[str, Json] = EMPTY
    drop_metadata: tuple[str, ...] = ()
    policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET


class ContinueSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="continue"):
    """Continue a conversation in a new session: the carried messages first, then the new ones.

    The engine fills in `next_id`, and `carried` and `summary` from the log. A turn of `max_messages` or more is not
    carried over as a whole.
    """

    next_id: str = ""
    max_messages: int = 0
    carried: tuple[Message, ...] = ()
    messages: tuple[Message, ...] = ()
    window: WindowSelection | None = None
    usage: ReportedUsage | None = None
    summary: Summary | None = None


class EndSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="end"):
    """End a session. With `idle_since_us`, only a session that has not changed since then."""

    reason: EndReason = EndReason.ENDED
    idle_since_us: int | None = None


class ResetSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="reset"):
    """End the present generation and begin the next one, with these messages, under the same id."""

    messages: tuple[Message, ...] = ()
    opening: ProfilePrompt | None = None


class ForkSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="fork"):
    """Create a session that continues another from a message (`at`: its id or number) or from a version.

    `named`: the caller chose the id. The engine fills in `there`, the state at that point.
    """

    fork_id: str
    at: str | int | None = None
    version: int | None = None
    user_id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Json] | None = None
    named: bool = True
    there: SessionState | None = None


class RewindSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="rewind"):
    """Go back to a message: later ones leave the conversation. The engine fills in `there`, the state at that point."""

    at: str | int
    there: SessionState | None = None


class TrimSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="trim"):
    """Record a cut, so that windows of a session begin where `policy` cuts it down to its budget.

    The engine fills in `cut`, and `summary` of the messages before it.
    """

    policy: WindowPolicy
    cut: Cut | None = None
    summary: Summary | None = None


class SummarizeSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="summarize"):
    """Store a summary of messages outside the window, unless messages after number `after` are summarised already.

    `seen` is the version of the session at which the messages were read: the text may quote what was erased later.
    """

    generation: int
    after: int
    summary: Summary
    seen: int = 0


class OffloadSession(SessionCommandBase, frozen=True, gc=False, kw_only=True, tag="offload"):
    """Record that long-term memory has taken the history of an ended generation."""

    generation: int
    engine: str = ""


SessionCommand = (
    CreateSession
    | AddMessages
    | UpdateSession
    | ContinueSession
    | EndSession
    | ResetSession
    | ForkSession
    | RewindSession
    | TrimSession
    | SummarizeSession
    | OffloadSession
)


class ReplaySession(SessionCommandBase, frozen=True, gc=False, kw_only=True):
    """Append imported events with their own times, to a session at version `expected`.

    The events are checked; `state` is the state after them. `base` is the version that they follow, if that is not
    `expected`. With `whole`, the import of the session is complete.
    """

    expected: int
    events: tuple[tuple[SessionEvent, int], ...]
    state: SessionState
    base: int | None = None
    whole: bool = False


class CommandRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A command with its tenant, its idempotency key and the version that the caller expects."""

    tenant: str
    command: SessionCommand | FrameCommand | ReplaySession
    key: str | None = None
    expected_version: int | None = None

    @property
    def session_id(self) -> str:
        """The session of the command; empty for a command on a frame."""
        return "" if isinstance(self.command, FrameCommandBase) else self.command.session_id
