"""Finds where the content of a message or session is: copies, summaries, forks, prompts, packs.

It also decides which sessions can be erased whole (a fork reads its source's events) and makes the
redacted events. Text that a model or a caller wrote in its own words is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from limpet import errors
from limpet.core.formats import codec
from limpet.core.rules import redaction, session_rules
from limpet.core.values import events
from limpet.core.values.context import ContextHandle, HandleType, PackSelection, WindowSelection
from limpet.core.values.memory_records import MEMORY_METADATA_KEY, source_messages, source_positions
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.core.windows.pack import SOURCE_MESSAGE, SOURCE_SUMMARY, ConversationMoment
from limpet.runtime import planner, state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch, iter_feed, iter_stream
from limpet.runtime.state_cache import DELETED_KIND, SESSION_KIND, iter_rows, session_stream
from limpet.stores import port
from limpet.stores.chain import is_erased_stream, is_notice
from limpet.stores.port import BlobLoader, RedactedPayload, StoredEvent, StreamErasure


class Reference(NamedTuple):
    """An event that holds content of an erased event, `cause`. An erased event is its own cause."""

    event: StoredEvent
    cause: StoredEvent


def erased_message_id(cause: StoredEvent) -> str:
    """Return the id of an erased message. It is not derived from the old id, which may be a secret."""
    return f"erased_{cause.link.hex()[:16]}"


def notice_kind(stream: str) -> str:
    is_tree = stream.startswith(state_cache.TREE_STREAM_PREFIX)
    return events.TreeErasedEvent.kind if is_tree else events.SessionErasedEvent.kind


def redacted_streams(store: port.Store, tenant: str, references: Iterable[Reference]) -> list[StreamErasure]:
    """Return the redactions by stream. Of several references to one event the first counts."""
    found: dict[str, dict[int, RedactedPayload]] = {}
    for event, cause in references:
        in_stream = found.setdefault(event.stream, {})
        if event.position not in in_stream:
            in_stream[event.position] = redact_event(event, cause, partial(store.blobs, tenant))
    return [
        StreamErasure(
            stream=stream, expected=store.version(tenant, stream), kind=notice_kind(stream),
            redactions=tuple(payloads.values()),
        )
        for stream, payloads in found.items()
    ]  # fmt: skip


def redact_event(stored: StoredEvent, cause: StoredEvent, fetch: BlobLoader) -> RedactedPayload:
    """Return the payload that replaces an event's, which holds content of `cause`."""
    if stored.stream.startswith(state_cache.TREE_STREAM_PREFIX):
        frame_event, texts = redaction.redacted_frame_event(state_cache.decode_tree_event(stored).event)
        blobs = tuple(text.encode() for text in texts)
        return RedactedPayload(stored.position, codec.encode_frame_event(frame_event), cause.position, blobs)
    erased = None
    if cause.position != stored.position:
        erased = _message(cause, fetch)
        if erased is None:
            raise errors.Corrupt("the event that causes an erasure is no message.")
    event = redaction.redacted_session_event(_decode(stored, fetch), erased_message_id(cause), erased)
    payload = codec.encode_session_event(event)
    if stored.kind == events.MessageAddedEvent.kind and stored.schema == codec.SCHEMA_WITH_BLOBS:
        payload = codec.payload_without_texts(payload)
    return RedactedPayload(stored.position, payload, cause.position)


def _decode(stored: StoredEvent, fetch: BlobLoader) -> events.SessionEvent:
    return state_cache.decode_session_event(stored, state_cache.referenced_texts((stored,), fetch)).event


def _message(stored: StoredEvent, fetch: BlobLoader) -> Message | None:
    """Return the message of an event; None if it is no message, or has no payload."""
    if stored.kind != events.MessageAddedEvent.kind or stored.payload is None:
        return None
    event = _decode(stored, fetch)
    return event.message if isinstance(event, events.MessageAddedEvent) else None


def session_id_of(stored: StoredEvent) -> str:
    return stored.stream.removeprefix(state_cache.SESSION_STREAM_PREFIX)


