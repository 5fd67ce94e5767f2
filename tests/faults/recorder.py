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

from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from tests.faults.oplog import Kind, OpLog

NAME = "limpet-recorder"


def named(path: str | Path, root: Path | None) -> bytes:
    """What a file is called in the log: its own name, or its path in a store that has folders."""
    text = os.path.basename(path) if root is None else os.path.relpath(path, root)  # noqa: PTH119
    return (b"" if text == "." else text.encode()) if root else text.encode()


def _path(name: str | apsw.URIFilename | None) -> str | None:
    return name.filename() if isinstance(name, apsw.URIFilename) else name


class RecordingFile(apsw.VFSFile):
    """A file of the `unix` VFS whose changes are logged under its inode number."""

    def __init__(
        self, log: OpLog, base: str, name: str | apsw.URIFilename | None, flags: list[int], root: Path | None = None
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
        self._syncs_directory = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and not (flags[0] & apsw.SQLITE_OPEN_MAIN_DB)
        if not existed:
            log.add(Kind.CREATE, inode=self._inode, data=named(path, root))

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

    def __init__(self, log: OpLog, *, base: str = "unix", root: Path | None = None) -> None:
        self._log = log
        self._root = root
        self._base = base
        super().__init__(NAME, base, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> RecordingFile:
        return RecordingFile(self._log, self._base, name, flags, self._root)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._log.add(Kind.DELETE, flag=int(syncdir), data=named(filename, self._root))


class RecordingFiles(StoreFiles):
    """The real file system with a log. The lock file is left out: its content decides nothing."""

    def __init__(self, log: OpLog, root: Path | None = None) -> None:
        self._log = log
        self._root = root
        self._inodes: dict[int, int] = {}

    def open_or_create(self, path: Path) -> int:
        """Open, and log it if that made the file."""
        existed = path.exists()
        return self._opened(super().open_or_create(path), path, existed=existed)

    def _opened(self, fd: int, path: Path, *, existed: bool) -> int:
        if not path.name.endswith(("-lock", ".lock")):
            self._inodes[fd] = inode = os.fstat(fd).st_ino
            if not existed:
                self._log.add(Kind.CREATE, inode=inode, data=named(path, self._root))
        return fd

    def create_temporary(self, path: Path) -> Path:
        """Make the file, then log it."""
        made = super().create_temporary(path)
        self._log.add(Kind.CREATE, inode=made.stat().st_ino, data=named(made, self._root))
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

    def datasync(self, fd: int) -> None:
        """Sync, then log."""
        super().datasync(fd)
        if fd in self._inodes:
            self._log.add(Kind.SYNC, inode=self._inodes[fd])

    def truncate(self, fd: int, size: int) -> None:
        """Log, then cut off."""
        if fd in self._inodes:
            self._log.add(Kind.TRUNCATE, inode=self._inodes[fd], offset=size)
        super().truncate(fd, size)

    def sync(self, path: Path) -> None:
        """Sync, then log."""
        super().sync(path)
        if path.is_dir():
            folder = named(path, self._root) if self._root else b""
            self._log.add(Kind.DIRSYNC, data=folder)
        else:
            self._log.add(Kind.SYNC, inode=path.stat().st_ino)

    def rename(self, source: Path, target: Path) -> None:
        """Log, then rename; the sync of the folder that belongs to it comes through `sync`."""
        self._log.add(Kind.RENAME, data=named(source, self._root) + b"\0" + named(target, self._root))
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        """Log, then remove."""
        if path.exists():
            self._log.add(Kind.DELETE, data=named(path, self._root))
        super().remove(path)
