"""The projection rows by which sessions are listed and found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from limpet import limits
from limpet.core.formats import codec
from limpet.core.values.json_values import Json
from limpet.core.values.session_state import SessionState, session_info
from limpet.stores import port

KIND: Final = "session"
DELETED: Final = "deleted"


def projection(state: SessionState) -> port.Projection:
    """Return the row of a session."""
    return port.Projection(
        kind=KIND,
        id=state.id,
        owner=state.user_id or "",
        status=str(state.status),
        time_us=state.active_us,
        lookup=state.root_id or "",
        terms=terms(state.metadata),
        document=codec.encode_info(session_info(state)),
    )


def deleted_row(state: SessionState) -> port.Projection:
    """Return the row of a deleted session, by which it and its user are found until it is erased."""
    return port.Projection(
        kind=DELETED,
        id=f"{state.version}/{state.id}",
        owner=state.user_id or "",
        time_us=state.active_us,
        lookup=state.id,
    )


def terms(metadata: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the filter terms of metadata: one text for each plain value."""
    if not metadata:
        return ()
    plain = {
        k: v for k, v in metadata.items() if v is None or isinstance(v, (str, int, float, bool))
    }
    texts = (codec.canonical_json([key, value]).decode() for key, value in plain.items())
    return tuple(sorted(text for text in texts if len(text) <= limits.FILTER_TERM_CHARS_MAX))


def rows(store: port.Store, tenant: str, query: port.Query) -> Iterator[port.Projection]:
    """Yield all rows of a query, page by page."""
    page = msgspec.structs.replace(query, limit=limits.PAGE_SIZE_MAX)
    while found := store.query(tenant, page):
        yield from found
        page = msgspec.structs.replace(page, after=(found[-1].time_us, found[-1].id))
