"""How far a task has read a tenant's feed: a position in a note, moved only by whoever saw it where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from limpet import errors, limits
from limpet.core.values.json_values import Json
from limpet.engine.tasks import LeaseLost
from limpet.stores import port

PREFIX = "cursor/"


class Cursor(msgspec.Struct, frozen=True):
    """Everything up to a position is done; `version` is that of its note."""

    position: int = 0
    version: int = 0


def read(store: port.Store, tenant: str, task: str) -> Cursor:
    """Return a task's cursor."""
    note = store.note(tenant, PREFIX + task)
    if note is None:
        return Cursor()
    try:
        return Cursor(int(note.value), note.version)
    except ValueError as error:
        raise errors.Corrupt(
            f"the cursor of {task} is no position.", facts={"task": task}
        ) from error


def advance(store: port.Store, tenant: str, task: str, cursor: Cursor, position: int) -> None:
    """Move a cursor on; raise LeaseLost if somebody else has moved it."""
    if not store.put_note(tenant, PREFIX + task, b"%d" % position, expected=cursor.version):
        raise LeaseLost(f"another worker has read on for {task}")


def head(store: port.Store, tenant: str, after: int = 0) -> int:
    """Return the last position of the feed, at least `after`."""
    return max(after, store.head(tenant))


def lag(store: port.Store, tenant: str, position: int) -> int:
    """Return how many events of the feed come after a position."""
    return head(store, tenant, position) - position


class Follower:
    """Reads every tenant's feed for a task, a part at a time, each once: a part that was not seen to its end comes again."""

    def __init__(self, store: port.Store, task: str) -> None:
        self._store = store
        self._task = task

    def news(self, tenant: str) -> bool:
        """Whether the feed has gone on."""
        return self._store.wait(tenant, read(self._store, tenant, self._task).position, 0)

    def told(self, tenant: str) -> dict[str, Json]:
        """Return how far the feed was read, for people."""
        at = read(self._store, tenant, self._task).position
        return {"cursor": at, "lag": lag(self._store, tenant, at)}

    def follow(self, tenant: str, see: Callable[[Sequence[port.StoredEvent]], None]) -> bool:
        """Have the next part seen, then move on behind it; return whether there was one."""
        cursor = read(self._store, tenant, self._task)
        page = self._store.feed(tenant, after=cursor.position, limit=limits.READ_CHUNK)
        if not page:
            return False
        see(page)
        advance(self._store, tenant, self._task, cursor, page[-1].position)
        return True

    def begin_again(self, tenant: str) -> None:
        """Read the feed from its beginning."""
        cursor = read(self._store, tenant, self._task)
        advance(self._store, tenant, self._task, cursor, 0)
