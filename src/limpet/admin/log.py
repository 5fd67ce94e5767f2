"""The tenant's event log and the administration of the store, for blocking callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from limpet import errors, limits
from limpet.admin.erasure import ErasureService
from limpet.core.values.events import ErasedEvent, Receipt, RecordedEvent, TreeErasedEvent
from limpet.core.values.validation import Json, checked_int, checked_limit, checked_number
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import decode_session_events
from limpet.sessions.time_travel import Moment
from limpet.stores import urls
from limpet.stores.port import Rebuilt, Report, Store, StoredEvent

if TYPE_CHECKING:
    from limpet.admin.export import Exported, Sink
    from limpet.admin.import_ import Format, Imported
    from limpet.admin.migrate import Migrated
    from limpet.admin.retention import Retained, Retention
    from limpet.sessions.manager import SessionService

LogEvent = RecordedEvent | state_cache.TreeEvent | ErasedEvent
"""An event of the log: of a session, of a frame tree, or one whose content was erased."""

Progress = Callable[[int, int], None]
"""Called with the amount of finished work, and the whole amount."""

WATCH_CHECK_S: Final = 1.0
"""How often watch() checks that the engine is still open while it waits without a timeout."""


def no_progress(done: int, total: int) -> None:
    """Do nothing with the progress: the default of `progress` arguments."""


class Events:
    """The tenant's log, in order."""

    def __init__(self, service: SessionService) -> None:
        self._engine = service.engine
        self._tenant = service.tenant
        self._service = service

    def at(self, position: int) -> Moment:
        """Return the tenant's state at a position of the log, read-only.

        Raises NotFound if the log has no such position.
        """
        self._engine.check()
        moment = Moment(self._service, position)
        if position and not self._engine.store.feed(self._tenant, after=position - 1, limit=1):
            raise errors.NotFound(
                f"the log has no position {position:,}.",
                hint="Take one from an event of the feed.",
                facts={"position": position},
            )
        return moment

    def feed(self, after: int = 0) -> Iterator[LogEvent]:
        """Yield events after a position up to the present end, in order, without gaps."""
        while found := self.page(after):
            yield from found
            after = found[-1].position

    def watch(self, after: int = 0, timeout_s: float | None = None) -> Iterator[LogEvent]:
        """Yield events after a position, in order, without gaps, and wait for new ones.

        Ends after `timeout_s` seconds without an event; None: never. Raises EngineClosed when the engine is closed.
        """
        idle_s = checked_timeout(timeout_s)
        while True:
            found = self.page(after)
            yield from found
            if found:
                after = found[-1].position
            elif not self._wait_for_events(after, idle_s):
                return

    def _wait_for_events(self, after: int, idle_s: float | None) -> bool:
        store = self._engine.store
        if idle_s is not None:
            return store.wait(self._tenant, after, idle_s)
        while not store.wait(self._tenant, after, WATCH_CHECK_S):
            self._engine.check()
        return True

    def page(self, after: int = 0, limit: int = limits.READ_CHUNK) -> list[LogEvent]:
        """Return up to `limit` events after a position."""
        self._engine.check()
        checked_int("after", after, unit="a position of the log")
        checked_limit(limit)
        found = self._engine.store.feed(self._tenant, after=after, limit=limit)
        return [event for kind, run in groupby(found, _event_group) for event in self._decode_run(kind, list(run))]

    def _decode_run(self, group: str, run: Sequence[StoredEvent]) -> Sequence[LogEvent]:
        match group:
            case "erased":
                return [
                    ErasedEvent(kind=s.kind, position=s.position, version=s.version, time_us=s.time_us) for s in run
                ]
            case "frames":
                return [state_cache.decode_tree_event(stored) for stored in run]
            case _:
                return decode_session_events(self._engine.store, self._tenant, run)


def checked_timeout(timeout_s: float | None) -> float | None:
    """Return a timeout; raise InvalidRequest for anything but seconds or None."""
    if timeout_s is not None:
        unit, hint = "a number of seconds", "None is no timeout."
        checked_number("timeout_s", timeout_s, unit=unit, hint=hint)
    return timeout_s


def _event_group(stored: StoredEvent) -> str:
    """Return which decoder an event needs: for one that was erased, one of frames, or one of sessions."""
    if stored.payload is None:
        return "erased"
    is_frame_event = stored.stream.startswith(state_cache.TREE_STREAM_PREFIX) or stored.kind == TreeErasedEvent.kind
    return "frames" if is_frame_event else "sessions"


def refuse_to_open(url: str | Path) -> Store:
    """Raise InvalidRequest: an Admin that was made without an opener opens no other store."""
    raise errors.InvalidRequest(f"{urls.without_password(url)} can't be opened from here: use limpet.connect.")


