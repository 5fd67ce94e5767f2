"""Stores the facts of users: mentions by slot, two indexes, and the ranked current facts.

A slot holds all mentions of one subject. Which fact holds, and since when, is computed from them by
time, so deliveries may come in any order. Each change is one write that expects the row of ranked
facts unchanged: concurrent changes of one user never overwrite each other.
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

from limpet import limits
from limpet.core.values.memory_records import Fact, FactKind, Profile, Recalled, Source, Who
from limpet.memory import index_store
from limpet.memory.index import terms
from limpet.memory.index_store import (
    NO_EXPECTATION,
    DropRows,
    ExpectedRows,
    IndexStore,
    PutRow,
    decode_row,
    encode_key,
    prefix_end,
)


class Mention(msgspec.Struct, frozen=True, array_like=True):
    """That something was said once. Mentions compare as the moments in which they were said."""

    time_us: int
    position: int
    index: int
    session_id: str
    message_id: str
    kind: FactKind
    text: str


class FactSlot(msgspec.Struct, frozen=True, array_like=True):
    """All that was said about one thing, the newest last. Without `about` it is one sentence, said any number of times."""

    about: str
    mentions: tuple[Mention, ...] = ()


_PUNCTUATION: Final = " \t.,;:!?\"'“”‘’…。、，；：！？「」"


def normalize_wording(text: str) -> str:
    """Return text without what makes no difference to its meaning: two of the same say the same."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_PUNCTUATION)


def slot_name(about: str, text: str) -> str:
    """Return the name of the slot that a fact belongs to."""
    return f"about:{about}" if about else f"text:{_digest(normalize_wording(text))}"


def add_mentions(slot: FactSlot, new: Iterable[Mention]) -> FactSlot:
    """Return a slot with more mentions, within its bounds: of each wording and of all the newest stay."""
    ordered = sorted({*slot.mentions, *new}, key=_mention_order, reverse=True)
    kept, said = list[Mention](), dict[str, int]()
    for mention in ordered:
        words = normalize_wording(mention.text)
        said[words] = said.get(words, 0) + 1
        if said[words] <= limits.FACT_SOURCES_MAX:
            kept.append(mention)
    return FactSlot(slot.about, tuple(reversed(kept[: limits.SLOT_SOURCES_MAX])))


def remove_mentions(
    slot: FactSlot, session_id: str | None, positions: Iterable[int] | None
) -> FactSlot:
    """Return a slot without what one session said, or any, at these positions or anywhere."""
    gone = None if positions is None else set(positions)
    left = (
        mention
        for mention in slot.mentions
        if (session_id is not None and mention.session_id != session_id)
        or (gone is not None and mention.position not in gone)
    )
    return FactSlot(slot.about, tuple(left))


def slot_facts(who: Who, slot: FactSlot) -> list[Fact]:
    """Return the facts of a slot, the newest first; the first one holds."""
    runs = [
        list(run)
        for _, run in itertools.groupby(slot.mentions, lambda m: normalize_wording(m.text))
    ]
    found = dict[str, Fact]()
    until: int | None = None
    for run in reversed(runs):
        newest = run[-1]
        words = normalize_wording(newest.text)
        if words not in found:
            found[words] = _fact_of_mention(
                who, slot.about, newest, since_us=run[0].time_us, until_us=until
            )
        until = run[0].time_us
    return list(found.values())


def slot_sources(slot: FactSlot, text: str) -> Iterator[Source]:
    """Yield who said so, the newest first."""
    for mention in reversed(slot.mentions):
        if normalize_wording(mention.text) == normalize_wording(text):
            yield Source(mention.session_id, mention.message_id, mention.position)


def _fact_of_mention(
    who: Who, about: str, said: Mention, *, since_us: int, until_us: int | None
) -> Fact:
    named = index_store.encode_key(who.tenant, who.user_id, about, normalize_wording(said.text))
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
    """The facts of a user that hold, the most useful first; `more`: there are others, all of them less useful.

    `turn` counts the changes of all that is known of the user.
    """

    revision: int = 0
    more: bool = False
    facts: tuple[Fact, ...] = ()


def usefulness(fact: Fact) -> tuple[int, int, int, str]:
    """Return how useful a fact is; the least value is the most useful: who they are, what they can't have,
    what they like, what else is so, whom and what they mention; the newest first.
    """
    topic = fact.about.partition(":")[0]
    rank = 0 if topic in _IDENTITY else 1 if topic in _CONSTRAINTS else _BY_KIND[fact.kind]
    return rank, -fact.since_us, -fact.source.position, fact.id


