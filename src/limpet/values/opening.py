"""What long-term memory adds to the first system prompt of a session, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from limpet.values.frozen import Json, freeze
from limpet.values.message import Message

METADATA_KEY: Final = "memory"
"""The metadata key under which a message names the engine and the messages that its prompt was made from."""


class Opening(msgspec.Struct, frozen=True):
    """The text that memory adds to the first system message, fenced, and its sources."""

    text: str
    sources: Mapping[str, Json]


class _Source(msgspec.Struct):
    position: int


class _About(msgspec.Struct):
    sources: tuple[_Source, ...] = ()


def sources(message: Message) -> list[int]:
    """Return the log positions of the messages that a prompt was made from; none without memory."""
    return places(message.metadata.get(METADATA_KEY, {}))


def places(told: Json) -> list[int]:
    """Return the log positions that such metadata names."""
    try:
        about = msgspec.convert(told, _About)
    except msgspec.ValidationError:
        # A caller's own metadata of this name.
        return []
    return [source.position for source in about.sources if source.position > 0]


def opened(messages: Sequence[Message], opening: Opening | None) -> tuple[Message, ...]:
    """Return messages whose first system prompt ends with the opening; a prompt is added if there is none."""
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
    """A source message of a prompt, by ids that are the same in every copy of the log."""

    session_id: str = ""
    message_id: str = ""


class _Names(msgspec.Struct):
    sources: tuple[MadeFrom, ...] = ()


def told_by(message: Message) -> tuple[MadeFrom, ...]:
    """Return the messages that a prompt was made from, by id; none without memory."""
    try:
        return msgspec.convert(message.metadata.get(METADATA_KEY, {}), _Names).sources
    except msgspec.ValidationError:
        return ()


def renamed(message: Message, names: Mapping[str, str]) -> Message:
    """Return a message whose prompt names its sources by new session ids."""
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
