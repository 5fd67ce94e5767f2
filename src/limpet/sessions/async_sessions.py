"""Sessions for async callers: the manager, handles on sessions as they are and as they were, moments of the log.

Each verb is made from the blocking one, which runs in a thread. Writes that have to wait for nothing
first are submitted to the commit queue instead. Cancelling a task does not undo what it submitted.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, cast

from limpet.core.values.commands import CommandRequest
from limpet.core.values.messages import Message
from limpet.core.windows.window import Window
from limpet.runtime.asyncio_bridge import awaited, blocking_of, iterate, submit
from limpet.sessions.manager import Sessions, service_of
from limpet.sessions.requests import MessageLike, SessionRequests
from limpet.sessions.session import Messages, PastSession, Session, SessionView, checked_session
from limpet.sessions.time_travel import Between, Moment
from limpet.sessions.windows import AsyncSummarizer, Summarizer

P = ParamSpec("P")


class AsyncMessages:
    """The messages of a session for async callers: `async for`, `await messages.at(i)`, `await messages.slice(i, j)`."""

    def __init__(self, count: int, blocking: Callable[[], Messages]) -> None:
        self._count = count
        self._messages = functools.cache(blocking)

    def __len__(self) -> int:
        return self._count

    async def at(self, index: int) -> Message:
        """Return one message; negative indices count from the end."""
        return await asyncio.to_thread(lambda: self._messages()[index])

    async def slice(self, start: int | None = None, stop: int | None = None) -> list[Message]:
        """Return the messages from start up to stop, as a slice of a list would."""
        return await asyncio.to_thread(lambda: self._messages()[start:stop])

    def __aiter__(self) -> AsyncIterator[Message]:
        return iterate(self._messages)

    def __repr__(self) -> str:
        return f"<AsyncMessages {len(self):,}>"


def _async_session(session: Session) -> AsyncSession:
    return AsyncSession(session)


def _moved(
    verb: Callable[Concatenate[Session, P], Session],
) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, AsyncSession]]:
    """Return an async verb that returns its own handle, which the blocking verb has moved."""

    @functools.wraps(verb)
    async def _run(self: AsyncSession, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession:
        await asyncio.to_thread(verb, blocking_of(self), *args, **kwargs)
        return self

    return _run


class AsyncPastSession(SessionView):
    """A session as it was at one of its versions. It is read as any other, and changed never."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: PastSession) -> None:
        super().__init__(blocking._handle)
        self._blocking = blocking

    @property
    def messages(self) -> AsyncMessages:
        """Its messages, read from the store as they are asked for."""
        return AsyncMessages(self.message_count, lambda: self._blocking.messages)

    window = awaited(PastSession.window)
    window_of = awaited(PastSession.window_of)
    expand = awaited(PastSession.expand)
    recorded_windows = awaited(PastSession.recorded_windows)
    recorded_window = awaited(PastSession.recorded_window)
    pending_calls = awaited(PastSession.pending_calls)
    fork = awaited(PastSession.fork, _async_session)
    set_policy = awaited(PastSession.set_policy)
    trimmed = awaited(PastSession.trimmed)
    summarize = awaited(PastSession.summarize)
    add_message = awaited(PastSession.add_message)
    add_messages = awaited(PastSession.add_messages)
    close_pending_calls = awaited(PastSession.close_pending_calls)
    rewind = awaited(PastSession.rewind)


