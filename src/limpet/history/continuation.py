"""When a session is full, and what goes along into the next one.

The cut falls at a user message where one comes in time; otherwise the current turn goes along, so
that no call loses its result and the model never loses its instruction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeGuard

import msgspec

from limpet import limits
from limpet.values.message import Message, MessageCategory
from limpet.values.policy import Summary
from limpet.values.session import SessionState

TRANSITION: Final = "session_transition"


class Carry(msgspec.Struct, frozen=True):
    """Versions of the messages to carry: single ones, then everything from `since` on (0: nothing)."""

    singles: tuple[int, ...]
    since: int = 0


def full(state: SessionState, max_messages: int) -> bool:
    """Whether the session has reached its number of messages, those carried into it not counted."""
    return state.own_count >= max_messages


def is_plain(state: SessionState | None, max_messages: int | None) -> TypeGuard[SessionState]:
    """Whether messages simply go into a session: it stands alone, has room, and nothing counts them anew or cuts."""
    return (
        state is not None
        and state.policy is None
        and not state.continuations
        and state.continued_from is None
        and (max_messages is None or not full(state, max_messages))
    )


def due(state: SessionState, messages: Sequence[Message], max_messages: int) -> Carry | None:
    """Return what to carry if these messages belong into a new session, else None."""
    if not full(state, max_messages):
        return None
    if messages[0].role == "user" and not state.open_calls:
        return Carry(_standing(state))
    if state.own_count < math.ceil(max_messages * (1 + limits.CONTINUE_GRACE)):
        return None
    return with_turn(state, max_messages)


def on_request(state: SessionState, max_messages: int) -> Carry:
    """Return what to carry when the caller continues a session now: an open group goes along."""
    return with_turn(state, max_messages) if state.open_calls else Carry(_standing(state))


def with_turn(state: SessionState, max_messages: int) -> Carry:
    """Return what to carry in the middle of a turn.

    A turn longer than a whole session goes along as its instruction and, if that is short or still
    open, its newest group: copying it all at each boundary would cost the square of its length.
    """
    if state.turn and state.ordinal - state.turn_ordinal < max_messages:
        return Carry(_before(_standing(state), state.turn), since=state.turn)
    near = state.turn <= state.group and state.version - state.group < max_messages
    since = state.group if state.open_calls or (state.group and near) else 0
    singles = {*_before(_standing(state), since or state.version + 1)}
    if state.turn > 0 and (not since or state.turn < since):
        singles.add(state.turn)
    return Carry(tuple(sorted(singles)), since=since)


def _standing(state: SessionState) -> tuple[int, ...]:
    """Return what stays in sight, whatever its category."""
    return tuple(sorted((*state.kept, *state.pins))) if state.pins else state.kept


def goes_along(message: Message) -> bool:
    """Whether a message that stays in sight is carried by itself: no call without results, no marker."""
    paired = message.role == "tool" or message.tool_calls
    return not paired and message.metadata.get("type") != TRANSITION


def _before(versions: tuple[int, ...], limit: int) -> tuple[int, ...]:
    return tuple(version for version in versions if version < limit)


def opening(
    source: SessionState, kept: Sequence[Message], turn: Sequence[Message], marker: Message
) -> tuple[Message, ...]:
    """Return the first messages of a continuation: kept copies, the marker, copies of the turn."""
    copies = [_copy(message, source.id) for message in kept]
    return (*copies, marker, *(_copy(message, source.id) for message in turn))


def _copy(message: Message, source_id: str) -> Message:
    return msgspec.structs.replace(message, origin=message.origin or source_id)


def summary(source: SessionState) -> Summary | None:
    """Return the session's summary as the next one has it: none of its messages is meant."""
    stands = source.summary
    return None if stands is None else msgspec.structs.replace(stands, first=0, last=0)


def marker(source: SessionState) -> Message:
    """Return the message that tells where the conversation comes from. It is never carried further."""
    return Message(
        role="system",
        content=f"Continuing from session {source.id}",
        category=MessageCategory.SYSTEM_OUTPUT,
        metadata={
            "type": TRANSITION,
            "previous_session": source.id,
            "previous_session_tokens": source.tokens,
        },
        origin=source.id,
    )
