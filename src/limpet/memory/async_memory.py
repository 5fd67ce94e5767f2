"""Archive and long-term memory for async callers: the blocking verbs, run in a thread."""

from __future__ import annotations

from typing import Final

from limpet.core.values.validation import Json
from limpet.jobs.index_task import IndexTask
from limpet.memory.api import Memory
from limpet.memory.archive import TOOL_NAME, Archive, ArchiveTool
from limpet.runtime.asyncio_bridge import awaited


class AsyncArchiveTool:
    """A tool that searches the archive of one user."""

    name: Final = TOOL_NAME

    def __init__(self, blocking: ArchiveTool) -> None:
        self._blocking = blocking

    def to_openai(self) -> dict[str, Json]:
        """Return the definition for `tools` of an OpenAI request."""
        return self._blocking.to_openai()

    def to_anthropic(self) -> dict[str, Json]:
        """Return the definition for `tools` of an Anthropic request."""
        return self._blocking.to_anthropic()

    call = awaited(ArchiveTool.call)


class AsyncArchive:
    """Searches the messages of one tenant. Each search is limited to one user."""

    def __init__(self, blocking: Archive) -> None:
        self._blocking = blocking

    def tool(self, user_id: str) -> AsyncArchiveTool:
        """Return a tool that lets a model search what this user said or was told, and nobody else."""
        return AsyncArchiveTool(self._blocking.tool(user_id))

    @property
    def task(self) -> IndexTask:
        """The work of taking the log in, for a worker."""
        return self._blocking.task

    search = awaited(Archive.search)
    open = awaited(Archive.open)
    forget = awaited(Archive.forget)
    catch_up = awaited(Archive.catch_up)
    behind = awaited(Archive.behind)
    size = awaited(Archive.size)


class AsyncMemory:
    """Long-term memory of the users of one tenant. Every call is about one user."""

    def __init__(self, blocking: Memory) -> None:
        self._blocking = blocking

    profile = awaited(Memory.profile)
    search = awaited(Memory.search)
    facts = awaited(Memory.facts)
    forget = awaited(Memory.forget)
    queue = awaited(Memory.queue)
    behind = awaited(Memory.behind)
    replay = awaited(Memory.replay)
