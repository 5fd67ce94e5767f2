"""The built-in memory engine: facts in an index store, extracted by rules or by a model.

Facts are computed from mentions, so the order and number of deliveries do not change the result.
Each change is one atomic write. All keys of a user begin with tenant and user. Threads and
processes may share one index store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from limpet import errors, limits
from limpet.core.values.memory_records import (
    ArchivedMessage,
    Fact,
    FactExtractor,
    History,
    MemoryResult,
    Profile,
    Source,
    TenantUser,
)
from limpet.core.values.validation import checked_int, checked_limit
from limpet.memory.facts import fact_store, rules
from limpet.memory.facts.fact_store import FactSlot, FactStore, IngestAttempt, IngestJournal, Mention
from limpet.memory.index_store import IndexStore, retry_write
from limpet.memory.port import MemoryEngine

MentionsBySlot = dict[str, tuple[str, list[Mention]]]
"""By the name of a slot: its subject and its mentions."""


class BuiltInMemory:
    """Long-term memory in an index store, which `close` leaves open.

    `extract` finds the facts, for instance with a model. If it fails, or is None, `fallback` finds them.
    """

    def __init__(
        self,
        index: IndexStore,
        *,
        count: Callable[[str], int],
        extract: FactExtractor | None = None,
        fallback: FactExtractor = rules.extract,
    ) -> None:
        self._index = index
        self._facts = FactStore(index)
        self._journal = IngestJournal(index)
        self._count = count
        self._extract = extract
        self._fallback = fallback
        self._closed = False

    @property
    def name(self) -> str:
        """The name of the engine, for people."""
        return "built-in"

    def ingest(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> None:
        """Ingest a conversation, in chunks. When this returns, its facts are durable.

        A conversation that was ingested is skipped. Raises Unavailable if another thread or process
        ingests or forgets it meanwhile: call again.
        """
        self._ingest(history, messages, redo=False)

    def redo(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> bool:
        """Extract the facts of a conversation again, if the fallback had found them, and replace those.

        Returns whether `extract` has succeeded. Where it fails again, the known facts stay. A forgotten
        conversation is not ingested again.
        """
        self._ingest(history, messages, redo=True)
        return not self.used_fallback(history.user, history.session_id, history.key)

    def has_ingested(self, user: TenantUser, session_id: str, key: str) -> bool:
        """Whether a conversation was ingested completely and not forgotten."""
        self._check_usable(user)
        row = self._journal.find(user, session_id, key)
        return row is not None and row.done

    def used_fallback(self, user: TenantUser, session_id: str, key: str) -> bool:
        """Whether the fallback found the facts of a conversation because `extract` failed."""
        self._check_usable(user)
        row = self._journal.find(user, session_id, key)
        return row is not None and row.used_fallback

    def fallback_ingests(self, user: TenantUser) -> list[tuple[str, str]]:
        """Return session id and history key of each conversation whose facts were found by rules, not by the model."""
        self._check_usable(user)
        return list(self._journal.fallback_ingests(user))

    def _ingest(self, history: History, messages: Iterable[Sequence[ArchivedMessage]], *, redo: bool) -> None:
        self._check_usable(history.user)
        attempt = self._journal.begin(history, redo=redo)
        if attempt is None:
            return
        used_fallback = False
        for chunk in _split_chunks(messages):
            facts, by_fallback = self._extract_facts(chunk)
            used_fallback |= by_fallback
            if redo and by_fallback:
                break
            self._store_facts(attempt, chunk, facts)
        self._journal.end(attempt, used_fallback=used_fallback)

    def _extract_facts(self, chunk: Sequence[ArchivedMessage]) -> tuple[Sequence[Fact], bool]:
        # Messages that were copied from another session count there.
        own = [archived for archived in chunk if archived.message.origin is None]
        if self._extract is None or not any(archived.message.role == "user" for archived in own):
            return self._fallback(own), False
        try:
            return self._extract(own), False
        except errors.Error:
            return self._fallback(own), True

    def _store_facts(self, attempt: IngestAttempt, chunk: Sequence[ArchivedMessage], facts: Sequence[Fact]) -> None:
        """Replace the mentions of these messages by the facts that were found in them."""
        history = attempt.history
        new = _mentions_by_slot(history.session_id, chunk, facts)
        positions = {archived.position for archived in chunk}
        for _ in range(limits.RETRIES_MAX):
            seen = self._facts.read_ranked(history.user)
            expected = self._journal.expected_row(attempt)
            known = self._facts.slots_of_messages(history.user, history.session_id, positions)
            before = self._facts.slots(history.user, [*known, *new])
            after = dict[str, FactSlot]()
            for name in {*before, *new}:
                about, mentions = new.get(name, (before[name].about if name in before else "", []))
                left = fact_store.remove_mentions(before.get(name, FactSlot(about)), history.session_id, positions)
                after[name] = fact_store.add_mentions(left, mentions)
            if before == after or self._facts.write_slots(seen, before, after, expected=expected):
                return
        raise errors.Unavailable("too many concurrent changes of the facts of this user; retry.")

    def profile(self, user: TenantUser, budget: int) -> Profile:
        """Return the current facts of a user in at most `budget` tokens, the most useful first."""
        self._check_usable(user)
        if budget <= 0:
            return Profile("", 0)
        return fact_store.write_profile(self._facts.read_ranked(user).ranked.facts, budget, self._count)

    def search(self, user: TenantUser, query: str, limit: int) -> list[MemoryResult]:
        """Return up to `limit` facts that share words with a query: current ones first, then those they replaced."""
        self._check_usable(user)
        checked_limit(limit, limits.MEMORY_RESULTS_MAX)
        return fact_store.search_facts(self._facts, user, query, limit)

    def facts(self, user: TenantUser) -> list[Fact]:
        """Return all facts of a user, also replaced ones, the newest first."""
        self._check_usable(user)
        found = (fact for slot in self._facts.all_slots(user) for fact in fact_store.slot_facts(user, slot))
        return sorted(found, key=lambda fact: (-fact.since_us, -fact.source.position, fact.id))

    def sources(self, user: TenantUser, fact: Fact) -> list[Source]:
        """Return the messages that state a fact, the newest first, up to limits.FACT_SOURCES_MAX."""
        self._check_usable(user)
        name = fact_store.slot_name(fact.about, fact.text)
        return [
            source
            for slot in self._facts.slots(user, [name]).values()
            for source in fact_store.slot_sources(slot, fact.text)
        ]

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
        """Delete the facts of a user, or those from one session, or from one message; return how many.

        A fact with other sources stays. A fact that a deleted one had replaced is current again. When
        this returns, nothing of it is in any file. Raises Unavailable after too many concurrent
        changes: call again.
        """
        self._check_usable(user)
        if position is not None:
            checked_int("position", position, 0, 2**63 - 1, unit="a position in the log")
        if session_id is None and position is None:
            gone = sum(1 for _ in self.facts(user))
            retry_write(lambda: self._journal.forget(user, self._facts.drop_user(user)) or None)
        else:
            gone = self._forget_mentions(user, session_id, position)
        self._index.scrub()
        return gone

    def _forget_mentions(self, user: TenantUser, session_id: str | None, position: int | None) -> int:
        gone = 0
        # First, so that a running ingest fails at its next write and stores nothing again.
        if session_id is not None and position is None:
            retry_write(lambda: self._journal.forget_session(user, session_id) or None)
        else:
            retry_write(lambda: self._journal.abort_attempts(user) or None)
        lost = 0
        while lost < limits.RETRIES_MAX:
            seen = self._facts.read_ranked(user)
            if not (names := self._facts.slots_of_source(user, session_id, position)):
                return gone
            before = self._facts.slots(user, names)
            if not before:
                raise errors.Corrupt("an index row of the memory names a fact that does not exist.")
            positions = None if position is None else {position}
            after = {n: fact_store.remove_mentions(slot, session_id, positions) for n, slot in before.items()}
            if self._facts.write_slots(seen, before, after):
                gone += sum(len(fact_store.slot_facts(user, slot)) for slot in before.values())
                gone -= sum(len(fact_store.slot_facts(user, slot)) for slot in after.values())
                lost = 0
            else:
                lost += 1
        raise errors.Unavailable("too many concurrent changes of the facts of this user; retry.")

    def close(self) -> None:
        """Refuse every further call. The index store stays open: its owner closes it."""
        self._closed = True

    def _check_usable(self, user: TenantUser) -> None:
        if self._closed:
            raise errors.EngineClosed
        if not user.tenant or not user.user_id:
            raise errors.InvalidRequest("a call of the memory names a tenant and a user.")


_: type[MemoryEngine] = BuiltInMemory


def _split_chunks(messages: Iterable[Sequence[ArchivedMessage]]) -> Iterator[Sequence[ArchivedMessage]]:
    for chunk in messages:
        for at in range(0, len(chunk), limits.MEMORY_CHUNK):
            yield chunk[at : at + limits.MEMORY_CHUNK]


def _mentions_by_slot(session_id: str, chunk: Sequence[ArchivedMessage], facts: Sequence[Fact]) -> MentionsBySlot:
    """Return the mentions of facts, by slot. A model may have found them, so their texts are checked."""
    users = {archived.position: archived for archived in chunk if archived.message.role == "user"}
    found, counts = MentionsBySlot(), dict[int, int]()
    for fact in facts:
        message = users.get(fact.source.position)
        text = rules.clean(fact.text)
        index = counts.get(fact.source.position, 0)
        if message is None or not text or index >= limits.FACTS_PER_MESSAGE_MAX:
            continue
        if rules.reads_as_instruction(text) or rules.is_secret(text):
            continue
        counts[message.position] = index + 1
        about = rules.clean(fact.about, limits.FACT_ABOUT_CHARS_MAX)
        mention = Mention(message.time_us, message.position, index, session_id, message.message.id, fact.kind, text)
        found.setdefault(fact_store.slot_name(about, text), (about, []))[1].append(mention)
    return found
