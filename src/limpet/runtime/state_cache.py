"""Caches of folded states, and everything else that is derived from events: rows, claims, blobs.

The caches hold session states and frame trees and update them from newer events. A rebuild of a tenant clears
them. Only the holder of the write lock uses a cached state without reading the store, and only if no other
process can have written since. The module also names streams and decodes stored events.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec
from limpet.core.rules import frame_fold, session_rules
from limpet.core.values import events
from limpet.core.values.events import MessageAddedEvent, RecordedEvent, SessionEndedEvent
from limpet.core.values.frame_state import Decision, Frame, Scope, Suspension, SuspensionStatus, TreeState
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState, SessionStatus, session_info
from limpet.core.values.validation import Json
from limpet.stores import port, store_copy
from limpet.stores.chain import is_erased_stream

S = TypeVar("S", bound=SessionState | TreeState)


class StateCache(ABC, Generic[S]):
    """A cache of at most `size` states of one kind. A rebuild of a tenant drops snapshots, so it clears the cache."""

    def __init__(self, store: port.Store, size: int) -> None:
        self._store = store
        self._size = size
        self._mutex = threading.Lock()
        self._cached: OrderedDict[tuple[str, str], tuple[S, int]] = OrderedDict()
        self._epoch = 0
        self._rebuilt: dict[str, int] = {}
        self._unlocked_rebuilds: dict[str, int] | None = None

    @abstractmethod
    def stream(self, id_: str) -> str:
        """Return the stream of a state."""

    @abstractmethod
    def decode_snapshot(self, snapshot: port.Snapshot) -> S | None:
        """Return the state of a snapshot; None if another fold version wrote it."""

    @abstractmethod
    def apply_events(self, tenant: str, state: S | None, page: Sequence[port.StoredEvent]) -> S | None:
        """Return the state after further events of its stream."""

    def write_lock_acquired(self, *, alone: bool) -> None:
        """Note that the write lock was acquired. Unless `alone`, other processes may have written to any stream meanwhile."""
        self._unlocked_rebuilds = None
        if not alone:
            self._epoch += 1

    def begin_unlocked_plan(self, tenants: Iterable[str]) -> None:
        """Note that requests of these tenants are planned on cached states, before the write lock is acquired."""
        self._unlocked_rebuilds = {tenant: self.check_rebuilt(tenant) for tenant in tenants}

    def is_unlocked_plan_stale(self) -> bool:
        """Return whether a tenant was rebuilt since `begin_unlocked_plan`."""
        early = self._unlocked_rebuilds or {}
        return any(rebuilt != self._store.cache_epoch(tenant) for tenant, rebuilt in early.items())

    def check_rebuilt(self, tenant: str) -> int:
        """Clear the cache if the tenant was rebuilt; return its rebuild count.

        Raises UnsafeStore if the tenant is being copied into this store: programs that had it open are kept out too.
        """
        rebuilt = self._store.cache_epoch(tenant)
        if rebuilt != self._rebuilt.get(tenant, 0):
            store_copy.refuse_incomplete_copy(self._store, tenant)
            with self._mutex:
                self._cached.clear()
                self.clear_derived()
                self._rebuilt[tenant] = rebuilt
        return rebuilt

    def clear_derived(self) -> None:
        """Clear what subclasses cache of derived data: a tenant was rebuilt."""

    def get_locked(self, tenant: str, id_: str) -> S | None:
        """Return a state for the holder of the write lock, which trusts the states that it wrote itself."""
        known = self._cached.get((tenant, id_))
        if known is not None and known[1] == self._epoch:
            return known[0]
        state = self.current(tenant, id_)
        if state is not None:
            self.put(tenant, state)
        return state

    def cached_locked(self, tenant: str, id_: str) -> S | None:
        """Return a state that the holder of the write lock may use without reading the store; None if there is none."""
        known = self._cached.get((tenant, id_))
        return known[0] if known is not None and known[1] == self._epoch else None

    def cached(self, tenant: str, id_: str) -> S | None:
        """Return the cached state, which may be stale; None if it is not cached."""
        found = self._cached.get((tenant, id_))
        return found[0] if found else None

    def current(self, tenant: str, id_: str) -> S | None:
        """Return the current state; None if it never existed. Reads only events newer than the cached state."""
        rebuilt = self.check_rebuilt(tenant)
        with self._mutex:
            found = self._cached.get((tenant, id_))
        state, stream = found[0] if found else None, self.stream(id_)
        fresh = self._fold(tenant, stream, state or self._snapshot(tenant, stream))
        if fresh is not None and fresh is not state:
            self._insert(tenant, fresh, -1, rebuilt)
        return fresh

    def _snapshot(self, tenant: str, stream: str) -> S | None:
        found = self._store.snapshot(tenant, stream)
        return self.decode_snapshot(found) if found else None

    def _fold(self, tenant: str, stream: str, state: S | None, *, at: int | None = None) -> S | None:
        while True:
            after = state.version if state else 0
            tail = self._store.read(tenant, stream, after=after, limit=limits.READ_CHUNK, at=at)
            state = self.apply_events(tenant, state, tail) if tail else state
            if len(tail) < limits.READ_CHUNK:
                return state

    def put(self, tenant: str, state: S) -> None:
        """Cache a state that the holder of the write lock read or wrote."""
        early = self._unlocked_rebuilds.get(tenant) if self._unlocked_rebuilds else None
        self._insert(tenant, state, self._epoch, early)

    def _insert(self, tenant: str, state: S, epoch: int, rebuilt: int | None) -> None:
        """Cache a state, unless the tenant was rebuilt after its base state was read."""
        place, cached = (tenant, state.id), self._cached
        with self._mutex:
            if rebuilt is not None and rebuilt != self._rebuilt.get(tenant, 0):
                return
            present = cached.get(place)
            if present is None or present[0].version <= state.version:
                cached[place] = (state, epoch)
            cached.move_to_end(place)
            while len(cached) > self._size:
                cached.popitem(last=False)

    def invalidate(self, tenant: str, id_: str) -> None:
        with self._mutex:
            self._cached.pop((tenant, id_), None)

    def __len__(self) -> int:
        return len(self._cached)


SESSION_STREAM_PREFIX: Final = "session/"
SESSION_KIND: Final = "session"
DELETED_KIND: Final = "deleted"


def session_stream(session_id: str) -> str:
    return SESSION_STREAM_PREFIX + session_id


def referenced_texts(page: Sequence[port.StoredEvent], fetch: port.BlobLoader) -> Mapping[bytes, str]:
    """Return the large texts that events refer to, by hash. All are fetched in one call."""
    wanted: set[bytes] = set()
    for stored in page:
        if stored.schema == codec.SCHEMA_WITH_BLOBS and stored.payload is not None:
            try:
                wanted.update(codec.required_blob_hashes(stored.kind, stored.schema, stored.payload))
            except errors.Corrupt as error:
                error.facts |= _event_location(stored)
                raise
    return codec.decode_texts(fetch(wanted)) if wanted else codec.NO_TEXTS


def decode_session_events(store: port.Store, tenant: str, page: Sequence[port.StoredEvent]) -> list[RecordedEvent]:
    """Decode stored events; raise Corrupt with the position of the first event that can't be decoded."""
    texts = referenced_texts(page, partial(store.blobs, tenant))
    return [decode_session_event(stored, texts) for stored in page]


