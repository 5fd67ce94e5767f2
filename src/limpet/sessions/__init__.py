"""Sessions: conversations, their messages, windows and earlier states, and the stateless form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from limpet.core.values.context import Fate, Ledger, LedgerEntry
    from limpet.core.values.session_state import (
        CounterCorrection,
        Cut,
        EndReason,
        OpenCall,
        ReportedUsage,
        SessionState,
        SessionStatus,
        Summary,
    )
    from limpet.core.values.validation import Json
    from limpet.core.windows.window import WindowDifference
    from limpet.sessions.async_sessions import AsyncBetween, AsyncMessages, AsyncMoment, AsyncPastSession, AsyncSessions
    from limpet.sessions.requests import MessageLike, Page, When, Write
    from limpet.sessions.session import Messages, PastSession, PendingCall
    from limpet.sessions.time_travel import Between, Difference, Moment
    from limpet.sessions.windows import AsyncSummarizer, RecordedWindow, Summarizer

__all__ = [
    "AsyncBetween",
    "AsyncMessages",
    "AsyncMoment",
    "AsyncPastSession",
    "AsyncSessions",
    "AsyncSummarizer",
    "Between",
    "CounterCorrection",
    "Cut",
    "Difference",
    "EndReason",
    "Fate",
    "Json",
    "Ledger",
    "LedgerEntry",
    "MessageLike",
    "Messages",
    "Moment",
    "OpenCall",
    "Page",
    "PastSession",
    "PendingCall",
    "RecordedWindow",
    "ReportedUsage",
    "SessionState",
    "SessionStatus",
    "Summarizer",
    "Summary",
    "When",
    "WindowDifference",
    "Write",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        __all__,
        "limpet.core.values.validation",
        "limpet.core.values.session_state",
        "limpet.core.values.context",
        "limpet.core.windows.window",
        "limpet.sessions.requests",
        "limpet.sessions.session",
        "limpet.sessions.windows",
        "limpet.sessions.time_travel",
        "limpet.sessions.async_sessions",
    )
