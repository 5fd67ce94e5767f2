"""A message with what was said around it, as the session was then: reset, rewound and ended ones too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from limpet import errors
from limpet.core.rules import session_rules as rules
from limpet.core.values import ids
from limpet.core.values.events import MessageAddedEvent, SessionCreatedEvent, SessionResetEvent
from limpet.core.values.memory_records import Said
from limpet.core.values.session_state import SessionState
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.state_cache import decode_session_events, session_stream
from limpet.stores.port import StoredEvent

_BOUNDARIES: Final = frozenset({SessionCreatedEvent.kind, SessionResetEvent.kind})
_CHUNK: Final = 64


class Surroundings:
    """Reads what was said around messages of a tenant."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        self._engine = engine
        self._tenant = tenant

    def around(
        self, session_id: str, message_id: str, count: int, user_id: str | None
    ) -> list[Said]:
        """Return a message of a session with up to `count` before and after it, all of one generation.

        Raises SessionNotFound if there is none, or not of that user; MessageNotFound.
        """
        state = rules.existing_state(
            self._engine.states.current(self._tenant, session_id), session_id
        )
        if user_id is not None and state.user_id != user_id:
            state = rules.existing_state(None, session_id)
        return _Around(self._engine, self._tenant, state).read(message_id, count)


class _Around:
    def __init__(self, engine: Engine, tenant: str, state: SessionState) -> None:
        self._engine = engine
        self._tenant = tenant
        self._state = state
        self._stream = session_stream(state.id)
        self._floor = SessionEventSearch(engine.store, tenant, state).floor()

    def read(self, message_id: str, count: int) -> list[Said]:
        line, version = self._find(message_id)
        before = list(self._before(line, version, count + 1))[::-1]
        found = [*before, *self._after(line, version, count)]
        generation, began = self._generation(line, version)
        return [
            Said(
                position=stored.position,
                session_id=self._state.id,
                generation=generation,
                number=stored.ordinal - began,
                time_us=ids.microseconds(event.message.timestamp),
                message=event.message,
            )
            for stored, event in self._messages(found)
        ]

    def _find(self, message_id: str) -> tuple[int, int]:
        """Return the newest version of the session that has the message, and the message's own.

        What a rewind took out is looked for in the session as it was before that.
        """
        state: SessionState | None = self._state
        while state is not None and state.version > self._floor:
            line = state.version
            version = self._engine.store.find_claim(self._tenant, self._stream, message_id, at=line)
            if version > self._floor:
                return line, version
            earlier = state.rebased - 1
            state = (
                self._engine.states.at(self._tenant, self._state.id, earlier)
                if self._floor < earlier < line
                else None
            )
        raise errors.MessageNotFound(
            f"the session {self._state.id!r} has no message {message_id!r}.",
            hint="Take both ids from a hit.",
            facts={"session": self._state.id, "message": message_id},
        )

    def _before(self, line: int, version: int, count: int) -> Iterator[StoredEvent]:
        """Yield the message and those before it, backwards, up to where their generation begins."""
        until = version
        while count:
            page = self._engine.store.read(
                self._tenant, self._stream, after=self._floor, until=until, limit=_CHUNK, at=line,
                newest=True,
            )  # fmt: skip
            for stored in reversed(page):
                if stored.kind in _BOUNDARIES or not count:
                    return
                if stored.kind == MessageAddedEvent.kind:
                    count -= 1
                    yield stored
            if not page:
                return
            until = page[0].version - 1

    def _after(self, line: int, version: int, count: int) -> Iterator[StoredEvent]:
        while count:
            page = self._engine.store.read(
                self._tenant, self._stream, after=version, until=line, limit=_CHUNK, at=line
            )
            for stored in page:
                if stored.kind in _BOUNDARIES or not count:
                    return
                if stored.kind == MessageAddedEvent.kind:
                    count -= 1
                    yield stored
            if not page:
                return
            version = page[-1].version

    def _messages(
        self, found: Sequence[StoredEvent]
    ) -> Iterator[tuple[StoredEvent, MessageAddedEvent]]:
        kept = [stored for stored in found if stored.payload is not None]
        for stored, fact in zip(
            kept, decode_session_events(self._engine.store, self._tenant, kept), strict=True
        ):
            if isinstance(fact.event, MessageAddedEvent):
                yield stored, fact.event

    def _generation(self, line: int, version: int) -> tuple[int, int]:
        """Return the generation that an event is in, and the ordinal that it began at."""
        if line == self._state.version and version > self._state.began:
            return self._state.generation, self._state.ordinal_began
        log = SessionEventSearch(
            self._engine.store, self._tenant, msgspec.structs.replace(self._state, version=line)
        )
        begun = [at for kind in _BOUNDARIES for at in log.versions(kind, 0, version, newest=True)]
        first = log.read(max(begun) - 1, max(begun))[0] if begun else None
        return max(0, len(begun) - 1), first.ordinal if first else 0
