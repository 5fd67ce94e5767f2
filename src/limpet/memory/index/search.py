"""Searches one owner's index: ranks messages by terms, finds the best passage of a message, merges rankings.

A message also gets part of the score of the message that it answers. `SearchCache` keeps the
document rows of recent searches. A changed head of the owner invalidates them.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.memory.index import inverted_index, postings
from limpet.memory.index.inverted_index import SEGMENT_SIZES, ArchiveIndex, OwnerHead, Segment
from limpet.memory.index.postings import FORGOTTEN, HIDDEN, DocumentBlockView, SessionGeneration
from limpet.memory.index.terms import Term, fold, is_prefix, occurrences


class OwnerDocuments:
    """The documents of an owner at one moment. Immutable."""

    def __init__(self, following: int, views: Sequence[tuple[int, DocumentBlockView]]) -> None:
        self.views = sorted(views, key=lambda each: each[0])
        self._firsts = [first for first, _ in self.views]
        self.kinds = bytearray((FORGOTTEN,)) * following
        """The kind of each document, by its number."""
        self.replies: dict[int, list[int]] = {}
        """The visible documents that answer a document, by the number of that document."""
        for first, view in self.views:
            self.kinds[first : first + len(view)] = view.kinds
            for number, far in enumerate(view.answers, first):
                if far and self.kinds[number] < HIDDEN:
                    self.replies.setdefault(number - far, []).append(number)

    def __len__(self) -> int:
        return len(self.kinds)

    def at(self, number: int) -> tuple[DocumentBlockView, int]:
        """Return the block that contains a document, and the index of the document in the block."""
        first, view = self.views[bisect.bisect_right(self._firsts, number) - 1]
        return view, number - first


class SearchCache:
    """Thread-safe LRU cache of owners' documents, limited to limits.ARCHIVE_CACHED_DOCUMENTS documents in all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, tuple[OwnerHead, OwnerDocuments]] = {}

    def get(self, owner: int, head: OwnerHead) -> OwnerDocuments | None:
        """Return the cached documents of an owner; None if none are cached, or if the head has changed."""
        with self._lock:
            entry = self._entries.pop(owner, None)
            if entry is None or entry[0] != head:
                return None
            self._entries[owner] = entry
            return entry[1]

    def put(self, owner: int, head: OwnerHead, documents: OwnerDocuments) -> None:
        """Cache the documents of an owner; drop those of the owners that searched longest ago."""
        with self._lock:
            self._entries.pop(owner, None)
            self._entries[owner] = head, documents
            while sum(len(cached) for _, cached in self._entries.values()) > limits.ARCHIVE_CACHED_DOCUMENTS:
                del self._entries[next(iter(self._entries))]


_K1: Final = 1.2
_B: Final = 0.6
_REPEATED_COUNT: Final = 2.5
"""The assumed count of a term that occurs more than once in a document. The index does not store the real count."""
_ANSWER_WEIGHT: Final = 0.4
"""The part of a message's score that is added to the answer to that message."""
_ROLE_WEIGHTS: Final[Mapping[str, float]] = {
    "user": 1.25, "assistant": 1.0, "system": 0.6, "tool": 0.7,
}  # fmt: skip
_PARTIAL_MATCH_FLOOR: Final = 0.5
"""The factor on the score of a message that has none of the query terms' weight. With all of it the factor is 1."""
_COMMON_SHARE: Final = 8
_ENOUGH_FACTOR: Final = 20
"""A common term, in more than one of 8 messages, adds no candidates if rarer terms have found 20 times the limit."""
_PREFIX_ROWS: Final = 16
_TRIES: Final = 8


_TermDocuments = tuple[list[int], list[int]]
"""The numbers of the documents with a term once, and of those with the term more often."""


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions on a result. An empty or None field is no condition. `since_us` and `until_us` are inclusive."""

    roles: frozenset[str] = frozenset()
    session_id: str | None = None
    since_us: int | None = None
    until_us: int | None = None


NO_FILTER: Final = MessageFilter()


class ArchiveQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a search, the largest number of results, and the conditions on them."""

    terms: Sequence[Term]
    limit: int
    wanted: MessageFilter = NO_FILTER


class ArchiveMatch(msgspec.Struct, frozen=True):
    """A message that matches a query, with its score."""

    position: int
    generation: SessionGeneration
    time_us: int
    role: str
    score: float


class ArchiveMatches(msgspec.Struct, frozen=True):
    """Matches, the best first, and the weight of each term, higher for rarer terms."""

    matches: Sequence[ArchiveMatch]
    weights: Mapping[Term, float]


