"""StateIndex for async callers: each verb runs in a thread, so calls of one task can be committed together."""

from __future__ import annotations

from limpet.frames.state_index import StateIndex
from limpet.runtime.asyncio_bridge import awaited


class AsyncStateIndex:
    """Frames of one tenant. The contract of each verb is that of StateIndex."""

    def __init__(self, blocking: StateIndex) -> None:
        self._blocking = blocking
        self.resolvers = blocking.resolvers

    push_frame = awaited(StateIndex.push_frame)
    get_frame = awaited(StateIndex.get_frame)
    update_frame = awaited(StateIndex.update_frame)
    pop_frame = awaited(StateIndex.pop_frame)
    find_top_of_stack = awaited(StateIndex.find_top_of_stack)
    get_frame_ancestry = awaited(StateIndex.get_frame_ancestry)
    get_tree = awaited(StateIndex.get_tree)
    list_frames = awaited(StateIndex.list_frames)
    leaves = awaited(StateIndex.leaves)
    reserve = awaited(StateIndex.reserve)
    release_reservation = awaited(StateIndex.release_reservation)
    record_usage = awaited(StateIndex.record_usage)
    add_context_handle = awaited(StateIndex.add_context_handle)
    add_handle = awaited(StateIndex.add_context_handle)
    remove_handle = awaited(StateIndex.remove_handle)
    add_result = awaited(StateIndex.add_result)
    assemble_context_pack = awaited(StateIndex.assemble_context_pack)
    get_context_pack = awaited(StateIndex.assemble_context_pack)
    pack_of = awaited(StateIndex.pack_of)
    compact_context = awaited(StateIndex.compact_context)
    suspend_frame = awaited(StateIndex.suspend_frame)
    resume_frame = awaited(StateIndex.resume_frame)
    decide_suspension = awaited(StateIndex.decide_suspension)
    get_suspension = awaited(StateIndex.get_suspension)
    list_suspensions = awaited(StateIndex.list_suspensions)
    revoke_suspension = awaited(StateIndex.revoke_suspension)
    begin_tool = awaited(StateIndex.begin_tool)
    end_tool = awaited(StateIndex.end_tool)
    resolve_tool = awaited(StateIndex.resolve_tool)
    resume_actor = awaited(StateIndex.resume_actor)
    expire = awaited(StateIndex.expire)
