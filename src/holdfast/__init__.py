"""Holdfast: the state engine for LLM agents. Durable conversations on one file.

Start with `connect`. The rooms beneath (`values`, `wire`, `history`, `store`, `engine`) can be
imported, but only the names listed here are stable.
"""

from __future__ import annotations

import typing as _typing

from holdfast.context.window import Window
from holdfast.engine.handles import PendingCall
from holdfast.engine.recordings import RecordedWindow
from holdfast.engine.session import Session
from holdfast.engine.state_manager import StateManager
from holdfast.errors import (
    BadEncoding,
    Conflict,
    ContextOverflow,
    Corrupt,
    DuplicateMessage,
    DuplicateSession,
    EngineClosed,
    Error,
    ForkedEngine,
    InvalidMessage,
    InvalidRequest,
    KeyReused,
    NewerStore,
    NoCurrentSession,
    NotAStore,
    NotFound,
    NotJson,
    OpenCalls,
    PairingError,
    Refused,
    ResultWithoutCall,
    SecondResult,
    SessionEnded,
    StaleVersion,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    TooDeep,
    TooLarge,
    Unavailable,
    UnknownCall,
    UnknownCounter,
    UnknownMessage,
    UnknownModel,
    UnknownScheme,
    UnknownSession,
    UnknownWindow,
    UnsafeStore,
    WrongRole,
    WrongTokenizer,
)
from holdfast.values.context import CompactionLevel, ContextPriority
from holdfast.values.message import Message, MessageCategory, ToolCallRequest, ToolCallResult
from holdfast.values.policy import WindowPolicy
from holdfast.values.session import SessionState, SessionStatus
from holdfast.wiring import Holdfast, SessionManager, connect, connect_async

if _typing.TYPE_CHECKING:
    from holdfast.engine.aio import AsyncSession
    from holdfast.wiring.async_client import AsyncHoldfast

__version__ = "0.1.0"

__all__ = [
    "AsyncHoldfast",
    "AsyncSession",
    "BadEncoding",
    "CompactionLevel",
    "Conflict",
    "ContextOverflow",
    "ContextPriority",
    "Corrupt",
    "DuplicateMessage",
    "DuplicateSession",
    "EngineClosed",
    "Error",
    "ForkedEngine",
    "Holdfast",
    "InvalidMessage",
    "InvalidRequest",
    "KeyReused",
    "Message",
    "MessageCategory",
    "NewerStore",
    "NoCurrentSession",
    "NotAStore",
    "NotFound",
    "NotJson",
    "OpenCalls",
    "PairingError",
    "PendingCall",
    "RecordedWindow",
    "Refused",
    "ResultWithoutCall",
    "SecondResult",
    "Session",
    "SessionEnded",
    "SessionManager",
    "SessionState",
    "SessionStatus",
    "StaleVersion",
    "StateManager",
    "StoreBusy",
    "StoreFull",
    "StoreReadOnly",
    "TooDeep",
    "TooLarge",
    "ToolCallRequest",
    "ToolCallResult",
    "Unavailable",
    "UnknownCall",
    "UnknownCounter",
    "UnknownMessage",
    "UnknownModel",
    "UnknownScheme",
    "UnknownSession",
    "UnknownWindow",
    "UnsafeStore",
    "Window",
    "WindowPolicy",
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
