"""How far a task has read a tenant's feed: a position in a note, moved only by whoever saw it where it is."""

from __future__ import annotations

import msgspec

from holdfast import errors
from holdfast.engine.tasks import LeaseLost
from holdfast.store import port

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
