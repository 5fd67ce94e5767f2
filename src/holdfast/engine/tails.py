"""The newest messages of sessions, kept in memory: a window costs what is in it, not what came before."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from holdfast import errors, limits
from holdfast.engine.states import message_of, stream_of
from holdfast.store import port
from holdfast.values.event import MessageAdded
from holdfast.values.message import Message
from holdfast.values.session import SessionState

CHUNK = 64
"""Events read at a time on the way back."""


class Said(msgspec.Struct, frozen=True):
    """A message in the log: its version, its number in the present generation, its stored tokens.

    `counts` holds its tokens by the names of other counters, once they have counted it.
    """

    version: int
    number: int
    message: Message
    tokens: int
    counts: dict[str, int]


class Tail:
    """Messages of one generation of a session from some point on, without a gap up to `until`."""

    def __init__(self, store: port.Store, tenant: str, state: SessionState) -> None:
        self._store = store
        self._tenant = tenant
        self._stream = stream_of(state.id)
        self._ordinal_began = state.ordinal_began
        self.began = state.began
        self.after = self.until = state.version
        self.said: list[Said] = []
        self._singles: dict[int, Said] = {}
        self._lock = threading.Lock()

    def upto(self, state: SessionState) -> list[Said]:
        """Bring it up to a state and return what it holds of it, oldest first."""
        with self._lock:
            if state.version > self.until:
                self._forward(state.version)
            if state.version == self.until:
                return self.said
            return [said for said in self.said if said.version <= state.version]

    def _forward(self, version: int) -> None:
        if version - self.until > limits.TAIL_MESSAGES_MAX:
            self.said, self.after, self.until = [], version, version
            return
        fresh = list(self.said)
        while self.until < version:
            fresh += self._read(self.until, version)
        over = max(0, len(fresh) - limits.TAIL_MESSAGES_MAX)
        if over:
            self.after = fresh[over - 1].version
        # A new list: whoever holds the old one keeps what it was given.
        self.said = fresh[over:]

    def _read(self, after: int, until: int) -> list[Said]:
        found = self._store.read(
            self._tenant, self._stream, after=after, until=until, limit=limits.READ_CHUNK
        )
        if not found:
            raise errors.Corrupt(
                f"the log of {self._stream} ends before its state does.",
                facts={"stream": self._stream, "after": after, "until": until},
            )
        self.until = max(self.until, found[-1].version)
        return [self.of(stored) for stored in found if stored.kind == MessageAdded.kind]

    def of(self, stored: port.StoredEvent) -> Said:
        """Return a stored message with its number."""
        number = stored.ordinal - self._ordinal_began
        return Said(stored.version, number, message_of(stored), stored.tokens or 0, {})

    def add(self, version: int, fresh: Sequence[Said]) -> None:
        """Take what was just appended, if it follows on what is here."""
        with self._lock:
            if self.said and self.until == version and len(self.said) < limits.TAIL_MESSAGES_MAX:
                self.said = [*self.said, *fresh]
                self.until = fresh[-1].version

    def single(self, version: int) -> Said:
        """Return one message from before, by its version; it is read once."""
        found = self._singles.get(version)
        if found is None:
            stored = self._store.read(
                self._tenant, self._stream, after=version - 1, until=version, limit=1
            )
            found = self._singles[version] = self.of(stored[0])
        return found

    def older(self) -> bool:
        """Read one more piece on the way back; False if there is nothing before."""
        with self._lock:
            if self.after <= self.began:
                return False
            low = max(self.began, self.after - CHUNK)
            found = self._store.read(
                self._tenant, self._stream, after=low, until=self.after, limit=CHUNK
            )
            self.after = low
            self.said = [self.of(s) for s in found if s.kind == MessageAdded.kind] + self.said
            return True


class Tails:
    """The tails of one engine's sessions, those used last kept."""

    def __init__(self, store: port.Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, int], Tail] = OrderedDict()

    def appended(
        self, tenant: str, state: SessionState, write: port.StreamWrite, messages: Sequence[Message]
    ) -> None:
        """Take note of messages that were just appended, so that a window need not read them again."""
        tail = self._kept.get((tenant, state.id, state.began))
        if tail is None:
            return
        behind = len(messages)
        fresh: list[Said] = []
        for event, message in zip(write.events[-behind:], messages, strict=True):
            behind -= 1
            number = event.ordinal - state.ordinal_began
            fresh.append(Said(state.version - behind, number, message, event.tokens or 0, {}))
        tail.add(write.expected, fresh)

    def of(self, tenant: str, state: SessionState) -> Tail:
        """Return the tail of a session's present generation."""
        place = (tenant, state.id, state.began)
        with self._mutex:
            tail = self._kept.get(place)
            if tail is None or tail.after > state.version:
                tail = self._kept[place] = Tail(self._store, tenant, state)
            self._kept.move_to_end(place)
            if len(self._kept) > limits.CACHED_TAILS:
                self._kept.popitem(last=False)
        return tail