_TEXTLESS_KINDS = (events.SessionResetEvent.kind, events.WindowCutEvent.kind)


class ForkGraph:
    """The forks of sessions that are to be erased: which are `erasable` now, and which are `waiting` for forks.

    A fork reads the events of its source, so a source waits until its forks are erased, too. Deleted
    relatives of the sessions are included. Of the sessions in `earlier` only deleted content is erased:
    the whole session, or the events before the session that has the same id now.
    """

    def __init__(self, engine: Engine, tenant: str, whole: Collection[str], earlier: Collection[str]) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._states: dict[str, SessionState | None] = {}
        self._damaged: dict[str, errors.Corrupt] = {}
        wanted = {each for each in whole if self._is_there(each)}
        wanted |= {each for each in earlier if self._deleted(each)}
        self._recreated = sorted(each for each in earlier if self._is_there(each) and not self._deleted(each))
        self.erasable = sorted(self._without_live_forks(self._with_deleted_relatives(wanted)))
        self.waiting = sorted(wanted - set(self.erasable))

    def _state(self, session_id: str) -> SessionState | None:
        if session_id not in self._states:
            self._states[session_id] = None
            try:
                self._states[session_id] = self._engine.states.current(self._tenant, session_id)
            except errors.Corrupt as error:
                # A damaged session can be erased all the same: its rows name its owner and status.
                self._damaged[session_id] = error
        return self._states[session_id]

    def _is_there(self, session_id: str) -> bool:
        return self._state(session_id) is not None or session_id in self._damaged

    def _deleted(self, session_id: str) -> bool:
        state = self._state(session_id)
        if session_id in self._damaged:
            return self._store.find_projection(self._tenant, SESSION_KIND, session_id) is None
        return state is not None and state.status is SessionStatus.DELETED

    def _forks(self, session_id: str) -> list[tuple[str, int]]:
        found = self._store.forks(self._tenant, session_stream(session_id))
        prefix = state_cache.SESSION_STREAM_PREFIX
        return [(name.removeprefix(prefix), at) for name, at in found if not is_erased_stream(name)]

    def _with_deleted_relatives(self, wanted: set[str]) -> set[str]:
        """Return sessions with those deleted ones that they are forked from, or that are forked from them."""
        found, fresh = set(wanted), set(wanted)
        while fresh:
            near = {name for each in fresh for name, _ in self._forks(each)}
            states = filter(None, map(self._state, fresh))
            near |= {state.forked_from[0] for state in states if state.forked_from}
            fresh = {each for each in near - found if self._deleted(each)}
            found |= fresh
        return found

    def _without_live_forks(self, found: set[str]) -> set[str]:
        """Return the sessions without a fork that stays."""
        while True:
            free = {each for each in found if all(name in found for name, _ in self._forks(each))}
            if free == found:
                return found
            found = free

    def earlier_content(self) -> Iterator[Reference]:
        """Yield the events of deleted sessions whose ids were given to new sessions since."""
        going = set(self.erasable)
        for session_id in self._recreated:
            state = self._state(session_id)
            if session_id in self._damaged:
                raise self._damaged[session_id]
            assert state is not None, "it was there when it was looked for"
            stream = session_stream(session_id)
            floor = SessionEventSearch(self._store, self._tenant, state).version_before_creation()
            read_by_forks = max((at for name, at in self._forks(session_id) if name not in going), default=0)
            for event in own_events(self._store, self._tenant, stream, floor):
                if event.version > read_by_forks and not event.erased and event.kind not in _TEXTLESS_KINDS:
                    yield Reference(event, event)


def own_events(store: port.Store, tenant: str, stream: str, until: int) -> list[StoredEvent]:
    """Return a stream's own events up to a version, including those that a rewind removed from its path."""
    found: dict[int, StoredEvent] = {}
    begin, at = 1, until
    while at >= begin:
        page = list(iter_stream(store, tenant, stream, at=at))
        if not page:
            break
        forked = [event.version for event in page if event.kind == events.SessionForkedEvent.kind]
        begin = max([begin, *forked])
        found |= {event.version: event for event in page if event.version >= begin}
        missing = (v for v in range(at, begin - 1, -1) if v not in found)
        at = next(missing, 0)
    return [found[v] for v in sorted(found) if v >= begin and not is_notice(found[v].kind)]