def update_ranked_facts(
    ready: RankedFacts,
    gone: Iterable[Fact],
    new: Iterable[Fact],
    all_facts: Callable[[], Iterable[Fact]],
) -> RankedFacts:
    """Return the list after some facts ceased to hold and others came to; `all_facts` is asked only if it is short."""
    lost = {fact.id for fact in gone}
    facts = [fact for fact in ready.facts if fact.id not in lost]
    more = ready.more
    for fact in new:
        if more and (not facts or usefulness(fact) > usefulness(facts[-1])):
            continue
        bisect.insort(facts, fact, key=usefulness)
    if more and len(facts) < limits.PROFILE_FACTS_MAX:
        facts, more = sorted(all_facts(), key=usefulness), False
    if len(facts) > limits.PROFILE_FACTS_KEPT:
        del facts[limits.PROFILE_FACTS_KEPT :]
        more = True
    return RankedFacts(ready.revision + 1, more, tuple(facts))


def write_profile(facts: Sequence[Fact], budget: int, count: CountTokens) -> Profile:
    """Return a profile within a budget of tokens: one line for each fact, the words of the user in quotes."""
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
    # Lines together may have more tokens than one by one.
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


_STOP_WORDS: Final = frozenset(
    [
        "a",
        "about",
        "am",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "but",
        "by",
        "can",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "how",
        "i",
        "if",
        "im",
        "in",
        "is",
        "it",
        "its",
        "ive",
        "me",
        "my",
        "no",
        "not",
        "of",
        "on",
        "or",
        "our",
        "so",
        "that",
        "the",
        "this",
        "to",
        "was",
        "we",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)
"""Words that half of all sentences have."""


def search_terms(text: str) -> list[str]:
    """Return the words of a text that can be looked for, in order, as the archive finds them."""
    return [
        word for term in terms.count_terms(text) if (word := term.decode()) not in _stop_terms()
    ]


@functools.cache
def _stop_terms() -> frozenset[str]:
    return frozenset(term.decode() for word in _STOP_WORDS for term in terms.count_terms(word))


def search_facts(book: FactStore, who: Who, query: str, k: int) -> list[Recalled]:
    """Return up to k facts of a user, the best first."""
    weights = dict[str, float]()
    scores = dict[str, float]()
    for word in search_terms(query[: limits.FACT_SCAN_CHARS_MAX])[: limits.FACT_QUERY_TERMS]:
        names = book.slots_with_word(who, word)
        weights[word] = 1 / (1 + math.log1p(len(names)))
        for name in names:
            scores[name] = scores.get(name, 0.0) + weights[word]
    best = sorted(scores, key=lambda name: (-scores[name], name))[: 2 * k]
    found = list[tuple[bool, Recalled]]()
    for name, slot in book.slots(who, best).items():
        for place, fact in enumerate(slot_facts(who, slot)):
            own = sum(weights.get(word, 0.0) for word in search_terms(fact.text))
            # Who asks for what was so is told first what is so.
            score = own if place else max(own, scores[name])
            if score:
                found.append((place > 0, _recalled_fact(fact, score)))
    found.sort(key=lambda each: (each[0], -each[1].score, -each[1].time_us, each[1].text))
    return [recalled for _, recalled in found[:k]]


def _recalled_fact(fact: Fact, score: float) -> Recalled:
    return Recalled(
        text=fact.text,
        score=round(score, 6),
        time_us=fact.since_us,
        kind=fact.kind,
        source=fact.source,
        until_us=fact.until_us,
    )


SLOTS = "memory.slots"
SOURCES = "memory.sources"
WORDS = "memory.words"
RANKED_FACTS = "memory.ready"
TABLES = (SLOTS, SOURCES, WORDS, RANKED_FACTS)

SlotsByName = Mapping[str, FactSlot]


class RankedFactsRow(msgspec.Struct, frozen=True):
    """The ready row of a user as it was before anything else was read."""

    who: Who
    row: bytes | None
    ranked: RankedFacts


class FactStore:
    """The rows of all users on a shelf."""

    def __init__(self, shelf: IndexStore) -> None:
        self._shelf = shelf

    def slots(self, who: Who, names: Iterable[str]) -> dict[str, FactSlot]:
        """Return the slots of these names that are there."""
        at = {_user_key(who, name): name for name in names}
        found = self._shelf.get(SLOTS, list(at))
        return {at[row]: _decode_slot(value) for row, value in found.items()}

    def all_slots(self, who: Who) -> Iterator[FactSlot]:
        """Yield every slot of a user, some hundred at a time."""
        for _key, value in self._rows(SLOTS, _user_key(who)):
            yield _decode_slot(value)

    def ranked_facts(self, who: Who) -> RankedFacts:
        """Return the facts that stand ready for a profile."""
        return self.read_ranked(who).ranked

    def read_ranked(self, who: Who) -> RankedFactsRow:
        """Return what a change must begin with: whatever is read after it is as it says, or the change fails."""
        row = self._shelf.get(RANKED_FACTS, [_user_key(who)]).get(_user_key(who))
        return RankedFactsRow(who, row, decode_row(row, RankedFacts) if row else RankedFacts())

    def slots_of_messages(self, who: Who, session_id: str, positions: Collection[int]) -> set[str]:
        """Return the names of the slots that have something of these messages."""
        first, last = (
            _user_key(who, session_id, min(positions)),
            _user_key(who, session_id, max(positions)),
        )
        rows = self._rows(SOURCES, first, prefix_end(last))
        return {
            source.slot
            for _, value in rows
            if (source := decode_row(value, SlotSource)).position in positions
        }

    def slots_of_source(self, who: Who, session_id: str | None, position: int | None) -> set[str]:
        """Return the names of some slots that have something of a session, or of a message; none: there are none."""
        if session_id is None:
            rows = self._rows(SOURCES, _user_key(who))
        elif position is None:
            rows = self._rows(SOURCES, _user_key(who, session_id))
        else:
            rows = self._rows(SOURCES, _user_key(who, session_id, position))
        found = set[str]()
        for _, value in rows:
            source = decode_row(value, SlotSource)
            if position in (None, source.position):
                found.add(source.slot)
            if len(found) >= limits.MEMORY_ROWS:
                break
        return found

    def slots_with_word(self, who: Who, word: str) -> list[str]:
        """Return the names of slots that have a word."""
        at = _user_key(who, word)
        rows = self._shelf.scan(WORDS, at, prefix_end(at), limit=limits.MEMORY_ROWS)
        return [value.decode() for _, value in rows]

    def write_slots(
        self,
        seen: RankedFactsRow,
        before: SlotsByName,
        then: SlotsByName,
        *,
        expected: ExpectedRows = NO_EXPECTATION,
    ) -> bool:
        """Put slots in the place of others, all or none; return whether nothing has changed since it was seen.

        `before` has those that are there, `then` all that change; one without mentions is gone.
        """
        who = seen.who
        names = [name for name in then if then[name] != before.get(name)]
        changes = list[PutRow | DropRows]()
        for name in names:
            changes += _slot_rows(who, name, before.get(name), then[name])
        gone = [fact for name in names for fact in _current_facts(who, before.get(name))]
        new = [fact for name in names for fact in _current_facts(who, then[name])]
        now = update_ranked_facts(
            seen.ranked, gone, new, lambda: self._all_current_facts(who, then)
        )
        changes.append(PutRow(RANKED_FACTS, _user_key(who), msgspec.msgpack.encode(now)))
        return self._shelf.write(
            changes, expected={**expected, (RANKED_FACTS, _user_key(who)): seen.row}
        )

    def _all_current_facts(self, who: Who, then: SlotsByName) -> Iterator[Fact]:
        """Yield the facts that hold once these slots are changed."""
        for slot in self.all_slots(who):
            if slot.mentions and _name_of(slot) not in then:
                yield from _current_facts(who, slot)
        for slot in then.values():
            yield from _current_facts(who, slot)

    def drop_user(self, who: Who) -> list[DropRows]:
        """Return what drops every row of a user."""
        return [DropRows(book, _user_key(who), prefix_end(_user_key(who))) for book in TABLES]

    def scrub(self) -> None:
        """See to it that nothing of what was dropped is left in any file."""
        self._shelf.scrub()

    def _rows(
        self, book: str, first: bytes, last: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        end = prefix_end(first) if last is None else last
        while rows := self._shelf.scan(book, first, end, limit=limits.MEMORY_ROWS):
            yield from rows
            first = rows[-1][0] + b"\0"


class SlotSource(msgspec.Struct, frozen=True, array_like=True):
    """That a message is a source of a slot."""

    position: int
    slot: str


def _user_key(who: Who, *parts: str | int) -> bytes:
    return encode_key(who.tenant, who.user_id, *parts)


def _decode_slot(value: bytes) -> FactSlot:
    return decode_row(value, FactSlot)


def _name_of(slot: FactSlot) -> str:
    return slot_name(slot.about, slot.mentions[-1].text)


def _current_facts(who: Who, slot: FactSlot | None) -> Sequence[Fact]:
    return slot_facts(who, slot)[:1] if slot and slot.mentions else ()


def _slot_rows(
    who: Who, name: str, before: FactSlot | None, then: FactSlot
) -> Iterator[PutRow | DropRows]:
    at = _user_key(who, name)
    yield (
        PutRow(SLOTS, at, msgspec.msgpack.encode(then))
        if then.mentions
        else DropRows(SLOTS, at, at + b"\0")
    )
    for rows, book in ((_source_rows, SOURCES), (_word_rows, WORDS)):
        was, now = rows(who, name, before), rows(who, name, then)
        yield from (DropRows(book, key_, key_ + b"\0") for key_ in was.keys() - now.keys())
        yield from (PutRow(book, key_, value) for key_, value in now.items() if key_ not in was)


def _source_rows(who: Who, name: str, slot: FactSlot | None) -> dict[bytes, bytes]:
    return {
        _user_key(who, said.session_id, said.position, name): msgspec.msgpack.encode(
            SlotSource(said.position, name)
        )
        for said in (slot.mentions if slot else ())
    }


def _word_rows(who: Who, name: str, slot: FactSlot | None) -> dict[bytes, bytes]:
    words = {word for said in (slot.mentions if slot else ()) for word in search_terms(said.text)}
    return {_user_key(who, word, name): name.encode() for word in words}
