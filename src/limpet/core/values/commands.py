"""Commands on sessions and on frames, as values.

A session command is decided against the state of one session, a frame command against the state of one frame tree. The
idempotency hash of a command covers its field names: do not rename fields.
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
    """A command about a frame: the one that it names, or begins."""

    frame_id: str


class PushFrame(FrameCommandBase, frozen=True, kw_only=True):
    """Begin a frame. `named`: the caller chose the id, and asking again is the same frame; else it is empty."""

    scope: Scope
    goal: str
    budget: TokenBudget
    parent_frame_id: str | None = None
    inputs: Json = None
    waits: bool = True
    named: bool = False


class UpdateFrame(FrameCommandBase, frozen=True, kw_only=True):
    """Change what is named. `handled` are failed children that were dealt with."""

    goal: str | msgspec.UnsetType = msgspec.UNSET
    inputs: Json | msgspec.UnsetType = msgspec.UNSET
    status: FrameStatus | None = None
    handled: tuple[str, ...] = ()


class SpendTokens(FrameCommandBase, frozen=True, kw_only=True):
    """Set tokens aside, give them back, or record what was spent.

    `release` None gives back all that was set aside for the purpose; `use` with `settle` spends out of it
    and gives the rest back.
    """

    purpose: str = ""
    reserve: int = 0
    release: int | None = 0
    use: int = 0
    settle: bool = False


class PopFrame(FrameCommandBase, frozen=True, kw_only=True):
    """Close a frame; with `cascade` its open descendants too, as cancelled."""

    final_status: FrameStatus
    result_summary: str = ""
    reason: str = ""
    cascade: bool = False


class AddHandle(FrameCommandBase, frozen=True, kw_only=True):
    """Add a handle to a frame. `at` is the version of the session in which its messages are numbered."""

    handle: ContextHandle
    at: int | None = None


class AddResult(FrameCommandBase, frozen=True, kw_only=True):
    """Add a result to a frame."""

    result: ResultRef


class CompactFrame(FrameCommandBase, frozen=True, kw_only=True):
    """Drop handles of a frame, and add others in their place."""

    removed: tuple[str, ...]
    replaced: tuple[ContextHandle, ...] = ()
    strategy: str = ""
    target_budget: int = 0
    original_tokens: int = 0
    final_tokens: int = 0
    level: CompactionLevel = CompactionLevel.NONE


class RecordPack(FrameCommandBase, frozen=True, kw_only=True):
    """Record the pack that a model is about to see. `texts` are the texts that the selection names by hash."""

    selection: PackSelection
    texts: tuple[str, ...] = ()


class SuspendFrame(FrameCommandBase, frozen=True, kw_only=True):
    """Suspend a frame. `again`: a new token replaces the present one."""

    suspension_id: str
    token_hash: str
    reason: str
    purpose: str = ""
    payload: Json = None
    expires_in_us: int | None = None
    again: bool = False


class EndSuspension(FrameCommandBase, frozen=True, kw_only=True):
    """Resume a suspended frame: by its token's hash, or by an operator's decision."""

    suspension_id: str
    decision: Decision
    token_hash: str | None = None
    purpose: str | None = None
    payload: Json | msgspec.UnsetType = msgspec.UNSET
    by: str = ""
    reason: str = ""


class RevokeSuspension(FrameCommandBase, frozen=True, kw_only=True):
    """Revoke the token; the frame stays suspended."""

    suspension_id: str
    by: str = ""
    reason: str = ""


class BeginTool(FrameCommandBase, frozen=True, kw_only=True):
    """Record that a tool will run (`intent`), or that it runs now."""

    tool_id: str
    name: str
    key: str
    effect: ToolEffect = ToolEffect.DESTRUCTIVE
    call_id: str | None = None
    message_id: str | None = None
    summary: str = ""
    intent: bool = False
    named: bool = False


class EndTool(FrameCommandBase, frozen=True, kw_only=True):
    """Record a tool's result: in the session whose call it answers, or in the frame's log."""

    tool_id: str
    output: Json = None
    is_error: bool = False
    abandon: bool = False
    max_messages: int | None = None


class RetryTool(FrameCommandBase, frozen=True, kw_only=True):
    """Record that a tool of unknown outcome runs again, with the same key."""

    tool_id: str


class ResumeActor(FrameCommandBase, frozen=True, kw_only=True):
    """Record that an actor resumed the stack that ends in this frame."""

    scope: Scope


class ExpireTree(FrameCommandBase, frozen=True, kw_only=True):
    """Fail overdue and orphaned frames of a tree, and expire suspensions, as of a moment.

    `orphaned` are ids of sessions that take no more messages.
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


class CreateSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Create a session with its first messages.

    `or_get`: an existing session is the answer, not an error. `named`: the caller chose the id. `opening` is what
    long-term memory knows of the user; the caller did not give it.
    """

    session_id: str
    user_id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Json] = EMPTY
    messages: tuple[Message, ...] = ()
    or_get: bool = False
    named: bool = True
    policy: WindowPolicy | None = None
    opening: ProfilePrompt | None = None


class AddMessages(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Append messages, all or none; into a new session if this one already has `max_messages`.

    `window` is what the model had seen when it made them; `usage` is what its provider charged.
    """

    session_id: str
    messages: tuple[Message, ...]
    max_messages: int | None = None
    window: WindowSelection | None = None
    usage: ReportedUsage | None = None


class UpdateSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Change title, metadata or policy."""

    session_id: str
    title: str | None | msgspec.UnsetType = msgspec.UNSET
    set_metadata: Mapping[str, Json] = EMPTY
    drop_metadata: tuple[str, ...] = ()
    policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET


class ContinueSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Continue a conversation in a new session: the carried messages first, then the new ones.

    The engine fills in `next_id`, and `carried` and `summary` from the log. `max_messages` bounds how much of
    a turn is carried over.
    """

    session_id: str
    next_id: str = ""
    max_messages: int = 0
    carried: tuple[Message, ...] = ()
    messages: tuple[Message, ...] = ()
    window: WindowSelection | None = None
    usage: ReportedUsage | None = None
    summary: Summary | None = None


class EndSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """End a session. With `idle_since_us`, only if nothing happened in it after that moment."""

    session_id: str
    reason: EndReason = EndReason.ENDED
    idle_since_us: int | None = None


class ResetSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """End the present generation and begin the next one under the same id, with these messages."""

    session_id: str
    messages: tuple[Message, ...] = ()
    opening: ProfilePrompt | None = None


class ForkSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Create a session that continues another from a message (`at`: its id or number) or from a version.

    `named`: the caller chose the id. The engine fills in `there`, the state at that point.
    """

    session_id: str
    fork_id: str
    at: str | int | None = None
    version: int | None = None
    user_id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Json] | None = None
    named: bool = True
    there: SessionState | None = None


class RewindSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Go back to a message: later ones leave the conversation. The engine fills in `there`, the state at that point."""

    session_id: str
    at: str | int
    there: SessionState | None = None


class TrimSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Have windows of a session begin where a policy would cut it down to its budget.

    The engine fills in `cut`, and the `summary` of what it takes out.
    """

    session_id: str
    policy: WindowPolicy
    cut: Cut | None = None
    summary: Summary | None = None


class SummarizeSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Summarise messages outside the window, if no summary was made since message `after`.

    `seen` is the version of the session at which the messages were read: what was erased later may be in the text.
    """

    session_id: str
    generation: int
    after: int
    summary: Summary
    seen: int = 0


class OffloadSession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Record that long-term memory has taken the history of an ended generation."""

    session_id: str
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


class ReplaySession(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Append imported events with their own times, to a session at version `expected`.

    The events are checked: `state` is the state after them. `base` is the version that they follow, if it is not
    the last one. `whole` says that the import of the session is complete.
    """

    session_id: str
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
