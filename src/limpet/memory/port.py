"""The port of long-term memory engines.

An engine ingests conversations that have ended and answers what is known about a user. Callers set
time limits and go on without an answer. No session depends on an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from limpet.core.values.memory_records import Fact, History, Profile, Recalled, Said, Who


class MemoryEngine(Protocol):
    """An engine of long-term memory. Every verb is about one user of one tenant.

    Raises Unavailable if it can't be reached now (retrying is safe), Refused for what it will never take.
    """

    @property
    def name(self) -> str:
        """What it is, for people."""
        ...

    def ingest(self, history: History, said: Iterable[Sequence[Said]]) -> None:
        """Take a conversation, in chunks, in order; when this returns, it is kept.

        The same `history.key` again is the same conversation: it is taken once, however often it comes,
        and one that was broken off is taken from its beginning.
        """
        ...

    def profile(self, who: Who, budget: int) -> Profile:
        """Return what is known of a user now, in at most `budget` tokens, the most useful first."""
        ...

    def search(self, who: Who, query: str, k: int) -> Sequence[Recalled]:
        """Return up to k things that fit a query, the best first."""
        ...

    def facts(self, who: Who) -> Sequence[Fact]:
        """Return everything that is or was known of a user, the newest first."""
        ...

    def forget(self, who: Who, session_id: str | None = None, position: int | None = None) -> int:
        """Drop what is known of a user, or what came from one session, or from one message of it; return how much.

        When this returns, nothing of it is left in any file of the engine's.
        """
        ...

    def close(self) -> None:
        """Give back every resource. Closing twice is fine."""
        ...
