"""Stores the facts of users: mentions by slot, two indexes, the ranked current facts, and the journal of ingests.

A slot holds all mentions of one subject. Which fact holds, and since when, is computed from them by
time, so deliveries may come in any order. Each change is one write that expects the row of ranked
facts unchanged: concurrent changes of one user never overwrite each other.

The journal records which conversations were ingested, so that each takes effect once. An ingest holds
a row, and each of its writes expects that row unchanged. A second ingest of the same conversation
changes the row, and a deletion removes it: the next write of the first one then fails. Epochs count
deletions, so that a row that was removed and written again differs from the old one.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import hashlib
import itertools
import math
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.values.memory_records import Fact, FactKind, History, MemoryResult, Profile, Source, TenantUser
from limpet.memory.index import terms
from limpet.memory.index_store import (
    NO_EXPECTATION,
    DropRows,
    ExpectedRows,
    IndexStore,
    PutRow,
    decode_row,
    drop_row,
    encode_key,
    prefix_end,
    scan_all,
)


class Mention(msgspec.Struct, frozen=True, array_like=True):
    """One message that states something."""

    time_us: int
    position: int
    index: int
    session_id: str
    message_id: str
    kind: FactKind
    text: str


class FactSlot(msgspec.Struct, frozen=True, array_like=True):
    """All mentions of one subject, the newest last. Without `about`, all mentions of one sentence."""

    about: str
    mentions: tuple[Mention, ...] = ()


_PUNCTUATION: Final = " \t.,;:!?\"'“”‘’…。、，；：！？「」"


def normalize_wording(text: str) -> str:
    """Return text without differences of case, width, space and punctuation. Equal results mean equal facts."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_PUNCTUATION)


def slot_name(about: str, text: str) -> str:
    """Return the name of the slot of a fact."""
    return f"about:{about}" if about else f"text:{_digest(normalize_wording(text))}"


def add_mentions(slot: FactSlot, new: Iterable[Mention]) -> FactSlot:
    """Return a slot with more mentions. Of each wording and of all, the newest stay within the limits."""
    ordered = sorted({*slot.mentions, *new}, key=_mention_order, reverse=True)
    kept, said = list[Mention](), dict[str, int]()
    for mention in ordered:
        words = normalize_wording(mention.text)
        said[words] = said.get(words, 0) + 1
        if said[words] <= limits.FACT_SOURCES_MAX:
            kept.append(mention)
    return FactSlot(slot.about, tuple(reversed(kept[: limits.SLOT_SOURCES_MAX])))


def remove_mentions(slot: FactSlot, session_id: str | None, positions: Iterable[int] | None) -> FactSlot:
    """Return a slot without the mentions of a session (None: of any) at some positions (None: at all)."""
    gone = None if positions is None else set(positions)
    left = (
        mention
        for mention in slot.mentions
        if (session_id is not None and mention.session_id != session_id)
        or (gone is not None and mention.position not in gone)
    )
    return FactSlot(slot.about, tuple(left))


def slot_facts(user: TenantUser, slot: FactSlot) -> list[Fact]:
    """Return the facts of a slot, the newest first. The first one is current; a later wording replaced the others."""
    runs = [list(run) for _, run in itertools.groupby(slot.mentions, lambda m: normalize_wording(m.text))]
    found = dict[str, Fact]()
    until: int | None = None
    for run in reversed(runs):
        newest = run[-1]
        words = normalize_wording(newest.text)
        if words not in found:
            found[words] = _fact_of_mention(user, slot.about, newest, since_us=run[0].time_us, until_us=until)
        until = run[0].time_us
    return list(found.values())


def slot_sources(slot: FactSlot, text: str) -> Iterator[Source]:
    """Yield the messages that state a fact, the newest first."""
    for mention in reversed(slot.mentions):
        if normalize_wording(mention.text) == normalize_wording(text):
            yield Source(mention.session_id, mention.message_id, mention.position)


def _fact_of_mention(user: TenantUser, about: str, said: Mention, *, since_us: int, until_us: int | None) -> Fact:
    named = encode_key(user.tenant, user.user_id, about, normalize_wording(said.text))
    return Fact(
        id=f"fact_{_digest(named)}",
        kind=said.kind,
        text=said.text,
        source=Source(said.session_id, said.message_id, said.position),
        since_us=since_us,
        about=about,
        until_us=until_us,
    )


def _mention_order(mention: Mention) -> tuple[int, int, int, str, str]:
    return mention.time_us, mention.position, mention.index, mention.session_id, mention.text


