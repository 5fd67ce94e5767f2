"""Media: sizes from header bytes, tokens by the published rules, the most where nothing can be seen."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import Message, limits, tokens
from limpet.core.tokens import media


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\0\0\0"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 20


def jpeg(width: int, height: int) -> bytes:
    preview = b"\xff\xe1" + struct.pack(">H", 5_002) + b"\xff\xd8\xff\xc0" * 1_250
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"\3" * 12
    return b"\xff\xd8" + preview + b"\xff\xff" + frame


def webp(width: int, height: int) -> bytes:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X" + b"\n\0\0\0" + b"\0" * 4 + sizes


def webp_lossy(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8 " + b"\0" * 7 + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", width - 1 | height - 1 << 14)


FORMATS = [png, gif, jpeg, webp, webp_lossy, webp_lossless]


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def openai(data: bytes | str, **options: str) -> Mapping[str, object]:
    return {"type": "image_url", "image_url": {"url": data if isinstance(data, str) else url(data), **options}}


def anthropic(data: bytes, kind: str = "image/png", part: str = "image") -> Mapping[str, object]:
    source = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}
    return {"type": part, "source": source}


def gemini(data: bytes, kind: str = "image/png") -> Mapping[str, object]:
    return {"inline_data": {"mime_type": kind, "data": base64.b64encode(data).decode()}}


def count(model: str, part: Mapping[str, object]) -> int:
    """Tokens of the part alone."""
    counter = tokens.for_model(model)
    return counter.message(Message("user", [part])) - counter.message(Message("user", ""))


@pytest.mark.parametrize("make", FORMATS)
def test_size_is_read_from_the_header(make):
    assert media.image_size(make(1_024, 768)) == (1_024, 768)
    whole = make(1_024, 768)
    for length in range(len(whole)):
        assert media.image_size(whole[:length]) in (None, (1_024, 768))


@given(st.binary(max_size=80), st.sampled_from([b"", *(make(7, 9)[:30] for make in FORMATS)]))
def test_hostile_bytes_give_a_size_or_none(tail: bytes, head: bytes):
    size = media.image_size(head + tail)
    assert size is None or all(0 < side <= limits.IMAGE_SIDE_MAX for side in size)
    media.wav_seconds(head + tail, 10)


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        ("gpt-4o", (1_024, 1_024), 85 + 4 * 170),  # scaled to 768: four tiles, as published
        ("gpt-4o", (2_048, 4_096), 85 + 6 * 170),  # 1024 by 2048, then 768 by 1536
        ("gpt-4o", (512, 512), 85 + 170),
        ("gpt-5", (1_024, 1_024), 70 + 4 * 140),
        ("o3", (1_024, 1_024), 75 + 4 * 150),
        ("gpt-4o-mini", (512, 512), 2_833 + 5_667),
        ("gpt-4.1-mini", (1_024, 1_024), 1_659),  # 1024 patches times 1.62
        ("o4-mini", (9_999, 9_999), 2_642),  # 1536 patches times 1.72
        ("claude-3-5-sonnet-latest", (200, 200), 64),
        ("claude-3-5-sonnet-latest", (1_000, 1_000), 1_296),
        ("claude-3-5-sonnet-latest", (4_000, 4_000), 1_568),
        ("claude-opus-4-7", (1_920, 1_080), 69 * 39),
        ("claude-opus-4-7", (4_000, 4_000), 4_784),
        ("gemini-2.5-pro", (384, 384), 258),
        ("gemini-2.5-pro", (960, 540), 6 * 258),
        ("gemini-3-pro-preview", (256, 256), 1_120),
        ("gemini-3-pro-preview", (4_000, 3_000), 1_120),
        ("gpt-5.5", (256, 256), 77),  # 64 patches times 1.2
        ("gpt-5.5", (3_840, 2_160), 9_792),
        ("gpt-5.5", (9_999, 9_999), 12_000),
        ("gpt-5.4-mini", (9_999, 9_999), 4_051),
    ],
)
def test_image_costs_what_its_provider_publishes(model: str, size: tuple[int, int], expected: int):
    for part in (openai(png(*size)), anthropic(png(*size)), gemini(png(*size))):
        assert count(model, part) == expected


@pytest.mark.parametrize(
    ("model", "most"),
    [
        ("gpt-4o", 1_445),
        ("gpt-4.1-mini", 2_489),
        ("claude-3-5-haiku-latest", 1_568),
        ("gemini-2.5-pro", 4_128),
        ("gemini-3-pro-preview", 1_120),
        ("gpt-5.5", 12_000),
    ],
)
def test_image_that_can_not_be_seen_costs_the_most(model: str, most: int):
    broken = [b"", b"not an image", png(0, 5), png(2**31, 5), png(5, 5)[:20]]
    parts = [openai("https://example.com/cat.png"), {"type": "input_image", "file_id": "f"}]
    parts += [openai(data) for data in broken]
    parts += [openai("data:image/png;base64,%%%"), openai("data:")]
    parts += [{"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}]
    for part in parts:
        assert count(model, part) == most


def test_low_detail_is_a_flat_price():
    assert count("gpt-4o", openai(png(4_000, 4_000), detail="low")) == 85
    part = {"type": "input_image", "image_url": "https://example.com/cat.png", "detail": "low"}
    assert count("gpt-4o", part) == 85
    assert count("gpt-5.5", openai(png(3_840, 2_160), detail="high")) == 3_000


def test_audio_costs_by_its_length():
    wav = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16)
    wav += b"data" + b"\0" * 480_000
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav).decode(), "format": "wav"}}
    assert count("gpt-4o-audio-preview", part) in (100, 101)
    assert count("gemini-2.5-flash", part) in (320, 321)
    unknown = {"type": "input_audio", "input_audio": {"data": "AAAA" * 1_000, "format": "mp3"}}
    assert count("gpt-4o", unknown) == 15  # 3,000 bytes at 16 kbit/s are at most 1.5 s
    assert (
        count("gemini-2.5-flash", {"file_data": {"file_uri": "https://example.com/a", "mime_type": "audio/mp3"}})
        == 19_200
    )


def test_files_cost_by_their_pages_or_their_text():
    pdf = b"%PDF-1.7" + b"<</Type /Pages>> <</Type/Page >>" * 3
    part = anthropic(pdf, "application/pdf", "document")
    assert count("claude-3-5-sonnet-latest", part) == 3 * 4_568
    assert count("gemini-2.5-pro", gemini(pdf, "application/pdf")) == 3 * 258
    assert count("gemini-3-pro-preview", gemini(pdf, "application/pdf")) == 3 * 560
    long = b"%PDF-1.7" + b"<</Type/Page>>" * 300
    assert count("gpt-4o", anthropic(long, "application/pdf", "document")) == 300 * 1_600
    assert count("gpt-4o", {"type": "file", "file": {"file_id": "f"}}) == 100 * 1_600
    text = {"type": "file", "file": {"file_data": url(b"one two three", "text/plain")}}
    assert count("gpt-4o", text) == 3
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "one two"}}
    assert count("gpt-4o", plain) == 2
    blocks = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    listed = {"type": "document", "source": {"type": "content", "content": blocks}}
    assert count("gpt-4o", listed) == tokens.for_model("gpt-4o").text("one\ntwo")


def test_gemini_looks_more_closely_where_it_is_told_to():
    level = {"level": "MEDIA_RESOLUTION_ULTRA_HIGH"}
    for key in ("media_resolution", "mediaResolution"):
        assert count("gemini-3-pro-preview", {**gemini(png(9, 9)), key: level}) == 2_240


@given(
    st.dictionaries(
        st.sampled_from(["type", "image_url", "source", "data", "url", "detail", "text"]),
        st.none()
        | st.text(max_size=9)
        | st.dictionaries(st.sampled_from(["url", "data"]), st.integers() | st.text(max_size=9)),
    )
)
def test_any_part_is_counted(part: Mapping[str, object]):
    assert count("gpt-4o", {**part, "type": "image_url"}) >= 1
    assert count("gpt-4o", part) >= 0
