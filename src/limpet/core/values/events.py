"""Events of sessions and frame trees, and events with their positions in the log.

The log is the truth; everything else is derived from it. `kind` is the stored tag of an event and does not depend on
its class. Frames have the nine kinds of the StateIndex document: budget operations, tools, packs, expiry and revocation
are parts of `frame.updated`, removed handles of `frame.compacted`. A receipt says how much an erasure removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from limpet.core.values import ids
from limpet.core.values.context import CompactionLevel, ContextHandle, PackSelection, ResultRef, WindowSelection
from limpet.core.values.frame_state import Decision, FrameStatus, Scope, SuspensionStatus, TokenBudget, ToolRun
from limpet.core.values.messages import Message
from limpet.core.values.session_state import (
    CounterCorrection,
    Cut,
    EndReason,
    ReportedUsage,
    SessionState,
    Summary,
    WindowPolicy,
)
from limpet.core.values.validation import EMPTY, Json


class SessionCreatedEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
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
    corrections: tuple[CounterCorrection, ...] = ()
    until: int = 0


class MessageAddedEvent(msgspec.Struct, frozen=True, gc=False):
    """A message was appended to a session.

    `tokens` is its token count and `counter` the name of the counter, or "given" for a count from the caller.
    """

    kind: ClassVar[str] = "session.message_added"
    message: Message
    tokens: int
    counter: str


class WindowRecordedEvent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The model saw this window before it made the next `messages` messages."""

    kind: ClassVar[str] = "session.window_recorded"
    selection: WindowSelection
    messages: int = 1


class WindowCutEvent(msgspec.Struct, frozen=True, gc=False):
    """From this event on, windows of the session begin at a later message."""

    kind: ClassVar[str] = "session.window_cut"
    cut: Cut


class SessionSummarizedEvent(msgspec.Struct, frozen=True, gc=False):
    """A summary replaces, in windows, the messages before a cut and any earlier summary."""

    kind: ClassVar[str] = "session.summarized"
    summary: Summary


class SessionUpdatedEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Title, metadata or policy changed, or reported usage corrected a counter.

    Keys in `set_metadata` were set, keys in `drop_metadata` removed.
    """

    kind: ClassVar[str] = "session.updated"
    title: str | None | msgspec.UnsetType = msgspec.UNSET
    set_metadata: Mapping[str, Json] = EMPTY
    drop_metadata: tuple[str, ...] = ()
    policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET
    usage: ReportedUsage | msgspec.UnsetType = msgspec.UNSET


class SessionContinuedEvent(msgspec.Struct, frozen=True, gc=False):
    """The conversation continues in another session."""

    kind: ClassVar[str] = "session.continued"
    to: str


class SessionForkedEvent(msgspec.Struct, frozen=True, gc=False):
    """A session began as a copy of another one at a version; `state` is its own state from there."""

    kind: ClassVar[str] = "session.forked"
    id: str
    source: str
    version: int
    state: SessionState


class SessionRewoundEvent(msgspec.Struct, frozen=True, gc=False):
    """The session went back to an earlier version; `state` is its state from there."""

    kind: ClassVar[str] = "session.rewound"
    to: int
    state: SessionState


class SessionResetEvent(msgspec.Struct, frozen=True, gc=False):
    """The generation ended and the next one began, empty, under the same id."""

    kind: ClassVar[str] = "session.reset"


class SessionEndedEvent(msgspec.Struct, frozen=True, gc=False):
    """The session ended, timed out, or was deleted."""

    kind: ClassVar[str] = "session.ended"
    reason: EndReason


class SessionOffloadedEvent(msgspec.Struct, frozen=True, gc=False):
    """Long-term memory acknowledged the history of an ended generation."""

    kind: ClassVar[str] = "session.offloaded"
    generation: int
    engine: str = ""


class SessionErasedEvent(msgspec.Struct, frozen=True, gc=False):
    """The content of `events` events of the session was erased; `digest` identifies them. The session continues."""

    kind: ClassVar[str] = "session.erased"
    events: int
    digest: str


SessionEvent = (
    SessionCreatedEvent
    | MessageAddedEvent
    | WindowRecordedEvent
    | WindowCutEvent
    | SessionSummarizedEvent
    | SessionUpdatedEvent
    | SessionContinuedEvent
    | SessionForkedEvent
    | SessionRewoundEvent
    | SessionResetEvent
    | SessionEndedEvent
    | SessionOffloadedEvent
    | SessionErasedEvent
)


class RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event with its position in the log, its version in the stream and its time."""

    event: SessionEvent
    session_id: str
    position: int
    version: int
    time_us: int

    @property
    def kind(self) -> str:
        """The kind of the event, for example session.message_added."""
        return self.event.kind


class ErasedEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An erased event, of which only the kind and the position in the log are left."""

    kind: str
    position: int
    version: int
    time_us: int

    @property
    def event(self) -> ErasedEvent:
        """The erased event itself, which has no content."""
        return self

    @property
    def session_id(self) -> str:
        """Empty: the id was erased with the content."""
        return ""


class FramePushedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame was pushed, and its total was allocated from its parent. With `waits`, the parent waits for it.

    `named`: the caller chose the id.
    """

    kind: ClassVar[str] = "frame.pushed"
    frame_id: str
    scope: Scope
    goal: str
    budget: TokenBudget
    parent_frame_id: str | None = None
    inputs: Json = None
    waits: bool = True
    named: bool = False


class FrameUpdatedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of a frame changed; a field that is not set did not change.

    `reserved` and `released` are tokens by purpose, `used` are spent tokens. `tool` is the new state of a tool run; its
    result is in the session and message of `recorded_in`, or here as `output` or as the hash of a text. `pack` is the
    pack that the model is about to see. `suspension` is the new status of the present suspension; `token_hash`
    replaces the hash of its token.
    """

    kind: ClassVar[str] = "frame.updated"
    frame_id: str
    goal: str | msgspec.UnsetType = msgspec.UNSET
    inputs: Json | msgspec.UnsetType = msgspec.UNSET
    status: FrameStatus | None = None
    reserved: Mapping[str, int] = EMPTY
    released: Mapping[str, int] = EMPTY
    used: int = 0
    tool: ToolRun | None = None
    output: Json = None
    output_hash: str | None = None
    recorded_in: tuple[str, str] | None = None
    pack: PackSelection | None = None
    handled: tuple[str, ...] = ()
    suspension: SuspensionStatus | None = None
    token_hash: str = ""
    expires_us: int | None = None
    by: str = ""
    reason: str = ""


class FramePoppedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame was closed and its budget settled with its parent's. `abandoned` are unfinished tool runs."""

    kind: ClassVar[str] = "frame.popped"
    frame_id: str
    status: FrameStatus
    result_summary: str = ""
    reason: str = ""
    abandoned: tuple[str, ...] = ()


class FrameSuspendedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame was suspended. Only the hash of its token is stored."""

    kind: ClassVar[str] = "frame.suspended"
    frame_id: str
    suspension_id: str
    token_hash: str
    reason: str
    purpose: str = ""
    payload: Json = None
    expires_us: int | None = None


class FrameResumedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A suspended frame was resumed with its earlier status, and receives `payload`."""

    kind: ClassVar[str] = "frame.resumed"
    frame_id: str
    suspension_id: str
    decision: Decision
    payload: Json = None
    by: str = ""
    reason: str = ""


class HandleAddedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A handle was added to a frame. Its content, if given, is stored as a blob by hash."""

    kind: ClassVar[str] = "frame.handle_added"
    frame_id: str
    handle: ContextHandle


class ResultAddedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result was added to a frame."""

    kind: ClassVar[str] = "frame.result_added"
    frame_id: str
    result: ResultRef


class FrameCompactedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Handles of a frame were dropped, and the handles in `replaced` took their place."""

    kind: ClassVar[str] = "frame.compacted"
    frame_id: str
    removed: tuple[str, ...] = ()
    replaced: tuple[ContextHandle, ...] = ()
    strategy: str = ""
    target_budget: int = 0
    original_tokens: int = 0
    final_tokens: int = 0
    level: CompactionLevel = CompactionLevel.NONE


class ActorResumedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An actor resumed its stack. The tool runs in `unknown` had started but not ended: their outcome is unknown."""

    kind: ClassVar[str] = "actor.resumed"
    frame_id: str
    scope: Scope
    unknown: tuple[str, ...] = ()


class TreeErasedEvent(msgspec.Struct, frozen=True):
    """The content of `events` events of the tree was erased; `digest` identifies them. Not one of the nine kinds."""

    kind: ClassVar[str] = "tree.erased"
    events: int
    digest: str

    @property
    def frame_id(self) -> str:
        """Empty: the event is about the whole tree."""
        return ""


FrameEvent = (
    FramePushedEvent
    | FrameUpdatedEvent
    | FramePoppedEvent
    | FrameSuspendedEvent
    | FrameResumedEvent
    | HandleAddedEvent
    | ResultAddedEvent
    | FrameCompactedEvent
    | ActorResumedEvent
    | TreeErasedEvent
)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure removed, and when.

    `what` is its scope: a user, a session, a message, or deleted sessions. The counts are events without content, and
    removed blobs, idempotency keys, and rows of search index and memory. `waiting` sessions are hidden and are erased
    with the last fork that still reads them. `pending`: nothing is readable any more, but traces stay in files until a
    reader closes; the next erasure or opening removes them. A repeated erasure has the same `id`.
    """

    id: str
    what: str
    erased_us: int
    events: int = 0
    sessions: int = 0
    frames: int = 0
    blobs: int = 0
    keys: int = 0
    rows: int = 0
    waiting: int = 0
    pending: bool = False

    @property
    def erased_at(self) -> str:
        """The time as ISO 8601."""
        return ids.iso(self.erased_us)

    def to_dict(self) -> dict[str, Json]:
        """Return the receipt as plain JSON, with the time as ISO 8601."""
        made: dict[str, Json] = {name: getattr(self, name) for name in self.__struct_fields__}
        made["erased_at"] = ids.iso(made.pop("erased_us"))
        return made
