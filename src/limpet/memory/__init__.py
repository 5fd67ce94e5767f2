"""Long-term memory of users, and the searchable archive of their conversations.

Both are derived from the log and can be rebuilt from it. Every operation is about one user of one
tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from limpet.core.values.memory_records import (
        ArchivedMessage,
        Fact,
        FactExtractor,
        FactKind,
        History,
        Hit,
        MemoryResult,
        Profile,
        ProfilePrompt,
        SearchHits,
        Source,
        TenantUser,
    )
    from limpet.jobs.index_task import IndexTask
    from limpet.jobs.offload import QueuedOffload
    from limpet.memory.api import Memory
    from limpet.memory.archive import Archive, ArchiveTool, MessageReference
    from limpet.memory.async_memory import AsyncArchive, AsyncArchiveTool, AsyncMemory
    from limpet.memory.builtin import BuiltInMemory
    from limpet.memory.http import HTTPMemory
    from limpet.memory.index_store import DropRows, ExpectedRows, IndexStore, PutRow, VolatileIndexStore
    from limpet.memory.port import MemoryEngine
    from limpet.memory.vectors.embedder import Embedder

__all__ = [
    "Archive",
    "ArchiveTool",
    "ArchivedMessage",
    "AsyncArchive",
    "AsyncArchiveTool",
    "AsyncMemory",
    "BuiltInMemory",
    "DropRows",
    "Embedder",
    "ExpectedRows",
    "Fact",
    "FactExtractor",
    "FactKind",
    "HTTPMemory",
    "History",
    "Hit",
    "IndexStore",
    "IndexTask",
    "Memory",
    "MemoryEngine",
    "MemoryResult",
    "MessageReference",
    "Profile",
    "ProfilePrompt",
    "PutRow",
    "QueuedOffload",
    "SearchHits",
    "Source",
    "TenantUser",
    "VolatileIndexStore",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        __all__,
        "limpet.core.values.memory_records",
        "limpet.memory.port",
        "limpet.memory.vectors.embedder",
        "limpet.jobs.offload",
        "limpet.jobs.index_task",
        "limpet.memory.index_store",
        "limpet.memory.api",
        "limpet.memory.archive",
        "limpet.memory.async_memory",
        "limpet.memory.builtin",
        "limpet.memory.http",
    )
