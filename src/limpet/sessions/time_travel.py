"""Sessions at earlier versions as read-only handles; a tenant's state at a log position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, cast

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules as rules
from limpet.core.values.frame_state import Frame, TreeState
from limpet.core.values.messages import Message, checked_id
from limpet.core.values.session_state import SessionState, WindowPolicy
from limpet.core.values.validation import Json
from limpet.core.windows.pack import ContextPack
from limpet.core.windows.window import Window
from limpet.frames import queries
from limpet.frames.queries import FrameDifference
from limpet.runtime import event_reader
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX, session_stream
from limpet.sessions.requests import UNKNOWN_OUTCOME, MessageLike
from limpet.sessions.session_view import MessageReader, Messages, PendingCall, read_pending_calls
from limpet.sessions.windows import RecordedWindowVerbs

if TYPE_CHECKING:
    from limpet.sessions.manager import Sessions
    from limpet.sessions.session import Session
    from limpet.sessions.windows import Summarizer


def refuse_change(*_: object) -> NoReturn:
    """Refuse to change the past."""
    raise errors.PastIsReadOnly(
        "a session as it was can't be changed.", hint="Go on from there in a fork: past.fork()."
    )


def state_at_version(engine: Engine, tenant: str, state: SessionState, version: int) -> SessionState:
    """Return what a session was at a version; raise NotFound if it was not there."""
    engine.check()
    if type(cast("object", version)) is not int or version < 1:
        raise errors.InvalidRequest("a version is a whole number from 1 on.")
    return event_reader.fold_at_version(engine.store, engine.states, tenant, state, version)


def state_at_position(engine: Engine, tenant: str, session_id: str, position: int) -> SessionState:
    """Return what a session was when the log was at a position; raise SessionNotFound if it was not there."""
    engine.check()
    named = checked_id("a session's id", session_id)
    state = rules.existing_state(engine.states.current(tenant, named), named)
    version = engine.store.version(tenant, session_stream(named), position=position)
    try:
        return state_at_version(engine, tenant, state, version)
    except (errors.NotFound, errors.InvalidRequest) as error:
        raise errors.SessionNotFound(
            f"there was no session {named!r} at position {position:,}.", facts={"session": named, "position": position}
        ) from error


def checked_position(position: int) -> int:
    """Return a position of the log; raise InvalidRequest if it is none."""
    if type(cast("object", position)) is not int or position < 0:
        raise errors.InvalidRequest("a position of the log is a whole number, 0 or more.")
    return position


class PastSession(RecordedWindowVerbs):
    """A session as it was at one of its versions. It is read as any other, and changed never."""

    __slots__ = ("_manager",)

    def __init__(self, manager: Sessions, engine: Engine, tenant: str, state: SessionState) -> None:
        super().__init__(engine, tenant, state)
        self._manager = manager

    @property
    def messages(self) -> Messages:
        """Its messages, read from the store as they are asked for."""
        return Messages(self._reader())

    def pending_calls(self) -> list[PendingCall]:
        """Return the tool calls that had no result yet."""
        return read_pending_calls(self._reader(), self.state)

    def fork(
        self,
        *,
        new_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> Session:
        """Begin a session that goes on from here; nothing is copied."""
        return self._manager.fork_version(self.id, self.version, new_id=new_id, title=title, metadata=metadata, key=key)

    def set_policy(self, policy: WindowPolicy | None) -> NoReturn:
        """Refuse: what was can't be changed."""
        refuse_change(policy)

    def trimmed(
        self,
        budget: int | None = None,
        *,
        model: str | None = None,
        counter: str | None = None,
        summary: str | None = None,
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        refuse_change(budget, model, counter, summary)

    def summarize(self, summarizer: Summarizer | None = None, *, language: str | None = None) -> NoReturn:
        """Refuse: what was can't be changed."""
        refuse_change(summarizer, language)

    def add_message(
        self,
        message: MessageLike,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        refuse_change(message, key, expected_version, window, usage)

    def add_messages(
        self,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        refuse_change(messages, key, expected_version, window, usage)

    def close_pending_calls(self, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME) -> NoReturn:
        """Refuse: what was can't be changed."""
        refuse_change(call_ids, outcome)

    def rewind(self, at: str | int, *, key: str | None = None, expected_version: int | None = None) -> NoReturn:
        """Refuse: what was can't be changed."""
        refuse_change(at, key, expected_version)


class Difference(msgspec.Struct, frozen=True):
    """Messages by which a conversation differs at two moments, in order.

    `removed` are those of the first that the second has no more, `added` those that only the second has.
    """

    removed: tuple[Message, ...]
    added: tuple[Message, ...]


def message_difference(
    engine: Engine, tenant: str, before: SessionState | None, after: SessionState | None
) -> Difference:
    """Return how a session's messages differ in two of its states; None: it was not there."""
    common = _common_messages(engine, tenant, before, after) if before and after else 0
    gone = MessageReader(engine, tenant, before).slice(slice(common, None)) if before else []
    new = MessageReader(engine, tenant, after).slice(slice(common, None)) if after else []
    return Difference(tuple(gone), tuple(new))


def _common_messages(engine: Engine, tenant: str, before: SessionState, after: SessionState) -> int:
    """Return how many messages two states of a session begin with alike, which are the same events."""
    if before.began != after.began:
        return 0
    seek, stream = engine.store.find_ordinal, session_stream(before.id)
    low, high = 0, min(before.message_count, after.message_count)
    while low < high:
        middle = (low + high + 1) // 2
        ordinal = before.ordinal_began + middle
        one = seek(tenant, stream, ordinal, at=before.version)
        if one == seek(tenant, stream, ordinal, at=after.version):
            low = middle
        else:
            high = middle - 1
    return low


class Between:
    """What happened between two moments of one log."""

    def __init__(self, engine: Engine, tenant: str, first: int, last: int) -> None:
        self._engine = engine
        self._tenant = tenant
        self._first = first
        self._last = last

    def sessions(self) -> list[str]:
        """Return the ids of sessions that something happened in, in the order of their first event."""
        self._engine.check()
        after, until = sorted((self._first, self._last))
        found: dict[str, None] = {}
        while page := self._engine.store.feed(self._tenant, after=after, limit=limits.READ_CHUNK):
            for event in page:
                if event.position <= until and event.stream.startswith(SESSION_STREAM_PREFIX):
                    found[event.stream.removeprefix(SESSION_STREAM_PREFIX)] = None
            after = page[-1].position
            if after >= until:
                break
        return list(found)

    def session(self, session_id: str) -> Difference:
        """Return the messages by which a session differs; raise SessionNotFound if it was never there."""
        before, after = (self._state_at(session_id, self._first), self._state_at(session_id, self._last))
        if before is None and after is None:
            state_at_position(self._engine, self._tenant, session_id, self._last)
        return message_difference(self._engine, self._tenant, before, after)

    def frame(self, frame_id: str) -> FrameDifference:
        """Return a frame at both moments; raise FrameNotFound if it was there at neither."""
        return queries.frame_difference(self._engine, self._tenant, frame_id, self._first, self._last)

    def _state_at(self, session_id: str, position: int) -> SessionState | None:
        try:
            return state_at_position(self._engine, self._tenant, session_id, position)
        except errors.SessionNotFound:
            return None


class Moment:
    """The tenant's state when its log was at a position: everything as it was then, read-only."""

    __slots__ = ("_engine", "_manager", "_tenant", "position")

    def __init__(self, manager: Sessions, engine: Engine, tenant: str, position: int) -> None:
        self._manager = manager
        self._engine = engine
        self._tenant = tenant
        self.position = checked_position(position)

    def session(self, session_id: str) -> PastSession:
        """Return a session as it was; raise SessionNotFound if it was not there, or was deleted since."""
        state = state_at_position(self._engine, self._tenant, session_id, self.position)
        return PastSession(self._manager, self._engine, self._tenant, state)

    def tree(self, frame_id: str) -> TreeState:
        """Return the open frames of a frame's tree as they were; raise FrameNotFound if it was not there."""
        return queries.tree_at(self._engine, self._tenant, frame_id, self.position).tree

    def frame(self, frame_id: str) -> Frame:
        """Return a frame as it was, open or closed; raise FrameNotFound if it was not there."""
        return queries.frame_at(self._engine, self._tenant, frame_id, self.position)

    def pack(self, frame_id: str) -> ContextPack:
        """Return what the model of a frame had seen last by then; raise NotFound if no pack was recorded."""
        return queries.pack_at(self._engine, self._tenant, frame_id, self.position)

    def diff(self, other: Moment) -> Between:
        """Return what differs from here to another moment of the same log, be it later or earlier."""
        if not isinstance(cast("object", other), Moment):
            raise errors.InvalidRequest(
                f"a moment differs from a Moment, not {type(other).__name__}.",
                hint="For example lp.events.at(position).",
            )
        return Between(self._engine, self._tenant, self.position, other.position)

    def __repr__(self) -> str:
        return f"<Moment {self.position:,}>"
