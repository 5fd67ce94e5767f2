"""Images, audio and files: found in a part of any provider's form, and counted by published rules.

What can't be seen from here (an image behind a URL) counts as the largest that the provider makes
of one, so that nothing goes over budget. docs/explanation/tokens.md names each rule's source.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from math import ceil
from typing import Final, Literal, cast

import msgspec

from limpet import limits
from limpet.core.values.json_values import Json
from limpet.tokens import headers

Kind = Literal["image", "audio", "video", "file"]

_WORDS: Final = 10
"""The least that media count: the words that stand for what can't be shown."""

_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)?[^,]{0,200},", re.ASCII)
_PDF_PAGE: Final = re.compile(rb"/Type\s{0,9}/Page\b")
_KINDS: Final[Mapping[str, Kind]] = {
    "image": "image", "image_url": "image", "input_image": "image",
    "audio": "audio", "input_audio": "audio", "video": "video", "input_video": "video",
    "file": "file", "input_file": "file", "document": "file",
}  # fmt: skip
_HOLDERS: Final = (
    "image_url",
    "source",
    "input_audio",
    "file",
    "inline_data",
    "inlineData",
    "file_data",
    "fileData",
)
_UNTYPED: Final = frozenset({"inline_data", "inlineData", "file_data", "fileData"})
_BARE: Final = ("image_url", "file_url", "file_id", "file_data")
_DATA_FIELDS: Final = ("data", "file_data", "fileData", "url", "image_url")
_TYPE_FIELDS: Final = ("media_type", "mime_type", "mimeType", "format")


class Media(msgspec.Struct, frozen=True):
    """One image, recording or file: what a rule needs to know of it. None: can't be seen from here."""

    kind: Kind
    size: tuple[int, int] | None = None
    detail: str = ""
    bytes: int | None = None
    seconds: float | None = None
    pages: int | None = None
    text: str | None = None


def found_in(part: Mapping[str, Json]) -> Media | None:
    """Return the media of a content part; None if it has none, as {"type": "file"} in a listing of a folder."""
    kind = _KINDS.get(str(part.get("type")))
    names = [name for name in _HOLDERS if isinstance(part.get(name), Mapping)]
    if kind and not names and any(isinstance(part.get(name), str) for name in _BARE):
        fields = part
    elif names and (kind or ("type" not in part and names[0] in _UNTYPED)):
        fields = cast("Mapping[str, Json]", part[names[0]])
    else:
        return None
    payload = next((fields[name] for name in _DATA_FIELDS if isinstance(fields.get(name), str)), "")
    declared = next(
        (fields[name] for name in _TYPE_FIELDS if isinstance(fields.get(name), str)), ""
    )
    if match := _DATA_URL.match(payload):
        declared, payload = match[1] or declared, payload[match.end() :]
    elif isinstance(fields.get("url"), str) or _is_reference(payload):
        payload = ""
    detail = part.get("detail") or fields.get("detail") or _resolution(part)
    seen = _kind_of(declared, kind)
    if fields.get("type") == "text":
        return Media(seen, text=payload)
    if fields.get("type") == "content":
        return Media(seen, text=_texts(fields.get("content")))
    return _look(seen, declared, payload, detail if isinstance(detail, str) else "")


def _resolution(part: Mapping[str, Json]) -> Json:
    """How closely Gemini is to look at a part, if the part says so."""
    stated = part.get("media_resolution") or part.get("mediaResolution")
    return (
        cast("Mapping[str, Json]", stated).get("level") if isinstance(stated, Mapping) else stated
    )


def _texts(content: Json) -> str:
    """The text of a document that is given as blocks."""
    if isinstance(content, str):
        return content
    blocks = cast("list[Json]", content) if isinstance(content, list) else []
    found = [cast("Mapping[str, Json]", block) for block in blocks if isinstance(block, Mapping)]
    return "\n".join(str(block.get("text", "")) for block in found)


def _is_reference(payload: str) -> bool:
    return "://" in payload[:16]


def _kind_of(declared: str, kind: Kind | None) -> Kind:
    for name in ("image", "audio", "video"):
        if declared.startswith(f"{name}/"):
            return cast("Kind", name)
    return kind or "file"


def _look(kind: Kind, declared: str, payload: str, detail: str) -> Media:
    """See what the bytes tell; only as much is decoded as the kind needs."""
    if not payload:
        return Media(kind, detail=detail)
    size = len(payload) * 3 // 4
    if kind == "image":
        return Media(kind, headers.image_size(_head(payload)), detail, size)
    if kind in ("audio", "video"):
        return Media(kind, bytes=size, seconds=headers.wav_seconds(_head(payload), size))
    data = _decoded(payload, limits.MESSAGE_BYTES_MAX * 2)
    if declared.startswith("text/") or declared.endswith("json"):
        return Media(kind, bytes=size, text=data.decode("utf-8", "replace"))
    return Media(kind, bytes=size, pages=len(_PDF_PAGE.findall(data)) or None)


