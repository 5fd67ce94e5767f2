"""The check that database and write-ahead log are still the opened files.

SQLite does not notice when either is removed or replaced, and later commits would be lost with
it. Only the folder's change time is read per commit, and the files only after it changed: a stat
of the log at every commit makes Linux 6.13 and later write its inode at every sync.
"""

from __future__ import annotations

import time
from pathlib import Path

from limpet import errors
from limpet.stores.sqlite.shared_file.store_files import StoreFiles

SECOND_NS = 1_000_000_000
CLOCK_TICK_NS = 50_000_000
"""Longer than a tick of the clock that stamps folders, on file systems with sub-second times."""

CHECK_VALID_S = 1e-3
"""How old a check may be when a transaction begins. After a commit, only a new check counts."""

DeviceInode = tuple[int, int] | None


class FileIdentity:
    """The identity (device and inode) of the database and the write-ahead log of one open store."""

    def __init__(self, files: StoreFiles, path: Path) -> None:
        self._files = files
        self._folder, self._path, self._log = str(path.parent), str(path), f"{path}-wal"
        self._accepted: tuple[DeviceInode, DeviceInode] = None, None
        self._settled_stamp: tuple[int, int, int] | None = None
        self._checked_s = -1.0

    @property
    def has_log(self) -> bool:
        """Whether the log exists."""
        return self._files.inode_at(self._log) is not None

    @property
    def database_inode(self) -> DeviceInode:
        """The identity of the database that was opened."""
        return self._accepted[0]

    def read_inodes(self) -> tuple[DeviceInode, DeviceInode]:
        """Return the present identities of database and log."""
        return self._files.inode_at(self._path), self._files.inode_at(self._log)

    def accept(self, inodes: tuple[DeviceInode, DeviceInode]) -> None:
        """Set the identities that later checks compare with."""
        self._accepted, self._settled_stamp, self._checked_s = inodes, None, -1.0

    def check_if_due(self) -> None:
        """Call `check` unless the last one is at most CHECK_VALID_S old."""
        if time.monotonic() - self._checked_s > CHECK_VALID_S:
            self.check()

    def check(self) -> None:
        """Raise Unavailable unless database and log are still those that were opened."""
        # First the clock, then the folder: a change while the files are read is seen by the next check.
        now_ns = time.time_ns()
        stamp = self._files.folder_stamp(self._folder)
        if stamp is not None and stamp == self._settled_stamp:
            self._checked_s = time.monotonic()
            return
        self._checked_s = -1.0
        self.check_database()
        if self._files.inode_at(self._log) != self._accepted[1]:
            raise errors.Unavailable(
                f"the write-ahead log of {self._path} was removed while in use, so nothing can be written to it.",
                hint="Another SQLite library in this process opened the same file: keep it away, then connect again.",
            )
        # A second change within one tick would leave the stamp as it is.
        settled = stamp is not None and now_ns - stamp[2] > stamp_resolution_ns(stamp[2])
        self._settled_stamp = stamp if settled else None

    def check_database(self) -> None:
        """Raise Unavailable unless the database is still the one that was opened."""
        if self._files.inode_at(self._path) != self._accepted[0]:
            raise errors.Unavailable(
                f"{self._path} was removed or replaced while in use, so nothing can be written to it.",
                hint="Put the file back, or connect again.",
            )


def stamp_resolution_ns(stamp_ns: int) -> int:
    """Return how close two changes with the same stamp can be. Some file systems store whole seconds only."""
    return CLOCK_TICK_NS if stamp_ns % SECOND_NS else 2 * SECOND_NS
