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
    """Nobody else. Every method is called by the holder of the turn."""

    synchronous: Synchronous = "FULL"
    reports_anchor = True
    """Whether people are told that an anchor was written anew."""
    kept = False
    """Whether what the open transaction has changed is kept here, and holds whatever becomes of the transaction."""

    def lock_path(self, store: Path) -> Path:
        """Return the file whose lock is the turn."""
        return Path(f"{store}-lock")

    def erased_list_path(self, store: Path) -> Path:
        """Return where the list of what was erased is."""
        return event_erasure.erased_list_path(store)

    def store_id_for_new(self, made: bytes) -> bytes:
        """Return the id of a store that is made now; `made` if nobody has one for it."""
        return made

    def attach(self, connection: apsw.Connection) -> None:
        """Watch a connection that is going to write."""

    def opened(self, connection: apsw.Connection) -> tuple[str, ...]:
        """Bring the store up to what is kept elsewhere, in transactions of its own; return remarks for people."""
        del connection
        return ()

    def catch_up(self, connection: apsw.Connection, *, others: bool) -> bool:
        """Bring the store up, in the open transaction; return whether something was missing.

        If so it is committed, and this is asked again. `others`: other processes have committed since this was last asked.
        """
        del connection, others
        return False

    def commit(self, connection: apsw.Connection) -> None:
        """Keep what the open transaction has changed; durable on return, and the transaction follows. Says so in `kept`."""

    def rolled_back(self) -> None:
        """The open transaction never was."""

    def scrub(self, connection: apsw.Connection) -> errors.Error | None:
        """Keep nothing any more that the store does not have; durable on return. No transaction is open.

        Returns what keeps it from being through, if something does: all else is done.
        """
        del connection
        return None

    def before_close(self) -> None:
        """The store is about to be closed: leave nothing that only its use needs."""

    def close(self) -> None:
        """Give back every file."""
