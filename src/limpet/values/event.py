"""Facts about sessions, in the past tense. The log of them is the truth; everything else is derived.

A `kind` is an explicit tag that is stored; it never depends on where a class lives.
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
    """A session began; again, under the same id, if the one before was deleted.

    One that is imported says with `until` at which version it is whole: nobody finds it before. It begins
    anew, whatever had its id.
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
    """A message took its place at the end of a session.

    `tokens` is its count and `counter` says who counted: the caller, or a named counter.
    """

    kind: ClassVar[str] = "session.message_added"
    message: Message
    tokens: int
    counter: str


class WindowRecorded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The next `messages` were said by a model that had seen this window of the conversation."""

    kind: ClassVar[str] = "session.window_recorded"
    selection: Selection
    messages: int = 1


class WindowCut(msgspec.Struct, frozen=True, gc=False):
    """The session's windows begin later from here on."""

    kind: ClassVar[str] = "session.window_cut"
    cut: Cut


class SessionSummarized(msgspec.Struct, frozen=True, gc=False):
    """A summary stands for messages that a cut has taken out of the windows, instead of any before it."""

    kind: ClassVar[str] = "session.summarized"
    summary: Summary


class SessionUpdated(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Title, metadata or policy changed, or a count was found to be off.

    Keys in `set_metadata` were set, those in `drop_metadata` removed.
    """

    kind: ClassVar[str] = "session.updated"
    title: str | None | msgspec.UnsetType = msgspec.UNSET
    set_metadata: Mapping[str, Json] = EMPTY
    drop_metadata: tuple[str, ...] = ()
    policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET
    usage: Usage | msgspec.UnsetType = msgspec.UNSET


class SessionContinued(msgspec.Struct, frozen=True, gc=False):
    """The conversation goes on in another session."""

    kind: ClassVar[str] = "session.continued"
    to: str


class SessionForked(msgspec.Struct, frozen=True, gc=False):
    """A session began as another was at a version: `state` is what it has from there, as its own."""

    kind: ClassVar[str] = "session.forked"
    id: str
    source: str
    version: int
    state: SessionState


class SessionRewound(msgspec.Struct, frozen=True, gc=False):
    """The session went back to one of its versions: `state` is what it has from there on."""

    kind: ClassVar[str] = "session.rewound"
    to: int
    state: SessionState


class SessionReset(msgspec.Struct, frozen=True, gc=False):
    """The present generation ended and the next began, empty, under the same id."""

    kind: ClassVar[str] = "session.reset"


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """The session ended, timed out, or was deleted."""

    kind: ClassVar[str] = "session.ended"
    reason: EndReason


class SessionOffloaded(msgspec.Struct, frozen=True, gc=False):
    """Long-term memory has taken the history of a generation that ended, and has said so."""

    kind: ClassVar[str] = "session.offloaded"
    generation: int
    engine: str = ""


class SessionErased(msgspec.Struct, frozen=True, gc=False):
    """Content of so many events of the session was erased; `digest` proves which. The rest goes on as it was."""

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
    """An event as it stands in the log: what happened, where in the feed and stream, and when."""

    event: SessionEvent
    session_id: str
    position: int
    version: int
    time_us: int

    @property
    def kind(self) -> str:
        """The event's tag, for example session.message_added."""
        return self.event.kind


class Erased(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An event of which only its place in the log is left, and of which kind it was."""

    kind: str
    position: int
    version: int
    time_us: int

    @property
    def event(self) -> Erased:
        """Itself: what happened was erased."""
        return self

    @property
    def session_id(self) -> str:
        """Empty: whom it happened to was erased with it."""
        return ""
