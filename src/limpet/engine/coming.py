"""Those who come in while others are on their way, for a leader who goes on deciding while a server works."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from limpet import errors, limits

if TYPE_CHECKING:
    from limpet.engine.commits import Ticket

T = TypeVar("T")

TAKEN_MIN: Final = 8
"""Fewer than these are not parted, and wait for those on their way: a commit of their own would cost more than it saves."""

GO_ON_S: Final = 0.1
"""How long a leader goes on with those who come, before others get the store's turn."""

LOOK_S: Final = 1.0
"""How long a leader waits for whatever comes first, before it waits for the server alone."""


class Server(Protocol):
    """Where answers come from."""

    def ready(self) -> bool: ...
    def fileno(self) -> int: ...


class Bell:
    """Rung by whoever comes in, for a leader that sleeps until a server answers."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self.wanted = False
        """Whether somebody sleeps beside it. Set by the holder of the queue's lock; who wakes takes it back without, and at worst it rings once in vain."""

    def ring(self) -> None:
        """Wake who sleeps. By the holder of the queue's lock."""
        self.wanted = False
        assert self._ends is not None, "who wants it has hung it up"
        os.write(self._ends[1], b"!")

    def beside(self, server: Server) -> Callable[[float], bool]:
        """Return how to sleep so many seconds, until a server has answered or the bell rings: whether it is not the bell alone.

        One that rings too late for this sleep ends the next one: who wakes looks, and sleeps again.
        """
        (bell, _), poll = self._hung(), select.poll()
        poll.register(server.fileno(), select.POLLIN)
        poll.register(bell, select.POLLIN)

        def sleep(timeout_s: float) -> bool:
            found = [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]
            self.wanted = False
            if bell in found:
                os.read(bell, 1)
            return found != [bell]

        return sleep

    def is_hung(self) -> bool:
        """Whether there is one; False if the system has no descriptors left."""
        with contextlib.suppress(OSError):
            self._hung()
        return self._ends is not None

    def _hung(self) -> tuple[int, int]:
        if self._ends is None:
            self._ends = os.pipe()
        return self._ends

    def want(self) -> None:
        """Be woken from now on. By the holder of the queue's lock."""
        self._hung()
        self.wanted = True

    def close(self) -> None:
        """Take it down."""
        ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)


class Coming:
    """The line of a commit queue, as its leader takes from it: in order, some while others are on their way."""

    def __init__(
        self,
        line: deque[Ticket],
        lock: threading.Lock,
        bell: Bell,
        finish: Callable[[list[Ticket], float], None],
    ) -> None:
        self._line = line
        self._lock = lock
        self._bell = bell
        self._finish = finish
        self._taken: list[Ticket] = []
        self._began = time.perf_counter()
        self._until: float | None = None
        self._ended = False
        self._idle_s = 0.0
        self.over_time = False
        """Whether nothing but the time was a reason to end: once others had a chance of the turn, whoever is in line can go ahead."""

    def __len__(self) -> int:
        """Return how many are in line, those on their way included."""
        with self._lock:
            drop_done(self._line)
            return len(self._line)

    def hears(self) -> bool:
        """Whether `wait` can be told of those who come."""
        return self._bell.is_hung()

    @property
    def idle(self) -> float:
        """The part of the time so far that was spent waiting."""
        return self._idle_s / (time.perf_counter() - self._began)

    def waited_for(self, answer: Callable[[], T]) -> T:
        """Return an answer that has to be waited for."""
        began = time.perf_counter()
        try:
            return answer()
        finally:
            self._idle_s += time.perf_counter() - began

    @property
    def taken(self) -> list[Ticket]:
        """Those who were taken, and are not through."""
        return self._taken

    def take(self) -> list[Ticket]:
        """Take the next in line, up to half of all: so that there is somebody to decide for while the server works."""
        now = time.perf_counter()
        if self._until is None:
            self._until = now + GO_ON_S
        elif now > self._until and not self._ended:
            self._ended = self.over_time = True
        if self._ended:
            return []
        with self._lock:
            first = len(self._taken)
            most = min(limits.COMMIT_BATCH_MAX, max(TAKEN_MIN, (len(self._line) + 1) // 2))
            tickets = list(islice(self._line, first, first + most)) if self._is_time() else []
        if any(ticket.settled for ticket in tickets):
            # Left behind by a leader who was interrupted: they only have to be told.
            self._ended = True
            return []
        self._taken += tickets
        return tickets

    def _is_time(self) -> bool:
        """Whether there are enough in line for a commit. By the holder of the lock."""
        drop_done(self._line)
        taken = len(self._taken)
        return len(self._line) - taken >= (TAKEN_MIN if taken else 1)

    def refuse(self, tickets: Collection[Ticket]) -> None:
        """Give some back who were taken, and take nobody any more."""
        self._taken[:] = [ticket for ticket in self._taken if ticket not in tickets]
        self.end()

    def end(self) -> None:
        """Take nobody any more: what comes next is not for those who go ahead."""
        self._ended, self.over_time = True, False

    def wait(self, server: Server) -> bool:
        """Wait for a server's answer, or for somebody who can be taken; return whether it is the answer."""
        if self._ended or server.ready():
            return True
        with self._lock:
            if self._is_time():
                return False
            self._bell.want()
        sleep = self._bell.beside(server)
        # At the last moment: whoever is told wakes at once, and would wait for the interpreter.
        self.tell()
        return self.waited_for(lambda: sleep(LOOK_S))

    def tell(self) -> None:
        """Tell those of the taken whose answer is known."""
        known = [ticket for ticket in self._taken if ticket.settled]
        if known:
            self._finish(known, self._began)
            self._taken[:] = [ticket for ticket in self._taken if not ticket.settled]

    def release(self) -> None:
        """Give those back whose answer is not known: they are in line still."""
        self._taken[:] = [ticket for ticket in self._taken if ticket.settled]


def drop_done(line: deque[Ticket]) -> None:
    """Take those out of a line who are through. By the holder of the queue's lock."""
    while line and line[0].done:
        line.popleft()


def on_its_way(error: errors.Error) -> errors.Unavailable:
    """Return the error for those whose commit was on its way when another's failed."""
    made = errors.Unavailable(
        f"a commit that was sent with it failed ({error.message.rstrip('.')}); whether this one took effect is unknown.",
        hint="Retry with the same key or the same message ids: it has one effect.",
    )
    made.__cause__ = error
    return made
