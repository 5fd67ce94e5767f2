"""Every error Holdfast raises, sorted by what the caller can do about it.

    Error
    ├── NotFound       the id names nothing
    │   ├── UnknownSession, UnknownMessage, UnknownCall, UnknownWindow
    │   ├── FrameNotFound
    │   │   └── ParentFrameNotFound
    │   └── UnknownHandle, UnknownTool, UnknownSuspension, Erased
    ├── Conflict       someone else was first: read again, then retry
    │   ├── StaleVersion, KeyReused
    │   ├── DuplicateSession, DuplicateMessage, DuplicateFrame, DuplicateHandle
    │   └── AlreadySuspended, AlreadyDecided
    ├── Refused        the rules forbid it: change the request
    │   ├── InvalidMessage
    │   │   └── WrongRole, NotJson, BadEncoding, TooLarge, TooDeep
    │   ├── PairingError
    │   │   └── ResultWithoutCall, SecondResult, OpenCalls
    │   ├── InvalidRequest
    │   │   └── NoCurrentSession, UnknownModel, UnknownCounter
    │   ├── BudgetError
    │   │   └── InsufficientTokens, BudgetTooSmall
    │   ├── LimitExceeded
    │   │   └── MaxDepthExceeded, ToolLimitExceeded, TimeLimitExceeded
    │   ├── InvalidTransition
    │   │   └── OpenChildren
    │   ├── InvalidSuspensionToken, SuspensionExpired, HandleUnresolved
    │   ├── ContextOverflow, SessionEnded, PastIsReadOnly, EngineClosed, ForkedEngine
    │   └── UnknownScheme, WrongTokenizer, UnsafeStore, NotAStore, NewerStore
    ├── Unavailable    the store can't take it now: retry later, the same key is safe
    │   └── StoreBusy, StoreFull, StoreReadOnly
    └── Corrupt        stored data is not what was written: never repaired in silence

A class docstring is the error's default message. `code` is stable and appears wherever the error does;
`facts` holds the numbers and ids as data; `hint` says what to do next. No error carries message text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

NO_FACTS: Mapping[str, object] = MappingProxyType({})


class Error(Exception):
    """Something went wrong in Holdfast."""

    code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str = "",
        facts: Mapping[str, object] = NO_FACTS,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n\n")[0]
        self.hint = hint
        self.facts = dict(facts)
        super().__init__(f"{self.message} {hint}".rstrip())

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)


def _rebuild(kind: type[Error], message: str, hint: str, facts: Mapping[str, object]) -> Error:
    return kind(message, hint=hint, facts=facts)


class NotFound(Error):
    """There is nothing by that id."""

    code: ClassVar[str] = "not_found"


class UnknownSession(NotFound):
    """There is no session by that id. List them, or create it with get_or_create_session."""

    code: ClassVar[str] = "unknown_session"


class UnknownMessage(NotFound):
    """There is no message by that id in the session."""

    code: ClassVar[str] = "unknown_message"


class UnknownCall(NotFound):
    """There is no open tool call by that id. pending_calls() lists the open ones."""

    code: ClassVar[str] = "unknown_call"


class UnknownWindow(NotFound):
    """No window was recorded with that event. recorded_windows() lists those that were."""

    code: ClassVar[str] = "unknown_window"


class FrameNotFound(NotFound):
    """There is no frame by that id."""

    code: ClassVar[str] = "frame_not_found"


class ParentFrameNotFound(FrameNotFound):
    """There is no frame by the id of the parent. Push the parent first."""

    code: ClassVar[str] = "parent_frame_not_found"


class UnknownHandle(NotFound):
    """The frame has no handle by that id."""

    code: ClassVar[str] = "unknown_handle"


class UnknownTool(NotFound):
    """The frame has no unfinished tool by that id. resume_actor lists the unfinished ones."""

    code: ClassVar[str] = "unknown_tool"


class UnknownSuspension(NotFound):
    """There is no suspension by that id. list_suspensions lists those that wait."""

    code: ClassVar[str] = "unknown_suspension"


class Erased(NotFound):
    """What is asked for, or something that it was made of, was erased."""

    code: ClassVar[str] = "erased"


class Conflict(Error):
    """Someone else was first. Read again, then decide."""

    code: ClassVar[str] = "conflict"


class StaleVersion(Conflict):
    """The session has moved on since that version. Load it again, then retry."""

    code: ClassVar[str] = "stale_version"


class DuplicateSession(Conflict):
    """A session by that id exists already. Use get_or_create_session to open it."""

    code: ClassVar[str] = "duplicate_session"


class DuplicateMessage(Conflict):
    """Another message has that id in this session. Give the new one its own id."""

    code: ClassVar[str] = "duplicate_message"


class DuplicateFrame(Conflict):
    """Another frame has that id. Give the new one its own id, or leave the id out."""

    code: ClassVar[str] = "duplicate_frame"


class DuplicateHandle(Conflict):
    """The frame has another handle by that id."""

    code: ClassVar[str] = "duplicate_handle"


class AlreadySuspended(Conflict):
    """The frame is suspended already. Resume it, decide it, or revoke its suspension first."""

    code: ClassVar[str] = "already_suspended"


class AlreadyDecided(Conflict):
    """The suspension was decided by somebody else. Nothing was done."""

    code: ClassVar[str] = "already_decided"


class KeyReused(Conflict):
    """That idempotency key was used for another command. Use a new key for a new command."""

    code: ClassVar[str] = "key_reused"


class Refused(Error):
    """The rules forbid this."""

    code: ClassVar[str] = "refused"


class InvalidMessage(Refused):
    """This is not a message that can be kept."""

    code: ClassVar[str] = "invalid_message"


class WrongRole(InvalidMessage):
    """A message's role is system, user, assistant or tool, and decides which fields it may have."""

    code: ClassVar[str] = "wrong_role"


