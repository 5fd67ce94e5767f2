"""A token estimate that needs no tokenizer and knows that scripts differ.

Text is cut into runs as a tokenizer would cut it before it looks anything up: words, digits,
punctuation, spaces. What a run costs depends on its script and length; the costs are fitted to
o200k, the newest vocabulary that anybody has published.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import filterfalse
from typing import Final

from limpet import limits
from limpet.tokens.common_words import COMMON, ENGLISH, WESTERN

NAME: Final = "estimate-2"
"""Stored beside every count this makes. Another way of counting gets another name."""

_COSTS: Final[Mapping[str, tuple[int, int, int]]] = {
    "common": (0, 1000, 0),
    "english": (4, 940, 73),
    "western": (3, 462, 399),
    "eastern": (2, 800, 321),
    "id": (2, 1600, 480),
    "digits": (3, 1000, 0),
    "punctuation": (2, 900, 80),
    "line": (1, 556, 37),
    "indent": (16, 615, 17),
    "cyrillic": (4, 1937, 102),
    "slavic": (3, 1502, 291),
    "greek": (2, 1453, 341),
    "caucasus": (2, 1369, 283),
    "hebrew": (2, 746, 528),
    "arabic": (2, 1400, 223),
    "devanagari": (2, 1254, 321),
    "indic": (2, 275, 649),
    "thai": (2, 1800, 380),
    "simplified": (1, 1470, 722),
    "traditional": (1, 1756, 947),
    "kanji": (1, 720, 757),
    "kana": (1, 1209, 575),
    "hangul": (1, 826, 781),
    "signs": (1, 744, 0),
    "emoji": (1, 1642, 0),
    "other": (1, 2000, 0),
}
"""Of each kind of run: the length up to which it is short, then thousandths of a token for a short
one, and for each character beyond."""

_ASCII_WORD: Final = re.compile("[A-Z]?[a-z]+|[A-Z]+")
_LATIN_WORD: Final = re.compile("[A-Za-z\u00aa-\u024f\u0300-\u036f\u1e00-\u1eff]+")
_ACCENTED: Final = re.compile("[\u00c0-\u024f\u1ea0-\u1eff]")
_ID: Final = re.compile("(?<![A-Za-z0-9])(?:[A-Za-z]++[0-9]|[0-9]++[A-Za-z])[A-Za-z0-9]*")
_DIGITS: Final = re.compile("[0-9]{1,3}")
_PUNCTUATION: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f!-/:-@\[-`{-\x7f]+")
_LINE: Final = re.compile("[\r\n]+")
_INDENT: Final = re.compile("[ \t]{2,}")
_SCRIPT: Final = re.compile(
    "[\x00-\u02ff]+"
    "|(?P<cyrillic>[\u0400-\u052f]+)"
    "|(?P<han>[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0002ffff]+)"
    "|(?P<kana>[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]+)"
    "|(?P<hangul>[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+)"
    "|(?P<arabic>[\u0600-\u06ff\u0750-\u077f\u200c\ufb50-\ufdff\ufe70-\ufefc]+)"
    "|(?P<devanagari>[\u0900-\u097f]+)"
    "|(?P<thai>[\u0e00-\u0eff]+)"
    "|(?P<greek>[\u0370-\u03ff\u1f00-\u1fff]+)"
    "|(?P<hebrew>[\u0590-\u05ff\ufb1d-\ufb4f]+)"
    "|(?P<indic>[\u0980-\u0dff]+)"
    "|(?P<caucasus>[\u0530-\u058f\u10a0-\u10ff]+)"
    "|(?P<emoji>[\u200d\u2600-\u27bf\ufe0f\U0001f000-\U0001faff])"
    "|(?P<signs>[\u2000-\u206f\u3000-\u303f\uff00-\uff65]+)"
    "|(?P<other>[^\u0300-\u036f\u1e00-\u1eff])"
)

# Languages of one script differ, and a look at a few letters or words tells which it is.
_NOT_RUSSIAN: Final = re.compile("[іїєґўјљњћ]|ъ[^еёюяЕЁЮЯ]")
_TRADITIONAL: Final = re.compile(
    "[這個們來說時國會對學發經過還後為與開關點問無機體樣實現種處將從應當設檔網輸資碼載選錯誤東見長門間動兩讓邊頭書寫話請聽]"
)
_ACCENTS_RARE: Final = 60
"""Characters to an accent from which on a text is taken for English with foreign names in it."""


_SLICES: Final = 16


def text_tokens(text: str) -> int:
    """Estimate one text; at least 1. Of a very long one, slices stand for the whole."""
    if len(text) > limits.ESTIMATE_CHARS_MAX:
        step, size = len(text) // _SLICES, limits.ESTIMATE_CHARS_MAX // _SLICES
        slices = (text[start : start + size] for start in range(0, step * _SLICES, step))
        return max(1, sum(map(_thousandths, slices)) * step // (size * 1000))
    return max(1, round(_thousandths(text) / 1000))


def _thousandths(text: str) -> int:
    thousandths = 0
    for kind, runs in _runs(text):
        short, cost, beyond = _COSTS[kind]
        thousandths += cost * len(runs)
        if beyond:
            for length, count in Counter(map(len, runs)).items():
                if length > short:
                    thousandths += count * beyond * (length - short)
    return thousandths


def _runs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the runs of a text by kind. The passes are the regex engine's, none goes by characters."""
    digits = _DIGITS.findall(text)
    if digits and (ids := _ID.findall(text)):
        yield "id", ids
        text = _ID.sub("\n", text)
        digits = _DIGITS.findall(text)
    yield "digits", digits
    yield _latin_words(text)
    yield "punctuation", _PUNCTUATION.findall(text)
    if "\n" in text or "\r" in text:
        yield "line", _LINE.findall(text)
    if "  " in text or "\t" in text:
        yield "indent", _INDENT.findall(text)
    if not text.isascii():
        yield from _other_scripts(text)


def _latin_words(text: str) -> tuple[str, list[str]]:
    accents = [] if text.isascii() else _ACCENTED.findall(text)
    if _ACCENTS_RARE * len(accents) >= len(text) > 0:
        eastern = sum(map("\u00ff".__lt__, accents))
        return "eastern" if 3 * eastern >= len(accents) else "western", _LATIN_WORD.findall(text)
    words = _ASCII_WORD.findall(text)
    foreign = sum(map(WESTERN.__contains__, words)) > sum(map(ENGLISH.__contains__, words))
    return "western" if foreign else "english", words


def _other_scripts(text: str) -> Iterator[tuple[str, list[str]]]:
    found: dict[str | None, list[str]] = {}
    for match in _SCRIPT.finditer(text):
        found.setdefault(match.lastgroup, []).append(match[0])
    for kind, runs in found.items():
        if kind == "han":
            yield _han("kana" in found, text), runs
        elif kind is not None:
            rare = list(filterfalse(COMMON.__contains__, runs))
            yield "common", runs[len(rare) :]  # only how many they are matters
            yield ("slavic" if kind == "cyrillic" and _NOT_RUSSIAN.search(text) else kind), rare


def _han(japanese: bool, text: str) -> str:
    if japanese:
        return "kanji"
    return "traditional" if _TRADITIONAL.search(text) else "simplified"