def find_messages(
    rows: ArchiveIndex, owner: int, sought: ArchiveQuery, cache: SearchCache | None = None
) -> ArchiveMatches:
    """Return up to `limit` messages of an owner that contain a term, or answer a message that does."""
    return _read_index(rows, owner, sought, cache).rank()


def locate_messages(
    rows: ArchiveIndex, owner: int, positions: Collection[int], cache: SearchCache | None = None
) -> dict[int, ArchiveMatch]:
    """Return the messages of an owner at some positions; deleted ones are left out."""
    return _read_index(rows, owner, ArchiveQuery(terms=(), limit=0), cache).locate(positions)


def _read_index(rows: ArchiveIndex, owner: int, sought: ArchiveQuery, cache: SearchCache | None) -> _IndexSearch:
    for _ in range(_TRIES):
        head = rows.head(owner)
        search = _IndexSearch(rows, owner, head, sought, cache)
        # A changed head means that rows were moved meanwhile, and may have been read twice or not at all.
        if rows.head(owner) == head:
            return search
    raise errors.Unavailable("the archive changes too fast to be searched; try again.")


class _IndexSearch:
    """One search of an owner's documents. The constructor reads all rows that are not cached."""

    def __init__(
        self, rows: ArchiveIndex, owner: int, head: OwnerHead, sought: ArchiveQuery, cache: SearchCache | None
    ) -> None:
        self._index = rows
        self._owner = owner
        self._head = head
        self._sought = sought
        self._cache = cache or SearchCache()
        self._pending_from = head.following - head.following % SEGMENT_SIZES[0]
        self._known = self._cache.get(owner, head)
        self._views = [] if self._known else self._read_views()
        self._lists = self._read_lists() if sought.terms else {}

    def _read_views(self) -> list[tuple[int, DocumentBlockView]]:
        views = self._index.views(self._owner, 0, self._pending_from)
        number = self._pending_from
        for _, row in self._index.pending(self._owner):
            views.append((number, DocumentBlockView(row.documents)))
            number += len(row.once)
        return views

    @property
    def _documents(self) -> OwnerDocuments:
        # Built and cached only after `_read_index` has checked that no rows were moved while they were read.
        if self._known is None:
            self._known = OwnerDocuments(self._head.following, self._views)
            self._cache.put(self._owner, self._head, self._known)
        return self._known

    def rank(self) -> ArchiveMatches:
        lists = self._lists
        if not lists:
            return ArchiveMatches((), {})
        weights = {term: _term_weight(self._head.documents, sum(map(len, found))) for term, found in lists.items()}
        best = self._best_documents(lists, weights)
        return ArchiveMatches([self._match(score, number) for score, number in best], weights)

    def locate(self, positions: Collection[int]) -> dict[int, ArchiveMatch]:
        return {
            position: self._match(0.0, first + at)
            for first, view in self._documents.views
            for at, position in enumerate(view.positions())
            if position in positions and view.kinds[at] < HIDDEN
        }

    def _read_lists(self) -> dict[Term, _TermDocuments]:
        """Return the documents of each term that occurs, the rarest term first."""
        found: dict[Term, _TermDocuments] = {term: ([], []) for term in self._sought.terms}
        self._read_pending(found)
        wanted = [(segment, term) for segment in inverted_index.segments(self._head.following) for term in found]
        rows = self._index.rows(self._owner, wanted)
        for (segment, term), row in zip(wanted, rows, strict=True):
            base = segment[1] & ~0xFFFF
            once, often = found[term]
            for data in self._segment_lists(segment, term, row):
                first, second = postings.decode(data)
                once.extend([base + n for n in first] if base else first)
                often.extend([base + n for n in second] if base else second)
        for term, (once, often) in found.items():
            if is_prefix(term):
                # The lists of several terms with this prefix may contain the same document.
                found[term] = (sorted({*once, *often}), [])
        occurring = [(term, lists) for term, lists in found.items() if any(lists)]
        return dict(sorted(occurring, key=lambda item: sum(map(len, item[1]))))

    def _segment_lists(self, segment: Segment, term: Term, row: bytes | None) -> Iterable[bytes]:
        """Return the posting lists of a term in a segment; those of every term with it as prefix, if it is one."""
        if not is_prefix(term):
            data = postings.find_list(row, term) if row is not None else None
            return () if data is None else (data,)
        first = inverted_index.owner_key_range(self._owner, *segment)[0] + term
        later = self._index.store.scan(inverted_index.TERMS, first + b"\0", first + b"\xff", limit=_PREFIX_ROWS)
        rows = (data for data in (row, *(value for _, value in later)) if data is not None)
        return [lists for data in rows for name, lists in postings.unpack_row(data).items() if name.startswith(term)]

    def _read_pending(self, found: Mapping[Term, _TermDocuments]) -> None:
        number = self._pending_from
        for _, row in self._index.pending(self._owner):
            for singly, repeated in zip(row.once, row.often, strict=True):
                for terms, part in ((singly, 0), (repeated, 1)):
                    framed = b"\n%b\n" % terms
                    for term, lists in found.items():
                        if b"\n" + term + (b"" if is_prefix(term) else b"\n") in framed:
                            lists[part].append(number)
                number += 1

    def _best_documents(
        self, lists: Mapping[Term, _TermDocuments], weights: Mapping[Term, float]
    ) -> list[tuple[float, int]]:
        scores, bits = [0.0] * len(self._documents), [0] * len(self._documents)
        touched = self._add_up(lists, weights, scores, bits)
        self._add_answer_scores(touched, scores, bits)
        if self._sought.wanted != NO_FILTER:
            touched = set(filter(self._passes, touched))
        # The factor for missing terms is at least the floor, so a score below this bound can't reach the best.
        best = heapq.nlargest(self._sought.limit, map(scores.__getitem__, touched))
        enough = min(best, default=0.0) * _PARTIAL_MATCH_FLOOR
        left = [(n, score) for n in touched if (score := scores[n]) >= enough and score]
        each, whole = list(weights.values()), sum(weights.values())
        shares = {
            had: _PARTIAL_MATCH_FLOOR + (1 - _PARTIAL_MATCH_FLOOR) * _sum_of_bits(each, had) / whole
            for had in {bits[number] for number, _ in left}
        }
        shared = [(score * shares[bits[number]], number) for number, score in left]
        return heapq.nlargest(self._sought.limit, shared)

    def _add_up(
        self, lists: Mapping[Term, _TermDocuments], weights: Mapping[Term, float], scores: list[float], bits: list[int]
    ) -> set[int]:
        """Add the terms' weights to `scores`, and set a bit in `bits` for each term; return the documents found."""
        kinds = self._documents.kinds
        norms = _term_factors(round(self._head.length / max(1, self._head.documents)))
        touched = set[int]()
        for at, (term, found) in enumerate(lists.items()):
            bit, weight = 1 << at, weights[term]
            common = sum(map(len, found)) * _COMMON_SHARE > self._head.documents
            enough = common and len(touched) > _ENOUGH_FACTOR * self._sought.limit
            for numbers, each in zip(found, norms, strict=True):
                factors = [weight * norm for norm in each]
                if not enough:
                    touched.update(numbers)
                for number in touched.intersection(numbers) if enough else numbers:
                    scores[number] += factors[kinds[number]]
                    bits[number] |= bit
        return touched

    def _add_answer_scores(self, touched: set[int], scores: list[float], bits: list[int]) -> None:
        """Add to each document a part of the score of the document that it answers."""
        replies = self._documents.replies
        # From the last to the first, so that a document passes on only its own score, not what it was given.
        for number in sorted(touched & replies.keys(), reverse=True):
            if score := scores[number]:
                for reply in replies[number]:
                    scores[reply] += _ANSWER_WEIGHT * score
                    bits[reply] |= bits[number]
                    touched.add(reply)

    def _passes(self, number: int) -> bool:
        wanted = self._sought.wanted
        view, at = self._documents.at(number)
        if view.kinds[at] >= HIDDEN:
            return False
        return (
            (not wanted.roles or postings.role_of_kind(view.kinds[at]) in wanted.roles)
            and wanted.session_id in (None, view.generation(at).session_id)
            and (wanted.since_us is None or wanted.since_us <= view.time(at))
            and (wanted.until_us is None or view.time(at) <= wanted.until_us)
        )

    def _match(self, score: float, number: int) -> ArchiveMatch:
        view, at = self._documents.at(number)
        role = postings.role_of_kind(view.kinds[at])
        return ArchiveMatch(view.position(at), view.generation(at), view.time(at), role, score)


