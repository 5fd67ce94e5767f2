"""Derives from the log all that the store keeps beside it: one function for each kind of stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from limpet import errors
from limpet.core.rules import session_rules
from limpet.core.values.events import MessageAddedEvent, SessionEndedEvent
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.engine import listed, trees
from limpet.engine.states import PREFIX, recorded, texts_of
from limpet.stores.port import BlobLoader, DerivedState, Projection, Rebuilt, Store, StoredEvent


def rebuild(store: Store, tell: Callable[[int], None] = lambda _: None) -> Rebuilt:
    """Have a store derive everything again; return what was made. `tell` gets the number of processed events.

    Raises Corrupt, and changes nothing, if the log is damaged.
    """
    made = Rebuilt()
    try:
        with closing(store.rebuild(derived)) as steps:
            for step in steps:
                if isinstance(step, Rebuilt):
                    made = step
                else:
                    tell(step)
    finally:
        # An interrupt can come before the turn was given back.
        store.leave_turn()
    return made


def derived(stream: str, events: Iterator[StoredEvent], fetch: BlobLoader) -> DerivedState:
    """Return the claims, projections and blobs of a stream; raise Corrupt if a blob is missing."""
    if stream.startswith(PREFIX):
        return _of_session(events, fetch)
    if stream.startswith(trees.PREFIX):
        return trees.derived(events, fetch)
    raise errors.NewerStore(
        f"the store has a stream {stream!r}, which this Limpet knows nothing of.",
        hint="Nothing was changed. In an up-to-date clone of Limpet: pip install .",
        facts={"stream": stream},
    )


def _of_session(events: Iterator[StoredEvent], fetch: BlobLoader) -> DerivedState:
    state: SessionState | None = None
    claims: list[tuple[str, int]] = []
    blobs: list[tuple[bytes, int]] = []
    rows: list[Projection] = []
    for stored in events:
        texts = texts_of((stored,), fetch)
        blobs += [(hash_, stored.version) for hash_ in texts]
        fact = recorded(stored, texts)
        state = session_rules.evolve(state, fact)
        if isinstance(fact.event, MessageAddedEvent):
            claims.append((fact.event.message.id, stored.version))
        if stored.kind == SessionEndedEvent.kind and not stored.erased and _deleted(state):
            rows.append(listed.deleted_row(state))
    if state is not None and not state.gone:
        rows.append(listed.projection(state))
    return DerivedState(tuple(claims), tuple(rows), tuple(blobs))


def _deleted(state: SessionState) -> bool:
    return state.status is SessionStatus.DELETED
