"""Finding messages in the index: one owner's lists, added up. What a message answers counts for it, at less weight."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors
from limpet.memory.archive import documents, index, postings
from limpet.memory.archive.documents import GONE, HIDDEN, Place, View
from limpet.memory.archive.held import Held, Kept
from limpet.memory.archive.index import SIZES, Head, Index, Segment
from limpet.memory.archive.terms import Term, is_prefix

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

    @property
    def is_narrow(self) -> bool:
        """Whether anything must hold of a message beside its terms."""
        times = self.since_us, self.until_us
        return bool(self.roles) or self.session_id is not None or times != (None, None)


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


def search(rows: Index, owner: int, sought: Sought, kept: Kept | None = None) -> Matches:
    """Return up to k messages of an owner that have one of the terms or answer one that has.

    `kept` has what earlier searches have read.
    """
    for _ in range(_TRIES):
        head = rows.head(owner)
        found = _Search(rows, owner, head, sought, kept)
        lists = found.read()
        # Rows that were moved meanwhile may have been read twice, or not at all.
        if rows.head(owner) == head:
            return found.ranked(lists)
    raise errors.Unavailable("the archive changes too fast to be searched; try again.")


def located(
    rows: Index, owner: int, positions: Collection[int], kept: Kept | None = None
) -> dict[int, Match]:
    """Return what is known of an owner's messages at some positions; those that are gone are left out."""
    for _ in range(_TRIES):
        head = rows.head(owner)
        found = _Search(rows, owner, head, Sought(terms=(), k=0), kept)
        if rows.head(owner) == head:
            return found.located(positions)
    raise errors.Unavailable("the archive changes too fast to be searched; try again.")


class _Search:
    """One search of what an owner had at one moment."""

    def __init__(
        self, rows: Index, owner: int, head: Head, sought: Sought, kept: Kept | None
    ) -> None:
        self._index = rows
        self._owner = owner
        self._head = head
        self._sought = sought
        self._kept = kept or Kept()
        self._waiting_from = head.following - head.following % SIZES[0]
        self._known = self._kept.get(owner, head)
        self._views = [] if self._known else self._read_views()

    def _read_views(self) -> list[tuple[int, View]]:
        views = self._index.views(self._owner, 0, self._waiting_from)
        number = self._waiting_from
        for _, row in self._index.waiting(self._owner):
            views.append((number, View(row.documents)))
            number += len(row.once)
        return views

    @property
    def _held(self) -> Held:
        """What the owner had. Only once it is known that nothing was moved while it was read."""
        if self._known is None:
            self._known = Held(self._head.following, self._views)
            self._kept.put(self._owner, self._head, self._known)
        return self._known

    def read(self) -> dict[Term, _Numbers]:
        """Read all that is needed; return the documents of each term that any has."""
        return self._lists()

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
        return {
            position: self._match(0.0, first + at)
            for first, view in self._held.views
            for at, position in enumerate(view.positions())
            if position in positions and view.kinds[at] < HIDDEN
        }

    def _lists(self) -> dict[Term, _Numbers]:
        """Return the documents of each term that any has, the rarest term first."""
        found: dict[Term, _Numbers] = {term: ([], []) for term in self._sought.terms}
        self._wait(found)
        wanted = [
            (segment, term) for segment in index.segments(self._head.following) for term in found
        ]
        rows = self._index.rows(self._owner, wanted)
        for (segment, term), row in zip(wanted, rows, strict=True):
            base = segment[1] & ~0xFFFF
            once, often = found[term]
            for data in self._segment(segment, term, row):
                first, second = postings.decode(data)
                once.extend([base + n for n in first] if base else first)
                often.extend([base + n for n in second] if base else second)
        for term, (once, often) in found.items():
            if is_prefix(term):
                # Its lists may name one document several times.
                found[term] = (sorted({*once, *often}), [])
        there = [(term, both) for term, both in found.items() if both[0] or both[1]]
        return dict(sorted(there, key=lambda one: len(one[1][0]) + len(one[1][1])))

    def _segment(self, segment: Segment, term: Term, row: bytes | None) -> Iterable[bytes]:
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
            for singly, repeated in zip(row.once, row.often, strict=True):
                for terms, part in ((singly, 0), (repeated, 1)):
                    framed = b"\n%b\n" % terms
                    for term, lists in found.items():
                        if b"\n" + term + (b"" if is_prefix(term) else b"\n") in framed:
                            lists[part].append(number)
                number += 1

    def _best(
        self, lists: Mapping[Term, _Numbers], weights: Mapping[Term, float]
    ) -> list[tuple[float, int]]:
        """Return the best documents that pass, each with its score."""
        scores, bits = [0.0] * len(self._held), [0] * len(self._held)
        touched = self._add_up(lists, weights, scores, bits)
        self._answer(touched, scores, bits)
        if self._sought.is_narrow:
            touched = set(filter(self._passes, touched))
        # What a score loses for what is missing leaves it above this part of itself.
        best = heapq.nlargest(self._sought.k, map(scores.__getitem__, touched))
        enough = min(best, default=0.0) * _MISSING
        left = [(n, score) for n in touched if (score := scores[n]) >= enough and score]
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
    ) -> set[int]:
        """Add to the scores of documents what their terms weigh, and note in bits which they have; return whose."""
        kinds = self._held.kinds
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
        return touched

    def _answer(self, touched: set[int], scores: list[float], bits: list[int]) -> None:
        """Add to each document a part of the score that the one it answers has by itself."""
        replies = self._held.replies
        # The last first: one that answers is done before what answers it in turn could count it twice.
        for number in sorted(touched & replies.keys(), reverse=True):
            if score := scores[number]:
                for reply in replies[number]:
                    scores[reply] += _ANSWERED * score
                    bits[reply] |= bits[number]
                    touched.add(reply)

    def _passes(self, number: int) -> bool:
        """Whether all that must hold is true of a document."""
        sought = self._sought
        view, at = self._held.at(number)
        if view.kinds[at] >= HIDDEN:
            return False
        return (
            (not sought.roles or documents.role_of(view.kinds[at]) in sought.roles)
            and sought.session_id in (None, view.place(at).session_id)
            and (sought.since_us is None or sought.since_us <= view.time(at))
            and (sought.until_us is None or view.time(at) <= sought.until_us)
        )

    def _match(self, score: float, number: int) -> Match:
        view, at = self._held.at(number)
        role = documents.role_of(view.kinds[at])
        return Match(view.position(at), view.place(at), view.time(at), role, score)


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


def _weight(count: int, having: int) -> float:
    """Return what a term weighs that so many of all documents have."""
    return math.log(1 + (max(count, having) - having + 0.5) / (having + 0.5))
