"""Session states: folded from the log, kept in a bounded cache, brought up to date from the tail."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from holdfast import errors, limits
from holdfast.history import sessions
from holdfast.store import port
from holdfast.values.event import MessageAdded, Recorded
from holdfast.values.frozen import Json
from holdfast.values.message import Message
from holdfast.values.session import SessionState
from holdfast.wire import blobs, codec

PREFIX = "session/"


def stream_of(session_id: str) -> str:
    """Return the name of a session's stream."""
    return PREFIX + session_id


Blobs = Callable[[Collection[bytes]], Mapping[bytes, bytes]]
"""From hashes to the contents of a tenant's blobs that are there."""


def texts_of(page: Sequence[port.StoredEvent], fetch: Blobs) -> Mapping[bytes, str]:
    """Return the large texts that events refer to, by hash, all fetched in one look."""
    wanted: set[bytes] = set()
    for stored in page:
        if stored.schema == codec.PARTED and stored.payload is not None:
            try:
                wanted.update(codec.needed(stored.kind, stored.schema, stored.payload))
            except errors.Corrupt as error:
                error.facts |= _place(stored)
                raise
    return blobs.decoded(fetch(wanted)) if wanted else blobs.NONE


def facts(store: port.Store, tenant: str, page: Sequence[port.StoredEvent]) -> list[Recorded]:
    """Return stored events as the facts they hold; raise Corrupt with its place for one that can't be read."""
    texts = texts_of(page, partial(store.blobs, tenant))
    return [recorded(stored, texts) for stored in page]


def messages_of(store: port.Store, tenant: str, page: Sequence[port.StoredEvent]) -> list[Message]:
    """Return the messages that stored events added; events of other kinds are passed over."""
    added = [stored for stored in page if stored.kind == MessageAdded.kind]
    found = (fact.event for fact in facts(store, tenant, added))
    return [event.message for event in found if isinstance(event, MessageAdded)]


def recorded(stored: port.StoredEvent, texts: Mapping[bytes, str]) -> Recorded:
    """Return a stored event as the fact it holds; raise Corrupt with its place if it can't be read."""
    if stored.payload is None:
        raise errors.NotFound(f"the event at position {stored.position:,} was erased.")
    try:
        fact = codec.decode_event(
            stored.kind,
            stored.schema,
            stored.payload,
            tokens=stored.tokens,
            counter=stored.counter,
            texts=texts,
        )
    except errors.Corrupt as error:
        error.facts |= _place(stored)
        raise
    session_id = stored.stream.removeprefix(PREFIX)
    return Recorded(fact, session_id, stored.position, stored.version, stored.time_us)


def _place(stored: port.StoredEvent) -> dict[str, Json]:
    return {"position": stored.position, "stream": stored.stream, "version": stored.version}


class States:
    """The cache of session states over one store, at most `size` of them."""

    def __init__(self, store: port.Store, size: int) -> None:
        self._store = store
        self._size = size
        self._mutex = threading.Lock()
        self._cached: OrderedDict[tuple[str, str], tuple[SessionState, int]] = OrderedDict()
        self._tails: dict[tuple[str, str, int], str] = {}
        self._epoch = 0

    def begin_turn(self, *, alone: bool) -> None:
        """A turn begins; unless `alone`, others may have added to any session since the last one."""
        if not alone:
            self._epoch += 1
            self._tails.clear()

    def in_turn(self, tenant: str, session_id: str) -> SessionState | None:
        """Return the session's state for the holder of the turn, who may trust what it wrote itself."""
        known = self._cached.get((tenant, session_id))
        if known is not None and known[1] == self._epoch:
            return known[0]
        state = self.current(tenant, session_id)
        if state is not None:
            self.keep(tenant, state)
        return state

    def remembered(self, tenant: str, session_id: str) -> SessionState | None:
        """Return the session's state as it was when last heard of, None if it is not remembered."""
        return self._cached.get((tenant, session_id), (None, -1))[0]

    def current(self, tenant: str, session_id: str) -> SessionState | None:
        """Return the session's state as of now, None if it never existed. Cost: the tail, not the history."""
        with self._mutex:
            state, _ = self._cached.get((tenant, session_id), (None, -1))
        stream = stream_of(session_id)
        known = state or self._snapshot(tenant, stream)
        fresh = self._fold(tenant, stream, known)
        if fresh is not None and fresh is not state:
            self._put(tenant, fresh, -1)
        return fresh

    def _snapshot(self, tenant: str, stream: str) -> SessionState | None:
        found = self._store.snapshot(tenant, stream)
        return codec.decode_state(found.state) if found and found.fold == codec.FOLD else None

    def _fold(self, tenant: str, stream: str, state: SessionState | None) -> SessionState | None:
        while True:
            after = state.version if state else 0
            tail = self._store.read(tenant, stream, after=after, limit=limits.READ_CHUNK)
            for fact in facts(self._store, tenant, tail):
                state = sessions.evolve(state, fact)
            if len(tail) < limits.READ_CHUNK:
                return state

    def keep(self, tenant: str, state: SessionState) -> None:
        """Remember a state that the holder of the turn read or wrote."""
        self._put(tenant, state, self._epoch)

    def _put(self, tenant: str, state: SessionState, epoch: int) -> None:
        place, cached = (tenant, state.id), self._cached
        with self._mutex:
            present = cached.get(place)
            if present is None or present[0].version <= state.version:
                cached[place] = (state, epoch)
            cached.move_to_end(place)
            while len(cached) > self._size:
                cached.popitem(last=False)

    def tail(self, tenant: str, state: SessionState) -> str | None:
        """Return the last known session of a conversation; it may have been continued since."""
        return self._tails.get((tenant, state.id, state.version)) if state.continuations else None

    def keep_tail(self, tenant: str, state: SessionState, last: str) -> None:
        """Remember where a conversation goes on, as long as the session itself does not change."""
        if last != state.id:
            if len(self._tails) >= self._size:
                self._tails.clear()
            self._tails[tenant, state.id, state.version] = last

    def forget_tails(self) -> None:
        """A session leaves its chain: a conversation may go on elsewhere than remembered."""
        self._tails.clear()

    def forget(self, tenant: str, session_id: str) -> None:
        """Drop a state from the cache."""
        with self._mutex:
            self._cached.pop((tenant, session_id), None)

    def __len__(self) -> int:
        return len(self._cached)
