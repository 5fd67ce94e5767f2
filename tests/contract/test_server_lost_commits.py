"""A server that has lost the end of its log: whoever has seen more says so once, then goes on with what is there."""

import copy
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest

from limpet import errors
from limpet.stores.port import Appended, Snapshot, Stale
from limpet.stores.server import tenant_cache
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamServer, TenantTables
from limpet.testing.store_contract import erasure_contract
from limpet.testing.store_contract.erasure_contract import append_events, claim_event, stream_erasure
from limpet.testing.store_contract.harness import OTHER, TENANT, commit_all, make_append, verify_store, write
from tests.contract.ram_driver import RemoteDriver


@pytest.fixture
def server() -> RamServer:
    return RamServer()


@pytest.fixture
def mine(server: RamServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerStore]:
    with closing(ServerStore(RemoteDriver(server))) as store:
        # What is heard of others would be looked at first.
        monkeypatch.setattr(store._notifications, "start_listener", lambda: None)
        yield store


@pytest.fixture
def theirs(server: RamServer) -> Iterator[ServerStore]:
    with closing(ServerStore(RemoteDriver(server))) as store:
        yield store


def kept(server: RamServer) -> TenantTables:
    return copy.deepcopy(server.tenants[TENANT])


def lose(server: RamServer, before: TenantTables) -> None:
    """Put an earlier moment of a tenant back."""
    server.tenants[TENANT] = before


def filled(mine: ServerStore, server: RamServer) -> TenantTables:
    """Have two events on the server's disk, and two more that it acknowledged."""
    commit_all(mine, make_append(write("a", 0, b"1", b"2")))
    before = kept(server)
    commit_all(mine, make_append(write("a", 2, b"3", b"4")))
    return before


LOOKS: list[Callable[[ServerStore], object]] = [
    lambda store: store.head(TENANT),
    lambda store: store.cache_epoch(TENANT),
]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("since", [0, 1, 2, 3])
def test_what_is_lost_is_told_once_then_what_is_there_counts(
    mine: ServerStore, server: RamServer, look: Callable[[ServerStore], object], since: int
):
    """Whether the log is shorter now, as long, or longer: others have gone on from what was left."""
    before = filled(mine, server)
    count = mine.cache_epoch(TENANT)
    lose(server, before)
    with closing(ServerStore(RemoteDriver(server))) as fresh:
        for version in range(2, 2 + since):
            commit_all(fresh, make_append(write("a", version, b"other")))
    with pytest.raises(errors.EventsLost, match="acknowledged events are gone") as caught:
        look(mine)
    assert caught.value.facts == {"tenant": TENANT, "acknowledged": 4, "there": 2 + since}
    assert caught.value.hint
    assert mine.head(TENANT) == 2 + since
    assert mine.cache_epoch(TENANT) != count, "nothing that was cached may be trusted"
    with mine.write_lock():
        assert mine.commit([make_append(write("a", 4, b"5"))]) == [Stale("", 2 + since)]
    with mine.write_lock() as alone:
        assert not alone
        assert mine.version(TENANT, "a") == 2 + since
        assert mine.commit([make_append(write("a", 2 + since, b"5"))]) == [Appended(3 + since, 3 + since)]
    assert verify_store(mine).ok


@pytest.mark.parametrize("since", [0, 1, 2, 3])
def test_a_commit_on_what_is_lost_is_refused_and_whoever_decides_again_is_told(
    mine: ServerStore, theirs: ServerStore, server: RamServer, since: int
):
    before = filled(mine, server)
    lose(server, before)
    for version in range(2, 2 + since):
        commit_all(theirs, make_append(write("a", version, b"other")))
    with mine.write_lock():
        assert mine.commit([make_append(write("a", 4, b"5"))]) == [Stale("", 2 + since)]
        for _ in range(2):
            with pytest.raises(errors.EventsLost):
                mine.version(TENANT, "a")
        assert mine.is_unchanged(TENANT), "the verdict stands: nobody decides once more in this turn"
        others = mine.commit([make_append(write("a", 0, b"1"), tenant=OTHER)])
        assert others == [Appended(1, 1)], "another tenant has lost nothing"
    with mine.write_lock() as alone:
        assert not alone
        assert mine.version(TENANT, "a") == 2 + since
    assert verify_store(mine).ok


def test_an_erasure_that_is_lost_is_told(mine: ServerStore, server: RamServer):
    append_events(mine, "a", claim_event("c1", "one"))
    erasure_contract.erase_all(mine, stream_erasure(mine, "a"))
    books = server.tenants[TENANT]
    books.head = msgspec.structs.replace(books.head, epoch=0)
    with pytest.raises(errors.EventsLost):
        mine.cache_epoch(TENANT)


def test_who_goes_on_has_lost_nothing(mine: ServerStore, theirs: ServerStore):
    append_events(mine, "a", claim_event("c0", "x"))
    for version in range(1, 5):
        append_events(theirs, "a", claim_event(f"c{version}", "x"))
        assert mine.head(TENANT) == version + 1
        assert mine.cache_epoch(TENANT) == 0
    list(theirs.rebuild(erasure_contract.derive_claims))
    assert mine.cache_epoch(TENANT) == 1


def test_heads_are_not_remembered_for_ever(mine: ServerStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_cache, "HEADS_MAX", 3)
    for at in range(20):
        commit_all(mine, make_append(write("a", 0, b"1"), tenant=f"t{at}"))
    assert list(mine._loss_detector._heads) == ["t17", "t18", "t19"]


def test_a_snapshot_holds_for_its_event_only(mine: ServerStore, server: RamServer):
    """Another event at its version, with the same number: what was folded is not what is there."""
    commit_all(mine, make_append(write("a", 0, b"1")))
    before = kept(server)
    commit_all(mine, make_append(write("a", 1, b"2"), snapshots=(Snapshot("a", 2, 1, b"one two"),)))
    assert mine.snapshot(TENANT, "a") == Snapshot("a", 2, 1, b"one two")
    snapshots = server.tenants[TENANT].snapshots
    lose(server, before)
    with closing(ServerStore(RemoteDriver(server))) as fresh:
        commit_all(fresh, make_append(write("a", 1, b"other")))
        server.tenants[TENANT].snapshots |= snapshots
        assert fresh.snapshot(TENANT, "a") is None


def test_a_snapshot_of_an_earlier_version_is_read_too(mine: ServerStore):
    commit_all(mine, make_append(write("a", 0, b"1", b"2")))
    commit_all(mine, make_append(write("a", 2, b"3"), snapshots=(Snapshot("a", 2, 1, b"one two"),)))
    assert mine.snapshot(TENANT, "a") == Snapshot("a", 2, 1, b"one two")
