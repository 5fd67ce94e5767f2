"""Caches of folded states, and everything else that is derived from events: rows, claims, blobs.

The caches hold session states and frame trees, updated from newer events. A rebuild of a tenant clears
them. A cached state is used without reading the store only by the holder of the write lock, and only if
no other process can have written since. The module also names streams and decodes stored events.
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
    """The cache of one kind of states over one store, at most `size` of them.

    A state may have begun with a snapshot, which a rebuild of the store drops: then all are forgotten.
    """

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
        """Return the name of a state's stream."""

    @abstractmethod
    def decode_snapshot(self, snapshot: port.Snapshot) -> S | None:
        """Return the state of a snapshot; None if it has to be folded anew."""

    @abstractmethod
    def apply_events(self, tenant: str, state: S | None, page: Sequence[port.StoredEvent]) -> S | None:
        """Return the state after some more of its events."""

    def write_lock_acquired(self, *, alone: bool) -> None:
        """A turn begins; unless `alone`, others may have added to any stream since the last one."""
        self._unlocked_rebuilds = None
        if not alone:
            self._epoch += 1

    def begin_unlocked_plan(self, tenants: Iterable[str]) -> None:
        """What follows is decided before the turn, on what is remembered of some tenants."""
        self._unlocked_rebuilds = {tenant: self.check_rebuilt(tenant) for tenant in tenants}

    def is_unlocked_plan_stale(self) -> bool:
        """Whether what was decided early rests on what a rebuild has put in question since."""
        early = self._unlocked_rebuilds or {}
        return any(rebuilt != self._store.cache_epoch(tenant) for tenant, rebuilt in early.items())

    def check_rebuilt(self, tenant: str) -> int:
        """Forget everything if the tenant was rebuilt; return how often it was.

        Raises UnsafeStore if that was because it is being copied here: who has had it open is kept out as well.
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
        """Forget what else rests on what is derived: a tenant was rebuilt."""

    def get_locked(self, tenant: str, id_: str) -> S | None:
        """Return a state for the holder of the turn, who may trust what it wrote itself."""
        known = self._cached.get((tenant, id_))
        if known is not None and known[1] == self._epoch:
            return known[0]
        state = self.current(tenant, id_)
        if state is not None:
            self.put(tenant, state)
        return state

    def cached_locked(self, tenant: str, id_: str) -> S | None:
        """Return a state that the holder of the turn may trust without a look at the store; None if it has none."""
        known = self._cached.get((tenant, id_))
        return known[0] if known is not None and known[1] == self._epoch else None

    def cached(self, tenant: str, id_: str) -> S | None:
        """Return a state as it was when last heard of, None if it is not remembered."""
        found = self._cached.get((tenant, id_))
        return found[0] if found else None

    def current(self, tenant: str, id_: str) -> S | None:
        """Return a state as of now, None if it never existed. Cost: the tail, not the history."""
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
        """Remember a state that the holder of the turn read or wrote."""
        early = self._unlocked_rebuilds.get(tenant) if self._unlocked_rebuilds else None
        self._insert(tenant, state, self._epoch, early)

    def _insert(self, tenant: str, state: S, epoch: int, rebuilt: int | None) -> None:
        """Remember a state, unless the store was rebuilt since the one it goes back to was read."""
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
    """Return the large texts that events refer to, by hash, all fetched in one look."""
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
    """Return stored events as the facts they hold; raise Corrupt with its place for one that can't be read."""
    texts = referenced_texts(page, partial(store.blobs, tenant))
    return [decode_session_event(stored, texts) for stored in page]


def messages_of(store: port.Store, tenant: str, page: Sequence[port.StoredEvent]) -> list[Message]:
    """Return the messages that stored events added; events of other kinds are passed over."""
    added = [stored for stored in page if stored.kind == MessageAddedEvent.kind]
    found = (fact.event for fact in decode_session_events(store, tenant, added))
    return [event.message for event in found if isinstance(event, MessageAddedEvent)]


def decode_session_event(stored: port.StoredEvent, texts: Mapping[bytes, str]) -> RecordedEvent:
    """Return a stored event as the fact it holds; raise Corrupt with its place if it can't be read."""
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
    """Return the error for a stream that ends before a version that it had: it was erased, or it is damaged."""
    facts_ = {"stream": stream, "until": until}
    if store.version(tenant, stream) < until:
        return errors.Erased("what this was about was erased.", facts=facts_)
    return errors.Corrupt(f"the log of {stream} ends before its state does.", facts=facts_)


def _event_location(stored: port.StoredEvent) -> dict[str, Json]:
    return {"position": stored.position, "stream": stored.stream, "version": stored.version}


class SessionStateCache(StateCache[SessionState]):
    """The states of sessions; `forget_too` forgets what others keep that rests on them."""

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
        """Return the session's state as it was at a version that it has or had; None if it has not."""
        stream = session_stream(session_id)
        state = self._snapshot(tenant, stream)
        if state is None or state.version > version:
            state = None
        state = self._fold(tenant, stream, state, at=version)
        if state is None or state.version != version:
            return None
        return msgspec.structs.replace(state, id=session_id)

    def cached_chain_end(self, tenant: str, state: SessionState) -> str | None:
        """Return the last known session of a conversation; it may have been continued since."""
        return self._chain_ends.get((tenant, state.id, state.version)) if state.continuations else None

    def put_chain_end(self, tenant: str, state: SessionState, last: str) -> None:
        """Remember where a conversation goes on, as long as the session itself does not change."""
        if last != state.id:
            if len(self._chain_ends) >= self._size:
                self._chain_ends.clear()
            self._chain_ends[tenant, state.id, state.version] = last

    def clear_chain_ends(self) -> None:
        """A session leaves its chain: a conversation may go on elsewhere than remembered."""
        self._chain_ends.clear()


