"""Fails frames whose time is up or whose session has ended, and expires suspensions."""

from __future__ import annotations

from collections.abc import Iterator

from limpet import errors
from limpet.core.rules import frame_rules, session_rules
from limpet.core.values import commands, events
from limpet.core.values.commands import CommandRequest
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.projections import iter_rows
from limpet.stores import port

_EXPIRY_REASONS = (
    frame_rules.REASON_OVERDUE, frame_rules.REASON_ORPHANED, frame_rules.REASON_PARENT_CLOSED,
)  # fmt: skip


def expire_frames(engine: Engine, tenant: str, now_us: int) -> list[str]:
    """Fail overdue and orphaned frames and expire suspensions; return the ids of the frames that changed."""
    expired: list[str] = []
    seen: set[str] = set()
    while True:
        rows = engine.store.query_projections(tenant, state_cache.overdue_trees_query(now_us))
        fresh = [row.id for row in rows if row.id not in seen]
        if not fresh:
            break
        seen.update(fresh)
        for root_id in fresh:
            expired += _expire_tree(engine, tenant, root_id, now_us, ())
    for root_id, ended in _orphaned_trees(engine, tenant):
        expired += _expire_tree(engine, tenant, root_id, now_us, ended)
    return expired


def _orphaned_trees(engine: Engine, tenant: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield trees with open frames whose sessions have ended, and these sessions."""
    query = port.Query(kind=state_cache.TREE_KIND, lookup=state_cache.ROW_OPEN)
    for row in iter_rows(engine.store, tenant, query):
        tree = engine.trees.current(tenant, row.id)
        frames = tree.frames.values() if tree else ()
        sessions = {frame.scope.session_id for frame in frames} - {None}
        ended = tuple(sorted(name for name in sessions if name and _has_ended(engine, tenant, name)))
        if ended:
            yield row.id, ended


def _has_ended(engine: Engine, tenant: str, session_id: str) -> bool:
    """Whether a conversation takes no more messages, neither in this session nor in a continuation."""

    def find(name: str) -> SessionState | None:
        return engine.states.current(tenant, name)

    state = find(session_id)
    while state is not None and not state.hidden:
        following = session_rules.find_continuation(state, find)
        if following is None:
            break
        state = following
    return state is not None and state.status is not SessionStatus.ACTIVE


def _expire_tree(engine: Engine, tenant: str, root_id: str, now_us: int, orphaned: tuple[str, ...]) -> list[str]:
    tree = engine.trees.current(tenant, root_id)
    command = commands.ExpireTree(frame_id=root_id, now_us=now_us, orphaned=orphaned)
    try:
        engine.run(CommandRequest(tenant=tenant, command=command))
    except (errors.InvalidTransition, errors.FrameNotFound):
        return []
    stream, after = state_cache.tree_stream(root_id), tree.version if tree else 0
    expired: list[str] = []
    while page := engine.store.read(tenant, stream, after=after):
        facts = map(state_cache.decode_tree_event, page)
        expired += [fact.event.frame_id for fact in facts if _is_expiry(fact.event)]
        after = page[-1].version
    return expired


def _is_expiry(event: events.FrameEvent) -> bool:
    match event:
        case events.FramePoppedEvent(reason=reason):
            return reason in _EXPIRY_REASONS
        case events.FrameUpdatedEvent(suspension=changed):
            return changed is not None
        case _:
            return False
