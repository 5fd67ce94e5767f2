"""Group commit: a caller that finds no commit running leads and commits for all that wait.

Blocking callers lead in turn, which saves a switch to another thread. A background thread leads
only for callers that cannot block (async tasks, deferred writes). The leader takes the queued
tickets, has them processed as one batch, wakes their owners and passes the lead on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol, TypeVar

from limpet import errors, limits
from limpet.core.values.commands import CommandRequest
from limpet.core.values.frame_state import Frame
from limpet.core.values.session_state import SessionState

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
        self.taken: list[Ticket] = []
        """The tickets that were taken and are not finished."""
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
            first = len(self.taken)
            most = min(limits.COMMIT_BATCH_MAX, max(BATCH_MIN, (len(self._queue) + 1) // 2))
            tickets = list(itertools.islice(self._queue, first, first + most)) if self._has_batch() else []
        if any(ticket.settled for ticket in tickets):
            # A leader that was interrupted left them settled: their owners only have to be woken.
            self._stopped = True
            return []
        self.taken += tickets
        return tickets

    def _has_batch(self) -> bool:
        """Return whether the queue holds enough for a commit. The caller holds the lock."""
        drop_done(self._queue)
        taken = len(self.taken)
        return len(self._queue) - taken >= (BATCH_MIN if taken else 1)

    def put_back(self, tickets: Collection[Ticket]) -> None:
        """Leave taken tickets to the ordinary commit, and take no more."""
        self.taken[:] = [ticket for ticket in self.taken if ticket not in tickets]
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
        known = [ticket for ticket in self.taken if ticket.settled]
        if known:
            self._finish(known, self._began)
            self.taken[:] = [ticket for ticket in self.taken if not ticket.settled]

    def release(self) -> None:
        """Leave the tickets whose outcome is unknown in the queue."""
        self.taken[:] = [ticket for ticket in self.taken if ticket.settled]


def drop_done(queue: deque[Ticket]) -> None:
    """Remove finished tickets from the head of a queue. The caller holds the queue's lock."""
    while queue and queue[0].done:
        queue.popleft()


LEADER_CHECK_S = 1.0
"""How often a waiting caller checks that the leader is still alive."""


GATHER_S_MAX = 0.005
"""The longest time that a leader waits for callers that were just answered to submit again."""


class CommandResult:
    """The result of a command: the session or frame after it, and whether an earlier execution was found."""

    __slots__ = ("replayed", "value")

    def __init__(self, value: SessionState | Frame, *, replayed: bool = False) -> None:
        self.value = value
        self.replayed = replayed

    @property
    def state(self) -> SessionState:
        """The session's state. Only for commands on sessions."""
        assert isinstance(self.value, SessionState), "a frame's command is answered with a frame"
        return self.value

    @property
    def frame(self) -> Frame:
        """The frame. Only for commands on frames."""
        assert isinstance(self.value, Frame), "a session's command is answered with a session"
        return self.value


class TicketChannel(Protocol):
    """Receives the finished tickets of non-blocking callers, a batch at a time."""

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        """Take finished tickets. The committing thread calls this."""
        ...


class Leader:
    """The thread that commits. An interrupt can end it anywhere; `alive` is False from then on."""

    __slots__ = ("alive",)

    def __init__(self) -> None:
        self.alive = True