def _digest(data: str | bytes) -> str:
    whole = data.encode() if isinstance(data, str) else data
    return hashlib.blake2b(whole, digest_size=12).hexdigest()


CountTokens = Callable[[str], int]

_IDENTITY: Final = ("name", "nickname", "pronouns", "language", "age")
_CONSTRAINTS: Final = ("allergy", "diet", "eat")
_BY_KIND: Final = {FactKind.PREFERENCE: 2, FactKind.FACT: 3, FactKind.ENTITY: 4}
_MISSES_MAX: Final = 16


class RankedFacts(msgspec.Struct, frozen=True, array_like=True):
    """The current facts of a user, the most useful first. `more` says that others exist, all less useful.

    `revision` counts the changes of all facts of the user.
    """

    revision: int = 0
    more: bool = False
    facts: tuple[Fact, ...] = ()


def usefulness(fact: Fact) -> tuple[int, int, int, str]:
    """Return a sort key, the lowest for the most useful fact.

    Identity comes first, then constraints such as allergies, preferences, other facts, entities; the
    newest first in each.
    """
    topic = fact.about.partition(":")[0]
    rank = 0 if topic in _IDENTITY else 1 if topic in _CONSTRAINTS else _BY_KIND[fact.kind]
    return rank, -fact.since_us, -fact.source.position, fact.id


def update_ranked_facts(
    ranked: RankedFacts, gone: Iterable[Fact], new: Iterable[Fact], all_facts: Callable[[], Iterable[Fact]]
) -> RankedFacts:
    """Return the ranked facts without `gone` and with `new`. Calls `all_facts` only if too few are left."""
    lost = {fact.id for fact in gone}
    facts = [fact for fact in ranked.facts if fact.id not in lost]
    more = ranked.more
    for fact in new:
        if more and (not facts or usefulness(fact) > usefulness(facts[-1])):
            continue
        bisect.insort(facts, fact, key=usefulness)
    if more and len(facts) < limits.PROFILE_FACTS_MAX:
        facts, more = sorted(all_facts(), key=usefulness), False
    if len(facts) > limits.PROFILE_FACTS_KEPT:
        del facts[limits.PROFILE_FACTS_KEPT :]
        more = True
    return RankedFacts(ranked.revision + 1, more, tuple(facts))


def write_profile(facts: Sequence[Fact], budget: int, count: CountTokens) -> Profile:
    """Return a profile within a budget of tokens: a line for each fact, with the words of the user in quotes."""
    lines, taken, said = list[str](), list[Fact](), set[str]()
    room, misses = budget, 0
    for fact in facts[: limits.PROFILE_FACTS_MAX]:
        if fact.text in said:
            continue
        line = _fact_line(fact)
        tokens = count(line + "\n")
        if tokens > room:
            misses += 1
            if misses > _MISSES_MAX:
                break
            continue
        room -= tokens
        said.add(fact.text)
        lines.append(line)
        taken.append(fact)
    # Tokens do not add up exactly: the joined lines may have more than their sum.
    while lines and count("\n".join(lines)) > budget:
        del lines[-1], taken[-1]
    text = "\n".join(lines)
    return Profile(text, count(text) if text else 0, tuple(taken))


def _fact_line(fact: Fact) -> str:
    quoted = fact.text.replace("“", "'").replace("”", "'")
    return f"- “{quoted}” ({_iso_date(fact.since_us)})"


def _iso_date(time_us: int) -> str:
    epoch = datetime.date(1970, 1, 1)
    try:
        return (epoch + datetime.timedelta(microseconds=time_us)).isoformat()
    except OverflowError:
        return "undated"


_STOP_WORDS: Final = frozenset([
    "a", "about", "am", "an", "and", "are", "as", "at", "be", "but", "by", "can", "did", "do",
    "does", "for", "from", "had", "has", "have", "how", "i", "if", "im", "in", "is", "it",
    "its", "ive", "me", "my", "no", "not", "of", "on", "or", "our", "so", "that", "the", "this",
    "to", "was", "we", "what", "when", "where", "which", "who", "why", "will", "with", "you",
    "your"
])  # fmt: skip
"""Words that are too common to find anything by."""


def search_terms(text: str) -> list[str]:
    """Return the terms of a text without stop words, in order, by the rules of the archive."""
    return [word for term in terms.count_terms(text) if (word := term.decode()) not in _stop_terms()]


@functools.cache
def _stop_terms() -> frozenset[str]:
    return frozenset(term.decode() for word in _STOP_WORDS for term in terms.count_terms(word))


