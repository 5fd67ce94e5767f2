"""What is a store's own that lives on a server: what it trusts, and what it asks."""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from limpet import errors, limits
from limpet.stores.port import Append, Appended, ClaimTaken, KeyRecord, KeyUse, Stale
from limpet.stores.server import tenant_cache
from limpet.stores.server.driver import ChangeResult, TenantChange
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamServer
from limpet.testing.store_contract.harness import OTHER, TENANT, commit, commit_all, make_append, verify_store, write
from limpet.testing.store_contract.projection_contract import LONG_S
from tests.contract.ram_driver import RemoteDriver

replace = msgspec.structs.replace


class Forgetful(RemoteDriver):
    """A driver that can lose an answer."""

    loses_answers = False

    def apply(self, changes: Sequence[TenantChange]) -> list[ChangeResult]:
        verdicts = super().apply(changes)
        if self.loses_answers:
            self.loses_answers = False
            raise errors.Unavailable("the answer is lost.")
        return verdicts


@pytest.fixture
def server() -> RamServer:
    return RamServer()


@pytest.fixture
def driver(server: RamServer) -> Forgetful:
    return Forgetful(server)


@pytest.fixture
def mine(driver: Forgetful) -> Iterator[ServerStore]:
    with closing(ServerStore(driver)) as store:
        yield store


@pytest.fixture
def theirs(server: RamServer) -> Iterator[ServerStore]:
    with closing(ServerStore(RemoteDriver(server))) as store:
        yield store


def once(store: ServerStore, append: Append) -> object:
    """Commit one append, whatever comes of it."""
    with store.write_lock():
        (outcome,) = store.commit([append])
    return outcome


def test_a_commit_on_what_is_known_is_one_round_trip(
    mine: ServerStore, driver: Forgetful, monkeypatch: pytest.MonkeyPatch
):
    # Whoever begins to listen doubts once what it knew before.
    monkeypatch.setattr(mine._notifications, "start_listener", lambda: None)
    commit_all(mine, make_append(write("a", 0, b"1"), write("b", 0, b"1")))
    for version in range(1, 4):
        before = driver.trips
        with mine.write_lock() as alone:
            assert alone
            outcomes = mine.commit(
                [
                    make_append(write("a", version, b"x", claims=((f"c{version}", 0),))),
                    make_append(write("b", version, b"x"), write(f"n{version}", 0, b"x")),
                    make_append(write("a", version + 100, b"no")),
                ]
            )
        assert driver.trips == before + 1
        assert [type(each) for each in outcomes] == [Appended, Appended, Stale]
        commit_all(mine, make_append(write("c", version - 1, b"x")), make_append(write("d", version - 1, b"x")))


def test_what_was_decided_on_less_than_is_there_is_refused_then_decided_anew(mine: ServerStore, theirs: ServerStore):
    commit_all(mine, make_append(write("a", 0, b"1")))
    commit_all(theirs, make_append(write("b", 0, b"2")))
    with mine.write_lock():
        assert mine.commit([make_append(write("a", 1, b"3"))]) == [Stale("", 2)]
        assert mine.version(TENANT, "b") == 1
        assert mine.commit([make_append(write("a", 1, b"3"))]) == [Appended(3, 3)]
    with mine.write_lock() as alone:
        assert not alone, "what was cached before does not hold"


def test_nothing_that_was_known_outlives_a_refusal(mine: ServerStore, theirs: ServerStore):
    commit_all(mine, make_append(write("a", 0, b"1")))
    commit_all(theirs, make_append(write("a", 1, b"2")))
    with mine.write_lock():
        assert mine.commit([make_append(write("a", 1, b"late"))]) == [Stale("", 2)]
        assert mine.commit([make_append(write("a", 1, b"late"))]) == [Stale("a", 2)]
        assert mine.commit([make_append(write("a", 2, b"3"))]) == [Appended(3, 3)]


