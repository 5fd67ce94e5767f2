"""Where the words of a message went: copies, summaries, states of forks, recorded windows and packs.

The log is looked through from the message on, in order; what can have it is known by what came before. What a
model or a program has said in words of its own can't be known to come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules as rules
from limpet.core.rules.session_rules import message_preview
from limpet.core.values import events as s
from limpet.core.values.context import ContextHandle, HandleType, WindowSelection
from limpet.core.values.memory_records import MEMORY_METADATA_KEY
from limpet.core.values.messages import Message
from limpet.core.values.pack_parts import PackSelection
from limpet.core.values.session_state import SessionState
from limpet.core.windows.pack import SOURCE_MESSAGE, SOURCE_SUMMARY, ConversationMoment
from limpet.engine import stand_ins
from limpet.engine.lineage import own_events
from limpet.runtime import planner, state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.state_cache import (
    SESSION_STREAM_PREFIX,
    decode_session_event,
    referenced_texts,
    session_stream,
)
from limpet.stores import port
from limpet.stores.erasure import RedactedPayload, is_erased_stream


class Reach(msgspec.Struct):
    """What a session has of the message: from which version on, by which ordinals, and whether its summary has it.

    Numbers count from `began`.
    """

    version: int
    ordinals: set[int]
    began: int = 0
    told: bool = False

    def covers(self, first: int, last: int, began: int | None = None) -> bool:
        """Whether messages with these numbers have it among them."""
        base = self.began if began is None else began
        return any(first <= ordinal - base <= last for ordinal in self.ordinals)


Covered = Callable[[str, int, int, int | None], bool]
"""Whether messages of a session, by their first and last numbers, and by what those count from, are meant."""


class Trees:
    """Looks through events of frame trees for content of some sessions' messages."""

    def __init__(
        self, covered: Covered, positions: Collection[int] | None, sessions: Collection[str]
    ) -> None:
        self._covered = covered
        self._positions = positions
        self._sessions = sessions
        self._handles: set[tuple[str, str]] = set()

    def concerns(self, stored: port.StoredEvent) -> bool:
        """Whether an event holds some of it."""
        event = state_cache.decode_tree_event(stored).event
        match event:
            case s.FrameUpdatedEvent(pack=pack) if pack is not None and pack.digest:
                return self._in_pack(pack)
            case s.HandleAddedEvent(handle=handle):
                if not self._points(handle):
                    return False
                self._handles.add((stored.stream, handle.handle_id))
                # A pointer has no words; with the whole session, the pointer goes too.
                return self._positions is None
            case s.FrameCompactedEvent():
                names = (*event.removed, *(handle.handle_id for handle in event.replaced))
                if not any((stored.stream, name) in self._handles for name in names):
                    return False
                self._handles |= {(stored.stream, h.handle_id) for h in event.replaced}
                return True
            case _:
                return False

    def _points(self, handle: ContextHandle) -> bool:
        target = handle.target
        if handle.handle_type is HandleType.MESSAGE_RANGE and "session_id" in target:
            return self._covered(target["session_id"], target["first"], target["last"], None)
        at = target.get("position")
        return self._positions is not None and at in self._positions

    def _in_pack(self, pack: PackSelection) -> bool:
        talked = pack.about.get("talked")
        moment = msgspec.convert(talked, ConversationMoment) if talked is not None else None
        if any(name in self._sessions for name, _ in pack.sessions):
            return True
        if moment is None or moment.session_id not in self._sessions:
            return False
        for part in pack.parts:
            if part.get("kind") == SOURCE_SUMMARY:
                return True
            if part.get("kind") == SOURCE_MESSAGE:
                first = part.get("first", part.get("number", 0))
                last = part.get("last", first)
                if self._covered(moment.session_id, first, last, moment.began):
                    return True
        return False


def mentions(
    store: port.Store, tenant: str, sessions: Collection[str], known: Collection[str]
) -> dict[str, list[RedactedPayload]]:
    """Return what stands in for what frame trees hold of sessions' messages, by stream; `known` ones go anyway."""
    found: dict[str, list[RedactedPayload]] = {}

    def covered(session_id: str, _first: int, _last: int, _began: int | None) -> bool:
        return session_id in sessions

    looking = Trees(covered, None, sessions)
    for stream in _trees(store, tenant):
        for stored in _stream(store, tenant, stream) if stream not in known else ():
            if stored.payload is not None and looking.concerns(stored):
                made = stand_ins.made(stored, stored, lambda hashes: store.blobs(tenant, hashes))
                found.setdefault(stream, []).append(made)
    return found