def messages_of(store: port.Store, tenant: str, page: Sequence[port.StoredEvent]) -> list[Message]:
    """Return the messages of the message_added events; other events are skipped."""
    added = [stored for stored in page if stored.kind == MessageAddedEvent.kind]
    found = (fact.event for fact in decode_session_events(store, tenant, added))
    return [event.message for event in found if isinstance(event, MessageAddedEvent)]


def decode_session_event(stored: port.StoredEvent, texts: Mapping[bytes, str]) -> RecordedEvent:
    """Decode a stored event; raise Corrupt with its position if it can't be decoded."""
    if stored.payload is None:
        raise errors.Erased(f"the event at position {stored.position:,} was erased.")
    try:
        fact = codec.decode_session_event(
            stored.kind, stored.schema, stored.payload, tokens=stored.tokens, counter=stored.counter, texts=texts
        )
    except errors.Corrupt as error:
        error.facts |= _event_location(stored)
        raise
    session_id = "" if is_erased_stream(stored.stream) else stored.stream.removeprefix(SESSION_STREAM_PREFIX)
    return RecordedEvent(fact, session_id, stored.position, stored.version, stored.time_us)


def truncated_stream_error(store: port.Store, tenant: str, stream: str, until: int) -> errors.Error:
    """Return the error for a stream that ends before a known version: it was erased, or it is damaged."""
    facts_ = {"stream": stream, "until": until}
    if store.version(tenant, stream) < until:
        return errors.Erased("the stream was erased.", facts=facts_)
    return errors.Corrupt(f"the log of {stream} ends before its state does.", facts=facts_)