class NotJson(InvalidMessage):
    """The value is not JSON: use dict, list, str, int, finite float, bool or None."""

    code: ClassVar[str] = "not_json"


class BadEncoding(InvalidMessage):
    """The text has lone surrogates, which no encoding can carry. Decode it again from its bytes."""

    code: ClassVar[str] = "bad_encoding"


class TooLarge(InvalidMessage):
    """The value is larger than its limit."""

    code: ClassVar[str] = "too_large"


class TooDeep(InvalidMessage):
    """The value is nested deeper than its limit."""

    code: ClassVar[str] = "too_deep"


class PairingError(Refused):
    """Tool calls and their results must stay paired."""

    code: ClassVar[str] = "pairing"


class ResultWithoutCall(PairingError):
    """The result answers no open tool call of this session."""

    code: ClassVar[str] = "result_without_call"


class SecondResult(PairingError):
    """The tool call has its result already."""

    code: ClassVar[str] = "second_result"


class OpenCalls(PairingError):
    """Tool calls are waiting for results; a provider would reject anything else before those."""

    code: ClassVar[str] = "open_calls"


class SummaryRefused(Refused):
    """A summary has lost too much of what it stands for. What stood before stands."""

    code: ClassVar[str] = "summary_refused"


class ContextOverflow(Refused):
    """What must be in the context does not fit into its budget. Nothing was dropped: raise the budget."""

    code: ClassVar[str] = "context_overflow"


class InvalidRequest(Refused):
    """An argument is not one this verb takes."""

    code: ClassVar[str] = "invalid_request"


class NoCurrentSession(InvalidRequest, ValueError):
    """There is no current session: create or load one first, or name the session."""

    code: ClassVar[str] = "no_current_session"


class UnknownModel(InvalidRequest):
    """No token counter is known for that model."""

    code: ClassVar[str] = "unknown_model"


class UnknownCounter(InvalidRequest):
    """There is no token counter by that name."""

    code: ClassVar[str] = "unknown_counter"