def _head(payload: str) -> bytes:
    return _decoded(payload, limits.MEDIA_HEADER_CHARS)


def _decoded(payload: str, chars: int) -> bytes:
    """Decode base64 as far as it is some; what is not gives fewer bytes or none."""
    head = payload[:chars].translate({ord("-"): "+", ord("_"): "/"})
    try:
        return binascii.a2b_base64(head[: len(head) - len(head) % 4])
    except (binascii.Error, ValueError):
        return b""


class Rules(msgspec.Struct, frozen=True):
    """A provider's rules. Each takes the media and gives tokens; `page` is what one page of a file costs."""

    image: Callable[[Media], int]
    audio_per_second: int
    video_per_second: int
    page: int

    def tokens(self, media: Media, count: Callable[[str], int]) -> int:
        """Count one piece of media; `count` counts text that a file turned out to be."""
        if media.text:
            return count(media.text)
        if media.kind == "image":
            return max(_WORDS, self.image(media))
        if media.kind == "file":
            return max(_WORDS, self.page * _pages(media))
        rate = self.audio_per_second if media.kind == "audio" else self.video_per_second
        return max(_WORDS, ceil(rate * _seconds(media)))


def _pages(media: Media) -> int:
    if media.pages is not None:
        return media.pages
    if media.text is not None:
        return 0
    if media.bytes is None:
        return limits.FILE_PAGES_ASSUMED
    return max(1, min(media.bytes // limits.FILE_PAGE_BYTES_MIN, limits.FILE_PAGES_ASSUMED))


def _seconds(media: Media) -> float:
    if media.seconds is not None:
        return media.seconds
    if media.bytes is None:
        return limits.MEDIA_SECONDS_ASSUMED
    return media.bytes / limits.MEDIA_BYTES_PER_SECOND_MIN


def tiles(base: int, tile: int) -> Callable[[Media], int]:
    """OpenAI's older rule: fit into 2048², shorter side to 768, so much for each tile of 512²."""

    def image(media: Media) -> int:
        if media.detail == "low":
            return base
        if media.size is None:
            return base + tile * 8  # 768 by 2048, the most that the scaling leaves
        width, height = _fitted(media.size, longest=2048, shortest=768)
        return base + tile * ceil(width / 512) * ceil(height / 512)

    return image


def patches(factor: float, most: int = 1536, original: int = 0) -> Callable[[Media], int]:
    """OpenAI's newer rule: so much for each patch of 32², at most so many of them; more in original detail.

    Without a word on the detail, models that know the original one take it.
    """

    def image(media: Media) -> int:
        limit = most if media.detail in ("low", "high") else max(most, original)
        if media.size is None:
            return ceil(limit * factor)
        width, height = media.size
        return ceil(min(limit, ceil(width / 32) * ceil(height / 32)) * factor)

    return image


def cells(most: int) -> Callable[[Media], int]:
    """Anthropic's rule: one for each cell of 28², up to what it scales a larger image down to."""

    def image(media: Media) -> int:
        if media.size is None:
            return most
        return min(most, ceil(media.size[0] / 28) * ceil(media.size[1] / 28))

    return image


def crops(media: Media) -> int:
    """Gemini's rule: 258 for a small image, else for each crop of two thirds of the shorter side."""
    if media.size is None:
        return 258 * limits.IMAGE_CROPS_MAX
    width, height = media.size
    if max(width, height) <= 384:
        return 258
    unit = max(1, int(min(width, height) / 1.5))
    return 258 * min(limits.IMAGE_CROPS_MAX, ceil(width / unit) * ceil(height / unit))


def flat(media: Media) -> int:
    """Gemini's rule since its third generation: the same for every image, more for the highest resolution."""
    return 2_240 if "ULTRA" in media.detail.upper() else 1_120


def _fitted(size: tuple[int, int], *, longest: int, shortest: int) -> tuple[float, float]:
    width, height = float(max(1, size[0])), float(max(1, size[1]))
    scale = min(1.0, longest / max(width, height))
    scale = min(scale, shortest / min(width, height))
    return width * scale, height * scale


def openai(image: Callable[[Media], int]) -> Rules:
    """OpenAI's rules with one model's rule for images."""
    return Rules(image, audio_per_second=10, video_per_second=_VIDEO, page=1_600)


# Who publishes no rate is taken to charge as much as who does.
_AUDIO, _VIDEO = 32, 295
OPENAI: Final = openai(tiles(85, 170))
ANTHROPIC: Final = Rules(cells(1_568), _AUDIO, _VIDEO, page=4_568)
ANTHROPIC_LARGE: Final = Rules(cells(4_784), _AUDIO, _VIDEO, page=7_784)
GEMINI: Final = Rules(crops, _AUDIO, _VIDEO, page=258)
GEMINI_3: Final = Rules(flat, _AUDIO, _VIDEO, page=560)
