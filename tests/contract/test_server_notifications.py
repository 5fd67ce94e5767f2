"""Who waits for news of a store on a server, and what is heard of others."""

import itertools
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest

from limpet import errors
from limpet.stores.server import notifications
from limpet.stores.server.notifications import CommitNotifications
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamServer
from limpet.testing.store_contract.harness import OTHER, TENANT, commit_all, make_append, write
from limpet.testing.store_contract.projection_contract import LONG_S
from tests.contract.ram_driver import RemoteDriver

replace = msgspec.structs.replace


@pytest.fixture
def server() -> RamServer:
    return RamServer()


@pytest.fixture
def theirs(server: RamServer) -> Iterator[ServerStore]:
    with closing(ServerStore(RemoteDriver(server))) as store:
        yield store


@pytest.fixture
def mine(server: RamServer) -> Iterator[ServerStore]:
    with closing(ServerStore(RemoteDriver(server))) as store:
        yield store


def test_others_that_write_are_heard_of(mine: ServerStore, theirs: ServerStore):
    commit_all(mine, make_append(write("a", 0, b"1")))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mine.wait, TENANT, 1, LONG_S)
        commit_all(theirs, make_append(write("b", 0, b"2")))
        assert waiting.result()


def test_who_waits_does_so_without_being_told(server: RamServer, theirs: ServerStore):
    class Deaf(RemoteDriver):
        def listen(self) -> Iterator[tuple[str, int]]:
            raise errors.Unavailable("nobody tells anything.")

    with closing(ServerStore(Deaf(server))) as store, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait, TENANT, 0, LONG_S)
        commit_all(theirs, make_append(write("a", 0, b"1")))
        assert waiting.result()


def test_news_is_told_once_and_wanted_comes_first():
    told: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
    taken = threading.Event()

    def listen() -> Iterator[tuple[str, int]]:
        while (news := told.get()) is not None:
            yield news
        taken.set()

    news = CommitNotifications(listen)
    news.start_listener()
    for each in (("a", 3), ("a", 2), ("b", 5), ("b", 0), ("b", 6), ("", 0), None):
        told.put(each)
    assert taken.wait(LONG_S)
    assert news.take_received() == {"a": 3, "b": 0, "": 0}
    assert news.take_received() == {}
    news.close()
    told.put(None)
    news.join()


def test_a_fault_in_listening_is_told_and_it_is_listened_to_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    raised: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.put(args.exc_value))
    listened: queue.SimpleQueue[int] = queue.SimpleQueue()
    runs = itertools.count(1)
    told, through = threading.Event(), threading.Event()

    def listen() -> Iterator[tuple[str, int]]:
        run = next(runs)
        listened.put(run)
        if run == 2:
            told.wait(LONG_S)
        yield "a", run
        if run < 3:
            raise ValueError
        through.wait(LONG_S)

    news = CommitNotifications(listen)
    news.start_listener()
    assert listened.get(timeout=LONG_S) == 1
    assert isinstance(raised.get(timeout=LONG_S), ValueError)
    assert news.take_received() == {"a": 1, "": 0}, "the next turn is told, and it is listened to again"
    told.set()
    assert listened.get(timeout=LONG_S) == 2
    assert isinstance(raised.get(timeout=LONG_S), ValueError)
    looks = iter((False, True))
    assert news.wait("a", lambda: next(looks), LONG_S), "so is who waits"
    assert listened.get(timeout=LONG_S) == 3
    assert [r.__dict__["error"] for r in caplog.records] == ["ValueError"] * 2
    news.close()
    through.set()
    news.join()


def test_who_waits_looks_only_for_news_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notifications, "POLL_S", LONG_S)
    monkeypatch.setattr(notifications, "POLL_S_MAX", LONG_S)
    told: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
    looks: queue.SimpleQueue[int] = queue.SimpleQueue()
    there: list[str] = []

    def listen() -> Iterator[tuple[str, int]]:
        while (news := told.get()) is not None:
            yield news

    def look() -> bool:
        looks.put(1)
        return TENANT in there

    news = CommitNotifications(listen)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(news.wait, TENANT, look, LONG_S)
        for others in (50, 0):
            looks.get()
            for number in range(others):
                told.put((OTHER, number + 1))
                told.put((TENANT, 0))
                news.notify((OTHER,))
            there += [] if others else [TENANT]
            told.put(("", 0) if others else (TENANT, 1))
        assert found.result()
        looks.get()
        assert looks.empty(), "three: at first, when news may have been missed, and for its own"
        there.clear()
        found = pool.submit(news.wait, TENANT, look, LONG_S)
        looks.get()
        there.append(TENANT)
        news.notify((OTHER, TENANT))
        assert found.result()
    assert not news._waiters
    news.close()
    told.put(None)
    news.join()
