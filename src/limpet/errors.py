"""All errors of Limpet, in five families by what the caller can do. docs/reference/errors.md has the whole tree.

- NotFound: no object has the id.
- Conflict: another caller was first. Read again, then retry.
- Refused: a rule forbids the request. Change the request.
- Unavailable: the store can't accept the request now. Retry later with the same key.
- Corrupt: stored data is not what was written. Nothing is repaired silently.

A class docstring is the error's default message. `code` is stable and appears wherever the error is shown, `facts` holds
the numbers and ids as data, and `hint` says what to do next. No error contains text of messages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")

NO_FACTS: Mapping[str, object] = MappingProxyType({})

RETRY_HINT: Final = "Retry; with the same key it has one effect."
"""The hint for programs, where it is not known whether something was done. People have no key to give."""


class Error(Exception):
    """Something went wrong in Limpet."""

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        # The class name in snake case. Class names are public, so the code is as stable as they are.
        cls.code = _CAPITALS.sub("_", cls.__name__).lower().removesuffix("_error")

    def __init__(self, message: str | None = None, *, hint: str = "", facts: Mapping[str, object] = NO_FACTS) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n\n")[0]
        self.hint = hint
        self.facts = dict(facts)
        super().__init__(f"{self.message} {hint}".rstrip())

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (type(self), self.message, self.hint, self.facts)


def _unpickle(kind: type[Error], message: str, hint: str, facts: Mapping[str, object]) -> Error:
    return kind(message, hint=hint, facts=facts)


class NotFound(Error):
    """There is nothing by that id."""


class SessionNotFound(NotFound):
    """There is no session by that id. List them, or create it with get_or_create_session."""


class MessageNotFound(NotFound):
    """There is no message by that id in the session."""


class CallNotFound(NotFound):
    """There is no open tool call by that id. pending_calls() lists the open ones."""


class WindowNotFound(NotFound):
    """No window was recorded with that event. recorded_windows() lists those that were."""


class FrameNotFound(NotFound):
    """There is no frame by that id."""


class ParentFrameNotFound(FrameNotFound):
    """There is no frame by the id of the parent. Push the parent first."""


class HandleNotFound(NotFound):
    """The frame has no handle by that id."""


class ToolNotFound(NotFound):
    """The frame has no unfinished tool by that id. resume_actor lists the unfinished ones."""


class SuspensionNotFound(NotFound):
    """There is no suspension by that id. list_suspensions lists those that wait."""


class Erased(NotFound):
    """What is asked for, or something that it was made of, was erased."""

    code: ClassVar[str] = "erased"


class Conflict(Error):
    """Someone else was first. Read again, then decide."""


class StaleVersion(Conflict):
    """The session has moved on since that version. Load it again, then retry."""


class DuplicateSession(Conflict):
    """A session by that id exists already. Use get_or_create_session to open it."""


class DuplicateMessage(Conflict):
    """Another message has that id in this session. Give the new one its own id."""


class DuplicateFrame(Conflict):
    """Another frame has that id. Give the new one its own id, or leave the id out."""


class DuplicateHandle(Conflict):
    """The frame has another handle by that id."""


class AlreadySuspended(Conflict):
    """The frame is suspended already. Resume it, decide it, or revoke its suspension first."""


class AlreadyDecided(Conflict):
    """The suspension was decided by somebody else. Nothing was done."""


class KeyReused(Conflict):
    """That idempotency key was used for another command. Use a new key for a new command."""


class Refused(Error):
    """The rules forbid this."""


class InvalidMessage(Refused):
    """This is not a message that can be kept."""


class WrongRole(InvalidMessage):
    """A message's role is system, user, assistant or tool, and decides which fields it may have."""


class NotJson(InvalidMessage):
    """The value is not JSON: use dict, list, str, int, finite float, bool or None."""


class BadEncoding(InvalidMessage):
    """The text has lone surrogates, which no encoding can carry. Decode it again from its bytes."""


class TooLarge(InvalidMessage):
    """The value is larger than its limit."""


class TooDeep(InvalidMessage):
    """The value is nested deeper than its limit."""


class PairingError(Refused):
    """Tool calls and their results must stay paired."""


class ResultWithoutCall(PairingError):
    """The result answers no open tool call of this session."""


