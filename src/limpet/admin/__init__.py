"""Administration: the log, checks, backup, migration, export, import, retention, erasure and the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from limpet.admin.async_log import AsyncAdmin, AsyncEvents
    from limpet.admin.export import Exported, Sink
    from limpet.admin.foreign_files import SkippedSource
    from limpet.admin.import_ import Format, Imported
    from limpet.admin.log import Admin, Events, LogEvent, Progress
    from limpet.admin.migrate import Migrated
    from limpet.admin.retention import KeptSession, Retained
    from limpet.core.values.events import Receipt
    from limpet.jobs.tasks import Heartbeat
    from limpet.jobs.worker import Done, TaskStatus, Worker
    from limpet.stores.port import Rebuilt, Report

__all__ = [
    "Admin", "AsyncAdmin", "AsyncEvents", "Done", "Events", "Exported", "Format", "Heartbeat", "Imported",
    "KeptSession", "LogEvent", "Migrated", "Progress", "Rebuilt", "Receipt", "Report", "Retained", "Sink",
    "SkippedSource", "TaskStatus", "Worker",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__, __all__, "limpet.core.values.events", "limpet.stores.port", "limpet.admin.log",
        "limpet.admin.async_log", "limpet.admin.export", "limpet.admin.import_", "limpet.admin.foreign_files",
        "limpet.admin.migrate", "limpet.admin.retention", "limpet.jobs.tasks", "limpet.jobs.worker",
    )  # fmt: skip