def test_what_was_read_before_others_wrote_is_refused(mine: ServerStore, theirs: ServerStore):
    """Also by a store that knew nothing of the tenant when its turn began."""
    with mine.write_lock():
        assert mine.version(TENANT, "a") == 0
        commit_all(theirs, make_append(write("a", 0, b"1")))
        assert mine.commit([make_append(write("b", 0, b"there is no a"))]) == [Stale("", 1)]


def test_a_refused_writer_takes_the_advisory_lock(mine: ServerStore, theirs: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    commit_all(theirs, make_append(write("b", 0, b"2")))
    guard = server.advisory_locks[TENANT]
    with mine.write_lock():
        assert mine.commit([make_append(write("a", 1, b"3"))]) == [Stale("", 2)]
        assert not guard.locked()
        assert mine.version(TENANT, "a") == 1
        assert guard.locked()
    assert not guard.locked()
    for version in range(1, 2 + tenant_cache.CONTENTION_BATCHES):
        with mine.write_lock():
            assert isinstance(mine.commit([make_append(write("a", version, b"x"))])[0], Appended)
            assert guard.locked() is (version <= tenant_cache.CONTENTION_BATCHES)


def test_who_is_wanted_waits_for_the_guard(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    mine._notifications._receive(TENANT, 0)
    with mine.write_lock() as alone:
        assert not alone
        assert mine.version(TENANT, "a") == 1
        assert server.advisory_locks[TENANT].locked()


def test_a_driver_that_always_wins_is_told_of_contention(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    with server.advisory_locks[TENANT]:
        commit_all(mine, make_append(write("a", 1, b"2")))
    assert mine._notifications._thread is not None, "it listens from now on"
    with mine.write_lock():
        assert mine.version(TENANT, "a") == 2
        assert server.advisory_locks[TENANT].locked()


def test_after_missed_notifications_the_advisory_lock_is_waited_for_once(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    mine._notifications._receive("", 0)
    for version, guarded in ((1, True), (2, False)):
        with mine.write_lock():
            assert mine.version(TENANT, "a") == version
            assert server.advisory_locks[TENANT].locked() is guarded
            assert mine.commit([make_append(write("a", version, b"x"))]) == [Appended(version + 1, version + 1)]


def test_an_advisory_lock_that_is_not_released_is_waited_for_once(
    mine: ServerStore, server: RamServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tenant_cache, "ADVISORY_LOCK_WAIT_S", 0.01)
    commit_all(mine, make_append(write("a", 0, b"0")))
    asked: list[str] = []
    guard = RemoteDriver.acquire_advisory_lock

    def counted(self: RemoteDriver, tenant: str, timeout_s: float) -> bool:
        asked.append(tenant)
        return guard(self, tenant, timeout_s)

    monkeypatch.setattr(RemoteDriver, "acquire_advisory_lock", counted)
    with server.advisory_locks[TENANT]:
        for version in range(1, 2 * tenant_cache.CONTENTION_BATCHES):
            commit_all(mine, make_append(write("a", version, b"x")))
        assert asked == [TENANT]
        monkeypatch.setattr(tenant_cache, "ADVISORY_LOCK_SKIP_S", 0.0)
        mine._tenant_cache._skip_lock_until.clear()
        commit_all(mine, make_append(write("a", 2 * tenant_cache.CONTENTION_BATCHES, b"x")))
    assert asked == [TENANT] * 2


def test_a_guard_that_is_not_had_hinders_nobody(mine: ServerStore, server: RamServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_cache, "ADVISORY_LOCK_WAIT_S", 0.0)
    commit_all(mine, make_append(write("a", 0, b"1")))
    mine._notifications._receive(TENANT, 0)
    with server.advisory_locks[TENANT]:
        commit_all(mine, make_append(write("a", 1, b"2")))
    assert not server.advisory_locks[TENANT].locked()


def test_a_refusal_rests_on_what_is_there_too(mine: ServerStore, theirs: ServerStore):
    """By what is remembered the version would be another than expected; by now it is that one."""
    commit_all(mine, make_append(write("a", 0, b"1", claims=(("c1", 0),))))
    commit_all(theirs, make_append(write("a", 1, b"2")))
    with mine.write_lock():
        assert mine.commit([make_append(write("a", 2, b"3"))]) == [Stale("", 2)]
        assert mine.commit([make_append(write("a", 2, b"3"))]) == [Appended(3, 3)]


def test_tenants_are_refused_apart(mine: ServerStore, theirs: ServerStore):
    commit_all(mine, make_append(write("a", 0, b"1")), make_append(write("a", 0, b"1"), tenant=OTHER))
    commit_all(theirs, make_append(write("b", 0, b"2"), tenant=OTHER))
    with mine.write_lock():
        outcomes = mine.commit([make_append(write("a", 1, b"2"), tenant=t) for t in (OTHER, TENANT)])
    assert outcomes == [Stale("", 2), Appended(2, 2)]


def test_each_append_has_its_own_outcome_where_something_is_taken(theirs: ServerStore, mine: ServerStore):
    used = KeyUse("k", b"hash")
    commit_all(theirs, make_append(write("a", 0, b"1", claims=(("c", 0),)), key=used))
    outcomes = commit(
        mine,
        make_append(write("b", 0, b"1")),
        make_append(write("c", 0, b"1"), key=used),
        make_append(write("a", 1, b"2", claims=(("c", 0),))),
        make_append(write("a", 0, b"1")),
        make_append(write("a", 1, b"2"), key=KeyUse("other", b"")),
        make_append(write("d", 0, b"1"), key=KeyUse("other", b"")),
    )
    assert outcomes == [
        Appended(2, 2), KeyRecord(b"hash", 1, 1), ClaimTaken("a", "c", 1), Stale("a", 1), Appended(3, 3),
        KeyRecord(b"", 3, 3),
    ]  # fmt: skip
    assert mine.version(TENANT, "c") == mine.version(TENANT, "d") == 0
    assert verify_store(mine).ok


def test_a_refusal_holds_until_something_is_read(mine: ServerStore, theirs: ServerStore):
    commit_all(mine, make_append(write("a", 0, b"1")))
    with mine.write_lock():
        assert mine.is_unchanged(TENANT)
        commit_all(theirs, make_append(write("b", 0, b"2")))
        assert not mine.is_unchanged(TENANT)
        assert not mine.is_unchanged(TENANT), "nobody has looked again"
        assert mine.version(TENANT, "b") == 1
        assert mine.is_unchanged(TENANT)
        assert mine.commit([make_append(write("a", 1, b"3"))]) == [Appended(3, 3)]


def test_a_lost_answer_is_found_again_by_its_key(mine: ServerStore, driver: Forgetful):
    commit_all(mine, make_append(write("a", 0, b"1")))
    append = make_append(write("a", 1, b"2"), key=KeyUse("k", b"hash"))
    driver.loses_answers = True
    with pytest.raises(errors.Unavailable), mine.write_lock():
        mine.commit([append])
    with mine.write_lock() as alone:
        assert not alone
        assert mine.version(TENANT, "a") == 2
        assert mine.commit([append]) == [KeyRecord(b"hash", 2, 2)]
    assert mine.head(TENANT) == 2


def test_what_is_forgotten_is_not_trusted(mine: ServerStore, theirs: ServerStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_cache, "TENANTS_MAX", 2)
    commit_all(mine, *(make_append(write("a", 0, b"1"), tenant=tenant) for tenant in "abc"))
    commit_all(theirs, make_append(write("b", 0, b"1"), tenant="a"))
    with mine.write_lock() as alone:
        assert not alone, "what is cached of a tenant could not be compared any more"


def test_those_who_were_met_are_not_remembered_for_ever(
    mine: ServerStore, theirs: ServerStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tenant_cache, "TENANTS_MAX", 3)
    for at in range(20):
        tenant = f"t{at}"
        commit_all(mine, make_append(write("a", 0, b"1"), tenant=tenant))
        commit_all(theirs, make_append(write("b", 0, b"1"), tenant=tenant))
        # Refused, or others were heard of before.
        commit(mine, make_append(write("a", 1, b"2"), tenant=tenant))
    assert len(mine._tenant_cache._contended) <= 3 + 1


def test_streams_are_forgotten_and_asked_for(mine: ServerStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_cache, "STREAMS_MAX", 3)
    monkeypatch.setattr(tenant_cache, "BATCHES_PER_EVICTION", 2)
    for version in range(4):
        for stream in "abcde":
            commit_all(mine, make_append(write(stream, version, b"x", claims=((f"c{version}", 0),))))
    assert commit(mine, make_append(write("a", 4, b"x", claims=(("c1", 0),)))) == [ClaimTaken("a", "c1", 2)]
    assert verify_store(mine).ok


@pytest.mark.parametrize("seed", range(3))
def test_no_decision_rests_on_what_is_not_there(server: RamServer, seed: int):
    """Several stores write `n` to one stream or another on condition that both have n events together."""

    def work(number: int) -> None:
        dice = random.Random(f"{seed}/{number}")
        with closing(ServerStore(RemoteDriver(server))) as store:
            versions: dict[str, int] = {}
            done = 0
            while done < 30:
                with store.write_lock() as alone:
                    if not alone or len(versions) < 2:
                        versions = {name: store.version(TENANT, name) for name in "ab"}
                    name, said = dice.choice("ab"), sum(versions.values())
                    told = make_append(write(name, versions[name], b"%d" % said))
                    (outcome,) = store.commit([told])
                    versions[name] += 1
                    if isinstance(outcome, Appended):
                        done += 1
                    else:
                        assert isinstance(outcome, Stale)
                        versions = {}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    with closing(ServerStore(RemoteDriver(server))) as store:
        assert [e.payload for e in store.feed(TENANT)] == [b"%d" % n for n in range(120)]
        assert verify_store(store).ok


def test_a_backup_is_refused_with_what_to_do_instead(mine: ServerStore, tmp_path: Path):
    with pytest.raises(errors.NoBackup, match="limpet backup"):
        mine.backup(str(tmp_path / "copy"))


def test_nobody_waits_for_a_scrub_that_waits(server: RamServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.05)
    begun, through = threading.Event(), threading.Event()

    class Slow(RemoteDriver):
        def scrub(self, done: bytes, left: bytes) -> None:
            begun.set()
            assert through.wait(LONG_S)
            super().scrub(done, left)

    with closing(ServerStore(Slow(server))) as store, ThreadPoolExecutor(1) as pool:
        scrubbed = pool.submit(store.scrub)
        assert begun.wait(LONG_S)
        try:
            commit_all(store, make_append(write("a", 0, b"1")))
            assert not scrubbed.done()
        finally:
            through.set()
        scrubbed.result()


def test_a_turn_that_is_not_passed_on_names_its_holder(mine: ServerStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.0)
    with mine.write_lock(), ThreadPoolExecutor(1) as pool:
        busy = pool.submit(once, mine, make_append(write("a", 0, b"1"))).exception()
    assert isinstance(busy, errors.StoreBusy)
    assert busy.facts == {"holder": threading.current_thread().name}
    monkeypatch.undo()
    commit_all(mine, make_append(write("a", 0, b"1")))


def test_misuse_is_an_assertion(mine: ServerStore):
    with pytest.raises(AssertionError, match="holds the write lock"):
        mine.commit([])
    with pytest.raises(AssertionError, match="holds the write lock"):
        mine.is_unchanged(TENANT)
    with mine.write_lock(), pytest.raises(AssertionError, match="already"), mine.write_lock():
        pass
