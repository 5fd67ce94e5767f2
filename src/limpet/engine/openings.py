"""What new sessions were told of their user: where the words of messages that are to go went by way of memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from limpet.core.values.events import MessageAddedEvent, WindowRecordedEvent
from limpet.core.values.memory_records import MEMORY_METADATA_KEY, source_messages, source_positions
from limpet.core.values.messages import Message
from limpet.engine import stand_ins
from limpet.engine.lineage import all_events, own_events
from limpet.runtime.engine import Engine
from limpet.runtime.projections import DELETED_KIND, SESSION_KIND, iter_rows
from limpet.runtime.state_cache import (
    SESSION_STREAM_PREFIX,
    decode_session_event,
    referenced_texts,
    session_stream,
)
from limpet.stores import port
from limpet.stores.erasure import RedactedPayload

Goes = Callable[[port.StoredEvent], bool]
"""Whether an event is erased."""


class Openings:
    """Looks through a user's sessions for prompts that say what memory knew from messages that go.

    A prompt loses that part of it, and windows that were recorded with it are not kept as they were.
    """

    def __init__(self, engine: Engine, tenant: str, goes: Goes) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._goes = goes
        self._known: dict[int, port.StoredEvent | None] = {}
        self._going: dict[str, dict[str, port.StoredEvent]] = {}
        self.prompts: dict[int, str] = {}
        """By position, the sessions whose prompts lose something."""

    def stand_ins(self, user_id: str, without: Collection[str]) -> dict[str, list[RedactedPayload]]:
        """Return what stands in for what a user's sessions have of it, by stream; but for some sessions."""
        sessions = [name for name in self._sessions(user_id) if name not in without]
        told: dict[str, port.StoredEvent] = {}
        found: dict[str, dict[int, RedactedPayload]] = {}
        while True:
            before = len(told)
            for name in sessions:
                if made := dict(self._in(name, told)):
                    found[session_stream(name)] = made
            # A fork shows what its source was told.
            if len(told) == before:
                return {stream: list(made.values()) for stream, made in found.items()}

    def _sessions(self, user_id: str) -> list[str]:
        found: dict[str, None] = {}
        for kind in (SESSION_KIND, DELETED_KIND):
            for row in iter_rows(self._store, self._tenant, port.Query(kind=kind, owner=user_id)):
                found[row.lookup if kind == DELETED_KIND else row.id] = None
        return list(found)

    def _in(
        self, session_id: str, told: dict[str, port.StoredEvent]
    ) -> Iterator[tuple[int, RedactedPayload]]:
        state = self._engine.states.current(self._tenant, session_id)
        if state is None:
            return
        source = state.forked_from[0] if state.forked_from else ""
        cause = told.get(session_id) or told.get(source)
        for event in own_events(
            self._store, self._tenant, session_stream(session_id), state.version
        ):
            if event.payload is None or event.erased:
                continue
            if event.kind == MessageAddedEvent.kind and (found := self._cause(event)):
                cause = found
                self.prompts[event.position] = session_id
            elif event.kind != WindowRecordedEvent.kind or cause is None:
                continue
            yield event.position, stand_ins.made(event, cause, self._blobs)
        if cause is not None:
            told[session_id] = cause

    def _cause(self, event: port.StoredEvent) -> port.StoredEvent | None:
        """Return a message that goes, and that a prompt was made from."""
        if f'"{MEMORY_METADATA_KEY}"'.encode() not in (event.payload or b"") or self._goes(event):
            return None
        said = decode_session_event(event, referenced_texts((event,), self._blobs)).event
        if not isinstance(said, MessageAddedEvent) or said.message.role != "system":
            return None
        return next(filter(self._goes, self._sources(said.message)), None)

    def _sources(self, prompt: Message) -> Iterator[port.StoredEvent]:
        """Yield the messages that a prompt was made from: by place, and by name, as an import gives them other places."""
        told = source_messages(prompt)
        names = {one.message_id for one in told}
        for position in source_positions(prompt):
            found = self._at(position)
            if found is not None and ("" in names or self._name(found) in names):
                yield found
        for one in told:
            if one.session_id not in self._going:
                self._going[one.session_id] = dict(self._going_of(one.session_id))
            if found := self._going[one.session_id].get(one.message_id):
                yield found

    def _going_of(self, session_id: str) -> Iterator[tuple[str, port.StoredEvent]]:
        """Yield the messages of a session that go, by name."""
        state = self._engine.states.current(self._tenant, session_id) if session_id else None
        if state is None:
            return
        for event in all_events(
            self._store, self._tenant, session_stream(session_id), state.version
        ):
            if self._goes(event) and (name := self._name(event)):
                yield name, event

    def _name(self, event: port.StoredEvent) -> str | None:
        if event.kind != MessageAddedEvent.kind or event.payload is None or event.erased:
            return None
        said = decode_session_event(event, referenced_texts((event,), self._blobs)).event
        return said.message.id if isinstance(said, MessageAddedEvent) else None

    def _at(self, position: int) -> port.StoredEvent | None:
        if position not in self._known:
            found = self._store.feed(self._tenant, after=position - 1, limit=1)
            there = found[0] if found and found[0].position == position else None
            usable = there is not None and there.payload is not None and not there.erased
            self._known[position] = there if usable else None
        return self._known[position]

    def _blobs(self, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        return self._store.blobs(self._tenant, hashes)


def session_of(event: port.StoredEvent) -> str:
    """Return the session that an event is of."""
    return event.stream.removeprefix(SESSION_STREAM_PREFIX)
