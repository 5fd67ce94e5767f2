"""Limpet: the state engine for LLM agents. Durable conversations on one file.

Start with `connect`. The other public names are in `limpet.sessions`, `limpet.frames`, `limpet.memory`,
`limpet.admin`, `limpet.llm`, `limpet.render`, `limpet.tokens`, `limpet.errors`, `limpet.limits` and `limpet.testing`. Names of other
modules can change in any version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.core.values.context import CompactionLevel, CompactionStrategy, ContextHandle, ContextPriority
from limpet.core.values.frame_state import Frame, FrameStatus, Scope, SuspensionToken, TokenBudget
from limpet.core.values.messages import Message, MessageCategory, ToolCallRequest, ToolCallResult
from limpet.core.values.session_state import WindowPolicy
from limpet.core.windows.pack import ContextPack
from limpet.core.windows.window import Window
from limpet.errors import (
    Conflict,
    ContextOverflow,
    Corrupt,
    Error,
    InsufficientTokens,
    InvalidMessage,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OpenCalls,
    PairingError,
    Refused,
    StaleVersion,
    Unavailable,
)
from limpet.frames.state_index import StateIndex
from limpet.lazy_exports import lazy_exports
from limpet.sessions.session import Session
from limpet.sessions.stateless import StateManager
from limpet.wiring import Limpet, SessionManager, connect, connect_async

if TYPE_CHECKING:
    from limpet import admin as admin
    from limpet import errors as errors
    from limpet import frames as frames
    from limpet import limits as limits
    from limpet import llm as llm
    from limpet import memory as memory
    from limpet import render as render
    from limpet import sessions as sessions
    from limpet import tokens as tokens
    from limpet.sessions.async_sessions import AsyncSession
    from limpet.wiring.async_client import AsyncLimpet, PendingConnection

__version__ = "0.1.0"

__all__ = [
    "AsyncLimpet",
    "AsyncSession",
    "CompactionLevel",
    "CompactionStrategy",
    "Conflict",
    "ContextHandle",
    "ContextOverflow",
    "ContextPack",
    "ContextPriority",
    "Corrupt",
    "Error",
    "Frame",
    "FrameStatus",
    "InsufficientTokens",
    "InvalidMessage",
    "InvalidRequest",
    "LimitExceeded",
    "Limpet",
    "Message",
    "MessageCategory",
    "NotFound",
    "OpenCalls",
    "PairingError",
    "PendingConnection",
    "Refused",
    "Scope",
    "Session",
    "SessionManager",
    "StaleVersion",
    "StateIndex",
    "StateManager",
    "SuspensionToken",
    "TokenBudget",
    "ToolCallRequest",
    "ToolCallResult",
    "Unavailable",
    "Window",
    "WindowPolicy",
    "connect",
    "connect_async",
]

_MODULES = ("admin", "errors", "frames", "limits", "llm", "memory", "render", "sessions", "testing", "tokens")

if not TYPE_CHECKING:
    # The async names load asyncio, which takes longer to import than all the rest.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        [*__all__, *_MODULES],
        *(f"limpet.{name}" for name in _MODULES),
        "limpet.sessions.async_sessions",
        "limpet.wiring.async_client",
    )
