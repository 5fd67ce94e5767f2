"""Session states, and the facts that stored events hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from limpet import errors
from limpet.core.formats import codec
from limpet.core.rules import session_rules
from limpet.core.values.events import MessageAddedEvent, RecordedEvent
from limpet.core.values.json_values import Json
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState
from limpet.engine.folds import Folds
from limpet.stores import port
from limpet.stores.erasure import is_erased_stream

PREFIX = "session/"


def stream_of(session_id: str) -> str:
    """Return the name of a session's stream."""
    return PREFIX + session_id


def texts_of(page: Sequence[port.StoredEvent], fetch: port.BlobLoader) -> Mapping[bytes, str]:
    """Return the large texts that events refer to, by hash, all fetched in one look."""
    wanted: set[bytes] = set()
    for stored in page:
        if stored.schema == codec.SCHEMA_WITH_BLOBS and stored.payload is not None:
            try:
                wanted.update(
                    codec.required_blob_hashes(stored.kind, stored.schema, stored.payload)
                )
            except errors.Corrupt as error:
                error.facts |= _place(stored)
                raise
    return codec.decode_texts(fetch(wanted)) if wanted else codec.NO_TEXTS


def facts(store: port.Store, tenant: str, page: Sequence[port.StoredEvent]) -> list[RecordedEvent]:
    """Return stored events as the facts they hold; raise Corrupt with its place for one that can't be read."""
    texts = texts_of(page, partial(store.blobs, tenant))
    return [recorded(stored, texts) for stored in page]


def messages_of(store: port.Store, tenant: str, page: Sequence[port.StoredEvent]) -> list[Message]:
    """Return the messages that stored events added; events of other kinds are passed over."""
    added = [stored for stored in page if stored.kind == MessageAddedEvent.kind]
    found = (fact.event for fact in facts(store, tenant, added))
    return [event.message for event in found if isinstance(event, MessageAddedEvent)]


def recorded(stored: port.StoredEvent, texts: Mapping[bytes, str]) -> RecordedEvent:
    """Return a stored event as the fact it holds; raise Corrupt with its place if it can't be read."""
    if stored.payload is None:
        raise errors.Erased(f"the event at position {stored.position:,} was erased.")
    try:
        fact = codec.decode_session_event(
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
    session_id = "" if is_erased_stream(stored.stream) else stored.stream.removeprefix(PREFIX)
    return RecordedEvent(fact, session_id, stored.position, stored.version, stored.time_us)


def cut_short(store: port.Store, tenant: str, stream: str, until: int) -> errors.Error:
    """Return the error for a stream that ends before a version that it had: it was erased, or it is damaged."""
    facts_ = {"stream": stream, "until": until}
    if store.version(tenant, stream) < until:
        return errors.Erased("what this was about was erased.", facts=facts_)
    return errors.Corrupt(f"the log of {stream} ends before its state does.", facts=facts_)


def _place(stored: port.StoredEvent) -> dict[str, Json]:
    return {"position": stored.position, "stream": stored.stream, "version": stored.version}


class States(Folds[SessionState]):
    """The states of sessions; `forget_too` forgets what others keep that rests on them."""

    def __init__(self, store: port.Store, size: int, forget_too: Callable[[], None]) -> None:
        super().__init__(store, size)
        self._forget_too = forget_too
        self._tails: dict[tuple[str, str, int], str] = {}

    def stream(self, id_: str) -> str:
        return stream_of(id_)

    def decoded(self, snapshot: port.Snapshot) -> SessionState | None:
        return (
            codec.decode_state(snapshot.state)
            if snapshot.fold == codec.SESSION_FOLD_VERSION
            else None
        )

    def folded(
        self, tenant: str, state: SessionState | None, page: Sequence[port.StoredEvent]
    ) -> SessionState | None:
        for fact in facts(self._store, tenant, page):
            state = session_rules.evolve(state, fact)
        return state

    def begin_turn(self, *, alone: bool) -> None:
        super().begin_turn(alone=alone)
        if not alone:
            self._tails.clear()

    def forget_more(self) -> None:
        self._tails.clear()
        self._forget_too()

    def at(self, tenant: str, session_id: str, version: int) -> SessionState | None:
        """Return the session's state as it was at a version that it has or had; None if it has not."""
        stream = stream_of(session_id)
        state = self._snapshot(tenant, stream)
        if state is None or state.version > version:
            state = None
        state = self._fold(tenant, stream, state, at=version)
        if state is None or state.version != version:
            return None
        return msgspec.structs.replace(state, id=session_id)

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
