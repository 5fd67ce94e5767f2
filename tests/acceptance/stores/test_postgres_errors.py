"""What a PostgreSQL server may be, or become: each with its own error and the fix in it; and what is left after it."""

from __future__ import annotations

import os
import re
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import msgspec
import psycopg
import pytest

import limpet
from limpet import errors
from limpet.stores.port import Appended, KeyRecord, KeyUse, Store
from limpet.stores.server.postgres import PostgresDriver, connections, schema
from limpet.stores.server.postgres import open_store as open_
from limpet.testing.store_contract.harness import (
    TENANT,
    commit,
    commit_all,
    feed_all,
    lost_race,
    make_append,
    verify_store,
    write,
)
from tests.servers import postgres

pytestmark = pytest.mark.req("A-20")

MANY = 1100
"""More files than `select` can tell apart."""


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server of this module's own, which may be stopped and killed."""
    with closing(postgres.Server()) as server:
        yield server


@pytest.fixture
def url(server: postgres.Server) -> Iterator[str]:
    if not server.running:
        server.start()
    with postgres.database(server) as url:
        open_(url).close()
        yield url


def once(store: Store, key: str) -> object:
    return commit(store, make_append(write(key, 0, b"x"), key=KeyUse(key, b"hash")))[0]


def again(store: Store, key: str) -> object:
    """Retry with the same key until the store is back, and others were not faster."""
    for _ in range(200):
        try:
            outcome = commit(store, make_append(write(key, 0, b"x"), key=KeyUse(key, b"hash")))[0]
            if not lost_race(outcome):
                return outcome
        except errors.Unavailable:
            threading.Event().wait(0.05)
    raise AssertionError("it did not come back")


def test_a_wrong_password(server: postgres.Server, url: str):
    hba = server.folder / "pg_hba.conf"
    before = hba.read_text()
    postgres.run(url, "CREATE ROLE ada LOGIN SUPERUSER PASSWORD 'right'")
    try:
        hba.write_text("host all ada 127.0.0.1/32 scram-sha-256\n" + before)
        postgres.run(url, "SELECT pg_reload_conf()")
        with pytest.raises(errors.InvalidRequest, match="does not let this user in") as caught:
            open_(re.sub(r"//\w+@", "//ada:wrong@", url))
        assert "wrong" not in str(caught.value)
        assert ".pgpass" in caught.value.hint
        open_(re.sub(r"//\w+@", "//ada:right@", url)).close()
    finally:
        hba.write_text(before)
        postgres.run(url, "SELECT pg_reload_conf()")


def test_too_many_connections(url: str):
    name = url.rpartition("/")[2]
    postgres.run(url, "DROP ROLE IF EXISTS few")
    postgres.run(url, "CREATE ROLE few LOGIN CONNECTION LIMIT 1; GRANT limpet_app TO few")
    theirs = re.sub(r"//\w+@", "//few@", url)
    with psycopg.connect(theirs), pytest.raises(errors.StoreBusy, match="no connection left") as caught:
        open_(theirs)
    assert "max_connections" in caught.value.hint and name


@pytest.mark.parametrize(
    ("settings", "weak", "holds"),
    [
        (["fsync=off"], "fsync is off", "process-crash"),
        (["full_page_writes=off"], "full_page_writes is off", "process-crash"),
        (["synchronous_commit=off"], "synchronous_commit is off", "none"),
    ],
)
def test_a_durability_that_the_server_cannot_hold_is_refused_by_name(
    server: postgres.Server, url: str, settings: list[str], weak: str, holds: str
):
    server.restart(*settings)
    try:
        with pytest.raises(errors.UnsafeStore, match=f"durability power-loss: {weak}; it holds {holds}") as caught:  # fmt: skip
            open_(url)
        assert f"?durability={holds}" in caught.value.hint
        with closing(open_(f"{url}?durability={holds}")) as store:
            assert store.durability == holds
    finally:
        server.restart()


def test_a_setting_that_is_loosened_later_is_noticed(url: str):
    with closing(open_(url)) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        name = url.rpartition("/")[2]
        postgres.run(url, f"ALTER DATABASE {name} SET synchronous_commit = off")
        cut(url)
        with pytest.raises(errors.UnsafeStore, match="synchronous_commit is off"):
            commit_all(store, make_append(write("a", 1, b"2")))


def test_a_setting_that_is_loosened_is_not_loosened_for_connections_that_are_there(url: str):
    asked = "SELECT current_setting('synchronous_commit')"
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        assert driver.head(TENANT).position == 0
        try:
            postgres.run(url, "ALTER SYSTEM SET synchronous_commit = off")
            postgres.run(url, "SELECT pg_reload_conf()")
            until(lambda: postgres.run(url, asked) == [("off",)])
            for _ in range(10):
                with driver._connections.borrow() as connection:
                    assert connection.execute(asked.encode()).fetchall() == [("on",)]
        finally:
            postgres.run(url, "ALTER SYSTEM RESET synchronous_commit")
            postgres.run(url, "SELECT pg_reload_conf()")
        until(lambda: postgres.run(url, asked) == [("on",)])


