"""Frame trees: their states, the rows by which frames and suspensions are found, and what the log says of them."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec as wire
from limpet.core.rules import frame_fold as rules
from limpet.core.values import events as e
from limpet.core.values.frame_state import (
    Decision,
    Frame,
    Scope,
    Suspension,
    SuspensionStatus,
    TreeState,
)
from limpet.engine.folds import Folds
from limpet.stores import port
from limpet.stores.erasure import is_erased_stream

PREFIX: Final = "frames/"
FRAME: Final = "frame"
TREE: Final = "tree"
SUSPENSION: Final = "suspension"
OPEN: Final = "open"
WAITING: Final = "waiting"

NEVER_US: Final = 1 << 61
"""The alarm of a tree in which nothing can be overdue."""


def stream_of(root_id: str) -> str:
    """Return the name of a tree's stream."""
    return PREFIX + root_id


class TreeEvent(msgspec.Struct, frozen=True):
    """An event of a frame tree as it stands in the log: what happened, where in the feed and stream, and when."""

    event: e.FrameEvent
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


def recorded(stored: port.StoredEvent) -> TreeEvent:
    """Return a stored event as the fact it holds; raise Corrupt with its place if it can't be read."""
    if stored.payload is None:
        raise errors.Erased(f"the event at position {stored.position:,} was erased.")
    try:
        event = wire.decode_frame_event(stored.kind, stored.schema, stored.payload)
    except errors.Corrupt as error:
        error.facts |= {
            "position": stored.position, "stream": stored.stream, "version": stored.version,
        }  # fmt: skip
        raise
    root_id = "" if is_erased_stream(stored.stream) else stored.stream.removeprefix(PREFIX)
    return TreeEvent(event, root_id, stored.position, stored.version, stored.time_us)


class Trees(Folds[TreeState]):
    """The states of frame trees."""

    def __init__(self, store: port.Store, size: int) -> None:
        super().__init__(store, size)
        self._roots: OrderedDict[tuple[str, str], str] = OrderedDict()

    def stream(self, id_: str) -> str:
        return stream_of(id_)

    def decoded(self, snapshot: port.Snapshot) -> TreeState | None:
        return wire.decode_tree(snapshot.state) if snapshot.fold == wire.TREE_FOLD_VERSION else None

    def folded(
        self,
        tenant: str,  # noqa: ARG002 - a tree needs nothing but its events
        state: TreeState | None,
        page: Sequence[port.StoredEvent],
    ) -> TreeState | None:
        for fact in map(recorded, page):
            state = rules.evolve(state, fact.event, version=fact.version, time_us=fact.time_us)
        return state

    def forget_more(self) -> None:
        self._roots.clear()

    def root(self, tenant: str, frame_id: str) -> str | None:
        """Return the root of a frame's tree, which never changes; None if there is no such frame."""
        self.look(tenant)
        found = self._roots.get((tenant, frame_id))
        if found is None:
            found = self._root(tenant, frame_id)
            if found is not None:
                self.keep_root(tenant, frame_id, found)
        return found

    def _root(self, tenant: str, frame_id: str) -> str | None:
        row = self._store.find(tenant, FRAME, frame_id)
        if row is not None:
            return wire.decode_frame(row.document).root_id
        if self._store.find(tenant, TREE, frame_id) is not None:
            return frame_id
        root = root_in(frame_id)
        tree = self.current(tenant, root) if root else None
        there = tree is not None and (frame_id in tree.frames or tree.closed_frame(frame_id))
        return root if there else None

    def tree_in_turn(self, tenant: str, frame_id: str) -> TreeState | None:
        """Return the tree of a frame if the holder of the turn knows it; then nobody has changed it since."""
        known = self._cached.get((tenant, root_in(frame_id) or frame_id))
        if known is None:
            known = self._cached.get((tenant, self._roots.get((tenant, frame_id), "")))
        return known[0] if known is not None and known[1] == self._epoch else None

    def keep_root(self, tenant: str, frame_id: str, root_id: str) -> None:
        """Remember to which tree a frame belongs."""
        with self._mutex:
            self._roots[tenant, frame_id] = root_id
            while len(self._roots) > self._size * 8:
                self._roots.popitem(last=False)

    def find(self, tenant: str, frame_id: str) -> Frame | None:
        """Return a frame as of now, open or closed; None if there never was one."""
        root = self.root(tenant, frame_id)
        tree = self.current(tenant, root) if root is not None else None
        if tree is None:
            return self.shelved(tenant, frame_id)
        found = tree.frames.get(frame_id) or tree.closed_frame(frame_id)
        return found or self.shelved(tenant, frame_id)

    def shelved(self, tenant: str, frame_id: str) -> Frame | None:
        """Return a frame that was closed and has left its tree; None if there is no such frame."""
        row = self._store.find(tenant, FRAME, frame_id)
        return wire.decode_frame(row.document) if row else None

    def open_tree(self, tenant: str, frame_id: str) -> TreeState | None:
        """Return the tree in which a frame is open; None if it is closed or there is none."""
        root = self.root(tenant, frame_id)
        tree = self.current(tenant, root) if root is not None else None
        return tree if tree is not None and frame_id in tree.frames else None


