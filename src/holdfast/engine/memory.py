"""Long-term memory, for blocking callers: what is known of a user, what a search finds, what is on its way there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

from holdfast import errors, limits
from holdfast.engine.archive import Archive
from holdfast.engine.engine import Engine
from holdfast.engine.erasing import Erasing
from holdfast.engine.jobs import Jobs, QueuedOffload
from holdfast.memory.port import MemoryEngine
from holdfast.values.erasure import Receipt
from holdfast.values.frozen import checked_text
from holdfast.values.memory import Fact, Hit, Profile, Recalled, Source, Who
from holdfast.values.message import checked_id

_SAID_BY: Final = ("user", "assistant", "tool")


class Memory:
    """What is known of the users of one tenant, each by itself."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        memory: Callable[[], MemoryEngine],
        *,
        archive: Archive,
        erasing: Erasing,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._memory = memory
        self._archive = archive
        self._erasing = erasing

    def profile(self, user_id: str, budget: int = limits.BOOTSTRAP_TOKENS) -> Profile:
        """Return what is known of a user now, in at most `budget` tokens, the most useful first."""
        if type(cast("object", budget)) is not int or budget < 1:
            raise errors.InvalidRequest("budget is a number of tokens, 1 or more.")
        return self._asked().profile(self._who(user_id), budget)

    def search(self, user_id: str, query: str, k: int = 10) -> list[Recalled]:
        """Return up to k things that fit a query, the best first: what is known, and what was said."""
        if type(cast("object", k)) is not int or not 1 <= k <= limits.RECALL_MAX:
            raise errors.InvalidRequest(f"k is a number from 1 to {limits.RECALL_MAX}.")
        if not isinstance(cast("object", query), str) or not query.strip():
            raise errors.InvalidRequest("a query is a text.")
        who, text = self._who(user_id), checked_text(query)
        known = self._asked().search(who, text, k)
        # A prompt has what is known, too, and nobody said it.
        said = self._archive.search(text, user_id=user_id, k=k, role=_SAID_BY)
        return fused(known, [recalled(hit) for hit in said])[:k]

    def facts(self, user_id: str) -> list[Fact]:
        """Return everything that is or was known of a user, the newest first, with who said so."""
        return list(self._asked().facts(self._who(user_id)))

    def forget(self, user_id: str) -> Receipt:
        """Erase everything of a user: sessions, frames, facts, search index, vectors; return the receipt.

        When this returns, no file of the store or of the memory has it; the log still verifies. If it is broken
        off, the next opening or erasure finishes it. Raises StoreBusy, with the receipt in its facts, if somebody
        reads for so long that traces stay in files; Unavailable if the memory engine can't be reached.
        """
        return self._erasing.user(user_id)

    def queue(self) -> list[QueuedOffload]:
        """Return the histories that memory has not taken yet: those that are tried again, then those given up."""
        self._engine.check()
        return Jobs(self._engine.store, self._tenant).queue()

    def replay(self, key: str | None = None) -> int:
        """Have what was given up tried again, or one of it by its key; return how many."""
        self._engine.check()
        return Jobs(self._engine.store, self._tenant).replay(key)

    def _asked(self) -> MemoryEngine:
        self._engine.check()
        return self._memory()

    def _who(self, user_id: str) -> Who:
        return Who(self._tenant, checked_id("a user's id", user_id))


def recalled(hit: Hit) -> Recalled:
    """Return what was said as something that was found."""
    source = Source(hit.session_id, hit.message_id, hit.position)
    return Recalled(text=hit.excerpt, score=hit.score, time_us=hit.time_us, source=source)


def fused(*lists: Sequence[Recalled]) -> list[Recalled]:
    """Return several lists as one, by the places that each thing has in them; scores of lists do not compare."""
    scores: dict[object, float] = {}
    things: dict[object, Recalled] = {}
    for found in lists:
        for rank, one in enumerate(found, start=1):
            name = _name(one)
            scores[name] = scores.get(name, 0.0) + 1 / (limits.FUSION_RANK + rank)
            things.setdefault(name, one)
    ordered = sorted(things, key=lambda name: -scores[name])
    return [msgspec.structs.replace(things[name], score=scores[name]) for name in ordered]


def _name(one: Recalled) -> object:
    """Return by what a thing is known again: a message by its place in the log, a fact by what it says."""
    if one.kind is None and one.source is not None:
        return one.source.position
    return one.kind, one.text
