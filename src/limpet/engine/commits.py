"""Group commit by construction: whoever finds nobody committing commits for all who wait.

Blocking callers lead in turn, which spares them a hop to another thread; a thread of its own leads
only for callers that can't (async tasks, deferred writes). A leader takes what waits, has it
processed as one batch, wakes its owners and passes the lead on.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from limpet import errors, limits
from limpet.engine.coming import Bell, Coming, drop_done
from limpet.values.command import Request
from limpet.values.frame import Frame
from limpet.values.session import SessionState

LOOK_UP_S = 1.0
"""How often a caller who waits for another's commit makes sure that there still is one."""


GATHER_S_MAX = 0.005
"""How long a leader waits for callers who were just answered to come back, at most."""


class Answer:
    """What a command led to: the session it ended up in, or its frame, and whether it was a replay."""

    __slots__ = ("replayed", "value")

    def __init__(self, value: SessionState | Frame, *, replayed: bool = False) -> None:
        self.value = value
        self.replayed = replayed

    @property
    def state(self) -> SessionState:
        """The state of the session; only of a command about one."""
        assert isinstance(self.value, SessionState), "a frame's command is answered with a frame"
        return self.value

    @property
    def frame(self) -> Frame:
        """The frame; only of a command about one."""
        assert isinstance(self.value, Frame), "a session's command is answered with a session"
        return self.value


class Channel(Protocol):
    """Where finished tickets of callers who do not block are delivered, a batch at a time."""

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        """Take tickets that are done. Called from the committing thread."""
        ...


class Leader:
    """Whoever leads. An interrupt can end a leader anywhere; then it is not `here` any more."""

    __slots__ = ("here",)

    def __init__(self) -> None:
        self.here = True


