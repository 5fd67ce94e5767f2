"""Events of sessions: facts in the past tense. The log of them is the truth; all else is derived.

A `kind` is an explicit, stored tag; it does not depend on where its class is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from limpet.values.context import Selection
from limpet.values.frozen import EMPTY, Json
from limpet.values.message import Message
from limpet.values.policy import Correction, Cut, Summary, Usage, WindowPolicy
from limpet.values.session import EndReason, SessionState


class SessionCreated(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A session was created; again under the same id if the earlier one was deleted.

    `until` is the version at which an import is complete: the session is hidden before. An import replaces an
    earlier session of the same id.
    """

    kind: ClassVar[str] = "session.created"
    id: str
    user_id: str | None = None
    title: str | None = None
    metadata: Mapping[str, Json] = EMPTY
    root_id: str | None = None
    continued_from: str | None = None
    continuation_index: int = 0
    policy: WindowPolicy | None = None
    summary: Summary | None = None
    corrections: tuple[Correction, ...] = ()
    until: int = 0


class MessageAdded(msgspec.Struct, frozen=True, gc=False):
    """A message was appended to a session.

    `tokens` is its count and `counter` the counter: the caller or a named one.
    """

    kind: ClassVar[str] = "session.message_added"
    message: Message
    tokens: int
    counter: str


class WindowRecorded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The model that made the next `messages` had seen this window."""

    kind: ClassVar[str] = "session.window_recorded"
    selection: Selection
    messages: int = 1


class WindowCut(msgspec.Struct, frozen=True, gc=False):
    """The session's windows begin later from here on."""

    kind: ClassVar[str] = "session.window_cut"
    cut: Cut


class SessionSummarized(msgspec.Struct, frozen=True, gc=False):
    """A summary replaces messages that a cut took out of the windows, and any earlier summary."""

    kind: ClassVar[str] = "session.summarized"
    summary: Summary


class SessionUpdated(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Title, metadata or policy changed, or reported usage corrected a counter.

    Keys in `set_metadata` were set, keys in `drop_metadata` removed.
    """

    kind: ClassVar[str] = "session.updated"
    title: str | None | msgspec.UnsetType = msgspec.UNSET
    set_metadata: Mapping[str, Json] = EMPTY
    drop_metadata: tuple[str, ...] = ()
    policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | msgspec.UnsetType = msgspec.UNSET


class SessionContinued(msgspec.Struct, frozen=True, gc=False):
    """The conversation continues in another session."""

    kind: ClassVar[str] = "session.continued"
    to: str


class SessionForked(msgspec.Struct, frozen=True, gc=False):
    """A session began as a copy of another one at a version; `state` is its own state from there."""

    kind: ClassVar[str] = "session.forked"
    id: str
    source: str
    version: int
    state: SessionState


class SessionRewound(msgspec.Struct, frozen=True, gc=False):
    """The session went back to an earlier version; `state` is its state from there."""

    kind: ClassVar[str] = "session.rewound"
    to: int
    state: SessionState


class SessionReset(msgspec.Struct, frozen=True, gc=False):
    """The generation ended and the next one began, empty, under the same id."""

    kind: ClassVar[str] = "session.reset"


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """The session ended, timed out, or was deleted."""

    kind: ClassVar[str] = "session.ended"
    reason: EndReason


class SessionOffloaded(msgspec.Struct, frozen=True, gc=False):
    """Long-term memory acknowledged the history of an ended generation."""

    kind: ClassVar[str] = "session.offloaded"
    generation: int
    engine: str = ""


class SessionErased(msgspec.Struct, frozen=True, gc=False):
    """The content of some events of the session was erased; `digest` proves which. The session continues."""

    kind: ClassVar[str] = "session.erased"
    events: int
    digest: str


SessionEvent = (
    SessionCreated
    | MessageAdded
    | WindowRecorded
    | WindowCut
    | SessionSummarized
    | SessionUpdated
    | SessionContinued
    | SessionForked
    | SessionRewound
    | SessionReset
    | SessionEnded
    | SessionOffloaded
    | SessionErased
)


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """An event with its place in the log: position in the feed, version in the stream, time."""

    event: SessionEvent
    session_id: str
    position: int
    version: int
    time_us: int

    @property
    def kind(self) -> str:
        """The tag of the event, for example session.message_added."""
        return self.event.kind


class Erased(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An erased event: only its place in the log and its kind are left."""

    kind: str
    position: int
    version: int
    time_us: int

    @property
    def event(self) -> Erased:
        """The value itself: its content was erased."""
        return self

    @property
    def session_id(self) -> str:
        """Empty: the id was erased with the content."""
        return ""