def unknown(frame_id: str) -> errors.FrameNotFound:
    """Return the error for a frame that there is none of."""
    return errors.FrameNotFound(f"there is no frame {frame_id!r}.", facts={"frame": frame_id})


def root_in(frame_id: str) -> str:
    """Return the root that a child's id begins with, if Limpet has given it; else nothing, or any text."""
    return frame_id.rpartition(".")[0]


_IN_A_FRAME: Final = (
    e.HandleAddedEvent,
    e.ResultAddedEvent,
    e.FrameCompactedEvent,
    e.TreeErasedEvent,
)
"""What happens within a frame, and changes nothing by which anything is found."""


def rows(
    before: TreeState | None, events: Sequence[e.FrameEvent], after: Sequence[TreeState]
) -> list[port.Projection]:
    """Return the rows that change with some events: one tree before them, and one after each.

    An open frame is in the state of its tree; it has a row of its own only if it can't be found otherwise.
    """
    last, event = after[-1], events[0]
    # One step of a tree from which nothing has just gone: most often it is found as it was.
    plain = before is not None and len(events) == 1 and not before.shelves
    if plain and isinstance(event, _IN_A_FRAME):
        return []
    known: Mapping[str, Frame] = before.frames if before else {}
    made: list[port.Projection] = []
    for tree in after:
        if tree.shelves:
            made += map(frame_row, tree.closed)
    stands = False
    for frame_id, frame in last.frames.items():
        if frame_id not in known and last.root_id not in (frame_id, root_in(frame_id)):
            made.append(frame_row(frame))
        stands = stands or frame.suspension is not None
    for frame in known.values():
        stands = stands or frame.suspension is not None
    if stands:
        steps = (known, *(tree.frames for tree in after))
        made += _suspensions(steps, last.updated_us)
    if (
        before is None
        or before.alarm() != last.alarm()
        or not ((plain and _keeps_scopes(event, last)) or before.scopes() == last.scopes())
    ):
        made.append(tree_row(last))
    return made


def _keeps_scopes(event: e.FrameEvent, last: TreeState) -> bool:
    """Whether it is plain that an event brings no scope into a tree and takes none away."""
    if isinstance(event, e.FramePushedEvent):
        return event.scope == last.frames[event.parent_frame_id or event.frame_id].scope
    return bool(last.frames)


def _suspensions(steps: Sequence[Mapping[str, Frame]], time_us: int) -> list[port.Projection]:
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
            if before is not None and (
                standing is None or standing.suspension_id != before.suspension_id
            ):
                made[before.suspension_id] = suspension_row(ended(before, frame, time_us))
    return list(made.values())


