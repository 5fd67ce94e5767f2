"""Records every write, truncation, sync, creation, renaming and deletion that a store makes.

`RecordingVFS` inherits from SQLite's own `unix` VFS, so that WAL, shared memory and locks between
processes stay the real ones. It must be the process's default VFS before the store loads the
checksum VFS, which then sits above it and hands down the bytes as they go to disk.

A write is logged before it is made and a sync after it has returned: with writers taking turns
under the store's lock the log then never claims more order or durability than there was. The
shared-memory index does not pass here; it is RAM, and gone after a power cut.

`RecordingFiles` does the same for what the store does without SQLite: anchor, lock, creation.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from holdfast.store.sqlite.files import Files
from tests.faults.oplog import Kind, OpLog

NAME = "holdfast-recorder"


def _path(name: str | apsw.URIFilename | None) -> str | None:
    return name.filename() if isinstance(name, apsw.URIFilename) else name


class RecordingFile(apsw.VFSFile):
    """A file of the `unix` VFS whose changes are logged under its inode number."""

    def __init__(
        self, log: OpLog, base: str, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        path = _path(name)
        existed = path is not None and os.path.exists(path)  # noqa: PTH110  # hot, and a str
        super().__init__(base, name, flags)
        self._log: OpLog | None = None
        if path is None:
            return
        self._log = log
        self._inode = os.stat(path).st_ino  # noqa: PTH116
        # The unix VFS syncs the directory too when a journal or WAL that it was asked to create if
        # need be is first synced through a handle, whoever did create it.
        self._syncs_directory = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and not (
            flags[0] & apsw.SQLITE_OPEN_MAIN_DB
        )
        if not existed:
            log.add(Kind.CREATE, inode=self._inode, data=os.path.basename(path).encode())  # noqa: PTH119

    # Buffer, as the driver declares it, is known by name to Python 3.12 only.
    def xWrite(self, data: bytes, offset: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._log is not None:
            self._log.add(Kind.WRITE, inode=self._inode, offset=offset, data=bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        if self._log is not None:
            self._log.add(Kind.TRUNCATE, inode=self._inode, offset=newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._log is not None:
            self._log.add(Kind.SYNC, inode=self._inode, flag=int(self._syncs_directory))
            self._syncs_directory = False


class RecordingVFS(apsw.VFS):
    """The `unix` VFS with a log; registers itself as the process's default."""

    def __init__(self, log: OpLog, *, base: str = "unix") -> None:
        self._log = log
        self._base = base
        super().__init__(NAME, base, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> RecordingFile:
        return RecordingFile(self._log, self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        name = os.path.basename(filename).encode()  # noqa: PTH119
        self._log.add(Kind.DELETE, flag=int(syncdir), data=name)


class RecordingFiles(Files):
    """The real file system with a log. The lock file is left out: its content decides nothing."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        self._inodes: dict[int, int] = {}

    def open(self, path: Path) -> int:
        """Open, and log it if that made the file."""
        existed = path.exists()
        fd = super().open(path)
        if not path.name.endswith("-lock"):
            self._inodes[fd] = inode = os.fstat(fd).st_ino
            if not existed:
                self._log.add(Kind.CREATE, inode=inode, data=path.name.encode())
        return fd

    def fresh(self, path: Path) -> Path:
        """Make the file, then log it."""
        made = super().fresh(path)
        self._log.add(Kind.CREATE, inode=made.stat().st_ino, data=made.name.encode())
        return made

    def close(self, fd: int) -> None:
        """Close."""
        self._inodes.pop(fd, None)
        super().close(fd)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        """Log, then write."""
        if fd in self._inodes:
            self._log.add(Kind.WRITE, inode=self._inodes[fd], offset=offset, data=data)
        super().write(fd, data, offset)

    def sync(self, path: Path) -> None:
        """Sync, then log."""
        super().sync(path)
        if path.is_dir():
            self._log.add(Kind.DIRSYNC)
        else:
            self._log.add(Kind.SYNC, inode=path.stat().st_ino)

    def rename(self, source: Path, target: Path) -> None:
        """Log, then rename; the sync of the folder that belongs to it comes through `sync`."""
        self._log.add(Kind.RENAME, data=f"{source.name}\0{target.name}".encode())
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        """Log, then remove."""
        if path.exists():
            self._log.add(Kind.DELETE, data=path.name.encode())
        super().remove(path)
