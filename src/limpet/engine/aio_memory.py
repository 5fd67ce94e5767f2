"""Long-term memory, for async callers: the same verbs, awaited."""

from __future__ import annotations

import asyncio

from limpet import limits
from limpet.core.values.erasure_receipt import Receipt
from limpet.core.values.memory_records import Fact, Profile, Recalled
from limpet.engine.jobs import QueuedOffload
from limpet.engine.memory import Memory


class AsyncMemory:
    """What is known of the users of one tenant, each by itself."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def profile(self, user_id: str, budget: int = limits.BOOTSTRAP_TOKENS) -> Profile:
        """Return what is known of a user now, in at most `budget` tokens, the most useful first."""
        return await asyncio.to_thread(self._memory.profile, user_id, budget)

    async def search(self, user_id: str, query: str, k: int = 10) -> list[Recalled]:
        """Return up to k things that fit a query, the best first: what is known, and what was said."""
        return await asyncio.to_thread(self._memory.search, user_id, query, k)

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
