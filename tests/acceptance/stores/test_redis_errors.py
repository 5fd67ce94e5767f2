"""What a Redis server may be, or become: each has its own error, says the fix, and nothing is half-made by it."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import limpet
from limpet import Message, errors
from limpet.stores.port import DURABILITY_LEVELS, KeyRecord, KeyUse, Store
from limpet.stores.server import redis as ours
from limpet.stores.server.redis import settings
from limpet.testing.store_contract.harness import TENANT, commit, commit_all, feed_all, make_append, verify_store, write
from tests.servers import valkey

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    with contextlib.closing(ours.open_store(url)) as store:
        yield store


def said(error: errors.Error, *words: str) -> bool:
    """Whether an error has these words, and says what to do."""
    return bool(error.hint) and all(word in str(error) for word in words)


def fails(store: Store, kind: type[errors.Error], *words: str) -> None:
    """A write fails so, and leaves nothing."""
    before = store.version(TENANT, "a")
    with pytest.raises(kind) as caught:
        commit_all(store, make_append(write("a", before, b"no")))
    assert said(caught.value, *words), caught.value
    assert store.version(TENANT, "a") == before


def refused(url: str, kind: type[errors.Error], *words: str) -> None:
    """Opening fails so."""
    with pytest.raises(kind) as caught:
        ours.open_store(url)
    assert said(caught.value, *words), caught.value


@pytest.fixture(scope="module")
def own() -> Iterator[valkey.Server]:
    """A server whose settings these tests change, and change back."""
    with valkey.server() as server:
        yield server


@contextlib.contextmanager
def setting(server: valkey.Server, **names: str) -> Iterator[None]:
    """Change settings of a server for a while."""
    given = {name.replace("_", "-"): value for name, value in names.items()}
    with server.client() as client:
        before = {name: client.config_get(name)[name] for name in given}
        for name, value in given.items():
            client.config_set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                client.config_set(name, str(value))


@pytest.mark.req("A-20")
def test_a_server_that_goes_and_comes_back():
    with valkey.server() as server, opened(server.url) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        server.stop()
        with pytest.raises(errors.Unavailable):
            commit_all(store, make_append(write("a", 1, b"2")))
        with pytest.raises(errors.Unavailable):
            store.version(TENANT, "a")
        server.start()
        commit_all(store, make_append(write("a", 1, b"2")))
        assert [event.payload for event in feed_all(store)] == [b"1", b"2"]
        # Connections that were open through a restart are not used: nothing fails that was not under way.
        server.restart()
        commit_all(store, make_append(write("a", 2, b"3")))
        assert verify_store(store).ok


class Relay:
    """Passes bytes on to a server, and can end a connection before what the server says has come back."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = (self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._to)))
                for ends in ((near, far, False), (far, near, True)):
                    self._threads.append(threading.Thread(target=self._pass, args=ends))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with source, target, contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if back and self.cuts.is_set():
                    self.cuts.clear()
                    break
                target.sendall(data)
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.mark.req("A-20")
def test_a_write_whose_answer_was_cut_off_is_not_sent_again(own: valkey.Server):
    with contextlib.closing(Relay(own.port)) as relay, opened(valkey.fresh(relay.url)) as store, own.client() as client:
        commit_all(store, make_append(write("a", 0, b"1")))
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        relay.cuts.set()
        with pytest.raises(errors.Unavailable, match="does not answer"):
            commit_all(store, make_append(write("a", 1, b"2"), key=KeyUse("k", b"hash")))
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
        again = commit(store, make_append(write("a", 1, b"2"), key=KeyUse("k", b"hash")))
        assert again == [KeyRecord(b"hash", 2, 2)]
        relay.cuts.set()
        assert store.version(TENANT, "a") == 2, "what only looks is asked again"


def test_a_server_that_is_slow():
    with valkey.server() as server, opened(f"{server.url}?timeout_s=1") as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        with server.frozen(), pytest.raises(errors.Unavailable) as caught:
            commit_all(store, make_append(write("a", 1, b"2")))
        assert said(caught.value, "in time", "timeout_s", "same key")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        refused(f"redis://127.0.0.1:{port}?timeout_s=0.3", errors.Unavailable, "in time")


