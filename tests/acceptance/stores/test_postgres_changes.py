"""Changes on PostgreSQL: the usual kind, large ones, and a store that was made before there were any."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from limpet import errors
from limpet.stores import chain
from limpet.stores.port import ClaimTaken, Projection, Query
from limpet.stores.server.driver import (
    AppliedUnderContention,
    DuplicateRow,
    FeedHead,
    FeedRow,
    HeadMoved,
    KeyRow,
    ProjectionRow,
    TenantChange,
)
from limpet.stores.server.postgres import PostgresDriver, connections, schema, serialization
from limpet.stores.server.postgres import open_store as open_
from limpet.stores.server.store import ServerStore
from limpet.testing.store_contract.harness import commit, commit_all, make_append, verify_store, write
from tests.servers import postgres

pytestmark = pytest.mark.req("A-20")


@pytest.fixture
def url() -> Iterator[str]:
    with postgres.empty_store() as url:
        yield url


def usual(driver: PostgresDriver, tenant: str, *texts: str, payload: bytes = b"x") -> TenantChange:
    """Return a change as most are: an event of a stream that is there, claims, and a projection."""
    head = driver.head(tenant)
    at = chain.EventAddress(head.position + 1, 1, head.position + 1)
    row = chain.EventRow(at, b"header", payload, b"s" * 16, b"d" * 32, b"l" * 32)
    put = ProjectionRow(Projection(kind="row", id="0", document=payload, terms=("t",)), b"mark")
    return TenantChange(
        tenant=tenant, before=head, after=FeedHead(at.position, row.link, head.epoch),
        rows=(FeedRow("a", row, 0),), claims=tuple((1, text, at.version) for text in texts), projections=(put,),
    )  # fmt: skip


def held(driver: PostgresDriver) -> list[object]:
    return [
        driver.head("red"), driver.feed("red", after=0, limit=9), driver.count_claims("red", [1]),
        driver.projections("red"),
    ]  # fmt: skip


def test_a_usual_change_for_another_head_or_with_something_that_is_there_changes_nothing(url: str):
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        assert driver.apply([usual(driver, "red", "c", payload=b"")]) == [None], "it has no head yet"
        now, before = driver.head("red"), held(driver)
        change = usual(driver, "red", "d")
        for other in (FeedHead(0), FeedHead(1, bytes(32)), FeedHead(1, now.link, 1)):
            after = msgspec.structs.replace(change.after, epoch=other.epoch)
            late = msgspec.structs.replace(change, before=other, after=after)
            assert driver.apply([late]) == [HeadMoved(now)]
        claimed = usual(driver, "red", "d", "c")
        assert driver.apply([claimed]) == [DuplicateRow()]
        both = driver.apply([usual(driver, "blue", "c"), claimed, usual(driver, "green")])
        assert both == [None, DuplicateRow(), None]
        assert held(driver) == before
        assert driver.apply([usual(driver, "red", "d", "e")]) == [None]
        kept = driver.projection("red", "row", "0")
        assert kept is not None and kept.projection.document == b"x", "it is another now"


def test_large_changes_of_several_tenants_go_together_and_leave_the_connection_free(url: str):
    with closing(PostgresDriver(connections.parse_url(f"{url}?connections=2&timeout_s=60"))) as driver:
        large = [usual(driver, name, payload=bytes(12_000_000)) for name in ("red", "blue", "green")]
        assert driver.apply(large) == [None, None, None]
        assert [driver.head(change.tenant) for change in large] == [c.after for c in large]
        assert driver.apply([large[0], usual(driver, "blue")]) == [HeadMoved(large[0].after), None]
        driver.close()
        with pytest.raises(errors.EngineClosed):
            driver.apply([large[0]])


def test_a_listener_is_notified_of_a_plain_append(url: str):
    heard: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        listening = threading.Thread(target=lambda: [*map(heard.put, driver.listen())])
        listening.start()
        assert heard.get(timeout=120) == ("", 0)
        for position in (1, 2):
            assert driver.apply([usual(driver, "red", f"c{position}")]) == [None]
            assert heard.get(timeout=120) == ("red", position)
    listening.join()


def test_no_interrupt_takes_a_connection_away_for_good(url: str, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*given: object) -> None:
        for connection in given:
            if isinstance(connection, connections.PostgresConnection):
                connection.close()
        raise KeyboardInterrupt

    with closing(PostgresDriver(connections.parse_url(f"{url}?connections=2&timeout_s=10"))) as driver:
        pool, kept = driver._connections, list[BaseException]()
        for _ in range(3):
            # Where one is taken, where one that failed is put away, and right after there was room.
            monkeypatch.setattr(pool, "take_connection", interrupted)
            with pytest.raises(KeyboardInterrupt) as met:
                driver.head("red")
            kept.append(met.value)
            monkeypatch.undo()
            monkeypatch.setattr(connections, "_close_quietly", interrupted)
            with pytest.raises(KeyboardInterrupt), pool.borrow():
                raise ValueError
            monkeypatch.undo()
            pool.take_slot()
        assert driver.head("red") == FeedHead()


def test_a_change_is_a_plain_append_or_not():
    nothing = TenantChange(tenant="red", before=FeedHead(), after=FeedHead(1))
    row = chain.EventRow(chain.EventAddress(1, 1, 1), b"h", b"p", b"s" * 16, b"d" * 32, b"l" * 32)
    whole = msgspec.structs.replace(nothing, rows=(FeedRow("a", row, 0),))
    brought = set(TenantChange.__struct_fields__) - {"tenant", "before", "after", "rows"}
    usual_ = {"claims", "projections"}
    some = {"todo": b"x", "blobs": {b"h": b"c"}}
    for name in brought:
        more = msgspec.structs.replace(whole, **{name: some.get(name, ("something",))})
        assert serialization.is_plain_append(more) is (name in usual_), name
    assert serialization.is_plain_append(whole) and not serialization.is_plain_append(nothing)


def test_a_change_tells_that_another_driver_wants_the_advisory_lock(url: str):
    with (
        closing(PostgresDriver(connections.parse_url(url))) as one,
        closing(PostgresDriver(connections.parse_url(url))) as two,
    ):
        rare = (KeyRow("k", b"hash", 1, 1, 0),)
        assert two.acquire_advisory_lock("red", 1.0)
        assert one.apply([usual(one, "red"), usual(one, "blue")]) == [AppliedUnderContention(), None]
        assert one.apply([msgspec.structs.replace(usual(one, "red"), keys=rare)]) == [AppliedUnderContention()]
        assert two.apply([usual(two, "red")]) == [None], "it has it itself"
        two.release_advisory_lock("red")
        assert one.apply([usual(one, "red")]) == [None]


def test_a_store_of_version_1_is_lifted_and_whoever_has_it_open_goes_on(monkeypatch: pytest.MonkeyPatch):
    with postgres.database() as url:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", ("schema-1.sql",))
            before = PostgresDriver(connections.parse_url(url))
        assert _schema(url) == b"1"
        # It knows no function of version 2.
        apply = before._sql["apply"].replace("is_wanted($1, $4)", "false")
        monkeypatch.setattr(before, "_sql", {**before._sql, "apply": apply})
        usual, late = serialization.is_plain_append, threading.Event()
        monkeypatch.setattr(serialization, "is_plain_append", lambda change: late.is_set() and usual(change))
        with closing(ServerStore(before)) as old:
            commit_all(old, make_append(write("a", 0, b"1", claims=(("c", 0),))))
            with closing(open_(url)) as store:
                assert _schema(url) == b"3"
                commit_all(old, make_append(write("a", 1, b"2")))
                late.set()
                commit_all(store, make_append(write("a", 2, b"3", claims=(("d", 0),))))
                again = make_append(write("a", 3, b"4", claims=(("c", 0),)))
                assert isinstance(commit(store, again)[0], ClaimTaken)
                late.clear()
                commit_all(old, make_append(write("a", 3, b"4", claims=(("e", 0),))))
                assert verify_store(store).ok and store.version("acme", "a") == 4


def test_a_store_of_version_2_is_lifted_and_whoever_has_it_open_goes_on():
    row = Projection(kind="row", id="1", terms=("red",))
    other = msgspec.structs.replace(row, terms=("blue",))
    with postgres.database() as url:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
            old = open_(url)
        with closing(old):
            commit_all(old, make_append(write("a", 0, b"1")))
            commit_all(old, make_append(write("a", 1, b"2", claims=(("c", 0),)), projections=(row,)))
            assert _schema(url) == b"2"
            with closing(open_(url)) as store:
                assert _schema(url) == b"3"
                commit_all(old, make_append(write("a", 2, b"3", claims=(("d", 0),)), projections=(row,)))
                commit_all(store, make_append(write("a", 3, b"4", claims=(("e", 0),)), projections=(other,)))
                taken = make_append(write("a", 4, b"5", claims=(("c", 0),)))
                assert isinstance(commit(old, taken)[0], ClaimTaken)
                found = [old.query_projections("acme", Query(kind="row", terms=(t,))) for t in ("red", "blue")]
                assert found == [[], [other]] and verify_store(old).ok


def _schema(url: str) -> bytes:
    return postgres.run(url, "SELECT value FROM limpet.store WHERE name = 'schema'")[0][0]