def _event_location(stored: port.StoredEvent) -> dict[str, Json]:
    return {"position": stored.position, "stream": stored.stream, "version": stored.version}


class SessionStateCache(StateCache[SessionState]):
    """The cache of session states and of chain ends. `forget_too` clears the message cache."""

    def __init__(self, store: port.Store, size: int, forget_too: Callable[[], None]) -> None:
        super().__init__(store, size)
        self._clear_message_cache = forget_too
        self._chain_ends: dict[tuple[str, str, int], str] = {}

    def stream(self, id_: str) -> str:
        return session_stream(id_)

    def decode_snapshot(self, snapshot: port.Snapshot) -> SessionState | None:
        return codec.decode_state(snapshot.state) if snapshot.fold == codec.SESSION_FOLD_VERSION else None

    def apply_events(
        self, tenant: str, state: SessionState | None, page: Sequence[port.StoredEvent]
    ) -> SessionState | None:
        for fact in decode_session_events(self._store, tenant, page):
            state = session_rules.evolve(state, fact)
        return state

    def write_lock_acquired(self, *, alone: bool) -> None:
        super().write_lock_acquired(alone=alone)
        if not alone:
            self._chain_ends.clear()

    def clear_derived(self) -> None:
        self._chain_ends.clear()
        self._clear_message_cache()

    def at_version(self, tenant: str, session_id: str, version: int) -> SessionState | None:
        """Return the state of a session at a version, rewound since or not; None if there is no such version."""
        stream = session_stream(session_id)
        state = self._snapshot(tenant, stream)
        if state is None or state.version > version:
            state = None
        state = self._fold(tenant, stream, state, at=version)
        if state is None or state.version != version:
            return None
        return msgspec.structs.replace(state, id=session_id)

    def cached_chain_end(self, tenant: str, state: SessionState) -> str | None:
        """Return the cached last session of a conversation, which may have been continued since."""
        return self._chain_ends.get((tenant, state.id, state.version)) if state.continuations else None

    def put_chain_end(self, tenant: str, state: SessionState, last: str) -> None:
        """Cache the last session of a conversation. A change of the session itself invalidates the entry."""
        if last != state.id:
            if len(self._chain_ends) >= self._size:
                self._chain_ends.clear()
            self._chain_ends[tenant, state.id, state.version] = last

    def clear_chain_ends(self) -> None:
        """Clear the cached chain ends: a session left its chain."""
        self._chain_ends.clear()


TREE_STREAM_PREFIX: Final = "frames/"
FRAME_KIND: Final = "frame"
TREE_KIND: Final = "tree"
SUSPENSION_KIND: Final = "suspension"
ROW_OPEN: Final = "open"
ROW_WAITING: Final = "waiting"

NEVER_OVERDUE_US: Final = 1 << 61
"""The row time of a tree without a deadline."""


def tree_stream(root_id: str) -> str:
    return TREE_STREAM_PREFIX + root_id


class TreeEvent(msgspec.Struct, frozen=True):
    """An event of a frame tree with its position in the feed, its version in the stream, and its time."""

    event: events.FrameEvent
    root_id: str
    position: int
    version: int
    time_us: int

    @property
    def kind(self) -> str:
        """The event's tag, for example frame.pushed."""
        return self.event.kind

    @property
    def session_id(self) -> str:
        """Empty: the event belongs to no session."""
        return ""