def search_facts(store: FactStore, user: TenantUser, query: str, limit: int) -> list[MemoryResult]:
    """Return up to `limit` facts of a user that share words with a query, current ones first."""
    weights = dict[str, float]()
    scores = dict[str, float]()
    for word in search_terms(query[: limits.FACT_SCAN_CHARS_MAX])[: limits.FACT_QUERY_TERMS]:
        names = store.slots_with_word(user, word)
        weights[word] = 1 / (1 + math.log1p(len(names)))
        for name in names:
            scores[name] = scores.get(name, 0.0) + weights[word]
    best = sorted(scores, key=lambda name: (-scores[name], name))[: 2 * limit]
    found = list[tuple[bool, MemoryResult]]()
    for name, slot in store.slots(user, best).items():
        for place, fact in enumerate(slot_facts(user, slot)):
            own = sum(weights.get(word, 0.0) for word in search_terms(fact.text))
            # A query for a replaced fact finds the current one first, so it gets the score of the slot.
            score = own if place else max(own, scores[name])
            if score:
                result = MemoryResult(
                    text=fact.text,
                    score=round(score, 6),
                    time_us=fact.since_us,
                    kind=fact.kind,
                    source=fact.source,
                    until_us=fact.until_us,
                )
                found.append((place > 0, result))
    found.sort(key=lambda each: (each[0], -each[1].score, -each[1].time_us, each[1].text))
    return [recalled for _, recalled in found[:limit]]


SLOTS = "memory.slots"
SOURCES = "memory.sources"
WORDS = "memory.words"
RANKED_FACTS = "memory.ready"
TABLES = (SLOTS, SOURCES, WORDS, RANKED_FACTS)

SlotsByName = Mapping[str, FactSlot]


class RankedFactsRow(msgspec.Struct, frozen=True):
    """The row of a user's ranked facts, read before the slots that a change rests on.

    Every change of a user writes this row and expects it unchanged: it is the optimistic lock of all
    rows of the user.
    """

    user: TenantUser
    row: bytes | None
    ranked: RankedFacts


