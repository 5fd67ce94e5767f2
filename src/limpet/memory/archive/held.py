"""What a search needs to know of all documents of an owner, read once for as long as nothing changes."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence

from limpet import limits
from limpet.memory.archive.documents import GONE, HIDDEN, View
from limpet.memory.archive.index import Head


class Held:
    """The documents that an owner had at one moment. It is never changed."""

    def __init__(self, following: int, views: Sequence[tuple[int, View]]) -> None:
        self.views = sorted(views, key=lambda each: each[0])
        self._firsts = [first for first, _ in self.views]
        self.kinds = bytearray((GONE,)) * following
        """By number."""
        self.replies: dict[int, list[int]] = {}
        """By number: which documents that can be found answer it."""
        for first, view in self.views:
            self.kinds[first : first + len(view)] = view.kinds
            for number, far in enumerate(view.answers, first):
                if far and self.kinds[number] < HIDDEN:
                    self.replies.setdefault(number - far, []).append(number)

    def __len__(self) -> int:
        return len(self.kinds)

    def at(self, number: int) -> tuple[View, int]:
        """Return the row that has a document, and its place there."""
        place = bisect.bisect_right(self._firsts, number) - 1
        first, view = self.views[place]
        return view, number - first


class Kept:
    """What was read for the last owners that searched, up to limits.ARCHIVE_CACHED_DOCUMENTS documents. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, tuple[Head, Held]] = {}

    def get(self, owner: int, head: Head) -> Held | None:
        """Return what an owner had at the moment of a head, if it is known."""
        with self._lock:
            found = self._held.pop(owner, None)
            if found is None or found[0] != head:
                return None
            self._held[owner] = found
            return found[1]

    def put(self, owner: int, head: Head, held: Held) -> None:
        """Keep what an owner had, in the place of whoever has not searched for longest."""
        with self._lock:
            self._held.pop(owner, None)
            self._held[owner] = head, held
            while sum(len(one) for _, one in self._held.values()) > limits.ARCHIVE_CACHED_DOCUMENTS:
                del self._held[next(iter(self._held))]
