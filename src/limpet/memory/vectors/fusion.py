"""Merges several rankings into one, and moves newer messages ahead of older ones on a subject.

Pure. The result holds exactly the items of the input.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

_RANK_OFFSET: Final = 10
"""How little the first places differ: a hit at place n counts as 1 / (_EVEN + n)."""
_WORD_HIT_WEIGHT: Final = 1.5
"""What a hit by words weighs that has all of the question's; with half of them a quarter of it."""
_SAME_TOPIC_LIKENESS: Final = 0.2
"""How alike two hits among the first are that are about the same thing."""
_PROMOTION_LIKENESS: Final = 0.4
"""The same for one from further behind: it takes a place from another, so it must be surer."""
_LIKENESS_FLOOR: Final = -0.5
"""Vectors that have nothing in common don't speak against common words for ever."""


class Ranking(msgspec.Struct, frozen=True):
    """What one way of searching has found, the best first, and how far each is to be trusted; 1 if nothing is said."""

    positions: Sequence[int]
    trust: Sequence[float] = ()


class _WordPatterns:
    """Made with the first question: compiling takes a while."""

    def __init__(self) -> None:
        self.word = re.compile(r"[^\W_]+(?:[-'.][^\W_]+)*")
        self.run = re.compile("[\u3040-\u30ff\u3400-\u9fff]+|[^\u3040-\u30ff\u3400-\u9fff]+")


_patterns = functools.cache(_WordPatterns)


def words(text: str) -> frozenset[str]:
    """Return the words of a text; of Chinese and Japanese the pairs of characters, and the ideographs."""
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
    """Whether a text is written, for the most part, without spaces between its words: Chinese, Japanese."""
    letters = [char for char in text if char.isalpha()]
    return sum("\u3040" <= char <= "\u9fff" for char in letters) * 2 > len(letters)


def word_hit_trust(query: str, texts: Sequence[str]) -> list[float]:
    """Return how far hits by words are to be trusted, from their texts: how much of the question they have.

    Words that few of the hits have weigh most, and those that none has: they were asked for too. Where words are
    not parted by spaces, pairs of characters are never all there, and every hit counts the same.
    """
    if is_unspaced(query):
        return [1.0] * len(texts)
    asked, said = words(query), [words(text) for text in texts]
    having = Counter(word for one in said for word in one & asked)
    weight = {word: math.log1p(len(texts) / (having[word] or 0.5)) for word in asked}
    whole = sum(weight.values()) or 1.0
    return [
        _WORD_HIT_WEIGHT * (sum(weight[word] for word in one & asked) / whole) ** 2 for one in said
    ]


def fuse(rankings: Sequence[Ranking]) -> list[int]:
    """Return everything that was found, each once: what stands high in several rankings first.

    Of two that stand equally high the later one is first.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        trust = ranking.trust or [1.0] * len(ranking.positions)
        for place, (position, weight) in enumerate(zip(ranking.positions, trust, strict=True)):
            scores[position] = scores.get(position, 0.0) + weight / (_RANK_OFFSET + place + 1)
    return sorted(scores, key=lambda position: (-scores[position], -position))


def newest_first(
    positions: Sequence[int],
    k: int,
    texts: Mapping[int, str],
    likeness: Mapping[tuple[int, int], float],
) -> list[int]:
    """Return the same, but what was said later about the same thing stands ahead of what was said before.

    That is judged by their words, where `texts` has them, and by `likeness`, with the earlier one first.
    One that is not among the first k may take a place there, ahead of what it replaces, if it is very like it.
    """
    alike = _likeness_function(texts, likeness)
    moved = _promote_later(positions, k, lambda old, new: alike(old, new) >= _PROMOTION_LIKENESS)
    return (
        _promote_later(moved[:k], k, lambda old, new: alike(old, new) >= _SAME_TOPIC_LIKENESS)
        + moved[k:]
    )


def _likeness_function(
    texts: Mapping[int, str], likeness: Mapping[tuple[int, int], float]
) -> Callable[[int, int], float]:
    said = {position: words(text) for position, text in texts.items()}
    having = Counter(word for one in said.values() for word in one)
    weight = {
        word: math.log1p((len(said) - max(count, 2) + 1.5) / (max(count, 2) - 0.5))
        for word, count in having.items()
    }
    whole = {position: sum(weight[word] for word in one) for position, one in said.items()}

    def alike(old: int, new: int) -> float:
        meant = max(likeness.get((old, new), _LIKENESS_FLOOR), _LIKENESS_FLOOR)
        if old not in said or new not in said:
            return meant
        least = min(whole[old], whole[new])
        shared = sum(weight[word] for word in said[old] & said[new])
        return meant + (shared / least if least else 0.0)

    return alike


def _promote_later(positions: Sequence[int], k: int, same: Callable[[int, int], bool]) -> list[int]:
    """Return positions with those that are the same as one of the first k, and later, right ahead of it."""
    rest, found = list(positions), list[int]()
    while rest and len(found) < k:
        first = rest.pop(0)
        later = sorted((p for p in rest if p > first and same(first, p)), reverse=True)
        rest = [position for position in rest if position not in later]
        found += (*later, first)
    return found + rest
