"""Holdfast: the state engine for LLM agents. Durable conversations on one file.

Start with `connect`. The rooms beneath (`values`, `wire`, `history`, `store`, `engine`) can be
imported, but only the names listed here are stable.
"""

from __future__ import annotations

import typing as _typing

from holdfast.context.packed import ContextPack
from holdfast.context.window import Window
from holdfast.engine.handles import PendingCall
from holdfast.engine.index import StateIndex
from holdfast.engine.past import Moment, PastSession
from holdfast.engine.recordings import RecordedWindow
from holdfast.engine.session import Session
from holdfast.engine.state_manager import StateManager
from holdfast.errors import (
    AlreadyDecided,
    AlreadySuspended,
    BadEncoding,
    BudgetError,
    BudgetTooSmall,
    Conflict,
    ContextOverflow,
    Corrupt,
    DamagedFile,
    DuplicateFrame,
    DuplicateHandle,
    DuplicateMessage,
    DuplicateSession,
    EngineClosed,
    Erased,
    Error,
    EventsLost,
    ForkedEngine,
    FrameNotFound,
    HandleUnresolved,
    InsufficientTokens,
    InvalidMessage,
    InvalidRequest,
    InvalidSuspensionToken,
    InvalidTransition,
    KeyReused,
    LimitExceeded,
    MaxDepthExceeded,
    ModelRefused,
    NewerStore,
    NoBackup,
    NoCurrentSession,
    NotAStore,
    NotFound,
    NotInstalled,
    NotJson,
    OpenCalls,
    OpenChildren,
    PairingError,
    ParentFrameNotFound,
    PastIsReadOnly,
    Refused,
    ResultWithoutCall,
    SecondResult,
    SessionEnded,
    StaleVersion,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    SummaryRefused,
    SuspensionExpired,
    TimeLimitExceeded,
    TooDeep,
    TooLarge,
    ToolLimitExceeded,
    Unavailable,
    UnknownCall,
    UnknownCounter,
    UnknownHandle,
    UnknownMessage,
    UnknownModel,
    UnknownScheme,
    UnknownSession,
    UnknownSuspension,
    UnknownTool,
    UnknownWindow,
    UnsafeStore,
    WrongEmbedder,
    WrongRole,
    WrongTokenizer,
)
from holdfast.values.budget import TokenBudget
from holdfast.values.compaction import CompactionResult, CompactionStrategy
from holdfast.values.context import CompactionLevel, ContextPriority
from holdfast.values.erasure import Receipt
from holdfast.values.frame import (
    Decision,
    Frame,
    FrameStatus,
    Scope,
    Suspension,
    SuspensionToken,
    ToolEffect,
    ToolRun,
    ToolStatus,
)
from holdfast.values.handle import ContextHandle, HandleType, ResultRef
from holdfast.values.memory import Fact, FactKind, Found, Hit, Profile, Recalled, Said, Source
from holdfast.values.message import Message, MessageCategory, ToolCallRequest, ToolCallResult
from holdfast.values.pack import ContextSegment, SegmentType
from holdfast.values.policy import WindowPolicy
from holdfast.values.resume import ActorResumeState, PendingWork, PendingWorkType
from holdfast.values.session import SessionState, SessionStatus
from holdfast.wiring import Holdfast, SessionManager, connect, connect_async

if _typing.TYPE_CHECKING:
    from holdfast.engine.aio import AsyncSession
    from holdfast.wiring.async_client import AsyncHoldfast

__version__ = "0.1.0"

__all__ = [
    "ActorResumeState",
    "AlreadyDecided",
    "AlreadySuspended",
    "AsyncHoldfast",
    "AsyncSession",
    "BadEncoding",
    "BudgetError",
    "BudgetTooSmall",
    "CompactionLevel",
    "CompactionResult",
    "CompactionStrategy",
    "Conflict",
    "ContextHandle",
    "ContextOverflow",
    "ContextPack",
    "ContextPriority",
    "ContextSegment",
    "Corrupt",
    "DamagedFile",
    "Decision",
    "DuplicateFrame",
    "DuplicateHandle",
    "DuplicateMessage",
    "DuplicateSession",
    "EngineClosed",
    "Erased",
    "Error",
    "EventsLost",
    "Fact",
    "FactKind",
    "ForkedEngine",
    "Found",
    "Frame",
    "FrameNotFound",
    "FrameStatus",
    "HandleType",
    "HandleUnresolved",
    "Hit",
    "Holdfast",
    "InsufficientTokens",
    "InvalidMessage",
    "InvalidRequest",
    "InvalidSuspensionToken",
    "InvalidTransition",
    "KeyReused",
    "LimitExceeded",
    "MaxDepthExceeded",
    "Message",
    "MessageCategory",
    "ModelRefused",
    "Moment",
    "NewerStore",
    "NoBackup",
    "NoCurrentSession",
    "NotAStore",
    "NotFound",
    "NotInstalled",
    "NotJson",
    "OpenCalls",
    "OpenChildren",
    "PairingError",
    "ParentFrameNotFound",
    "PastIsReadOnly",
    "PastSession",
    "PendingCall",
    "PendingWork",
    "PendingWorkType",
    "Profile",
    "Recalled",
    "Receipt",
    "RecordedWindow",
    "Refused",
    "ResultRef",
    "ResultWithoutCall",
    "Said",
    "Scope",
    "SecondResult",
    "SegmentType",
    "Session",
    "SessionEnded",
    "SessionManager",
    "SessionState",
    "SessionStatus",
    "Source",
    "StaleVersion",
    "StateIndex",
    "StateManager",
    "StoreBusy",
    "StoreFull",
    "StoreReadOnly",
    "SummaryRefused",
    "Suspension",
    "SuspensionExpired",
    "SuspensionToken",
    "TimeLimitExceeded",
    "TokenBudget",
    "TooDeep",
    "TooLarge",
    "ToolCallRequest",
    "ToolCallResult",
    "ToolEffect",
    "ToolLimitExceeded",
    "ToolRun",
    "ToolStatus",
    "Unavailable",
    "UnknownCall",
    "UnknownCounter",
    "UnknownHandle",
    "UnknownMessage",
    "UnknownModel",
    "UnknownScheme",
    "UnknownSession",
    "UnknownSuspension",
    "UnknownTool",
    "UnknownWindow",
    "UnsafeStore",
    "Window",
    "WindowPolicy",
    "WrongEmbedder",
    "WrongRole",
    "WrongTokenizer",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> object:
    # Async names load asyncio, which takes longer to import than all of Holdfast.
    if name == "AsyncSession":
        from holdfast.engine.aio import AsyncSession  # noqa: PLC0415 - as said

        return AsyncSession
    if name == "AsyncHoldfast":
        from holdfast.wiring.async_client import AsyncHoldfast  # noqa: PLC0415 - as said

        return AsyncHoldfast
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
