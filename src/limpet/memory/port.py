"""The port of long-term memory engines.

An engine ingests conversations that have ended and answers what is known about a user. Callers set
time limits and go on without an answer. No session depends on an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from limpet.core.values.memory_records import ArchivedMessage, Fact, History, MemoryResult, Profile, TenantUser


class MemoryEngine(Protocol):
    """An engine of long-term memory. Every call is about one user of one tenant.

    Raises Unavailable if it can't be reached now (retrying is safe), Refused for a request that it never accepts.
    """

    @property
    def name(self) -> str:
        """The name of the engine, for people."""
        ...

    def ingest(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> None:
        """Ingest a conversation, in chunks, in order. When this returns, it is durable.

        `history.key` identifies the conversation: it takes effect once, however often it is delivered. An
        interrupted delivery is repeated from its beginning.
        """
        ...

    def profile(self, user: TenantUser, budget: int) -> Profile:
        """Return the current facts of a user in at most `budget` tokens, the most useful first."""
        ...

    def search(self, user: TenantUser, query: str, limit: int) -> Sequence[MemoryResult]:
        """Return up to `limit` results that match a query, the best first."""
        ...

    def facts(self, user: TenantUser) -> Sequence[Fact]:
        """Return all facts of a user, also replaced ones, the newest first."""
        ...

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
        """Delete the facts of a user, or those from one session, or from one message; return how many.

        When this returns, no file of the engine has anything of them.
        """
        ...

    def close(self) -> None:
        """Release every resource. Closing twice is fine."""
        ...
