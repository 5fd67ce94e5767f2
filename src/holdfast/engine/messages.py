"""A session's messages as lazy sequences over the log: nothing is read before it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from holdfast import limits
from holdfast.engine.engine import Engine
from holdfast.engine.states import cut_short, messages_of, stream_of
from holdfast.values.event import MessageAdded
from holdfast.values.message import Message
from holdfast.values.session import SessionState


class Reader:
    """Reads the messages of one session as it was at one state."""

    def __init__(self, engine: Engine, tenant: str, state: SessionState) -> None:
        self._engine = engine
        self._tenant = tenant
        self._state = state
        self._stream = stream_of(state.id)

    def count(self) -> int:
        """Return how many there are."""
        return self._state.message_count

    def at(self, index: int) -> Message:
        """Return the message at an index counted from 0; raise IndexError past the end."""
        found, _ = self.chunk(self._after(index), 1)
        if not found:
            raise IndexError("the session has no message at that index")
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
                raise cut_short(self._engine.store, self._tenant, self._stream, until)
            added = [event for event in stored if event.kind == MessageAdded.kind]
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

    def start(self) -> int:
        """Return the version to read the first chunk after."""
        return self._state.began


class Messages(Sequence[Message]):
    """The messages of a session as it was when this was asked for: len, index, slice, iterate."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return self._reader.count()

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return self._reader.slice(index)
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError("the session has no message at that index")
        return self._reader.at(at)

    def __iter__(self) -> Iterator[Message]:
        after, remaining = self._reader.start(), len(self)
        while remaining:
            found, after = self._reader.chunk(after, min(remaining, limits.READ_CHUNK))
            remaining -= len(found)
            yield from found

    def __repr__(self) -> str:
        return f"<Messages {len(self):,}>"
