"""What a message says, as text: content, tool calls with their arguments, tool results. Media is no text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, cast

import msgspec

from limpet import limits
from limpet.core.values.json_values import Json
from limpet.core.values.memory_records import MEMORY_METADATA_KEY
from limpet.core.values.messages import Message

_UNTOLD: Final = frozenset({
    "type", "id", "tool_use_id", "tool_call_id", "call_id", "signature", "encrypted_content", "data",
    "media_type", "mime_type", "url", "file_id", "detail", "cache_control", "image_url", "input_audio",
    "audio", "inline_data", "source", "format",
})  # fmt: skip
"""Fields of a part that say nothing to a reader: names for machines, and media."""

_REMEMBERED: Final = re.compile(r"\s*\[memory-([0-9]{1,18})\]\n.*\n\[/memory-\1\]$", re.DOTALL)
"""What a memory has put at the end of a system prompt."""

_encoder: Final = msgspec.json.Encoder()


def text_of(message: Message) -> str:
    """Return what a message says, the beginning and the end of what is long.

    What memory has put into a system prompt was said elsewhere, and is found there.
    """
    content = message.content
    if MEMORY_METADATA_KEY in message.metadata and isinstance(content, str):
        return _ends(_REMEMBERED.sub("", content), limits.ARCHIVE_CHARS_MAX)
    if type(content) is str and not message.tool_calls and not message.tool_results:
        return _ends(content, limits.ARCHIVE_CHARS_MAX)
    return "\n".join(_pieces(message))


def _pieces(message: Message) -> Iterator[str]:
    if message.content is not None:
        yield _ends("\n".join(_said(message.content)), limits.ARCHIVE_CHARS_MAX)
    for call in message.tool_calls:
        given = call.arguments
        if given is None:
            given = _encoder.encode(call.args).decode() if call.args else ""
        yield _ends(f"{call.name} {given}", limits.ARCHIVE_TOOL_CHARS_MAX)
    for result in message.tool_results:
        yield _ends("\n".join(_given(result.result)), limits.ARCHIVE_TOOL_CHARS_MAX)


def spoken(message: Message) -> bool:
    """Whether a message has words of its own, beside calls and results."""
    return message.content is not None and any(map(str.strip, _said(message.content)))


def _said(value: Json) -> Iterator[str]:
    """Yield the texts in some content, whatever parts it has."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[Json]", value):
            yield from _said(item)
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Json]", value).items():
            if name not in _UNTOLD:
                yield from _said(item)


def _given(result: Json) -> Iterator[str]:
    if isinstance(result, str):
        yield result
    elif _is_parts(result):
        yield from _said(result)
    elif result is not None:
        yield _encoder.encode(result).decode()


def _is_parts(result: Json) -> bool:
    """Whether a tool gave parts, as providers have them, rather than data of its own."""
    if not isinstance(result, list):
        return False
    items = cast("list[Json]", result)
    return bool(items) and all(isinstance(item, dict) and "type" in item for item in items)


def _ends(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    return f"{text[: chars * 3 // 4]}\n{text[-(chars // 4) :]}"
