"""What new sessions were told of their user: where the words of messages that are to go went by way of memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from holdfast import limits
from holdfast.engine import stand_ins
from holdfast.engine.engine import Engine
from holdfast.engine.lineage import own_events
from holdfast.engine.planning import DELETED, KIND
from holdfast.engine.states import PREFIX, recorded, stream_of, texts_of
from holdfast.store import port
from holdfast.store.erasure import StandIn
from holdfast.values.event import MessageAdded, WindowRecorded
from holdfast.values.opening import METADATA_KEY, sources

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
        self.prompts: dict[int, str] = {}
        """By position, the sessions whose prompts lose something."""

    def stand_ins(self, user_id: str, without: Collection[str]) -> dict[str, list[StandIn]]:
        """Return what stands in for what a user's sessions have of it, by stream; but for some sessions."""
        sessions = [name for name in self._sessions(user_id) if name not in without]
        told: dict[str, port.StoredEvent] = {}
        found: dict[str, dict[int, StandIn]] = {}
        while True:
            before = len(told)
            for name in sessions:
                if made := dict(self._in(name, told)):
                    found[stream_of(name)] = made
            # A fork shows what its source was told.
            if len(told) == before:
                return {stream: list(made.values()) for stream, made in found.items()}

    def _sessions(self, user_id: str) -> list[str]:
        found: dict[str, None] = {}
        for kind in (KIND, DELETED):
            query = port.Query(kind=kind, owner=user_id, limit=limits.PAGE_SIZE_MAX)
            while page := self._store.query(self._tenant, query):
                found |= {(row.lookup if kind == DELETED else row.id): None for row in page}
                last = (page[-1].time_us, page[-1].id)
                query = port.Query(kind=kind, owner=user_id, limit=limits.PAGE_SIZE_MAX, after=last)
        return list(found)

    def _in(
        self, session_id: str, told: dict[str, port.StoredEvent]
    ) -> Iterator[tuple[int, StandIn]]:
        state = self._engine.states.current(self._tenant, session_id)
        if state is None:
            return
        source = state.forked_from[0] if state.forked_from else ""
        cause = told.get(session_id) or told.get(source)
        for event in own_events(self._store, self._tenant, stream_of(session_id), state.version):
            if event.payload is None or event.erased:
                continue
            if event.kind == MessageAdded.kind and (found := self._cause(event)):
                cause = found
                self.prompts[event.position] = session_id
            elif event.kind != WindowRecorded.kind or cause is None:
                continue
            yield event.position, stand_ins.made(event, cause, self._blobs)
        if cause is not None:
            told[session_id] = cause

    def _cause(self, event: port.StoredEvent) -> port.StoredEvent | None:
        """Return a message that goes, and that a prompt was made from."""
        if f'"{METADATA_KEY}"'.encode() not in (event.payload or b"") or self._goes(event):
            return None
        said = recorded(event, texts_of((event,), self._blobs)).event
        if not isinstance(said, MessageAdded) or said.message.role != "system":
            return None
        for position in sources(said.message):
            found = self._at(position)
            if found is not None and found.kind == MessageAdded.kind and self._goes(found):
                return found
        return None

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
    return event.stream.removeprefix(PREFIX)
