"""A tenant's state when its log was at a position, and what differs between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules as rules
from limpet.core.values.frame_state import Frame, TreeState
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState
from limpet.core.values.validation import checked_id, checked_instance, checked_int
from limpet.core.windows.pack import ContextPack
from limpet.frames import queries
from limpet.frames.queries import FrameDifference
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX, session_stream
from limpet.sessions.session import PastSession
from limpet.stores.port import Store

if TYPE_CHECKING:
    from limpet.sessions.manager import SessionService


def _past_session(service: SessionService, session_id: str, position: int) -> PastSession:
    """Return a session as it was when the log was at a position; raise SessionNotFound if it was not there."""
    service.engine.check()
    named = checked_id("a session's id", session_id)
    state = rules.existing_state(service.engine.states.current(service.tenant, named), named)
    version = service.engine.store.version(service.tenant, session_stream(named), position=position)
    try:
        return service.past_session(state, version)
    except (errors.NotFound, errors.InvalidRequest) as error:
        raise errors.SessionNotFound(
            f"there was no session {named!r} at position {position:,}.", facts={"session": named, "position": position}
        ) from error


class Difference(msgspec.Struct, frozen=True):
    """Messages that only the first of two moments has (`removed`), or only the second (`added`), in order."""

    removed: tuple[Message, ...]
    added: tuple[Message, ...]


def _common_messages(store: Store, tenant: str, before: SessionState, after: SessionState) -> int:
    """Return how many messages two states of a session begin with alike, which are the same events."""
    if before.began != after.began:
        return 0
    seek, stream = store.find_ordinal, session_stream(before.id)
    low, high = 0, min(before.message_count, after.message_count)
    while low < high:
        middle = (low + high + 1) // 2
        ordinal = before.ordinal_began + middle
        if seek(tenant, stream, ordinal, at=before.version) == seek(tenant, stream, ordinal, at=after.version):
            low = middle
        else:
            high = middle - 1
    return low


class Between:
    """What happened between two moments of one log."""

    def __init__(self, service: SessionService, first: int, last: int) -> None:
        self._service = service
        self._first = first
        self._last = last

    def sessions(self) -> list[str]:
        """Return the ids of sessions that something happened in, in the order of their first event."""
        service = self._service
        service.engine.check()
        after, until = sorted((self._first, self._last))
        found: dict[str, None] = {}
        while page := service.engine.store.feed(service.tenant, after=after, limit=limits.READ_CHUNK):
            for event in page:
                if event.position <= until and event.stream.startswith(SESSION_STREAM_PREFIX):
                    found[event.stream.removeprefix(SESSION_STREAM_PREFIX)] = None
            after = page[-1].position
            if after >= until:
                break
        return list(found)

    def session(self, session_id: str) -> Difference:
        """Return the messages by which a session differs; raise SessionNotFound if it was never there."""
        before, after = self._session_at(session_id, self._first), self._session_at(session_id, self._last)
        if before is None and after is None:
            _past_session(self._service, session_id, self._last)
        common = 0
        if before and after:
            common = _common_messages(self._service.engine.store, self._service.tenant, before.state, after.state)
        return Difference(
            removed=tuple(before.messages[common:]) if before else (),
            added=tuple(after.messages[common:]) if after else (),
        )

    def frame(self, frame_id: str) -> FrameDifference:
        """Return a frame at both moments; raise FrameNotFound if it was there at neither."""
        return queries.frame_difference(self._service.engine, self._service.tenant, frame_id, self._first, self._last)

    def _session_at(self, session_id: str, position: int) -> PastSession | None:
        try:
            return _past_session(self._service, session_id, position)
        except errors.SessionNotFound:
            return None


class Moment:
    """The tenant's state when its log was at a position: everything as it was then, read-only."""

    __slots__ = ("_service", "position")

    def __init__(self, service: SessionService, position: int) -> None:
        self._service = service
        self.position = checked_int("a position of the log", position)

    def session(self, session_id: str) -> PastSession:
        """Return a session as it was; raise SessionNotFound if it was not there, or was deleted since."""
        return _past_session(self._service, session_id, self.position)

    def tree(self, frame_id: str) -> TreeState:
        """Return the open frames of a frame's tree as they were; raise FrameNotFound if it was not there."""
        return queries.tree_at(self._service.engine, self._service.tenant, frame_id, self.position).tree

    def frame(self, frame_id: str) -> Frame:
        """Return a frame as it was, open or closed; raise FrameNotFound if it was not there."""
        return queries.frame_at(self._service.engine, self._service.tenant, frame_id, self.position)

    def pack(self, frame_id: str) -> ContextPack:
        """Return what the model of a frame had seen last by then; raise NotFound if no pack was recorded."""
        return queries.pack_at(self._service.engine, self._service.tenant, frame_id, self.position)

    def diff(self, other: Moment) -> Between:
        """Return what differs from here to another moment of the same log, be it later or earlier."""
        checked_instance("the other moment", other, Moment, hint="For example lp.events.at(position).")
        return Between(self._service, self.position, other.position)

    def __repr__(self) -> str:
        return f"<Moment {self.position:,}>"
