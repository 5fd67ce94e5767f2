"""Commands on sessions, as values. The engine decides each one against a session's state."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from limpet.values.context import Selection
from limpet.values.event import SessionEvent
from limpet.values.frame_command import AboutFrame, FrameCommand
from limpet.values.frozen import EMPTY, Json
from limpet.values.message import Message
from limpet.values.opening import Opening
from limpet.values.policy import Cut, Summary, Usage, WindowPolicy
from limpet.values.session import EndReason, SessionState


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
    opening: Opening | None = None


class AddMessages(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Append messages, all or none; into a new session if this one already has `max_messages`.

    `window` is what the model had seen when it made them; `usage` is what its provider charged.
    """

    session_id: str
    messages: tuple[Message, ...]
    max_messages: int | None = None
    window: Selection | None = None
    usage: Usage | None = None


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
    window: Selection | None = None
    usage: Usage | None = None
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
    opening: Opening | None = None


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


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A command with its tenant, its idempotency key and the version that the caller expects."""

    tenant: str
    command: SessionCommand | FrameCommand | ReplaySession
    key: str | None = None
    expected_version: int | None = None

    @property
    def session_id(self) -> str:
        """The session of the command; empty for a command on a frame."""
        return "" if isinstance(self.command, AboutFrame) else self.command.session_id