class AsyncSession(SessionView):
    """A handle on one session, for async callers.

    With write="deferred" its fields are those that were last seen: save_session and verbs that read wait for its writes.
    """

    __slots__ = ("_blocking",)

    def __init__(self, blocking: Session) -> None:
        super().__init__(blocking._handle)
        self._blocking = blocking

    @property
    def messages(self) -> AsyncMessages:
        """Its messages, read from the store as they are asked for."""
        if self._handle.has_unseen_writes():
            return AsyncMessages(self.message_count, lambda: self._blocking.messages)
        found = self._blocking.messages
        return AsyncMessages(len(found), lambda: found)

    async def add_message(
        self,
        message: MessageLike,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> AsyncSession:
        """Append a message: a Message or a provider's dict. It is on disk when this returns, unless writes are deferred."""
        return await self.add_messages(
            (message,), key=key, expected_version=expected_version, window=window, usage=usage
        )

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
        handle, service = self._handle, self._handle.service
        if service.defers:
            if service.deferred.is_due():
                await asyncio.to_thread(service.deferred.settle_if_due)
            # This only submits: it waits for nothing.
            self._blocking.add_messages(
                messages, key=key, expected_version=expected_version, window=window, usage=usage
            )
            return self
        request = service.requests.add(
            handle.last.id, messages, key=key, expected_version=expected_version, window=window, usage=usage
        )
        handle.last = (await submit(service.engine, request)).state
        return self

    async def summarize(
        self, summarizer: Summarizer | AsyncSummarizer | None = None, *, language: str | None = None
    ) -> AsyncSession:
        """Put a summary in the place of messages that cuts have taken out and none stands for yet.

        A summariser that is not async runs in a thread.
        """
        handle, text = self._handle, None
        out = await asyncio.to_thread(handle.unsummarized, summarizer, language)
        if out is not None:
            if summarizer is not None:
                said = await asyncio.to_thread(summarizer, out.messages, out.previous_text)
                text = await said if isinstance(said, Awaitable) else said
            await asyncio.to_thread(handle.summarize, out, text)
        return self

    window = awaited(Session.window)
    window_of = awaited(Session.window_of)
    expand = awaited(Session.expand)
    recorded_windows = awaited(Session.recorded_windows)
    recorded_window = awaited(Session.recorded_window)
    get_messages_by_category = awaited(Session.get_messages_by_category)
    get_formatted_history = awaited(Session.get_formatted_history)
    pending_calls = awaited(Session.pending_calls)
    close_pending_calls = _moved(Session.close_pending_calls)
    set_policy = _moved(Session.set_policy)
    rewind = _moved(Session.rewind)
    reload = _moved(Session.reload)
    trimmed = awaited(Session.trimmed, _async_session)
    fork = awaited(Session.fork, _async_session)
    at = awaited(Session.at, AsyncPastSession)


def _submitted(
    verb: Callable[Concatenate[Sessions, P], Session], make: Callable[..., CommandRequest], *, begins: bool = False
) -> Callable[Concatenate[AsyncSessions, P], Coroutine[Any, Any, AsyncSession]]:
    """Return an async verb that submits the request of a blocking one, which `make` makes of the same arguments.

    If something has to be waited for first, the blocking verb runs in a thread.
    """
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    async def _run(self: AsyncSessions, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession:
        service = service_of(blocking_of(self))
        signature.bind(self, *args, **kwargs)  # `make` takes more than the verb does
        if service.defers or (begins and service.bootstrap is not None):
            return AsyncSession(await asyncio.to_thread(verb, blocking_of(self), *args, **kwargs))
        request = make(service.requests, *args, **kwargs)
        session = service.handle((await submit(service.engine, request)).state)
        return AsyncSession(service.remember(session) if begins else session)

    return _run


class AsyncSessions:
    """Creates, finds, changes and ends sessions of one tenant. The contract is that of SessionManager.

    A current session belongs to one caller, so tasks have none.
    """

    def __init__(self, blocking: Sessions) -> None:
        self._blocking = blocking

    @property
    def sessions(self) -> Mapping[str, AsyncSession]:
        """The sessions that were begun or loaded last, by id, at most max_sessions_in_memory."""
        return {session_id: AsyncSession(session) for session_id, session in [*self._blocking.sessions.items()]}

    @property
    def max_messages_per_session(self) -> int:
        """The number of messages at which a conversation goes on in a new session."""
        return self._blocking.max_messages_per_session

    @property
    def max_sessions_in_memory(self) -> int:
        """How many sessions `sessions` keeps."""
        return self._blocking.max_sessions_in_memory

    create_session = _submitted(Sessions.create_session, SessionRequests.create, begins=True)
    get_or_create_session = _submitted(
        Sessions.get_or_create_session, functools.partial(SessionRequests.create, or_get=True), begins=True
    )
    update_session = _submitted(Sessions.update_session, SessionRequests.update)
    add_messages = _submitted(Sessions.add_messages, SessionRequests.add_to)
    end_session = _submitted(Sessions.end_session, SessionRequests.end)
    load_session = awaited(Sessions.load_session, lambda found: None if found is None else AsyncSession(found))
    get_session = awaited(Sessions.get_session, AsyncSession)
    list_sessions = awaited(Sessions.list_sessions)
    reset_session = awaited(Sessions.reset_session, AsyncSession)
    fork_session = awaited(Sessions.fork_session, AsyncSession)
    rewind_session = awaited(Sessions.rewind_session, AsyncSession)
    delete_session = awaited(Sessions.delete_session)
    expire = awaited(Sessions.expire)
    pending_calls = awaited(Sessions.pending_calls)
    close_pending_calls = awaited(Sessions.close_pending_calls, AsyncSession)
    session_chain = awaited(Sessions.session_chain, lambda chain: [AsyncSession(session) for session in chain])
    chain_tokens = awaited(Sessions.chain_tokens)
    flush = awaited(Sessions.flush)

    async def save_session(self, session: AsyncSession | None = None) -> bool:
        """Wait until all that was written to the session is on disk, or raise why not. False if there is no session."""
        chosen = checked_session(session, AsyncSession)
        if chosen is None:
            service_of(self._blocking).engine.check()
            return False
        return await asyncio.to_thread(self._blocking.save_session, blocking_of(chosen))

    def check_session_boundary(self, session: AsyncSession) -> bool:
        """Whether the session has reached its number of messages."""
        return service_of(self._blocking).is_full(session.state)

    async def create_continuation_session(
        self, source_session: AsyncSession, *, key: str | None = None
    ) -> AsyncSession:
        """Go on in a new session that begins with the system and context messages of the source."""
        verb = self._blocking.create_continuation_session
        return AsyncSession(await asyncio.to_thread(verb, blocking_of(source_session), key=key))


class AsyncBetween:
    """What happened between two moments of one log."""

    def __init__(self, blocking: Between) -> None:
        self._blocking = blocking

    sessions = awaited(Between.sessions)
    session = awaited(Between.session)
    frame = awaited(Between.frame)


class AsyncMoment:
    """The tenant's state when its log was at a position: everything as it was then, read-only."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: Moment) -> None:
        self._blocking = blocking

    @property
    def position(self) -> int:
        """The position of the log."""
        return self._blocking.position

    session = awaited(Moment.session, AsyncPastSession)
    tree = awaited(Moment.tree)
    frame = awaited(Moment.frame)
    pack = awaited(Moment.pack)

    def diff(self, other: AsyncMoment) -> AsyncBetween:
        """Return what differs from here to another moment of the same log, be it later or earlier."""
        moment = other._blocking if isinstance(cast("object", other), AsyncMoment) else cast("Moment", other)
        return AsyncBetween(self._blocking.diff(moment))

    def __repr__(self) -> str:
        return f"<AsyncMoment {self.position:,}>"
