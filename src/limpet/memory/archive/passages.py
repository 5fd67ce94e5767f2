"""The passage of a message that fits a query best, and how well it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from limpet import limits
from limpet.memory.archive.terms import Term, fold, occurrences

_CUT: Final = "…"


class Passage(msgspec.Struct, frozen=True):
    """A passage; where in it terms of the query stand, as begin and end; and its share of what was asked, 0 to 1."""

    excerpt: str
    marks: tuple[tuple[int, int], ...]
    share: float


def best(text: str, weights: Mapping[Term, float]) -> Passage:
    """Return the passage of a text, of about limits.EXCERPT_CHARS, that has most of what was asked."""
    found = occurrences(text, weights)[: limits.EXCERPT_OCCURRENCES_MAX]
    first, last, weight = _densest(found, weights)
    start, stop = _room(text, first, last)
    before, after = _CUT if start else "", _CUT if stop < len(text) else ""
    shift = len(before) - start
    shown = [(a + shift, b + shift) for a, b, _ in found if start <= a and b <= stop]
    share = weight / sum(weights.values()) if weights else 0.0
    return Passage(before + text[start:stop] + after, _joined(shown), share)


def _joined(marks: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return marks, which come in order, with those that touch made one."""
    made: list[tuple[int, int]] = []
    for start, stop in marks:
        if made and start <= made[-1][1]:
            made[-1] = made[-1][0], max(stop, made[-1][1])
        else:
            made.append((start, stop))
    return tuple(made)


def says(text: str, query: str) -> bool:
    """Whether a text has the words of a query one after another, as they stand there."""
    return " ".join(fold(query).split()) in " ".join(fold(text).split())


def _densest(
    found: list[tuple[int, int, Term]], weights: Mapping[Term, float]
) -> tuple[int, int, float]:
    """Return begin and end of the stretch with the most weight of different terms, and that weight."""
    chosen = (0, 0, 0.0)
    for at, (start, end, term) in enumerate(found):
        had, weight, last = {term}, weights[term], end
        for _, stop, other in found[at + 1 :]:
            if stop - start > limits.EXCERPT_CHARS:
                break
            if other not in had:
                had.add(other)
                weight += weights[other]
                last = max(last, stop)
        if weight > chosen[2]:
            chosen = (start, last, weight)
    return chosen


def _room(text: str, first: int, last: int) -> tuple[int, int]:
    """Return where an excerpt around a stretch begins and ends: at spaces, where some are near."""
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
