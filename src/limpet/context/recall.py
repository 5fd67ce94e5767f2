"""How much of what is hard to guess again a summary still has: names, numbers, identifiers. Always the same number."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from limpet import limits
from limpet.context import summary as summaries
from limpet.core.values.messages import Message

_WEIGHT: Final = {"user": 4, "assistant": 2, "system": 2, "tool": 1}


class _Patterns:
    """Made with the first score: compiling takes a while."""

    def __init__(self) -> None:
        self.identifier = re.compile(
            r"(?<![\w,.])(?=[\w.:]*[A-Za-z/@#-])[A-Za-z0-9]+(?:[_/.@:#-][A-Za-z0-9]+)+"
            r"|\b[a-z]+[A-Z]\w*|\b[A-Z]{2,}\d*\b|\b[A-Za-z]+\d+\w*\b"
        )
        self.number = re.compile(r"(?<![\w.,:/#@-])\d+(?:[.,:]\d+)*(?![\w/#@-])")
        # A capital after something else than the end of a sentence.
        self.name = re.compile(r"(?<=[\w,;:(] )[A-Z][^\W\d_]+(?:[ '-][A-Z][^\W\d_]+)*(?![\w-])")
        self.foreign = re.compile(r"[ァ-ヴー]{3,}|[「『《“]([^」』》”\n]{2,24})[」』》”]")
        self.space = re.compile(r"\s+")


_patterns = functools.cache(_Patterns)


def marks(text: str) -> set[str]:
    """Return the names, numbers and identifiers of a text, in one spelling each."""
    found, near = _patterns(), text[: limits.SUMMARY_SCAN_CHARS_MAX]
    kinds = (found.identifier, found.number, found.name, found.foreign)
    raw = (match[match.lastindex or 0] for kind in kinds for match in kind.finditer(near))
    return {mark for mark in map(_spelt, raw) if mark}


def _spelt(text: str) -> str:
    return _patterns().space.sub(" ", text).strip(" .,:;-").casefold()


def score(messages: Sequence[Message], text: str, before: str = "") -> tuple[float, list[str]]:
    """Return how much of their marks a summary of messages has, from 0 to 1, and the weightiest that it has not.

    What users said weighs most, and what was said more than once more than once. `before` is the summary
    that went into this one; what it has counts as if an assistant had said it. With no marks it is 1.
    """
    weights: dict[str, int] = {}
    said = [(message.role, summaries.text_of(message)) for message in messages]
    for role, words in (("assistant", before), *said):
        for mark in marks(words):
            weights[mark] = weights.get(mark, 0) + _WEIGHT.get(role, 1)
    asked = sorted(weights, key=lambda mark: (-weights[mark], mark))[
        : limits.SUMMARY_RECALL_TERMS_MAX
    ]
    missing = list(_missing(asked, text))
    total = sum(weights[mark] for mark in asked)
    lost = sum(weights[mark] for mark in missing)
    return (1.0 if not total else round(1 - lost / total, 3)), missing


def _missing(asked: Iterable[str], text: str) -> Iterable[str]:
    spelt = _patterns().space.sub(" ", text).casefold()
    for mark in asked:
        # A number within a longer one is another number; a word within a word is no word.
        edges = r"(?<![\w]){}(?![\w])" if mark.isascii() else "{}"
        if not re.search(edges.format(re.escape(mark)), spelt):
            yield mark
