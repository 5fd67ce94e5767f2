"""Facts by the words of a query: those that hold first, and among them the ones with the rarest words in common."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, Final

from holdfast import limits
from holdfast.memory import slots
from holdfast.values.memory import Recalled, Who

if TYPE_CHECKING:
    from holdfast.memory.factbook import Factbook

_WORDS: Final = re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]+")
_COMMON: Final = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "but",
        "by",
        "do",
        "does",
        "did",
        "for",
        "from",
        "have",
        "has",
        "had",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "our",
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
        "am",
        "im",
        "ive",
        "not",
        "no",
        "so",
        "if",
        "can",
        "about",
    ]
)
_QUERY_TERMS_MAX: Final = 32


def terms(text: str) -> list[str]:
    """Return the words of a text that can be looked for, in order: words, and pairs of characters where none are marked."""
    found = dict[str, None]()
    for word in _WORDS.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word.isascii() or not "\u3040" <= word[0] <= "\u9fff":
            if word not in _COMMON:
                found[word[:-1] if len(word) > 3 and word.endswith("s") else word] = None
        else:
            pairs = [word[at : at + 2] for at in range(len(word) - 1)] or [word]
            found.update(dict.fromkeys(pairs))
    return list(found)


def search(book: Factbook, who: Who, query: str, k: int) -> list[Recalled]:
    """Return up to k facts of a user, the best first."""
    weights = dict[str, float]()
    scores = dict[str, float]()
    for word in terms(query[: limits.FACT_SCAN_CHARS_MAX])[:_QUERY_TERMS_MAX]:
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
