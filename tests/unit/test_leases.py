"""One at a time has the work: taken, renewed, given back, taken over; clocks may be wrong."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from limpet import limits
from limpet.jobs.tasks import LeaseLost
from limpet.jobs.worker import WorkerLeases, read_lease
from limpet.stores.volatile import VolatileStore
from limpet.testing.faulty import FaultyStore
from tests.unit.job_fixtures import Clock


def leases(store: VolatileStore, holder: str, clock: Clock) -> WorkerLeases:
    return WorkerLeases(store, holder, now_us=clock.now_us, monotonic=clock.monotonic)


def test_one_has_it_until_it_is_given_back():
    store, clock = VolatileStore(), Clock()
    ann, bob = leases(store, "ann", clock), leases(store, "bob", clock)
    held = ann.take("acme", "job")
    assert held is not None
    assert bob.take("acme", "job") is None
    assert bob.take("acme", "other") is not None
    assert bob.take("globex", "job") is not None
    held.release()
    assert bob.take("acme", "job") is not None
    assert ann.take("acme", "job") is None


def test_whoever_beats_keeps_it():
    store, clock = VolatileStore(), Clock()
    held = leases(store, "ann", clock).take("acme", "job")
    assert held is not None
    for _ in range(10):
        clock.pass_(limits.LEASE_S * 0.9)
        held.heartbeat()
        assert leases(store, "bob", clock).take("acme", "job") is None


def test_a_beat_writes_only_now_and_then():
    store, clock = FaultyStore(VolatileStore(), fail_at=999), Clock()
    held = WorkerLeases(store, "ann", now_us=clock.now_us, monotonic=clock.monotonic).take("a", "job")
    assert held is not None
    before = store.calls
    for _ in range(100):
        clock.pass_(limits.LEASE_S / 1_000)
        held.heartbeat()
    assert store.calls == before


def test_what_a_dead_one_had_is_taken_over_and_the_dead_one_hears_of_it():
    store, clock = VolatileStore(), Clock()
    ann, bob = leases(store, "ann", clock), leases(store, "bob", clock)
    dead = ann.take("acme", "job")
    assert dead is not None
    clock.pass_(limits.LEASE_S - 1)
    assert bob.take("acme", "job") is None
    clock.pass_(1)
    heir = bob.take("acme", "job")
    assert heir is not None
    with pytest.raises(LeaseLost):
        dead.heartbeat()
    dead.release()
    dead.record_failure("x")
    assert read_lease(store, "acme", "job")[0].holder == "bob", "the dead change nothing any more"
    heir.heartbeat()


def test_of_many_at_once_one_takes_it():
    store, clock = VolatileStore(), Clock()
    start = threading.Barrier(8)

    def take(number: int) -> bool:
        start.wait()
        return leases(store, f"w{number}", clock).take("acme", "job") is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(8))) == 1


def test_a_clock_that_is_set_back_gives_it_to_another_until_the_next_beat_only():
    store, clock, slow = VolatileStore(), Clock(), Clock()
    slow.us -= int(limits.LEASE_S * 2_000_000)
    held = leases(store, "ann", slow).take("acme", "job")
    assert held is not None
    assert leases(store, "bob", clock).take("acme", "job") is not None, "by bob's clock it is over"
    slow.pass_(limits.LEASE_S / 2)
    with pytest.raises(LeaseLost):
        held.heartbeat()


def test_a_lease_of_a_clock_far_ahead_is_not_waited_for():
    store, clock, fast = VolatileStore(), Clock(), Clock()
    fast.us += 365 * 86_400_000_000
    assert leases(store, "ann", fast).take("acme", "job") is not None
    bob = leases(store, "bob", clock)
    assert bob.take("acme", "job") is None
    clock.pass_(limits.LEASE_S - 1)
    assert bob.take("acme", "job") is None
    clock.pass_(2)
    assert bob.take("acme", "job") is not None


def test_what_failed_is_left_alone_for_longer_each_time():
    store, clock = VolatileStore(), Clock()
    ann, bob = leases(store, "ann", clock), leases(store, "bob", clock)
    waited: list[float] = []
    for turn in range(20):
        held = (ann if turn % 2 else bob).take("acme", "job")
        assert held is not None
        assert held.record_failure("unavailable") == turn + 1
        before = clock.s
        while ann.take("acme", "job") is None:
            clock.pass_(limits.BACKOFF_S / 2)
        waited.append(clock.s - before)
        held = ann.take("acme", "job")
        assert held is not None
        held.release()
    assert waited[0] == limits.BACKOFF_S
    assert waited == sorted(waited)
    assert waited[-1] == limits.BACKOFF_S_MAX
    held = ann.take("acme", "job")
    assert held is not None
    held.clear_failures()
    assert read_lease(store, "acme", "job")[0].failures == 0


def test_a_retry_noted_by_a_clock_far_ahead_is_not_waited_for():
    store, clock, fast = VolatileStore(), Clock(), Clock()
    fast.us += 365 * 86_400_000_000
    held = leases(store, "ann", fast).take("acme", "job")
    assert held is not None
    held.record_failure("unavailable")
    assert leases(store, "bob", clock).take("acme", "job") is not None