class BudgetError(Refused):
    """The token account does not allow this."""

    code: ClassVar[str] = "budget"


class InsufficientTokens(BudgetError):
    """Fewer tokens are available than are asked for."""

    code: ClassVar[str] = "insufficient_tokens"


class BudgetTooSmall(BudgetError):
    """No context can be assembled for so few tokens."""

    code: ClassVar[str] = "budget_too_small"


class LimitExceeded(Refused):
    """A limit of the frame or of one of its ancestors is reached."""

    code: ClassVar[str] = "limit_exceeded"


class MaxDepthExceeded(LimitExceeded):
    """Frames may not be nested deeper here."""

    code: ClassVar[str] = "max_depth_exceeded"


class ToolLimitExceeded(LimitExceeded):
    """The frame has made as many tool calls as it may."""

    code: ClassVar[str] = "tool_limit_exceeded"


class TimeLimitExceeded(LimitExceeded):
    """The time of the frame, or of one of its ancestors, is up."""

    code: ClassVar[str] = "time_limit_exceeded"


class InvalidTransition(Refused):
    """What is asked for can't follow on where the frame or tool is."""

    code: ClassVar[str] = "invalid_transition"


class OpenChildren(InvalidTransition):
    """The frame has open children. Pop them first, or ask for cascade."""

    code: ClassVar[str] = "open_children"


class InvalidSuspensionToken(Refused):
    """That token resumes nothing: it is unknown, was used or revoked, or belongs elsewhere."""

    code: ClassVar[str] = "invalid_suspension_token"


class SuspensionExpired(Refused):
    """The suspension's time is over. Suspend the frame again for a new token."""

    code: ClassVar[str] = "suspension_expired"


class HandleUnresolved(Refused):
    """The content of a handle can't be found."""

    code: ClassVar[str] = "handle_unresolved"


class SessionEnded(Refused):
    """The session has ended. reset_session starts its next generation."""

    code: ClassVar[str] = "session_ended"


class PastIsReadOnly(Refused):
    """A session as it was can't be changed. Fork it, and go on in the fork."""

    code: ClassVar[str] = "past_is_read_only"


class EngineClosed(Refused):
    """The engine is closed. Open it again with holdfast.connect."""

    code: ClassVar[str] = "engine_closed"


class ForkedEngine(Refused):
    """This engine was opened before a fork. Open a new one in the child with holdfast.connect."""

    code: ClassVar[str] = "forked_engine"


class UnknownScheme(Refused):
    """No store is registered for that URL."""

    code: ClassVar[str] = "unknown_scheme"


class WrongTokenizer(Refused):
    """The installed tokenizer does not give the tokens it is known for. Reinstall splintr-rs."""

    code: ClassVar[str] = "wrong_tokenizer"


class UnsafeStore(Refused):
    """A store there could lose or corrupt what it acknowledges."""

    code: ClassVar[str] = "unsafe_store"


class NotAStore(Refused):
    """The file is not a Holdfast store. Nothing was changed in it."""

    code: ClassVar[str] = "not_a_store"


class NewerStore(Refused):
    """A newer Holdfast wrote this. Upgrade with: pip install -U holdfast"""

    code: ClassVar[str] = "newer_store"


class Unavailable(Error):
    """The store can't take it now. Retry later; with the same key it has one effect."""

    code: ClassVar[str] = "unavailable"


class StoreBusy(Unavailable):
    """Another process holds the store's turn and does not pass it on."""

    code: ClassVar[str] = "store_busy"


class StoreFull(Unavailable):
    """The disk is full. Nothing was written; free some space and retry."""

    code: ClassVar[str] = "store_full"


class StoreReadOnly(Unavailable):
    """The store can't be written. Check the permissions of the file and its folder."""

    code: ClassVar[str] = "store_read_only"


class Corrupt(Error):
    """Stored data is not what was written. `holdfast verify` says how far the damage goes."""

    code: ClassVar[str] = "corrupt"
