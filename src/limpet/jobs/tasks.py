"""The protocol of a background task, with failure values, backoff, notes and feed cursors.

A cursor is a position of the tenant's feed, stored in a note. It is moved by compare-and-set, so
two workers never both advance it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from limpet import errors, limits
from limpet.core.values.validation import EMPTY, Json
from limpet.stores import port

Heartbeat = Callable[[], None]
"""Renews the worker's lease; raises LeaseLost if another worker has taken over, or the worker is to stop."""


class LeaseLost(Exception):
    """Another worker has the task now, or the worker is to stop: the step ends at once. Not a failure."""


class Task(Protocol):
    """One kind of background work. A worker needs the task's lease for a tenant to run a step."""

    name: str
    """The name in leases, in the status and in the log."""

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        """Do a part of the work; return whether there may be more at once.

        A step may be interrupted anywhere and repeated by another process. So progress is stored in one
        transaction with its effect, or a repetition has the same effect.
        """
        ...

    def due(self, tenant: str) -> bool:  # noqa: ARG002 - a default for tasks that can't tell
        """Whether a step would find work. Called without a lease; changes nothing."""
        return True

    def progress(self, tenant: str) -> Mapping[str, Json]:  # noqa: ARG002 - a default, as above
        """Return facts for the status: the cursor, what waits, what was given up."""
        return EMPTY


T = TypeVar("T")


class AttemptFailure(msgspec.Struct, frozen=True):
    """An exception as a value."""

    error: Exception

    @property
    def code(self) -> str:
        """The error's code, or its type's name. Never its text, which may quote a user's message."""
        return str(getattr(self.error, "code", "") or type(self.error).__name__)


def attempt(work: Callable[[], T]) -> T | AttemptFailure:
    """Return the result of `work`, or its exception as a value. Raises if the lease is lost or the engine closed."""
    try:
        return work()
    except (LeaseLost, errors.EngineClosed, errors.ForkedEngine):
        raise
    except Exception as error:  # noqa: BLE001 - engines and models may raise anything
        return AttemptFailure(error)


def backoff_us(failures: int) -> int:
    """Return the delay before the next try, after so many failures in a row."""
    doubled = limits.BACKOFF_S * 2.0 ** min(failures - 1, 30)
    return int(min(doubled, limits.BACKOFF_S_MAX) * 1_000_000)


def retry_is_due(retry_us: int, now_us: int) -> bool:
    """Whether a retry is due. A time further off than any backoff was written before the clock was set back."""
    return not now_us < retry_us <= now_us + int(limits.BACKOFF_S_MAX * 1_000_000)


def iter_notes(
    store: port.Store, tenant: str, prefix: str = "", page_size: int = limits.READ_CHUNK
) -> Iterator[tuple[str, port.Note]]:
    after = ""
    while page := store.notes(tenant, prefix, after=after, limit=page_size):
        yield from page
        after = page[-1][0]


def decode_note(value: bytes, kind: type[T], what: str) -> T:
    """Return the value of a note; raise Corrupt, which names the note by `what`, for any other content."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt(f"{what} can't be decoded.") from error


def short_digest(key: str) -> str:
    """Return a short name for a key of any length."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class _SessionNote(msgspec.Struct):
    session_id: str = ""


def drop_notes_of_missing_sessions(
    store: port.Store, tenant: str, prefixes: Sequence[str], exists: Callable[[str], bool]
) -> int:
    """Drop notes about sessions that no longer exist; return how many."""
    dropped = 0
    for prefix in prefixes:
        for name, note in iter_notes(store, tenant, prefix):
            about = decode_note(note.value, _SessionNote, "a note about a session")
            if not exists(about.session_id):
                dropped += store.put_note(tenant, name, None, expected=note.version)
    return dropped


ENGINES_NOTE = "memory/engines"


def known_engines(store: port.Store, tenant: str) -> frozenset[str]:
    return _read_engines(store, tenant)[0]


def remember_engine(store: port.Store, tenant: str, name: str) -> None:
    """Record that an engine is about to receive a history; raise Unavailable after too many concurrent changes."""
    for _ in range(limits.RETRIES_MAX):
        names, version = _read_engines(store, tenant)
        if name in names:
            return
        value = msgspec.json.encode(sorted({*names, name}))
        if store.put_note(tenant, ENGINES_NOTE, value, expected=version):
            return
    raise errors.Unavailable("other processes changed the list of memory engines at the same time; retry.")


def _read_engines(store: port.Store, tenant: str) -> tuple[frozenset[str], int]:
    note = store.note(tenant, ENGINES_NOTE)
    if note is None:
        return frozenset(), 0
    names = decode_note(note.value, list[str], "the list of memory engines")
    return frozenset(names), note.version


CURSOR_PREFIX = "cursor/"


class FeedCursor(msgspec.Struct, frozen=True):
    """The position up to which a task has read the feed, and the version of the note that stores it."""

    position: int = 0
    version: int = 0


def read_cursor(store: port.Store, tenant: str, task: str) -> FeedCursor:
    note = store.note(tenant, CURSOR_PREFIX + task)
    if note is None:
        return FeedCursor()
    try:
        return FeedCursor(int(note.value), note.version)
    except ValueError as error:
        raise errors.Corrupt(f"the cursor of {task} is not a position.", facts={"task": task}) from error


def advance_cursor(store: port.Store, tenant: str, task: str, cursor: FeedCursor, position: int) -> None:
    """Move a cursor; raise LeaseLost if another worker has moved it since it was read."""
    if not store.put_note(tenant, CURSOR_PREFIX + task, b"%d" % position, expected=cursor.version):
        raise LeaseLost(f"another worker has moved the cursor of {task}")


def feed_head(store: port.Store, tenant: str, after: int = 0) -> int:
    """Return the last position of the feed, at least `after`."""
    return max(after, store.head(tenant))


def feed_lag(store: port.Store, tenant: str, position: int) -> int:
    """Return how many events of the feed come after a position."""
    return feed_head(store, tenant, position) - position


class FeedFollower:
    """Reads the feeds of tenants for a task, page by page. A page whose processing fails is read again."""

    def __init__(self, store: port.Store, task: str) -> None:
        self._store = store
        self._task = task

    def has_news(self, tenant: str) -> bool:
        return self._store.wait(tenant, read_cursor(self._store, tenant, self._task).position, 0)

    def progress(self, tenant: str) -> dict[str, Json]:
        at = read_cursor(self._store, tenant, self._task).position
        return {"cursor": at, "lag": feed_lag(self._store, tenant, at)}

    def process_next(self, tenant: str, process: Callable[[Sequence[port.StoredEvent]], None]) -> bool:
        """Process the next page, then move the cursor; return whether there was a page."""
        cursor = read_cursor(self._store, tenant, self._task)
        page = self._store.feed(tenant, after=cursor.position, limit=limits.READ_CHUNK)
        if not page:
            return False
        # The cursor moves last: a crash repeats the page, and loses none.
        process(page)
        advance_cursor(self._store, tenant, self._task, cursor, page[-1].position)
        return True

    def restart(self, tenant: str) -> None:
        cursor = read_cursor(self._store, tenant, self._task)
        advance_cursor(self._store, tenant, self._task, cursor, 0)