class SecondResult(PairingError):
    """The tool call has its result already."""


class OpenCalls(PairingError):
    """Tool calls are waiting for results; a provider would reject anything else before those."""


class SummaryRefused(Refused):
    """A summary has lost too much of what it stands for. What stood before stands."""


class ContextOverflow(Refused):
    """What must be in the context does not fit into its budget. Nothing was dropped: raise the budget."""


class InvalidRequest(Refused):
    """An argument is not one this verb takes."""


class NoCurrentSession(InvalidRequest, ValueError):
    """There is no current session: create or load one first, or name the session."""


class UnknownModel(InvalidRequest):
    """No token counter is known for that model."""


class UnknownCounter(InvalidRequest):
    """There is no token counter by that name."""


class BudgetError(Refused):
    """The token account does not allow this."""


class InsufficientTokens(BudgetError):
    """Fewer tokens are available than are asked for."""


class BudgetTooSmall(BudgetError):
    """No context can be assembled for so few tokens."""


class LimitExceeded(Refused):
    """A limit of the frame or of one of its ancestors is reached."""


class MaxDepthExceeded(LimitExceeded):
    """Frames may not be nested deeper here."""


class ToolLimitExceeded(LimitExceeded):
    """The frame has made as many tool calls as it may."""


class TimeLimitExceeded(LimitExceeded):
    """The time of the frame, or of one of its ancestors, is up."""


class InvalidTransition(Refused):
    """What is asked for can't follow on where the frame or tool is."""


class OpenChildren(InvalidTransition):
    """The frame has open children. Pop them first, or ask for cascade."""


class InvalidSuspensionToken(Refused):
    """That token resumes nothing: it is unknown, was used or revoked, or belongs elsewhere."""


class SuspensionExpired(Refused):
    """The suspension's time is over. Suspend the frame again for a new token."""


class HandleUnresolved(Refused):
    """The content of a handle can't be found."""


class SessionEnded(Refused):
    """The session has ended. reset_session starts its next generation."""


class PastIsReadOnly(Refused):
    """A session as it was can't be changed. Fork it, and go on in the fork."""


class EngineClosed(Refused):
    """The store is closed. Open it again with limpet.connect."""


class ForkedEngine(Refused):
    """This store was opened before a fork. Open it again in the child with limpet.connect."""


class UnknownScheme(Refused):
    """No store is registered for that URL."""


class NotInstalled(Refused):
    """A library that this needs is not installed."""


def pip_install_command(*packages: str) -> str:
    """Return the command that installs packages for the running Python: the first pip on PATH may belong to another."""
    from shlex import quote  # noqa: PLC0415 - needed only for this error

    named = (f'"{one}"' if "[" in one else one for one in packages)
    return f"{quote(sys.executable)} -m pip install {' '.join(named)}"


class ModelRefused(Refused):
    """A model, or its endpoint, does not give what was asked for. Asking the same again is of no use."""


class WrongTokenizer(Refused):
    """The installed tokenizer does not give the tokens it is known for. Reinstall splintr-rs."""


class WrongEmbedder(Refused):
    """The installed embedder does not give the vectors it is known for."""


class UnsafeStore(Refused):
    """A store there could lose or corrupt what it acknowledges."""


class NotAStore(Refused):
    """The file is not a Limpet store. Nothing was changed in it."""


class NewerStore(Refused):
    """A newer Limpet wrote this. In an up-to-date clone of Limpet: pip install ."""


class NoBackup(Refused):
    """The store has no file of its own that could be copied."""


class DamagedFile(Refused):
    """The file to import is cut off, was altered, or is not what it says. Nothing was written."""


class Unavailable(Error):
    """The store can't take it now. Retry later; with the same key it has one effect."""


class StoreBusy(Unavailable):
    """Another process holds the store's turn and does not pass it on."""


class StoreFull(Unavailable):
    """The disk is full. Nothing was written; free some space and retry."""


class StoreReadOnly(Unavailable):
    """The store can't be written. Check the permissions of the file and its folder."""


class Corrupt(Error):
    """Stored data is not what was written. `limpet verify` says how far the damage goes."""


class EventsLost(Corrupt):
    """The server has lost events that it had acknowledged. This is told once; then what it has counts."""