def test_a_server_that_is_reading_its_files():
    with valkey.server(key_load_delay="5000", loading_process_events_interval_bytes="1024") as server:
        with opened(server.url) as store:
            commit_all(store, *(make_append(write(f"s{n}", 0, b"x")) for n in range(400)))
        with server.client() as client:
            client.execute_command("BGREWRITEAOF")
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)
        server.kill()
        server.start(wait=False)
        until = time.monotonic() + 120
        while True:
            with pytest.raises(errors.Unavailable) as caught:
                ours.open_store(server.url)
            if said(caught.value, "is starting", "Retry"):
                break
            assert time.monotonic() < until, caught.value


def test_a_server_without_memory(own: valkey.Server):
    url = valkey.fresh(own.url)
    with opened(url) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        with setting(own, maxmemory="1"):
            fails(store, errors.StoreFull, "no memory", "maxmemory")
            with opened(url) as another:
                assert verify_store(another).ok, "who comes new can read, too"
            with pytest.raises(errors.StoreFull):
                store.put_note(TENANT, "n", b"x", expected=0)
            assert [event.payload for event in feed_all(store)] == [b"1"], "reading goes on"
        commit_all(store, make_append(write("a", 1, b"2")))
        assert verify_store(store).ok


def test_a_server_that_would_throw_data_away(own: valkey.Server):
    with setting(own, maxmemory_policy="allkeys-lru"):
        refused(own.url, errors.UnsafeStore, "allkeys-lru", "maxmemory-policy noeviction")


def test_a_replica(own: valkey.Server):
    with opened(valkey.fresh(own.url)) as store, own.client() as client:
        commit_all(store, make_append(write("a", 0, b"1")))
        try:
            client.replicaof("127.0.0.1", 1)
            refused(own.url, errors.StoreReadOnly, "replica", "primary")
            fails(store, errors.StoreReadOnly, "replica", "primary")
        finally:
            client.replicaof("NO", "ONE")
        commit_all(store, make_append(write("a", 1, b"2")))


def test_a_server_whose_disk_fails():
    with valkey.server(save="3600 1") as server, opened(server.url) as store:
        commit_all(store, make_append(write("a", 0, b"1")))
        with server.client() as client:
            shutil.rmtree(server.folder)
            client.bgsave()
            while client.info("persistence")["rdb_bgsave_in_progress"]:
                time.sleep(0.01)
        fails(store, errors.StoreFull, "disk")
        server.folder.mkdir()


