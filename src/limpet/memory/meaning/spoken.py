"""What of a message is embedded: its words, in passages that a model can take; a short answer with its question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from limpet import limits
from limpet.core.values.json_values import Json
from limpet.core.values.messages import Message

_SAID: Final = frozenset({"user", "assistant"})
_SHORT: Final = 4
"""Words of an answer that says little without what it answers: "the window one, please"."""
_BREAKS: Final = ("\n\n", "\n", ". ", "! ", "? ", "。", "！", "？", "; ", ", ", "、", "，", " ")


def text_of(message: Message) -> str:
    """Return the words of a user or an assistant; nothing for other roles, and for copies of what stands elsewhere."""
    if message.role not in _SAID or message.origin is not None:
        return ""
    return "\n".join(_texts(message.content)).strip()


def _texts(content: Json) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in cast("list[Json]", content):
            text = cast("dict[str, Json]", part).get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def is_short(text: str) -> bool:
    """Whether a text is only understood along with what it answers."""
    few = text.isascii() and len(text) <= 12 * _SHORT and len(text.split()) <= _SHORT
    return few and any(map(str.isalnum, text))


def passages(text: str, answered: str = "") -> list[str]:
    """Return the passages of a text, the first limits.EMBED_PASSAGES_MAX; a short one after the end of `answered`."""
    if answered and is_short(text):
        return [f"{answered[-limits.EMBED_PASSAGE_CHARS // 2 :]}\n{text}"]
    found: list[str] = []
    while text and len(found) < limits.EMBED_PASSAGES_MAX:
        end = _end(text)
        found.append(text[:end].strip())
        text = text[end:].strip()
    return [passage for passage in found if any(map(str.isalnum, passage))]


def _end(text: str) -> int:
    """Return where the first passage of a text ends: the last good place in its second half."""
    size = limits.EMBED_PASSAGE_CHARS
    if len(text) <= size:
        return len(text)
    for mark in _BREAKS:
        at = text.rfind(mark, size // 2, size)
        if at >= 0:
            return at + len(mark)
    return size
