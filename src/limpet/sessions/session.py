"""The handle on one session for blocking callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from limpet import errors
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import SessionState
from limpet.core.values.validation import Json
from limpet.core.windows.window import Window
from limpet.runtime.engine import Engine
from limpet.sessions import session_view
from limpet.sessions.requests import UNKNOWN_OUTCOME, MessageLike
from limpet.sessions.session_view import MessageReader, Messages, PendingCall
from limpet.sessions.time_travel import PastSession, state_at_version
from limpet.sessions.windows import RecordedWindowVerbs

if TYPE_CHECKING:
    from limpet.sessions.manager import Sessions

T = TypeVar("T")


def checked_session(value: T | None, kind: type[T]) -> T | None:
    """Return a handle that was handed in, or None; raise InvalidRequest for anything else."""
    if value is not None and not isinstance(cast("object", value), kind):
        raise errors.InvalidRequest(
            f"a session is handed in, not {type(value).__name__}.", hint="Get it with get_session."
        )
    return value


StateRecovery = Callable[[str, errors.Corrupt], SessionState]
"""Recovers a session in which damage was met; returns its state, or that of its recovery session. Raises if it is not damaged."""


class Session(RecordedWindowVerbs):
    """A handle on one session. `add_message` appends and moves the handle to the new state.

    One that `recover` was given for has what its reads find damaged recovered, and moves to the state of what there
    is then.
    """

    __slots__ = ("_has_deferred_writes", "_manager", "_recover")

    def __init__(
        self, manager: Sessions, engine: Engine, tenant: str, state: SessionState, recover: StateRecovery | None = None
    ) -> None:
        super().__init__(engine, tenant, state)
        self._manager = manager
        self._has_deferred_writes = False
        self._recover = recover

    def _read_or_recover(self, look: Callable[[SessionState], T]) -> T:
        try:
            return look(self.state)
        except errors.Corrupt as error:
            if self._recover is None:
                raise
            self._state = self._recover(self._state.id, error)
        return look(self._state)

    def _recovered_reader(self, session_id: str, error: errors.Corrupt) -> MessageReader:
        assert self._recover is not None, "given along only where there is one"
        self._state = self._recover(session_id, error)
        return self._reader()

    @property
    def state(self) -> SessionState:
        """The session's state as this handle last saw it, its own deferred writes included."""
        if self._has_deferred_writes:
            self._state = self._manager.state_after_writes(self._state)
            self._has_deferred_writes = False
        return self._state

    @property
    def last_known_id(self) -> str:
        """The id without waiting for deferred writes."""
        return self._state.id

    @property
    def messages(self) -> Messages:
        """Its messages, read from the store as they are asked for."""
        return Messages(self._reader(), self._recovered_reader if self._recover else None)

    def add_message(
        self,
        message: MessageLike,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> Session:
        """Append a message: a Message or a provider's dict. It is on disk when this returns.

        `window` is what the model had seen that said it; `window_of` makes it again, at any time. `usage`
        is how many input tokens the provider reported for it: an estimate is corrected by that.
        Raises a kind of InvalidMessage or PairingError, SessionEnded, DuplicateMessage, StaleVersion.
        """
        return self.add_messages((message,), key=key, expected_version=expected_version, window=window, usage=usage)

    def add_messages(
        self,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> Session:
        """Append messages in order, all or none, in one commit."""
        after = self._manager.append_for_handle(
            self, messages, key=key, expected_version=expected_version, window=window, usage=usage
        )
        if after is None:
            self._has_deferred_writes = True
        else:
            self._state = after
        return self

    def fork(
        self,
        at: str | int | None = None,
        *,
        new_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> Session:
        """Begin a session that is what this one was at a message (its id or number; None: the last)."""
        return self._manager.fork_session(self.id, at, new_id=new_id, title=title, metadata=metadata, key=key)

    def rewind(self, at: str | int, *, key: str | None = None, expected_version: int | None = None) -> Session:
        """Go back to a message (its id or number): later ones leave the conversation."""
        self._state = self._manager.rewind_session(self.id, at, key=key, expected_version=expected_version).state
        return self

    def at(self, version: int) -> PastSession:
        """Return the session as it was at one of its versions, rewound since or not; read-only."""
        there = state_at_version(self._engine, self._tenant, self.state, version)
        return PastSession(self._manager, self._engine, self._tenant, there)

    def reload(self) -> Session:
        """Move the handle to the session's present state; raise SessionNotFound if it was deleted."""
        self._state = self._manager.get_session(self.id).state
        return self

    def get_messages_by_category(self, category: MessageCategory) -> list[Message]:
        """Return its messages of one category, in order."""
        return [message for message in self.messages if message.category is category]

    def get_formatted_history(self) -> list[dict[str, Json]]:
        """Return its messages as {"role", "content"} dicts, in order."""
        return [message.to_api_format() for message in self.messages]

    def pending_calls(self) -> list[PendingCall]:
        """Return the tool calls that have no result yet, wherever the conversation is now."""
        return self._read_or_recover(lambda state: self._read_pending_calls(self._manager.conversation_end(state)))

    def _read_pending_calls(self, last: SessionState) -> list[PendingCall]:
        return session_view.read_pending_calls(self._reader_of(last), last)

    def close_pending_calls(self, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME) -> Session:
        """Close open calls (None: all) with an error result that says the outcome is unknown."""
        self._state = self._manager.close_pending_calls(self.id, call_ids=call_ids, outcome=outcome).state
        return self
