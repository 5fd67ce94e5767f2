"""The worker does what there is, goes on after failures, shares with others, and stops when told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest

from limpet import errors, limits
from limpet.jobs import tasks
from limpet.jobs.tasks import Heartbeat, LeaseLost, Task
from limpet.jobs.worker import Worker, read_lease
from limpet.stores.port import Store, StoredEvent
from limpet.stores.volatile import VolatileStore
from tests.unit.job_fixtures import Clock, Scripted, engine_over, happen


def worker(store: Store, clock: Clock, *tasks: Task, name: str = "w") -> Worker:
    return Worker(engine_over(store, clock), tasks, name=name, monotonic=clock.monotonic)


def stage(*tenants: str) -> tuple[VolatileStore, Clock]:
    store = VolatileStore()
    for tenant in tenants or ("acme",):
        happen(store, tenant)
    return store, Clock()


def test_once_does_all_there_is_of_every_tenant_and_keeps_no_lease():
    store, clock = stage("acme", "globex")
    one, two = Scripted("one", True, True, False), Scripted("two")
    done = worker(store, clock, one, two).run_once()
    assert (one.tenants, two.tenants) == (["acme"] * 3 + ["globex"], ["acme", "globex"])
    assert (done.steps, done.failures) == (6, 0)
    assert [row.holder for row in worker(store, clock, one, two).status()] == [None] * 4


def test_once_goes_round_again_while_one_task_makes_work_for_another():
    store, clock = stage()
    seen: list[int] = []

    def look(beat: Heartbeat) -> bool:
        seen.append(tasks.feed_head(store, "acme"))
        return False

    def act(beat: Heartbeat) -> bool:
        happen(store)
        return False

    worker(store, clock, Scripted("look", look, look, look), Scripted("act", act, act)).run_once()
    assert seen == [1, 2, 3]


def test_a_failure_hinders_nobody_and_is_tried_again_later(caplog: pytest.LogCaptureFixture):
    store, clock = stage()
    bad = Scripted("bad", ValueError("the secret of ada"), errors.Unavailable("down"), True, False)
    good = Scripted("good")
    working = worker(store, clock, bad, good)
    with caplog.at_level(logging.WARNING, "limpet.worker"):
        assert working.run_once().failures == 1
        assert working.run_once().failures == 0, "it is too early"
        assert len(good.tenants) == 2
        (row,) = (row for row in working.status() if row.task == "bad")
        assert (row.failures, row.error, row.holder) == (1, "ValueError", None)
        assert row.retry_us == clock.us + int(limits.BACKOFF_S * 1e6)
        clock.pass_(limits.BACKOFF_S)
        assert working.run_once().failures == 1
        assert working.status()[0].error == "unavailable"
        clock.pass_(limits.BACKOFF_S * 2)
        assert working.run_once().failures == 0
    assert working.status()[0].failures == 0
    assert [vars(record)["action"] for record in caplog.records] == ["task.failed"] * 2
    assert "secret" not in caplog.text


def test_two_workers_never_do_the_same_at_once():
    store, clock = stage()
    inside = threading.Lock()
    turns: list[str] = []

    def alone(beat: Heartbeat) -> bool:
        assert inside.acquire(blocking=False), "two are at it"
        turns.append(threading.current_thread().name)
        happen(store)
        beat()
        inside.release()
        return len(turns) < 60

    def work() -> None:
        worker(store, clock, Scripted("job", *[alone] * 99), name="x").run_once()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(turns) >= 60


def test_once_counts_what_another_has():
    store, clock = stage()
    late = worker(store, clock, Scripted("job"), Scripted("free"), name="late")

    def meanwhile(beat: Heartbeat) -> bool:
        done = late.run_once()
        assert (done.steps, done.failures, done.held) == (1, 0, 1)
        return False

    assert worker(store, clock, Scripted("job", meanwhile)).run_once().held == 0
    assert late.run_once().held == 0


def test_whoever_was_taken_over_leaves_the_work_where_it_is():
    store, clock = stage()
    heir = worker(store, clock, Scripted("job"), name="heir")

    def slow(beat: Heartbeat) -> bool:
        clock.pass_(limits.LEASE_S)
        heir.run_once()
        beat()
        raise AssertionError("the beat let it go on")

    done = worker(store, clock, Scripted("job", slow)).run_once()
    assert done.failures == 0


def test_a_worker_hears_of_news_and_stops_when_told():
    store, clock = stage()
    stop, seen = threading.Event(), threading.Event()

    def second(beat: Heartbeat) -> bool:
        seen.set()
        return False

    working = worker(store, clock, Scripted("job", False, second))
    thread = threading.Thread(target=working.run, args=(stop,))
    thread.start()
    while working.status()[0].holder is None:
        pass
    happen(store)
    assert seen.wait(120)
    stop.set()
    thread.join(120)
    assert not thread.is_alive()
    assert working.status()[0].holder is None


def test_a_worker_looks_again_without_news_after_a_while():
    store, clock = stage("acme", "globex")
    stop, script = threading.Event(), Scripted("job")
    thread = threading.Thread(target=worker(store, clock, script).run, args=(stop,))
    thread.start()
    while len(script.tenants) < 6:
        clock.pass_(limits.WORKER_POLL_S / 10)
    stop.set()
    thread.join(120)
    assert set(script.tenants) == {"acme", "globex"}


def test_stopping_breaks_off_at_the_next_beat_and_gives_the_lease_back():
    store, clock = stage()
    stop, begun = threading.Event(), threading.Event()

    def endless(beat: Heartbeat) -> bool:
        begun.set()
        while True:
            beat()

    working = worker(store, clock, Scripted("job", endless))
    thread = threading.Thread(target=working.run, args=(stop,))
    thread.start()
    assert begun.wait(120)
    stop.set()
    thread.join(120)
    assert working.status()[0].holder is None
    assert working.status()[0].failures == 0


def stopped() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_what_is_due_at_last_is_seen_through_by_turns_before_it_stops():
    store, clock = stage()
    turns: list[str] = []

    def turn(name: str, more: bool) -> Callable[[Heartbeat], bool]:
        return lambda beat: turns.append(name) or more

    one, two = (Scripted(n, turn(n, True), turn(n, True), turn(n, False)) for n in ("one", "two"))
    other = Scripted("other", True)
    working = worker(store, clock, one, other, two)
    working.run(stopped(), last=("one", "two"), abandon=threading.Event())
    assert turns == ["one", "two"] * 3 and other.tenants == []
    assert [row.holder for row in working.status()] == [None] * 3


def test_what_is_seen_through_is_abandoned_between_two_steps():
    store, clock = stage()
    abandon = threading.Event()

    def step(beat: Heartbeat) -> bool:
        if len(job.tenants) == 3:
            abandon.set()
        return True

    job = Scripted("job", *[step] * 9)
    working = worker(store, clock, job)
    working.run(stopped(), last=("job",), abandon=abandon)
    assert len(job.tenants) == 3 and working.status()[0].holder is None


def test_whoever_has_nothing_to_see_through_asks_no_store(monkeypatch: pytest.MonkeyPatch):
    store, clock = stage()
    working = worker(store, clock, Scripted("job"))
    monkeypatch.setattr(store, "tenants", lambda: pytest.fail("it was asked"))
    working.run(stopped())


def test_closing_the_engine_ends_the_worker():
    store, clock = stage()
    engine = engine_over(store, clock)
    working = Worker(engine, [Scripted("job")], monotonic=clock.monotonic)
    thread = threading.Thread(target=working.run, args=(threading.Event(),))
    thread.start()
    engine.close()
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.parametrize("events", [0, 1, 2, 3, 7, 8, 9, 100])
def test_the_head_is_found_from_anywhere_before_it(events: int):
    store = VolatileStore()
    for _ in range(events):
        happen(store)
    assert [tasks.feed_head(store, "acme", after) for after in range(events + 1)] == [events] * (events + 1)  # fmt: skip
    assert [tasks.feed_lag(store, "acme", after) for after in range(events + 1)] == [*range(events, -1, -1)]  # fmt: skip
    assert tasks.feed_lag(store, "acme", events + 5) == 0, "of a store that is older than its cursor"


def test_the_head_is_asked_for_and_not_searched(monkeypatch: pytest.MonkeyPatch):
    store = VolatileStore()
    happen(store)

    def searched(*_: object, **__: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(store, "wait", searched)
    monkeypatch.setattr(store, "feed", searched)
    assert tasks.feed_head(store, "acme") == 1


def test_a_cursor_is_moved_by_whoever_saw_it_where_it_is():
    store = VolatileStore()
    first = tasks.read_cursor(store, "acme", "job")
    tasks.advance_cursor(store, "acme", "job", first, 5)
    with pytest.raises(LeaseLost):
        tasks.advance_cursor(store, "acme", "job", first, 7)
    assert tasks.read_cursor(store, "acme", "job").position == 5
    assert tasks.read_cursor(store, "globex", "job").position == 0


def test_a_step_that_takes_long_keeps_its_lease_without_saying_so():
    store = VolatileStore()
    happen(store)
    clock = Clock()
    renewed: list[int] = []

    def long(beat: Heartbeat) -> bool:
        first = read_lease(store, "acme", "job")[1]
        clock.pass_(0.05)
        while (version := read_lease(store, "acme", "job")[1]) == first:
            pass
        renewed.append(version)
        return False

    Worker(engine_over(store, clock), [Scripted("job", long)], lease_s=0.04, monotonic=clock.monotonic).run_once()
    assert renewed


def test_a_worker_outlives_a_store_that_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "BACKOFF_S", 0.001)
    store, clock = stage()
    away, back, stop, seen = threading.Event(), threading.Event(), threading.Event(), threading.Event()  # fmt: skip
    tenants = store.tenants

    def missing() -> list[str]:
        if not back.is_set():
            away.set()
            raise errors.Unavailable("away")
        return tenants()

    def see(beat: Heartbeat) -> bool:
        seen.set()
        return False

    monkeypatch.setattr(store, "tenants", missing)
    working = worker(store, clock, Scripted("job", see))
    thread = threading.Thread(target=working.run, args=(stop,))
    thread.start()
    assert away.wait(120)
    back.set()
    assert seen.wait(120)
    stop.set()
    thread.join(120)
    assert not thread.is_alive()


def test_a_follower_sees_each_part_of_the_feed_once_and_what_it_failed_at_again():
    store = VolatileStore()
    follower, seen = tasks.FeedFollower(store, "task"), list[int]()
    for _ in range(limits.READ_CHUNK + 1):
        happen(store)

    def see(page: Sequence[StoredEvent]) -> None:
        seen.extend(event.position for event in page)

    def fail(page: Sequence[StoredEvent]) -> None:
        raise errors.Unavailable

    assert follower.has_news("acme") and not follower.has_news("globex")
    with pytest.raises(errors.Unavailable):
        follower.process_next("acme", fail)
    assert follower.progress("acme") == {"cursor": 0, "lag": limits.READ_CHUNK + 1}
    while follower.process_next("acme", see):
        pass
    assert seen == [*range(1, limits.READ_CHUNK + 2)]
    assert not follower.has_news("acme")
    assert follower.progress("acme") == {"cursor": limits.READ_CHUNK + 1, "lag": 0}
    follower.restart("acme")
    assert follower.process_next("acme", see) and seen[-1] == limits.READ_CHUNK


def test_a_follower_that_was_overtaken_stops():
    store = VolatileStore()
    follower = tasks.FeedFollower(store, "task")
    happen(store)
    with pytest.raises(LeaseLost):
        follower.process_next("acme", lambda _: follower.restart("acme"))
