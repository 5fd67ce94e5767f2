"""A session's messages as lazy sequences over the log: nothing is read before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, overload

from limpet import errors, limits
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import messages_of, session_stream, truncated_stream_error

T = TypeVar("T")


class Reader:
    """Reads the messages of one session as it was at one state."""

    def __init__(self, engine: Engine, tenant: str, state: SessionState) -> None:
        self._engine = engine
        self._tenant = tenant
        self._state = state
        self._stream = session_stream(state.id)

    @property
    def session_id(self) -> str:
        """Which session it reads."""
        return self._state.id

    def count(self) -> int:
        """Return how many there are."""
        return self._state.message_count

    def at(self, index: int) -> Message:
        """Return the message at an index, counted from 0 or back from the end; raise IndexError if there is none."""
        place = index + self.count() if index < 0 else index
        if not 0 <= place < self.count():
            raise IndexError("the session has no message at that index")
        found, _ = self.chunk(self._after(place), 1)
        return found[0]

    def _after(self, index: int) -> int:
        """Return the version just before the message at an index."""
        self._engine.check()
        if index <= 0:
            return self._state.began
        ordinal = self._state.ordinal_began + index + 1
        return (
            self._engine.store.seek(self._tenant, self._stream, ordinal, at=self._state.version)
            or self._state.version + 1
        ) - 1

    def chunk(self, after: int, limit: int) -> tuple[list[Message], int]:
        """Return up to `limit` messages after a version, and the version to go on from."""
        self._engine.check()
        until, found = self._state.version, list[Message]()
        while after < until and len(found) < limit:
            stored = self._engine.store.read(
                self._tenant, self._stream, after=after, until=until, limit=limit, at=until
            )
            if not stored:
                raise truncated_stream_error(self._engine.store, self._tenant, self._stream, until)
            added = [event for event in stored if event.kind == MessageAddedEvent.kind]
            wanted = added[: limit - len(found)]
            found += messages_of(self._engine.store, self._tenant, wanted)
            after = (wanted if len(found) == limit else stored)[-1].version
        return found, after

    def slice(self, index: slice) -> list[Message]:
        """Return a slice, reading only what lies between its ends."""
        indices = range(self.count())[index]
        if not indices:
            return []
        low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        found, _ = self.chunk(self._after(low), high - low + 1)
        return [found[i - low] for i in indices]

    def ended(self) -> errors.Error:
        """Return the error for a session whose log has fewer messages than its state."""
        return truncated_stream_error(
            self._engine.store, self._tenant, self._stream, self._state.version
        )

    def start(self) -> int:
        """Return the version to read the first chunk after."""
        return self._state.began


Again = Callable[[str, errors.Corrupt], Reader]
"""Recovers a session that a reader found damaged, and gives the reader of what there is then; raises if nothing can be done."""


class Messages(Sequence[Message]):
    """The messages of a session as it was when this was asked for: len, index, slice, iterate.

    With `again`, a read that meets damage before it has given anything is done once more on what was recovered. Of
    one that is under way, what comes next may be another session's: it raises Corrupt, and the next one is done there.
    """

    def __init__(self, reader: Reader, again: Again | None = None) -> None:
        self._reader = reader
        self._again = again

    def _looked(self, look: Callable[[Reader], T]) -> T:
        try:
            return look(self._reader)
        except errors.Corrupt as error:
            if self._again is None:
                raise
            self._reader = self._again(self._reader.session_id, error)
        return look(self._reader)

    def __len__(self) -> int:
        return self._reader.count()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return self._looked(lambda reader: reader.slice(index))
        return self._looked(lambda reader: reader.at(index))

    def __iter__(self) -> Iterator[Message]:
        if not len(self):
            return
        found, after = self._looked(lambda reader: reader.chunk(reader.start(), limits.READ_CHUNK))
        reader, remaining = self._reader, len(self)
        while True:
            if not found:
                raise reader.ended()
            yield from found
            remaining -= len(found)
            if not remaining:
                return
            found, after = self._next(reader, after, min(remaining, limits.READ_CHUNK))

    def _next(self, reader: Reader, after: int, limit: int) -> tuple[list[Message], int]:
        try:
            return reader.chunk(after, limit)
        except errors.Corrupt as error:
            if self._again is None:
                raise
            self._reader = self._again(reader.session_id, error)
            if self._reader.session_id != reader.session_id:
                error.hint = f"What can be read of it is in {self._reader.session_id}: read again, or load it again."
                error.facts["recovery"] = self._reader.session_id
                raise
        return self._reader.chunk(after, limit)

    def __repr__(self) -> str:
        return f"<Messages {len(self):,}>"
