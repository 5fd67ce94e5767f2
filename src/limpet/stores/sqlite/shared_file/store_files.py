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
    (fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK)
    if sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
    else None
)
"""Locks that belong to an open file rather than to a process, and how they are asked for."""


_NOT_A_FILE_ERRNOS = frozenset((errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO))
"""What the system says when a link, a folder or a socket is to be opened as a file."""


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file for reading, if it lies there itself: a link or a pipe raises NotAStore, and nothing waits for one."""
    return os.fdopen(_open_regular_fd(path, os.O_RDONLY), "rb")


def read_regular_file(path: Path) -> bytes:
    """Return what is in such a file."""
    with open_regular_file(path) as file:
        return file.read()


def _open_regular_fd(path: Path, flags: int) -> int:
    try:
        # Without O_NONBLOCK, a pipe that nobody writes to would keep us for ever.
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
    """The real file system."""

    def open_or_create(self, path: Path) -> int:
        """Open a file for reading and writing, creating it for its owner only; as `reading` does otherwise."""
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
        """Bring a file's content to the disk, and what is needed to find it."""
        os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file off."""
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        """Return how many bytes a file has."""
        return os.fstat(fd).st_size

    def create_temporary(self, path: Path) -> Path:
        """Create an empty file beside a path, under a name that nobody has, and return it."""
        # Imported here: opening a store that exists is twice as fast without it.
        import tempfile  # noqa: PLC0415

        fd, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
        os.close(fd)
        return Path(name)

    def sync(self, path: Path) -> None:
        """Bring a file or folder to the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Put a file in another's place, and bring that to the disk."""
        source.replace(target)
        self.sync(target.parent)

    def replace_content(self, path: Path, data: bytes) -> None:
        """Have a file with this content at a path, or the one before, whatever happens; durable on return."""
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
        """Return device and inode of a path, None if nothing is there."""
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
        """Return device and inode of a folder and when it last changed; None if nothing is there.

        That is its ctime, which nobody can set: programs that copy folders put back the mtime.
        """
        try:
            found = os.stat(folder)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock if it is free."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, fd: int) -> None:
        """Wait for the exclusive lock."""
        fcntl.flock(fd, fcntl.LOCK_EX)

    def unlock(self, fd: int) -> None:
        """Give the lock back."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_byte(self, fd: int, at: int) -> bool:
        """Lock one byte for as long as the file is open; False if another has it, or there are no such locks."""
        if _BYTE_LOCK_COMMANDS is None:
            return False
        try:
            fcntl.fcntl(
                fd, _BYTE_LOCK_COMMANDS[0], _FLOCK_STRUCT.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
            )
        except OSError:
            return False
        return True

    def is_byte_locked(self, fd: int, at: int) -> bool:
        """Whether another has locked that byte."""
        if _BYTE_LOCK_COMMANDS is None:
            return False
        found = fcntl.fcntl(
            fd, _BYTE_LOCK_COMMANDS[1], _FLOCK_STRUCT.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
        )
        return _FLOCK_STRUCT.unpack(found)[0] != fcntl.F_UNLCK

    def lock_holder(self, fd: int) -> str:
        """Return the id of the process that holds a file's lock; empty where it can't be known."""
        place = f":{os.fstat(fd).st_ino}"
        with contextlib.suppress(OSError):
            for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
                match line.split():
                    # Those who wait have an arrow before the kind.
                    case [_, "FLOCK", _, _, process, where, *_] if where.endswith(place):
                        return process
                    case _:
                        continue
        return ""

    def file_system_type(self, path: Path) -> str:
        """Return the type of the file system that holds a folder; empty where it can't be known."""
        best, kind, place = 0, "", f"{path}/"
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
                fields = line.split(" ")
                point = fields[4].encode().decode("unicode_escape").rstrip("/") + "/"
                # Of the points that a path lies under, the longest is the deepest.
                if len(point) >= best and place.startswith(point):
                    best, kind = len(point), fields[fields.index("-") + 1]
        return kind
