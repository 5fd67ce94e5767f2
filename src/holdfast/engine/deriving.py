"""Everything the store keeps beside a session's log, made from the log alone."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine import planning
from holdfast.engine.states import recorded
from holdfast.history import sessions
from holdfast.store.port import Derived, StoredEvent
from holdfast.values.event import MessageAdded
from holdfast.values.session import SessionState, SessionStatus


def derived(events: Iterator[StoredEvent]) -> Derived:
    """Return the claims and projections of a stream."""
    state: SessionState | None = None
    claims: list[tuple[str, int]] = []
    for stored in events:
        fact = recorded(stored)
        state = sessions.evolve(state, fact)
        if isinstance(fact.event, MessageAdded):
            claims.append((fact.event.message.id, stored.version))
    living = state is not None and state.status is not SessionStatus.DELETED
    return Derived(tuple(claims), (planning.projection(state),) if state and living else ())
