"""Archive and long-term memory for async callers: the blocking methods, run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from limpet import limits
from limpet.core.values.events import Receipt
from limpet.core.values.memory_records import ArchivedMessage, Fact, MemoryResult, Profile, SearchHits
from limpet.core.values.validation import Json
from limpet.jobs.index_tasks import IndexTask
from limpet.jobs.offload import QueuedOffload
from limpet.memory import archive
from limpet.memory.api import Memory
from limpet.memory.archive import TOOL_NAME, ArchiveTool
from limpet.sessions.requests import When


class AsyncArchiveTool:
    """A tool over the archive of one user."""

    name: Final = TOOL_NAME

    def __init__(self, tool: ArchiveTool) -> None:
        self._tool = tool

    def to_openai(self) -> dict[str, Json]:
        """Return the definition for `tools` of an OpenAI request."""
        return self._tool.to_openai()

    def to_anthropic(self) -> dict[str, Json]:
        """Return the definition for `tools` of an Anthropic request."""
        return self._tool.to_anthropic()

    async def call(self, arguments: Mapping[str, Json] | str) -> str:
        """Answer a call of the model's, given as an object or as its JSON text; return the result for it."""
        return await asyncio.to_thread(self._tool.call, arguments)


class AsyncArchive:
    """Finds what was said, for one tenant. Every search is one user's."""

    def __init__(self, made: archive.Archive) -> None:
        self._archive = made

    async def search(
        self,
        query: str,
        *,
        user_id: str | None,
        limit: int = 10,
        role: str | Sequence[str] | None = None,
        since: When | None = None,
        until: When | None = None,
        session_id: str | None = None,
        fresh: bool = True,
    ) -> SearchHits:
        """Return up to `limit` messages of a user that fit a query, the best first."""
        return await asyncio.to_thread(
            self._archive.search, query, user_id=user_id, limit=limit, role=role, since=since, until=until,
            session_id=session_id, fresh=fresh,
        )  # fmt: skip

    async def open(
        self, place: archive.MessageReference, around: int = 5, *, user_id: str | None = None
    ) -> list[ArchivedMessage]:
        """Return a message with up to `around` before and after it, in order, as its session was then."""
        return await asyncio.to_thread(self._archive.open, place, around, user_id=user_id)

    def tool(self, user_id: str) -> AsyncArchiveTool:
        """Return a tool that lets a model search what this user said or was told, and nobody else."""
        return AsyncArchiveTool(self._archive.tool(user_id))

    async def forget(self, user_id: str | None, session_id: str | None = None, position: int | None = None) -> int:
        """Drop everything of a user from the archive, or one session, or one message; return how many messages."""
        return await asyncio.to_thread(self._archive.forget, user_id, session_id, position)

    @property
    def task(self) -> IndexTask:
        """The work of taking the log in, for a worker."""
        return self._archive.task

    async def catch_up(self, events: int = limits.ARCHIVE_CATCH_UP) -> bool:
        """Take what is new in the log into the archive, about that many events; return whether that was all."""
        return await asyncio.to_thread(self._archive.catch_up, events)

    async def behind(self) -> int:
        """Return how many events of the log are not in the archive yet."""
        return await asyncio.to_thread(self._archive.behind)

    async def size(self) -> int:
        """Return how many bytes archive and memory take beside the store; 0: nobody has begun one. Makes none."""
        return await asyncio.to_thread(self._archive.size)


class AsyncMemory:
    """What is known of the users of one tenant, each by itself."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def profile(self, user_id: str, budget: int = limits.BOOTSTRAP_TOKENS) -> Profile:
        """Return what is known of a user now, in at most `budget` tokens, the most useful first."""
        return await asyncio.to_thread(self._memory.profile, user_id, budget)

    async def search(self, user_id: str, query: str, limit: int = 10) -> list[MemoryResult]:
        """Return up to `limit` things that fit a query, the best first: what is known, and what was said."""
        return await asyncio.to_thread(self._memory.search, user_id, query, limit)

    async def facts(self, user_id: str) -> list[Fact]:
        """Return everything that is or was known of a user, the newest first, with who said so."""
        return await asyncio.to_thread(self._memory.facts, user_id)

    async def forget(self, user_id: str) -> Receipt:
        """Erase everything of a user: sessions, frames, facts, search index, vectors; return the receipt."""
        return await asyncio.to_thread(self._memory.forget, user_id)

    async def queue(self) -> list[QueuedOffload]:
        """Return the histories that memory has not taken yet."""
        return await asyncio.to_thread(self._memory.queue)

    async def behind(self) -> int:
        """Return how many events of the log nobody has looked at yet for conversations that have ended."""
        return await asyncio.to_thread(self._memory.behind)

    async def replay(self, key: str | None = None) -> int:
        """Have what was given up tried again, or one of it by its key; return how many."""
        return await asyncio.to_thread(self._memory.replay, key)