def ended(before: Suspension, frame: Frame | None, time_us: int) -> Suspension:
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
        kind=FRAME,
        id=frame.frame_id,
        owner=frame.scope.actor_id,
        status=OPEN if frame.open else str(frame.status),
        time_us=frame.created_us,
        lookup=terms_of(frame.scope)[-1] if frame.scope.session_id is not None else "",
        document=wire.encode_frame(frame),
    )


def tree_row(tree: TreeState) -> port.Projection:
    """Return the row of a tree: while it is open, by its actors and sessions, and by when something is overdue."""
    if not tree.frames:
        return port.Projection(kind=TREE, id=tree.root_id, status="closed")
    alarm = tree.alarm()
    return port.Projection(
        kind=TREE,
        id=tree.root_id,
        status=OPEN,
        time_us=NEVER_US if alarm is None else alarm,
        lookup=OPEN,
        terms=tuple(sorted({term for scope in tree.scopes() for term in terms_of(scope)})),
    )


def terms_of(scope: Scope) -> tuple[str, ...]:
    """Return the texts by which trees with frames of a scope are found."""
    session = () if scope.session_id is None else (f"session:{scope.session_id}",)
    return (f"actor:{scope.actor_id}", *session)


def suspension_row(suspension: Suspension) -> port.Projection:
    """Return the row by which a suspension is found, and listed while it waits."""
    waits = suspension.status is SuspensionStatus.WAITING
    return port.Projection(
        kind=SUSPENSION,
        id=suspension.suspension_id,
        owner=suspension.scope.actor_id,
        status=str(suspension.status),
        time_us=suspension.suspended_us,
        lookup=WAITING if waits else "",
        document=wire.encode_suspension(suspension),
    )


def claims_of(event: e.FrameEvent, tree: TreeState | None) -> list[str]:
    """Return what an event claims in its stream, given the tree before it."""
    match event:
        case e.FramePushedEvent():
            return [f"frame:{event.frame_id}"] if event.named else []
        case e.FrameUpdatedEvent(tool=tool) if tool is not None:
            frame = tree.frames.get(event.frame_id) if tree else None
            known = frame is not None and frame.tool(tool.tool_id) is not None
            if tool.status in rules.SETTLED_TOOL_STATUSES:
                return [f"end:{tool.tool_id}"]
            return [] if known else [f"tool:{tool.tool_id}"]
        case _:
            return []


def derived(events: Iterator[port.StoredEvent], fetch: port.BlobLoader) -> port.DerivedState:
    """Return everything that the store keeps beside a tree's log; raise Corrupt if a blob is not there."""
    tree: TreeState | None = None
    claims: list[tuple[str, int]] = []
    blobs: list[tuple[bytes, int]] = []
    found: dict[tuple[str, str], port.Projection] = {}
    for stored in events:
        fact = recorded(stored)
        claims += [(claim, fact.version) for claim in claims_of(fact.event, tree)]
        blobs += [(hash_, fact.version) for hash_ in _present(fact, fetch)]
        before = tree
        tree = rules.evolve(tree, fact.event, version=fact.version, time_us=fact.time_us)
        found |= {(row.kind, row.id): row for row in rows(before, [fact.event], [tree])}
    return port.DerivedState(tuple(claims), tuple(found.values()), tuple(blobs))


def _present(fact: TreeEvent, fetch: port.BlobLoader) -> list[bytes]:
    needed = wire.frame_event_hashes(fact.event)
    missing = set(needed) - fetch(needed).keys() if needed else set[bytes]()
    if missing:
        raise errors.Corrupt(
            f"a text that event {fact.position:,} refers to is not there.",
            facts={"position": fact.position, "version": fact.version},
        )
    return needed


def alarms(now_us: int | None) -> port.Query:
    """A page of open trees in which something is overdue by a moment."""
    return port.Query(kind=TREE, lookup=OPEN, until_us=now_us, limit=limits.PAGE_SIZE_MAX)