def all_events(store: port.Store, tenant: str, stream: str, until: int) -> Iterator[StoredEvent]:
    """Yield the events on a stream's path, including its source's, then its other own events."""
    seen: set[int] = set()
    for event in (*iter_stream(store, tenant, stream, at=until), *own_events(store, tenant, stream, until)):
        if event.position not in seen and not is_notice(event.kind):
            seen.add(event.position)
            yield event


class MessageReach(msgspec.Struct):
    """Where a session has the message: from `version` on, as messages with `ordinals`, counted from `began`."""

    version: int
    ordinals: set[int]
    began: int = 0
    in_summary: bool = False

    def covers(self, first: int, last: int, began: int | None = None) -> bool:
        base = self.began if began is None else began
        return any(first <= ordinal - base <= last for ordinal in self.ordinals)


CoverageCheck = Callable[[str, int, int, int | None], bool]
"""Whether the erased content is among a session's messages: first and last number, and the ordinal these count from."""


# These are most events of a tree, and are not decoded. A kind of a newer Limpet is decoded, so that it is refused.
_KINDS_WITHOUT_MESSAGES = frozenset(
    kind.kind
    for kind in (
        events.FramePushedEvent, events.FramePoppedEvent, events.FrameSuspendedEvent, events.FrameResumedEvent,
        events.ResultAddedEvent, events.ActorResumedEvent,
    )
)  # fmt: skip


class FrameTreeSearch:
    """Searches the events of frame trees for content of some sessions' messages."""

    def __init__(self, covered: CoverageCheck, positions: Collection[int] | None, sessions: Collection[str]) -> None:
        self._covered = covered
        self._positions = positions
        self._sessions = sessions
        self._handles: set[tuple[str, str]] = set()

    def has_content(self, stored: StoredEvent) -> bool:
        if stored.kind in _KINDS_WITHOUT_MESSAGES:
            return False
        match event := state_cache.decode_tree_event(stored).event:
            case events.FrameUpdatedEvent(pack=pack) if pack is not None and pack.digest:
                return self._in_pack(pack)
            case events.HandleAddedEvent(handle=handle):
                if not self._points_at_message(handle):
                    return False
                self._handles.add((stored.stream, handle.handle_id))
                # A handle has no text, so it stays if one message is erased, and goes with a whole session.
                return self._positions is None
            case events.FrameCompactedEvent():
                names = (*event.removed, *(handle.handle_id for handle in event.replaced))
                if not any((stored.stream, name) in self._handles for name in names):
                    return False
                self._handles |= {(stored.stream, h.handle_id) for h in event.replaced}
                return True
            case _:
                return False

    def _points_at_message(self, handle: ContextHandle) -> bool:
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
            first = part.get("first", part.get("number", 0))
            span = (first, part.get("last", first))
            if part.get("kind") == SOURCE_MESSAGE and self._covered(moment.session_id, *span, moment.began):
                return True
        return False


def frame_references(
    store: port.Store, tenant: str, sessions: Collection[str], without: Collection[str]
) -> Iterator[Reference]:
    """Yield the events of frame trees that hold messages of sessions. Streams in `without` are skipped."""

    def is_covered(session_id: str, _first: int, _last: int, _began: int | None) -> bool:
        return session_id in sessions

    search = FrameTreeSearch(is_covered, None, sessions)
    for row in iter_rows(store, tenant, port.Query(kind=state_cache.TREE_KIND)):
        stream = state_cache.tree_stream(row.id)
        for stored in iter_stream(store, tenant, stream) if stream not in without else ():
            if stored.payload is not None and search.has_content(stored):
                yield Reference(stored, stored)