class Ticket(Leader):
    """One submitted request and, once `done`, its answer or error. Its owner may lead."""

    __slots__ = (
        "_wake", "answer", "channel", "done", "error", "follower", "leads", "left", "request",
    )  # fmt: skip

    def __init__(self, request: Request, channel: Channel | None = None) -> None:
        self.here = True
        self.request = request
        self.channel = channel
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self.done = self.leads = self.left = False
        self.follower: Ticket | None = None
        self._wake: threading.Lock | None = None

    def succeed(self, answer: Answer) -> None:
        """Set the answer; the owner is woken when its batch is through."""
        self.answer = answer

    def fail(self, error: BaseException) -> None:
        """Set the error; the owner is woken when its batch is through."""
        self.error = error

    @property
    def settled(self) -> bool:
        """Whether answer or error is known."""
        return self.answer is not None or self.error is not None

    def will_wait(self) -> None:
        """The owner is going to sleep: from here on it can be woken."""
        self._wake = _taken_lock()

    @property
    def waited(self) -> bool:
        """Whether the owner ever went to sleep."""
        return self._wake is not None

    @property
    def sleeps(self) -> bool:
        """Whether the owner went to sleep and is still waiting to be woken: not to lead, and not gone."""
        return self._wake is not None and not self.leads and not self.left

    def wait(self) -> None:
        """Sleep until done or made leader, or for a while."""
        assert self._wake is not None, "whoever waits has said so"
        self._wake.acquire(timeout=LOOK_UP_S)
        self.wake_follower()

    def wake_follower(self) -> None:
        """Wake the owner of the ticket behind this one, if its batch made it a chain."""
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.wake()

    def wake(self) -> None:
        """End the owner's sleep; an owner that was interrupted sleeps no more."""
        if self._wake is not None and self._wake.locked():
            self._wake.release()

    def result(self) -> Answer:
        """Return the answer or raise the error. Only once done."""
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class CommitQueue:
    """Requests on their way to the log, in the order they were submitted.

    Callers who were just answered tend to come back at once. A leader among them gathers them first,
    for no longer than the commit before took: one commit for all, and none of them competes with it
    for the interpreter.
    """

    def __init__(
        self,
        process: Callable[[Sequence[Ticket]], None],
        send_ahead: Callable[[Coming], None] | None = None,
    ) -> None:
        self._process = process
        self._send_ahead = send_ahead
        self._bell = Bell()
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._waiting: deque[Ticket] = deque()
        self._leader: Leader | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._expected, self._gather_until = 1, 0.0
        self._complete: threading.Lock | None = None

    def run(self, ticket: Ticket) -> Answer:
        """Submit and wait, leading the commit if nobody does."""
        leads = False
        try:
            with self._mutex:
                self._enter(ticket)
                if self._led():
                    ticket.will_wait()
                    self._ring()
                else:
                    leads, self._leader = True, ticket
            while not leads and not ticket.settled:
                ticket.wait()
                leads = ticket.leads or (not ticket.settled and self._takes_over(ticket))
            if leads:
                self._lead(ticket)
            elif ticket.sleeps:
                self._leaves(ticket)
        except BaseException:
            # Interrupted: the command goes on, but its owner can't lead any more.
            leads = self._leaves(ticket) or leads
            raise
        finally:
            try:
                if leads:
                    self._pass_on()
            finally:
                ticket.here = False
        return ticket.result()

    def _leaves(self, ticket: Ticket) -> bool:
        """The owner sleeps no more, woken or not: nobody stands behind it. Return whether it had the lead."""
        with self._mutex:
            ticket.left = True
        ticket.wake_follower()
        return ticket.leads

    def _led(self) -> bool:
        return self._leader is not None and self._leader.here

    def _takes_over(self, ticket: Ticket) -> bool:
        with self._mutex:
            if ticket.settled or self._led():
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
        """Submit without waiting; once it is started, the ticket's channel hears of the outcome."""
        with self._mutex:
            self._enter(ticket)

    def start(self) -> None:
        """See to it that somebody commits what was submitted."""
        with self._mutex:
            needed = bool(self._waiting) and not self._led()
            self._ring()
        if needed:
            self._call_thread()

    def _ring(self) -> None:
        if self._bell.wanted:
            self._bell.ring()

    def _enter(self, ticket: Ticket) -> None:
        if self._closed:
            raise errors.EngineClosed
        if len(self._waiting) >= limits.QUEUE_MAX:
            raise errors.Unavailable(
                f"{limits.QUEUE_MAX:,} commands wait for a commit already.",
                hint="Submit more slowly, or await some of them first.",
            )
        self._waiting.append(ticket)
        complete = self._complete
        if complete is not None and len(self._waiting) >= self._expected:
            # An interrupt may leave one behind that nobody waits for any more.
            self._complete = None
            if complete.locked():
                complete.release()

    def _lead(self, own: Ticket | None) -> None:
        if own is not None and self._expected > 1:
            self._gather()
        while True:
            if own is None and self._send_ahead is not None:
                while self._go_ahead(self._send_ahead):
                    pass
            batch = self._next()
            if not batch:
                return
            self._settle(batch, partial(self._process_open, batch))
            if own is not None and own.done:
                return

    def _go_ahead(self, send: Callable[[Coming], None]) -> bool:
        """Let those go ahead who can; all others are in line still. Return whether those could too, but for the time."""
        coming = Coming(self._waiting, self._mutex, self._bell, self._finish)

        def work() -> None:
            try:
                send(coming)
            except BaseException:
                # Somebody is told, or the same would be waited for in vain again.
                if not coming.taken:
                    coming.take()
                raise
            coming.release()

        self._settle(coming.taken, work)
        return coming.over_time

    def _next(self) -> list[Ticket]:
        # Tickets stay in line until they are done, so that a leader who is interrupted anywhere
        # leaves them to the next.
        waiting = self._waiting
        with self._mutex:
            drop_done(waiting)
            if len(waiting) == 1:
                return [waiting[0]]
            return list(itertools.islice(waiting, limits.COMMIT_BATCH_MAX))

    def _settle(self, batch: list[Ticket], work: Callable[[], None]) -> None:
        """Do what settles tickets, and tell their owners. If it fails they fail, those that are not settled by then."""
        began = time.perf_counter()
        try:
            work()
        except BaseException as error:
            for ticket in batch:
                if not ticket.settled:
                    ticket.fail(own_error(error))
            if not isinstance(error, Exception):
                raise
        finally:
            if batch:
                self._finish(batch, began)

    def _process_open(self, batch: list[Ticket]) -> None:
        if open_ := [ticket for ticket in batch if not ticket.settled]:
            self._process(open_)

    def _finish(self, batch: list[Ticket], began: float) -> None:
        # A ticket is done, and leaves the line, only after its owner has been told: whoever is
        # interrupted in between leaves the telling to the next leader.
        now = time.perf_counter()
        self._gather_until = now + min(now - began, GATHER_S_MAX)
        self._expected = len(self._waiting)
        if len(batch) == 1 and batch[0].channel is None:
            if batch[0].waited:
                self._wake_owners(batch)
            batch[0].done = True
            return
        channels: dict[Channel, list[Ticket]] = {}
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
        # Each wakes the next as soon as it runs: woken all at once, they would only wake to sleep
        # again, in line for the interpreter.
        if sleeping := [ticket for ticket in batch if ticket.sleeps]:
            with self._mutex:
                sleeping = [ticket for ticket in sleeping if ticket.sleeps]
                for ticket, follower in itertools.pairwise(sleeping):
                    ticket.follower = follower
            for ticket in sleeping[:1]:
                ticket.wake()

    def _pass_on(self) -> None:
        with self._mutex:
            drop_done(self._waiting)
            heir = None
            for ticket in self._waiting:
                if ticket.channel is None and not ticket.left and not ticket.settled:
                    heir, ticket.leads = ticket, True
                    break
            self._leader, waiting = heir, bool(self._waiting)
            if self._closed and not waiting:
                self._idle.notify_all()
        if heir is not None:
            heir.wake()
        elif waiting:
            self._call_thread()

    def _call_thread(self) -> None:
        try:
            with self._mutex:
                if self._thread is None or not self._thread.is_alive():
                    thread = threading.Thread(
                        target=self._serve, name="limpet-commit", daemon=True
                    )
                    thread.start()
                    self._thread = thread
        except RuntimeError:
            # No thread can be started, so whoever is here sees it through.
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
                if not self._waiting or self._led():
                    return
                self._leader = leader
            self._lead(None)
        finally:
            try:
                if self._leader is leader:
                    self._pass_on()
            finally:
                leader.here = False

    def close(self) -> None:
        """Refuse new requests, see those that wait through, stop the thread."""
        self._closed = True
        while True:
            self.start()
            with self._idle:
                if not self._waiting and not self._led():
                    break
                self._idle.wait(LOOK_UP_S)
        while self._thread is not None and self._thread.is_alive():
            self._calls.put(None)
            self._thread.join(LOOK_UP_S)
        self._bell.close()


def own_error(error: BaseException) -> errors.Error:
    """Return an error for one of several callers: each raises its own, none sees another's traceback."""
    if isinstance(error, errors.Error):
        made = type(error)(error.message, hint=error.hint, facts=error.facts)
    else:
        made = errors.Unavailable(
            f"the commit was interrupted ({type(error).__name__}); whether it took effect is unknown.",
            hint="Retry with the same key or the same message ids: it has one effect.",
        )
    made.__cause__ = error
    return made
