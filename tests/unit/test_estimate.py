"""The token estimate: by script, never zero for something, exact counts win."""

from __future__ import annotations

import time

import pytest

from holdfast import Message, ToolCallRequest, ToolCallResult, limits
from holdfast.values import estimate
from tests.unit import writing

ENGLISH = "The quick brown fox jumps over the lazy dog. " * 10
CHINESE = "前文摘要：用户想订一张去奥斯陆的机票。" * 10
JAPANESE = "前文の要約：利用者はオスロへの便を探しています。" * 10
KOREAN = "사용자가 오슬로행 항공편을 찾고 있습니다" * 10
RUSSIAN = "Пользователь ищет рейс в Осло. " * 10


def test_latin_text_takes_about_a_token_a_word():
    words = len(ENGLISH.split())
    assert words <= estimate.text_tokens(ENGLISH) <= 1.2 * words


@pytest.mark.parametrize("text", [CHINESE, JAPANESE], ids=["zh", "ja"])
def test_ideographs_take_less_than_a_token_each(text: str):
    assert 0.6 * len(text) <= estimate.text_tokens(text) <= 1.1 * len(text)


def test_other_scripts_lie_between():
    for text in (KOREAN, RUSSIAN):
        assert len(text) / 6 < estimate.text_tokens(text) <= 0.8 * len(text)
    assert estimate.text_tokens(KOREAN) > estimate.text_tokens(RUSSIAN) * len(KOREAN) / len(RUSSIAN)


def test_mixed_text_is_the_sum_of_its_scripts():
    mixed = ENGLISH + CHINESE
    apart = estimate.text_tokens(ENGLISH) + estimate.text_tokens(CHINESE)
    assert abs(estimate.text_tokens(mixed) - apart) <= 2


@pytest.mark.parametrize("script", writing.WORDS)
def test_slices_of_a_long_text_stand_for_the_whole(script: str):
    texts = writing.strings(script, 400)
    whole = sum(map(estimate.text_tokens, texts))
    assert len("".join(texts)) > 2 * limits.ESTIMATE_CHARS_MAX
    assert abs(estimate.text_tokens("".join(texts)) - whole) < 0.05 * whole


@pytest.mark.parametrize(
    "text", ["a" * 8_000_000, " " * 8_000_000, "a1" * 4_000_000, "字" * 2_000_000]
)
def test_a_huge_text_takes_no_time(text: str):
    began = time.perf_counter()
    assert estimate.text_tokens(text) > 1
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    "text", ["", "\0", "\0" * 60, "\U0010ffff" * 60, "\u0301" * 60, "\u200d\ufe0f" * 60]
)
def test_odd_text_is_estimated(text: str):
    assert estimate.text_tokens(text) >= 1


@pytest.mark.parametrize("part", ["image", "image_url", "input_image"])
def test_an_image_counts_as_one_whatever_its_bytes(part: str):
    content = [{"type": part, part: {"url": "data:" + "A" * 100_000}}]
    assert estimate.content_tokens(content) == estimate.IMAGE


def test_parts_add_up():
    content = [{"type": "text", "text": "abcdefgh"}, {"type": "audio"}, {"type": "file"}, "plain"]
    assert estimate.content_tokens(content) == 1 + estimate.AUDIO + estimate.FILE + 1


@pytest.mark.req("B-7")
def test_a_given_count_wins_over_the_estimate():
    assert Message("user", ENGLISH, tokens=7).fallback_estimate_tokens() == 7
    assert Message("user", ENGLISH).fallback_estimate_tokens() == estimate.text_tokens(ENGLISH)


def test_calls_and_results_count_too_and_nothing_counts_as_zero():
    call = Message("assistant", tool_calls=[ToolCallRequest("c", "f", {"text": ENGLISH})])
    result = Message("tool", tool_results=[ToolCallResult("c", {"rows": [ENGLISH]})])
    assert call.fallback_estimate_tokens() > estimate.text_tokens(ENGLISH)
    assert result.fallback_estimate_tokens() > estimate.text_tokens(ENGLISH)
    assert Message("user", "").fallback_estimate_tokens() >= 1
    assert Message("tool", tool_results=[ToolCallResult("c")]).fallback_estimate_tokens() >= 1
