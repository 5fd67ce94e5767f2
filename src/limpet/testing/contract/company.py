"""Promise 8, and 4 under load: threads that write at once; and random walks against a model."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from threading import Barrier
from time import sleep

import pytest

from limpet.stores.port import Append, Appended, KeyRecord, KeyUse, Stale, Store, StoredEvent
from limpet.testing.contract import stage
from limpet.testing.contract.stage import TENANT, commit, feed_all, step, take, verified, write
from limpet.testing.contract.walking import walk

_WRITERS = 4
_EACH = 25
_TRIES_MAX = 1_000


class Company(stage.Stage):
    """Several at once."""

    def test_threads_leave_no_gap_and_no_reader_is_passed_by(self, store: Store) -> None:
        start = Barrier(_WRITERS + 1)

        def work(writer: int) -> None:
            start.wait()
            for number in range(_EACH):
                _persist(store, f"s{number % 3}", b"%d/%d" % (writer, number))

        with ThreadPoolExecutor(_WRITERS) as pool:
            jobs = [pool.submit(work, writer) for writer in range(_WRITERS)]
            start.wait()
            seen = _follow(store, jobs)
        for job in jobs:
            job.result()
        assert [e.position for e in seen] == list(range(1, _WRITERS * _EACH + 1))
        assert feed_all(store) == seen
        every = Counter(b"%d/%d" % (w, n) for w in range(_WRITERS) for n in range(_EACH))
        assert Counter(e.payload for e in seen) == every, "nothing lost, nothing twice"
        for stream in ("s0", "s1", "s2"):
            versions = [e.version for e in store.read(TENANT, stream)]
            assert versions == list(range(1, len(versions) + 1))
        assert verified(store).ok

    def test_verify_finds_no_fault_while_others_write(self, store: Store) -> None:
        take(store, step(write("first", 0, b"1")))

        def work() -> None:
            for number in range(_EACH * 4):
                _persist(store, "a", b"%d" % number)

        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(work)
            reports = [verified(store)]
            while not job.done():
                reports.append(verified(store))
        job.result()
        assert [report.faults for report in reports if not report.ok] == []
        counts = [report.events for report in reports]
        assert counts == sorted(counts)
        assert verified(store).events == 1 + _EACH * 4

    def test_of_threads_with_one_key_one_has_the_effect(self, store: Store) -> None:
        start = Barrier(_WRITERS)
        once = step(write("a", 0, b"once"), key=KeyUse("k1", b"hash"))

        def work(_: int) -> object:
            start.wait()
            return commit(store, once)[0]

        with ThreadPoolExecutor(_WRITERS) as pool:
            outcomes = Counter(map(repr, pool.map(work, range(_WRITERS))))
        replayed = repr(KeyRecord(b"hash", 1, 1))
        assert outcomes == {repr(Appended(1, 1)): 1, replayed: _WRITERS - 1}

    def test_a_turn_may_hold_several_commits_each_seen_at_once(self, store: Store) -> None:
        with ThreadPoolExecutor(1) as pool, store.turn():
            for version in range(3):
                assert store.commit([step(write("a", 9, b"no"))]) == [Stale("a", version)]
                assert store.version(TENANT, "a") == version
                taken = store.commit([step(write("a", version, b"x"))])
                assert taken == [Appended(version + 1, version + 1)]
                assert store.version(TENANT, "a") == version + 1
                assert pool.submit(store.version, TENANT, "a").result() == version + 1

    def test_a_turn_is_given_back_when_its_body_fails(self, store: Store) -> None:
        with pytest.raises(ZeroDivisionError), store.turn():
            raise ZeroDivisionError
        take(store, step(write("a", 0, b"1")))

    def test_what_is_decided_in_a_turn_rests_on_what_is_there(self, folder: Path) -> None:
        """Whoever writes beside it is kept out of the tenant until the turn ends, or is noticed."""
        self.must_reopen()
        with (
            closing(self.open_store(folder)) as mine,
            closing(self.open_store(folder)) as theirs,
            ThreadPoolExecutor(1) as pool,
        ):
            take(mine, step(write("a", 0, b"1")))
            with mine.turn():
                assert mine.version(TENANT, "a") == 1
                job = pool.submit(commit, theirs, step(write("b", 0, b"between")))
                wait([job], timeout=0.3)
                between = job.done()
                assert mine.held(TENANT) is not between
                (outcome,) = mine.commit([step(write("c", 0, b"decided on a"))])
                assert outcome == (Stale("", 2) if between else Appended(2, 2))
            assert job.result() == [Appended(2, 2) if between else Appended(3, 3)]
            with mine.turn() as alone:
                assert not alone or mine.held(TENANT)
                (outcome,) = mine.commit([step(write("d", 0, b"decided anew"))])
            assert outcome == Appended(mine.head(TENANT), 3 if between else 4)
            assert [e.position for e in feed_all(theirs)] == list(range(1, mine.head(TENANT) + 1))

    def test_what_is_handed_over_is_appended_once(self, folder: Path) -> None:
        """By whoever holds the turn, or, if nobody takes it, by the one who handed it over."""
        if not self.reopens:
            pytest.skip("this store keeps nothing between two openings")
        given = [step(write("b", 0, b"1")), step(write("b", 5, b"not yet"))]
        with (
            closing(self.open_store(folder)) as mine,
            closing(self.open_store(folder)) as theirs,
            ThreadPoolExecutor(1) as pool,
        ):
            with mine.turn():
                job = pool.submit(_hand_over, theirs, given)
                passed = 0
                for version in range(_EACH):
                    (outcome,) = mine.commit([step(write("a", version, b"x"))])
                    if stage.is_passed(outcome):
                        passed += 1
                        (outcome,) = mine.commit([step(write("a", version, b"x"))])
                    assert isinstance(outcome, Appended)
                    sleep(0.001)
                assert passed <= 1, "others have appended once"
            assert job.result()
            assert [e.payload for e in mine.read(TENANT, "b")] == [b"1"]
            assert feed_all(theirs) == feed_all(mine)
            assert verified(mine).ok

    @pytest.mark.parametrize("seed", range(3))
    def test_a_random_walk_agrees_with_a_plain_model(self, folder: Path, seed: int) -> None:
        reopen_every = 40 if self.reopens else None
        walk(
            lambda: self.open_store(folder),
            steps=self.walk_steps,
            seed=seed,
            reopen_every=reopen_every,
        )


def _hand_over(store: Store, given: list[Append]) -> bool:
    """Hand appends over, commit them if nobody did; return whether just the first was appended."""
    handed = store.hand_over(given)
    if handed is not None:
        return isinstance(handed[0], Appended) and handed[1] is None
    with store.turn():
        first, second = store.commit(given)
        for _ in range(_TRIES_MAX):
            if not stage.is_passed(first):
                break
            first, second = store.commit(given)
    return isinstance(first, (Appended, Stale)) and isinstance(second, Stale)


def _persist(store: Store, stream: str, payload: bytes) -> None:
    for _ in range(_TRIES_MAX):
        with store.turn():
            version = store.version(TENANT, stream)
            (outcome,) = store.commit([step(write(stream, version, payload))])
        if isinstance(outcome, Appended):
            return
    raise AssertionError("a writer is always passed over")


def _follow(store: Store, jobs: list[Future[None]]) -> list[StoredEvent]:
    """Read the feed as it grows; what is read once must never change."""
    seen: list[StoredEvent] = []
    while not all(job.done() for job in jobs):
        seen += store.feed(TENANT, after=len(seen), limit=7)
    while page := store.feed(TENANT, after=len(seen)):
        seen += page
    return seen
