"""How a leader takes from the queue while others are on their way, and is woken by whoever comes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import pytest

from limpet.core.values.session_state import SessionState
from limpet.runtime import commit_queue
from limpet.runtime.commit_queue import CommandResult, CommitPipeline, CommitQueue, Ticket, WakeupPipe
from tests.unit.test_commit_queue import REQUEST, Recording

STATE = SessionState(id="s")


class Server:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def answer(self) -> None:
        os.write(self._write, b"!")

    def has_answer(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


class Queue:
    """A queue of tickets with its pipeline, and the tickets that were finished."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(Ticket(REQUEST) for _ in range(count))
        self.lock, self.wakeup = threading.Lock(), WakeupPipe()
        self.finished: list[Ticket] = []
        self.pipeline = CommitPipeline(self.waiting, self.lock, self.wakeup, self._finish)

    def _finish(self, tickets: list[Ticket], _began: float) -> None:
        self.finished += tickets
        for ticket in tickets:
            ticket.done = True


def test_batch_is_half_of_the_queue():
    queue = Queue(32)
    first, second, third = (queue.pipeline.take() for _ in range(3))
    assert [len(first), len(second), len(third)] == [16, 16, 0]
    assert [*first, *second] == list(queue.waiting)


def test_small_queue_is_one_batch():
    queue = Queue(commit_queue.BATCH_MIN)
    assert len(queue.pipeline.take()) == commit_queue.BATCH_MIN


def test_settled_tickets_are_finished_and_later_ones_are_taken_after_those_in_flight():
    queue = Queue(32)
    first, second = queue.pipeline.take(), queue.pipeline.take()
    for ticket in first:
        ticket.succeed(CommandResult(STATE))
    queue.pipeline.finish_settled()
    assert queue.finished == first and queue.pipeline.taken == second
    late = [Ticket(REQUEST) for _ in range(commit_queue.BATCH_MIN)]
    queue.waiting.extend(late[1:])
    assert queue.pipeline.take() == [], "too few for a batch while others are in flight"
    queue.waiting.extend(late[:1])
    assert queue.pipeline.take() == [*late[1:], *late[:1]]


def test_tickets_put_back_stay_queued_and_no_more_are_taken():
    queue = Queue(32)
    first = queue.pipeline.take()
    queue.pipeline.put_back(first[::2])
    assert queue.pipeline.taken == first[1::2] and queue.pipeline.take() == []


def test_tickets_that_an_interrupted_leader_settled_are_not_taken():
    queue = Queue(4)
    queue.waiting[0].succeed(CommandResult(STATE))
    assert queue.pipeline.take() == [] and queue.pipeline.taken == []


def test_pipeline_ends_at_its_time_limit(monkeypatch: pytest.MonkeyPatch):
    queue = Queue(32)
    monkeypatch.setattr(commit_queue, "PIPELINE_S", 0.0)
    assert len(queue.pipeline.take()) == 16 and not queue.pipeline.timed_out, (
        "the time limit begins with the first batch"
    )
    assert queue.pipeline.take() == [] and queue.pipeline.timed_out


def test_stop_after_the_time_limit_is_no_timeout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_queue, "PIPELINE_S", 0.0)
    for end in (lambda queue: queue.stop(), lambda queue: queue.put_back([])):
        queue = Queue(32).pipeline
        assert queue.take() and not queue.take() and queue.timed_out
        end(queue)
        assert not queue.timed_out


def test_leader_is_woken_by_an_answer_or_by_new_tickets(server: Server):
    queue = Queue(8)
    queue.pipeline.take()
    server.answer()
    assert queue.pipeline.wait(server), "an answer"
    os.read(server.fileno(), 1)
    late = [Ticket(REQUEST) for _ in range(commit_queue.BATCH_MIN)]

    def come() -> None:
        while not queue.wakeup.armed:
            pass
        with queue.lock:
            queue.waiting.extend(late)
            queue.wakeup.wake()

    comes = threading.Thread(target=come)
    comes.start()
    assert not queue.pipeline.wait(server), "new tickets"
    comes.join()
    assert not queue.pipeline.wait(server), "new tickets are queued already"
    assert queue.pipeline.take() == late
    queue.pipeline.stop()
    assert queue.pipeline.wait(server), "a stopped pipeline waits for the server only"
    queue.wakeup.close()


class Desk:
    """A channel that says when all have been told."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = threading.Event()

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        self._left -= len(tickets)
        if not self._left:
            self.done.set()


def test_an_error_fails_those_who_were_taken_and_the_others_are_processed():
    def send(queue: CommitPipeline) -> None:
        if queue.take():
            raise ValueError("the queue is cut")

    process, desk = Recording(), Desk(32)
    queue = CommitQueue(process, send)
    tickets = [Ticket(REQUEST, desk) for _ in range(32)]
    for ticket in tickets:
        queue.submit(ticket)
    queue.start()
    assert desk.done.wait(120)
    queue.close()
    failed = [ticket for ticket in tickets if ticket.error is not None]
    assert failed == tickets[:16] and process.sizes == [16]
    assert {type(ticket.error).__name__ for ticket in failed} == {"Unavailable"}