def test_a_user_that_is_not_let_in(own: valkey.Server):
    host = own.url.removeprefix("redis://")
    with own.client() as client:
        client.acl_setuser("ann", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"], channels=["*"])  # fmt: skip
        client.acl_setuser("reader", enabled=True, passwords=["+right"], categories=["+@read", "+@connection", "+@scripting"], commands=["+info"], keys=["*"])  # fmt: skip
        client.acl_setuser("shy", enabled=True, passwords=["+right"], categories=["+@all"], commands=["-config"], keys=["*"], channels=["*"])  # fmt: skip
    refused(f"redis://ann:wrong@{host}", errors.InvalidRequest, "let this user in", "password")
    refused(f"redis://nobody:right@{host}", errors.InvalidRequest, "let this user in")
    refused(f"redis://reader:right@{host}", errors.StoreReadOnly, "forbids", "ACL SETUSER")
    with opened(f"redis://ann:right@{host}") as store:
        assert store.durability == "power-loss"
    with opened(f"redis://shy:right@{host}") as store:
        assert store.durability == "process-crash", "whether it syncs can't be asked"
    refused(f"redis://shy:right@{host}?durability=power-loss", errors.UnsafeStore, "appendfsync")


def test_a_user_with_the_rights_that_the_documentation_names(own: valkey.Server):
    page = (ROOT / "docs/how-to/use-redis.md").read_text()
    (line,) = re.findall(r"^ACL SETUSER .*$", page, re.MULTILINE)
    with own.client() as client:
        client.execute_command(*line.split())
    name, password = line.split()[2], next(word[1:] for word in line.split() if word[0] == ">")
    url = f"redis://{name}:{password}@{own.url.removeprefix('redis://')}"
    with limpet.connect(url, memory=True) as lp:
        session = lp.sessions.create_session(user_id="ada")
        session.add_message(Message(role="user", content="I live in Oslo."))
        assert lp.admin.status()["durability"] == "power-loss"
        lp.admin.rebuild()
        lp.admin.erase(session_id=session.id)
        assert lp.admin.verify().ok
    with opened(url) as one, opened(url) as two, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(one.wait, TENANT, 0, 120)
        commit_all(two, make_append(write("a", 0, b"1")))
        assert waits.result()
    grant = f"ACL SETUSER {name} ~another:* &another:* "
    refused(f"{url}?prefix=another", errors.StoreReadOnly, "forbids", grant)


def test_a_server_with_a_password_and_a_url_without():
    with valkey.server(requirepass="right") as server:
        refused(server.url, errors.InvalidRequest, "let this user in", "redis://user:password@")


def test_a_server_with_too_many_connections(own: valkey.Server):
    with contextlib.ExitStack() as stack:
        stack.enter_context(setting(own, maxclients="3"))
        for _ in range(3):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", own.port)))
            held.sendall(b"PING\r\n")
            assert held.recv(64)
        refused(own.url, errors.StoreBusy, "no connection left", "maxclients")


def test_a_server_that_is_too_old():
    for version in ("6.2.14", "5.0.0", "", "x.y"):
        with pytest.raises(errors.UnsafeStore, match="Redis 7"):
            settings.check_version({"redis_version": version}, "redis://here")
    for version in ("7.0.15", "7.2.4", "8.0.1", "10.0.0"):
        settings.check_version({"redis_version": version}, "redis://here")
    settings.check_version({"redis_version": "7.2.4"}, "redis://here", waitaof=True)
    with pytest.raises(errors.UnsafeStore, match=r"Redis 7\.2"):
        settings.check_version({"redis_version": "7.0.15"}, "redis://here", waitaof=True)


def test_a_store_of_a_newer_limpet(own: valkey.Server):
    with own.client() as client:
        client.set("later:format", 2)
        with pytest.raises(errors.NewerStore):
            ours.open_store(f"{own.url}?prefix=later")


@pytest.mark.req("A-20")
@pytest.mark.parametrize(
    ("appendonly", "appendfsync", "level"),
    [
        ("yes", "always", "power-loss"),
        ("yes", "everysec", "process-crash"),
        ("yes", "no", "process-crash"),
        ("no", "always", "none"),
    ],
)
def test_the_level_is_what_the_settings_hold(own: valkey.Server, appendonly: str, appendfsync: str, level: str):
    with setting(own, appendfsync=appendfsync, appendonly=appendonly):
        with opened(own.url) as store:
            assert store.durability == store.status()["durability"] == level
        for asked in ("power-loss", "process-crash", "none"):
            url = f"{own.url}?durability={asked}"
            if DURABILITY_LEVELS.index(asked) <= DURABILITY_LEVELS.index(level):
                ours.open_store(url).close()
            else:
                refused(url, errors.UnsafeStore, asked, level, "appendfsync always")


@pytest.mark.req("A-20")
def test_a_server_that_does_not_sync_while_it_writes_its_files_anew(own: valkey.Server):
    with setting(own, no_appendfsync_on_rewrite="yes"):
        with opened(own.url) as store:
            assert store.durability == "process-crash"
            assert store.status()["no-appendfsync-on-rewrite"] == "yes"
        url = f"{own.url}?durability=power-loss"
        refused(url, errors.UnsafeStore, "process-crash", "no-appendfsync-on-rewrite no")
        with opened(f"{url}&waitaof=1") as store:
            assert store.durability == "power-loss"
    assert settings.durability_of({"appendonly": "yes", "appendfsync": "always"}, synced=False) == ("process-crash"), (
        "what is not known is not claimed"
    )


@pytest.mark.req("A-20")
def test_a_write_that_waits_for_the_disk_holds_through_a_power_loss():
    with valkey.server(appendfsync="everysec") as server:
        with opened(f"{server.url}?waitaof=1&durability=power-loss") as store:
            commit_all(store, make_append(write("a", 0, b"1")))
            assert store.put_note(TENANT, "n", b"x", expected=0)
            with server.client() as client:
                before = client.info("commandstats")["cmdstat_waitaof"]["calls"]
                commit_all(store, make_append(write("a", 1, b"2")))
                assert store.put_note(TENANT, "m", b"x", expected=0)
                feed_all(store)
                # Looking waits for nothing.
                after = client.info("commandstats")["cmdstat_waitaof"]["calls"]
                assert after == before + 2
        with (
            opened(f"{server.url}?waitaof=1&timeout_s=5") as store,
            setting(server, appendonly="no"),
            pytest.raises(errors.Unavailable),
        ):
            commit_all(store, make_append(write("a", 2, b"3")))
        with setting(server, appendonly="no"):
            refused(f"{server.url}?waitaof=1", errors.UnsafeStore, "append-only", "appendonly yes")


def test_one_of_a_cluster_is_not_the_whole():
    server = valkey.shared_cluster().servers[1]
    refused(server.url, errors.InvalidRequest, "cluster", "redis+cluster://")


@pytest.mark.req("A-20")
def test_slots_that_move_are_followed():
    with valkey.cluster() as cluster, opened(cluster.url) as store:
        tenants = [f"t{n}" for n in range(12)]
        for tenant in tenants:
            commit_all(store, make_append(write("a", 0, b"1"), tenant=tenant))
        driver = store._driver  # pyright: ignore[reportAttributeAccessIssue]
        key = driver._names.head("t0")
        _move(cluster, key)
        for tenant in tenants:
            commit_all(store, make_append(write("a", 1, b"2"), tenant=tenant))
            assert [event.payload for event in feed_all(store, tenant)] == [b"1", b"2"]
        assert verify_store(store).ok
        with opened(f"{cluster.url}?timeout_s=2") as other:
            for server in cluster.servers[1:]:
                server.kill()
            with pytest.raises(errors.Unavailable):
                commit_all(other, *(make_append(write("a", 2, b"3"), tenant=tenant) for tenant in tenants))


@pytest.mark.req("A-20")
def test_a_primary_that_vanishes_without_a_word_is_left():
    """It takes connections still, and answers nothing. Its replica takes over, and is found."""
    with valkey.cluster(node_timeout_s=2) as cluster, contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(opened(f"{cluster.url}?timeout_s=1&prefix={prefix}"))
            for prefix in ("a", "b&durability=power-loss")
        ]
        for store in stores:
            commit_all(store, *(make_append(write("a", 0, b"1"), tenant=f"t{n}") for n in range(9)))
        replica = cluster.replica(cluster.servers[0])
        with cluster.servers[0].frozen():
            for store in stores:
                with pytest.raises(errors.Unavailable):
                    commit_all(store, *(make_append(write("a", 1, b"2"), tenant=f"t{n}") for n in range(9)))
            until = time.monotonic() + valkey.PATIENCE_S
            for store in stores:
                for tenant in (f"t{n}" for n in range(9)):
                    while True:
                        assert time.monotonic() < until, "the one that took over is not found"
                        with contextlib.suppress(errors.Unavailable):
                            version = store.version(tenant, "a")
                            commit_all(store, make_append(write("a", version, b"3"), tenant=tenant))
                            break
                driver = store._driver  # pyright: ignore[reportAttributeAccessIssue]
                ports = {pool.dsn.port for pool in driver._servers.primary_pools()}
                assert replica.port in ports


