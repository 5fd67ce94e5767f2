"""Renders messages as text for a model, each in a fence that its text cannot forge.

Messages are whole and in order. A message that does not fit into one question continues in the next.
Only the bytes of media are left out, and replaced by their size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec
from limpet.core.values.messages import Message
from limpet.core.values.validation import Json

CountTokens = Callable[[str], int]
"""Returns the number of tokens of a text."""

_FENCE_LINE: Final = re.compile(r"\[/?(?:said|summary)-([0-9]{1,18})")
_ENCODED_DATA: Final = re.compile(r"(?:data:[^,\s]{1,100},)?[A-Za-z0-9+/_=-]{256,}")
_TEXT_FIELDS: Final = ("text", "refusal", "thinking")
_WORD_CHARS: Final = 40
"""The largest distance to the beginning of a word at which an overlap may begin."""

_WIDEST_FENCE: Final = 999_999
"""A fence number with as many digits as any that occurs, to reserve room."""


def count_bytes(text: str) -> int:
    """Return the number of bytes of a text, which is an upper bound of its tokens with every tokenizer."""
    return len(text.encode())


class TranscriptMessage(msgspec.Struct, frozen=True):
    """A message as a model reads it. `number` is its place among the messages shown, `part` says that it was cut."""

    number: int
    role: str
    date: str
    text: str
    part: bool = False

    def fenced_text(self, fence: int) -> str:
        """Return the message inside a fence with this number."""
        part = ", part of it" if self.part else ""
        return fence_text("said", fence, self.text, f" {self.number} {self.role} {self.date}{part}")


class TranscriptPosition(msgspec.Struct, frozen=True):
    """A position in a list of messages: a message's index, and an offset in its text."""

    index: int
    offset: int


START: Final = TranscriptPosition(0, 0)


def fence_text(kind: str, fence: int, text: str, about: str = "") -> str:
    """Return a text inside a fence: between two lines with the number of the fence."""
    return f"[{kind}-{fence}{about}]\n{text}\n[/{kind}-{fence}]"


def unused_fence_number(*texts: str) -> int:
    """Return the first number that no fence line in any of the texts has."""
    taken = {int(found) for text in texts for found in _FENCE_LINE.findall(text)}
    number = 1
    while number in taken:
        number += 1
    return number


def transcript_message(number: int, message: Message) -> TranscriptMessage:
    """Return a message as a model reads it."""
    return TranscriptMessage(number, message.role, message.timestamp[:10], transcript_text(message))


def transcript_text(message: Message) -> str:
    """Return the text of a message: content, tool calls with their arguments, and results."""
    pieces = [_content_text(message.content)] if message.content is not None else []
    for call in message.tool_calls:
        pieces.append(f"→ {call.name}({call.arguments or _json_text(call.args)}) [{call.id}]")
    for result in message.tool_results:
        failed = " failed" if result.is_error else ""
        pieces.append(f"← [{result.tool_call_id}]{failed}: {_content_text(result.result)}")
    return "\n".join(pieces)


def _content_text(value: Json) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        items = cast("list[Json]", value)
        if items and all(isinstance(item, Mapping) and "type" in item for item in items):
            return "\n".join(_part_text(cast("Mapping[str, Json]", item)) for item in items)
    return _json_text(value)


def _part_text(part: Mapping[str, Json]) -> str:
    for field in _TEXT_FIELDS:
        text = part.get(field)
        if isinstance(text, str) and set(part) <= {"type", field}:
            return text
    return _json_text(part)


def _json_text(value: Json) -> str:
    return codec.canonical_json(_without_media(value)).decode()


def _without_media(value: Json) -> Json:
    """Return a value with the bytes of media replaced by their size."""
    if isinstance(value, str):
        return f"[{len(value):,} characters of data]" if _ENCODED_DATA.fullmatch(value) else value
    if isinstance(value, Mapping):
        return {k: _without_media(v) for k, v in cast("Mapping[str, Json]", value).items()}
    if isinstance(value, list):
        return [_without_media(item) for item in cast("list[Json]", value)]
    return value


def next_chunk(
    messages: Sequence[TranscriptMessage], at: TranscriptPosition, room: int, count: CountTokens
) -> tuple[list[TranscriptMessage], TranscriptPosition]:
    """Return the messages from a position on that fit into `room` tokens, and the position behind them.

    Raises InvalidRequest if not even the beginning of a message fits.
    """
    parts: list[TranscriptMessage] = []
    index, offset = at.index, at.offset
    while index < len(messages):
        message = messages[index]
        empty = msgspec.structs.replace(message, text="", part=True)
        left = room - count(f"{empty.fenced_text(_WIDEST_FENCE)}\n")
        end = _fitting_end(message.text, offset, left, count) if left > 0 else -1
        if end < len(message.text):
            if parts:
                break  # The next question may have room for the whole message.
            if end <= offset:
                raise window_too_small()
            end = _break_before(message.text, offset, end)
            parts.append(msgspec.structs.replace(empty, text=message.text[offset:end]))
            return parts, TranscriptPosition(index, _overlap_start(message.text, offset, end))
        text = message.text[offset:]
        parts.append(msgspec.structs.replace(empty, text=text, part=offset > 0))
        room = left - count(text)
        index, offset = index + 1, 0
    return parts, TranscriptPosition(index, offset)


def window_too_small() -> errors.InvalidRequest:
    """Return the error for a model whose window has no room for messages."""
    return errors.InvalidRequest(
        "the model's window has no room for messages beside the words around them.",
        hint="Set `window` to what the model has, lower `tokens_max`, or give its counter as `count`.",
    )


def _fitting_end(text: str, start: int, room: int, count: CountTokens) -> int:
    """Return the end of the part of a text from `start` that fits into `room` tokens.

    It doubles the part until it is too large, so it never counts much more text than fits.
    """
    good, step = start, max(room, 1)
    while True:
        end = min(len(text), start + step)
        if count(text[start:end]) > room:
            break
        if end == len(text):
            return end
        good, step = end, step * 2
    bad = end
    while bad - good > max(1, room // 64):
        middle = (good + bad) // 2
        if count(text[start:middle]) > room:
            bad = middle
        else:
            good = middle
    return good


def _break_before(text: str, start: int, end: int) -> int:
    """Return the end of the last line, or else word, in the last quarter of a part; `end` if there is none."""
    least = end - (end - start) // 4
    for mark in ("\n", " "):
        found = text.rfind(mark, least, end)
        if found > start:
            return found + 1
    return end


def _overlap_start(text: str, start: int, end: int) -> int:
    """Return where the next part begins: before `end`, so that a sentence cut at `end` is whole in one of the parts."""
    begin = end - min(limits.MODEL_OVERLAP_CHARS, (end - start) // 2)
    near = text[max(start + 1, begin - _WORD_CHARS) : begin]
    # Begin at the start of a word.
    return begin - len(near.split(" ")[-1].split("\n")[-1]) if " " in near or "\n" in near else begin
