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

CANDIDATES: Final = 50
"""Hits of each kind of search that are merged: by words and by meaning alike."""

LoadTexts = Callable[[Sequence[int]], Mapping[int, str]]
"""Returns the texts of messages by position, without those that are erased or deleted."""

_RANK_OFFSET: Final = 10
"""A hit at rank n counts 1 / (offset + n): a larger offset makes the first ranks more equal."""
_WORD_HIT_WEIGHT: Final = 1.5
"""The weight of a hit with all words of the query; with half of them it is a quarter of that."""
_SAME_TOPIC_LIKENESS: Final = 0.2
"""The least likeness of two of the first hits that are about one subject."""
_PROMOTION_LIKENESS: Final = 0.4
"""The same for a hit from further behind. It displaces another hit, so it must be surer."""
_LIKENESS_FLOOR: Final = -0.5
"""The least likeness of vectors that counts, so that common words can outweigh it."""


class Ranking(msgspec.Struct, frozen=True):
    """The hits of one kind of search, the best first, each with a weight in `trust`; 1 if it is empty."""

    positions: Sequence[int]
    trust: Sequence[float] = ()


class _WordPatterns:
    """Compiled at the first query, because compiling is slow."""

    def __init__(self) -> None:
        self.word = re.compile(r"[^\W_]+(?:[-'.][^\W_]+)*")
        self.run = re.compile("[\u3040-\u30ff\u3400-\u9fff]+|[^\u3040-\u30ff\u3400-\u9fff]+")


_patterns = functools.cache(_WordPatterns)


def words(text: str) -> frozenset[str]:
    """Return the words of a text; for Chinese and Japanese pairs of characters, and ideographs."""
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
    """Return the weights of hits by words: how much of the query their texts have.

    Words weigh more the fewer hits have them; words that no hit has weigh most. In scripts without
    spaces no text has all pairs of characters of a query, so every hit weighs the same.
    """
    if is_unspaced(query):
        return [1.0] * len(texts)
    asked, said = words(query), [words(text) for text in texts]
    having = Counter(word for one in said for word in one & asked)
    weight = {word: math.log1p(len(texts) / (having[word] or 0.5)) for word in asked}
    whole = sum(weight.values()) or 1.0
    return [_WORD_HIT_WEIGHT * (sum(weight[word] for word in one & asked) / whole) ** 2 for one in said]


def fuse(rankings: Sequence[Ranking]) -> list[int]:
    """Return the hits of all rankings, each once. Hits that rank high in several come first, of equals the later one."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        trust = ranking.trust or [1.0] * len(ranking.positions)
        for place, (position, weight) in enumerate(zip(ranking.positions, trust, strict=True)):
            scores[position] = scores.get(position, 0.0) + weight / (_RANK_OFFSET + place + 1)
    return sorted(scores, key=lambda position: (-scores[position], -position))


def newest_first(
    positions: Sequence[int], limit: int, texts: Mapping[int, str], likeness: Mapping[tuple[int, int], float]
) -> list[int]:
    """Return the positions with later messages ahead of earlier ones about the same subject.

    The subject is compared by words, where `texts` has them, and by `likeness`, whose keys have the
    earlier position first. A message behind the first `limit` moves ahead of one of them if it is very like it.
    """
    alike = _likeness_function(texts, likeness)
    moved = _promote_later(positions, limit, lambda old, new: alike(old, new) >= _PROMOTION_LIKENESS)
    return (
        _promote_later(moved[:limit], limit, lambda old, new: alike(old, new) >= _SAME_TOPIC_LIKENESS) + moved[limit:]
    )


def _likeness_function(
    texts: Mapping[int, str], likeness: Mapping[tuple[int, int], float]
) -> Callable[[int, int], float]:
    said = {position: words(text) for position, text in texts.items()}
    having = Counter(word for one in said.values() for word in one)
    weight = {
        word: math.log1p((len(said) - max(count, 2) + 1.5) / (max(count, 2) - 0.5)) for word, count in having.items()
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


def _promote_later(positions: Sequence[int], limit: int, same: Callable[[int, int], bool]) -> list[int]:
    """Return positions with each later message about the same subject right ahead of one of the first `limit`."""
    rest, found = list(positions), list[int]()
    while rest and len(found) < limit:
        first = rest.pop(0)
        later = sorted((p for p in rest if p > first and same(first, p)), reverse=True)
        rest = [position for position in rest if position not in later]
        found += (*later, first)
    return found + rest
