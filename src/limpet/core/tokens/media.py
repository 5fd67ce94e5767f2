"""Token counts of images, audio, video and files, by the providers' published rules.

Finds the media in a content part of any provider and reads sizes and lengths from the first bytes. Media that can't be
inspected, such as an image behind a URL, count as the provider's maximum, so that no budget is exceeded.
docs/explanation/tokens.md names the source of each rule.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable, Mapping
from math import ceil
from typing import Final, Literal, cast

import msgspec

from limpet import limits
from limpet.core.values.validation import Json

ImageSize = tuple[int, int]

_JPEG_FRAME_MARKERS: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def image_size(head: bytes) -> ImageSize | None:
    """Return width and height of a PNG, JPEG, GIF or WebP image; None if it is unknown."""
    try:
        size = _header_size(head)
    except (struct.error, IndexError):
        return None
    return size if size and min(size) > 0 and max(size) <= limits.IMAGE_SIDE_MAX else None


def _header_size(head: bytes) -> ImageSize | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack_from(">II", head, 16)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return struct.unpack_from("<HH", head, 6)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_size(head)
    if head.startswith(b"\xff\xd8"):
        return _jpeg_size(head)
    return None


def _webp_size(head: bytes) -> ImageSize | None:
    match head[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", head, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", head, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low, high, *rest = struct.unpack_from("<HBHB", head, 24)
            return (high << 16 | low) + 1, (rest[1] << 16 | rest[0]) + 1
        case _:
            return None


def _jpeg_size(head: bytes) -> ImageSize | None:
    """Search the segments for a frame header. Every step goes forward, so the loop ends."""
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return None
        marker = head[at + 1]
        if marker in _JPEG_FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        if marker == 0xFF:
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
            at += 2
        else:
            (length,) = struct.unpack_from(">H", head, at + 2)
            at += 2 + max(2, length)
    return None


def wav_seconds(head: bytes, size: int) -> float | None:
    """Return the length of a WAV recording of `size` bytes; None if `head` is not a WAV header."""
    if len(head) < 36 or not head.startswith(b"RIFF") or head[8:16] != b"WAVEfmt ":
        return None
    rate = int.from_bytes(head[28:32], "little")
    return size / rate if rate else None


MediaKind = Literal["image", "audio", "video", "file"]

_MEDIA_TOKENS_MIN: Final = 10
"""The smallest count of any media: renderers may replace media by a placeholder text."""

_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?[^,]{0,200},", re.ASCII)
_PDF_PAGE: Final = re.compile(rb"/Type\s{0,9}/Page\b")
_KIND_BY_PART_TYPE: Final[Mapping[str, MediaKind]] = {
    "image": "image", "image_url": "image", "input_image": "image",
    "audio": "audio", "input_audio": "audio", "video": "video", "input_video": "video",
    "file": "file", "input_file": "file", "document": "file",
}  # fmt: skip
_PAYLOAD_OBJECT_KEYS: Final = (
    "image_url", "source", "input_audio", "file", "inline_data", "inlineData", "file_data", "fileData",
)  # fmt: skip
_UNTYPED_PAYLOAD_KEYS: Final = frozenset({"inline_data", "inlineData", "file_data", "fileData"})
_PAYLOAD_TEXT_KEYS: Final = ("image_url", "file_url", "file_id", "file_data")
_DATA_FIELDS: Final = ("data", "file_data", "fileData", "url", "image_url")
_MEDIA_TYPE_FIELDS: Final = ("media_type", "mime_type", "mimeType", "format")


class Media(msgspec.Struct, frozen=True):
    """The properties of an image, recording or file that a rule needs. None means unknown."""

    kind: MediaKind
    image_size: tuple[int, int] | None = None
    detail: str = ""
    byte_count: int | None = None
    seconds: float | None = None
    pages: int | None = None
    text: str | None = None


def media_in_part(part: Mapping[str, Json]) -> Media | None:
    """Return the media of a content part; None if it holds none, like a folder listing's {"type": "file"}."""
    kind = _KIND_BY_PART_TYPE.get(str(part.get("type")))
    names = [name for name in _PAYLOAD_OBJECT_KEYS if isinstance(part.get(name), Mapping)]
    if kind and not names and any(isinstance(part.get(name), str) for name in _PAYLOAD_TEXT_KEYS):
        fields = part
    elif names and (kind or ("type" not in part and names[0] in _UNTYPED_PAYLOAD_KEYS)):
        fields = cast("Mapping[str, Json]", part[names[0]])
    else:
        return None
    payload = next((fields[name] for name in _DATA_FIELDS if isinstance(fields.get(name), str)), "")
    declared = next((fields[name] for name in _MEDIA_TYPE_FIELDS if isinstance(fields.get(name), str)), "")
    if match := _DATA_URL.match(payload):
        declared, payload = match[1] or declared, payload[match.end() :]
    elif isinstance(fields.get("url"), str) or "://" in payload[:16]:
        payload = ""
    detail = part.get("detail") or fields.get("detail") or _gemini_resolution(part)
    seen = _media_kind(declared, kind)
    if fields.get("type") == "text":
        return Media(seen, text=payload)
    if fields.get("type") == "content":
        return Media(seen, text=_document_text(fields.get("content")))
    return _inspect_payload(seen, declared, payload, detail if isinstance(detail, str) else "")


