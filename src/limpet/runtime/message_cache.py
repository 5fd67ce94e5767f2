"""Caches the newest messages of recently used sessions.

Making a window costs the messages that it holds, not the length of the history. A commit adds its
messages to the cache. A rebuild of the tenant clears it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from limpet import limits
from limpet.core.values import messages
from limpet.core.values.events import MessageAddedEvent
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState
from limpet.core.windows import short_forms
from limpet.core.windows.fitter import ContextItem
from limpet.runtime.state_cache import messages_of, session_stream, truncated_stream_error
from limpet.stores import port

BACKWARD_CHUNK = 64
"""Events read at a time on the way back."""


class LoggedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message in the log: its version, its number in the present generation, its stored tokens.

    `counts` holds its tokens by the names of Limpet's counters, once they have counted it. A counter of a
    caller's own has no place there: its name may stand for another one tomorrow.
    """

    version: int
    number: int
    message: Message
    tokens: int
    counts: dict[str, int]


class RecentMessages:
    """Messages of one generation of a session from some point on, without a gap up to `until`."""

    def __init__(self, store: port.Store, tenant: str, state: SessionState) -> None:
        self._store = store
        self._tenant = tenant
        self._stream = session_stream(state.id)
        self._ordinal_began = state.ordinal_began
        self.began = state.began
        self.after = self.until = state.version
        self.messages: list[LoggedMessage] = []  # changed in place: whoever reads gets a copy of its end
        self._groups: dict[int, list[LoggedMessage]] = {}
        self._stubs: dict[int, Message] = {}
        self._versions: dict[int, int] = {}
        self._items: tuple[object, dict[int, ContextItem]] = (None, {})
        self._lock = threading.Lock()

    def up_to(self, state: SessionState, newest: int) -> list[LoggedMessage]:
        """Bring it up to a state and return the newest that it holds of it, so many at most, oldest first."""
        with self._lock:
            if state.version > self.until:
                self._read_newer(state.version)
            if state.version == self.until:
                return self.messages[-newest:]
            return [said for said in self.messages if said.version <= state.version][-newest:]

    def __len__(self) -> int:
        return len(self.messages)

    def _read_newer(self, version: int) -> None:
        if version - self.until > limits.MESSAGE_CACHE_MESSAGES_MAX:
            self.messages, self.after, self.until = [], version, version
            return
        fresh, until = list[LoggedMessage](), self.until
        while until < version:
            found = self._events(until, version, limits.READ_CHUNK, at=version)
            until = found[-1].version
            fresh += self._logged_messages(found)
        # All at once: a read that fails leaves all as it was.
        self._extend(fresh, until)

    def _extend(self, fresh: Sequence[LoggedMessage], until: int) -> None:
        self.messages += fresh
        self.until = until
        over = len(self.messages) - limits.MESSAGE_CACHE_MESSAGES_MAX
        if over > 0:
            # Some more than that, so that it is not done each time.
            over += limits.MESSAGE_CACHE_MESSAGES_MAX // 4
            self.after = self.messages[over - 1].version
            del self.messages[:over]

    def _events(
        self, after: int, until: int, limit: int, *, newest: bool = False, at: int = 0
    ) -> list[port.StoredEvent]:
        found = self._store.read(
            self._tenant, self._stream, after=after, until=until, limit=limit,
            at=at or self.until, newest=newest,
        )  # fmt: skip
        if not found:
            raise truncated_stream_error(self._store, self._tenant, self._stream, until)
        return found

    def _logged_messages(self, page: Sequence[port.StoredEvent]) -> list[LoggedMessage]:
        """Return the messages among stored events, with their numbers."""
        added = [stored for stored in page if stored.kind == MessageAddedEvent.kind]
        messages = messages_of(self._store, self._tenant, added)
        return [
            LoggedMessage(stored.version, stored.ordinal - self._ordinal_began, message, stored.tokens or 0, {})
            for stored, message in zip(added, messages, strict=True)
        ]

    def append(self, version: int, fresh: Sequence[LoggedMessage]) -> None:
        """Take what was just appended, if it follows on what is here; else it is read when it is needed."""
        # Whoever commits must not wait for somebody who reads.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.messages and self.until == version:
                self._extend(fresh, fresh[-1].version)
        finally:
            self._lock.release()

    def stub(self, said: LoggedMessage) -> Message:
        """Return a tool's message with its results named by their size."""
        found = self._stubs.get(said.version)
        if found is None:
            if len(self._stubs) >= limits.MESSAGE_CACHE_MESSAGES_MAX:
                self._stubs.clear()
            found = self._stubs[said.version] = short_forms.stub_tool_output(said.message)
        return found

    def window_items(self, counted: object) -> dict[int, ContextItem]:
        """Return what windows were fitted from before, as long as it is counted in the same way."""
        found, known = self._items
        if found != counted or len(known) > limits.MESSAGE_CACHE_MESSAGES_MAX:
            known = dict[int, ContextItem]()
            self._items = (counted, known)
        return known

    def version_of(self, number: int) -> int:
        """Return the version at which a message was added, by its number."""
        found = self._versions.get(number)
        if found is None:
            ordinal = self._ordinal_began + number
            at = self._store.find_ordinal(self._tenant, self._stream, ordinal, at=self.until)
            self._versions = {number: at}
            found = self._versions[number]
        return found

    def group(self, version: int, until: int) -> list[LoggedMessage]:
        """Return the group of one message from before, by its version; it is read once."""
        found = self._groups.get(version)
        if found is None:
            found, whole = self._read_group(version, until)
            # A group that waits for results, or lies beyond the state, is another one later.
            if whole:
                if len(self._groups) >= limits.MESSAGE_CACHE_MESSAGES_MAX:
                    self._groups.clear()
                self._groups[version] = found
        return [said for said in found if said.version <= until]

    def _read_group(self, version: int, until: int) -> tuple[list[LoggedMessage], bool]:
        """Return a group, and whether it is whole."""
        (said,) = self._logged_messages(self._events(version - 1, version, 1, at=until))
        if said.message.role != "tool" and not said.message.tool_calls:
            return [said], True
        stored = self._events(self.began, version, BACKWARD_CHUNK, newest=True, at=until)
        if version < until:
            stored += self._events(version, until, BACKWARD_CHUNK, at=until)
        near = self._logged_messages(stored)
        for group in messages.group_messages([one.message for one in near]):
            members = near[group.first : group.last + 1]
            if members[0].version <= version <= members[-1].version:
                return members, not group.open and not group.fault
        return [said], False

    def read_older(self) -> bool:
        """Read one more piece on the way back; False if there is nothing before."""
        with self._lock:
            if self.after <= self.began:
                return False
            # Versions that a rewind has left out are not there: the newest are asked for, not a range.
            found = self._events(self.began, self.after, BACKWARD_CHUNK, newest=True)
            low = found[0].version - 1 if len(found) == BACKWARD_CHUNK else self.began
            self.messages[:0], self.after = self._logged_messages(found), low
            return True


