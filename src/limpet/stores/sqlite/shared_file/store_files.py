"""The file operations that SQLite does not do itself: locks, atomic replacement, identity, sync.

They are methods of one class, so that a test can record or fail each of them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import sys
from pathlib import Path
from typing import BinaryIO

from limpet import errors

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs",
        "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs",
    )
)  # fmt: skip
"""File systems whose locks or shared memory do not hold between machines."""

MEMORY_FILE_SYSTEMS = frozenset(("ramfs", "tmpfs"))
"""File systems that a power cut empties."""

_FLOCK_STRUCT = struct.Struct("hhqqi4x")
_BYTE_LOCK_COMMANDS: tuple[int, int] | None = (
    (fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK) if sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK") else None
)
"""The commands that set and query a lock of an open file (rather than of a process)."""


_NOT_A_FILE_ERRNOS = frozenset((errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO))
"""The errors for opening a link, a folder or a socket as a file."""


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise NotAStore, without waiting, for a link or a pipe."""
    return os.fdopen(_open_regular_fd(path, os.O_RDONLY), "rb")


def read_regular_file(path: Path) -> bytes:
    """Return the content of a regular file; raise NotAStore for a link or a pipe."""
    with open_regular_file(path) as file:
        return file.read()


def _open_regular_fd(path: Path, flags: int) -> int:
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in _NOT_A_FILE_ERRNOS:
            raise _not_a_regular_file_error(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _not_a_regular_file_error(path)
    return fd


def _not_a_regular_file_error(path: Path) -> errors.NotAStore:
    return errors.NotAStore(
        f"{path} is in the way: a store needs a file of that name, and this is a link to one, or no file.",
        hint="Remove it, and put the file back that belongs there. Nothing was changed.",
        facts={"path": str(path)},
    )


class StoreFiles:
    """The operations on the real file system."""

    def open_or_create(self, path: Path) -> int:
        """Open a regular file for reading and writing, creating it for its owner only."""
        return _open_regular_fd(path, os.O_RDWR | os.O_CREAT)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Read at an offset."""
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        """Write at an offset, all of it, without syncing."""
        while (written := os.pwrite(fd, data, offset)) < len(data):
            data, offset = data[written:], offset + written

    def datasync(self, fd: int) -> None:
        """Sync a file's content and the metadata needed to read it."""
        os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file off."""
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        """Return how many bytes a file has."""
        return os.fstat(fd).st_size

    def create_temporary(self, path: Path) -> Path:
        """Create an empty file beside a path, under an unused name, and return it."""
        # Imported here: opening a store that exists is twice as fast without it.
        import tempfile  # noqa: PLC0415

        fd, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
        os.close(fd)
        return Path(name)

    def sync(self, path: Path) -> None:
        """Sync a file or folder."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target, and sync the folder."""
        source.replace(target)
        self.sync(target.parent)

    def replace_content(self, path: Path, data: bytes) -> None:
        """Replace a file's content atomically: after a crash it is the old or the new one. Durable on return."""
        fresh = self.create_temporary(path)
        fd = self.open_or_create(fresh)
        try:
            self.write(fd, data, 0)
        finally:
            self.close(fd)
        self.sync(fresh)
        self.rename(fresh, path)

    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""
        path.unlink(missing_ok=True)

    def inode_at(self, path: str) -> tuple[int, int] | None:
        """Return device and inode of a path, None if it does not exist."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def inode_of(self, fd: int) -> tuple[int, int]:
        """Return device and inode of an open file."""
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def folder_stamp(self, folder: str) -> tuple[int, int, int] | None:
        """Return device, inode and change time of a folder; None if it does not exist.

        The ctime can't be set by programs; those that copy folders restore the mtime.
        """
        try:
            found = os.stat(folder)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def try_lock(self, fd: int) -> bool:
        """Acquire the exclusive lock if it is free; return whether it was."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, fd: int) -> None:
        """Wait for the exclusive lock."""
        fcntl.flock(fd, fcntl.LOCK_EX)

    def unlock(self, fd: int) -> None:
        """Release the lock."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_byte(self, fd: int, at: int) -> bool:
        """Lock one byte until the file is closed; return False if it is locked or the system has no such locks."""
        if _BYTE_LOCK_COMMANDS is None:
            return False
        try:
            fcntl.fcntl(fd, _BYTE_LOCK_COMMANDS[0], _FLOCK_STRUCT.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
        except OSError:
            return False
        return True

    def is_byte_locked(self, fd: int, at: int) -> bool:
        """Return whether another open file has locked that byte."""
        if _BYTE_LOCK_COMMANDS is None:
            return False
        found = fcntl.fcntl(fd, _BYTE_LOCK_COMMANDS[1], _FLOCK_STRUCT.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
        return _FLOCK_STRUCT.unpack(found)[0] != fcntl.F_UNLCK

    def lock_holder(self, fd: int) -> str:
        """Return the id of the process that holds a file's lock; empty where the system does not tell."""
        place = f":{os.fstat(fd).st_ino}"
        with contextlib.suppress(OSError):
            for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
                match line.split():
                    # Lines of waiting processes have an arrow before the kind.
                    case [_, "FLOCK", _, _, process, where, *_] if where.endswith(place):
                        return process
                    case _:
                        continue
        return ""

    def file_system_type(self, path: Path) -> str:
        """Return the type of a folder's file system; empty where the system does not tell."""
        best, kind, place = 0, "", f"{path}/"
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
                fields = line.split(" ")
                point = fields[4].encode().decode("unicode_escape").rstrip("/") + "/"
                # The longest mount point above a path is the one it lies on.
                if len(point) >= best and place.startswith(point):
                    best, kind = len(point), fields[fields.index("-") + 1]
        return kind
