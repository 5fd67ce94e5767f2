"""Makes the projection rows of sessions, and derives rows, claims and blobs from a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec
from limpet.core.rules import session_rules
from limpet.core.values.events import MessageAddedEvent, SessionEndedEvent
from limpet.core.values.json_values import Json
from limpet.core.values.session_state import SessionState, SessionStatus, session_info
from limpet.runtime import state_cache
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX, decode_session_event, referenced_texts
from limpet.stores import port
from limpet.stores.port import BlobLoader, DerivedState, Projection, Rebuilt, Store, StoredEvent

SESSION_KIND: Final = "session"
DELETED_KIND: Final = "deleted"


def session_row(state: SessionState) -> port.Projection:
    """Return the row of a session."""
    return port.Projection(
        kind=SESSION_KIND,
        id=state.id,
        owner=state.user_id or "",
        status=str(state.status),
        time_us=state.active_us,
        lookup=state.root_id or "",
        terms=metadata_terms(state.metadata),
        document=codec.encode_info(session_info(state)),
    )


def deleted_session_row(state: SessionState) -> port.Projection:
    """Return the row of a deleted session, by which it and its user are found until it is erased."""
    return port.Projection(
        kind=DELETED_KIND,
        id=f"{state.version}/{state.id}",
        owner=state.user_id or "",
        time_us=state.active_us,
        lookup=state.id,
    )


def metadata_terms(metadata: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the filter terms of metadata: one text for each plain value."""
    if not metadata:
        return ()
    plain = {k: v for k, v in metadata.items() if v is None or isinstance(v, (str, int, float, bool))}
    texts = (codec.canonical_json([key, value]).decode() for key, value in plain.items())
    return tuple(sorted(text for text in texts if len(text) <= limits.FILTER_TERM_CHARS_MAX))


def iter_rows(store: port.Store, tenant: str, query: port.Query) -> Iterator[port.Projection]:
    """Yield all rows of a query, page by page."""
    page = msgspec.structs.replace(query, limit=limits.PAGE_SIZE_MAX)
    while found := store.query_projections(tenant, page):
        yield from found
        page = msgspec.structs.replace(page, after=(found[-1].time_us, found[-1].id))


def rebuild_store(store: Store, tell: Callable[[int], None] = lambda _: None) -> Rebuilt:
    """Have a store derive everything again; return what was made. `tell` gets the number of processed events.

    Raises Corrupt, and changes nothing, if the log is damaged.
    """
    made = Rebuilt()
    try:
        with closing(store.rebuild(derive_stream)) as steps:
            for step in steps:
                if isinstance(step, Rebuilt):
                    made = step
                else:
                    tell(step)
    finally:
        # An interrupt can come before the turn was given back.
        store.release_write_lock()
    return made


def derive_stream(stream: str, events: Iterator[StoredEvent], fetch: BlobLoader) -> DerivedState:
    """Return the claims, projections and blobs of a stream; raise Corrupt if a blob is missing."""
    if stream.startswith(SESSION_STREAM_PREFIX):
        return _derive_session(events, fetch)
    if stream.startswith(state_cache.TREE_STREAM_PREFIX):
        return state_cache.derive_tree(events, fetch)
    raise errors.NewerStore(
        f"the store has a stream {stream!r}, which this Limpet knows nothing of.",
        hint="Nothing was changed. In an up-to-date clone of Limpet: pip install .",
        facts={"stream": stream},
    )


def _derive_session(events: Iterator[StoredEvent], fetch: BlobLoader) -> DerivedState:
    state: SessionState | None = None
    claims: list[tuple[str, int]] = []
    blobs: list[tuple[bytes, int]] = []
    rows: list[Projection] = []
    for stored in events:
        texts = referenced_texts((stored,), fetch)
        blobs += [(hash_, stored.version) for hash_ in texts]
        fact = decode_session_event(stored, texts)
        state = session_rules.evolve(state, fact)
        if isinstance(fact.event, MessageAddedEvent):
            claims.append((fact.event.message.id, stored.version))
        if stored.kind == SessionEndedEvent.kind and not stored.erased and _is_deleted(state):
            rows.append(deleted_session_row(state))
    if state is not None and not state.hidden:
        rows.append(session_row(state))
    return DerivedState(tuple(claims), tuple(rows), tuple(blobs))


def _is_deleted(state: SessionState) -> bool:
    return state.status is SessionStatus.DELETED
