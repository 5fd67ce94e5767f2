"""Forks and rewinds: what a session is that goes on from an earlier point of one.

Every message is such a point: calls that it leaves without results are open there, as they were then.
"""

from __future__ import annotations

import msgspec

from limpet import errors
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.json_values import freeze
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.history.checking import checked_metadata, checked_title

replace = msgspec.structs.replace

Went = e.SessionForkedEvent | e.SessionRewoundEvent
"""Events that say all of the state after them."""


def forked(source: SessionState, command: c.ForkSession) -> e.SessionForkedEvent:
    """Return the event that begins a fork. It is a conversation of its own: it follows no other."""
    there = _there(command.there)
    if command.user_id is not None and command.user_id != source.user_id:
        raise errors.InvalidRequest(
            "a fork belongs to the same user as its source.",
            hint="For another user, create a session and add the messages to it.",
            facts={"session": source.id},
        )
    version = there.version + 1
    state = replace(
        there,
        id=command.fork_id,
        version=version,
        rebased=version,
        status=SessionStatus.ACTIVE,
        end_reason=None,
        user_id=source.user_id,
        title=source.title if command.title is None else checked_title(command.title),
        metadata=source.metadata
        if command.metadata is None
        else checked_metadata(command.metadata),
        carried=0,
        carried_tokens=0,
        root_id=None,
        continued_from=None,
        continuations=(),
        continuation_index=0,
        forked_from=(source.id, there.version),
        handed=there.generation,
        handed_more=(),
        until=0,
    )
    return e.SessionForkedEvent(command.fork_id, source.id, there.version, state)


def rewound(state: SessionState, command: c.RewindSession) -> e.SessionRewoundEvent | None:
    """Return the event that takes a session back; None if it is there.

    Title and metadata are the session's, not the conversation's: they stay as they are.
    """
    there = _there(command.there)
    if there.ordinal == state.ordinal and there.continuations == state.continuations:
        return None
    version = state.version + 1
    back = replace(
        there, version=version, rebased=version, title=state.title, metadata=state.metadata,
        handed=state.handed, handed_more=state.handed_more, until=0,
    )  # fmt: skip
    return e.SessionRewoundEvent(there.version, back)


def _there(state: SessionState | None) -> SessionState:
    assert state is not None, "the engine fills in the state to go on from"
    return state


def evolved(event: Went, time_us: int) -> SessionState:
    """Return the state of a session that was forked or rewound."""
    there = event.state
    created = time_us if isinstance(event, e.SessionForkedEvent) else there.created_us
    return replace(there, metadata=freeze(there.metadata), created_us=created, active_us=time_us)
