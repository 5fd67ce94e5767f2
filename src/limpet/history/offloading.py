"""Which generations of a session long-term memory still has to take.

A generation has ended when the session has, or when it was reset. One that was deleted needs no handing over,
nor does a session that nobody owns.
"""

from __future__ import annotations

import msgspec

from limpet import errors
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.session_state import SessionState, SessionStatus


def offloaded(state: SessionState, command: c.OffloadSession) -> list[e.SessionEvent]:
    """Return what there is to note of a generation that was taken: nothing if it is noted already."""
    if taken(state, command.generation):
        return []
    # A session that is continued takes no more messages, and is handed over with the one it goes on in.
    over = state.status is SessionStatus.ENDED or bool(state.continuations)
    if command.generation > state.generation or (
        command.generation == state.generation and not over
    ):
        raise errors.InvalidRequest(
            f"generation {command.generation} of the session {state.id!r} has not ended.",
            facts={"session": state.id, "generation": state.generation},
        )
    return [e.SessionOffloadedEvent(command.generation, command.engine)]


def taken(state: SessionState, generation: int) -> bool:
    """Whether nothing of a generation waits to be taken: it was, or it was deleted."""
    return generation < state.handed or generation in state.handed_more


def evolved(state: SessionState, event: e.SessionOffloadedEvent) -> SessionState:
    """Return the state after a generation was taken. Nobody was active: the session keeps its place in listings."""
    more = {*state.handed_more, event.generation}
    handed = state.handed
    while handed in more:
        handed += 1
    left = tuple(sorted(one for one in more if one > handed))
    version = state.version + 1
    return msgspec.structs.replace(state, version=version, handed=handed, handed_more=left)


def handed_over(state: SessionState) -> bool:
    """Whether long-term memory has everything of a session that it is to have: nothing would be lost with it.

    To be asked before a history is destroyed, where there is a memory engine. What goes on is not waited for.
    """
    if state.user_id is None or state.status is SessionStatus.DELETED:
        return True
    ended = state.generation + (state.status is SessionStatus.ENDED)
    return all(taken(state, generation) for generation in range(state.handed, ended))
