"""Shorter texts inside a message, with the same id, role, calls and pairing.

The missing characters are counted in their place. Arguments of calls and reasoning stay unaltered:
providers check or reject them otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from limpet import limits
from limpet.core.values.json_values import Json, freeze
from limpet.core.values.messages import Message

_EXTRA_WHITESPACE = re.compile(r"[ \t]+$|(?<=\n)\n{2,}", re.MULTILINE)
_TEXT_PART_TYPES = frozenset(("text", "input_text", "output_text"))

ShortenText = Callable[[str], str]


def lighten_text(text: str) -> str:
    """Return the text without trailing and repeated blank space, its middle counted if it is long."""
    return abbreviate(_EXTRA_WHITESPACE.sub("", text), limits.LIGHT_CHARS)


def abbreviate(text: str, chars: int) -> str:
    """Return a text of at most about so many characters: its head and tail, and how much is missing."""
    if len(text) <= chars + limits.ABBREVIATION_CHARS:
        return text
    head, tail = chars * 2 // 3, chars - chars * 2 // 3
    missing = len(text) - head - tail
    return f"{text[:head]}\n[… {missing:,} characters left out …]\n{text[len(text) - tail :]}"


def lighten_message(message: Message) -> Message:
    """Return the message with long texts shortened; the message itself if nothing is."""
    return _map_message_texts(message, lighten_text)


def stub_tool_output(message: Message) -> Message:
    """Return a tool message whose results are only named by their size; any other is shortened."""
    return _map_message_texts(message, _output_stub if message.role == "tool" else lighten_text)


def _output_stub(text: str) -> str:
    stub = f"[{len(text):,} characters of output left out]"
    return stub if len(stub) < len(text) else text


def _map_message_texts(message: Message, shorter: ShortenText) -> Message:
    content = _map_content_texts(message.content, shorter)
    results = tuple(
        msgspec.structs.replace(result, result=_map_content_texts(result.result, shorter))
        for result in message.tool_results
    )
    if content == message.content and results == tuple(message.tool_results):
        return message
    if message.anthropic is not None and message.role == "assistant":
        # Its blocks may be signed as a whole, and a provider refuses them altered.
        return message
    raw = message.openai
    if raw is not None:
        # For a tool message the provider's content is its one result.
        said = results[0].result if results else content
        raw = freeze({**raw, "content": said}) if raw.get("content") is not None else raw
    return msgspec.structs.replace(message, content=content, tool_results=results, openai=raw, anthropic=None)


def _map_content_texts(content: Json, shorter: ShortenText) -> Json:
    if isinstance(content, str):
        return shorter(content)
    if not isinstance(content, list):
        return content
    before = cast("list[Json]", content)
    after = [_map_part_text(part, shorter) for part in before]
    return before if after == before else freeze(after)


def _map_part_text(part: Json, shorter: ShortenText) -> Json:
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, Json]", part)
    text, kind = fields.get("text"), fields.get("type")
    if isinstance(kind, str) and kind in _TEXT_PART_TYPES and isinstance(text, str):
        return {**fields, "text": shorter(text)}
    return fields