def _gemini_resolution(part: Mapping[str, Json]) -> Json:
    stated = part.get("media_resolution") or part.get("mediaResolution")
    return cast("Mapping[str, Json]", stated).get("level") if isinstance(stated, Mapping) else stated


def _document_text(content: Json) -> str:
    if isinstance(content, str):
        return content
    blocks = cast("list[Json]", content) if isinstance(content, list) else []
    found = [cast("Mapping[str, Json]", block) for block in blocks if isinstance(block, Mapping)]
    return "\n".join(str(block.get("text", "")) for block in found)


def _media_kind(declared: str, kind: MediaKind | None) -> MediaKind:
    name, slash, _ = declared.partition("/")
    return cast("MediaKind", name) if slash and name in ("image", "audio", "video") else kind or "file"


def _inspect_payload(kind: MediaKind, declared: str, payload: str, detail: str) -> Media:
    """Read the properties from the payload. Only as much is decoded as the kind needs."""
    if not payload:
        return Media(kind, detail=detail)
    size = len(payload) * 3 // 4
    if kind == "image":
        return Media(kind, image_size(_decode_base64(payload)), detail, size)
    if kind in ("audio", "video"):
        return Media(kind, byte_count=size, seconds=wav_seconds(_decode_base64(payload), size))
    data = _decode_base64(payload, limits.MESSAGE_BYTES_MAX * 2)
    if declared.startswith("text/") or declared.endswith("json"):
        return Media(kind, byte_count=size, text=data.decode("utf-8", "replace"))
    return Media(kind, byte_count=size, pages=len(_PDF_PAGE.findall(data)) or None)


def _decode_base64(payload: str, chars: int = limits.MEDIA_HEADER_CHARS) -> bytes:
    """Decode the beginning of base64 text; invalid text gives fewer bytes or none."""
    head = payload[:chars].translate({ord("-"): "+", ord("_"): "/"})
    try:
        return binascii.a2b_base64(head[: len(head) - len(head) % 4])
    except (binascii.Error, ValueError):
        return b""


class MediaRules(msgspec.Struct, frozen=True):
    """A provider's rules: a function for images, tokens per second of audio and video, tokens per page of a file."""

    image: Callable[[Media], int]
    audio_per_second: int
    video_per_second: int
    page: int

    def tokens(self, media: Media, count: Callable[[str], int]) -> int:
        """Return the tokens of one media item; `count` is for a file of plain text."""
        if media.text:
            return count(media.text)
        if media.kind == "image":
            return max(_MEDIA_TOKENS_MIN, self.image(media))
        if media.kind == "file":
            return max(_MEDIA_TOKENS_MIN, self.page * _page_count(media))
        rate = self.audio_per_second if media.kind == "audio" else self.video_per_second
        return max(_MEDIA_TOKENS_MIN, ceil(rate * _duration_seconds(media)))