def _move(cluster: valkey.Cluster, key: bytes) -> None:
    """Move the slot of a key to another server, as people do."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for server in cluster.servers]
        ids = [client.execute_command("CLUSTER MYID") for client in clients]
        slot = int(str(clients[0].execute_command("CLUSTER KEYSLOT", key)))
        owner = 0 if slot < 5461 else 1 if slot < 10923 else 2
        source, target = clients[owner], clients[(owner + 1) % 3]
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[owner])
        source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[(owner + 1) % 3])
        port = cluster.servers[(owner + 1) % 3].port
        for each in source.execute_command("CLUSTER GETKEYSINSLOT", slot, 1_000) or ():
            source.execute_command("MIGRATE", "127.0.0.1", port, each, 0, 5_000)
        for client in (target, source, clients[(owner + 2) % 3]):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[(owner + 1) % 3])


def test_a_session_survives_all_of_it(own: valkey.Server):
    with limpet.connect(valkey.fresh(own.url)) as lp:
        session = lp.sessions.create_session(user_id="ada")
        with setting(own, maxmemory="1"), pytest.raises(errors.StoreFull):
            session.add_message(Message(role="user", content="lost"))
        session.add_message(Message(role="user", content="kept"))
        assert [message.content for message in session.messages] == ["kept"]
