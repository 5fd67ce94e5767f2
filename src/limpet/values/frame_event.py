"""Facts about frames, in the past tense: the nine kinds that the document of StateIndex names.

Together they carry everything. Budget operations, tools, packs, expiry and revocation travel in
`frame.updated`, removed handles in `frame.compacted`.
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
    """A frame was pushed; its total came out of its parent's account, which waits for it if `waits`.

    `named`: whoever pushed it chose its id.
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
    """Something of a frame changed; what is not named did not.

    `reserved` and `released` are tokens by purpose, `used` is what was spent, out of the reservations that
    `released` names if it does. `tool` is how a tool stands now; its result is in the session and message
    of `recorded_in`, or here: `output`, or a text by its hash. `pack` is what a model is about to see. `suspension` is what became of the one that stands,
    `token_hash` the right to end it that replaced the one before.
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
    """A frame was closed, and its account settled with its parent's. `abandoned` are tools left unfinished."""

    kind: ClassVar[str] = "frame.popped"
    frame_id: str
    status: FrameStatus
    result_summary: str = ""
    reason: str = ""
    abandoned: tuple[str, ...] = ()


class FrameSuspendedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame stands still until its token is used or the suspension decided. Only the token's hash is kept."""

    kind: ClassVar[str] = "frame.suspended"
    frame_id: str
    suspension_id: str
    token_hash: str
    reason: str
    purpose: str = ""
    payload: Json = None
    expires_us: int | None = None


class FrameResumedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A suspended frame went on, with the status it had. `payload` is what it is handed."""

    kind: ClassVar[str] = "frame.resumed"
    frame_id: str
    suspension_id: str
    decision: Decision
    payload: Json = None
    by: str = ""
    reason: str = ""


class HandleAddedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame got a handle. Content that came with it is kept as a blob, by its hash."""

    kind: ClassVar[str] = "frame.handle_added"
    frame_id: str
    handle: ContextHandle


class ResultAddedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame produced something."""

    kind: ClassVar[str] = "frame.result_added"
    frame_id: str
    result: ResultRef


class FrameCompactedEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frame let go of handles; those in `replaced` took the place of some of them."""

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
    """An actor came back to its stack. Tools that had begun and not ended are of unknown outcome since."""

    kind: ClassVar[str] = "actor.resumed"
    frame_id: str
    scope: Scope
    unknown: tuple[str, ...] = ()


class TreeErased(msgspec.Struct, frozen=True):
    """Content of so many events of the tree was erased; `digest` proves which. It is none of the nine."""

    kind: ClassVar[str] = "tree.erased"
    events: int
    digest: str

    @property
    def frame_id(self) -> str:
        """Empty: it is of no frame in particular."""
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
"""The nine."""