def advance_past_unrelated(store: port.Store, tenant: str, head: int, streams: Collection[str]) -> int | None:
    """Return the feed's head if only plain messages were added to other streams since `head`; None if not.

    A message that could hold content of another stream is not plain: it names an origin or a memory.
    """
    for stored in iter_feed(store, tenant, head):
        payload = stored.payload or b""
        if stored.kind != events.MessageAddedEvent.kind or stored.stream in streams:
            return None
        if any(f'"{name}"'.encode() in payload for name in (MEMORY_METADATA_KEY, "origin")):
            return None
        head = stored.position
    return head


def trace_message(engine: Engine, tenant: str, session_id: str, message_id: str) -> MessageTrace:
    """Return the trace of a message and its copies; raise SessionNotFound, MessageNotFound."""
    state = session_rules.existing_state(engine.states.current(tenant, session_id), session_id)
    found = list(_message_events(engine.store, tenant, state, message_id))
    if causes := [event for event in found if not event.erased]:
        return MessageTrace(engine, tenant, state, causes)
    if found:
        # The error does not name the id that replaced the message's own: callers never saw it.
        raise errors.MessageNotFound(
            f"that message of the session {session_id!r} is erased already.",
            hint="There is nothing left of it to erase.",
            facts={"session": session_id},
        )
    facts = {"session": session_id, "message": message_id}
    raise errors.MessageNotFound(f"the session {session_id!r} has no message {message_id!r}.", facts=facts)


def _message_events(store: port.Store, tenant: str, state: SessionState, message_id: str) -> Iterator[StoredEvent]:
    """Yield the events that add a message to a session, erased or not, also before a rewind, as they are in the feed."""
    stream = session_stream(state.id)
    floor = SessionEventSearch(store, tenant, state).version_before_creation()
    version = store.find_claim(tenant, stream, message_id, at=state.version)
    found = {version} if version > floor else set[int]()
    for event in own_events(store, tenant, stream, state.version):
        message = _message(event, partial(store.blobs, tenant)) if event.version > floor else None
        if message is not None and message.id == message_id:
            found.add(event.version)
    for each in sorted(found):
        (here,) = store.read(tenant, stream, after=each - 1, until=each, at=each)
        yield from store.feed(tenant, after=here.position - 1, limit=1)


