"""What every handle on a session shows, blocking or async: the frozen state, and views of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from limpet.core.values.json_values import EMPTY, Json, thaw
from limpet.core.values.session_state import SessionState, SessionStatus, WindowPolicy
from limpet.engine.messages import Reader
from limpet.runtime.engine import Engine

T = TypeVar("T")


class PendingCall(msgspec.Struct, frozen=True):
    """A tool call without a result: who asked for it and how, so that it can be answered or retried."""

    session_id: str
    message_id: str
    call_id: str
    name: str
    args: dict[str, Json] = dict(EMPTY)


class Handle:
    """A light handle on an immutable state. Verbs of the subclasses move it to the next state."""

    __slots__ = ("_engine", "_state", "_tenant")

    def __init__(self, engine: Engine, tenant: str, state: SessionState) -> None:
        self._engine = engine
        self._tenant = tenant
        self._state = state

    @property
    def state(self) -> SessionState:
        """The session's state as this handle last saw it: a frozen value."""
        return self._state

    @property
    def id(self) -> str:
        """The session's id; after a continuation, that of the session where the conversation is now."""
        return self.state.id

    @property
    def user_id(self) -> str | None:
        """Whose session it is."""
        return self.state.user_id

    @property
    def title(self) -> str | None:
        """Its title, if it was given one."""
        return self.state.title

    @property
    def metadata(self) -> dict[str, Json]:
        """A copy of its metadata, with message_count and the links to other sessions."""
        return thaw(self.state.full_metadata())

    @property
    def status(self) -> SessionStatus:
        """Active or ended."""
        return self.state.status

    @property
    def version(self) -> int:
        """How many events it has; give it as expected_version to write only if nothing has changed."""
        return self.state.version

    @property
    def generation(self) -> int:
        """How often it was reset."""
        return self.state.generation

    @property
    def created_at(self) -> str:
        """When this generation of it began, ISO 8601 UTC."""
        return self.state.created_at

    @property
    def last_active(self) -> str:
        """When it last changed, ISO 8601 UTC."""
        return self.state.last_active

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return self.state.message_count

    @property
    def total_tokens(self) -> int:
        """Tokens of its messages: counts that were given, estimates where none was."""
        return self.state.tokens

    @property
    def policy(self) -> WindowPolicy | None:
        """How its windows are made and how they shrink, if that was settled."""
        return self.state.policy

    def _reader(self) -> Reader:
        return self._reader_of(self.state)

    def _reader_of(self, state: SessionState) -> Reader:
        return Reader(self._engine, self._tenant, state)

    def _looked(self, look: Callable[[SessionState], T]) -> T:
        """Return what a look at the session finds. Every look at the log that a blocking verb takes goes this way."""
        return look(self.state)

    def __len__(self) -> int:
        return self.message_count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        state = self._state
        return (
            f"<{type(self).__name__} {state.id} {state.message_count:,} messages,"
            f" {state.tokens:,} tokens, v{state.version}>"
        )


def pending(reader: Reader, state: SessionState) -> list[PendingCall]:
    """Return the open calls with their arguments, read from the message that made them."""
    if not state.open_calls:
        return []
    waiting = {call.call_id for call in state.open_calls}
    found, _ = reader.chunk(state.group - 1, 1)
    message = found[0]
    return [
        PendingCall(state.id, message.id, call.id, call.name, thaw(call.args))
        for call in message.tool_calls
        if call.id in waiting
    ]
