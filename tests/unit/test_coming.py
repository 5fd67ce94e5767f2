"""How a leader takes from the line while others are on their way, and is woken by whoever comes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import pytest

from limpet.engine import coming
from limpet.engine.coming import Bell, Coming
from limpet.engine.commits import Answer, CommitQueue, Ticket
from limpet.values.session import SessionState
from tests.unit.test_commits import REQUEST, Recording

STATE = SessionState(id="s")


class Server:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def answer(self) -> None:
        os.write(self._write, b"!")

    def ready(self) -> bool:
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


class Line:
    """A line of tickets, and who was told."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(Ticket(REQUEST) for _ in range(count))
        self.lock, self.bell = threading.Lock(), Bell()
        self.told: list[Ticket] = []
        self.coming = Coming(self.waiting, self.lock, self.bell, self._finish)

    def _finish(self, tickets: list[Ticket], _began: float) -> None:
        self.told += tickets
        for ticket in tickets:
            ticket.done = True


def test_half_of_all_is_taken_so_that_somebody_is_left_to_decide_for():
    line = Line(32)
    first, second, third = (line.coming.take() for _ in range(3))
    assert [len(first), len(second), len(third)] == [16, 16, 0]
    assert [*first, *second] == list(line.waiting)


def test_few_go_together():
    line = Line(coming.TAKEN_MIN)
    assert len(line.coming.take()) == coming.TAKEN_MIN


def test_who_is_settled_is_told_and_the_next_in_line_come_after_those_on_their_way():
    line = Line(32)
    first, second = line.coming.take(), line.coming.take()
    for ticket in first:
        ticket.succeed(Answer(STATE))
    line.coming.tell()
    assert line.told == first and line.coming.taken == second
    late = [Ticket(REQUEST) for _ in range(coming.TAKEN_MIN)]
    line.waiting.extend(late[1:])
    assert line.coming.take() == [], "a few wait for those on their way"
    line.waiting.extend(late[:1])
    assert line.coming.take() == [*late[1:], *late[:1]]


def test_who_is_refused_stays_in_line_and_nobody_is_taken_any_more():
    line = Line(32)
    first = line.coming.take()
    line.coming.refuse(first[::2])
    assert line.coming.taken == first[1::2] and line.coming.take() == []


def test_tickets_that_a_leader_left_settled_are_not_taken_again():
    line = Line(4)
    line.waiting[0].succeed(Answer(STATE))
    assert line.coming.take() == [] and line.coming.taken == []


def test_a_leader_stops_after_a_while(monkeypatch: pytest.MonkeyPatch):
    line = Line(32)
    monkeypatch.setattr(coming, "GO_ON_S", 0.0)
    assert len(line.coming.take()) == 16 and not line.coming.over_time, "however late the turn came"
    assert line.coming.take() == [] and line.coming.over_time


def test_what_fails_after_the_time_is_over_is_a_reason_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coming, "GO_ON_S", 0.0)
    for end in (lambda line: line.end(), lambda line: line.refuse([])):
        line = Line(32).coming
        assert line.take() and not line.take() and line.over_time
        end(line)
        assert not line.over_time


def test_who_waits_is_woken_by_the_answer_or_by_whoever_comes(server: Server):
    line = Line(8)
    line.coming.take()
    server.answer()
    assert line.coming.wait(server), "an answer"
    os.read(server.fileno(), 1)
    late = [Ticket(REQUEST) for _ in range(coming.TAKEN_MIN)]

    def come() -> None:
        while not line.bell.wanted:
            pass
        with line.lock:
            line.waiting.extend(late)
            line.bell.ring()

    comes = threading.Thread(target=come)
    comes.start()
    assert not line.coming.wait(server), "somebody came"
    comes.join()
    assert not line.coming.wait(server), "they are here already"
    assert line.coming.take() == late
    line.coming.end()
    assert line.coming.wait(server), "nobody is taken any more"
    line.bell.close()


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
    def send(line: Coming) -> None:
        if line.take():
            raise ValueError("the line is cut")

    process, desk = Recording(), Desk(32)
    queue = CommitQueue(process, send)
    tickets = [Ticket(REQUEST, desk) for _ in range(32)]
    for ticket in tickets:
        queue.submit(ticket)
    queue.start()
    assert desk.done.wait(10)
    queue.close()
    failed = [ticket for ticket in tickets if ticket.error is not None]
    assert failed == tickets[:16] and process.sizes == [16]
    assert {type(ticket.error).__name__ for ticket in failed} == {"Unavailable"}