@functools.lru_cache(maxsize=64)
def _term_factors(mean: int) -> tuple[list[float], list[float]]:
    """Return the factors of a term that occurs once and of a term that occurs often, by document kind.

    They are those of BM25: smaller in documents that are longer than the mean.
    """
    once, often = [0.0] * (FORGOTTEN + 1), [0.0] * (FORGOTTEN + 1)
    for kind in range(HIDDEN):
        role = _ROLE_WEIGHTS[postings.role_of_kind(kind)]
        damp = _K1 * (1 - _B + _B * postings.length_of_kind(kind) / max(1, mean))
        once[kind] = role * (_K1 + 1) / (1 + damp)
        often[kind] = role * _REPEATED_COUNT * (_K1 + 1) / (_REPEATED_COUNT + damp)
    return once, often


def _sum_of_bits(weights: Sequence[float], bits: int) -> float:
    return sum(weight for at, weight in enumerate(weights) if bits >> at & 1)


def _term_weight(count: int, having: int) -> float:
    return math.log(1 + (max(count, having) - having + 0.5) / (having + 0.5))


_ELLIPSIS: Final = "…"


class Passage(msgspec.Struct, frozen=True):
    """An excerpt, the begin and end of each query term in it, and its share of the query terms' weight, 0 to 1."""

    excerpt: str
    marks: tuple[tuple[int, int], ...]
    share: float


