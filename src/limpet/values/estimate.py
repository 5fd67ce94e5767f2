"""A token estimate that needs no tokenizer and depends on the script.

Latin text takes about four characters a token, most other alphabets about two, Chinese, Japanese and
Korean about one. It is used where no counter has counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from limpet.values.frozen import Json

NAME = "estimate-1"
"""The counter name stored with every such count, so that an exact counter knows which ones to replace."""

IMAGE, AUDIO, FILE = 1000, 500, 250
_PARTS = {
    "image": IMAGE, "image_url": IMAGE, "input_image": IMAGE,
    "audio": AUDIO, "input_audio": AUDIO,
    "file": FILE, "input_file": FILE,
}  # fmt: skip
_IDEOGRAPHS = re.compile(
    "[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff]"
)


def text_tokens(text: str) -> int:
    """Estimate one text; at least 1."""
    if text.isascii():
        return len(text) // 4 + 1
    dense = len(_IDEOGRAPHS.findall(text))
    ascii_ = len(text.encode("ascii", "ignore"))
    return dense + (len(text) - dense - ascii_) // 2 + ascii_ // 4 + 1


def content_tokens(content: Json) -> int:
    """Estimate a message's content: text, a list of parts, or any other JSON value."""
    if content is None:
        return 0
    if isinstance(content, str):
        return text_tokens(content)
    if isinstance(content, list):
        return sum(_part_tokens(part) for part in cast("list[Json]", content))
    return text_tokens(str(content))


def _part_tokens(part: Json) -> int:
    if not isinstance(part, Mapping):
        return text_tokens(str(part))
    fields = cast("Mapping[str, Json]", part)
    known = _PARTS.get(str(fields.get("type")))
    if known is not None:
        return known
    text = fields.get("text")
    return text_tokens(text if isinstance(text, str) else str(dict(fields)))
