"""What a session begins with beside the words of whoever begins it: what is known of its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.values.frozen import Json, freeze
from holdfast.values.message import Message

METADATA_KEY: Final = "memory"
"""Under which a message's metadata says what was put into it: the engine, and the messages it knows that from."""


class Opening(msgspec.Struct, frozen=True):
    """A part of the first system message, with fences around it, and where it comes from."""

    text: str
    sources: Mapping[str, Json]


class _Source(msgspec.Struct):
    position: int


class _About(msgspec.Struct):
    sources: tuple[_Source, ...] = ()


def sources(message: Message) -> list[int]:
    """Return the positions of the messages that a prompt was made from; none if memory had no part in it."""
    return places(message.metadata.get(METADATA_KEY, {}))


def places(told: Json) -> list[int]:
    """Return the positions that such metadata names."""
    try:
        about = msgspec.convert(told, _About)
    except msgspec.ValidationError:
        # A caller's own metadata of this name.
        return []
    return [source.position for source in about.sources if source.position > 0]


def opened(messages: Sequence[Message], opening: Opening | None) -> tuple[Message, ...]:
    """Return messages whose first system prompt has an opening at its end; one that is nothing else if there is none."""
    if opening is None:
        return tuple(messages)
    about = freeze({METADATA_KEY: opening.sources})
    first = messages[0] if messages else None
    if first is None or first.role != "system" or not isinstance(first.content, str):
        return (Message("system", opening.text, metadata=about), *messages)
    prompt = Message(
        "system",
        f"{first.content}\n\n{opening.text}",
        first.category,
        first.id,
        first.timestamp,
        {**first.metadata, **about},
    )
    return (prompt, *messages[1:])
