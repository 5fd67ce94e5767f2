"""The token estimate: by script, never zero for something, exact counts win."""

from __future__ import annotations

import pytest

from limpet import Message, ToolCallRequest, ToolCallResult
from limpet.core.values import messages

ENGLISH = "The quick brown fox jumps over the lazy dog. " * 10
CHINESE = "前文摘要：用户想订一张去奥斯陆的机票。" * 10
JAPANESE = "前文の要約：利用者はオスロへの便を探しています。" * 10
KOREAN = "사용자가 오슬로행 항공편을 찾고 있습니다" * 10
RUSSIAN = "Пользователь ищет рейс в Осло. " * 10


def test_latin_text_takes_about_four_characters_a_token():
    assert messages.estimate_text_tokens(ENGLISH) == len(ENGLISH) // 4 + 1


@pytest.mark.parametrize("text", [CHINESE, JAPANESE], ids=["zh", "ja"])
def test_ideographs_take_about_one_token_each(text: str):
    assert 0.9 * len(text) <= messages.estimate_text_tokens(text) <= 1.1 * len(text)


def test_other_scripts_lie_between():
    for text in (KOREAN, RUSSIAN):
        assert len(text) / 4 < messages.estimate_text_tokens(text) <= 1.1 * len(text)
    assert messages.estimate_text_tokens(KOREAN) > messages.estimate_text_tokens(RUSSIAN) * len(KOREAN) / len(RUSSIAN)


def test_mixed_text_is_the_sum_of_its_scripts():
    mixed = ENGLISH + CHINESE
    apart = messages.estimate_text_tokens(ENGLISH) + messages.estimate_text_tokens(CHINESE)
    assert abs(messages.estimate_text_tokens(mixed) - apart) <= 2


@pytest.mark.parametrize("part", ["image", "image_url", "input_image"])
def test_an_image_counts_as_one_whatever_its_bytes(part: str):
    content = [{"type": part, part: {"url": "data:" + "A" * 100_000}}]
    assert messages.estimate_content_tokens(content) == messages.IMAGE_TOKENS


def test_parts_add_up():
    content = [{"type": "text", "text": "abcdefgh"}, {"type": "audio"}, {"type": "file"}, "plain"]
    assert messages.estimate_content_tokens(content) == 3 + messages.AUDIO_TOKENS + messages.FILE_TOKENS + 2


@pytest.mark.req("B-7")
def test_a_given_count_wins_over_the_estimate():
    assert Message("user", ENGLISH, tokens=7).fallback_estimate_tokens() == 7
    assert Message("user", ENGLISH).fallback_estimate_tokens() == messages.estimate_text_tokens(ENGLISH)


def test_calls_and_results_count_too_and_nothing_counts_as_zero():
    call = Message("assistant", tool_calls=[ToolCallRequest("c", "f", {"text": ENGLISH})])
    result = Message("tool", tool_results=[ToolCallResult("c", {"rows": [ENGLISH]})])
    assert call.fallback_estimate_tokens() > len(ENGLISH) // 4
    assert result.fallback_estimate_tokens() > len(ENGLISH) // 4
    assert Message("user", "").fallback_estimate_tokens() >= 1
    assert Message("tool", tool_results=[ToolCallResult("c")]).fallback_estimate_tokens() >= 1
