"""Limpet: the state engine for LLM agents. Durable conversations on one file.

Start with `connect`. The rooms beneath (`values`, `wire`, `history`, `store`, `engine`) can be
imported, but only the names listed here are stable.
"""

from __future__ import annotations

import typing as _typing

from limpet.core.values.budget import TokenBudget
from limpet.core.values.context import (
    CompactionLevel,
    CompactionResult,
    CompactionStrategy,
    ContextHandle,
    ContextPriority,
    HandleType,
    ResultRef,
)
from limpet.core.values.erasure_receipt import Receipt
from limpet.core.values.frame_state import (
    ActorResumeState,
    Decision,
    Frame,
    FrameStatus,
    PendingWork,
    PendingWorkType,
    Scope,
    Suspension,
    SuspensionToken,
    ToolEffect,
    ToolRun,
    ToolStatus,
)
from limpet.core.values.memory_records import (
    Fact,
    FactKind,
    Found,
    Hit,
    Profile,
    Recalled,
    Said,
    Source,
)
from limpet.core.values.messages import Message, MessageCategory, ToolCallRequest, ToolCallResult
from limpet.core.values.pack_parts import ContextSegment, SegmentType
from limpet.core.values.session_state import SessionState, SessionStatus, WindowPolicy
from limpet.core.windows.pack import ContextPack
from limpet.core.windows.window import Window
from limpet.errors import (
    AlreadyDecided,
    AlreadySuspended,
    BadEncoding,
    BudgetError,
    BudgetTooSmall,
    CallNotFound,
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
    HandleNotFound,
    HandleUnresolved,
    InsufficientTokens,
    InvalidMessage,
    InvalidRequest,
    InvalidSuspensionToken,
    InvalidTransition,
    KeyReused,
    LimitExceeded,
    MaxDepthExceeded,
    MessageNotFound,
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
    SessionNotFound,
    StaleVersion,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    SummaryRefused,
    SuspensionExpired,
    SuspensionNotFound,
    TimeLimitExceeded,
    TooDeep,
    TooLarge,
    ToolLimitExceeded,
    ToolNotFound,
    Unavailable,
    UnknownCounter,
    UnknownModel,
    UnknownScheme,
    UnsafeStore,
    WindowNotFound,
    WrongEmbedder,
    WrongRole,
    WrongTokenizer,
)
from limpet.frames.state_index import StateIndex
from limpet.sessions.session import Session
from limpet.sessions.session_view import PendingCall
from limpet.sessions.stateless import StateManager
from limpet.sessions.time_travel import Moment, PastSession
from limpet.sessions.windows import RecordedWindow
from limpet.wiring import Limpet, SessionManager, connect, connect_async

if _typing.TYPE_CHECKING:
    from limpet.sessions.async_sessions import AsyncSession
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
    "CallNotFound",
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
    "HandleNotFound",
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
    "MessageNotFound",
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
    "SessionNotFound",
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
    "SuspensionNotFound",
    "SuspensionToken",
    "TimeLimitExceeded",
    "TokenBudget",
    "TooDeep",
    "TooLarge",
    "ToolCallRequest",
    "ToolCallResult",
    "ToolEffect",
    "ToolLimitExceeded",
    "ToolNotFound",
    "ToolRun",
    "ToolStatus",
    "Unavailable",
    "UnknownCounter",
    "UnknownModel",
    "UnknownScheme",
    "UnsafeStore",
    "Window",
    "WindowNotFound",
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
        from limpet.sessions.async_sessions import AsyncSession  # noqa: PLC0415 - as said

        return AsyncSession
    if name == "AsyncLimpet":
        from limpet.wiring.async_client import AsyncLimpet  # noqa: PLC0415 - as said

        return AsyncLimpet
    raise AttributeError(f"module 'limpet' has no attribute {name!r}")
