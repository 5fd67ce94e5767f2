"""Frames as they were: a tree folded up to a position of the log, and what its model had seen."""

from __future__ import annotations

import msgspec

from limpet import errors, limits
from limpet.core.rules import frame_fold as rules
from limpet.core.values import events as e
from limpet.core.values.frame_state import Frame, TreeState
from limpet.core.values.messages import checked_id
from limpet.core.values.pack_parts import PackSelection
from limpet.core.windows.pack import ContextPack
from limpet.engine import packs
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine


class FrameDifference(msgspec.Struct, frozen=True):
    """A frame at two moments; None where it was not there. `changed` names the fields that differ."""

    before: Frame | None
    after: Frame | None

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the fields that differ; all of them if it was not there at one of the moments."""
        names = [
            "context_handles" if name == "handle_pages" else name
            for name in Frame.__struct_fields__
        ]
        return tuple(
            name
            for name in names
            if getattr(self.before, name, None) != getattr(self.after, name, None)
        )


class PastTree(msgspec.Struct, frozen=True):
    """A tree as it was: its open frames, those that were closed, and the last pack of each frame."""

    tree: TreeState
    closed: dict[str, Frame]
    packs: dict[str, PackSelection]

    def frame(self, frame_id: str) -> Frame | None:
        """Return a frame as it was, open or closed; None if it was not there."""
        return self.tree.frames.get(frame_id) or self.closed.get(frame_id)


def tree_at(engine: Engine, tenant: str, frame_id: str, position: int) -> PastTree:
    """Return the tree of a frame when the log was at a position; raise FrameNotFound if it was not there.

    Cost: the events of the tree up to there.
    """
    engine.check()
    root = engine.trees.root(tenant, checked_id("a frame's id", frame_id))
    stream = state_cache.tree_stream(root or "")
    until = engine.store.version(tenant, stream, position=position) if root else 0
    tree, after = None, 0
    closed: dict[str, Frame] = {}
    seen: dict[str, PackSelection] = {}
    while after < until:
        page = engine.store.read(tenant, stream, after=after, until=until, limit=limits.READ_CHUNK)
        if not page:
            raise errors.Corrupt(f"the log of {stream} ends before version {until:,}.")
        for fact in map(state_cache.decode_tree_event, page):
            tree = rules.evolve(tree, fact.event, version=fact.version, time_us=fact.time_us)
            if isinstance(fact.event, e.FramePoppedEvent):
                closed[fact.event.frame_id] = tree.closed[-1]
            if isinstance(fact.event, e.FrameUpdatedEvent) and fact.event.pack is not None:
                seen[fact.event.frame_id] = fact.event.pack
        after = page[-1].version
    if tree is None or (frame_id not in tree.frames and frame_id not in closed):
        raise errors.FrameNotFound(
            f"there was no frame {frame_id!r} at position {position:,}.",
            facts={"frame": frame_id, "position": position},
        )
    return PastTree(tree, closed, seen)


def frame_at(engine: Engine, tenant: str, frame_id: str, position: int) -> Frame:
    """Return a frame as it was, open or closed; raise FrameNotFound if it was not there."""
    found = tree_at(engine, tenant, frame_id, position).frame(frame_id)
    assert found is not None, "its tree was found by it"
    return found


def pack_at(engine: Engine, tenant: str, frame_id: str, position: int) -> ContextPack:
    """Return what the model of a frame had seen last by then, byte for byte; raise NotFound if nothing was."""
    chosen = tree_at(engine, tenant, frame_id, position).packs.get(frame_id)
    if chosen is None:
        raise errors.NotFound(
            f"no pack of the frame {frame_id!r} was recorded by position {position:,}.",
            facts={"frame": frame_id, "position": position},
        )
    packs.check_talk(engine, tenant, chosen)
    return packs.rebuilt_pack(engine.store, tenant, chosen)


def frame_difference(
    engine: Engine, tenant: str, frame_id: str, first: int, last: int
) -> FrameDifference:
    """Return a frame at two positions; raise FrameNotFound if it was there at neither."""
    found: list[Frame | None] = []
    for position in (first, last):
        try:
            found.append(frame_at(engine, tenant, frame_id, position))
        except errors.FrameNotFound:
            found.append(None)
    if found == [None, None]:
        return FrameDifference(None, frame_at(engine, tenant, frame_id, last))
    return FrameDifference(*found)
