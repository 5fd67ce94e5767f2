"""Groups of messages: a call with its results is one group.

A list from elsewhere may be broken. Then a group names its fault, and windows leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from limpet.values.message import Message

ORPHAN: Final = "a result whose call is not before it"
UNANSWERED: Final = "a call without all of its results"
REPEATED: Final = "two calls of one message have the same id"


class Group(msgspec.Struct, frozen=True):
    """The indices of its first and last message. `open`: it waits for results at the end of the list."""

    first: int
    last: int
    fault: str = ""
    open: bool = False


def grouped(messages: Sequence[Message]) -> list[Group]:
    """Return the groups of a list of messages, in order; each message is in exactly one."""
    found: list[Group] = []
    at, size = 0, len(messages)
    while at < size:
        group = beginning(messages, at)
        found.append(group)
        at = group.last + 1
    return found


def beginning(messages: Sequence[Message | None], at: int) -> Group:
    """Return the group that begins at an index. None stands for messages that are not loaded."""
    message = messages[at]
    assert message is not None, "a group begins with a message"
    if not message.tool_calls:
        return Group(at, at, ORPHAN if message.role == "tool" else "")
    calls = message.tool_calls
    waiting = {call.id for call in calls}
    if len(waiting) < len(calls):
        return Group(at, at, REPEATED)
    last, end = at, len(messages)
    while waiting and last + 1 < end and _answers(messages[last + 1], waiting):
        last += 1
    if not waiting:
        return Group(at, last)
    return Group(at, last, open=True) if last + 1 == end else Group(at, last, UNANSWERED)


def _answers(message: Message | None, waiting: set[str]) -> bool:
    """Remove the answered calls from `waiting`; return False if a result answers none of them."""
    if message is None:
        return False
    named = [result.tool_call_id for result in message.tool_results]
    if not named or len(set(named)) < len(named) or not waiting.issuperset(named):
        return False
    waiting.difference_update(named)
    return True