class MessageTrace:
    """Searches the log, from a message on, for copies of the message and for text made from it."""

    def __init__(self, engine: Engine, tenant: str, state: SessionState, causes: list[StoredEvent]) -> None:
        self.state = state
        self.cause = causes[0]
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._after = self.cause.position - 1
        self._causes = {event.position: event for event in causes}
        self._blobs = partial(self._store.blobs, tenant)
        erased = _message(self.cause, self._blobs)
        assert erased is not None, "a claim is made by a message"
        self._erased = erased
        self._reach_by_session: dict[str, MessageReach] = {}
        for event in causes:
            owner = session_id_of(event)
            source = engine.states.at_version(tenant, owner, event.version)
            began = source.ordinal_began if source else 0
            known = self._reach_by_session.setdefault(owner, MessageReach(event.version, set(), began))
            known.ordinals.add(event.ordinal)
        self._trees = FrameTreeSearch(self._covered, set(self._causes), self._reach_by_session)
        self._found: dict[int, StoredEvent] = dict(self._causes)

    def _covered(self, session_id: str, first: int, last: int, began: int | None) -> bool:
        reach = self._reach_by_session.get(session_id)
        return reach is not None and reach.covers(first, last, began)

    def read_on(self) -> None:
        for stored in iter_feed(self._store, self._tenant, self._after):
            self._after = stored.position
            if stored.payload is None or is_erased_stream(stored.stream) or stored.erased:
                continue
            if stored.stream.startswith(state_cache.TREE_STREAM_PREFIX):
                if self._trees.has_content(stored):
                    self._found[stored.position] = stored
            elif self._has_content(stored):
                self._found[stored.position] = stored

    def copies(self) -> dict[int, str]:
        """Return the sessions that have the message, by the positions of the events that add it."""
        added = [stored for stored in self._found.values() if stored.kind == events.MessageAddedEvent.kind]
        return {stored.position: session_id_of(stored) for stored in added}

    def references(self) -> Iterator[Reference]:
        """Yield the events that hold content of the message, in the order of the log."""
        for position, stored in sorted(self._found.items()):
            yield Reference(stored, self._causes.get(position, self.cause))

    def _has_content(self, stored: StoredEvent) -> bool:
        reach = self._reach_by_session.get(session_id_of(stored))
        begins = stored.kind in (events.SessionCreatedEvent.kind, events.SessionForkedEvent.kind)
        if reach is None and not begins and stored.kind != events.MessageAddedEvent.kind:
            return False
        name = self._erased.id
        # This avoids decoding every message of the log: a payload holds the message's id as text.
        if (
            stored.kind == events.MessageAddedEvent.kind
            and name.isascii()
            and name.encode() not in (stored.payload or b"")
        ):
            return False
        match event := _decode(stored, self._blobs):
            case events.MessageAddedEvent():
                return self._is_a_copy(event.message, stored)
            case events.SessionCreatedEvent():
                return self._follow_continuation(event, stored)
            case events.SessionForkedEvent():
                return self._follow_fork(event)
            case events.SessionRewoundEvent() if reach:
                reach.began = event.state.ordinal_began
                return self._in_state(event.state, reach)
            case events.SessionResetEvent() if reach:
                reach.began, reach.in_summary = stored.ordinal, False
                return False
            case events.SessionSummarizedEvent() if reach:
                summary = event.summary
                reach.in_summary = reach.in_summary or reach.covers(summary.first, summary.last)
                return reach.in_summary
            case events.WindowRecordedEvent():
                return self._in_window(event.selection)
            case _:
                return False

    def _is_a_copy(self, message: Message, stored: StoredEvent) -> bool:
        if message.id != self._erased.id or message.origin is None:
            return False
        if not planner.is_same_message(message, self._erased):
            return False
        reach = self._reach_by_session.setdefault(session_id_of(stored), MessageReach(stored.version, set()))
        reach.ordinals.add(stored.ordinal)
        return True

    def _follow_continuation(self, event: events.SessionCreatedEvent, stored: StoredEvent) -> bool:
        source = self._reach_by_session.get(event.continued_from or "")
        if source is None:
            known = self._reach_by_session.get(event.id)
            if known is not None:
                # A new session under the id of a deleted one.
                known.began, known.in_summary = stored.ordinal, False
            return False
        summarised = source.in_summary and event.summary is not None
        self._reach_by_session[event.id] = MessageReach(stored.version, set(), stored.ordinal, summarised)
        return summarised

    def _follow_fork(self, event: events.SessionForkedEvent) -> bool:
        source = self._reach_by_session.get(event.source)
        if source is None or event.version < source.version:
            return False
        state = event.state
        reach = MessageReach(source.version, set(source.ordinals), state.ordinal_began, source.in_summary)
        self._reach_by_session[event.id] = reach
        return self._in_state(state, reach)

    def _in_state(self, state: SessionState, reach: MessageReach) -> bool:
        summaries = [each for each in (state.summary, state.written) if each is not None]
        summarised = any(reach.in_summary or reach.covers(each.first, each.last) for each in summaries)
        reach.in_summary = summarised
        shown = state.preview is not None and state.preview == session_rules.message_preview(self._erased)
        waits = any(call.message_id == self._erased.id for call in state.open_calls)
        return summarised or shown or waits

    def _in_window(self, chosen: WindowSelection) -> bool:
        reach = self._reach_by_session.get(chosen.session_id)
        if reach is None or not chosen.digest:
            return False
        for part in chosen.parts:
            if isinstance(part, Mapping):
                number = part.get("number")
                first = last = number if isinstance(number, int) else 0
                if number is None and reach.in_summary:
                    return True
            else:
                first, last = part
            if first and reach.covers(first, last, chosen.began):
                return True
        return False


ErasurePredicate = Callable[[StoredEvent], bool]
"""Whether an event is erased."""


