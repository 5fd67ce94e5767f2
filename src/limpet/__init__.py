"""Limpet: the state engine for LLM agents. Durable conversations on one file.

Start with `connect`. The rooms beneath (`values`, `wire`, `history`, `store`, `engine`) can be
imported, but only the names listed here are stable.
"""

from __future__ import annotations

import typing as _typing

from limpet.context.packed import ContextPack
from limpet.context.window import Window
from limpet.engine.handles import PendingCall
from limpet.engine.index import StateIndex
from limpet.engine.past import Moment, PastSession
from limpet.engine.recordings import RecordedWindow
from limpet.engine.session import Session
from limpet.engine.state_manager import StateManager
from limpet.errors import (
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
from limpet.values.budget import TokenBudget
from limpet.values.compaction import CompactionResult, CompactionStrategy
from limpet.values.context import CompactionLevel, ContextPriority
from limpet.values.erasure import Receipt
from limpet.values.frame import (
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
from limpet.values.handle import ContextHandle, HandleType, ResultRef
from limpet.values.memory import Fact, FactKind, Found, Hit, Profile, Recalled, Said, Source
from limpet.values.message import Message, MessageCategory, ToolCallRequest, ToolCallResult
from limpet.values.pack import ContextSegment, SegmentType
from limpet.values.policy import WindowPolicy
from limpet.values.resume import ActorResumeState, PendingWork, PendingWorkType
from limpet.values.session import SessionState, SessionStatus
from limpet.wiring import Limpet, SessionManager, connect, connect_async

if _typing.TYPE_CHECKING:
    from limpet.engine.aio import AsyncSession
    from limpet.wiring.async_client import AsyncLimpet

__version__ = "0.1.0"

__all__ = [
    "ActorResumeState",
    "AlreadyDecided",
    "AlreadySuspended",
    "AsyncLimpet",
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
    "InsufficientTokens",
    "InvalidMessage",
    "InvalidRequest",
    "InvalidSuspensionToken",
    "InvalidTransition",
    "KeyReused",
    "LimitExceeded",
    "Limpet",
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
    # Async names load asyncio, which takes longer to import than all of Limpet.
    if name == "AsyncSession":
        from limpet.engine.aio import AsyncSession  # noqa: PLC0415 - as said

        return AsyncSession
    if name == "AsyncLimpet":
        from limpet.wiring.async_client import AsyncLimpet  # noqa: PLC0415 - as said

        return AsyncLimpet
    raise AttributeError(f"module 'limpet' has no attribute {name!r}")
