"""Events of frames: the nine kinds of the StateIndex document.

Budget operations, tools, packs, expiry and revocation are parts of `frame.updated`; removed handles are
part of `frame.compacted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from limpet.values.budget import TokenBudget
from limpet.values.context import CompactionLevel
from limpet.values.frame import Decision, FrameStatus, Scope, SuspensionStatus, ToolRun
from limpet.values.frozen import EMPTY, Json
from limpet.values.handle import ContextHandle, ResultRef
from limpet.values.pack import PackSelection


class FramePushedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame was pushed; its total was allocated from its parent, which waits for it if `waits`.

    `named`: the caller chose its id.
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

    `reserved` and `released` are tokens by purpose; `used` was spent, from the released reservations if there are
    any. `tool` is the present state of a tool run; its result is in the session and message of `recorded_in`, or
    here as `output` or as the hash of a text. `pack` is what the model is about to see. `suspension` is the new
    state of the present suspension; `token_hash` replaces the hash of its token.
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
    """A suspended frame was resumed with its earlier status. `payload` is what it receives."""

    kind: ClassVar[str] = "frame.resumed"
    frame_id: str
    suspension_id: str
    decision: Decision
    payload: Json = None
    by: str = ""
    reason: str = ""


class HandleAddedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A handle was added. Content that came with it is stored as a blob, by hash."""

    kind: ClassVar[str] = "frame.handle_added"
    frame_id: str
    handle: ContextHandle


class ResultAddedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result was added."""

    kind: ClassVar[str] = "frame.result_added"
    frame_id: str
    result: ResultRef


class FrameCompactedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Handles were dropped; those in `replaced` took their place."""

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
    """An actor resumed its stack. Tools that had started and not ended have an unknown outcome from here on."""

    kind: ClassVar[str] = "actor.resumed"
    frame_id: str
    scope: Scope
    unknown: tuple[str, ...] = ()


class TreeErased(msgspec.Struct, frozen=True):
    """The content of some events of the tree was erased; `digest` proves which. Not one of the nine kinds."""

    kind: ClassVar[str] = "tree.erased"
    events: int
    digest: str

    @property
    def frame_id(self) -> str:
        """Empty: it belongs to no single frame."""
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
    | TreeErased
)

KINDS: Final = (
    FramePushedEvent,
    FrameUpdatedEvent,
    FramePoppedEvent,
    FrameSuspendedEvent,
    FrameResumedEvent,
    HandleAddedEvent,
    ResultAddedEvent,
    FrameCompactedEvent,
    ActorResumedEvent,
)
"""The nine kinds of the document."""
