"""Waiting for commits: those of this process wake at once, those of others are looked for.

A look is a reading of the newest position over a connection that is open already. The log file itself is
never looked at: see `place`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FIRST_S = 0.005
LONGEST_S = 0.05
"""How long somebody who waits does not look at first, and at most. Twice as long after each look in vain."""


class News:
    """Those who wait, and those who have something to tell. Telling costs nothing while nobody waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._told = 0

    def tell(self) -> None:
        """Wake everybody. Whoever begins to wait later looks first, so nothing is missed."""
        if self._waiting:
            with self._changed:
                self._told += 1
                self._changed.notify_all()

    def wait(self, there: Callable[[], bool], timeout_s: float) -> bool:
        """Return True as soon as a look finds it there; False after a time."""
        until, pause = time.monotonic() + timeout_s, FIRST_S
        with self._changed:
            self._waiting += 1
        try:
            while True:
                told = self._told
                if there():
                    return True
                left = until - time.monotonic()
                if left <= 0:
                    return False
                with self._changed:
                    if self._told == told:
                        self._changed.wait(min(pause, left))
                    pause = min(pause * 2, LONGEST_S)
        finally:
            with self._changed:
                self._waiting -= 1
