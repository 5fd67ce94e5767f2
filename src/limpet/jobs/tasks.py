"""The protocol of a background task, with failure values, backoff and feed cursors.

A cursor is a position of the tenant's feed, stored in a note. It is moved by compare-and-set, so
two workers never both advance it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from limpet import errors, limits
from limpet.core.values.json_values import Json
from limpet.stores import port

Heartbeat = Callable[[], None]
"""Says that the work goes on; raises LeaseLost if somebody else has taken it over meanwhile."""


class LeaseLost(Exception):
    """The work is another's now, or is to be left: break it off where it is. Not a failure."""


class Task(Protocol):
    """One kind of background work. Whoever has its lease for a tenant does a step of it."""

    @property
    def name(self) -> str:
        """What it is called in leases, in status and in the log."""
        ...

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        """Do some of the work that there is; return whether there may be more at once.

        May be broken off at any point, in any process, and taken up by another: whatever is kept of its
        progress is kept in one step with its effect, or the effect is the same when it is repeated.
        """
        ...


@runtime_checkable
class SupportsDue(Protocol):
    """A task that can tell without a lease whether there is work. One that can't is asked to do some."""

    def due(self, tenant: str) -> bool:
        """Whether a step would find something to do. Only looks."""
        ...


@runtime_checkable
class SupportsProgress(Protocol):
    """A task that can tell how far it is."""

    def progress(self, tenant: str) -> Mapping[str, Json]:
        """Return facts for people: where its cursor is, what waits, what was given up."""
        ...


T = TypeVar("T")


class AttemptFailure(msgspec.Struct, frozen=True):
    """What was raised."""

    error: Exception

    @property
    def code(self) -> str:
        """What it is called. Never its text, which may have somebody's words in it."""
        return str(getattr(self.error, "code", "") or type(self.error).__name__)


def attempt(work: Callable[[], T]) -> T | AttemptFailure:
    """Return what work comes to, or its failure. That the lease is lost or the engine closed is none."""
    try:
        return work()
    except (LeaseLost, errors.EngineClosed, errors.ForkedEngine):
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return AttemptFailure(error)


def backoff_us(failures: int) -> int:
    """Return how long to leave work alone that has failed so many times in a row."""
    doubled = limits.BACKOFF_S * 2.0 ** min(failures - 1, 30)
    return int(min(doubled, limits.BACKOFF_S_MAX) * 1_000_000)


def retry_is_due(retry_us: int, now_us: int) -> bool:
    """Whether it is time. A moment further off than any backoff was noted by a clock that has been set back since."""
    return not now_us < retry_us <= now_us + int(limits.BACKOFF_S_MAX * 1_000_000)


CURSOR_PREFIX = "cursor/"


class FeedCursor(msgspec.Struct, frozen=True):
    """Everything up to a position is done; `version` is that of its note."""

    position: int = 0
    version: int = 0


def read_cursor(store: port.Store, tenant: str, task: str) -> FeedCursor:
    """Return a task's cursor."""
    note = store.note(tenant, CURSOR_PREFIX + task)
    if note is None:
        return FeedCursor()
    try:
        return FeedCursor(int(note.value), note.version)
    except ValueError as error:
        raise errors.Corrupt(
            f"the cursor of {task} is no position.", facts={"task": task}
        ) from error


def advance_cursor(
    store: port.Store, tenant: str, task: str, cursor: FeedCursor, position: int
) -> None:
    """Move a cursor on; raise LeaseLost if somebody else has moved it."""
    if not store.put_note(tenant, CURSOR_PREFIX + task, b"%d" % position, expected=cursor.version):
        raise LeaseLost(f"another worker has read on for {task}")


def feed_head(store: port.Store, tenant: str, after: int = 0) -> int:
    """Return the last position of the feed, at least `after`."""
    return max(after, store.head(tenant))


def feed_lag(store: port.Store, tenant: str, position: int) -> int:
    """Return how many events of the feed come after a position."""
    return feed_head(store, tenant, position) - position


class FeedFollower:
    """Reads every tenant's feed for a task, a part at a time, each once: a part that was not seen to its end comes again."""

    def __init__(self, store: port.Store, task: str) -> None:
        self._store = store
        self._task = task

    def has_news(self, tenant: str) -> bool:
        """Whether the feed has gone on."""
        return self._store.wait(tenant, read_cursor(self._store, tenant, self._task).position, 0)

    def progress(self, tenant: str) -> dict[str, Json]:
        """Return how far the feed was read, for people."""
        at = read_cursor(self._store, tenant, self._task).position
        return {"cursor": at, "lag": feed_lag(self._store, tenant, at)}

    def process_next(self, tenant: str, see: Callable[[Sequence[port.StoredEvent]], None]) -> bool:
        """Have the next part seen, then move on behind it; return whether there was one."""
        cursor = read_cursor(self._store, tenant, self._task)
        page = self._store.feed(tenant, after=cursor.position, limit=limits.READ_CHUNK)
        if not page:
            return False
        see(page)
        advance_cursor(self._store, tenant, self._task, cursor, page[-1].position)
        return True

    def restart(self, tenant: str) -> None:
        """Read the feed from its beginning."""
        cursor = read_cursor(self._store, tenant, self._task)
        advance_cursor(self._store, tenant, self._task, cursor, 0)
