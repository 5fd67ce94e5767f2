"""Renders messages as text for a model, each in a fence that its text cannot forge.

Messages are whole and in order. Those that do not fit into one question continue in the next.
Nothing is left out but the bytes of media, which are replaced by their size.
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
"""How many tokens a text has."""

_FENCE_LINE: Final = re.compile(r"\[/?(?:said|summary)-([0-9]{1,18})")
_ENCODED_DATA: Final = re.compile(r"(?:data:[^,\s]{1,100},)?[A-Za-z0-9+/_=-]{256,}")
_TEXT_FIELDS: Final = ("text", "refusal", "thinking")
_WORD_CHARS: Final = 40
"""How far back the beginning of a word is looked for."""

_WIDEST_FENCE: Final = 999_999
"""A number for fences that is as long as any that is needed."""


def count_bytes(text: str) -> int:
    """Count a text's bytes. No tokenizer makes more tokens of it, so nothing counted so is ever too long."""
    return len(text.encode())


class TranscriptMessage(msgspec.Struct, frozen=True):
    """A message for a model to read: its number among those that are shown, who said it, when, and what."""

    number: int
    role: str
    date: str
    text: str
    part: bool = False

    def fenced_text(self, fence: int) -> str:
        """Return it between its two lines."""
        part = ", part of it" if self.part else ""
        return fence_text("said", fence, self.text, f" {self.number} {self.role} {self.date}{part}")


class TranscriptPosition(msgspec.Struct, frozen=True):
    """How far messages have been shown: all before `index`, and of that one all before `offset`."""

    index: int
    offset: int


START: Final = TranscriptPosition(0, 0)


def fence_text(kind: str, fence: int, text: str, about: str = "") -> str:
    """Return a text between two lines with a number that is not in it."""
    return f"[{kind}-{fence}{about}]\n{text}\n[/{kind}-{fence}]"


def unused_fence_number(*texts: str) -> int:
    """Return the first number with which no line in any of the texts begins or ends a fence."""
    taken = {int(found) for text in texts for found in _FENCE_LINE.findall(text)}
    number = 1
    while number in taken:
        number += 1
    return number


def transcript_message(number: int, message: Message) -> TranscriptMessage:
    """Return a message as a model is shown it."""
    return TranscriptMessage(number, message.role, message.timestamp[:10], transcript_text(message))


def transcript_text(message: Message) -> str:
    """Return all that a message says: content, calls with their arguments, results."""
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
    """Return a value in which the bytes of media are named by their size."""
    if isinstance(value, str):
        return f"[{len(value):,} characters of data]" if _ENCODED_DATA.fullmatch(value) else value
    if isinstance(value, Mapping):
        return {k: _without_media(v) for k, v in cast("Mapping[str, Json]", value).items()}
    if isinstance(value, list):
        return [_without_media(item) for item in cast("list[Json]", value)]
    return value


def next_chunk(
    said: Sequence[TranscriptMessage], at: TranscriptPosition, room: int, count: CountTokens
) -> tuple[list[TranscriptMessage], TranscriptPosition]:
    """Return what comes next of some messages within so many tokens, and how far that goes.

    Raises InvalidRequest if not even the beginning of a message fits.
    """
    parts: list[TranscriptMessage] = []
    index, offset = at.index, at.offset
    while index < len(said):
        one = said[index]
        rest = msgspec.structs.replace(one, text="", part=True)
        left = room - count(f"{rest.fenced_text(_WIDEST_FENCE)}\n")
        end = _fitting_end(one.text, offset, left, count) if left > 0 else -1
        if end < len(one.text) and parts:
            break  # in the next question it may be whole
        if end <= offset and end < len(one.text):
            raise window_too_small()
        if end < len(one.text):
            end = _break_before(one.text, offset, end)
            parts.append(msgspec.structs.replace(rest, text=one.text[offset:end]))
            return parts, TranscriptPosition(index, _overlap_start(one.text, offset, end))
        text = one.text[offset:]
        parts.append(msgspec.structs.replace(rest, text=text, part=offset > 0))
        room = left - count(text)
        index, offset = index + 1, 0
    return parts, TranscriptPosition(index, offset)


def window_too_small() -> errors.InvalidRequest:
    """What is raised if a model's window has no room for messages."""
    return errors.InvalidRequest(
        "the model's window has no room for messages beside the words around them.",
        hint="Set `window` to what the model has, lower `tokens_max`, or give its counter as `count`.",
    )


def _fitting_end(text: str, start: int, room: int, count: CountTokens) -> int:
    """Return how far a text goes from a place within so many tokens. Never much more is counted than fits."""
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
    """Return where a piece ends well: after a line or a word, if one ends in its last quarter."""
    least = end - (end - start) // 4
    for mark in ("\n", " "):
        found = text.rfind(mark, least, end)
        if found > start:
            return found + 1
    return end


def _overlap_start(text: str, start: int, end: int) -> int:
    """Return where the next piece begins: some way before the last one ended, so that little is cut in two."""
    begin = end - min(limits.MODEL_OVERLAP_CHARS, (end - start) // 2)
    near = text[max(start + 1, begin - _WORD_CHARS) : begin]
    # A word that is cut here is shown whole again.
    return begin - len(near.split(" ")[-1].split("\n")[-1]) if " " in near or "\n" in near else begin
