"""The state index for async callers: the same verbs as `index`, awaited.

Each runs in a thread: verbs of a task do not wait for one another, and their commits are made together.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from limpet.core.values import ids
from limpet.engine.index import StateIndex
from limpet.engine.requests import Settings
from limpet.runtime.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    verb: Callable[Concatenate[StateIndex, P], T],
) -> Callable[Concatenate[AsyncStateIndex, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def _run(self: AsyncStateIndex, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(verb, self.blocking, *args, **kwargs)

    return _run


class AsyncStateIndex:
    """Frames of one tenant. The contract of each verb is that of StateIndex."""

    def __init__(
        self, engine: Engine, settings: Settings, factory: ids.Factory = ids.SYSTEM_FACTORY
    ) -> None:
        self.blocking = StateIndex(engine, settings, factory)
        self.resolvers = self.blocking.resolvers

    push_frame = _awaited(StateIndex.push_frame)
    get_frame = _awaited(StateIndex.get_frame)
    update_frame = _awaited(StateIndex.update_frame)
    pop_frame = _awaited(StateIndex.pop_frame)
    find_top_of_stack = _awaited(StateIndex.find_top_of_stack)
    get_frame_ancestry = _awaited(StateIndex.get_frame_ancestry)
    get_tree = _awaited(StateIndex.get_tree)
    list_frames = _awaited(StateIndex.list_frames)
    leaves = _awaited(StateIndex.leaves)
    reserve = _awaited(StateIndex.reserve)
    release_reservation = _awaited(StateIndex.release_reservation)
    record_usage = _awaited(StateIndex.record_usage)
    add_context_handle = _awaited(StateIndex.add_context_handle)
    add_handle = _awaited(StateIndex.add_context_handle)
    remove_handle = _awaited(StateIndex.remove_handle)
    add_result = _awaited(StateIndex.add_result)
    assemble_context_pack = _awaited(StateIndex.assemble_context_pack)
    get_context_pack = _awaited(StateIndex.assemble_context_pack)
    pack_of = _awaited(StateIndex.pack_of)
    compact_context = _awaited(StateIndex.compact_context)
    suspend_frame = _awaited(StateIndex.suspend_frame)
    resume_frame = _awaited(StateIndex.resume_frame)
    decide_suspension = _awaited(StateIndex.decide_suspension)
    get_suspension = _awaited(StateIndex.get_suspension)
    list_suspensions = _awaited(StateIndex.list_suspensions)
    revoke_suspension = _awaited(StateIndex.revoke_suspension)
    begin_tool = _awaited(StateIndex.begin_tool)
    end_tool = _awaited(StateIndex.end_tool)
    resolve_tool = _awaited(StateIndex.resolve_tool)
    resume_actor = _awaited(StateIndex.resume_actor)
    expire = _awaited(StateIndex.expire)
