"""AsyncStateIndex: the verbs of StateIndex for async callers.

Each call runs in a thread, so calls of one task can be committed together.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from limpet.core.values import ids
from limpet.frames.state_index import StateIndex
from limpet.runtime.engine import Engine
from limpet.sessions.requests import Settings

P = ParamSpec("P")
T = TypeVar("T")


def _async_verb(
    verb: Callable[Concatenate[StateIndex, P], T],
) -> Callable[Concatenate[AsyncStateIndex, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def _run(self: AsyncStateIndex, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(verb, self.blocking, *args, **kwargs)

    return _run


class AsyncStateIndex:
    """Frames of one tenant. The contract of each verb is that of StateIndex."""

    def __init__(self, engine: Engine, settings: Settings, factory: ids.Factory = ids.SYSTEM_FACTORY) -> None:
        self.blocking = StateIndex(engine, settings, factory)
        self.resolvers = self.blocking.resolvers

    push_frame = _async_verb(StateIndex.push_frame)
    get_frame = _async_verb(StateIndex.get_frame)
    update_frame = _async_verb(StateIndex.update_frame)
    pop_frame = _async_verb(StateIndex.pop_frame)
    find_top_of_stack = _async_verb(StateIndex.find_top_of_stack)
    get_frame_ancestry = _async_verb(StateIndex.get_frame_ancestry)
    get_tree = _async_verb(StateIndex.get_tree)
    list_frames = _async_verb(StateIndex.list_frames)
    leaves = _async_verb(StateIndex.leaves)
    reserve = _async_verb(StateIndex.reserve)
    release_reservation = _async_verb(StateIndex.release_reservation)
    record_usage = _async_verb(StateIndex.record_usage)
    add_context_handle = _async_verb(StateIndex.add_context_handle)
    add_handle = _async_verb(StateIndex.add_context_handle)
    remove_handle = _async_verb(StateIndex.remove_handle)
    add_result = _async_verb(StateIndex.add_result)
    assemble_context_pack = _async_verb(StateIndex.assemble_context_pack)
    get_context_pack = _async_verb(StateIndex.assemble_context_pack)
    pack_of = _async_verb(StateIndex.pack_of)
    compact_context = _async_verb(StateIndex.compact_context)
    suspend_frame = _async_verb(StateIndex.suspend_frame)
    resume_frame = _async_verb(StateIndex.resume_frame)
    decide_suspension = _async_verb(StateIndex.decide_suspension)
    get_suspension = _async_verb(StateIndex.get_suspension)
    list_suspensions = _async_verb(StateIndex.list_suspensions)
    revoke_suspension = _async_verb(StateIndex.revoke_suspension)
    begin_tool = _async_verb(StateIndex.begin_tool)
    end_tool = _async_verb(StateIndex.end_tool)
    resolve_tool = _async_verb(StateIndex.resolve_tool)
    resume_actor = _async_verb(StateIndex.resume_actor)
    expire = _async_verb(StateIndex.expire)