def best_passage(text: str, weights: Mapping[Term, float]) -> Passage:
    """Return the passage of about limits.EXCERPT_CHARS characters with the most weight of query terms."""
    found = occurrences(text, weights)[: limits.EXCERPT_OCCURRENCES_MAX]
    first, last, weight = _densest_span(found, weights)
    start, stop = _excerpt_bounds(text, first, last)
    before, after = _ELLIPSIS if start else "", _ELLIPSIS if stop < len(text) else ""
    shift = len(before) - start
    shown = [(a + shift, b + shift) for a, b, _ in found if start <= a and b <= stop]
    share = weight / sum(weights.values()) if weights else 0.0
    return Passage(before + text[start:stop] + after, _merge_marks(shown), share)


def _merge_marks(marks: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    made: list[tuple[int, int]] = []
    for start, stop in marks:
        if made and start <= made[-1][1]:
            made[-1] = made[-1][0], max(stop, made[-1][1])
        else:
            made.append((start, stop))
    return tuple(made)


def contains_phrase(text: str, query: str) -> bool:
    """Whether a text contains the words of a query one after another, in their order."""
    return " ".join(fold(query).split()) in " ".join(fold(text).split())


def _densest_span(found: list[tuple[int, int, Term]], weights: Mapping[Term, float]) -> tuple[int, int, float]:
    """Return begin and end of the span with the most weight of distinct terms, and that weight."""
    chosen = (0, 0, 0.0)
    for at, (start, end, term) in enumerate(found):
        distinct, weight, last = {term}, weights[term], end
        for _, stop, other in found[at + 1 :]:
            if stop - start > limits.EXCERPT_CHARS:
                break
            if other not in distinct:
                distinct.add(other)
                weight += weights[other]
                last = max(last, stop)
        if weight > chosen[2]:
            chosen = (start, last, weight)
    return chosen


def _excerpt_bounds(text: str, first: int, last: int) -> tuple[int, int]:
    """Return begin and end of an excerpt around a span, moved to a space within 20 characters."""
    spare = max(0, limits.EXCERPT_CHARS - (last - first))
    start = max(0, first - spare // 3)
    stop = min(len(text), start + max(limits.EXCERPT_CHARS, last - start))
    if start:
        space = text.find(" ", start, first)
        start = space + 1 if 0 <= space < start + 20 else start
    if stop < len(text):
        space = text.rfind(" ", max(last, stop - 20), stop)
        stop = space if space > last else stop
    return start, stop


CANDIDATES: Final = 50
"""The number of hits by words, and of hits by meaning, that are merged."""

LoadTexts = Callable[[Sequence[int]], Mapping[int, str]]
"""Returns the texts of messages by position, without those that are erased or deleted."""

_RANK_OFFSET: Final = 10
"""A hit at rank n scores 1 / (offset + n). A larger offset makes the first ranks more equal."""
_WORD_HIT_WEIGHT: Final = 1.5
"""The weight of a hit with all words of the query; with half of them it is a quarter of that."""
_SAME_TOPIC_LIKENESS: Final = 0.2
"""The least likeness at which two of the first hits count as about one subject."""
_PROMOTION_LIKENESS: Final = 0.4
"""The same for a hit behind the first ones. It displaces another hit, so it needs a higher likeness."""
_LIKENESS_FLOOR: Final = -0.5
"""The least likeness of vectors that counts, so that common words can outweigh it."""


class Ranking(msgspec.Struct, frozen=True):
    """The positions of the hits of one kind of search, the best first. `trust` has their weights; empty: all weigh 1."""

    positions: Sequence[int]
    trust: Sequence[float] = ()


class _WordPatterns:
    """Compiled at the first query, because compiling is slow."""

    def __init__(self) -> None:
        self.word = re.compile(r"[^\W_]+(?:[-'.][^\W_]+)*")
        self.run = re.compile("[\u3040-\u30ff\u3400-\u9fff]+|[^\u3040-\u30ff\u3400-\u9fff]+")


_patterns = functools.cache(_WordPatterns)


def words(text: str) -> frozenset[str]:
    """Return the words of a text. Chinese and Japanese runs become pairs of characters and single ideographs."""
    found: set[str] = set()
    for word in _patterns().word.findall(text.casefold()):
        for run in _patterns().run.findall(word):
            if "\u3040" <= run[0] <= "\u9fff":
                found.update(run[at : at + 2] for at in range(max(1, len(run) - 1)))
                found.update(char for char in run if char >= "\u3400")
            else:
                found.add(run)
    return frozenset(found)


def is_unspaced(text: str) -> bool:
    """Whether most of a text is in a script without spaces: Chinese or Japanese."""
    letters = [char for char in text if char.isalpha()]
    return sum("\u3040" <= char <= "\u9fff" for char in letters) * 2 > len(letters)


def word_hit_trust(query: str, texts: Sequence[str]) -> list[float]:
    """Return a weight for each hit by words: higher for texts with more of the query's words.

    A word weighs more the fewer hits contain it, and most if no hit does. In scripts without spaces no
    text has all pairs of characters of a query, so all hits weigh the same.
    """
    if is_unspaced(query):
        return [1.0] * len(texts)
    asked = words(query)
    matched = [words(text) & asked for text in texts]
    counts = Counter(word for found in matched for word in found)
    weight = {word: math.log1p(len(texts) / (counts[word] or 0.5)) for word in asked}
    whole = sum(weight.values()) or 1.0
    return [_WORD_HIT_WEIGHT * (sum(weight[word] for word in found) / whole) ** 2 for found in matched]


def fuse(rankings: Sequence[Ranking]) -> list[int]:
    """Merge rankings into one. Hits that rank high in several come first; of two equal scores the later message."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        trust = ranking.trust or [1.0] * len(ranking.positions)
        for place, (position, weight) in enumerate(zip(ranking.positions, trust, strict=True)):
            scores[position] = scores.get(position, 0.0) + weight / (_RANK_OFFSET + place + 1)
    return sorted(scores, key=lambda position: (-scores[position], -position))


def newest_first(
    positions: Sequence[int], limit: int, texts: Mapping[int, str], likeness: Mapping[tuple[int, int], float]
) -> list[int]:
    """Return positions in a new order: later messages before earlier ones about the same subject.

    Messages are compared by `likeness`, whose keys have the earlier position first, and by the words in
    `texts`. A message behind the first `limit` moves before one of them only at a higher likeness.
    """
    alike = _likeness_function(texts, likeness)
    moved = _promote_later(positions, limit, lambda old, new: alike(old, new) >= _PROMOTION_LIKENESS)
    return (
        _promote_later(moved[:limit], limit, lambda old, new: alike(old, new) >= _SAME_TOPIC_LIKENESS) + moved[limit:]
    )


def _likeness_function(
    texts: Mapping[int, str], likeness: Mapping[tuple[int, int], float]
) -> Callable[[int, int], float]:
    words_of = {position: words(text) for position, text in texts.items()}
    counts = Counter(word for found in words_of.values() for word in found)
    weight = {
        word: math.log1p((len(texts) - max(count, 2) + 1.5) / (max(count, 2) - 0.5)) for word, count in counts.items()
    }
    whole = {position: sum(weight[word] for word in found) for position, found in words_of.items()}

    def alike(old: int, new: int) -> float:
        by_meaning = max(likeness.get((old, new), _LIKENESS_FLOOR), _LIKENESS_FLOOR)
        if old not in words_of or new not in words_of:
            return by_meaning
        least = min(whole[old], whole[new])
        shared = sum(weight[word] for word in words_of[old] & words_of[new])
        return by_meaning + (shared / least if least else 0.0)

    return alike


def _promote_later(positions: Sequence[int], limit: int, same: Callable[[int, int], bool]) -> list[int]:
    """Return positions; right before each of the first `limit` stand the later messages about the same subject."""
    rest, found = list(positions), list[int]()
    while rest and len(found) < limit:
        first = rest.pop(0)
        later = sorted((p for p in rest if p > first and same(first, p)), reverse=True)
        rest = [position for position in rest if position not in later]
        found += (*later, first)
    return found + rest
