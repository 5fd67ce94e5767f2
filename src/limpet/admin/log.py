"""The tenant's event log and the administration of the store, for blocking callers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from limpet import errors, limits
from limpet.admin.erasure.service import ErasureService
from limpet.core.values.erasure_receipt import Receipt
from limpet.core.values.events import ErasedEvent, RecordedEvent, TreeErasedEvent
from limpet.core.values.json_values import Json
from limpet.runtime import projections, state_cache
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
    from limpet.sessions.manager import Sessions
LogEvent = RecordedEvent | state_cache.TreeEvent | ErasedEvent
"""An event of the log: of a session, of a frame tree, or one whose content was erased."""

Progress = Callable[[int, int], None]
"""Called with what is done and what there is in all."""


WATCH_CHECK_S: Final = 1.0
"""How often somebody who waits without end makes sure that the engine is still open."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


class Events:
    """The tenant's log, in order."""

    def __init__(self, engine: Engine, tenant: str, sessions: Sessions) -> None:
        self._engine = engine
        self._tenant = tenant
        self._sessions = sessions

    def at(self, position: int) -> Moment:
        """Return the moment when the log was at a position: everything as it was then, read-only.

        Raises NotFound if the log has no such position.
        """
        self._engine.check()
        moment = Moment(self._sessions, self._engine, self._tenant, position)
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
        """Yield events after a position, in order, without gaps, and wait for those to come.

        Ends when none has come for `timeout_s` seconds; None: only when the engine is closed, with EngineClosed.
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
        if type(after) is not int or after < 0:
            raise errors.InvalidRequest("after is a position: a whole number, 0 or more.")
        if type(limit) is not int or not 1 <= limit <= limits.PAGE_SIZE_MAX:
            raise errors.InvalidRequest(f"limit is a number from 1 to {limits.PAGE_SIZE_MAX:,}.")
        found = self._engine.store.feed(self._tenant, after=after, limit=limit)
        return [
            fact for _, run in groupby(found, _decoder_key) for fact in self._decode_run(list(run))
        ]

    def _decode_run(self, run: Sequence[StoredEvent]) -> Sequence[LogEvent]:
        if run[0].payload is None:
            return [_erased_event(stored) for stored in run]
        if _is_frame_event(run[0]):
            return [state_cache.decode_tree_event(stored) for stored in run]
        return decode_session_events(self._engine.store, self._tenant, run)


def checked_timeout(timeout_s: float | None) -> float | None:
    """Return how long to wait; raise InvalidRequest if it is no time."""
    number = cast("object", timeout_s)
    if number is not None and (not isinstance(number, (int, float)) or not 0 <= number < math.inf):
        raise errors.InvalidRequest("timeout_s is a number of seconds, or None: without end.")
    return timeout_s


def _is_frame_event(stored: StoredEvent) -> bool:
    return (
        stored.stream.startswith(state_cache.TREE_STREAM_PREFIX)
        or stored.kind == TreeErasedEvent.kind
    )


def _decoder_key(stored: StoredEvent) -> tuple[bool, bool]:
    return stored.payload is None, _is_frame_event(stored)


def _erased_event(stored: StoredEvent) -> ErasedEvent:
    return ErasedEvent(
        kind=stored.kind,
        position=stored.position,
        version=stored.version,
        time_us=stored.time_us,
    )


def refuse_to_open(url: str | Path) -> Store:
    """Refuse to open another store: nobody has told how."""
    raise errors.InvalidRequest(
        f"{urls.without_password(url)} can't be opened from here: use limpet.connect."
    )


class Admin:
    """The store as a whole: all tenants. Erasing, import and export are of one, the one that it was opened for."""

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
        self,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        message_id: str | None = None,
    ) -> Receipt:
        """Take content out of the store for good: a user's, a session's, one message's, or all that was deleted.

        With a user's id every session of theirs goes, deleted or not, and the frames about them; with a
        session's id that session; with a message's id too, that message of it and what was made from its words.
        With none of them, what delete_session has hidden. When this returns, no file of the store has it; what
        stays is said in the receipt. A session that living forks still read is hidden and goes with the last of
        them. Raises SessionNotFound, MessageNotFound; StoreBusy if it is gone for every reader, but somebody reads
        for so long that traces stay in files (`facts["receipt"]`), StoreReadOnly if a file can't be removed: the
        next erase() or opening does it.
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
        """Let sessions go that ended and in which nobody was active for so many days; say why the rest stays.

        One stays as long as long-term memory has not taken it, if there is any; a frame about it is open; or a fork or a
        continuation of it stays. What goes is erased as `erase` does; what memory has learnt stays. `dry_run`: nothing
        goes. Days are at least as many as idempotency keys are kept.
        """
        from limpet.admin import retention  # noqa: PLC0415 - few programs need it

        days = retention.checked_days(keep_days)
        made = self._make_retention() if self._make_retention else None
        made = made or retention.Retention(self._engine, self._tenant, self._erasure)
        return made.run(days, dry_run=dry_run)

    def status(self) -> Mapping[str, Json]:
        """Return facts about the store: where, how large, how durable, what it holds."""
        self._engine.check()
        return self._engine.store.status()

    def verify(self, progress: Progress = no_progress) -> Report:
        """Check every event and every page against what was written; return what was found. Changes nothing."""
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
        """Drop all that is derived from the log and make it again; return what was made. All or nothing.

        Others may read meanwhile, and write until the log is proved; then they wait. `progress` must not
        use the store. Raises Corrupt, and changes nothing, if the log is not as it was written.
        """
        self._engine.check()
        store = self._engine.store
        total = 2 * int(store.status().get("events", 0)) if progress is not no_progress else 0
        return projections.rebuild_store(store, lambda done: progress(done, max(done, total)))

    def backup(self, target: str | Path, progress: Progress = no_progress) -> Path:
        """Copy the store, consistent while others write, to a file that does not exist yet.

        Of a store that is no file itself the copy is one of SQLite, with each tenant's log as it was at a moment.
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

    def migrate(
        self, target: str | Path, *, verify: bool = True, progress: Progress = no_progress
    ) -> Migrated:
        """Copy every tenant into another store, on whichever backend, which is created if nothing is there.

        Positions and links stay. Others may write here meanwhile; what they wrote last is told in `behind`. Broken off,
        repeat it: it goes on where it was stopped. The target can't be opened until it is through. Raises Conflict if
        it has other events of one of the tenants, and then nothing was changed; or if somebody writes to it meanwhile.
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
        """Write sessions to a new file, or something that takes bytes: a conversation, all of a user, or all.

        The file has what can be read of them, verbatim, and `import_` gives it back. Frames are not in it.
        """
        from limpet.admin import import_  # noqa: PLC0415 - few programs need it

        return import_.export_sessions(
            self._engine,
            self._tenant,
            target,
            session_id=session_id,
            user_id=user_id,
            progress=progress,
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
        """Take in the sessions of a file: one of `export`, Penguin's (or a folder of them), OpenAI chats.

        What is here already stays as it is. `user_id` is whose they become; `rename` is put behind each id.
        Raises DamagedFile or DuplicateSession before anything is written. Broken off, repeat it.
        """
        from limpet.admin import import_  # noqa: PLC0415 - few programs need it

        return import_.import_sessions(
            self._engine,
            self._tenant,
            source,
            format=format,
            user_id=user_id,
            rename=rename,
            dry_run=dry_run,
            progress=progress,
        )
