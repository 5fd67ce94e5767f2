"""Repairs conversations of other programs so that they can be stored, and reports each repair.

A call without a result gets one that says that its outcome is unknown. A result without its call is kept
as output. Calls of the last message stay open: their results can still come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from limpet import errors
from limpet.core.formats import foreign_chats, intake
from limpet.core.values.messages import Message, MessageCategory, ToolCallResult
from limpet.history import pairing
from limpet.history.tooling import UNKNOWN_OUTCOME

replace = msgspec.structs.replace
Note = Callable[[str], None]


def repaired(messages: Iterable[Message], note: Note) -> Iterator[Message]:
    """Yield messages that may follow one another; call `note` for each change."""
    open_calls: pairing.Open = ()
    answered: tuple[str, ...] = ()
    seen: set[str] = set()
    for given in messages:
        for message in _fitting(given, open_calls, answered, seen, note):
            open_calls, answered = pairing.after(open_calls, answered, message)
            seen.add(message.id)
            yield message
    if open_calls:
        note(f"{len(open_calls)} tool call(s) of the last message wait for their results.")


def _fitting(
    message: Message,
    open_calls: pairing.Open,
    answered: tuple[str, ...],
    seen: set[str],
    note: Note,
) -> Iterator[Message]:
    if message.role != "tool" and open_calls:
        closing = closed(message, open_calls)
        note(f"{len(open_calls)} tool call(s) had no result before {message.id}: closed.")
        yield _own(closing, seen, note)
        open_calls, answered = (), ()
    message = _own(message, seen, note)
    try:
        pairing.check(open_calls, answered, message)
    except errors.PairingError as error:
        note(f"{message.id}: {error.message} It is kept as output.")
        if open_calls:
            yield _own(closed(message, open_calls), seen, note)
        yield _own(output(message), seen, note)
    except errors.InvalidMessage as error:
        note(f"{message.id} was left out: {error.message}")
    else:
        yield message


def _own(message: Message, seen: set[str], note: Note) -> Message:
    """Return a message whose id no earlier message has."""
    given, number = message.id, 1
    while message.id in seen:
        number += 1
        message = replace(message, id=f"{given[:200]}-{number}")
    if message.id != given:
        note(f"the id {given} is used twice; the later message is {message.id}.")
    return message


def closed(before: Message, open_calls: pairing.Open) -> Message:
    """Return the message that closes calls without results, to be put before another message."""
    results = [ToolCallResult(call.call_id, UNKNOWN_OUTCOME, is_error=True) for call in open_calls]
    return Message(
        "tool",
        id=f"{before.id[:200]}-closing",
        timestamp=before.timestamp,
        tool_results=results,
        metadata={"type": "outcome_unknown"},
    )


def output(message: Message) -> Message:
    """Return a result without its call as a system message with its output."""
    whole = message.raw()
    said = [result.result for result in message.tool_results]
    return Message(
        "system",
        content=_text(said[0] if len(said) == 1 else said),
        category=MessageCategory.SYSTEM_OUTPUT,
        id=message.id,
        timestamp=message.timestamp,
        metadata={**message.metadata, "original_role": "tool"},
        extra={"original": whole},
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def accepted(value: object, note: Note, *, name: str) -> Message | None:
    """Return a foreign value as a message; None, and a note, if it is none."""
    try:
        return intake.accept(value)  # pyright: ignore[reportArgumentType]
    except errors.Refused:
        return foreign_chats.parse_message(value, note, name=name)