def _page_count(media: Media) -> int:
    if media.pages is not None:
        return media.pages
    if media.text is not None:
        return 0
    if media.byte_count is None:
        return limits.FILE_PAGES_ASSUMED
    return max(1, min(media.byte_count // limits.FILE_PAGE_BYTES_MIN, limits.FILE_PAGES_ASSUMED))


def _duration_seconds(media: Media) -> float:
    if media.seconds is not None:
        return media.seconds
    if media.byte_count is None:
        return limits.MEDIA_SECONDS_ASSUMED
    return media.byte_count / limits.MEDIA_BYTES_PER_SECOND_MIN


def tile_rule(base: int, tile: int) -> Callable[[Media], int]:
    """Return OpenAI's older rule: scale into 2048², shorter side to 768, then `tile` tokens per tile of 512²."""

    def image(media: Media) -> int:
        if media.detail == "low":
            return base
        if media.image_size is None:
            return base + tile * 8  # 768 by 2048, the most that the scaling leaves
        width, height = _scale_down(media.image_size, longest=2048, shortest=768)
        return base + tile * ceil(width / 512) * ceil(height / 512)

    return image


def patch_rule(factor: float, most: int = 1536, original: int = 0) -> Callable[[Media], int]:
    """Return OpenAI's newer rule: `factor` tokens per patch of 32², at most `most` patches.

    `original` is the largest number of patches in original detail, which is the default of models that have it.
    """

    def image(media: Media) -> int:
        limit = most if media.detail in ("low", "high") else max(most, original)
        if media.image_size is None:
            return ceil(limit * factor)
        width, height = media.image_size
        return ceil(min(limit, ceil(width / 32) * ceil(height / 32)) * factor)

    return image


def cell_rule(most: int) -> Callable[[Media], int]:
    """Return Anthropic's rule: one token per cell of 28², at most `most`: larger images are scaled down."""

    def image(media: Media) -> int:
        if media.image_size is None:
            return most
        return min(most, ceil(media.image_size[0] / 28) * ceil(media.image_size[1] / 28))

    return image


def crop_rule(media: Media) -> int:
    """Gemini's rule: 258 tokens for a small image, else 258 per crop of two thirds of the shorter side."""
    if media.image_size is None:
        return 258 * limits.IMAGE_CROPS_MAX
    width, height = media.image_size
    if max(width, height) <= 384:
        return 258
    unit = max(1, int(min(width, height) / 1.5))
    return 258 * min(limits.IMAGE_CROPS_MAX, ceil(width / unit) * ceil(height / unit))


def flat_rule(media: Media) -> int:
    """Gemini's rule since its third generation: a fixed count, doubled for the highest resolution."""
    return 2_240 if "ULTRA" in media.detail.upper() else 1_120


def _scale_down(size: tuple[int, int], *, longest: int, shortest: int) -> tuple[float, float]:
    width, height = float(max(1, size[0])), float(max(1, size[1]))
    scale = min(1.0, longest / max(width, height))
    scale = min(scale, shortest / min(width, height))
    return width * scale, height * scale


def rules_for_openai(image: Callable[[Media], int]) -> MediaRules:
    """Return OpenAI's rules with the image rule of one model."""
    return MediaRules(image, audio_per_second=10, video_per_second=_VIDEO_TOKENS_PER_SECOND, page=1_600)


# A provider without a published rate is assumed to charge the published rate of another.
_AUDIO_TOKENS_PER_SECOND, _VIDEO_TOKENS_PER_SECOND = 32, 295
OPENAI_RULES: Final = rules_for_openai(tile_rule(85, 170))
ANTHROPIC_RULES: Final = MediaRules(cell_rule(1_568), _AUDIO_TOKENS_PER_SECOND, _VIDEO_TOKENS_PER_SECOND, page=4_568)
ANTHROPIC_LARGE_RULES: Final = MediaRules(
    cell_rule(4_784), _AUDIO_TOKENS_PER_SECOND, _VIDEO_TOKENS_PER_SECOND, page=7_784
)
GEMINI_RULES: Final = MediaRules(crop_rule, _AUDIO_TOKENS_PER_SECOND, _VIDEO_TOKENS_PER_SECOND, page=258)
GEMINI_3_RULES: Final = MediaRules(flat_rule, _AUDIO_TOKENS_PER_SECOND, _VIDEO_TOKENS_PER_SECOND, page=560)
