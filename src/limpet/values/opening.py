"""What a session begins with beside the words of whoever begins it: what is known of its user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from limpet.values.frozen import Json, freeze
from limpet.values.message import Message

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


class MadeFrom(msgspec.Struct, frozen=True):
    """A message that a prompt was made from, by its names. They are the same in every log that it is part of."""

    session_id: str = ""
    message_id: str = ""


class _Names(msgspec.Struct):
    sources: tuple[MadeFrom, ...] = ()


def told_by(message: Message) -> tuple[MadeFrom, ...]:
    """Return the messages that a prompt was made from; none if memory had no part in it."""
    try:
        return msgspec.convert(message.metadata.get(METADATA_KEY, {}), _Names).sources
    except msgspec.ValidationError:
        return ()


def renamed(message: Message, names: Mapping[str, str]) -> Message:
    """Return a message that says what its prompt was made from by other ids of sessions."""
    told, about = told_by(message), message.metadata.get(METADATA_KEY)
    if not isinstance(about, Mapping) or not any(one.session_id in names for one in told):
        return message
    found = cast("Sequence[Mapping[str, Json]]", about["sources"])
    here = [
        {**source, "session_id": names.get(one.session_id, one.session_id)}
        for source, one in zip(found, told, strict=True)
    ]
    changed = freeze({METADATA_KEY: {**about, "sources": here}})
    return msgspec.structs.replace(message, metadata={**message.metadata, **changed})
