"""Everything the store keeps beside a stream's log, made from the log alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from holdfast.engine import planning, trees
from holdfast.engine.states import Blobs, recorded, texts_of
from holdfast.history import sessions
from holdfast.store.port import Derived, StoredEvent
from holdfast.values.event import MessageAdded
from holdfast.values.session import SessionState, SessionStatus


def derived(events: Iterator[StoredEvent], fetch: Blobs) -> Derived:
    """Return the claims, projections and blobs of a stream; raise Corrupt if a blob is not there."""
    first = next(events, None)
    if first is None:
        return Derived((), ())
    whole = itertools.chain((first,), events)
    if first.stream.startswith(trees.PREFIX):
        return trees.derived(whole, fetch)
    return _of_session(whole, fetch)


def _of_session(events: Iterator[StoredEvent], fetch: Blobs) -> Derived:
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
