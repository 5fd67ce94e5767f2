"""Continuation: when a session is full, and which messages are carried into the next session.

The next session begins at a user message if one comes in time. Otherwise the current turn is
carried over, so that no call loses its result and the model keeps its instruction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeGuard

import msgspec

from limpet import limits
from limpet.core.values.messages import Message, MessageCategory
from limpet.core.values.session_state import SessionState, Summary

TRANSITION_TYPE: Final = "session_transition"


class CarriedVersions(msgspec.Struct, frozen=True):
    """Versions of the messages to carry over: single ones, then all from `since` on (0: none)."""

    singles: tuple[int, ...]
    since: int = 0


def is_full(state: SessionState, max_messages: int) -> bool:
    """Return whether a session has its maximum of messages; those carried over into it do not count."""
    return state.uncarried_count >= max_messages


def is_simple_append(state: SessionState | None, max_messages: int | None) -> TypeGuard[SessionState]:
    """Return whether messages can be appended without further rules: the session has room, no links and no policy."""
    return (
        state is not None
        and state.policy is None
        and not state.continuations
        and state.continued_from is None
        and (max_messages is None or not is_full(state, max_messages))
    )


def carry_if_due(state: SessionState, messages: Sequence[Message], max_messages: int) -> CarriedVersions | None:
    """Return what to carry over if these messages begin a new session, else None."""
    if not is_full(state, max_messages):
        return None
    if messages[0].role == "user" and not state.open_calls:
        return CarriedVersions(_always_visible_versions(state))
    if state.uncarried_count < math.ceil(max_messages * (1 + limits.CONTINUATION_GRACE_SHARE)):
        return None
    return carry_with_turn(state, max_messages)


def carry_on_request(state: SessionState, max_messages: int) -> CarriedVersions:
    """Return what to carry over when the caller continues a session now: an open group is included."""
    return (
        carry_with_turn(state, max_messages) if state.open_calls else CarriedVersions(_always_visible_versions(state))
    )


def carry_with_turn(state: SessionState, max_messages: int) -> CarriedVersions:
    """Return what to carry over in the middle of a turn.

    Of a turn longer than a whole session only its instruction is carried over, with its newest group if
    that is short or open: copying all of it at each boundary would cost the square of its length.
    """
    if state.turn and state.ordinal - state.turn_ordinal < max_messages:
        return CarriedVersions(_versions_before(_always_visible_versions(state), state.turn), since=state.turn)
    near = state.turn <= state.group and state.version - state.group < max_messages
    since = state.group if state.open_calls or (state.group and near) else 0
    singles = {*_versions_before(_always_visible_versions(state), since or state.version + 1)}
    if state.turn > 0 and (not since or state.turn < since):
        singles.add(state.turn)
    return CarriedVersions(tuple(sorted(singles)), since=since)


def _always_visible_versions(state: SessionState) -> tuple[int, ...]:
    """Return the versions of the messages that every window looks at."""
    return tuple(sorted((*state.kept, *state.pins))) if state.pins else state.kept


def is_carried(message: Message) -> bool:
    """Return whether an always visible message is carried over: no call, no result, no transition marker."""
    paired = message.role == "tool" or message.tool_calls
    return not paired and message.metadata.get("type") != TRANSITION_TYPE


def _versions_before(versions: tuple[int, ...], limit: int) -> tuple[int, ...]:
    return tuple(version for version in versions if version < limit)


def first_messages(
    source: SessionState, kept: Sequence[Message], turn: Sequence[Message], marker: Message
) -> tuple[Message, ...]:
    """Return the first messages of a continuation: carried copies, the marker, copies of the turn."""
    copies = [_copy_message(message, source.id) for message in kept]
    return (*copies, marker, *(_copy_message(message, source.id) for message in turn))


def _copy_message(message: Message, source_id: str) -> Message:
    return msgspec.structs.replace(message, origin=message.origin or source_id)


def carried_summary(source: SessionState) -> Summary | None:
    """Return the session's summary for the next session, where it stands for none of the messages."""
    stands = source.summary
    return None if stands is None else msgspec.structs.replace(stands, first=0, last=0)


def transition_marker(source: SessionState) -> Message:
    """Return the transition marker, which names the previous session. It is never carried over again."""
    return Message(
        role="system",
        content=f"Continuing from session {source.id}",
        category=MessageCategory.SYSTEM_OUTPUT,
        metadata={"type": TRANSITION_TYPE, "previous_session": source.id, "previous_session_tokens": source.tokens},
        origin=source.id,
    )
