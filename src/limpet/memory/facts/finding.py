"""Facts by the words of a query: those that hold first, and among them the ones with the rarest words in common."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Final

from limpet import limits
from limpet.core.values.memory_records import Recalled, Who
from limpet.memory.archive import terms as archive
from limpet.memory.facts import slots

if TYPE_CHECKING:
    from limpet.memory.facts.factbook import Factbook

_COMMON: Final = frozenset(
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


def terms(text: str) -> list[str]:
    """Return the words of a text that can be looked for, in order, as the archive finds them."""
    return [word for term in archive.counted(text) if (word := term.decode()) not in _common()]


@functools.cache
def _common() -> frozenset[str]:
    return frozenset(term.decode() for word in _COMMON for term in archive.counted(word))


def search(book: Factbook, who: Who, query: str, k: int) -> list[Recalled]:
    """Return up to k facts of a user, the best first."""
    weights = dict[str, float]()
    scores = dict[str, float]()
    for word in terms(query[: limits.FACT_SCAN_CHARS_MAX])[: limits.FACT_QUERY_TERMS]:
        names = book.with_word(who, word)
        weights[word] = 1 / (1 + math.log1p(len(names)))
        for name in names:
            scores[name] = scores.get(name, 0.0) + weights[word]
    best = sorted(scores, key=lambda name: (-scores[name], name))[: 2 * k]
    found = list[tuple[bool, Recalled]]()
    for name, slot in book.slots(who, best).items():
        for place, fact in enumerate(slots.facts(who, slot)):
            own = sum(weights.get(word, 0.0) for word in terms(fact.text))
            # Who asks for what was so is told first what is so.
            score = own if place else max(own, scores[name])
            if score:
                found.append((place > 0, _recalled(fact, score)))
    found.sort(key=lambda each: (each[0], -each[1].score, -each[1].time_us, each[1].text))
    return [recalled for _, recalled in found[:k]]


def _recalled(fact: slots.Fact, score: float) -> Recalled:
    return Recalled(
        text=fact.text,
        score=round(score, 6),
        time_us=fact.since_us,
        kind=fact.kind,
        source=fact.source,
        until_us=fact.until_us,
    )
