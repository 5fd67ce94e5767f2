"""The engine on Redis: everything as on a file, two processes at once, a server that is killed, and what is kept where."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

import limpet
from limpet import Message, Scope, TokenBudget, errors
from limpet.stores.server import redis as ours
from limpet.stores.server.redis import settings
from limpet.testing.store_contract import erasure_contract
from limpet.testing.store_contract.harness import TENANT, commit_all, feed_all, make_append, verify_store, write
from tests.contract.test_redis import client_of, driver_of
from tests.servers import valkey

AWKWARD = "*?[]{}:\r\n\0\\^$ é 😀 {x}"
VISIBLE = "*?[]{}:\\^$ é 😀 {x}"


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return valkey.fresh(valkey.shared_cluster().url if request.param == "cluster" else "")


def texts(session: limpet.Session) -> list[object]:
    return [message.content for message in session.messages]


@pytest.mark.req("A-20")
def test_two_processes_see_each_others_work_at_once(url: str):
    with limpet.connect(url) as one, limpet.connect(url) as two:
        mine = one.sessions.create_session(user_id="ada", system="You plan trips.")
        mine.add_message(Message(role="user", content="Find me a flight to Oslo."))
        theirs = two.sessions.get_session(mine.id)
        theirs.add_message(Message(role="assistant", content="There is one at noon."))
        assert texts(one.sessions.get_session(mine.id)) == texts(theirs)
        window = one.sessions.get_session(mine.id).window(budget=8_000)
        assert [message.content for message in window.messages] == texts(theirs)
        assert [row["id"] for row in two.sessions.list_sessions(user_id="ada")] == [mine.id]

        scope = Scope(actor_id="planner", session_id=mine.id)
        root = one.index.push_frame(scope, goal="plan", budget=TokenBudget(total=8_000))
        child = two.index.push_frame(
            scope, parent_frame_id=root.frame_id, goal="compare", budget=TokenBudget(total=3_000)
        )
        token = one.index.suspend_frame(child.frame_id, reason="approval")
        two.index.resume_frame(token)
        top = one.index.find_top_of_stack(scope)
        assert top is not None and top.frame_id == child.frame_id
        assert one.admin.verify().ok


@pytest.mark.req("A-20")
def test_writers_of_one_session_in_two_processes_lose_nothing(url: str):
    with limpet.connect(url) as one, limpet.connect(url) as two:
        id_ = one.sessions.create_session(user_id="ada").id

        def write_some(lp: limpet.Limpet, name: str) -> None:
            session = lp.sessions.get_session(id_)
            for number in range(15):
                session.add_message(Message(role="user", content=f"{name}{number}"))

        threads = [threading.Thread(target=write_some, args=each) for each in ((one, "a"), (two, "b"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said = texts(one.sessions.get_session(id_))
        assert sorted(map(str, said)) == sorted(f"{name}{n}" for name in "ab" for n in range(15))
        for name in "ab":
            assert [each for each in said if str(each)[0] == name] == [f"{name}{n}" for n in range(15)]


def test_whoever_listens_hears_of_others_and_is_told_when_news_may_have_been_missed(url: str):
    with contextlib.closing(ours.open_store(url)) as store, contextlib.closing(ours.open_driver(url)) as driver:
        heard = driver.listen()
        assert next(heard) == ("", 0)
        commit_all(store, make_append(write("a", 0, b"1")))
        assert next(heard) == (TENANT, 1)
        assert driver_of(store).acquire_advisory_lock(TENANT, 1)
        assert next(heard) == (TENANT, 0)
        with client_of(url) as client:
            client.publish(driver._names.channel.decode(), b"no news")
            assert next(heard) == ("", 0)
            for link in driver._servers.primary_pools():
                link.run([(b"CLIENT", b"KILL", b"TYPE", b"PUBSUB")])
        with pytest.raises(errors.Unavailable):
            next(heard)
        heard = driver.listen()
        assert next(heard) == ("", 0), "it was away"
        commit_all(store, make_append(write("a", 1, b"2")))
        assert next(heard) == (TENANT, 2)
        driver.close()
        assert list(heard) == []


def test_who_may_not_listen_says_so_once_and_looks(caplog: pytest.LogCaptureFixture):
    with valkey.server() as server:
        with server.client() as client:
            client.acl_setuser("deaf", enabled=True, passwords=["+right"], categories=["+@all"], commands=["-subscribe"], keys=["*"], channels=["*"])  # fmt: skip
        host = server.url.removeprefix("redis://")
        with (
            contextlib.closing(ours.open_store(f"redis://deaf:right@{host}")) as store,
            contextlib.closing(ours.open_store(server.url)) as other,
        ):
            assert not store.wait(TENANT, 0, 1.0)
            commit_all(other, make_append(write("a", 0, b"1")))
            assert store.wait(TENANT, 0, 5.0)
    (told,) = [each for each in caplog.records if each.name == "limpet.store"]
    assert (told.__dict__["action"], told.__dict__["error"]) == ("store.not_heard", "store_read_only")


def test_a_store_that_writes_alone_asks_nothing_before_it_writes(url: str):
    with contextlib.closing(ours.open_store(url)) as store:
        assert not store.wait(TENANT, 10_000, 0.3), "it listens by now"
        driver = driver_of(store)
        calls: list[int] = []
        run = driver._servers.run

        def counted(*args: Any, **options: Any) -> list[object]:
            calls.append(1)
            return run(*args, **options)

        commit_all(store, make_append(write("a", 0, b"x")))
        driver._servers.run = counted
        for number in range(1, 60):
            commit_all(store, make_append(write("a", number, b"x")))
        assert len(calls) == 59


@pytest.mark.req("A-20")
def test_nothing_acknowledged_is_lost_when_the_server_is_killed():
    with valkey.server() as server:
        kept: list[str] = []
        for round_ in range(4):
            with limpet.connect(server.url) as lp:
                session = lp.sessions.get_or_create_session("s")
                threading.Timer(0.15 + 0.05 * round_, server.kill).start()
                with pytest.raises(errors.Unavailable):
                    add_until_it_fails(session, f"{round_}/", kept)
            server.start()
        with limpet.connect(server.url) as lp:
            assert lp.admin.verify().ok
            there = texts(lp.sessions.get_session("s"))
            # The one that was under way at each kill may be there, too.
            assert set(kept) <= set(there)
            assert len(there) <= len(kept) + 4
            assert len(kept) > 20


@pytest.mark.req("A-20")
@pytest.mark.parametrize("since", [0, 3, 6])
def test_a_server_that_lost_what_it_acknowledged_is_noticed_once(since: int):
    """However many messages others have added to what it had left: fewer, as many, or more."""
    with valkey.server(appendonly="no") as server, limpet.connect(server.url) as lp:
        session = lp.sessions.create_session("s", user_id="ada")
        for number in range(3):
            session.add_message(Message(role="user", content=f"kept {number}"))
        with server.client() as client:
            client.save()
        for number in range(3):
            session.add_message(Message(role="user", content=f"lost {number}"))
        server.kill()
        server.start()
        with limpet.connect(server.url) as other:
            for number in range(since):
                other.sessions.get_session("s").add_message(Message(role="user", content=f"new {number}"))
        if since % 2:
            with pytest.raises(errors.EventsLost):
                lp.sessions.load_session("s")
        else:
            with pytest.raises(errors.EventsLost):
                session.add_message(Message(role="user", content="refused"))
        there = [f"kept {n}" for n in range(3)] + [f"new {n}" for n in range(since)]
        assert texts(lp.sessions.get_session("s")) == there
        session.add_message(Message(role="user", content="at last"))
        with limpet.connect(server.url) as fresh:
            assert texts(fresh.sessions.get_session("s")) == [*there, "at last"]
            states = [each.admin._engine.states.current("default", "s") for each in (lp, fresh)]
            assert states[0] == states[1]
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["s"], "nothing was recovered"
        assert lp.admin.verify().ok


def add_until_it_fails(session: limpet.Session, name: str, kept: list[str]) -> None:
    for number in range(100_000):
        session.add_message(Message(role="user", content=f"{name}{number}"))
        kept.append(f"{name}{number}")


@pytest.mark.req("A-20")
def test_an_answer_that_is_lost_has_one_effect_when_it_is_asked_for_again():
    with valkey.server() as server, limpet.connect(f"{server.url}?timeout_s=2") as lp:
        session = lp.sessions.create_session(session_id="s")
        said = Message(role="user", content="once")
        with server.frozen(), pytest.raises(errors.Unavailable, match="in time"):
            session.add_message(said)
        # What was sent is read by the server now, and takes effect; nobody hears of it.
        until = time.monotonic() + 120
        while not texts(lp.sessions.get_session("s")) and time.monotonic() < until:
            time.sleep(0.01)
        session.add_message(said)
        assert texts(lp.sessions.get_session("s")) == ["once"]


def test_scripts_that_a_server_has_forgotten_are_sent_again_and_run_once(url: str):
    with contextlib.closing(ours.open_store(url)) as store:
        for number in range(5):
            with client_of(url) as client:
                client.script_flush()
            commit_all(
                store, make_append(write("a", number, b"x")), make_append(write("b", number, b"y"), tenant="globex")
            )
        assert len(feed_all(store)) == len(feed_all(store, "globex")) == 5
        assert verify_store(store).ok


def test_awkward_names_come_back_as_they_were(url: str):
    with limpet.connect(url, tenant="t" + AWKWARD[:3]) as lp:
        session = lp.sessions.create_session(session_id="s*?[]{}:", user_id="u" + VISIBLE, metadata={AWKWARD: AWKWARD})
        session.add_message(Message(role="user", content=AWKWARD, id="m{}*"))
        (row,) = lp.sessions.list_sessions(user_id="u" + VISIBLE, metadata={AWKWARD: AWKWARD})
        assert row["id"] == "s*?[]{}:"
        assert texts(lp.sessions.get_session("s*?[]{}:")) == [AWKWARD]
    with contextlib.closing(ours.open_store(url)) as store:
        tenants = ["a", "a*", "*", "{a}", "a}", "{", "a\r\n", "a\0", ":a", "?", "[a-z]", AWKWARD]
        for tenant in tenants:
            name = f"{AWKWARD}{tenant}"
            commit_all(store, make_append(write(name, 0, tenant.encode(), claims=((AWKWARD, 0),)), tenant=tenant))
            assert store.put_note(tenant, name, tenant.encode(), expected=0)
        for tenant in tenants:
            name = f"{AWKWARD}{tenant}"
            assert [e.payload for e in store.read(tenant, name)] == [tenant.encode()]
            assert store.find_claim(tenant, name, AWKWARD) == 1
            assert [each for each, _ in store.notes(tenant)] == [name]
            assert store.head(tenant) == 1
        assert set(tenants) <= set(store.tenants())


def test_stores_with_other_prefixes_are_other_stores():
    at = valkey.url()
    urls = [f"{at}?prefix={valkey.fresh(at).partition('prefix=')[2]}{end}" for end in ("", "-b", "b")]
    stores = [ours.open_store(url) for url in urls]
    for number, store in enumerate(stores):
        commit_all(store, make_append(write("a", 0, b"%d" % number)))
        assert store.put_note(TENANT, "n", b"%d" % number, expected=0)
    for number, store in enumerate(stores):
        assert [e.payload for e in feed_all(store)] == [b"%d" % number]
        note = store.note(TENANT, "n")
        assert note is not None and note.value == b"%d" % number
        store.close()


def test_no_key_lies_outside_the_prefix_and_none_is_set_to_expire():
    with valkey.server() as server:
        with limpet.connect(f"{server.url}?prefix=mine") as lp:
            session = lp.sessions.create_session(user_id="ada")
            session.add_messages([Message(role="user", content="x" * 40_000), Message(role="user", content="y")])
            lp.sessions.end_session(session.id)
            lp.admin.rebuild()
        with server.client() as client:
            keys = list(client.scan_iter())
            assert keys and all(key.startswith(b"mine:") for key in keys)
            assert {client.ttl(key) for key in keys} == {-1}


def test_a_durability_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch):
    with (
        valkey.server() as server,
        server.client() as client,
        contextlib.closing(ours.open_store(f"{server.url}?durability=power-loss")) as store,
    ):
        erasure_contract.append_events(store, "a", erasure_contract.claim_event("c1", "one"))
        client.config_set("appendfsync", "everysec")
        with monkeypatch.context() as patch:
            patch.setattr(settings, "RECHECK_S", 0.0)
            with pytest.raises(errors.UnsafeStore, match="power-loss"):
                erasure_contract.append_events(store, "a", erasure_contract.claim_event("c2", "two"))
            with pytest.raises(errors.UnsafeStore, match="power-loss"):
                store.put_note("acme", "n", b"x", expected=0)
        client.config_set("appendfsync", "always")
        erasure_contract.append_events(store, "a", erasure_contract.claim_event("c2", "two"))
        client.config_set("appendfsync", "everysec")
        client.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(errors.UnsafeStore, match="power-loss"):
            erasure_contract.append_events(store, "a", erasure_contract.claim_event("c3", "three"))


def test_what_was_done_is_not_refused_when_its_durability_is_missed(monkeypatch: pytest.MonkeyPatch):
    with (
        valkey.server() as server,
        server.client() as client,
        contextlib.closing(ours.open_store(f"{server.url}?durability=power-loss")) as store,
    ):
        monkeypatch.setattr(store._notifications, "start_listener", lambda: None)
        commit_all(store, make_append(write("a", 0, b"1")))
        client.config_set("appendfsync", "everysec")
        client.client_kill_filter(_type="normal", skipme=True)
        # Nothing is asked before it is written: the new connection is noticed by then.
        with pytest.raises(errors.Unavailable, match="power-loss") as caught:
            commit_all(store, make_append(write("a", 1, b"2")))
        assert isinstance(caught.value.__cause__, errors.UnsafeStore)
        assert "same key" in caught.value.hint
        client.config_set("appendfsync", "always")
        assert store.version(TENANT, "a") == 2


def test_without_the_extra_the_error_says_what_to_install():
    code = """
        import sys
        sys.modules["redis"] = None
        import limpet
        try:
            limpet.connect("redis://localhost")
        except limpet.errors.NotInstalled as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert 'pip install "redis[hiredis]"' in done.stdout


def test_tasks_that_share_the_only_connection_wait_for_nobody_but_the_server():
    async def run(url: str) -> list[int]:
        async with await limpet.connect_async(url) as lp:
            base = await lp.sessions.create_session("base")
            await base.add_message({"role": "user", "content": "hello"})
            # What a fork has said before is looked for elsewhere in its log, while others are on their way.
            forks = [await lp.sessions.fork_session("base") for _ in range(24)]
            for _ in range(3):
                await asyncio.gather(*(f.add_message({"role": "user", "content": "x"}) for f in forks))
            return [fork.state.message_count for fork in forks]

    with valkey.server() as server:
        assert asyncio.run(run(f"{server.url}?connections=1&timeout_s=30")) == [4] * 24