class PromptReferences:
    """Searches a user's sessions for system prompts that quote what memory learnt from erased messages.

    Such a prompt loses its memory part, and windows that were recorded with it can't be rebuilt.
    """

    def __init__(self, engine: Engine, tenant: str, is_erased: ErasurePredicate) -> None:
        self._engine = engine
        self._store = engine.store
        self._tenant = tenant
        self._blobs = partial(engine.store.blobs, tenant)
        self._is_erased = is_erased
        self._events_by_position: dict[int, StoredEvent | None] = {}
        self._erased_by_session: dict[str, dict[str, StoredEvent]] = {}
        self.prompts: dict[int, str] = {}
        """The sessions whose prompts change, by the prompts' positions."""

    def references(self, user_id: str, without: Collection[str]) -> list[Reference]:
        """Return the events to redact in a user's sessions, except those in `without`."""
        sessions = [name for name in self._sessions(user_id) if name not in without]
        causes: dict[str, StoredEvent] = {}
        found: dict[str, list[Reference]] = {}
        while True:
            before = len(causes)
            for name in sessions:
                found[name] = list(self._session_references(name, causes)) or found.get(name, [])
            # A fork shows its source's prompt, and may come before the source in the list.
            if len(causes) == before:
                return [reference for every in found.values() for reference in every]

    def _sessions(self, user_id: str) -> list[str]:
        found: dict[str, None] = {}
        for kind in (SESSION_KIND, DELETED_KIND):
            for row in iter_rows(self._store, self._tenant, port.Query(kind=kind, owner=user_id)):
                found[row.lookup if kind == DELETED_KIND else row.id] = None
        return list(found)

    def _session_references(self, session_id: str, causes: dict[str, StoredEvent]) -> Iterator[Reference]:
        state = self._engine.states.current(self._tenant, session_id)
        if state is None:
            return
        source = state.forked_from[0] if state.forked_from else ""
        cause = causes.get(session_id) or causes.get(source)
        for event in own_events(self._store, self._tenant, session_stream(session_id), state.version):
            if event.payload is None or event.erased:
                continue
            if event.kind == events.MessageAddedEvent.kind and (found := self._cause(event)):
                cause = found
                self.prompts[event.position] = session_id
            elif event.kind != events.WindowRecordedEvent.kind or cause is None:
                continue
            yield Reference(event, cause)
        if cause is not None:
            causes[session_id] = cause

    def _cause(self, event: StoredEvent) -> StoredEvent | None:
        """Return an erased message that a prompt was made from; None if there is none."""
        if f'"{MEMORY_METADATA_KEY}"'.encode() not in (event.payload or b"") or self._is_erased(event):
            return None
        prompt = _message(event, self._blobs)
        if prompt is None or prompt.role != "system":
            return None
        return next(filter(self._is_erased, self._sources(prompt)), None)

    def _sources(self, prompt: Message) -> Iterator[StoredEvent]:
        """Yield the messages that a prompt was made from, found by position and by id: an import changes positions."""
        sources = source_messages(prompt)
        names = {source.message_id for source in sources}
        for position in source_positions(prompt):
            found = self._event_at(position)
            if found is not None and ("" in names or self._message_id(found) in names):
                yield found
        for source in sources:
            if source.session_id not in self._erased_by_session:
                self._erased_by_session[source.session_id] = dict(self._erased_messages(source.session_id))
            if found := self._erased_by_session[source.session_id].get(source.message_id):
                yield found

    def _erased_messages(self, session_id: str) -> Iterator[tuple[str, StoredEvent]]:
        state = self._engine.states.current(self._tenant, session_id) if session_id else None
        if state is None:
            return
        for event in all_events(self._store, self._tenant, session_stream(session_id), state.version):
            if self._is_erased(event) and (name := self._message_id(event)):
                yield name, event

    def _message_id(self, event: StoredEvent) -> str | None:
        message = None if event.erased else _message(event, self._blobs)
        return message.id if message is not None else None

    def _event_at(self, position: int) -> StoredEvent | None:
        if position not in self._events_by_position:
            found = self._store.feed(self._tenant, after=position - 1, limit=1)
            event = found[0] if found and found[0].position == position else None
            usable = event is not None and event.payload is not None and not event.erased
            self._events_by_position[position] = event if usable else None
        return self._events_by_position[position]
