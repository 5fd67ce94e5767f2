"""Random bytes for salts, drawn many at a time: to ask the system for each costs more than all else that an event's seal takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

DRAWN_BYTES: Final = 4096


class Salts:
    """Gives random bytes out of a supply. Safe for threads. No byte is ever given twice; a forked process must not go on with one."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._supply, self._at = b"", 0

    def __call__(self, size: int) -> bytes:
        """Return so many bytes."""
        with self._lock:
            at, end = self._at, self._at + size
            if end > len(self._supply):
                self._supply = self._random(max(DRAWN_BYTES, size))
                at, end = 0, size
            self._at = end
            return self._supply[at:end]
