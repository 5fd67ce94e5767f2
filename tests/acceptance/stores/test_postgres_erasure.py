"""Erasures on PostgreSQL: what was taken out is in none of the server's table files, whoever is at work meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

import limpet
from limpet import Message, errors, limits
from limpet.stores.server.driver import EventErasure, FeedHead, TenantChange
from limpet.stores.server.postgres import PostgresDriver, connections, schema
from limpet.stores.server.postgres import open_store as open_
from limpet.testing.store_contract.harness import commit_all, make_append, write
from tests.servers import postgres

pytestmark = pytest.mark.req("A-20")


@pytest.fixture
def server() -> postgres.Server:
    server = postgres.shared()
    if not isinstance(server, postgres.Server):
        pytest.skip("the files of another server are out of reach")
    return server


@pytest.fixture
def url(server: postgres.Server) -> Iterator[str]:
    with postgres.database(server) as url:
        yield url


def test_after_a_scrub_what_was_erased_is_in_no_table_file(server: postgres.Server, url: str):
    canary = "canary-7f3a9"
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session(f"{canary}-trip", user_id=f"{canary}-ada")
        session.add_messages([Message(role="user", content=f"{canary}-{n}-" + "x" * 90 * (n % 10)) for n in range(80)])
        kept = lp.sessions.create_session(user_id="bob")
        kept.add_message(Message(role="user", content="stays"))
        for statement in ("ANALYZE", "CHECKPOINT"):
            postgres.run(url, statement)
        assert found(server, canary)
        lp.admin.erase(user_id=f"{canary}-ada")
        postgres.run(url, "CHECKPOINT")
        assert not found(server, canary)
        assert [m.content for m in lp.sessions.get_session(kept.id).messages] == ["stays"]
        assert lp.admin.verify().ok


def test_notes_that_were_dropped_are_in_no_table_file(server: postgres.Server, url: str):
    with closing(open_(url)) as store, closing(PostgresDriver(connections.parse_url(url))) as driver:
        commit_all(store, make_append(write("a", 0, b"x", b"y"), tenant="red"))
        for position, canary in ((1, "one-d20f1"), (2, "two-d20f1")):
            assert store.put_note("red", canary, canary.encode(), expected=0)
            assert store.put_note("red", canary, None, expected=position)
            blank(driver, "red", position)
            driver.scrub(driver.pending_erasures() or b"", b"left\n")
            postgres.run(url, "CHECKPOINT")
            assert not found(server, canary)
        # Somebody could not be told at first, and drops a note of another tenant when nothing else is left to do.
        assert store.put_note("blue", "later-d20f1", b"later-d20f1", expected=0)
        assert store.put_note("blue", "later-d20f1", None, expected=1)
        driver.scrub(b"left\n", b"")
        postgres.run(url, "CHECKPOINT")
        assert not found(server, "later-d20f1")
        assert driver.pending_erasures() is None


def test_of_every_table_it_is_known_whether_an_erasure_leaves_something_in_it(url: str):
    """A table that is new here has to be written anew after an erasure, or to hold nothing that callers wrote."""
    open_(url).close()
    tables = postgres.run(
        url,
        "SELECT relname FROM pg_class WHERE relnamespace = 'limpet'::regnamespace"
        " AND relkind IN ('r', 'p') AND NOT relispartition",
    )
    alone = {"store", "shelf"}
    numbers_and_tenants = {"heads", "bases", "erasures"}
    assert {name for (name,) in tables} == ({*schema.ERASED_TABLES, schema.NOTES_TABLE} | alone | numbers_and_tenants)


def test_an_erasure_that_comes_during_a_scrub_is_scrubbed_by_the_next(
    server: postgres.Server, url: str, monkeypatch: pytest.MonkeyPatch
):
    with closing(open_(url)) as store:
        commit_all(store, make_append(write("a", 0, b"first-c41d8", b"second-c41d8"), tenant="red"))
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        blank(driver, "red", 1)
        rewrite, left = schema._rewrite_table, [2]

        def meanwhile(owner: connections.PostgresConnection, at: connections.PostgresDsn, part: str) -> None:
            rewrite(owner, at, part)
            if part.startswith("events_") and left:
                blank(driver, "red", left.pop())

        monkeypatch.setattr(schema, "_rewrite_table", meanwhile)
        for canary in ("first-c41d8", "second-c41d8"):
            driver.scrub(b"todo\n", b"")
            postgres.run(url, "CHECKPOINT")
            assert not found(server, canary)
        assert driver.pending_erasures() is None


def test_a_scrub_that_waits_for_a_table_holds_nobody_up(server: postgres.Server, url: str):
    """Somebody uses the tables for long. Those who come after the scrub get through all the same."""
    with (
        closing(open_(f"{url}?timeout_s=20")) as store,
        closing(PostgresDriver(connections.parse_url(url))) as driver,
        ThreadPoolExecutor(1) as pool,
    ):
        commit_all(store, make_append(write("a", 0, b"erased-e07b2", b"stays"), tenant="red"))
        blank(driver, "red", 1)
        with psycopg.connect(url) as user:
            user.execute("LOCK TABLE limpet.events IN ACCESS SHARE MODE")
            scrubbed = pool.submit(driver.scrub, b"todo\n", b"")
            while not postgres.run(url, "SELECT 1 FROM pg_locks WHERE NOT granted"):
                assert not scrubbed.done()
            for version in range(2, 10):
                commit_all(store, make_append(write("a", version, b"more"), tenant="red"))
                assert store.head("red") == version + 1
            assert not scrubbed.done()
        scrubbed.result()
        assert driver.pending_erasures() is None
    postgres.run(url, "CHECKPOINT")
    assert not found(server, "erased-e07b2")


def test_a_server_may_have_had_more_transactions_than_32_bits_tell():
    with closing(postgres.Server()) as server:
        server.stop()
        server.reset("-e", "1")
        server.start()
        url = server.url()
        ((number,),) = postgres.run(url, "SELECT pg_current_xact_id()::text::numeric")
        assert number > 2**32
        with limpet.connect(url) as lp:
            session = lp.sessions.create_session("trip", user_id="canary-91c7e")
            session.add_message(Message(role="user", content="canary-91c7e"))
            lp.admin.erase(user_id="canary-91c7e")
        postgres.run(url, "CHECKPOINT")
        assert not found(server, "canary-91c7e")


def test_a_statement_of_the_upkeep_that_fails_is_no_damage(url: str, monkeypatch: pytest.MonkeyPatch):
    with closing(open_(url)) as store, closing(PostgresDriver(connections.parse_url(url))) as driver:
        commit_all(store, make_append(write("a", 0, b"x"), tenant="red"))
        blank(driver, "red", 1)
        broken = {**schema._statements(), "now": "SELECT '4294968000'::xid::text"}
        with monkeypatch.context() as patch:
            patch.setattr(schema, "_statements", lambda: broken)
            with pytest.raises(errors.Unavailable, match="out of range"):
                driver.scrub(b"todo\n", b"")
        assert driver.pending_erasures() == b"todo\n"
        driver.scrub(b"todo\n", b"")
        assert driver.pending_erasures() is None


@pytest.mark.parametrize("slot", ["", "held"])
def test_what_readers_on_a_replica_see_is_waited_for(slot: str, monkeypatch: pytest.MonkeyPatch):
    feedback = ("hot_standby_feedback=on", "wal_receiver_status_interval=1")
    with (
        closing(postgres.Server()) as server,
        closing(open_(server.url())) as store,
        closing(PostgresDriver(connections.parse_url(server.url()))) as driver,
    ):
        commit_all(store, make_append(write("a", 0, b"erased-b51c0", b"stays"), tenant="red"))
        with (
            closing(postgres.Server(*feedback, follows=server, slot=slot)) as replica,
            psycopg.connect(replica.url()) as reader,
        ):
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert reader.execute("SELECT count(*) FROM limpet.events").fetchall() == [(2,)]
            until(server.url(), KEPT_BY_REPLICAS)
            blank(driver, "red", 1)
            monkeypatch.setattr(limits, "SCRUB_REPLICA_WAIT_S", 0.3)
            with pytest.raises(errors.StoreBusy, match="a replica") as caught:
                driver.scrub(b"todo\n", b"")
            assert caught.value.facts["pending"] and driver.pending_erasures() == b"todo\n"
            monkeypatch.undo()
            reader.rollback()
            driver.scrub(b"todo\n", b"")
            assert driver.pending_erasures() is None
            postgres.run(server.url(), "CHECKPOINT")
            assert not found(server, "erased-b51c0")


def test_of_prepared_transactions_only_older_ones_are_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SCRUB_WAIT_S", 0.3)
    with (
        closing(postgres.Server("max_prepared_transactions=2")) as server,
        closing(open_(server.url())) as store,
        closing(PostgresDriver(connections.parse_url(server.url()))) as driver,
    ):
        commit_all(store, make_append(write("a", 0, b"x"), tenant="red"))
        prepare(server.url(), "older")
        blank(driver, "red", 1)
        with pytest.raises(errors.StoreBusy, match="has been open"):
            driver.scrub(b"todo\n", b"")
        postgres.run(server.url(), "COMMIT PREPARED 'older'")
        look, waits = schema._fetch_rows, iter((False, True))

        def overtaken(owner: connections.PostgresConnection, name: str, **values: object) -> Any:
            found = look(owner, name, **values)
            if name == "now" and next(waits):
                prepare(server.url(), "younger")
            return found

        monkeypatch.setattr(schema, "_fetch_rows", overtaken)
        driver.scrub(b"todo\n", b"")
        assert postgres.run(server.url(), "SELECT gid FROM pg_prepared_xacts") == [("younger",)]
        assert driver.pending_erasures() is None


def test_a_table_that_is_never_given_up_leaves_the_scrub_pending(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "SCRUB_WAIT_S", 0.3)
    with closing(open_(url)) as store, closing(PostgresDriver(connections.parse_url(url))) as driver:
        commit_all(store, make_append(write("a", 0, b"x"), tenant="red"))
        blank(driver, "red", 1)
        with psycopg.connect(url) as user:
            user.execute("LOCK TABLE limpet.events IN ACCESS SHARE MODE")
            with pytest.raises(errors.StoreBusy, match="has been in use") as caught:
                driver.scrub(b"todo\n", b"")
        assert caught.value.facts["pending"] and driver.pending_erasures() == b"todo\n"
        driver.scrub(b"todo\n", b"")
        assert driver.pending_erasures() is None


KEPT_BY_REPLICAS = (
    "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND backend_xmin IS NOT NULL"
    " UNION ALL SELECT 1 FROM pg_replication_slots WHERE xmin IS NOT NULL"
)


def until(url: str, statement: str) -> None:
    """Ask until rows come."""
    end = time.monotonic() + postgres.PATIENCE_S
    while not postgres.run(url, statement):
        assert time.monotonic() < end, statement


def prepare(url: str, name: str) -> None:
    """Leave a transaction that has a number behind, prepared."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute(f"PREPARE TRANSACTION '{name}'".encode())


def blank(driver: PostgresDriver, tenant: str, position: int) -> None:
    """Erase one event, and leave the scrub to later."""
    now = driver.head(tenant)
    after = FeedHead(now.position, now.link, now.epoch + 1)
    erased = TenantChange(
        tenant=tenant, before=now, after=after, erasures=((position, EventErasure(1, 1)),), pending_work=b"todo\n"
    )
    assert driver.apply([erased]) == [None]


def found(server: postgres.Server, canary: str) -> list[str]:
    base = server.folder / "base"
    files = (file for file in base.rglob("*") if file.is_file())
    return [str(file) for file in files if canary.encode() in file.read_bytes()]
