"""The commit queue by itself: who leads, who is gathered, and what happens when something is missing."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.core.values import ids
from limpet.core.values.session_state import SessionState
from limpet.runtime import commit_queue
from limpet.runtime.commit_queue import CommandResult, CommitQueue, Ticket
from limpet.runtime.engine import Engine
from limpet.sessions.requests import SessionRequests, Settings

REQUEST = SessionRequests(Settings(), ids.SYSTEM_FACTORY).add(
    "s", [{"role": "user", "content": "x"}], key=None, expected_version=None
)


class Recording:
    """A process that answers every ticket after a while and keeps the size of each batch."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.sizes: list[int] = []
        self._takes_s = takes_s

    def __call__(self, batch: Sequence[Ticket]) -> None:
        self.sizes.append(len(batch))
        time.sleep(self._takes_s)
        for ticket in batch:
            ticket.succeed(CommandResult(SessionState(id="s")))


class Inbox:
    """A channel that keeps what is delivered."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        self.tickets += tickets


def test_a_lone_caller_waits_for_nobody():
    process = Recording()
    queue = CommitQueue(process)
    for _ in range(20):
        queue.run(Ticket(REQUEST))
    assert process.sizes == [1] * 20
    queue.close()


def test_callers_who_come_back_at_once_are_committed_together():
    process = Recording(takes_s=0.004)
    queue = CommitQueue(process)
    callers, each = 8, 25
    ready = threading.Barrier(callers)

    def work() -> None:
        ready.wait()
        for _ in range(each):
            queue.run(Ticket(REQUEST))

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close()
    assert sum(process.sizes) == callers * each
    assert len(process.sizes) < 2 * each, "most of them share a commit"


def test_a_caller_whose_company_has_left_goes_on_alone():
    process = Recording(takes_s=0.002)
    queue = CommitQueue(process)
    company = [threading.Thread(target=queue.run, args=(Ticket(REQUEST),)) for _ in range(4)]
    for thread in company:
        thread.start()
    for thread in company:
        thread.join()
    queue.run(Ticket(REQUEST))
    queue.run(Ticket(REQUEST))
    assert process.sizes[-2:] == [1, 1]
    queue.close()


def test_async_callers_are_served_after_a_leader_has_vanished():
    process, inbox = Recording(), Inbox()
    queue = CommitQueue(process)
    gone = Ticket(REQUEST)
    gone.alive = False
    queue._leader = gone
    ticket = Ticket(REQUEST, inbox)
    queue.submit(ticket)
    queue.start()
    queue.close()
    assert inbox.tickets == [ticket]


def test_nobody_is_made_leader_who_has_an_answer_already():
    process, inbox = Recording(), Inbox()
    queue = CommitQueue(process)
    answered, ticket = Ticket(REQUEST), Ticket(REQUEST, inbox)
    answered.succeed(CommandResult(SessionState(id="s")))
    queue._waiting.append(answered)
    queue.submit(ticket)
    queue._pass_lead()
    queue.close()
    assert inbox.tickets == [ticket]
    assert not answered.leads


def test_what_was_submitted_but_never_started_is_seen_through_by_the_next_caller():
    process, inbox = Recording(), Inbox()
    queue = CommitQueue(process)
    ticket = Ticket(REQUEST, inbox)
    queue.submit(ticket)
    queue.run(Ticket(REQUEST))
    assert process.sizes == [2]
    assert inbox.tickets == [ticket]
    queue.close()


def test_closing_sees_what_was_submitted_but_never_started_through():
    process, inbox = Recording(), Inbox()
    queue = CommitQueue(process)
    ticket = Ticket(REQUEST, inbox)
    queue.submit(ticket)
    queue.close()
    assert inbox.tickets == [ticket]
    with pytest.raises(limpet.errors.EngineClosed):
        queue.submit(Ticket(REQUEST, inbox))


def test_where_no_thread_can_be_started_the_caller_commits(monkeypatch: pytest.MonkeyPatch):
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    process, inbox = Recording(), Inbox()
    queue = CommitQueue(process)
    ticket = Ticket(REQUEST, inbox)
    queue.submit(ticket)
    queue.start()
    assert inbox.tickets == [ticket]
    assert queue.run(Ticket(REQUEST)).state.id == "s"
    queue.close()


def test_a_leader_who_vanishes_is_followed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit_queue, "LEADER_CHECK_S", 0.01)
    process = Recording()
    queue = CommitQueue(process)
    inside, vanish = threading.Event(), threading.Event()

    def interrupted() -> None:
        inside.set()
        vanish.wait()
        raise KeyboardInterrupt

    vanishing = Ticket(REQUEST)
    monkeypatch.setattr(queue, "_pass_lead", interrupted)

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            queue.run(vanishing)

    first = threading.Thread(target=lead, daemon=True)
    first.start()
    inside.wait()
    monkeypatch.undo()
    monkeypatch.setattr(commit_queue, "LEADER_CHECK_S", 0.01)
    second: list[CommandResult] = []
    other = threading.Thread(target=lambda: second.append(queue.run(Ticket(REQUEST))), daemon=True)
    other.start()
    time.sleep(0.05)
    assert not second, "the leader is still there"
    vanish.set()
    first.join()
    other.join(timeout=120)
    assert len(second) == 1
    assert queue.run(Ticket(REQUEST)).state.id == "s"
    queue.close()


def test_tasks_of_one_step_of_the_loop_are_committed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    starts: list[None] = []
    start = Engine.start

    def counting(self: Engine) -> None:
        starts.append(None)
        start(self)

    monkeypatch.setattr(Engine, "start", counting)

    async def main() -> None:
        async with await limpet.connect_async(tmp_path / "state.db") as lp:
            sessions = [await lp.sessions.create_session(f"s{n}") for n in range(16)]
            starts.clear()
            for _ in range(5):
                await asyncio.gather(*(s.add_message({"role": "user", "content": "x"}) for s in sessions))
            assert len(starts) == 5

    asyncio.run(main())


def test_an_owner_who_needs_no_waking_does_not_break_the_chain(monkeypatch: pytest.MonkeyPatch):
    """It found its answer before it went to sleep; those behind it must not sleep on."""
    monkeypatch.setattr(commit_queue, "LEADER_CHECK_S", 600.0)

    class Early(Ticket):
        """Its owner is held up between saying that it waits and looking."""

        __slots__ = ("looked",)

        @property
        def settled(self) -> bool:
            if threading.current_thread().name == "early" and not hasattr(self, "looked"):
                self.looked = True
                answered.wait(120)
            return super().settled

    answered, entered = threading.Event(), threading.Semaphore(0)

    def process(batch: Sequence[Ticket]) -> None:
        if not first.is_set():
            first.set()
            for _ in range(3):
                entered.acquire(timeout=120)
            time.sleep(0.05)
        for ticket in batch:
            ticket.succeed(CommandResult(SessionState(id="s")))
        if len(batch) > 1:
            answered.set()
            time.sleep(0.05)

    first = threading.Event()
    queue = CommitQueue(process)

    def owner(kind: type[Ticket]) -> None:
        entered.release()
        queue.run(kind(REQUEST))

    threads = [threading.Thread(target=queue.run, args=(Ticket(REQUEST),), daemon=True)]
    threads[0].start()
    assert first.wait(120)
    for name, kind in (("heir", Ticket), ("early", Early), ("last", Ticket)):
        threads.append(threading.Thread(target=owner, args=(kind,), name=name, daemon=True))
        threads[-1].start()
        time.sleep(0.02)
    for thread in threads:
        thread.join(120)
    assert not [thread.name for thread in threads if thread.is_alive()]
    queue.close()


def test_an_interrupt_while_gathering_does_not_spoil_the_queue():
    """Whoever comes next may find a lock that nobody waits for, taken or not."""
    for taken in (True, False):
        process = Recording()
        queue = CommitQueue(process)
        left = threading.Lock()
        if taken:
            left.acquire()
        queue._complete, queue._expected = left, 1
        for _ in range(3):
            queue.run(Ticket(REQUEST))
        assert process.sizes == [1, 1, 1]
        queue.close()