class Ticket(Leader):
    """A submitted request and, once `done`, its answer or error. The thread that owns it may become the leader."""

    __slots__ = (
        "_wake", "abandoned", "answer", "channel", "done", "error", "follower", "leads", "request",
    )  # fmt: skip

    def __init__(self, request: CommandRequest, channel: TicketChannel | None = None) -> None:
        self.alive = True
        self.request = request
        self.channel = channel
        self.answer: CommandResult | None = None
        self.error: BaseException | None = None
        self.done = self.leads = self.abandoned = False
        self.follower: Ticket | None = None
        self._wake: threading.Lock | None = None

    def succeed(self, answer: CommandResult) -> None:
        self.answer = answer

    def fail(self, error: BaseException) -> None:
        self.error = error

    @property
    def settled(self) -> bool:
        """Whether the answer or the error is set."""
        return self.answer is not None or self.error is not None

    def prepare_wait(self) -> None:
        """Create the lock on which the owner will sleep, so that it can be woken from now on."""
        self._wake = _taken_lock()

    @property
    def waited(self) -> bool:
        """Whether the owner ever slept."""
        return self._wake is not None

    @property
    def sleeps(self) -> bool:
        """Whether the owner sleeps: it neither leads nor has given up waiting."""
        return self._wake is not None and not self.leads and not self.abandoned

    def wait(self) -> None:
        """Sleep until woken, at most LEADER_CHECK_S seconds."""
        assert self._wake is not None, "prepare_wait comes first"
        self._wake.acquire(timeout=LEADER_CHECK_S)
        self.wake_follower()

    def wake_follower(self) -> None:
        """Wake the owner of the next ticket in the chain that `_wake_owners` made."""
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.wake()

    def wake(self) -> None:
        """Wake the owner. Does nothing if it does not sleep."""
        if self._wake is not None and self._wake.locked():
            self._wake.release()

    def result(self) -> CommandResult:
        """Return the answer or raise the error. The ticket must be settled."""
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class CommitQueue:
    """Requests in the order of their submission, and the thread that commits them.

    Callers that were just answered tend to submit again at once. A blocking leader waits for them, no
    longer than the previous commit took: all share one commit, and none competes with the leader for
    the interpreter.
    """

    def __init__(
        self, process: Callable[[Sequence[Ticket]], None], pipeline: Callable[[CommitPipeline], None] | None = None
    ) -> None:
        self._process = process
        self._pipeline = pipeline
        self._wakeup = WakeupPipe()
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._waiting: deque[Ticket] = deque()
        self._leader: Leader | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._expected, self._gather_until = 1, 0.0
        self._complete: threading.Lock | None = None

    def run(self, ticket: Ticket) -> CommandResult:
        """Submit a ticket and wait for its result; become the leader if there is none."""
        leads = False
        try:
            with self._mutex:
                self._enqueue(ticket)
                if self._has_leader():
                    ticket.prepare_wait()
                    self._wake_leader()
                else:
                    leads, self._leader = True, ticket
            while not leads and not ticket.settled:
                ticket.wait()
                leads = ticket.leads or (not ticket.settled and self._take_over(ticket))
            if leads:
                self._lead(ticket)
            elif ticket.sleeps:
                self._stop_waiting(ticket)
        except BaseException:
            # An interrupt ends the owner's wait. The command stays queued, and another thread must lead.
            leads = self._stop_waiting(ticket) or leads
            raise
        finally:
            try:
                if leads:
                    self._pass_lead()
            finally:
                ticket.alive = False
        return ticket.result()

    def _stop_waiting(self, ticket: Ticket) -> bool:
        """Mark that the owner waits no more; return whether it had become the leader."""
        with self._mutex:
            ticket.abandoned = True
        ticket.wake_follower()
        return ticket.leads

    def _has_leader(self) -> bool:
        return self._leader is not None and self._leader.alive

    def _take_over(self, ticket: Ticket) -> bool:
        with self._mutex:
            if ticket.settled or self._has_leader():
                return False
            self._leader, ticket.leads = ticket, True
            return True

    def _gather(self) -> None:
        with self._mutex:
            left_s = self._gather_until - time.perf_counter()
            if left_s <= 0 or len(self._waiting) >= self._expected:
                return
            complete = self._complete = _taken_lock()
        try:
            complete.acquire(timeout=left_s)
        finally:
            self._complete = None

    def submit(self, ticket: Ticket) -> None:
        """Submit without waiting. After `start`, the ticket's channel gets it when it is finished."""
        with self._mutex:
            self._enqueue(ticket)

    def start(self) -> None:
        """Have the submitted tickets committed, by the background thread if there is no leader."""
        with self._mutex:
            needed = bool(self._waiting) and not self._has_leader()
            self._wake_leader()
        if needed:
            self._wake_thread()

    def _wake_leader(self) -> None:
        if self._wakeup.armed:
            self._wakeup.wake()

    def _enqueue(self, ticket: Ticket) -> None:
        if self._closed:
            raise errors.EngineClosed
        if len(self._waiting) >= limits.QUEUE_MAX:
            raise errors.Unavailable(
                f"{limits.QUEUE_MAX:,} commands already wait for a commit.",
                hint="Submit more slowly, or await some of them first.",
            )
        self._waiting.append(ticket)
        complete = self._complete
        if complete is not None and len(self._waiting) >= self._expected:
            # The leader may have been interrupted: then the lock is free already.
            self._complete = None
            if complete.locked():
                complete.release()

    def _lead(self, own: Ticket | None) -> None:
        if own is not None and self._expected > 1:
            self._gather()
        while True:
            if own is None and self._pipeline is not None:
                while self._run_pipeline(self._pipeline):
                    pass
            batch = self._next_batch()
            if not batch:
                return
            self._settle(batch, partial(self._process_open, batch))
            if own is not None and own.done:
                return

    def _run_pipeline(self, commit: Callable[[CommitPipeline], None]) -> bool:
        """Commit what can be pipelined; return whether only the time limit ended it."""
        pipeline = CommitPipeline(self._waiting, self._mutex, self._wakeup, self._finish)

        def work() -> None:
            try:
                commit(pipeline)
            except BaseException:
                # An error before anything was taken fails the first batch, or it would come again for ever.
                if not pipeline.taken:
                    pipeline.take()
                raise
            pipeline.release()

        self._settle(pipeline.taken, work)
        return pipeline.timed_out

    def _next_batch(self) -> list[Ticket]:
        # Tickets stay queued until they are done: a leader that is interrupted anywhere leaves them
        # to the next one.
        waiting = self._waiting
        with self._mutex:
            drop_done(waiting)
            if len(waiting) == 1:
                return [waiting[0]]
            return list(itertools.islice(waiting, limits.COMMIT_BATCH_MAX))

    def _settle(self, batch: list[Ticket], work: Callable[[], None]) -> None:
        """Do the work that settles tickets, and wake their owners. An error fails all that are not settled."""
        began = time.perf_counter()
        try:
            work()
        except BaseException as error:
            for ticket in batch:
                if not ticket.settled:
                    ticket.fail(copy_error(error))
            if not isinstance(error, Exception):
                raise
        finally:
            if batch:
                self._finish(batch, began)

    def _process_open(self, batch: list[Ticket]) -> None:
        if open_ := [ticket for ticket in batch if not ticket.settled]:
            self._process(open_)

    def _finish(self, batch: list[Ticket], began: float) -> None:
        # A ticket is done, and leaves the queue, only after its owner was woken: a leader that is
        # interrupted in between leaves the waking to the next one.
        now = time.perf_counter()
        self._gather_until = now + min(now - began, GATHER_S_MAX)
        self._expected = len(self._waiting)
        if len(batch) == 1 and batch[0].channel is None:
            if batch[0].waited:
                self._wake_owners(batch)
            batch[0].done = True
            return
        channels: dict[TicketChannel, list[Ticket]] = {}
        owners: list[Ticket] = []
        for ticket in batch:
            channel = ticket.channel
            (owners if channel is None else channels.setdefault(channel, [])).append(ticket)
        if owners:
            self._wake_owners(owners)
            for ticket in owners:
                ticket.done = True
        for channel, tickets in channels.items():
            channel.deliver(tickets)
            for ticket in tickets:
                ticket.done = True

    def _wake_owners(self, batch: list[Ticket]) -> None:
        # Each owner wakes the next one as soon as it runs. Woken together, they would all compete for
        # the interpreter lock.
        if sleeping := [ticket for ticket in batch if ticket.sleeps]:
            with self._mutex:
                sleeping = [ticket for ticket in sleeping if ticket.sleeps]
                for ticket, follower in itertools.pairwise(sleeping):
                    ticket.follower = follower
            for ticket in sleeping[:1]:
                ticket.wake()

    def _pass_lead(self) -> None:
        with self._mutex:
            drop_done(self._waiting)
            successor = None
            for ticket in self._waiting:
                if ticket.channel is None and not ticket.abandoned and not ticket.settled:
                    successor, ticket.leads = ticket, True
                    break
            self._leader, waiting = successor, bool(self._waiting)
            if self._closed and not waiting:
                self._idle.notify_all()
        if successor is not None:
            successor.wake()
        elif waiting:
            self._wake_thread()

    def _wake_thread(self) -> None:
        try:
            with self._mutex:
                if self._thread is None or not self._thread.is_alive():
                    thread = threading.Thread(target=self._serve, name="limpet-commit", daemon=True)
                    thread.start()
                    self._thread = thread
        except RuntimeError:
            # The system can't start a thread: the calling thread commits.
            self._lead_for_others()
        else:
            self._calls.put(None)

    def _serve(self) -> None:
        while True:
            self._calls.get()
            self._lead_for_others()
            if self._closed and not self._waiting:
                return

    def _lead_for_others(self) -> None:
        leader = Leader()
        try:
            with self._mutex:
                if not self._waiting or self._has_leader():
                    return
                self._leader = leader
            self._lead(None)
        finally:
            try:
                if self._leader is leader:
                    self._pass_lead()
            finally:
                leader.alive = False

    def close(self) -> None:
        """Refuse new requests, commit the queued ones, and stop the thread."""
        self._closed = True
        while True:
            self.start()
            with self._idle:
                if not self._waiting and not self._has_leader():
                    break
                self._idle.wait(LEADER_CHECK_S)
        while self._thread is not None and self._thread.is_alive():
            self._calls.put(None)
            self._thread.join(LEADER_CHECK_S)
        self._wakeup.close()


def copy_error(error: BaseException) -> errors.Error:
    """Return a copy of an error for one of several callers, so that none sees another's traceback."""
    if isinstance(error, errors.Error):
        made = type(error)(error.message, hint=error.hint, facts=error.facts)
        made.__cause__ = error
        return made
    return _unknown_outcome(f"the commit was interrupted ({type(error).__name__}); whether it", error)


def in_flight_error(error: errors.Error) -> errors.Unavailable:
    """Return the error for tickets whose commit was in flight when another one failed."""
    return _unknown_outcome(
        f"a commit that was sent with it failed ({error.message.rstrip('.')}); whether this one", error
    )


def _unknown_outcome(what: str, error: BaseException) -> errors.Unavailable:
    made = errors.Unavailable(
        f"{what} took effect is unknown.", hint="Retry with the same key or the same message ids: it has one effect."
    )
    made.__cause__ = error
    return made