def _trees(store: port.Store, tenant: str) -> Iterator[str]:
    query = port.Query(kind=state_cache.TREE_KIND, limit=limits.PAGE_SIZE_MAX)
    while page := store.query(tenant, query):
        yield from (state_cache.tree_stream(row.id) for row in page)
        query = msgspec.structs.replace(query, after=(page[-1].time_us, page[-1].id))


def _stream(store: port.Store, tenant: str, stream: str) -> Iterator[port.StoredEvent]:
    after = 0
    while page := store.read(tenant, stream, after=after, limit=limits.READ_CHUNK):
        yield from page
        after = page[-1].version


def _feed(store: port.Store, tenant: str, after: int) -> Iterator[port.StoredEvent]:
    while page := store.feed(tenant, after=after, limit=limits.READ_CHUNK):
        yield from page
        after = page[-1].position


def passed(store: port.Store, tenant: str, head: int, streams: Collection[str]) -> int | None:
    """Return where the feed is now if since `head` plain messages were added to other streams only; None if not.

    Whatever takes words from one stream to another is more than that: it begins a stream, or names their origin.
    """
    for stored in _feed(store, tenant, head):
        payload = stored.payload or b""
        if stored.kind != s.MessageAddedEvent.kind or stored.stream in streams:
            return None
        if any(f'"{name}"'.encode() in payload for name in (MEMORY_METADATA_KEY, "origin")):
            return None
        head = stored.position
    return head


def traced(engine: Engine, tenant: str, session_id: str, message_id: str) -> Trace:
    """Return where a message went; raise SessionNotFound, MessageNotFound."""
    state = rules.existing_state(engine.states.current(tenant, session_id), session_id)
    events = list(_events_of(engine.store, tenant, state, message_id))
    causes = [event for event in events if not event.erased]
    if events and not causes:
        # The id that stands in for its own means nothing to anybody.
        raise errors.MessageNotFound(
            f"that message of the session {session_id!r} is erased already.",
            hint="There is nothing left of it to erase.",
            facts={"session": session_id},
        )
    if not causes:
        raise errors.MessageNotFound(
            f"the session {session_id!r} has no message {message_id!r}.",
            facts={"session": session_id, "message": message_id},
        )
    found = Trace(engine, tenant, state, causes)
    found.go_on()
    return found


def _events_of(
    store: port.Store, tenant: str, state: SessionState, message_id: str
) -> Iterator[port.StoredEvent]:
    """Give the events of a message in a session, erased or not, where they really are: a rewind may have left some out."""
    stream = session_stream(state.id)
    floor = SessionEventSearch(store, tenant, state).floor()
    version = store.find_claim(tenant, stream, message_id, at=state.version)
    found = {version} if version > floor else set[int]()
    for event in own_events(store, tenant, stream, state.version):
        if event.kind == s.MessageAddedEvent.kind and event.version > floor and event.payload:
            said = decode_session_event(
                event, referenced_texts((event,), lambda hashes: store.blobs(tenant, hashes))
            )
            if isinstance(said.event, s.MessageAddedEvent) and said.event.message.id == message_id:
                found.add(event.version)
    for each in sorted(found):
        (here,) = store.read(tenant, stream, after=each - 1, until=each, at=each)
        (there,) = store.feed(tenant, after=here.position - 1, limit=1)
        yield there