def until(there: Callable[[], bool]) -> None:
    for _ in range(200):
        if there():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come")


def cut(url: str) -> None:
    """End every connection to a database."""
    postgres.run(
        url,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


def test_a_read_only_database_and_a_replica(server: postgres.Server, url: str):
    name = url.rpartition("/")[2]
    with closing(open_(url)) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        postgres.run(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        cut(url)
        with pytest.raises(errors.StoreReadOnly, match="read-only"):
            commit_all(store, make_append(write("a", 1, b"2")))
    postgres.run(url, f"SET transaction_read_only = off; ALTER DATABASE {name} RESET default_transaction_read_only")
    server.stop()
    (server.folder / "standby.signal").touch()
    server.start()
    try:
        with pytest.raises(errors.StoreReadOnly, match="is a replica") as caught:
            open_(url)
        assert "target_session_attrs" in caught.value.hint
    finally:
        server.stop()
        (server.folder / "standby.signal").unlink()
        server.start()


def test_an_old_version():
    now = schema.PostgresServer(180_000, "UTF8", False, False, True, True, "on")
    at = connections.parse_url("postgresql://h/d")
    schema.check_server(now, at)
    with pytest.raises(errors.UnsafeStore, match="version 13"):
        schema.check_server(msgspec.structs.replace(now, version=130_021), at)


def test_a_database_in_another_encoding(server: postgres.Server, url: str):
    name = f"{url.rpartition('/')[2]}_latin"
    postgres.run(url, f"CREATE DATABASE {name} ENCODING LATIN1 TEMPLATE template0")
    try:
        with pytest.raises(errors.UnsafeStore, match="LATIN1") as caught:
            open_(server.url(name))
        assert "createdb -E UTF8" in caught.value.hint
        assert not postgres.run(server.url(name), "SELECT 1 FROM pg_namespace WHERE nspname = 'limpet'")  # fmt: skip
    finally:
        postgres.drop(server, name)


@contextmanager
def failing(url: str, code: str) -> Iterator[None]:
    """Let every event that is written fail on the server with a code."""
    postgres.run(
        url,
        "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END $$;"
        "CREATE TRIGGER fail BEFORE INSERT ON limpet.events FOR EACH ROW EXECUTE FUNCTION public.fail()",
    )
    yield
    postgres.run(url, "DROP TRIGGER fail ON limpet.events; DROP FUNCTION public.fail()")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", errors.StoreFull), ("53200", errors.Unavailable), ("25006", errors.StoreReadOnly),
        ("40001", errors.Unavailable), ("40P01", errors.Unavailable), ("57014", errors.Unavailable),
        ("XX001", errors.Corrupt), ("42P01", errors.Corrupt), ("55P03", errors.StoreBusy),
    ],
)  # fmt: skip
def test_what_the_server_fails_with_is_told_and_leaves_nothing(url: str, code: str, kind: type[errors.Error]):
    with closing(open_(url)) as store:
        with failing(url, code), pytest.raises(kind) as caught:
            once(store, "k")
        assert caught.value.hint and caught.value.facts["sqlstate"] == code
        assert isinstance(caught.value.__cause__, psycopg.Error)
        assert once(store, "k") == Appended(1, 1)
        assert once(store, "k") == KeyRecord(b"hash", 1, 1)


