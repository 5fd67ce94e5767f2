"""The write lock between processes, and the signal that wakes callers who wait for commits.

The lock is an exclusive `flock` on one file, taken for each batch and released after it. A
contended lock is polled a few times first, because batches are short and a process that gets
several in a row keeps its caches valid. Then a thread waits in the kernel, so that the caller
can give up after a time limit and name the holder.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from limpet import errors
from limpet.stores.sqlite.shared_file.store_files import StoreFiles

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
        """Release the lock."""
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