def decode_tree_event(stored: port.StoredEvent) -> TreeEvent:
    """Decode a stored event; raise Corrupt with its position if it can't be decoded."""
    if stored.payload is None:
        raise errors.Erased(f"the event at position {stored.position:,} was erased.")
    try:
        event = codec.decode_frame_event(stored.kind, stored.schema, stored.payload)
    except errors.Corrupt as error:
        error.facts |= _event_location(stored)
        raise
    root_id = "" if is_erased_stream(stored.stream) else stored.stream.removeprefix(TREE_STREAM_PREFIX)
    return TreeEvent(event, root_id, stored.position, stored.version, stored.time_us)


class FrameTreeCache(StateCache[TreeState]):
    """The states of frame trees."""

    def __init__(self, store: port.Store, size: int) -> None:
        super().__init__(store, size)
        self._roots: OrderedDict[tuple[str, str], str] = OrderedDict()

    def stream(self, id_: str) -> str:
        return tree_stream(id_)

    def decode_snapshot(self, snapshot: port.Snapshot) -> TreeState | None:
        return codec.decode_tree(snapshot.state) if snapshot.fold == codec.TREE_FOLD_VERSION else None

    def apply_events(
        self,
        tenant: str,  # noqa: ARG002 - a tree needs nothing but its events
        state: TreeState | None,
        page: Sequence[port.StoredEvent],
    ) -> TreeState | None:
        for fact in map(decode_tree_event, page):
            state = frame_fold.evolve(state, fact.event, version=fact.version, time_us=fact.time_us)
        return state

    def clear_derived(self) -> None:
        self._roots.clear()

    def root_of(self, tenant: str, frame_id: str) -> str | None:
        """Return the root of a frame's tree, which never changes; None if there is no such frame."""
        self.check_rebuilt(tenant)
        found = self._roots.get((tenant, frame_id))
        if found is None:
            found = self._find_root(tenant, frame_id)
            if found is not None:
                self.put_root(tenant, frame_id, found)
        return found

    def _find_root(self, tenant: str, frame_id: str) -> str | None:
        row = self._store.find_projection(tenant, FRAME_KIND, frame_id)
        if row is not None:
            return codec.decode_frame(row.document).root_id
        if self._store.find_projection(tenant, TREE_KIND, frame_id) is not None:
            return frame_id
        root = root_in_frame_id(frame_id)
        tree = self.current(tenant, root) if root else None
        there = tree is not None and (frame_id in tree.frames or tree.closed_frame(frame_id))
        return root if there else None

    def tree_locked(self, tenant: str, frame_id: str) -> TreeState | None:
        """Return the tree of a frame if it is cached and current for the holder of the write lock; else None."""
        known = self._cached.get((tenant, root_in_frame_id(frame_id) or frame_id))
        if known is None:
            known = self._cached.get((tenant, self._roots.get((tenant, frame_id), "")))
        return known[0] if known is not None and known[1] == self._epoch else None

    def put_root(self, tenant: str, frame_id: str, root_id: str) -> None:
        with self._mutex:
            self._roots[tenant, frame_id] = root_id
            while len(self._roots) > self._size * 8:
                self._roots.popitem(last=False)

    def find_frame(self, tenant: str, frame_id: str) -> Frame | None:
        """Return the current state of a frame, open or closed; None if it never existed."""
        root = self.root_of(tenant, frame_id)
        tree = self.current(tenant, root) if root is not None else None
        if tree is None:
            return self.frame_from_row(tenant, frame_id)
        found = tree.frames.get(frame_id) or tree.closed_frame(frame_id)
        return found or self.frame_from_row(tenant, frame_id)

    def frame_from_row(self, tenant: str, frame_id: str) -> Frame | None:
        """Return a closed frame that its tree no longer holds; None if there is no such frame."""
        row = self._store.find_projection(tenant, FRAME_KIND, frame_id)
        return codec.decode_frame(row.document) if row else None

    def open_tree(self, tenant: str, frame_id: str) -> TreeState | None:
        """Return the tree in which a frame is open; None if it is closed or there is none."""
        root = self.root_of(tenant, frame_id)
        tree = self.current(tenant, root) if root is not None else None
        return tree if tree is not None and frame_id in tree.frames else None