def test_a_lock_that_is_not_given_up_and_a_server_that_stands_still(server: postgres.Server, url: str):
    with closing(open_(f"{url}?timeout_s=2")) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        with psycopg.connect(url) as holder:
            holder.execute("SELECT * FROM limpet.heads FOR UPDATE")
            with pytest.raises(errors.Unavailable):
                once(store, "k")
        assert again(store, "k") == Appended(2, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("limpet.stores.server.postgres.connections.CLIENT_GRACE_S", 0.0)
            with closing(open_(f"{url}?timeout_s=2")) as hasty:
                commit_all(hasty, make_append(write("b", 0, b"1")))
                server.pause()
                try:
                    with pytest.raises(errors.Unavailable, match="did not answer in time"):
                        once(hasty, "l")
                finally:
                    server.resume()
                assert again(hasty, "l") in (Appended(4, 4), KeyRecord(b"hash", 4, 4))
        assert [e.position for e in feed_all(store)] == [1, 2, 3, 4]


def test_an_advisory_lock_that_a_paused_server_does_not_release_ends_with_its_connection(
    server: postgres.Server, url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("limpet.stores.server.postgres.connections.CLIENT_GRACE_S", 0.0)
    with (
        closing(PostgresDriver(connections.parse_url(f"{url}?timeout_s=2"))) as mine,
        closing(PostgresDriver(connections.parse_url(url))) as theirs,
    ):
        assert mine.acquire_advisory_lock(TENANT, 1.0)
        server.pause()
        try:
            mine.release_advisory_lock(TENANT)
        finally:
            server.resume()
        assert theirs.acquire_advisory_lock(TENANT, 120.0), "it ended with its connection"


def test_a_backend_that_is_ended_while_nobody_uses_it_is_not_noticed(url: str):
    with closing(open_(url)) as store:
        for number in range(5):
            cut(url)
            assert once(store, str(number)) == Appended(number + 1, number + 1)


def test_a_watcher_hears_again_after_its_connection_was_cut(url: str):
    with closing(open_(url)) as mine, closing(open_(url)) as theirs, ThreadPoolExecutor(1) as pool:
        for number in range(3):
            heard = pool.submit(mine.wait, TENANT, number, 120.0)
            cut(url)
            again(theirs, str(number))
            assert heard.result()


def test_a_listener_that_is_cut_off_says_so(url: str, caplog: pytest.LogCaptureFixture):
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        news = driver.listen()
        assert next(news) == ("", 0)
        cut(url)
        with pytest.raises(errors.Unavailable, match="ended the connection"):
            next(news)
    with closing(open_(url)) as store:
        assert not store.wait(TENANT, 0, 0.1), "from now on it listens"
        until(lambda: bool(postgres.run(url, "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")))  # fmt: skip
        cut(url)
        until(lambda: "notifications of the store can't be received" in caplog.text)
        assert {record.__dict__["error"] for record in caplog.records} == {"unavailable"}


@pytest.mark.parametrize(
    "said", ["x", "", "-1 acme", "１ acme", "1", "1 ", "00 acme", "1" * 5_000, "1" * 20 + " acme", "1\nacme"]
)
def test_anybody_may_speak_on_the_channel_of_news(url: str, said: str):
    with closing(PostgresDriver(connections.parse_url(url))) as driver:
        news = driver.listen()
        assert next(news) == ("", 0)
        postgres.run(url, "SELECT pg_notify('limpet:limpet', %s)", (said,))
        assert next(news) == ("", 0)
        postgres.run(url, "SELECT pg_notify('limpet:limpet', %s)", (f"{2**63 - 1} a\nb",))
        assert next(news) == ("a\nb", 2**63 - 1)


def test_a_process_with_many_files_open(url: str):
    """Descriptors from 1024 on are as good as any."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MANY * 2:
        pytest.skip("this process may not open that many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY * 2), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(MANY):
            stack.callback(os.close, os.dup(0))
        mine, theirs = (stack.enter_context(closing(open_(url))) for _ in range(2))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        for number in range(3):
            heard = pool.submit(mine.wait, TENANT, number, 120.0)
            assert once(theirs, str(number)) == Appended(number + 1, number + 1)
            assert heard.result()
        listened = PostgresDriver(connections.parse_url(url))
        stack.callback(listened.close)
        news = listened.listen()
        assert next(news) == ("", 0)
        once(mine, "more")
        assert next(news) == (TENANT, 4)


@pytest.mark.slow
def test_kills_of_the_server_lose_nothing_and_double_nothing(server: postgres.Server, url: str):
    """kill -9 of all its processes at any moment: what was acknowledged is there, and a retry has one effect."""
    acknowledged: list[str] = []
    stop = threading.Event()

    def work(store: Store, writer: int) -> None:
        number = 0
        while not stop.is_set():
            key = f"{writer}/{number}"
            assert isinstance(again(store, key), Appended | KeyRecord)
            acknowledged.append(key)
            number += 1

    with ExitStack() as stack:
        stores = [stack.enter_context(closing(open_(url))) for _ in range(3)]
        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(work, store, writer) for writer, store in enumerate(stores)]
            for _ in range(8):
                stop.wait(0.3)
                server.kill()
                server.start()
            stop.wait(0.3)
            stop.set()
            for job in jobs:
                job.result()
        streams = [event.stream for event in feed_all(stores[0])]
        assert len(streams) == len(set(streams)), "nothing twice"
        assert set(acknowledged) <= set(streams), "nothing lost"
        assert len(acknowledged) > 20
        assert verify_store(stores[0]).ok


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    import sys

    for name in [name for name in sys.modules if name.startswith(("limpet.stores.server.postgres", "psycopg"))]:
        monkeypatch.delitem(sys.modules, name)
    from limpet.stores import server as room

    monkeypatch.delattr(room, "postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.NotInstalled) as caught:
        limpet.connect("postgresql://h/d")
    assert f'{sys.executable} -m pip install "psycopg[binary]"' in caught.value.hint
