"""Finding messages in the index: one owner's lists, added up. What a message answers counts for it, at less weight."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast import errors
from holdfast.memory.archive import documents, index, postings
from holdfast.memory.archive.documents import GONE, HIDDEN, Place, View
from holdfast.memory.archive.index import SIZES, Head, Index, Segment
from holdfast.memory.archive.terms import Term, is_prefix

_K1: Final = 1.2
_B: Final = 0.6
_OFTEN: Final = 2.5
"""How often a term is taken to occur that occurs more than once."""
_ANSWERED: Final = 0.4
"""What a term weighs for the answer to the message that has it."""
_ROLE_WEIGHTS: Final[Mapping[str, float]] = {
    "user": 1.25, "assistant": 1.0, "system": 0.6, "tool": 0.7,
}  # fmt: skip
_MISSING: Final = 0.5
"""What is left of the score of a message that has none of the weight of what was asked."""
_COMMON: Final = 8
_ENOUGH: Final = 20
"""A term that more than one message in 8 has finds none by itself where rarer ones have found 20 times what was asked."""
_PREFIX_ROWS: Final = 16
_TRIES: Final = 8


_Numbers = tuple[list[int], list[int]]
"""Documents that have a term once, and those that have it more often."""


class Sought(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for: terms, and what must hold of a message. `since_us` and `until_us` are inclusive."""

    terms: Sequence[Term]
    k: int
    roles: frozenset[str] = frozenset()
    session_id: str | None = None
    since_us: int | None = None
    until_us: int | None = None


class Match(msgspec.Struct, frozen=True):
    """A message that fits, and how well."""

    position: int
    place: Place
    time_us: int
    role: str
    score: float


class Matches(msgspec.Struct, frozen=True):
    """What was found, the best first, and what each term weighs: the rarer, the more."""

    matches: Sequence[Match]
    weights: Mapping[Term, float]


def search(rows: Index, owner: int, sought: Sought) -> Matches:
    """Return up to k messages of an owner that have one of the terms or answer one that has."""
    for _ in range(_TRIES):
        head = rows.head(owner)
        found = _Search(rows, owner, head, sought)
        lists = found.read()
        # Rows that were moved meanwhile may have been read twice, or not at all.
        if rows.head(owner) == head:
            return found.ranked(lists)
    raise errors.Unavailable("the archive changes too fast to be searched; try again.")


def located(rows: Index, owner: int, positions: Collection[int]) -> dict[int, Match]:
    """Return what is known of an owner's messages at some positions; those that are gone are left out."""
    for _ in range(_TRIES):
        head = rows.head(owner)
        found = _Search(rows, owner, head, Sought(terms=(), k=0)).located(positions)
        if rows.head(owner) == head:
            return found
    raise errors.Unavailable("the archive changes too fast to be searched; try again.")


