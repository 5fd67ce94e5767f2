"""Everything the store keeps beside the log, made from the log alone: one function for each kind of stream."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast import errors
from holdfast.engine import planning, trees
from holdfast.engine.states import PREFIX, recorded, texts_of
from holdfast.history import sessions
from holdfast.store.port import Blobs, Derived, StoredEvent
from holdfast.values.event import MessageAdded
from holdfast.values.session import SessionState


def derived(stream: str, events: Iterator[StoredEvent], fetch: Blobs) -> Derived:
    """Return the claims, projections and blobs of a stream; raise Corrupt if a blob is not there."""
    if stream.startswith(PREFIX):
        return _of_session(events, fetch)
    if stream.startswith(trees.PREFIX):
        return trees.derived(events, fetch)
    raise errors.NewerStore(
        f"the store has a stream {stream!r}, which this Holdfast knows nothing of.",
        hint="Nothing was changed. Upgrade with: pip install -U holdfast",
        facts={"stream": stream},
    )


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
    living = state is not None and not state.gone
    projections = (planning.projection(state),) if state and living else ()
    return Derived(tuple(claims), projections, tuple(blobs))
