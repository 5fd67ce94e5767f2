"""The tenant's event log, past sessions and the administration of the store, for async callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from limpet import limits
from limpet.admin import log
from limpet.admin.erasure.service import ErasureService
from limpet.core.values.events import Receipt
from limpet.core.values.frame_state import Frame, TreeState
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState, WindowPolicy
from limpet.core.values.validation import Json
from limpet.core.windows.pack import ContextPack
from limpet.core.windows.window import Window
from limpet.frames import queries
from limpet.runtime.engine import Engine
from limpet.sessions import time_travel
from limpet.sessions.requests import UNKNOWN_OUTCOME, MessageLike
from limpet.sessions.session_view import MessageReader, PendingCall, read_pending_calls
from limpet.sessions.windows import AsyncRecordedWindowVerbs
from limpet.stores.port import Rebuilt, Report, Store

if TYPE_CHECKING:
    from limpet.admin.export import Exported, Sink
    from limpet.admin.import_ import Format, Imported
    from limpet.admin.migrate import Migrated
    from limpet.admin.retention import Retained, Retention
    from limpet.sessions.async_sessions import AsyncSession, AsyncSessions
    from limpet.sessions.windows import AsyncSummarizer, Summarizer


POLL_FIRST_S: Final = 0.005
POLL_LONGEST_S: Final = 0.05
"""How long somebody who watches the log does not look at first, and at most."""


class AsyncMessages:
    """The same for async callers: `async for`, `await messages.at(i)`, `await messages.slice(i, j)`."""

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return self._reader.count()

    async def at(self, index: int) -> Message:
        """Return one message; negative indices count from the end."""
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError("the session has no message at that index")
        return await asyncio.to_thread(self._reader.at, at)

    async def slice(self, start: int | None = None, stop: int | None = None) -> list[Message]:
        """Return the messages from start up to stop, as a slice of a list would."""
        return await asyncio.to_thread(self._reader.slice, slice(start, stop))

    async def __aiter__(self) -> AsyncIterator[Message]:
        after, remaining = self._reader.start_version(), len(self)
        while remaining:
            found, after = await asyncio.to_thread(self._reader.chunk, after, min(remaining, limits.READ_CHUNK))
            remaining -= len(found)
            for message in found:
                yield message

    def __repr__(self) -> str:
        return f"<AsyncMessages {len(self):,}>"


class AsyncPastSession(AsyncRecordedWindowVerbs):
    """A session as it was at one of its versions. It is read as any other, and changed never."""

    __slots__ = ("_manager",)

    def __init__(self, manager: AsyncSessions, engine: Engine, tenant: str, state: SessionState) -> None:
        super().__init__(engine, tenant, state)
        self._manager = manager

    @property
    def messages(self) -> AsyncMessages:
        """Its messages, read from the store as they are asked for."""
        return AsyncMessages(self._reader())

    async def pending_calls(self) -> list[PendingCall]:
        """Return the tool calls that had no result yet."""
        return await asyncio.to_thread(read_pending_calls, self._reader(), self.state)

    async def fork(
        self,
        *,
        new_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> AsyncSession:
        """Begin a session that goes on from here; nothing is copied."""
        return await self._manager.fork_past(
            lambda blocking: blocking.fork_version(
                self.id, self.version, new_id=new_id, title=title, metadata=metadata, key=key
            )
        )

    async def set_policy(self, policy: WindowPolicy | None) -> NoReturn:
        """Refuse: what was can't be changed."""
        time_travel.refuse_change(policy)

    async def trimmed(
        self,
        budget: int | None = None,
        *,
        model: str | None = None,
        counter: str | None = None,
        summary: str | None = None,
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        time_travel.refuse_change(budget, model, counter, summary)

    async def summarize(
        self, summarizer: Summarizer | AsyncSummarizer | None = None, *, language: str | None = None
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        time_travel.refuse_change(summarizer, language)

    async def add_message(
        self,
        message: MessageLike,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        time_travel.refuse_change(message, key, expected_version, window, usage)

    async def add_messages(
        self,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
        window: Window | None = None,
        usage: int | None = None,
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        time_travel.refuse_change(messages, key, expected_version, window, usage)

    async def close_pending_calls(
        self, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME
    ) -> NoReturn:
        """Refuse: what was can't be changed."""
        time_travel.refuse_change(call_ids, outcome)

    async def rewind(self, at: str | int, *, key: str | None = None, expected_version: int | None = None) -> NoReturn:
        """Refuse: what was can't be changed."""
        time_travel.refuse_change(at, key, expected_version)


class AsyncBetween:
    """What happened between two moments of one log."""

    def __init__(self, between: time_travel.Between) -> None:
        self._between = between

    async def sessions(self) -> list[str]:
        """Return the ids of sessions that something happened in, in the order of their first event."""
        return await asyncio.to_thread(self._between.sessions)

    async def session(self, session_id: str) -> time_travel.Difference:
        """Return the messages by which a session differs; raise SessionNotFound if it was never there."""
        return await asyncio.to_thread(self._between.session, session_id)

    async def frame(self, frame_id: str) -> queries.FrameDifference:
        """Return a frame at both moments; raise FrameNotFound if it was there at neither."""
        return await asyncio.to_thread(self._between.frame, frame_id)


class AsyncMoment:
    """The tenant's state when its log was at a position: everything as it was then, read-only."""

    __slots__ = ("_engine", "_manager", "_tenant", "position")

    def __init__(self, manager: AsyncSessions, engine: Engine, tenant: str, position: int) -> None:
        self._manager = manager
        self._engine = engine
        self._tenant = tenant
        self.position = time_travel.checked_position(position)

    async def session(self, session_id: str) -> AsyncPastSession:
        """Return a session as it was; raise SessionNotFound if it was not there, or was deleted since."""
        state = await asyncio.to_thread(
            time_travel.state_at_position, self._engine, self._tenant, session_id, self.position
        )
        return AsyncPastSession(self._manager, self._engine, self._tenant, state)

    async def tree(self, frame_id: str) -> TreeState:
        """Return the open frames of a frame's tree as they were; raise FrameNotFound if it was not there."""
        place = (self._engine, self._tenant, frame_id, self.position)
        return (await asyncio.to_thread(queries.tree_at, *place)).tree

    async def frame(self, frame_id: str) -> Frame:
        """Return a frame as it was, open or closed; raise FrameNotFound if it was not there."""
        place = (self._engine, self._tenant, frame_id, self.position)
        return await asyncio.to_thread(queries.frame_at, *place)

    async def pack(self, frame_id: str) -> ContextPack:
        """Return what the model of a frame had seen last by then; raise NotFound if no pack was recorded."""
        place = (self._engine, self._tenant, frame_id, self.position)
        return await asyncio.to_thread(queries.pack_at, *place)

    def diff(self, other: AsyncMoment) -> AsyncBetween:
        """Return what differs from here to another moment of the same log, be it later or earlier."""
        between = time_travel.Between(self._engine, self._tenant, self.position, other.position)
        return AsyncBetween(between)

    def __repr__(self) -> str:
        return f"<AsyncMoment {self.position:,}>"


class AsyncEvents:
    """The tenant's log, in order."""

    def __init__(self, engine: Engine, tenant: str, sessions: AsyncSessions) -> None:
        self._engine = engine
        self._tenant = tenant
        self._sessions = sessions
        self._events = log.Events(engine, tenant, sessions.blocking)

    async def at(self, position: int) -> AsyncMoment:
        """Return the moment when the log was at a position: everything as it was then, read-only."""
        found = await asyncio.to_thread(self._events.at, position)
        return AsyncMoment(self._sessions, self._engine, self._tenant, found.position)

    async def feed(self, after: int = 0) -> AsyncIterator[log.LogEvent]:
        """Yield events after a position up to the present end, in order, without gaps."""
        while found := await self.page(after):
            for event in found:
                yield event
            after = found[-1].position

    async def watch(self, after: int = 0, timeout_s: float | None = None) -> AsyncIterator[log.LogEvent]:
        """Yield events after a position, in order, without gaps, and wait for those to come.

        Looks for them every 5 to 50 ms, and takes no thread meanwhile.
        """
        idle_s, waited, pause = log.checked_timeout(timeout_s), 0.0, POLL_FIRST_S
        while True:
            found = await self.page(after)
            for event in found:
                yield event
            if found:
                after, waited, pause = found[-1].position, 0.0, POLL_FIRST_S
                continue
            if idle_s is not None and waited >= idle_s:
                return
            pause = pause if idle_s is None else min(pause, idle_s - waited)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, POLL_LONGEST_S)

    async def page(self, after: int = 0, limit: int = limits.READ_CHUNK) -> list[log.LogEvent]:
        """Return up to `limit` events after a position."""
        return await asyncio.to_thread(self._events.page, after, limit)


class AsyncAdmin:
    """The store as a whole: all tenants. Only `erase` is about one, the one that it was opened for."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        erasing: ErasureService,
        opener: Callable[[str | Path], Store] = log.refuse_to_open,
        retaining: Callable[[], Retention] | None = None,
    ) -> None:
        self._admin = log.Admin(engine, tenant, erasing, opener, retaining)

    async def erase(
        self, *, user_id: str | None = None, session_id: str | None = None, message_id: str | None = None
    ) -> Receipt:
        """Take content out of the store for good: a user's, a session's, one message's, or all that was deleted."""
        return await asyncio.to_thread(self._admin.erase, user_id=user_id, session_id=session_id, message_id=message_id)

    async def retention(self, keep_days: float, *, dry_run: bool = False) -> Retained:
        """Let sessions go that ended and in which nobody was active for so many days; say why the rest stays."""
        return await asyncio.to_thread(self._admin.retention, keep_days, dry_run=dry_run)

    async def status(self) -> Mapping[str, Json]:
        """Return facts about the store: where, how large, how durable, what it holds."""
        return await asyncio.to_thread(self._admin.status)

    async def verify(self, progress: log.Progress = log.no_progress) -> Report:
        """Check every event and every page against what was written; return what was found."""
        return await asyncio.to_thread(self._admin.verify, progress)

    async def rebuild(self, progress: log.Progress = log.no_progress) -> Rebuilt:
        """Drop all that is derived from the log and make it again, whole or not at all."""
        return await asyncio.to_thread(self._admin.rebuild, progress)

    async def backup(self, target: str | Path, progress: log.Progress = log.no_progress) -> Path:
        """Copy the store, consistent while others write, to a file that does not exist yet."""
        return await asyncio.to_thread(self._admin.backup, target, progress)

    async def migrate(
        self, target: str | Path, *, verify: bool = True, progress: log.Progress = log.no_progress
    ) -> Migrated:
        """Copy every tenant into another store, on whichever backend, which is created if nothing is there."""
        return await asyncio.to_thread(self._admin.migrate, target, verify=verify, progress=progress)

    async def export(
        self,
        target: str | Path | Sink,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        progress: log.Progress = log.no_progress,
    ) -> Exported:
        """Write sessions to a new file, or something that takes bytes: a conversation, all of a user, or all."""
        return await asyncio.to_thread(
            self._admin.export, target, session_id=session_id, user_id=user_id, progress=progress
        )

    async def import_(
        self,
        source: str | Path,
        *,
        format: Format = "auto",  # noqa: A002 - what it is called everywhere
        user_id: str | None = None,
        rename: str = "",
        dry_run: bool = False,
        progress: log.Progress = log.no_progress,
    ) -> Imported:
        """Take in the sessions of a file: one of `export`, Penguin's (or a folder of them), OpenAI chats."""
        return await asyncio.to_thread(
            self._admin.import_,
            source,
            format=format,
            user_id=user_id,
            rename=rename,
            dry_run=dry_run,
            progress=progress,
        )
