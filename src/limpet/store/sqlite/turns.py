"""The turn between processes: one lock on one file, taken for each batch and given back after it.

Uncontended it is one system call. When another process holds it, the caller looks again a few times,
since turns are short, and a process that gets several in a row finds its caches still valid. Then a
thread of its own stands in the kernel's line, so that the caller can give up after a time limit and
name the holder.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from pathlib import Path

from limpet import errors
from limpet.store.sqlite.files import Files

LOOKS = 24
LOOK_S, LOOK_S_MAX = 200e-6, 4e-3
"""How often, and how soon again, a taken lock is tried before standing in line."""

CROWD_TURNS = 64
"""For how many turns that were free at once it is remembered that others wanted it too."""


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


def _leave_child() -> None:
    # A lock belongs to the open file, which a forked child shares: it must not keep it from others.
    for turns in list(_all):
        turns.drop()


os.register_at_fork(after_in_child=_leave_child)


class Turns:
    """Takes and passes the turn of one store. Used by one thread at a time, which the store ensures."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self.fd = files.open_here(path)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted = self._granted = self._waiting = self._closed = False
        self.crowd = 0
        _all.add(self)

    def drop(self) -> None:
        """Let go of the lock file without touching the lock, in a child that may not use it."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def take(self, timeout_s: float) -> None:
        """Take the turn; raise StoreBusy naming the holder if it does not come in time."""
        if not self.try_take() and (self._waiting or not self._look()):
            self._wait(timeout_s)

    def try_take(self) -> bool:
        """Take the turn if it is free."""
        if self._waiting or not self._files.try_lock(self.fd):
            self.crowd = CROWD_TURNS
            return False
        if self.crowd:
            self.crowd -= 1
        return True

    def _look(self) -> bool:
        pause_s = LOOK_S
        for _ in range(LOOKS):
            time.sleep(pause_s)
            if self._files.try_lock(self.fd):
                return True
            pause_s = min(2 * pause_s, LOOK_S_MAX)
        return False

    def give(self) -> None:
        """Pass the turn on."""
        self._files.unlock(self.fd)

    def close(self) -> None:
        """Stop waiting and close the lock file."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if not self._waiting:
            self._files.close(self.fd)

    def _wait(self, timeout_s: float) -> None:
        with self._changed:
            self._wanted = self._waiting = True
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._stand_in_line, name="limpet-turn", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            try:
                came = self._changed.wait_for(lambda: self._granted, timeout_s)
            except BaseException:
                self._decline()
                raise
            self._wanted = self._granted = False
            if came:
                self._waiting = False
                return
        raise busy(self._files, self.fd, self._path, timeout_s)

    def _decline(self) -> None:
        # Interrupted while waiting: a turn that comes all the same goes to the next.
        if self._granted:
            self._files.unlock(self.fd)
            self._waiting = False
        self._wanted = self._granted = False

    def _stand_in_line(self) -> None:
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


def busy(files: Files, fd: int, path: Path, timeout_s: float) -> errors.StoreBusy:
    """Return the error for a lock that did not come in time: it names the holder."""
    holder = files.holder(fd)
    known = "ps" if holder else f"lsof {path} names it"
    return errors.StoreBusy(
        f"{f'process {holder}' if holder else 'another process'} has held the store for more than {timeout_s:g} s.",
        hint=f"See whether it is stopped ({known}), and continue or end it; then retry.",
        facts={"holder": holder or "unknown", "timeout_s": timeout_s, "path": str(path)},
    )
