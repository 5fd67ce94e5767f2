"""What all session handles show: the state, its fields, and the messages.

Messages are a lazy sequence over the log: nothing is read before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, overload

import msgspec

from limpet import errors, limits
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState, SessionStatus, WindowPolicy
from limpet.core.values.validation import EMPTY, Json, thaw
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import messages_of, session_stream, truncated_stream_error

T = TypeVar("T")


class MessageReader:
    """Reads the messages of one session as it was at one state."""

    def __init__(self, engine: Engine, tenant: str, state: SessionState) -> None:
        self._engine = engine
        self._tenant = tenant
        self._state = state
        self._stream = session_stream(state.id)

    @property
    def session_id(self) -> str:
        """Which session it reads."""
        return self._state.id

    def count(self) -> int:
        """Return how many there are."""
        return self._state.message_count

    def at(self, index: int) -> Message:
        """Return the message at an index, counted from 0 or back from the end; raise IndexError if there is none."""
        place = index + self.count() if index < 0 else index
        if not 0 <= place < self.count():
            raise IndexError("the session has no message at that index")
        found, _ = self.chunk(self._version_before(place), 1)
        return found[0]

    def _version_before(self, index: int) -> int:
        """Return the version just before the message at an index."""
        self._engine.check()
        if index <= 0:
            return self._state.began
        ordinal = self._state.ordinal_began + index + 1
        return (
            self._engine.store.find_ordinal(self._tenant, self._stream, ordinal, at=self._state.version)
            or self._state.version + 1
        ) - 1

    def chunk(self, after: int, limit: int) -> tuple[list[Message], int]:
        """Return up to `limit` messages after a version, and the version to go on from."""
        self._engine.check()
        until, found = self._state.version, list[Message]()
        while after < until and len(found) < limit:
            stored = self._engine.store.read(
                self._tenant, self._stream, after=after, until=until, limit=limit, at=until
            )
            if not stored:
                raise truncated_stream_error(self._engine.store, self._tenant, self._stream, until)
            added = [event for event in stored if event.kind == MessageAddedEvent.kind]
            wanted = added[: limit - len(found)]
            found += messages_of(self._engine.store, self._tenant, wanted)
            after = (wanted if len(found) == limit else stored)[-1].version
        return found, after

    def slice(self, index: slice) -> list[Message]:
        """Return a slice, reading only what lies between its ends."""
        indices = range(self.count())[index]
        if not indices:
            return []
        low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        found, _ = self.chunk(self._version_before(low), high - low + 1)
        return [found[i - low] for i in indices]

    def truncated_error(self) -> errors.Error:
        """Return the error for a session whose log has fewer messages than its state."""
        return truncated_stream_error(self._engine.store, self._tenant, self._stream, self._state.version)

    def start_version(self) -> int:
        """Return the version to read the first chunk after."""
        return self._state.began


ReaderRecovery = Callable[[str, errors.Corrupt], MessageReader]
"""Recovers a session that a reader found damaged, and gives the reader of what there is then; raises if nothing can be done."""


class Messages(Sequence[Message]):
    """The messages of a session as it was when this was asked for: len, index, slice, iterate.

    With `again`, a read that meets damage before it has given anything is done once more on what was recovered. Of
    one that is under way, what comes next may be another session's: it raises Corrupt, and the next one is done there.
    """

    def __init__(self, reader: MessageReader, again: ReaderRecovery | None = None) -> None:
        self._reader = reader
        self._recover = again

    def _read_or_recover(self, look: Callable[[MessageReader], T]) -> T:
        try:
            return look(self._reader)
        except errors.Corrupt as error:
            if self._recover is None:
                raise
            self._reader = self._recover(self._reader.session_id, error)
        return look(self._reader)

    def __len__(self) -> int:
        return self._reader.count()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return self._read_or_recover(lambda reader: reader.slice(index))
        return self._read_or_recover(lambda reader: reader.at(index))

    def __iter__(self) -> Iterator[Message]:
        if not len(self):
            return
        found, after = self._read_or_recover(lambda reader: reader.chunk(reader.start_version(), limits.READ_CHUNK))
        reader, remaining = self._reader, len(self)
        while True:
            if not found:
                raise reader.truncated_error()
            yield from found
            remaining -= len(found)
            if not remaining:
                return
            found, after = self._next_chunk(reader, after, min(remaining, limits.READ_CHUNK))

    def _next_chunk(self, reader: MessageReader, after: int, limit: int) -> tuple[list[Message], int]:
        try:
            return reader.chunk(after, limit)
        except errors.Corrupt as error:
            if self._recover is None:
                raise
            self._reader = self._recover(reader.session_id, error)
            if self._reader.session_id != reader.session_id:
                error.hint = f"What can be read of it is in {self._reader.session_id}: read again, or load it again."
                error.facts["recovery"] = self._reader.session_id
                raise
        return self._reader.chunk(after, limit)

    def __repr__(self) -> str:
        return f"<Messages {len(self):,}>"


class PendingCall(msgspec.Struct, frozen=True):
    """A tool call without a result: who asked for it and how, so that it can be answered or retried."""

    session_id: str
    message_id: str
    call_id: str
    name: str
    args: dict[str, Json] = dict(EMPTY)


class SessionView:
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

    def _reader(self) -> MessageReader:
        return self._reader_of(self.state)

    def _reader_of(self, state: SessionState) -> MessageReader:
        return MessageReader(self._engine, self._tenant, state)

    def _read_or_recover(self, look: Callable[[SessionState], T]) -> T:
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


def read_pending_calls(reader: MessageReader, state: SessionState) -> list[PendingCall]:
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
