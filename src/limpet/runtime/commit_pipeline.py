"""Pipelined group commit: the leader decides the next batch while earlier ones are in flight."""

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
    from limpet.runtime.commit_queue import Ticket

T = TypeVar("T")

BATCH_MIN: Final = 8
"""The smallest batch that is sent while others are in flight: a commit for fewer costs more than it saves."""

PIPELINE_S: Final = 0.1
"""How long a leader pipelines before it releases the store's write lock to other processes."""

POLL_S: Final = 1.0
"""How long a leader waits for new tickets and the server together, before it waits for the server alone."""


class AnswerSource(Protocol):
    """The connection on which the answers to commits arrive."""

    def has_answer(self) -> bool: ...
    def fileno(self) -> int: ...


class WakeupPipe:
    """Wakes a leader that sleeps until a server answers, when a new ticket is submitted (the self-pipe trick)."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self.armed = False
        """Whether a leader sleeps. Set under the queue's lock; cleared without it, so one byte too many may be written."""

    def wake(self) -> None:
        """Wake the leader. The caller holds the queue's lock."""
        self.armed = False
        assert self._ends is not None, "only an open pipe is armed"
        os.write(self._ends[1], b"!")

    def sleeper(self, server: AnswerSource) -> Callable[[float], bool]:
        """Return a function that sleeps until the server answers, `wake` is called, or a time has passed.

        It returns False if it was only woken. A `wake` that comes too late ends the next sleep, so the
        caller looks at the queue after each.
        """
        (pipe, _), poll = self._opened(), select.poll()
        poll.register(server.fileno(), select.POLLIN)
        poll.register(pipe, select.POLLIN)

        def sleep(timeout_s: float) -> bool:
            found = [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]
            self.armed = False
            if pipe in found:
                os.read(pipe, 1)
            return found != [pipe]

        return sleep

    def open(self) -> bool:
        """Open the pipe if it is not; return False if the system has no descriptors left."""
        with contextlib.suppress(OSError):
            self._opened()
        return self._ends is not None

    def _opened(self) -> tuple[int, int]:
        if self._ends is None:
            self._ends = os.pipe()
        return self._ends

    def arm(self) -> None:
        """Have the next submission wake the leader. The caller holds the queue's lock."""
        self._opened()
        self.armed = True

    def close(self) -> None:
        """Close the pipe. Closing twice is fine."""
        ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)


class CommitPipeline:
    """The queue as a pipelining leader sees it: it takes batches in order while earlier ones are in flight."""

    def __init__(
        self,
        queue: deque[Ticket],
        lock: threading.Lock,
        wakeup: WakeupPipe,
        finish: Callable[[list[Ticket], float], None],
    ) -> None:
        self._queue = queue
        self._lock = lock
        self._wakeup = wakeup
        self._finish = finish
        self._taken: list[Ticket] = []
        self._began = time.perf_counter()
        self._until: float | None = None
        self._stopped = False
        self._idle_s = 0.0
        self.timed_out = False
        """Whether the time limit alone ended the pipeline, so that the same leader may begin another one."""

    def __len__(self) -> int:
        """Return how many tickets are queued, those in flight included."""
        with self._lock:
            drop_done(self._queue)
            return len(self._queue)

    def can_wait(self) -> bool:
        """Return whether `wait` can be woken by new tickets."""
        return self._wakeup.open()

    @property
    def idle_share(self) -> float:
        """The part of the time so far that the leader spent waiting."""
        return self._idle_s / (time.perf_counter() - self._began)

    def timed(self, wait: Callable[[], T]) -> T:
        """Call `wait`, count its time as idle, and return its result."""
        began = time.perf_counter()
        try:
            return wait()
        finally:
            self._idle_s += time.perf_counter() - began

    @property
    def taken(self) -> list[Ticket]:
        """The tickets that were taken and are not finished."""
        return self._taken

    def take(self) -> list[Ticket]:
        """Take the next batch, at most half of the queue: the rest is decided while the server works."""
        now = time.perf_counter()
        if self._until is None:
            self._until = now + PIPELINE_S
        elif now > self._until and not self._stopped:
            self._stopped = self.timed_out = True
        if self._stopped:
            return []
        with self._lock:
            first = len(self._taken)
            most = min(limits.COMMIT_BATCH_MAX, max(BATCH_MIN, (len(self._queue) + 1) // 2))
            tickets = list(islice(self._queue, first, first + most)) if self._has_batch() else []
        if any(ticket.settled for ticket in tickets):
            # A leader that was interrupted left them settled: their owners only have to be woken.
            self._stopped = True
            return []
        self._taken += tickets
        return tickets

    def _has_batch(self) -> bool:
        """Return whether the queue holds enough for a commit. The caller holds the lock."""
        drop_done(self._queue)
        taken = len(self._taken)
        return len(self._queue) - taken >= (BATCH_MIN if taken else 1)

    def put_back(self, tickets: Collection[Ticket]) -> None:
        """Leave taken tickets to the ordinary commit, and take no more."""
        self._taken[:] = [ticket for ticket in self._taken if ticket not in tickets]
        self.stop()

    def stop(self) -> None:
        """Take no more tickets: the next one needs an ordinary commit."""
        self._stopped, self.timed_out = True, False

    def wait(self, server: AnswerSource) -> bool:
        """Wait for an answer of the server or for a batch to take; return True for the answer."""
        if self._stopped or server.has_answer():
            return True
        with self._lock:
            if self._has_batch():
                return False
            self._wakeup.arm()
        sleep = self._wakeup.sleeper(server)
        # Owners are woken only now: they run at once, and would take the interpreter from the leader.
        self.finish_settled()
        return self.timed(lambda: sleep(POLL_S))

    def finish_settled(self) -> None:
        """Wake the owners of taken tickets whose outcome is known."""
        known = [ticket for ticket in self._taken if ticket.settled]
        if known:
            self._finish(known, self._began)
            self._taken[:] = [ticket for ticket in self._taken if not ticket.settled]

    def release(self) -> None:
        """Leave the tickets whose outcome is unknown in the queue."""
        self._taken[:] = [ticket for ticket in self._taken if ticket.settled]


def drop_done(queue: deque[Ticket]) -> None:
    """Remove finished tickets from the head of a queue. The caller holds the queue's lock."""
    while queue and queue[0].done:
        queue.popleft()


def in_flight_error(error: errors.Error) -> errors.Unavailable:
    """Return the error for tickets whose commit was in flight when another one failed."""
    made = errors.Unavailable(
        f"a commit that was sent with it failed ({error.message.rstrip('.')}); whether this one took effect is unknown.",
        hint="Retry with the same key or the same message ids: it has one effect.",
    )
    made.__cause__ = error
    return made
