"""Sessions for async callers: the verbs of `sessions.manager`, awaited.

Writes go through the commit queue and wake the awaiting task. Reads, which may touch the disk, run
in a thread. Cancelling a task does not undo what it submitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from limpet import limits
from limpet.admin.async_log import AsyncMessages, AsyncPastSession
from limpet.core.values import ids
from limpet.core.values.commands import CommandRequest
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import EndReason, SessionState, WindowPolicy
from limpet.core.values.validation import Json
from limpet.core.windows.window import Window
from limpet.runtime.asyncio_bridge import AsyncioChannel
from limpet.runtime.commit_queue import CommandResult
from limpet.runtime.engine import Engine
from limpet.sessions import time_travel
from limpet.sessions.manager import Sessions
from limpet.sessions.requests import UNKNOWN_OUTCOME, MessageLike, Page, SessionRequests, Settings, When
from limpet.sessions.session import Session, checked_session
from limpet.sessions.session_view import PendingCall
from limpet.sessions.windows import AsyncRecordedWindowVerbs

if TYPE_CHECKING:
    from limpet.memory.profile import Bootstrap

T = TypeVar("T")


class AsyncSessions:
    """Creates, finds, changes and ends sessions of one tenant. The contract is that of Sessions."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        factory: ids.Factory = ids.SYSTEM_FACTORY,
        bootstrap: Bootstrap | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._requests = SessionRequests(settings, factory)
        self._blocking = Sessions(engine, settings, factory, bootstrap)
        self._bootstraps = bootstrap is not None
        self._loops: dict[int, AsyncioChannel] = {}
        self.max_messages_per_session = settings.max_messages_per_session

    @property
    def blocking(self) -> Sessions:
        """The same sessions for blocking callers, who run in a thread here."""
        return self._blocking

    @staticmethod
    async def in_thread(work: Callable[[], T]) -> T:
        """Run something that blocks in a thread."""
        return await asyncio.to_thread(work)

    async def run(self, request: CommandRequest) -> AsyncSession:
        """Submit a request and await its answer."""
        return self._handle((await self._submit(request)).state)

    def _submit(self, request: CommandRequest) -> asyncio.Future[CommandResult]:
        loop = asyncio.get_running_loop()
        channel = self._loops.get(id(loop))
        if channel is None:
            self._loops = {key: one for key, one in self._loops.items() if not one.loop.is_closed()}
            channel = self._loops[id(loop)] = AsyncioChannel(loop, self._engine)
        return channel.submit(request)

    async def _begin(self, request: CommandRequest) -> AsyncSession:
        if self._bootstraps:
            request = await self.in_thread(lambda: self._blocking.with_profile(request))
        return await self.run(request)

    def _handle(self, state: SessionState) -> AsyncSession:
        return AsyncSession(self, self._engine, self._settings.tenant, state)

    def _async_handle(self, session: Session) -> AsyncSession:
        return self._handle(session.state)

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        system: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
        policy: WindowPolicy | None = None,
    ) -> AsyncSession:
        """Begin a session. `system` is its first message. Raises DuplicateSession if the id is taken."""
        return await self._begin(
            self._requests.create(
                session_id,
                user_id=user_id,
                system=system,
                title=title,
                metadata=metadata,
                or_get=False,
                key=key,
                policy=policy,
            )
        )

    async def get_or_create_session(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        system: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        policy: WindowPolicy | None = None,
    ) -> AsyncSession:
        """Return the session by that id, ready for messages; begin it, or its next generation, if need be."""
        return await self._begin(
            self._requests.create(
                session_id,
                user_id=user_id,
                system=system,
                title=title,
                metadata=metadata,
                or_get=True,
                key=None,
                policy=policy,
            )
        )

    async def load_session(self, session_id: str) -> AsyncSession | None:
        """Return the session by that id; None if there is none. Raises Corrupt if its data is damaged."""
        found = await self.in_thread(lambda: self._blocking.load_session(session_id))
        return self._async_handle(found) if found is not None else None

    async def get_session(self, session_id: str) -> AsyncSession:
        """Return the session by that id; raise SessionNotFound if there is none."""
        return self._async_handle(await self.in_thread(lambda: self._blocking.get_session(session_id)))

    async def update_session(
        self,
        session_id: str,
        *,
        title: str | None | msgspec.UnsetType = msgspec.UNSET,
        metadata: Mapping[str, Json] | None = None,
        drop_metadata: Sequence[str] = (),
        key: str | None = None,
        expected_version: int | None = None,
        policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET,
    ) -> AsyncSession:
        """Set the title, set keys of the metadata, remove others. What is not named stays."""
        return await self.run(
            self._requests.update(
                session_id,
                title=title,
                metadata=metadata,
                drop_metadata=drop_metadata,
                key=key,
                policy=policy,
                expected_version=expected_version,
            )
        )

    async def list_sessions(
        self,
        limit: int = 100,
        offset: int = 0,
        *,
        cursor: str | None = None,
        user_id: str | None = None,
        status: str | None = None,
        active_after: When | None = None,
        active_before: When | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Page:
        """Return a page of sessions, last active first. `.next_cursor` of the page gets the next one."""
        return await self.in_thread(
            lambda: self._blocking.list_sessions(
                limit,
                offset,
                cursor=cursor,
                user_id=user_id,
                status=status,
                active_after=active_after,
                active_before=active_before,
                metadata=metadata,
            )
        )

    async def add_messages(
        self,
        session_id: str,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
    ) -> AsyncSession:
        """Append messages to the session, or to where its conversation goes on: all of them or none."""
        return await self.run(self._requests.add(session_id, messages, key=key, expected_version=expected_version))

    def append_for_handle(
        self,
        session_id: str,
        messages: Iterable[MessageLike],
        *,
        key: str | None,
        expected_version: int | None,
        window: Window | None,
        usage: int | None,
    ) -> asyncio.Future[CommandResult]:
        """Append for a handle, which awaits the answer itself: a coroutine in between would only cost time."""
        return self._submit(
            self._requests.add(
                session_id, messages, key=key, expected_version=expected_version, window=window, usage=usage
            )
        )

    async def save_session(self, session: AsyncSession | None = None) -> bool:
        """Whether there is a session; what async verbs return is on disk already."""
        self._engine.check()
        return checked_session(session, AsyncSession) is not None

    async def end_session(self, session_id: str, *, key: str | None = None) -> AsyncSession:
        """End the session. Its history stays readable; messages are no longer taken."""
        return await self.run(self._requests.end(session_id, EndReason.ENDED, key=key))

    async def reset_session(
        self, session_id: str, *, system: str | None = None, key: str | None = None
    ) -> AsyncSession:
        """End the present generation and begin the next, empty, under the same id."""
        return await self._begin(self._requests.reset(session_id, system=system, key=key))

    async def fork_session(
        self,
        session_id: str,
        at: str | int | None = None,
        *,
        new_id: str | None = None,
        user_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> AsyncSession:
        """Begin a session that is what this one was at a message. Nothing is copied."""
        request = self._requests.fork(
            session_id, at, new_id=new_id, user_id=user_id, title=title, metadata=metadata, key=key
        )
        return await self.run(await self.in_thread(lambda: self._blocking.prefetch_source_state(request)))

    async def rewind_session(
        self, session_id: str, at: str | int, *, key: str | None = None, expected_version: int | None = None
    ) -> AsyncSession:
        """Take the session back to a message: later ones leave the conversation. Nothing is deleted."""
        request = self._requests.rewind(session_id, at, key=key, expected_version=expected_version)
        return await self.run(await self.in_thread(lambda: self._blocking.prefetch_source_state(request)))

    async def fork_past(self, fork: Callable[[Sessions], Session]) -> AsyncSession:
        """Fork for a handle on a session as it was."""
        return self._async_handle(await self.in_thread(lambda: fork(self._blocking)))

    async def delete_session(self, session_id: str, *, key: str | None = None) -> bool:
        """Delete the session: no verb finds it any more. False if there was none."""
        return await self.in_thread(lambda: self._blocking.delete_session(session_id, key=key))

    async def expire(self, now: When | None = None, *, idle_s: float = limits.IDLE_TIMEOUT_S) -> list[str]:
        """End every session that nobody touched for `idle_s` seconds; return their ids."""
        return await self.in_thread(lambda: self._blocking.expire(now, idle_s=idle_s))

    def check_session_boundary(self, session: AsyncSession) -> bool:
        """Whether the session has reached its number of messages."""
        return self._blocking.is_at_boundary(session.state)

    async def create_continuation_session(
        self, source_session: AsyncSession, *, key: str | None = None
    ) -> AsyncSession:
        """Go on in a new session that begins with the system and context messages of the source."""
        return await self.run(self._requests.continue_(source_session.id, key=key))

    async def pending_calls(self, session_id: str) -> list[PendingCall]:
        """Return the tool calls of the session that have no result yet."""
        return await self.in_thread(lambda: self._blocking.pending_calls(session_id))

    async def close_pending_calls(
        self, session_id: str, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME
    ) -> AsyncSession:
        """Close open calls (None: all) with an error result that says so; the session goes on."""
        closed = await self.in_thread(
            lambda: self._blocking.close_pending_calls(session_id, call_ids=call_ids, outcome=outcome)
        )
        return self._async_handle(closed)

    async def session_chain(self, session_id: str) -> list[AsyncSession]:
        """Return every session of the conversation, first to last, each once."""
        chain = await self.in_thread(lambda: self._blocking.session_chain(session_id))
        return [self._async_handle(session) for session in chain]

    async def chain_tokens(self, session_id: str) -> int:
        """Return the tokens of the whole conversation; what was carried over counts once."""
        return await self.in_thread(lambda: self._blocking.chain_tokens(session_id))


class AsyncSession(AsyncRecordedWindowVerbs):
    """A handle on one session, for async callers."""

    __slots__ = ("_manager",)

    def __init__(self, manager: AsyncSessions, engine: Engine, tenant: str, state: SessionState) -> None:
        super().__init__(engine, tenant, state)
        self._manager = manager

    @property
    def messages(self) -> AsyncMessages:
        """Its messages, read from the store as they are asked for."""
        return AsyncMessages(self._reader())

    async def add_message(
        self,
        message: MessageLike,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> AsyncSession:
        """Append a message: a Message or a provider's dict. It is on disk when this returns."""
        answer = await self._manager.append_for_handle(
            self._state.id, (message,), key=key, expected_version=expected_version, window=window, usage=usage
        )  # fmt: skip
        self._state = answer.state
        return self

    async def add_messages(
        self,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> AsyncSession:
        """Append messages in order, all or none, in one commit."""
        answer = await self._manager.append_for_handle(
            self._state.id, messages, key=key, expected_version=expected_version, window=window, usage=usage
        )  # fmt: skip
        self._state = answer.state
        return self

    async def fork(
        self,
        at: str | int | None = None,
        *,
        new_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> AsyncSession:
        """Begin a session that is what this one was at a message (its id or number; None: the last)."""
        return await self._manager.fork_session(self.id, at, new_id=new_id, title=title, metadata=metadata, key=key)

    async def rewind(
        self, at: str | int, *, key: str | None = None, expected_version: int | None = None
    ) -> AsyncSession:
        """Go back to a message (its id or number): later ones leave the conversation."""
        self._state = (
            await self._manager.rewind_session(self.id, at, key=key, expected_version=expected_version)
        ).state
        return self

    async def at(self, version: int) -> AsyncPastSession:
        """Return the session as it was at one of its versions, rewound since or not; read-only."""
        there = await asyncio.to_thread(time_travel.state_at_version, self._engine, self._tenant, self.state, version)
        return AsyncPastSession(self._manager, self._engine, self._tenant, there)

    async def reload(self) -> AsyncSession:
        """Move the handle to the session's present state; raise SessionNotFound if it was deleted."""
        self._state = (await self._manager.get_session(self.id)).state
        return self

    async def get_messages_by_category(self, category: MessageCategory) -> list[Message]:
        """Return its messages of one category, in order."""
        return [message async for message in self.messages if message.category is category]

    async def get_formatted_history(self) -> list[dict[str, Json]]:
        """Return its messages as {"role", "content"} dicts, in order."""
        return [message.to_api_format() async for message in self.messages]

    async def pending_calls(self) -> list[PendingCall]:
        """Return the tool calls that have no result yet, wherever the conversation is now."""
        return await self._manager.pending_calls(self.id)

    async def close_pending_calls(
        self, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME
    ) -> AsyncSession:
        """Close open calls (None: all) with an error result that says the outcome is unknown."""
        closed = await self._manager.close_pending_calls(self.id, call_ids=call_ids, outcome=outcome)
        self._state = closed.state
        return self