class Admin:
    """Administers a store. Erasure, retention, import and export affect one tenant; the rest concerns all."""

    def __init__(
        self,
        engine: Engine,
        tenant: str = "default",
        erasing: ErasureService | None = None,
        opener: Callable[[str | Path], Store] = refuse_to_open,
        retaining: Callable[[], Retention] | None = None,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._erasure = erasing or ErasureService(engine, tenant)
        self._opener = opener
        self._make_retention = retaining

    def erase(
        self, *, user_id: str | None = None, session_id: str | None = None, message_id: str | None = None
    ) -> Receipt:
        """Erase content for good: of a user, a session, or one message; without arguments, all deleted sessions.

        A user's sessions are erased, deleted or not, with the frames about them. With a message's id only that
        message of the session is erased, and text made from it. When this returns, no file of the store has the
        content; the receipt counts what was erased and what is pending. A session that living forks still read
        is hidden, and erased with the last fork. Raises SessionNotFound, MessageNotFound. Raises StoreBusy if a
        long read keeps traces in files, and StoreReadOnly if a file can't be removed: readers see nothing of the
        content (`facts["receipt"]`), and the next erase() or opening removes the traces.
        """
        if message_id is not None and session_id is None:
            raise errors.InvalidRequest("a message is erased from a session: give its session_id.")
        if user_id is not None and session_id is not None:
            raise errors.InvalidRequest("give user_id or session_id, not both.")
        if user_id is not None:
            return self._erasure.erase_user(user_id)
        if session_id is None:
            return self._erasure.erase_deleted()
        if message_id is None:
            return self._erasure.erase_session(session_id)
        return self._erasure.erase_message(session_id, message_id)

    def retention(self, keep_days: float, *, dry_run: bool = False) -> Retained:
        """Erase sessions that ended and were idle for `keep_days` days; return why the others stay.

        A session stays until long-term memory, if there is any, has received it; while a frame about it is open;
        and while a fork or a continuation of it stays. Sessions are erased as by `erase`; what memory has learnt
        stays. With `dry_run` nothing is erased. `keep_days` may not be less than idempotency keys are stored.
        """
        from limpet.admin import retention  # noqa: PLC0415 - few programs need it

        days = retention.checked_days(keep_days)
        if self._make_retention is not None:
            return self._make_retention().run(days, dry_run=dry_run)
        return retention.Retention(self._engine, self._tenant, self._erasure).run(days, dry_run=dry_run)

    def status(self) -> Mapping[str, Json]:
        """Return facts about the store: its place, size, durability and contents."""
        self._engine.check()
        return self._engine.store.status()

    def verify(self, progress: Progress = no_progress) -> Report:
        """Check every event and page against its checksums; return the faults. Changes nothing."""
        self._engine.check()
        watched = progress is not no_progress
        total = int(self._engine.store.status().get("events", 0)) if watched else 0
        report = Report(0, 0, ("nothing was checked.",))
        for step in self._engine.store.verify():
            if isinstance(step, Report):
                report = step
            else:
                progress(step, max(step, total))
        return report

    def rebuild(self, progress: Progress = no_progress) -> Rebuilt:
        """Drop everything that is derived from the log and derive it again, in one transaction; return the counts.

        Other processes can read meanwhile, and write until the log is checked; then they wait. `progress` must
        not use the store. Raises Corrupt, and changes nothing, if the log is damaged.
        """
        self._engine.check()
        store = self._engine.store
        total = 2 * int(store.status().get("events", 0)) if progress is not no_progress else 0
        return state_cache.rebuild_store(store, lambda done: progress(done, max(done, total)))

    def backup(self, target: str | Path, progress: Progress = no_progress) -> Path:
        """Copy the store to a new file; the copy is consistent while other processes write. Returns its path.

        A store that is not a file is copied into a SQLite store, with each tenant's log at one position.
        """
        from limpet.admin import migrate  # noqa: PLC0415 - few programs need it

        self._engine.check()
        if not isinstance(cast("object", target), (str, Path)) or "\0" in str(target):
            raise errors.InvalidRequest("a backup goes to the path of a new file.")
        if isinstance(target, str):
            urls.check_path(target)
            if urls.scheme_of(target):
                raise errors.InvalidRequest(
                    f"{urls.without_password(target)} is a URL, and a backup is a file.",
                    hint="Name the path of a new file. To copy to a server or a folder, use limpet migrate.",
                )
        place = urls.local_path(target)
        migrate.backup(self._engine.store, place, self._opener, progress)
        return place

    def migrate(self, target: str | Path, *, verify: bool = True, progress: Progress = no_progress) -> Migrated:
        """Copy every tenant into another store on any backend, which is created if it does not exist.

        Positions and links stay the same. Other processes may write to this store meanwhile; `behind` counts the
        events that were written too late. An interrupted copy is continued when it is repeated, and its tenants
        can't be used in the target until it is complete. Raises Conflict, and changes nothing, if the target has
        other events of a tenant; raises Conflict, too, if another process writes to the target meanwhile.
        """
        from limpet.admin import migrate  # noqa: PLC0415 - few programs need it

        self._engine.check()
        with closing(self._opener(target)) as store:
            return migrate.migrate(self._engine.store, store, progress, verify=verify)

    def export(
        self,
        target: str | Path | Sink,
        *,
        session_id: str | None = None,
        user_id: str | None = None,
        progress: Progress = no_progress,
    ) -> Exported:
        """Write sessions to a new file or an object that takes bytes: a conversation, a user's sessions, or all.

        The file has their events verbatim, and `import_` reads it. Frames are not exported.
        """
        from limpet.admin import export  # noqa: PLC0415 - few programs need it

        return export.export_sessions(
            self._engine, self._tenant, target, session_id=session_id, user_id=user_id, progress=progress
        )

    def import_(
        self,
        source: str | Path,
        *,
        format: Format = "auto",  # noqa: A002 - what it is called everywhere
        user_id: str | None = None,
        rename: str = "",
        dry_run: bool = False,
        progress: Progress = no_progress,
    ) -> Imported:
        """Import the sessions of a file: an export, a Penguin session (or a folder of them), or OpenAI chats.

        Sessions that are stored already do not change. `user_id` becomes their owner; `rename` is added to each
        id. Raises DamagedFile or DuplicateSession before anything is written. Repeat an interrupted import.
        """
        from limpet.admin import import_  # noqa: PLC0415 - few programs need it

        return import_.import_sessions(
            self._engine, self._tenant, source, format=format, user_id=user_id, rename=rename, dry_run=dry_run,
            progress=progress,
        )  # fmt: skip
