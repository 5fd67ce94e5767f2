"""Extracts facts from what users say about themselves, by rules, without a model.

Pure and deterministic. Only messages of role `user` are read. Questions, quotations, code and
hypotheses are left out. A fact is the user's own sentence. Rules prefer to miss a fact over keeping
a wrong one. Work per message is bounded by limits.FACT_SCAN_CHARS_MAX.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from limpet import limits
from limpet.core.values.memory_records import Fact, FactKind, Said, Source
from limpet.memory.facts import clauses, guard
from limpet.memory.facts.patterns import TOPIC, Language, Rule
from limpet.memory.facts.rules_en import ENGLISH
from limpet.memory.facts.rules_ja import JAPANESE
from limpet.memory.facts.rules_zh import CHINESE

_KANA: Final = re.compile("[\u3040-\u30ff]")
_HAN: Final = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_LIST: Final = re.compile(r"\s*(?:,|\band\b|\bor\b|/|&|、|と|和|及|跟|以及)\s*", re.IGNORECASE)
_EMPTY_WORDS: Final = re.compile(
    r"^(?:the|a|an|any|all|some|both|my|our|to|of|only|very|really)\s+"
    r"|\s+(?:any ?more|anymore|now|at all|a lot|very much|too|as well|again|so much|these days|though|best|most|either|either)$",
    re.IGNORECASE,
)
_CJK_ENDS: Final = re.compile(r"^(?:私は|僕は|実は|我)|(?:の方|のほう|类|類|都|也|了|的)$")


def extract(said: Sequence[Said]) -> list[Fact]:
    """Return the facts that a user states of themself in these messages, in the order in which they are said."""
    return [fact for one in said if one.message.role == "user" for fact in _of(one)]


def _of(said: Said) -> list[Fact]:
    source = Source(said.session_id, said.message.id, said.position)
    found = dict[tuple[str, str], Fact]()
    for clause in clauses.stated(said.message):
        if len(found) >= limits.FACTS_PER_MESSAGE_MAX:
            break
        if guard.reads_as_order(clause):
            continue
        for kind, about in _facts(clause):
            found.setdefault(
                (clause, about),
                Fact(
                    id="",
                    kind=kind,
                    text=clause,
                    source=source,
                    since_us=said.time_us,
                    about=about,
                ),
            )
    return list(found.values())[: limits.FACTS_PER_MESSAGE_MAX]


def _facts(clause: str) -> Iterator[tuple[FactKind, str]]:
    """Yield kind and topic of each fact in a clause: by the first rule that fits, else by what it mentions."""
    # Some characters become eighteen.
    plain = (
        unicodedata.normalize("NFKC", clause)[: 2 * limits.FACT_CHARS_MAX]
        .replace("’", "'")
        .replace("‘", "'")
    )
    language = _language(plain)
    if not language.hint.search(plain):
        return
    unsure = language.unsure.search(plain) is not None
    for each in language.rules:
        if not (each.weak and unsure) and (match := each.pattern.search(plain)):
            yield from ((each.kind, about) for about in _abouts(each, match, language))
            return
    if unsure:
        return
    for evidence in language.evidence:
        if evidence.speaker.search(plain) and evidence.thing.search(plain):
            yield evidence.kind, ""
            return


def _language(text: str) -> Language:
    if _KANA.search(text):
        return JAPANESE
    return CHINESE if _HAN.search(text) else ENGLISH


def _abouts(rule: Rule, match: re.Match[str], language: Language) -> list[str]:
    about = rule.about
    if about.startswith(TOPIC):
        for words, topic in language.topics:
            if words.search(match.string):
                return [topic]
        about = about.removeprefix(TOPIC)
    groups = {name: value for name, value in match.groupdict().items() if value}
    if "{" not in about:
        return [about]
    name = about[about.index("{") + 1 : about.index("}")]
    values = [groups[name]] if name in groups else list(groups.values())
    if name == "items":
        values = _LIST.split(values[0])[: limits.FACTS_PER_MESSAGE_MAX]
    heads = {key: _head(value) for key, value in groups.items()}
    return [_filled(about, name, heads, head) for value in values if (head := _head(value))]


def _filled(about: str, name: str, heads: dict[str, str], head: str) -> str:
    filled = about.replace(f"{{{name}}}", head)
    for other, value in heads.items():
        filled = filled.replace(f"{{{other}}}", value)
    return guard.clean(filled, limits.FACT_ABOUT_CHARS_MAX)


def _head(words: str) -> str:
    """Return what a group of words is about: without articles and adverbs, in the singular, cut short."""
    text = " ".join(words.casefold().split()).strip(" .,'\"!?。、")
    before = ""
    while before != text:
        before, text = text, _CJK_ENDS.sub("", _EMPTY_WORDS.sub("", text)).strip()
    first = " ".join(
        re.split(r"\b(?:because|since|when|if|that|which|so|for|with|in|on|at|from|but)\b", text)[
            0
        ].split()[:4]
    )
    plural = (
        len(first) > 3
        and first.isascii()
        and first.endswith("s")
        and not first.endswith(("ss", "us"))
    )
    return first[:-1] if plural else first