TREE_STREAM_PREFIX: Final = "frames/"
FRAME_KIND: Final = "frame"
TREE_KIND: Final = "tree"
SUSPENSION_KIND: Final = "suspension"
ROW_OPEN: Final = "open"
ROW_WAITING: Final = "waiting"

NEVER_OVERDUE_US: Final = 1 << 61
"""The alarm of a tree in which nothing can be overdue."""


def tree_stream(root_id: str) -> str:
    return TREE_STREAM_PREFIX + root_id


class TreeEvent(msgspec.Struct, frozen=True):
    """An event of a frame tree as it stands in the log: what happened, where in the feed and stream, and when."""

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
        """Empty: it happened to no session."""
        return ""


def decode_tree_event(stored: port.StoredEvent) -> TreeEvent:
    """Return a stored event as the fact it holds; raise Corrupt with its place if it can't be read."""
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
        """Return the tree of a frame if the holder of the turn knows it; then nobody has changed it since."""
        known = self._cached.get((tenant, root_in_frame_id(frame_id) or frame_id))
        if known is None:
            known = self._cached.get((tenant, self._roots.get((tenant, frame_id), "")))
        return known[0] if known is not None and known[1] == self._epoch else None

    def put_root(self, tenant: str, frame_id: str, root_id: str) -> None:
        """Remember to which tree a frame belongs."""
        with self._mutex:
            self._roots[tenant, frame_id] = root_id
            while len(self._roots) > self._size * 8:
                self._roots.popitem(last=False)

    def find_frame(self, tenant: str, frame_id: str) -> Frame | None:
        """Return a frame as of now, open or closed; None if there never was one."""
        root = self.root_of(tenant, frame_id)
        tree = self.current(tenant, root) if root is not None else None
        if tree is None:
            return self.frame_from_row(tenant, frame_id)
        found = tree.frames.get(frame_id) or tree.closed_frame(frame_id)
        return found or self.frame_from_row(tenant, frame_id)

    def frame_from_row(self, tenant: str, frame_id: str) -> Frame | None:
        """Return a frame that was closed and has left its tree; None if there is no such frame."""
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
    """Return the root that a child's id begins with, if Limpet has given it; else nothing, or any text."""
    return frame_id.rpartition(".")[0]


_EVENTS_WITHOUT_ROWS: Final = (
    events.HandleAddedEvent,
    events.ResultAddedEvent,
    events.FrameCompactedEvent,
    events.TreeErasedEvent,
)
"""What happens within a frame, and changes nothing by which anything is found."""


def changed_tree_rows(
    before: TreeState | None, events: Sequence[events.FrameEvent], after: Sequence[TreeState]
) -> list[port.Projection]:
    """Return the rows that change with some events: one tree before them, and one after each.

    An open frame is in the state of its tree; it has a row of its own only if it can't be found otherwise.
    """
    last, event = after[-1], events[0]
    # One step of a tree from which nothing has just gone: most often it is found as it was.
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
    """Return the row by which a closed frame is found, or an open one whose id does not tell its tree."""
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
    """Return the row of a tree: while it is open, by its actors and sessions, and by when something is overdue."""
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
    """Return the texts by which trees with frames of a scope are found."""
    session = () if scope.session_id is None else (f"session:{scope.session_id}",)
    return (f"actor:{scope.actor_id}", *session)


def suspension_row(suspension: Suspension) -> port.Projection:
    """Return the row by which a suspension is found, and listed while it waits."""
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
    """Return what an event claims in its stream, given the tree before it."""
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
    """Return everything that the store keeps beside a tree's log; raise Corrupt if a blob is not there."""
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
            f"a text that event {fact.position:,} refers to is not there.",
            facts={"position": fact.position, "version": fact.version},
        )
    return needed


def overdue_trees_query(now_us: int | None) -> port.Query:
    """A page of open trees in which something is overdue by a moment."""
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
    """Return the row of a deleted session, by which it and its user are found until it is erased."""
    return port.Projection(
        kind=DELETED_KIND,
        id=f"{state.version}/{state.id}",
        owner=state.user_id or "",
        time_us=state.active_us,
        lookup=state.id,
    )


def metadata_terms(metadata: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the filter terms of metadata: one text for each plain value."""
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
    """Have a store derive everything again; raise Corrupt, and change nothing, if the log is damaged."""
    made = port.Rebuilt()
    try:
        with closing(store.rebuild(derive_stream)) as steps:
            for step in steps:
                if isinstance(step, port.Rebuilt):
                    made = step
                else:
                    tell(step)
    finally:
        # An interrupt can come before the turn was given back.
        store.release_write_lock()
    return made


def derive_stream(stream: str, events: Iterator[port.StoredEvent], fetch: port.BlobLoader) -> port.DerivedState:
    """Return the claims, projections and blobs of a stream; raise Corrupt if a blob is missing."""
    if stream.startswith(SESSION_STREAM_PREFIX):
        return _derive_session(events, fetch)
    if stream.startswith(TREE_STREAM_PREFIX):
        return derive_tree(events, fetch)
    raise errors.NewerStore(
        f"the store has a stream {stream!r}, which this Limpet knows nothing of.",
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