class MessageCache:
    """The tails of one engine's sessions, those used last kept."""

    def __init__(self, store: port.Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._cached: OrderedDict[tuple[str, str, int, int], RecentMessages] = OrderedDict()
        self._rebuilt: dict[str, int] = {}

    def add_appended(
        self, tenant: str, state: SessionState, write: port.StreamWrite, messages: Sequence[Message]
    ) -> None:
        """Take note of messages that were just appended, so that a window need not read them again."""
        tail = self._cached.get((tenant, state.id, state.began, state.rebased))
        if tail is None:
            return
        behind = len(messages)
        fresh: list[LoggedMessage] = []
        for event, message in zip(write.events[-behind:], messages, strict=True):
            behind -= 1
            number = event.ordinal - state.ordinal_began
            fresh.append(LoggedMessage(state.version - behind, number, message, event.tokens or 0, {}))
        tail.append(write.expected, fresh)

    def clear(self) -> None:
        """Forget every tail."""
        with self._mutex:
            self._cached.clear()

    def get(self, tenant: str, state: SessionState) -> RecentMessages:
        """Return the tail of a session's present generation."""
        place = (tenant, state.id, state.began, state.rebased)
        rebuilt = self._store.cache_epoch(tenant)
        with self._mutex:
            if rebuilt != self._rebuilt.get(tenant, 0):
                # Somebody may have erased what is remembered here.
                self._cached.clear()
                self._rebuilt[tenant] = rebuilt
            tail = self._cached.get(place)
            if tail is None or tail.after > state.version:
                tail = self._cached[place] = RecentMessages(self._store, tenant, state)
            self._cached.move_to_end(place)
            if len(self._cached) > limits.MESSAGE_CACHE_SESSIONS:
                self._cached.popitem(last=False)
        return tail