def unknown_frame_error(frame_id: str) -> errors.FrameNotFound:
    return errors.FrameNotFound(f"there is no frame {frame_id!r}.", facts={"frame": frame_id})


def root_in_frame_id(frame_id: str) -> str:
    """Return the root id that a generated child id begins with. For an id of a caller the result means nothing."""
    return frame_id.rpartition(".")[0]


_EVENTS_WITHOUT_ROWS: Final = (
    events.HandleAddedEvent,
    events.ResultAddedEvent,
    events.FrameCompactedEvent,
    events.TreeErasedEvent,
)
"""Events that change no row."""


def changed_tree_rows(
    before: TreeState | None, events: Sequence[events.FrameEvent], after: Sequence[TreeState]
) -> list[port.Projection]:
    """Return the rows that events change, given the tree before them and the tree after each.

    An open frame is part of its tree. It has a row only if its id does not name the tree.
    """
    last, event = after[-1], events[0]
    # The common case: one event, and no closed frame leaves the tree. Most of these events change no row.
    plain = before is not None and len(events) == 1 and not before.moves_closed_frames
    if plain and isinstance(event, _EVENTS_WITHOUT_ROWS):
        return []
    known: Mapping[str, Frame] = before.frames if before else {}
    made: list[port.Projection] = []
    for tree in after:
        if tree.moves_closed_frames:
            made += map(frame_row, tree.closed)
    stands = False
    for frame_id, frame in last.frames.items():
        if frame_id not in known and last.root_id not in (frame_id, root_in_frame_id(frame_id)):
            made.append(frame_row(frame))
        stands = stands or frame.suspension is not None
    for frame in known.values():
        stands = stands or frame.suspension is not None
    if stands:
        steps = (known, *(tree.frames for tree in after))
        made += _changed_suspension_rows(steps, last.updated_us)
    if (
        before is None
        or before.next_expiry_us() != last.next_expiry_us()
        or not ((plain and _keeps_scopes(event, last)) or before.scopes() == last.scopes())
    ):
        made.append(tree_row(last))
    return made


def _keeps_scopes(event: events.FrameEvent, last: TreeState) -> bool:
    if isinstance(event, events.FramePushedEvent):
        return event.scope == last.frames[event.parent_frame_id or event.frame_id].scope
    return bool(last.frames)


def _changed_suspension_rows(steps: Sequence[Mapping[str, Frame]], time_us: int) -> list[port.Projection]:
    """Return the rows of suspensions that began, changed or ended, given the frames after each event."""
    made: dict[str, port.Projection] = {}
    for known, frames in itertools.pairwise(steps):
        for frame_id in dict.fromkeys((*known, *frames)):
            past, frame = known.get(frame_id), frames.get(frame_id)
            if past is frame:
                continue
            before, standing = past and past.suspension, frame and frame.suspension
            if before is standing or before == standing:
                continue
            if standing is not None:
                made[standing.suspension_id] = suspension_row(standing)
            if before is not None and (standing is None or standing.suspension_id != before.suspension_id):
                made[before.suspension_id] = suspension_row(ended_suspension(before, frame, time_us))
    return list(made.values())


def ended_suspension(before: Suspension, frame: Frame | None, time_us: int) -> Suspension:
    """Return how a suspension ended: with a decision, because its frame was closed, or after it expired."""
    if frame is not None and frame.suspension is not None:
        if before.status is not SuspensionStatus.WAITING:
            return before
        return msgspec.structs.replace(before, status=SuspensionStatus.EXPIRED, decided_us=time_us)
    told = frame.resumption if frame else None
    if told is None or told.suspension_id != before.suspension_id:
        return msgspec.structs.replace(before, status=SuspensionStatus.CLOSED, decided_us=time_us)
    return msgspec.structs.replace(
        before,
        status=SuspensionStatus(told.decision),
        decided_us=time_us,
        decided_by=told.by,
        decision_reason=told.reason,
        payload=told.payload if told.decision is Decision.EDITED else before.payload,
    )