class Trace:
    """Looks through the log from a message on for all that has its words."""

    def __init__(
        self, engine: Engine, tenant: str, state: SessionState, causes: list[port.StoredEvent]
    ) -> None:
        self.state = state
        self.cause = causes[0]
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._after = self.cause.position - 1
        self._causes = {event.position: event for event in causes}
        self._said = self._message(self.cause)
        self._reach: dict[str, Reach] = {}
        for event in causes:
            owner = event.stream.removeprefix(SESSION_STREAM_PREFIX)
            there = engine.states.at(tenant, owner, event.version)
            began = there.ordinal_began if there else 0
            known = self._reach.setdefault(owner, Reach(event.version, set(), began))
            known.ordinals.add(event.ordinal)
        self._trees = Trees(self._covered, set(self._causes), self._reach)
        self._found: dict[int, port.StoredEvent] = dict(self._causes)

    def _message(self, stored: port.StoredEvent) -> Message:
        event = decode_session_event(stored, referenced_texts((stored,), self._blobs)).event
        assert isinstance(event, s.MessageAddedEvent), "a claim is made by a message"
        return event.message

    def _blobs(self, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        return self._store.blobs(self._tenant, hashes)

    def _covered(self, session_id: str, first: int, last: int, began: int | None) -> bool:
        reach = self._reach.get(session_id)
        return reach is not None and reach.covers(first, last, began)

    def go_on(self) -> None:
        """Look through what was written since this was last done."""
        for stored in _feed(self._store, self._tenant, self._after):
            self._after = stored.position
            if stored.payload is None or is_erased_stream(stored.stream) or stored.erased:
                continue
            if stored.stream.startswith(state_cache.TREE_STREAM_PREFIX):
                if self._trees.concerns(stored):
                    self._found[stored.position] = stored
            elif self._concerns(stored):
                self._found[stored.position] = stored

    def copies(self) -> dict[int, str]:
        """Return by their positions which sessions have it as a message."""
        said = (each for each in self._found.values() if each.kind == s.MessageAddedEvent.kind)
        return {each.position: each.stream.removeprefix(SESSION_STREAM_PREFIX) for each in said}

    def stand_ins(self) -> dict[str, list[RedactedPayload]]:
        """Return what stands in for all of it, by stream."""
        made: dict[str, list[RedactedPayload]] = {}
        for position, stored in sorted(self._found.items()):
            cause = self._causes.get(position, self.cause)
            found = stand_ins.made(stored, cause, self._blobs)
            made.setdefault(stored.stream, []).append(found)
        return made

    def _concerns(self, stored: port.StoredEvent) -> bool:
        session_id = stored.stream.removeprefix(SESSION_STREAM_PREFIX)
        reach = self._reach.get(session_id)
        begins = stored.kind in (s.SessionCreatedEvent.kind, s.SessionForkedEvent.kind)
        if reach is None and not begins and stored.kind != s.MessageAddedEvent.kind:
            return False
        if stored.kind == s.MessageAddedEvent.kind and not self._may_be_a_copy(stored):
            return False
        event = decode_session_event(stored, referenced_texts((stored,), self._blobs)).event
        match event:
            case s.MessageAddedEvent():
                return self._is_a_copy(event.message, stored)
            case s.SessionCreatedEvent():
                return self._continued(event, stored)
            case s.SessionForkedEvent():
                return self._forked(event)
            case s.SessionRewoundEvent() if reach:
                reach.began = event.state.ordinal_began
                return self._in_state(event.state, reach)
            case s.SessionResetEvent() if reach:
                reach.began, reach.told = stored.ordinal, False
                return False
            case s.SessionSummarizedEvent() if reach:
                summary = event.summary
                reach.told = reach.told or reach.covers(summary.first, summary.last)
                return reach.told
            case s.WindowRecordedEvent():
                return self._in_window(event.selection)
            case _:
                return False

    def _may_be_a_copy(self, stored: port.StoredEvent) -> bool:
        # Cheaper than to read it: its id stands in every message's payload.
        return self._said.id.encode() in (stored.payload or b"") or not self._said.id.isascii()

    def _is_a_copy(self, message: Message, stored: port.StoredEvent) -> bool:
        if message.id != self._said.id or message.origin is None:
            return False
        if not planner.is_same_message(message, self._said):
            return False
        session_id = stored.stream.removeprefix(SESSION_STREAM_PREFIX)
        reach = self._reach.setdefault(session_id, Reach(stored.version, set()))
        reach.ordinals.add(stored.ordinal)
        return True

    def _continued(self, event: s.SessionCreatedEvent, stored: port.StoredEvent) -> bool:
        source = self._reach.get(event.continued_from or "")
        if source is None:
            known = self._reach.get(event.id)
            if known is not None:
                # Created anew under the id of one that was deleted.
                known.began, known.told = stored.ordinal, False
            return False
        told = source.told and event.summary is not None
        self._reach[event.id] = Reach(stored.version, set(), stored.ordinal, told)
        return told

    def _forked(self, event: s.SessionForkedEvent) -> bool:
        source = self._reach.get(event.source)
        if source is None or event.version < source.version:
            return False
        state = event.state
        reach = Reach(source.version, set(source.ordinals), state.ordinal_began, source.told)
        self._reach[event.id] = reach
        return self._in_state(state, reach)

    def _in_state(self, state: SessionState, reach: Reach) -> bool:
        summaries = [each for each in (state.summary, state.written) if each is not None]
        told = bool(summaries) and (
            reach.told or any(reach.covers(each.first, each.last) for each in summaries)
        )
        reach.told = told
        shown = state.preview is not None and state.preview == message_preview(self._said)
        waits = any(call.message_id == self._said.id for call in state.open_calls)
        return told or shown or waits

    def _in_window(self, chosen: WindowSelection) -> bool:
        reach = self._reach.get(chosen.session_id)
        if reach is None or not chosen.digest:
            return False
        for part in chosen.parts:
            if isinstance(part, Mapping):
                number = part.get("number")
                first = last = number if isinstance(number, int) else 0
                if number is None and reach.told:
                    return True
            else:
                first, last = part
            if first and reach.covers(first, last, chosen.began):
                return True
        return False
