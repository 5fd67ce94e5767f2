"""Finds events of a session by kind, without reading the messages between them."""

from __future__ import annotations

from collections.abc import Iterator

from limpet import limits
from limpet.core.values.events import SessionCreatedEvent, WindowRecordedEvent
from limpet.core.values.session_state import SessionState
from limpet.engine.states import facts, stream_of
from limpet.stores import port

CHUNK = 64
"""Events read at once in a stretch that has other events than messages."""


class Log:
    """The events of one session up to a version."""

    def __init__(self, store: port.Store, tenant: str, state: SessionState) -> None:
        self._store = store
        self._tenant = tenant
        self._stream = stream_of(state.id)
        self.state = state

    def read(self, after: int, until: int) -> list[port.StoredEvent]:
        """Return the events with after < version <= until, which must be few."""
        return self._store.read(
            self._tenant, self._stream, after=after, until=until, limit=until - after, at=self.state.version
        )  # fmt: skip

    def _last(self, version: int) -> tuple[int, int]:
        """Return version and ordinal of the last event up to a version that a rewind may have left out."""
        found = self._store.read(
            self._tenant, self._stream, until=version, limit=1, at=self.state.version, newest=True
        )
        return (found[0].version, found[0].ordinal) if found else (0, 0)

    def versions(self, kind: str, low: int, high: int, *, newest: bool) -> Iterator[int]:
        """Yield the versions of events of a kind other than messages, with low < version <= high.

        Every message has the next ordinal. So a stretch with as many ordinals as events has only messages, and is
        not read.
        """
        if high - low <= CHUNK:
            found = (
                [e.version for e in self.read(low, high) if e.kind == kind] if high > low else []
            )
            yield from reversed(found) if newest else found
            return
        (high, after), (_, before) = self._last(high), self._last(low)
        if after - before < high - low:
            middle = (low + high) // 2
            halves = ((low, middle), (middle, high))
            for first, last in reversed(halves) if newest else halves:
                yield from self.versions(kind, first, last, newest=newest)

    def recorded_for(self, version: int) -> tuple[int, WindowRecordedEvent] | None:
        """Return the window recorded with the message of an event, and its event; None if there is none."""
        low = max(self.floor(), version - 1 - limits.BATCH_MESSAGES_MAX)
        near = next(self.versions(WindowRecordedEvent.kind, low, version - 1, newest=True), 0)
        found = self.read(near - 1, near) if near else []
        event = facts(self._store, self._tenant, found)[0].event if found else None
        if not isinstance(event, WindowRecordedEvent) or version - near > event.messages:
            return None
        return near, event

    def floor(self) -> int:
        """Return the version before the session was created: older events belong to a deleted session.

        A reset begins a generation too, but deletes nothing.
        """
        if not self.state.generation:
            return self.state.began - 1
        created = self.versions(SessionCreatedEvent.kind, 0, self.state.began, newest=True)
        return next(created, 1) - 1
