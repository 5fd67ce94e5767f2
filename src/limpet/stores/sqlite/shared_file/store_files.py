"""The files beside the database: file operations, write lock, file identity, anchor, list of erased events.

The write lock is an exclusive `flock` on one file, taken for each batch and released after it. A contended lock is
polled a few times first, because batches are short and a process that gets several in a row keeps its caches valid.
Then a thread waits in the kernel, so that the caller can give up after a time limit and name the holder.

SQLite does not notice when the database or its write-ahead log is removed or replaced, and later commits would be lost
with it. Only the folder's change time is read per commit, and the files only after it changed: a stat of the log at
every commit makes Linux 6.13 and later write its inode at every sync.

SQLite also silently drops commits at a damaged end of its log. The anchor holds the heads of the log at the last
acknowledged commit: a head that the log does not have means that acknowledged events are lost. It is written after
each synced commit, before the acknowledgement, without a sync of its own: a power cut may leave an older one, never
one ahead of the log. Two slots alternate, so a torn write spoils at most the newer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import stat
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

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
        os.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        """Write at an offset, all of it, without syncing."""
        while (written := os.pwrite(fd, data, offset)) < len(data):
            data, offset = data[written:], offset + written

    def datasync(self, fd: int) -> None:
        """Sync a file's content and the metadata needed to read it."""
        os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def create_temporary(self, path: Path) -> Path:
        """Create an empty file beside a path, under an unused name, and return it."""
        # Imported here: opening a store that exists is twice as fast without it.
        import tempfile  # noqa: PLC0415

        fd, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".new", dir=path.parent)
        os.close(fd)
        return Path(name)

    def sync(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target, and sync the folder."""
        source.replace(target)
        self.sync(target.parent)

    def write_temporary(self, path: Path, data: bytes) -> Path:
        """Create a synced file with this content beside a path, under an unused name, and return it."""
        fresh = self.create_temporary(path)
        fd = self.open_or_create(fresh)
        try:
            self.write(fd, data, 0)
        finally:
            self.close(fd)
        self.sync(fresh)
        return fresh

    def replace_content(self, path: Path, data: bytes) -> None:
        """Replace a file's content atomically: after a crash it is the old or the new one. Durable on return."""
        self.rename(self.write_temporary(path, data), path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def inode_at(self, path: str) -> tuple[int, int] | None:
        """Return device and inode of a path, None if it does not exist."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def inode_of(self, fd: int) -> tuple[int, int]:
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
        fcntl.flock(fd, fcntl.LOCK_EX)

    def unlock(self, fd: int) -> None:
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
        """Return the id of the process that holds a file's lock; empty if the system does not report it."""
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
        """Return the type of a folder's file system; empty if the system does not report it."""
        best, kind, place = 0, "", f"{path}/"
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
                fields = line.split(" ")
                point = fields[4].encode().decode("unicode_escape").rstrip("/") + "/"
                # The longest mount point above a path is the one it lies on.
                if len(point) >= best and place.startswith(point):
                    best, kind = len(point), fields[fields.index("-") + 1]
        return kind


LOCK_POLLS_MAX = 24
LOCK_POLL_S, LOCK_POLL_S_MAX = 200e-6, 4e-3
"""How often, and after which pauses, a taken lock is tried before a thread waits for it."""

CONTENTION_MEMORY = 64
"""For how many uncontended acquisitions the lock still counts as contended."""

_open_locks: weakref.WeakSet[ProcessWriteLock] = weakref.WeakSet()


def _drop_in_child() -> None:
    # The lock belongs to the open file, which a forked child shares: the child must not hold it.
    for lock in list(_open_locks):
        lock.drop()


os.register_at_fork(after_in_child=_drop_in_child)


class ProcessWriteLock:
    """The write lock of one store between processes. The store lets one thread at a time use it.

    A flock can't be waited for with a time limit, so a helper thread waits in the kernel. Under `_changed`:
    `_wanted` while a caller waits for the thread; `_granted` once the thread has the lock for the caller;
    `_waiting` from the request until the lock is handed to a caller or, if the caller gave up, released again.
    """

    def __init__(self, files: StoreFiles, path: Path) -> None:
        self._files = files
        self._path = path
        self.fd = files.open_or_create(path)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted = self._granted = self._waiting = self._closed = False
        self.contention = 0
        _open_locks.add(self)

    def drop(self) -> None:
        """Close the lock file in a forked child. The lock stays with the parent."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def acquire(self, timeout_s: float) -> None:
        """Acquire the lock; raise StoreBusy, naming the holder, after `timeout_s`."""
        if not self.try_acquire() and (self._waiting or not self._poll()):
            self._wait_for_thread(timeout_s)

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        if self._waiting or not self._files.try_lock(self.fd):
            self.contention = CONTENTION_MEMORY
            return False
        if self.contention:
            self.contention -= 1
        return True

    def _poll(self) -> bool:
        pause_s = LOCK_POLL_S
        for _ in range(LOCK_POLLS_MAX):
            time.sleep(pause_s)
            if self._files.try_lock(self.fd):
                return True
            pause_s = min(2 * pause_s, LOCK_POLL_S_MAX)
        return False

    def release(self) -> None:
        self._files.unlock(self.fd)

    def close(self) -> None:
        """Stop waiting and close the lock file."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if not self._waiting:
            self._files.close(self.fd)

    def _wait_for_thread(self, timeout_s: float) -> None:
        with self._changed:
            self._wanted = self._waiting = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_lock_thread, name="limpet-write-lock", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            try:
                granted = self._changed.wait_for(lambda: self._granted, timeout_s)
            except BaseException:
                self._cancel_wait()
                raise
            self._wanted = self._granted = False
            if granted:
                self._waiting = False
                return
        raise lock_busy_error(self._files, self.fd, self._path, timeout_s)

    def _cancel_wait(self) -> None:
        # Interrupted while waiting: a lock that was granted meanwhile is released.
        if self._granted:
            self._files.unlock(self.fd)
            self._waiting = False
        self._wanted = self._granted = False

    def _run_lock_thread(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._wanted and not self._granted))
                if self._closed:
                    return
            self._files.lock(self.fd)
            with self._changed:
                if self._wanted and not self._closed:
                    self._granted = True
                    self._changed.notify_all()
                else:
                    self._files.unlock(self.fd)
                    self._waiting = False


def lock_busy_error(files: StoreFiles, fd: int, path: Path, timeout_s: float) -> errors.StoreBusy:
    """Return the error for a lock that was not acquired in time. It names the holder."""
    holder = files.lock_holder(fd)
    known = "ps" if holder else f"lsof {path} names it"
    return errors.StoreBusy(
        f"{f'process {holder}' if holder else 'another process'} has held the store for more than {timeout_s:g} s.",
        hint=f"See whether it is stopped ({known}), and continue or end it; then retry.",
        facts={"holder": holder or "unknown", "timeout_s": timeout_s, "path": str(path)},
    )


COMMIT_POLL_S = 0.005
COMMIT_POLL_S_MAX = 0.05
"""How often a waiter looks for commits of other processes: first and longest pause. Each pause is twice the last."""


class CommitSignal:
    """Wakes threads that wait for commits of this process. `notify` costs nothing while none waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._notified = 0

    def notify(self) -> None:
        """Wake all waiters. A thread that begins to wait later looks first, so no commit is missed."""
        if self._waiting:
            with self._changed:
                self._notified += 1
                self._changed.notify_all()

    def wait(self, is_ready: Callable[[], bool], timeout_s: float) -> bool:
        """Return True once `is_ready` does; False after the timeout."""
        until, pause = time.monotonic() + timeout_s, COMMIT_POLL_S
        with self._changed:
            self._waiting += 1
        try:
            while True:
                seen = self._notified
                if is_ready():
                    return True
                left = until - time.monotonic()
                if left <= 0:
                    return False
                with self._changed:
                    if self._notified == seen:
                        self._changed.wait(min(pause, left))
                    pause = min(pause * 2, COMMIT_POLL_S_MAX)
        finally:
            with self._changed:
                self._waiting -= 1


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
        return self._files.inode_at(self._log) is not None

    @property
    def database_inode(self) -> DeviceInode:
        """The identity of the database that was opened."""
        return self._accepted[0]

    def read_inodes(self) -> tuple[DeviceInode, DeviceInode]:
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


SLOT_BYTES = 4096
HEADS_MAX = 64
"""Tenants whose heads one slot holds: those written last. The newest commit is always among them."""

_ANCHOR_MAGIC = b"LPANCHR1"
_SLOT_STRUCT = struct.Struct(">8s16sQBH")
_HEAD_STRUCT = struct.Struct(">QQ32s")
_COUNT_BYTES = slice(24, 32)
"""The position of a slot's count. It is big-endian, so its bytes sort as numbers do."""


class LogHead(msgspec.Struct, frozen=True):
    """A tenant's last event: its position and link."""

    position: int
    link: bytes


class AnchorSlot(msgspec.Struct, frozen=True):
    """The content of one slot: the store, the number of the write, the heads by tenant number.

    `clean`: the last process emptied the write-ahead log and closed the store.
    """

    store_id: bytes
    count: int
    heads: Mapping[int, LogHead]
    clean: bool = False


def encode_slot(slot: AnchorSlot) -> bytes:
    """Return a slot's bytes with their checksum."""
    heads = slot.heads
    body = _SLOT_STRUCT.pack(_ANCHOR_MAGIC, slot.store_id, slot.count, slot.clean, len(heads))
    for tenant in heads:
        head = heads[tenant]
        body += _HEAD_STRUCT.pack(tenant, head.position, head.link)
    return body + hashlib.sha256(body).digest()


def decode_slot(data: bytes) -> AnchorSlot | None:
    """Return the slot at the beginning of some bytes, or None if it does not verify."""
    if len(data) < _SLOT_STRUCT.size:
        return None
    magic, store_id, count, clean, size = _SLOT_STRUCT.unpack_from(data)
    end = _SLOT_STRUCT.size + size * _HEAD_STRUCT.size
    if magic != _ANCHOR_MAGIC or hashlib.sha256(data[:end]).digest() != data[end : end + 32]:
        return None
    heads = (_HEAD_STRUCT.unpack_from(data, _SLOT_STRUCT.size + i * _HEAD_STRUCT.size) for i in range(size))
    kept = {tenant: LogHead(position, link) for tenant, position, link in heads}
    return AnchorSlot(store_id, count, kept, bool(clean))


def acknowledged_events(path: Path) -> int:
    """Return how many acknowledged events an anchor file records; 0 if it is missing or unreadable."""
    if not path.exists():
        return 0
    with open_regular_file(path) as file:
        newest = _newest_slot(_split_slots(file.read(2 * SLOT_BYTES)))
    return sum(head.position for head in newest.heads.values()) if newest else 0


def is_anchor_file(path: Path) -> bool:
    """Return whether a file can be an anchor: not too long, each slot blank or with the magic."""
    with open_regular_file(path) as file:
        data = file.read(2 * SLOT_BYTES + 1)
    whole = len(data) <= 2 * SLOT_BYTES
    return whole and all(not any(s[:8]) or s.startswith(_ANCHOR_MAGIC) for s in _split_slots(data))


def _split_slots(data: bytes) -> tuple[bytes, bytes]:
    return data[:SLOT_BYTES], data[SLOT_BYTES:]


def _newest_slot(halves: tuple[bytes, bytes]) -> AnchorSlot | None:
    """Return the intact slot with the higher count. The other is decoded only if that one is damaged."""
    one, other = sorted(halves, key=lambda half: half[_COUNT_BYTES], reverse=True)
    return decode_slot(one) or decode_slot(other)


class Anchor:
    """The anchor file of one open store. The caller of every method holds the write lock."""

    def __init__(self, files: StoreFiles, path: Path, store_id: bytes) -> None:
        self._files = files
        self._store_id = store_id
        self._fd = files.open_or_create(path)
        # The blocks are allocated now: a full disk must not prevent the anchor of a commit that succeeded.
        size = len(files.read(self._fd, 2 * SLOT_BYTES, 0))
        files.write(self._fd, bytes(2 * SLOT_BYTES - size), size)
        self._last_written: AnchorSlot | None = None

    def read(self) -> tuple[AnchorSlot | None, int]:
        """Return the newest intact slot, and how many written slots are damaged."""
        halves = self._read_slots()
        damaged = sum(decode_slot(half) is None and any(half) for half in halves)
        return _newest_slot(halves), damaged

    def _read_slots(self) -> tuple[bytes, bytes]:
        return _split_slots(self._files.read(self._fd, 2 * SLOT_BYTES, 0))

    def write(self, changed: Mapping[int, LogHead], *, clean: bool = False) -> None:
        """Write new heads. Heads of other tenants stay while there is room."""
        self.write_prepared(*self.prepare(changed, clean=clean))

    def prepare(
        self, changed: Mapping[int, LogHead], *, clean: bool = False, alone: bool = False
    ) -> tuple[AnchorSlot, bytes]:
        """Return the slot to write after the commit, encoded before it, so that the acknowledgement is not delayed.

        `alone`: no other process has written since this object did, so the file need not be read.
        """
        before = self._last_written if alone else _newest_slot(self._read_slots())
        heads = changed
        if before and before.store_id == self._store_id and before.heads.keys() != changed.keys():
            kept = {t: h for t, h in before.heads.items() if t not in changed}
            heads = dict(itertools.islice({**changed, **kept}.items(), HEADS_MAX))
        elif len(heads) > HEADS_MAX:
            heads = dict(itertools.islice(heads.items(), HEADS_MAX))
        slot = AnchorSlot(self._store_id, before.count + 1 if before else 1, heads, clean)
        return slot, encode_slot(slot)

    def write_prepared(self, slot: AnchorSlot, data: bytes) -> None:
        self._files.write(self._fd, data, slot.count % 2 * SLOT_BYTES)
        self._last_written = slot

    def close(self) -> None:
        self._files.close(self._fd)


ERASED_LIST_MAGIC: Final = b"LPERASE1"

LINK_PREFIX_BYTES: Final = 12
"""How much of an event's link identifies it in the list."""

_LIST_CHECKSUM_BYTES = 32

ErasureGroup = tuple[bytes, int, int, int]
"""Store, tenant and stream, and the event that required the erasure (0: the whole stream was erased)."""


class ErasedListEntry(msgspec.Struct, frozen=True, array_like=True):
    """Events of one stream that were erased for one reason, each by its position and the beginning of its link."""

    store: bytes
    tenant: int
    stream: int
    cause: int
    events: tuple[tuple[int, bytes], ...]

    @property
    def group(self) -> ErasureGroup:
        return self.store, self.tenant, self.stream, self.cause


def erased_list_path(store: Path) -> Path:
    return Path(f"{store}-erased")


def read_erased_list(path: Path) -> list[ErasedListEntry]:
    """Return the entries of a list, none if the file is missing; raise Corrupt if it is damaged."""
    if not path.exists():
        return []
    data = read_regular_file(path)
    body, check = data[:-_LIST_CHECKSUM_BYTES], data[-_LIST_CHECKSUM_BYTES:]
    if data.startswith(ERASED_LIST_MAGIC) and hashlib.sha256(body).digest() == check:
        try:
            return msgspec.msgpack.decode(body[len(ERASED_LIST_MAGIC) :], type=list[ErasedListEntry])
        except msgspec.MsgspecError:
            pass
    raise errors.Corrupt(
        f"{path}, the list of what was erased, is damaged.",
        hint="Put a copy of it back. Remove it only if no backup from before an erasure will ever be put here.",
        facts={"path": str(path)},
    )


def erased_list_checksum(path: Path) -> bytes:
    """Return the checksum at the end of a list; empty if the file is missing."""
    if not path.exists():
        return b""
    with open_regular_file(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LIST_CHECKSUM_BYTES))
        return file.read()