def frame_row(frame: Frame) -> port.Projection:
    """Return the row of a frame that is closed, or whose id does not name its tree."""
    return port.Projection(
        kind=FRAME_KIND,
        id=frame.frame_id,
        owner=frame.scope.actor_id,
        status=ROW_OPEN if frame.open else str(frame.status),
        time_us=frame.created_us,
        lookup=scope_terms(frame.scope)[-1] if frame.scope.session_id is not None else "",
        document=codec.encode_frame(frame),
    )


def tree_row(tree: TreeState) -> port.Projection:
    """Return the row of a tree. While it is open, its terms are actors and sessions, and its time is the next deadline."""
    if not tree.frames:
        return port.Projection(kind=TREE_KIND, id=tree.root_id, status="closed")
    alarm = tree.next_expiry_us()
    return port.Projection(
        kind=TREE_KIND,
        id=tree.root_id,
        status=ROW_OPEN,
        time_us=NEVER_OVERDUE_US if alarm is None else alarm,
        lookup=ROW_OPEN,
        terms=tuple(sorted({term for scope in tree.scopes() for term in scope_terms(scope)})),
    )


def scope_terms(scope: Scope) -> tuple[str, ...]:
    """Return the filter terms of a scope."""
    session = () if scope.session_id is None else (f"session:{scope.session_id}",)
    return (f"actor:{scope.actor_id}", *session)


def suspension_row(suspension: Suspension) -> port.Projection:
    """Return the row of a suspension; its lookup lists it while it waits."""
    waits = suspension.status is SuspensionStatus.WAITING
    return port.Projection(
        kind=SUSPENSION_KIND,
        id=suspension.suspension_id,
        owner=suspension.scope.actor_id,
        status=str(suspension.status),
        time_us=suspension.suspended_us,
        lookup=ROW_WAITING if waits else "",
        document=codec.encode_suspension(suspension),
    )


def tree_event_claims(event: events.FrameEvent, tree: TreeState | None) -> list[str]:
    """Return the claims of an event, given the tree before it."""
    match event:
        case events.FramePushedEvent():
            return [f"frame:{event.frame_id}"] if event.named else []
        case events.FrameUpdatedEvent(tool=tool) if tool is not None:
            frame = tree.frames.get(event.frame_id) if tree else None
            known = frame is not None and frame.tool(tool.tool_id) is not None
            if tool.status in frame_fold.SETTLED_TOOL_STATUSES:
                return [f"end:{tool.tool_id}"]
            return [] if known else [f"tool:{tool.tool_id}"]
        case _:
            return []


def derive_tree(events: Iterator[port.StoredEvent], fetch: port.BlobLoader) -> port.DerivedState:
    """Return the claims, projections and blobs of a tree's stream; raise Corrupt if a blob is missing."""
    tree: TreeState | None = None
    claims: list[tuple[str, int]] = []
    blobs: list[tuple[bytes, int]] = []
    found: dict[tuple[str, str], port.Projection] = {}
    for stored in events:
        fact = decode_tree_event(stored)
        claims += [(claim, fact.version) for claim in tree_event_claims(fact.event, tree)]
        blobs += [(hash_, fact.version) for hash_ in _referenced_blobs(fact, fetch)]
        before = tree
        tree = frame_fold.evolve(tree, fact.event, version=fact.version, time_us=fact.time_us)
        found |= {(row.kind, row.id): row for row in changed_tree_rows(before, [fact.event], [tree])}
    return port.DerivedState(tuple(claims), tuple(found.values()), tuple(blobs))


def _referenced_blobs(fact: TreeEvent, fetch: port.BlobLoader) -> list[bytes]:
    needed = codec.frame_event_hashes(fact.event)
    missing = set(needed) - fetch(needed).keys() if needed else set[bytes]()
    if missing:
        raise errors.Corrupt(
            f"a text that event {fact.position:,} refers to is missing.",
            facts={"position": fact.position, "version": fact.version},
        )
    return needed


