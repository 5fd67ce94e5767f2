"""A peer that stores agent conversations: the SQLite session of the OpenAI Agents SDK."""

import asyncio
import contextlib
import time
from pathlib import Path

from agents.memory.sqlite_session import SQLiteSession

from benchmarks import harness
from benchmarks.loads import Load


def appender(path: Path, load: Load, closing: contextlib.ExitStack) -> harness.Slice:
    """Append one item at a time to one session, in one event loop that lives throughout."""
    loop = asyncio.new_event_loop()
    closing.callback(loop.close)
    session = SQLiteSession("bench", path)
    closing.callback(session.close)
    messages = load.laid_end_to_end()

    async def append(seconds: float) -> tuple[int, float]:
        done = 0
        began = now = time.perf_counter()
        until = began + seconds
        while now < until:
            await session.add_items([next(messages)])
            done += 1
            now = time.perf_counter()
        return done, now - began

    return lambda seconds: loop.run_until_complete(append(seconds))