class _Search:
    """One search of what an owner had at one moment."""

    def __init__(self, rows: Index, owner: int, head: Head, sought: Sought) -> None:
        self._index = rows
        self._owner = owner
        self._head = head
        self._sought = sought
        self._held: dict[int, View] = {}
        self._waiting_from = head.following - head.following % SIZES[0]

    def read(self) -> dict[Term, _Numbers]:
        """Read all that is needed; return the documents of each term that any has."""
        lists = self._lists()
        self._load([part for found in lists.values() for part in found])
        return lists

    def ranked(self, lists: Mapping[Term, _Numbers]) -> Matches:
        """Return what was found, the best first."""
        if not lists:
            return Matches((), {})
        weights = {
            term: _weight(self._head.documents, sum(map(len, found)))
            for term, found in lists.items()
        }
        best = self._best(lists, weights)
        return Matches([self._match(score, number) for score, number in best], weights)

    def located(self, positions: Collection[int]) -> dict[int, Match]:
        """Return the documents at some positions that can be found."""
        self._wait({})
        self._held.update(self._index.views(self._owner, 0, self._waiting_from))
        return {
            position: self._match(0.0, first + at)
            for first, held in self._held.items()
            for at, position in enumerate(held.positions())
            if position in positions and held.kinds[at] < HIDDEN
        }

    def _lists(self) -> dict[Term, _Numbers]:
        """Return the documents of each term that any has, the rarest term first."""
        found: dict[Term, _Numbers] = {term: ([], []) for term in self._sought.terms}
        self._wait(found)
        for segment in index.segments(self._head.following):
            base = segment[1] & ~0xFFFF
            for term, (once, often) in found.items():
                for data in self._segment(segment, term):
                    first, second = postings.decode(data)
                    once.extend([base + n for n in first] if base else first)
                    often.extend([base + n for n in second] if base else second)
        for term, (once, often) in found.items():
            if is_prefix(term):
                # Its lists may name one document several times.
                found[term] = (sorted({*once, *often}), [])
        there = [(term, both) for term, both in found.items() if both[0] or both[1]]
        return dict(sorted(there, key=lambda one: len(one[1][0]) + len(one[1][1])))

    def _segment(self, segment: Segment, term: Term) -> Iterable[bytes]:
        row = self._index.row(self._owner, segment, term)
        if not is_prefix(term):
            data = postings.find(row, term) if row is not None else None
            return () if data is None else (data,)
        return self._beginning(segment, term, row)

    def _beginning(self, segment: Segment, term: Term, row: bytes | None) -> Iterable[bytes]:
        """Yield the lists of all terms that begin with one."""
        first = index.owned(self._owner, *segment)[0] + term
        later = self._index.shelf.scan(
            index.TERMS, first + b"\0", first + b"\xff", limit=_PREFIX_ROWS
        )
        for data in (row, *(value for _, value in later)):
            if data is not None:
                for name, held in postings.unpacked(data).items():
                    if name.startswith(term):
                        yield held

    def _wait(self, found: Mapping[Term, _Numbers]) -> None:
        """Look through the documents that are in no segment."""
        number = self._waiting_from
        for _, row in self._index.waiting(self._owner):
            self._held[number] = View(row.documents)
            for singly, repeated in zip(row.once, row.often, strict=True):
                for terms, part in ((singly, 0), (repeated, 1)):
                    framed = b"\n%b\n" % terms
                    for term, lists in found.items():
                        if b"\n" + term + (b"" if is_prefix(term) else b"\n") in framed:
                            lists[part].append(number)
                number += 1

    def _load(self, lists: Sequence[Sequence[int]]) -> None:
        """Fetch what is known of documents, and of those that follow: one may answer them."""
        size, stop = SIZES[1], self._waiting_from
        if sum(map(len, lists)) > stop // size:
            self._held.update(self._index.views(self._owner, 0, stop))
            return
        blocks = {number // size + step for part in lists for number in part for step in (0, 1)}
        for block in blocks:
            span = block * size, min((block + 1) * size, stop)
            self._held.update(self._index.views(self._owner, *span))

    def _best(
        self, lists: Mapping[Term, _Numbers], weights: Mapping[Term, float]
    ) -> list[tuple[float, int]]:
        """Return the best documents that pass, each with its score."""
        scores, bits = [0.0] * self._head.following, [0] * self._head.following
        self._add_up(lists, weights, scores, bits)
        self._answer(scores, bits)
        self._filter(scores)
        # What a score loses for what is missing leaves it above this part of itself.
        enough = min(heapq.nlargest(self._sought.k, filter(None, scores)), default=0.0) * _MISSING
        left = [(n, score) for n, score in enumerate(scores) if score and score >= enough]
        each, whole = list(weights.values()), sum(weights.values())
        shares = {
            had: _MISSING + (1 - _MISSING) * _sum(each, had) / whole
            for had in {bits[number] for number, _ in left}
        }
        shared = [(score * shares[bits[number]], number) for number, score in left]
        return heapq.nlargest(self._sought.k, shared)

    def _add_up(
        self,
        lists: Mapping[Term, _Numbers],
        weights: Mapping[Term, float],
        scores: list[float],
        bits: list[int],
    ) -> None:
        """Add to the scores of documents what their terms weigh, and note in bits which they have."""
        kinds = bytearray(b"\xff") * self._head.following
        for first, held in self._held.items():
            kinds[first : first + len(held)] = held.kinds
        norms = _norms(round(self._head.length / max(1, self._head.documents)))
        touched = set[int]()
        for at, (term, found) in enumerate(lists.items()):
            bit, weight = 1 << at, weights[term]
            common = sum(map(len, found)) * _COMMON > self._head.documents
            enough = common and len(touched) > _ENOUGH * self._sought.k
            for numbers, each in zip(found, norms, strict=True):
                factors = [weight * norm for norm in each]
                if not enough:
                    touched.update(numbers)
                for number in touched.intersection(numbers) if enough else numbers:
                    scores[number] += factors[kinds[number]]
                    bits[number] |= bit

    def _answer(self, scores: list[float], bits: list[int]) -> None:
        """Add to each document, the last first, a part of the score of the one that it answers."""
        for first, held in sorted(self._held.items(), reverse=True):
            answers, kinds = held.answers, held.kinds
            for at in range(len(answers) - 1, -1, -1):
                if far := answers[at]:
                    number = first + at
                    score = scores[number - far]
                    if score and kinds[at] < HIDDEN:
                        scores[number] += _ANSWERED * score
                        bits[number] |= bits[number - far]

    def _filter(self, scores: list[float]) -> None:
        """Leave no score to documents of which not all that must hold is true."""
        sought = self._sought
        for first, held in self._held.items():
            if sought.roles:
                roles = [documents.role_of(kind) in sought.roles for kind in range(HIDDEN)]
                passing = [kind < HIDDEN and roles[kind] for kind in held.kinds]
                _clear(scores, first, passing)
            if sought.session_id is not None:
                _clear(scores, first, [name == sought.session_id for name in held.sessions()])
            if sought.since_us is not None:
                _clear(scores, first, [time >= sought.since_us for time in held.times()])
            if sought.until_us is not None:
                _clear(scores, first, [time <= sought.until_us for time in held.times()])

    def _match(self, score: float, number: int) -> Match:
        first = max(start for start in self._held if start <= number)
        held, at = self._held[first], number - first
        (time_us,) = held.times()[at : at + 1]
        role = documents.role_of(held.kinds[at])
        return Match(held.position(at), held.place(at), time_us, role, score)


@functools.lru_cache(maxsize=64)
def _norms(mean: int) -> tuple[list[float], list[float]]:
    """Return by kind what one occurrence of a term weighs, and what several do: less in a long document."""
    once, often = [0.0] * (GONE + 1), [0.0] * (GONE + 1)
    for kind in range(HIDDEN):
        role = _ROLE_WEIGHTS[documents.role_of(kind)]
        damp = _K1 * (1 - _B + _B * documents.length_of(kind) / max(1, mean))
        once[kind] = role * (_K1 + 1) / (1 + damp)
        often[kind] = role * _OFTEN * (_K1 + 1) / (_OFTEN + damp)
    return once, often


def _sum(weights: Sequence[float], bits: int) -> float:
    return sum(weight for at, weight in enumerate(weights) if bits >> at & 1)


def _clear(scores: list[float], first: int, passing: Iterable[bool]) -> None:
    for at, passes in enumerate(passing, first):
        if not passes:
            scores[at] = 0.0


def _weight(count: int, having: int) -> float:
    """Return what a term weighs that so many of all documents have."""
    return math.log(1 + (max(count, having) - having + 0.5) / (having + 0.5))
