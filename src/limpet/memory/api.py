"""Long-term memory for blocking callers (`lp.memory`): profile, search, facts, forget, queue.

Search merges the facts of the memory engine with the messages of the archive into one order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from limpet import limits
from limpet.admin.erasure import ErasureService
from limpet.core.values.events import Receipt
from limpet.core.values.memory_records import Fact, Hit, MemoryResult, Profile, Source, TenantUser
from limpet.core.values.validation import checked_id, checked_int, checked_limit, checked_str
from limpet.jobs import tasks
from limpet.jobs.offload import OFFLOAD_TASK, OffloadQueue, QueuedOffload
from limpet.memory.archive import Archive, search_with
from limpet.memory.facts.fact_store import search_terms
from limpet.memory.index.search import Ranking
from limpet.memory.port import MemoryEngine
from limpet.runtime.engine import Engine


class Memory:
    """Long-term memory of the users of one tenant. Every call is about one user."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        memory: Callable[[], MemoryEngine],
        *,
        archive: Archive,
        erasing: ErasureService,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._memory = memory
        self._archive = archive
        self._erasing = erasing

    def profile(self, user_id: str, budget: int = limits.BOOTSTRAP_TOKENS) -> Profile:
        """Return the current facts of a user in at most `budget` tokens, the most useful first."""
        checked_int("budget", budget, 1, unit="a number of tokens")
        return self._engine_of_memory().profile(self._user(user_id), budget)

    def search(self, user_id: str, query: str, limit: int = 10) -> list[MemoryResult]:
        """Return up to `limit` facts and messages of a user that match a query, the best first."""
        checked_limit(limit, limits.MEMORY_RESULTS_MAX)
        user, text = self._user(user_id), checked_str("a query", query, not_blank=True)
        facts = self._engine_of_memory().search(user, text, limit)
        hits = search_with(self._archive, user, text, limit, fact_sources(text, facts))
        return merge_results(text, facts, hits)[:limit]

    def facts(self, user_id: str) -> list[Fact]:
        """Return all facts of a user, also replaced ones, the newest first, each with its source message."""
        return list(self._engine_of_memory().facts(self._user(user_id)))

    def forget(self, user_id: str) -> Receipt:
        """Erase everything of a user: sessions, frames, facts, search index, vectors; return the receipt.

        When this returns, no file of the store or of the memory contains any of it, and the log still verifies.
        If the call is interrupted, the next opening finishes the local part, and the worker or the next erasure
        calls external engines. Raises StoreBusy, with the receipt in its facts, if a long read keeps old pages
        in files, and Unavailable if the memory engine can't be reached.
        """
        return self._erasing.erase_user(user_id)

    def queue(self) -> list[QueuedOffload]:
        """Return the histories that memory has not ingested: first those to be retried, then those given up."""
        self._engine.check()
        return OffloadQueue(self._engine.store, self._tenant).queued()

    def behind(self) -> int:
        """Return how many events of the log were not yet searched for ended conversations."""
        self._engine.check()
        at = tasks.read_cursor(self._engine.store, self._tenant, OFFLOAD_TASK).position
        return tasks.feed_lag(self._engine.store, self._tenant, at)

    def replay(self, key: str | None = None) -> int:
        """Queue again all histories that were given up, or the one with this key; return how many were queued."""
        self._engine.check()
        return OffloadQueue(self._engine.store, self._tenant).replay(key)

    def _engine_of_memory(self) -> MemoryEngine:
        self._engine.check()
        return self._memory()

    def _user(self, user_id: str) -> TenantUser:
        return TenantUser(self._tenant, checked_id("a user's id", user_id))


def fact_sources(query: str, facts: Sequence[MemoryResult]) -> Ranking:
    """Return the source positions of current facts. The weight of each is the squared share of query terms in the fact."""
    first = dict[int, MemoryResult]()
    for fact in facts:
        if fact.until_us is None and fact.source is not None:
            first.setdefault(fact.source.position, fact)
    asked = {*search_terms(query)}
    shares = (len(asked.intersection(search_terms(fact.text))) / len(asked) for fact in first.values())
    return Ranking(list(first), [share**2 for share in shares])


def merge_results(query: str, facts: Sequence[MemoryResult], hits: Sequence[Hit]) -> list[MemoryResult]:
    """Return facts and messages in one list, in the order of the messages.

    A fact stands in the place of its source message, or the message itself if it has query terms that the
    fact lacks. A current fact comes before the fact that it replaced. Facts without a found source message
    keep their own order. Replaced facts without one come last.
    """
    left = dict.fromkeys(facts)
    places = {(hit.position, hit.message_id): hit for hit in hits}
    asked, placed = {*search_terms(query)}, list[MemoryResult]()

    def place(at: tuple[int, str]) -> None:
        hit = places.pop(at, None)
        stated = [fact for fact in left if _source_reference(fact) == at]
        for fact in stated:
            del left[fact]
        for fact in stated:
            for later in [other for other in left if _replaces(other, fact)]:
                place(_source_reference(later))
        covered = {term for fact in stated for term in search_terms(fact.text)}
        if hit is not None and (not stated or asked.intersection(search_terms(hit.excerpt)) - covered):
            placed.append(recalled_hit(hit))
        else:
            placed.extend(stated)

    for hit in hits:
        if (hit.position, hit.message_id) in places:
            place((hit.position, hit.message_id))
    current = [fact for fact in left if fact.until_us is None]
    return [*interleave(current, placed), *(fact for fact in left if fact.until_us is not None)]


def _replaces(later: MemoryResult, fact: MemoryResult) -> bool:
    return fact.until_us == later.time_us and fact.kind == later.kind


def _source_reference(fact: MemoryResult) -> tuple[int, str]:
    source = fact.source
    return (-1, fact.text) if source is None else (source.position, source.message_id)


def recalled_hit(hit: Hit) -> MemoryResult:
    """Return a hit of the archive as a search result."""
    source = Source(hit.session_id, hit.message_id, hit.position)
    return MemoryResult(text=hit.excerpt, score=hit.score, time_us=hit.time_us, source=source)


def interleave(*lists: Sequence[MemoryResult]) -> list[MemoryResult]:
    """Merge lists by rank, because scores of different lists can't be compared. The score becomes that of the rank."""
    ranked = [(rank, result) for results in lists for rank, result in enumerate(results, start=1)]
    ranked.sort(key=lambda pair: pair[0])
    return [msgspec.structs.replace(result, score=1 / (limits.FUSION_RANK_OFFSET + rank)) for rank, result in ranked]
