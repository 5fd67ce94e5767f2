"""The estimate by words and scripts: never zero for something."""

from __future__ import annotations

import pytest

from limpet import limits
from limpet.core.tokens import estimates
from tests.unit import multilingual_text

ENGLISH = "The quick brown fox jumps over the lazy dog. " * 10
CHINESE = "前文摘要：用户想订一张去奥斯陆的机票。" * 10
JAPANESE = "前文の要約：利用者はオスロへの便を探しています。" * 10
KOREAN = "사용자가 오슬로행 항공편을 찾고 있습니다" * 10
RUSSIAN = "Пользователь ищет рейс в Осло. " * 10


def test_latin_text_takes_about_a_token_a_word():
    count = len(ENGLISH.split())
    assert count <= estimates.estimate_tokens(ENGLISH) <= 1.2 * count


@pytest.mark.parametrize("text", [CHINESE, JAPANESE], ids=["zh", "ja"])
def test_ideographs_take_less_than_a_token_each(text: str):
    assert 0.6 * len(text) <= estimates.estimate_tokens(text) <= 1.1 * len(text)


def test_other_scripts_lie_between():
    for text in (KOREAN, RUSSIAN):
        assert len(text) / 6 < estimates.estimate_tokens(text) <= 0.8 * len(text)
    assert estimates.estimate_tokens(KOREAN) > estimates.estimate_tokens(RUSSIAN) * len(KOREAN) / len(RUSSIAN)


def test_mixed_text_is_the_sum_of_its_scripts():
    mixed = ENGLISH + CHINESE
    apart = estimates.estimate_tokens(ENGLISH) + estimates.estimate_tokens(CHINESE)
    assert abs(estimates.estimate_tokens(mixed) - apart) <= 2


@pytest.mark.parametrize("script", multilingual_text.WORDS)
def test_slices_of_a_long_text_stand_for_the_whole(script: str):
    texts = multilingual_text.strings(script, 400)
    whole = sum(map(estimates.estimate_tokens, texts))
    assert len("".join(texts)) > 2 * limits.ESTIMATE_CHARS_MAX
    assert abs(estimates.estimate_tokens("".join(texts)) - whole) < 0.05 * whole


@pytest.mark.parametrize("text", ["a" * 8_000_000, " " * 8_000_000, "a1" * 4_000_000, "字" * 2_000_000])
def test_a_huge_text_is_estimated_from_slices(text: str):
    assert estimates.estimate_tokens(text) > 1


@pytest.mark.parametrize("text", ["", "\0", "\0" * 60, "\U0010ffff" * 60, "\u0301" * 60, "\u200d\ufe0f" * 60])
def test_odd_text_is_estimated(text: str):
    assert estimates.estimate_tokens(text) >= 1
