"""The commit hook of the SQLite store, and the paths of the files beside it.

The default hook does nothing. The file store has a hook that writes each commit to a journal
before SQLite commits.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from limpet import errors
from limpet.stores.sqlite import event_erasure
from limpet.stores.sqlite.database import Synchronous


class CommitHook:
    """Called around every commit, by the holder of the write lock. This one does nothing."""

    synchronous: Synchronous = "FULL"
    reports_anchor = True
    """Whether `remarks` mention a replaced anchor."""
    kept = False
    """Whether `commit` has made the open transaction durable, so that it takes effect even if SQLite fails to commit."""

    def lock_path(self, store: Path) -> Path:
        """Return the path of the lock file."""
        return Path(f"{store}-lock")

    def erased_list_path(self, store: Path) -> Path:
        """Return the path of the list of erased events."""
        return event_erasure.erased_list_path(store)

    def store_id_for_new(self, made: bytes) -> bytes:
        """Return the id of a store that is being created: `made` unless the hook has one."""
        return made

    def attach(self, connection: apsw.Connection) -> None:
        """Prepare a connection that will write."""

    def opened(self, connection: apsw.Connection) -> tuple[str, ...]:
        """Apply what the hook has and the store lacks, in own transactions; return remarks for people."""
        del connection
        return ()

    def catch_up(self, connection: apsw.Connection, *, others: bool) -> bool:
        """Apply in the open transaction what the store lacks; return whether anything was missing.

        If so, the caller commits and calls again. `others`: other processes have committed since the last call.
        """
        del connection, others
        return False

    def commit(self, connection: apsw.Connection) -> None:
        """Write the changes of the open transaction, durable on return, and set `kept`. SQLite commits afterwards."""

    def rolled_back(self) -> None:
        """Drop the changes of the open transaction."""

    def scrub(self, connection: apsw.Connection) -> errors.Error | None:
        """Remove all content that the store no longer has; durable on return. No transaction is open.

        Returns the error of a part that could not be removed; everything else is done.
        """
        del connection
        return None

    def before_close(self) -> None:
        """Remove what only an open store needs."""

    def close(self) -> None:
        """Close every file."""
