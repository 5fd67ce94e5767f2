"""What can still be read of a damaged log: event by event, past those that do not verify; and whose it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec

from limpet import errors, limits
from limpet.core.values.events import SessionCreatedEvent, SessionForkedEvent
from limpet.engine.listed import KIND
from limpet.engine.states import facts, stream_of
from limpet.stores.port import Store, StoredEvent


class Damage(msgspec.Struct, frozen=True):
    """An event that can't be read, by its position in the feed or its version in the stream, and why."""

    at: int
    error: errors.Corrupt


def feed(store: Store, tenant: str, *, after: int = 0) -> Iterator[StoredEvent | Damage]:
    """Yield the tenant's events after a position, in order; a Damage for each that can't be read."""
    return _each(
        lambda low, high: store.feed(tenant, after=low, limit=high - low), after, store.head(tenant)
    )


def events(store: Store, tenant: str, stream: str) -> Iterator[StoredEvent | Damage]:
    """Yield the events that a stream shows, in order; a Damage for each that can't be read."""
    last = 0
    with contextlib.suppress(errors.Corrupt):
        last = store.version(tenant, stream)
    return _each(
        lambda low, high: store.read(tenant, stream, after=low, until=high, limit=high - low),
        0,
        last,
    )


def owner(store: Store, tenant: str, session_id: str) -> str | None:
    """Return whose a damaged session is, as its row says, else how it began. None: nobody's, or nobody can say."""
    with contextlib.suppress(errors.Corrupt):
        row = store.find(tenant, KIND, session_id)
        if row is not None:
            return row.owner or None
    found: str | None = None
    for event in events(store, tenant, stream_of(session_id)):
        if isinstance(event, StoredEvent) and event.kind in (
            SessionCreatedEvent.kind,
            SessionForkedEvent.kind,
        ):
            with contextlib.suppress(errors.Corrupt, errors.Erased):
                found = _begun_by(store, tenant, event)
    return found


def _begun_by(store: Store, tenant: str, stored: StoredEvent) -> str | None:
    (fact,) = facts(store, tenant, (stored,))
    match fact.event:
        case SessionCreatedEvent(user_id=user_id):
            return user_id
        case SessionForkedEvent(state=state):
            return state.user_id
        case _:
            return None


def _each(
    read: Callable[[int, int], list[StoredEvent]], after: int, last: int
) -> Iterator[StoredEvent | Damage]:
    while after < last:
        until = min(after + limits.READ_CHUNK, last)
        try:
            found: list[StoredEvent | Damage] = [*read(after, until)]
        except errors.Corrupt:
            found = [event for at in range(after, until) for event in _one(read, at)]
        yield from found
        after = until


def _one(
    read: Callable[[int, int], list[StoredEvent]], at: int
) -> list[StoredEvent] | list[Damage]:
    try:
        return read(at, at + 1)
    except errors.Corrupt as error:
        return [Damage(at + 1, error)]
