"""What is changed beneath a store on a server is found, where no digest of an event can tell."""

from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from limpet import errors
from limpet.stores.port import KeyUse, Report, Snapshot
from limpet.stores.server.driver import FeedHead
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamServer
from limpet.testing.store_contract import erasure_contract
from limpet.testing.store_contract.erasure_contract import append_events, claim_event, claim_payload, event_erasure
from limpet.testing.store_contract.harness import TENANT, commit_all, make_append, write
from tests.contract.ram_driver import RemoteDriver
from tests.contract.test_volatile import swap_names

replace = msgspec.structs.replace


@pytest.fixture
def server() -> RamServer:
    return RamServer()


@pytest.fixture
def mine(server: RamServer) -> Iterator[ServerStore]:
    with closing(ServerStore(RemoteDriver(server))) as store:
        yield store


def test_a_tail_that_is_gone_is_missed(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1", b"2", b"3")))
    server.tenants[TENANT].rows.popitem()
    assert any("1 more event(s) had been acknowledged" in fault for fault in faults(mine))


def test_a_hole_is_missed(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1", b"2", b"3")))
    del server.tenants[TENANT].rows[2]
    assert any("events 2 to 2 are missing" in fault for fault in faults(mine))
    assert any("stream 1 has 2 of 3 events" in fault for fault in faults(mine))
    for look in (mine.copy_events, mine.feed):
        with pytest.raises(errors.Corrupt, match="position 2 is missing"):
            look(TENANT)
    for newest in (False, True):
        with pytest.raises(errors.Corrupt, match="stream 1 has 2 of 3 events"):
            mine.read(TENANT, "a", newest=newest)
    assert [event.version for event in mine.read(TENANT, "a", after=2)] == [3]


def test_a_tail_that_was_replaced_is_found(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    books = server.tenants[TENANT]
    books.head = FeedHead(1, b"x" * 32, 0)
    assert any("differs from what was acknowledged" in fault for fault in faults(mine))


def test_a_head_that_is_lost_is_found(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    server.tenants[TENANT].head = FeedHead()
    assert any("the log ends at 0, but it goes on" in fault for fault in faults(mine))
    with (
        closing(ServerStore(RemoteDriver(server))) as another,
        pytest.raises(errors.Corrupt, match="the record of how many is lost"),
    ):
        another.head(TENANT)


def test_a_stream_without_a_name_is_found(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1"), write("b", 0, b"2")))
    del server.tenants[TENANT].streams[2]
    assert any("stream 2 has no name" in fault for fault in faults(mine))


def test_an_ordinal_that_was_changed_is_found(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    books = server.tenants[TENANT]
    books.rows[1] = replace(books.rows[1], ordinal=7)
    assert any("ordinal" in fault for fault in faults(mine))


def test_a_stand_in_that_was_changed_is_found(mine: ServerStore, server: RamServer):
    append_events(mine, "a", claim_event("c1", "one"))
    erasure_contract.erase_all(mine, event_erasure(mine, "a", 1, claim_payload("c1", "-")))
    books = server.tenants[TENANT]
    blank = books.rows[1].erasure
    assert blank is not None and blank.redacted_payload is not None
    forged = replace(blank, redacted_payload=blank.redacted_payload[:-3] + b'"!}')
    books.rows[1] = replace(books.rows[1], erasure=forged)
    with pytest.raises(errors.Corrupt):
        mine.read(TENANT, "a")
    assert any("erased" in fault for fault in faults(mine))


def test_a_snapshot_that_was_changed_counts_as_absent(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1"), snapshots=(Snapshot("a", 1, 1, b"state"),)))
    kept = server.tenants[TENANT].snapshots[1]
    server.tenants[TENANT].snapshots[1] = replace(kept, snapshot=replace(kept.snapshot, state=b"x"))
    assert mine.snapshot(TENANT, "a") is None


def test_what_is_there_beyond_the_head_is_damage(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1")))
    server.tenants[TENANT].claims[1] = {"c": 9}
    server.tenants[TENANT].head = FeedHead(0)
    with closing(ServerStore(RemoteDriver(server))) as fresh, pytest.raises(errors.Corrupt):
        commit_all(fresh, make_append(write("b", 0, b"2")))


def test_a_name_that_was_changed_is_not_read(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("alice", 0, b"1"), write("bob", 0, b"2")))
    swap_names(server.tenants[TENANT], "alice", "bob")
    with closing(ServerStore(RemoteDriver(server))) as fresh:
        for look in (fresh.read, fresh.version, fresh.forks):
            with pytest.raises(errors.Corrupt):
                look(TENANT, "alice")
        with pytest.raises(errors.Corrupt):
            commit_all(fresh, make_append(write("alice", 1, b"3")))
    assert any("row of streams" in fault for fault in faults(mine))


def test_a_base_that_was_lost_is_not_read_over(mine: ServerStore, server: RamServer):
    commit_all(mine, make_append(write("a", 0, b"1", b"2")))
    commit_all(mine, make_append(replace(write("a", 2, b"3"), base=("a", 1))))
    assert [e.payload for e in mine.read(TENANT, "a")] == [b"1", b"3"]
    streams = server.tenants[TENANT].streams
    streams[1] = replace(streams[1], bases=())
    with pytest.raises(errors.Corrupt):
        mine.read(TENANT, "a")


def test_a_key_that_was_changed_is_not_read(mine: ServerStore, server: RamServer):
    used = KeyUse("k", b"hash")
    commit_all(mine, make_append(write("a", 0, b"1"), key=used))
    keys = server.tenants[TENANT].keys
    keys["k"] = replace(keys["k"], first=2, last=2)
    with closing(ServerStore(RemoteDriver(server))) as fresh:
        with pytest.raises(errors.Corrupt):
            fresh.find_key(TENANT, "k")
        with pytest.raises(errors.Corrupt):
            fresh.copy_keys(TENANT)
        with pytest.raises(errors.Corrupt):
            commit_all(fresh, make_append(write("b", 0, b"2"), key=used))


def faults(store: ServerStore) -> tuple[str, ...]:
    """Return what verify finds."""
    *_, report = store.verify()
    assert isinstance(report, Report)
    return report.faults