class FactStore:
    """The facts of all users in an index store."""

    def __init__(self, index: IndexStore) -> None:
        self._index = index

    def slots(self, user: TenantUser, names: Iterable[str]) -> dict[str, FactSlot]:
        """Return the slots of these names that exist."""
        at = {_user_key(user, name): name for name in names}
        found = self._index.get(SLOTS, list(at))
        return {at[row]: decode_row(value, FactSlot) for row, value in found.items()}

    def all_slots(self, user: TenantUser) -> Iterator[FactSlot]:
        """Yield every slot of a user."""
        for _key, value in self._rows(SLOTS, _user_key(user)):
            yield decode_row(value, FactSlot)

    def read_ranked(self, user: TenantUser) -> RankedFactsRow:
        """Return the row that a change must read first: if it changes before `write_slots`, the write fails."""
        row = self._index.get(RANKED_FACTS, [_user_key(user)]).get(_user_key(user))
        return RankedFactsRow(user, row, decode_row(row, RankedFacts) if row else RankedFacts())

    def slots_of_messages(self, user: TenantUser, session_id: str, positions: Collection[int]) -> set[str]:
        """Return the names of the slots with mentions in these messages."""
        first, last = (_user_key(user, session_id, min(positions)), _user_key(user, session_id, max(positions)))
        rows = self._rows(SOURCES, first, prefix_end(last))
        return {source.slot for _, value in rows if (source := decode_row(value, SlotSource)).position in positions}

    def slots_of_source(self, user: TenantUser, session_id: str | None, position: int | None) -> set[str]:
        """Return the names of some slots with mentions in a session, or at a position; empty if there are none.

        At most limits.MEMORY_ROWS names: the caller removes their mentions and calls again.
        """
        message = () if session_id is None else (session_id,) if position is None else (session_id, position)
        rows = self._rows(SOURCES, _user_key(user, *message))
        found = set[str]()
        for _, value in rows:
            source = decode_row(value, SlotSource)
            if position in (None, source.position):
                found.add(source.slot)
            if len(found) >= limits.MEMORY_ROWS:
                break
        return found

    def slots_with_word(self, user: TenantUser, word: str) -> list[str]:
        """Return the names of slots with a word."""
        at = _user_key(user, word)
        rows = self._index.scan(WORDS, at, prefix_end(at), limit=limits.MEMORY_ROWS)
        return [value.decode() for _, value in rows]

    def write_slots(
        self, seen: RankedFactsRow, before: SlotsByName, then: SlotsByName, *, expected: ExpectedRows = NO_EXPECTATION
    ) -> bool:
        """Replace slots, all or none; return False if the user's facts have changed since `seen` was read.

        `before` has the slots that exist, `then` all that change. A slot without mentions is deleted.
        """
        user = seen.user
        names = [name for name in then if then[name] != before.get(name)]
        changes = list[PutRow | DropRows]()
        for name in names:
            changes += _slot_rows(user, name, before.get(name), then[name])
        gone = [fact for name in names for fact in _current_facts(user, before.get(name))]
        new = [fact for name in names for fact in _current_facts(user, then[name])]
        now = update_ranked_facts(seen.ranked, gone, new, lambda: self._all_current_facts(user, then))
        changes.append(PutRow(RANKED_FACTS, _user_key(user), msgspec.msgpack.encode(now)))
        return self._index.write(changes, expected={**expected, (RANKED_FACTS, _user_key(user)): seen.row})

    def _all_current_facts(self, user: TenantUser, then: SlotsByName) -> Iterator[Fact]:
        for slot in self.all_slots(user):
            if slot.mentions and _name_of(slot) not in then:
                yield from _current_facts(user, slot)
        for slot in then.values():
            yield from _current_facts(user, slot)

    def drop_user(self, user: TenantUser) -> list[DropRows]:
        """Return the changes that delete every row of a user."""
        return [DropRows(table, _user_key(user), prefix_end(_user_key(user))) for table in TABLES]

    def _rows(self, table: str, first: bytes, last: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return scan_all(self._index, table, first, prefix_end(first) if last is None else last)


class SlotSource(msgspec.Struct, frozen=True, array_like=True):
    """Index row: the message at a position has a mention in a slot."""

    position: int
    slot: str


def _user_key(user: TenantUser, *parts: str | int) -> bytes:
    return encode_key(user.tenant, user.user_id, *parts)


def _name_of(slot: FactSlot) -> str:
    return slot_name(slot.about, slot.mentions[-1].text)


def _current_facts(user: TenantUser, slot: FactSlot | None) -> Sequence[Fact]:
    return slot_facts(user, slot)[:1] if slot and slot.mentions else ()


def _slot_rows(user: TenantUser, name: str, before: FactSlot | None, then: FactSlot) -> Iterator[PutRow | DropRows]:
    at = _user_key(user, name)
    yield (PutRow(SLOTS, at, msgspec.msgpack.encode(then)) if then.mentions else drop_row(SLOTS, at))
    for rows, table in ((_source_rows, SOURCES), (_word_rows, WORDS)):
        was, now = rows(user, name, before), rows(user, name, then)
        yield from (drop_row(table, key) for key in was.keys() - now.keys())
        yield from (PutRow(table, key, value) for key, value in now.items() if key not in was)


def _source_rows(user: TenantUser, name: str, slot: FactSlot | None) -> dict[bytes, bytes]:
    return {
        _user_key(user, said.session_id, said.position, name): msgspec.msgpack.encode(SlotSource(said.position, name))
        for said in (slot.mentions if slot else ())
    }


def _word_rows(user: TenantUser, name: str, slot: FactSlot | None) -> dict[bytes, bytes]:
    words = {word for said in (slot.mentions if slot else ()) for word in search_terms(said.text)}
    return {_user_key(user, word, name): name.encode() for word in words}


INGESTED = "memory.taken"
EPOCHS = "memory.epochs"


class IngestRow(msgspec.Struct, frozen=True, array_like=True):
    """The state of one conversation: in its n-th attempt since an epoch, or done."""

    epoch: int
    attempt: int
    session_id: str
    key: str
    done: bool = False
    used_fallback: bool = False


class IngestAttempt(msgspec.Struct, frozen=True):
    """A running ingest and its row. Each of its writes expects the row unchanged."""

    history: History
    key: bytes
    row: bytes


class IngestJournal:
    """The ingests of all users in an index store."""

    def __init__(self, index: IndexStore) -> None:
        self._index = index

    def find(self, user: TenantUser, session_id: str, key: str) -> IngestRow | None:
        """Return the state of one conversation; None if it was never ingested, or was forgotten."""
        at = encode_key(user.tenant, user.user_id, session_id, key)
        row = self._index.get(INGESTED, [at]).get(at)
        return decode_row(row, IngestRow) if row else None

    def begin(self, history: History, *, redo: bool) -> IngestAttempt | None:
        """Return an attempt; None if there is nothing to do.

        Without `redo` that is so for a conversation that was ingested; with it, for one whose facts the
        fallback did not extract. A forgotten conversation has no row, so `redo` never ingests it again.
        Raises Unavailable after too many concurrent attempts.
        """
        user = history.user
        at, at_epoch = (encode_key(user.tenant, user.user_id, history.session_id, history.key), encode_key(user.tenant))
        for _ in range(limits.RETRIES_MAX):
            # The epoch is read before the row. A deletion between the two reads raises the epoch, and
            # then the write below fails.
            epoch = self._index.get(EPOCHS, [at_epoch]).get(at_epoch)
            seen = self._index.get(INGESTED, [at]).get(at)
            row = decode_row(seen, IngestRow) if seen else IngestRow(0, 0, history.session_id, history.key)
            if not row.used_fallback if redo else row.done:
                return None
            mine = msgspec.msgpack.encode(
                msgspec.structs.replace(row, epoch=_decode_epoch(epoch), attempt=row.attempt + 1, done=False)
            )
            expected = {(INGESTED, at): seen, (EPOCHS, at_epoch): epoch}
            if self._index.write([PutRow(INGESTED, at, mine)], expected=expected):
                return IngestAttempt(history, at, mine)
        raise errors.Unavailable("too many concurrent ingests of one conversation; retry.")

    def expected_row(self, attempt: IngestAttempt) -> ExpectedRows:
        """Return what a write of this attempt must expect.

        Raises Unavailable if another attempt has begun or the conversation was forgotten.
        """
        if self._index.get(INGESTED, [attempt.key]).get(attempt.key) != attempt.row:
            raise errors.Unavailable("the conversation was forgotten, or is being ingested elsewhere; retry.")
        return {(INGESTED, attempt.key): attempt.row}

    def end(self, attempt: IngestAttempt, *, used_fallback: bool) -> None:
        """Record that the conversation was ingested; raise Unavailable as `expected_row` does."""
        row = decode_row(attempt.row, IngestRow)
        done = msgspec.structs.replace(row, done=True, used_fallback=used_fallback)
        put = PutRow(INGESTED, attempt.key, msgspec.msgpack.encode(done))
        if not self._index.write([put], expected=self.expected_row(attempt)):
            self.expected_row(attempt)

    def fallback_ingests(self, user: TenantUser) -> Iterator[tuple[str, str]]:
        """Yield session id and key of the conversations whose facts the fallback extracted."""
        for _key, value in self._rows(user):
            if (row := decode_row(value, IngestRow)).used_fallback:
                yield row.session_id, row.key

    def forget(self, user: TenantUser, drops: Sequence[DropRows]) -> bool:
        """Apply `drops` and delete all rows of a user; return False if another writer was faster."""
        mine = encode_key(user.tenant, user.user_id)
        return self._next_epoch(user, [*drops, DropRows(INGESTED, mine, prefix_end(mine))])

    def forget_session(self, user: TenantUser, session_id: str) -> bool:
        """Delete the rows of a session, so that running attempts fail; return False if another writer was faster."""
        mine = encode_key(user.tenant, user.user_id, session_id)
        return self._next_epoch(user, [DropRows(INGESTED, mine, prefix_end(mine))])

    def abort_attempts(self, user: TenantUser) -> bool:
        """Delete the rows of a user's running attempts, so that they fail and begin again.

        Returns False if another writer was faster.
        """
        if not self._next_epoch(user, []):
            return False
        for _ in range(limits.RETRIES_MAX):
            if not (stale := self._stale_attempts(user)):
                return True
            for at, seen in stale:
                self._index.write([drop_row(INGESTED, at)], expected={(INGESTED, at): seen})
        return False

    def _stale_attempts(self, user: TenantUser) -> list[tuple[bytes, bytes]]:
        at = encode_key(user.tenant)
        epoch = _decode_epoch(self._index.get(EPOCHS, [at]).get(at))
        return [
            (key, value)
            for key, value in self._rows(user)
            if not (row := decode_row(value, IngestRow)).done and row.epoch < epoch
        ]

    def _rows(self, user: TenantUser) -> Iterator[tuple[bytes, bytes]]:
        prefix = encode_key(user.tenant, user.user_id)
        return scan_all(self._index, INGESTED, prefix, prefix_end(prefix))

    def _next_epoch(self, user: TenantUser, drops: Sequence[DropRows]) -> bool:
        at = encode_key(user.tenant)
        epoch = self._index.get(EPOCHS, [at]).get(at)
        put = PutRow(EPOCHS, at, msgspec.msgpack.encode(_decode_epoch(epoch) + 1))
        return self._index.write([*drops, put], expected={(EPOCHS, at): epoch})


def _decode_epoch(row: bytes | None) -> int:
    return decode_row(row, int) if row else 0
