"""Building blocks of a language's rules: sentence patterns, topics and evidence."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from limpet.core.values.memory_records import FactKind

TOPIC: Final = "*"
"""In the place of what a fact is about: the topic that the sentence names; what follows it, if it names none."""


class Rule(msgspec.Struct, frozen=True):
    """Sentences of one form: which kind of fact they are, and about what.

    `about` may name groups of the pattern. `{items}` stands for each thing of a list. A weak rule does not
    hold for a request, a plan or a doubt.
    """

    pattern: re.Pattern[str]
    kind: FactKind
    about: str
    weak: bool


class Evidence(msgspec.Struct, frozen=True):
    """Sentences that are worth keeping for what is in them: a date, an amount, an identifier."""

    speaker: re.Pattern[str]
    thing: re.Pattern[str]
    kind: FactKind


class Language(msgspec.Struct, frozen=True):
    """How the speakers of one language say what is true of them.

    `hint`: what every sentence has that any rule is about. `unsure`: words of requests, of plans and of
    doubt; such a sentence is no evidence, whatever is in it.
    """

    hint: re.Pattern[str]
    rules: tuple[Rule, ...]
    topics: tuple[tuple[re.Pattern[str], str], ...]
    evidence: tuple[Evidence, ...]
    unsure: re.Pattern[str]


def case_insensitive(pattern: str) -> re.Pattern[str]:
    """Return a pattern that does not look at case."""
    return re.compile(pattern, re.IGNORECASE)


def rule(pattern: str, kind: FactKind, about: str, *, weak: bool = False) -> Rule:
    """Return a rule for sentences that have the pattern somewhere."""
    return Rule(case_insensitive(pattern), kind, about, weak)


def topics(*named: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return topics by the words that name them."""
    return tuple((case_insensitive(words), topic) for words, topic in named)