def overdue_trees_query(now_us: int | None) -> port.Query:
    """Return the query for open trees that have a deadline before a time."""
    return port.Query(kind=TREE_KIND, lookup=ROW_OPEN, until_us=now_us, limit=limits.PAGE_SIZE_MAX)


def session_row(state: SessionState) -> port.Projection:
    return port.Projection(
        kind=SESSION_KIND,
        id=state.id,
        owner=state.user_id or "",
        status=str(state.status),
        time_us=state.active_us,
        lookup=state.root_id or "",
        terms=metadata_terms(state.metadata),
        document=codec.encode_info(session_info(state)),
    )


def deleted_session_row(state: SessionState) -> port.Projection:
    """Return the row of a deleted session. Erasure finds the session and its user by it."""
    return port.Projection(
        kind=DELETED_KIND,
        id=f"{state.version}/{state.id}",
        owner=state.user_id or "",
        time_us=state.active_us,
        lookup=state.id,
    )


def metadata_terms(metadata: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the filter terms of metadata, one for each plain value."""
    if not metadata:
        return ()
    plain = {k: v for k, v in metadata.items() if v is None or isinstance(v, (str, int, float, bool))}
    texts = (codec.canonical_json([key, value]).decode() for key, value in plain.items())
    return tuple(sorted(text for text in texts if len(text) <= limits.FILTER_TERM_CHARS_MAX))


def iter_rows(store: port.Store, tenant: str, query: port.Query) -> Iterator[port.Projection]:
    page = msgspec.structs.replace(query, limit=limits.PAGE_SIZE_MAX)
    while found := store.query_projections(tenant, page):
        yield from found
        page = msgspec.structs.replace(page, after=(found[-1].time_us, found[-1].id))


def rebuild_store(store: port.Store, tell: Callable[[int], None] = lambda _: None) -> port.Rebuilt:
    """Rebuild everything that is derived from the log; raise Corrupt and change nothing if the log is damaged."""
    made = port.Rebuilt()
    try:
        with closing(store.rebuild(derive_stream)) as steps:
            for step in steps:
                if isinstance(step, port.Rebuilt):
                    made = step
                else:
                    tell(step)
    finally:
        # An interrupt can come before the store releases the write lock.
        store.release_write_lock()
    return made


def derive_stream(stream: str, events: Iterator[port.StoredEvent], fetch: port.BlobLoader) -> port.DerivedState:
    """Return the claims, projections and blobs of a stream; raise Corrupt if a blob is missing."""
    if stream.startswith(SESSION_STREAM_PREFIX):
        return _derive_session(events, fetch)
    if stream.startswith(TREE_STREAM_PREFIX):
        return derive_tree(events, fetch)
    raise errors.NewerStore(
        f"the store has a stream {stream!r} of a newer version of Limpet.",
        hint="Nothing was changed. In an up-to-date clone of Limpet: pip install .",
        facts={"stream": stream},
    )


def _derive_session(events: Iterator[port.StoredEvent], fetch: port.BlobLoader) -> port.DerivedState:
    state: SessionState | None = None
    claims: list[tuple[str, int]] = []
    blobs: list[tuple[bytes, int]] = []
    rows: list[port.Projection] = []
    for stored in events:
        texts = referenced_texts((stored,), fetch)
        blobs += [(hash_, stored.version) for hash_ in texts]
        fact = decode_session_event(stored, texts)
        state = session_rules.evolve(state, fact)
        if isinstance(fact.event, MessageAddedEvent):
            claims.append((fact.event.message.id, stored.version))
        if stored.kind == SessionEndedEvent.kind and not stored.erased and _is_deleted(state):
            rows.append(deleted_session_row(state))
    if state is not None and not state.hidden:
        rows.append(session_row(state))
    return port.DerivedState(tuple(claims), tuple(rows), tuple(blobs))


def _is_deleted(state: SessionState) -> bool:
    return state.status is SessionStatus.DELETED
