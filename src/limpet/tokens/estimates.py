"""Counting for models whose tokenizer nobody outside has: from a neighbour's vocabulary, by script.

Claude: o200k's count of each script, times how much more Anthropic's own tokenizer (the last that
it published) takes of that script, and a tenth more for the models since. Gemini: the vocabulary of
Gemma 3, which Google's own client counts with when it is offline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from limpet.tokens import words

_RATIOS: Final = (
    (re.compile("(?<![A-Za-z]) ?[A-Za-z]*+[\u00c0-\u024f\u1e00-\u1eff][A-Za-z\u00c0-\u024f\u1e00-\u1eff]*"), 165),
    (re.compile(" ?[\u0400-\u052f]+"), 180),
    (re.compile(" ?[\u0590-\u05ff]+"), 185),
    (re.compile(" ?[\u0370-\u03ff\u1f00-\u1fff\u0600-\u06ff\u0750-\u077f]+"), 285),
    (re.compile(" ?[\u0900-\u097f]+"), 330),
    (re.compile(" ?[\u0980-\u0eff\u0530-\u058f\u10a0-\u10ff]+"), 440),
    (re.compile("[\u3040-\u30ff\u3400-\u9fff]+"), 145),
    (re.compile(" ?[\u1100-\u11ff\uac00-\ud7af]+"), 170),
)  # fmt: skip
"""Scripts, and hundredths of a token for each that o200k counts."""

_ELSE: Final = 120


def claude(o200k: Callable[[str], int], hundredths: int = 100) -> Callable[[str], int]:
    """Return a count for Claude; `hundredths` is for models that take more than those before them."""

    def count(text: str) -> int:
        tokens, rest = 0, text
        if not text.isascii():
            for pattern, ratio in _RATIOS:
                if runs := pattern.findall(rest):
                    tokens += ratio * o200k("".join(runs))
                    rest = pattern.sub("", rest)
        tokens += _ELSE * o200k(rest)
        return -(-tokens * hundredths // 10_000)

    return count


def by_script(text: str) -> int:
    """Count with no vocabulary at all."""
    return words.text_tokens(text) if text else 0
