"""Everything the store keeps beside a session's log, made from the log alone."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine import planning
from holdfast.engine.states import Blobs, recorded, texts_of
from holdfast.history import sessions
from holdfast.store.port import Derived, StoredEvent
from holdfast.values.event import MessageAdded
from holdfast.values.session import SessionState, SessionStatus


def derived(events: Iterator[StoredEvent], fetch: Blobs) -> Derived:
    """Return the claims, projections and blobs of a stream; raise Corrupt if a blob is not there."""
    state: SessionState | None = None
    claims: list[tuple[str, int]] = []
    blobs: list[tuple[bytes, int]] = []
    for stored in events:
        texts = texts_of((stored,), fetch)
        blobs += [(hash_, stored.version) for hash_ in texts]
        fact = recorded(stored, texts)
        state = sessions.evolve(state, fact)
        if isinstance(fact.event, MessageAdded):
            claims.append((fact.event.message.id, stored.version))
    living = state is not None and state.status is not SessionStatus.DELETED
    projections = (planning.projection(state),) if state and living else ()
    return Derived(tuple(claims), projections, tuple(blobs))
