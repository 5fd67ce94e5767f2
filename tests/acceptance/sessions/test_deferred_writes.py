"""Deferred writes: on their way at once, in order, and waited for before anybody could notice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, SessionManager, errors
from limpet.core.values.session_state import SessionState
from limpet.sessions.manager import DeferredWrites
from limpet.stores.files import FilesStore
from limpet.stores.port import Append, AppendOutcome
from tests.acceptance.conversation_steps import (
    Opener,
    answer,
    engine_of,
    feed,
    giving,
    own_texts,
    said,
    set_clock,
    texts,
    user,
)


@pytest.fixture
def lp(opener: Opener) -> Limpet:
    return opener(write="deferred", max_sessions_in_memory=2)


class Held:
    """Holds the store's turn in another thread, so that nothing can be committed meanwhile."""

    def __init__(self, lp: Limpet) -> None:
        self._store = engine_of(lp).store
        self._entered, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._store.write_lock():
            self._entered.set()
            self._leave.wait()

    def __enter__(self) -> Held:
        self._thread.start()
        self._entered.wait()
        return self

    def release(self) -> None:
        self._leave.set()

    def __exit__(self, *_: object) -> None:
        self.release()
        self._thread.join()


@pytest.mark.req("B-12")
def test_adding_returns_before_the_write_and_saving_after_it(lp: Limpet):
    session = lp.sessions.create_session("s")
    with Held(lp) as held:
        session.add_message(user("1"))
        session.add_message(answer("2"))
        saved: list[bool] = []
        saving = threading.Thread(target=lambda: saved.append(lp.sessions.save_session(session)))
        saving.start()
        assert saved == []
        held.release()
        saving.join()
    assert saved == [True]
    assert said(lp) == ["1", "2"]


@pytest.mark.req("B-12")
def test_saving_without_a_session_is_false_and_means_the_current_one_otherwise(lp: Limpet):
    assert lp.sessions.save_session() is False
    lp.sessions.create_session("s").add_message(user("1"))
    assert lp.sessions.save_session() is True
    assert said(lp) == ["1"]


@pytest.mark.req("B-12")
def test_two_threads_that_save_both_wait(lp: Limpet):
    session = lp.sessions.create_session("s")
    done: list[int] = []

    def save() -> None:
        lp.sessions.save_session(session)
        done.append(len(list(engine_of(lp).store.read("default", "session/s"))))

    with Held(lp) as held:
        session.add_message(user())
        threads = [threading.Thread(target=save) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert done == []
        held.release()
        for thread in threads:
            thread.join()
    assert done == [2, 2, 2, 2]


@pytest.mark.req("A-4")
@pytest.mark.parametrize("size", [3, 4, 20, 5000])
def test_order_is_kept_also_across_continuations(opener: Opener, size: int):
    lp = opener(write="deferred", max_messages_per_session=size)
    session = lp.sessions.create_session("s")
    for number in range(120):
        session.add_message((answer if number % 2 else user)(str(number)))
    lp.sessions.save_session(session)
    chain = lp.sessions.session_chain("s")
    assert [text for part in chain for text in own_texts(part)] == [str(n) for n in range(120)]
    assert session.id == chain[-1].id


def test_what_was_written_is_read(lp: Limpet):
    session = lp.sessions.create_session("s")
    for number in range(20):
        session.add_message(user(str(number)))
        assert session.message_count == number + 1
        assert session.messages[-1].content == str(number)
    session.add_message(user("x"))
    assert lp.sessions.get_session("s").message_count == 21
    session.add_message(user("y"))
    assert lp.sessions.list_sessions()[0]["message_count"] == 22
    session.add_message(user("z"))
    assert lp.sessions.update_session("s", title="T").message_count == 23


def test_a_refusal_surfaces_once_at_the_first_wait_and_harms_nobody_else(lp: Limpet):
    session, other = lp.sessions.create_session("s"), lp.sessions.create_session("t")
    session.add_message(user("1"))
    session.add_message(giving("nobody"))
    session.add_message(answer("2"))
    other.add_message(user("3"))
    with pytest.raises(errors.ResultWithoutCall):
        lp.sessions.save_session(session)
    assert lp.sessions.save_session(session) is True
    assert lp.sessions.save_session(other) is True
    assert (texts(session), texts(other)) == (["1", "2"], ["3"])


def test_what_is_wrong_in_itself_is_refused_at_once(lp: Limpet):
    session = lp.sessions.create_session("s")
    with pytest.raises(errors.WrongRole):
        session.add_message({"role": "ghost", "content": "x"})


@pytest.mark.req("B-9")
def test_eviction_waits_for_what_is_under_way(lp: Limpet):
    first = lp.sessions.create_session("first")
    first.add_message(user("kept"))
    lp.sessions.create_session("second")
    lp.sessions.create_session("third")
    assert "first" not in lp.sessions.sessions
    assert not lp.sessions._service.deferred._in_flight.get("first")
    assert texts(lp.sessions.get_session("first")) == ["kept"]


@pytest.mark.req("B-23")
def test_what_is_not_yet_saved_is_saved_before_a_session_leaves_memory(fast_dir: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing is committed until somebody waits for it: whoever lets the session go has to."""
    folder = fast_dir / "folder"
    awaited, settle, commit = threading.Event(), DeferredWrites.settle, FilesStore.commit

    def settling(self: DeferredWrites, session_id: str | None = None) -> None:
        if session_id in (None, "leaving"):
            awaited.set()
        settle(self, session_id)

    def committing(self: FilesStore, appends: Sequence[Append]) -> list[AppendOutcome]:
        assert awaited.wait(120)
        return commit(self, appends)

    def journal() -> str:
        return "".join(path.read_text() for path in sorted((folder / "journal").iterdir()))

    with SessionManager(base_path=folder, max_sessions_in_memory=1, write="deferred") as manager:
        for each in ("next", "leaving"):
            manager.create_session(each).add_message(user("before"))
        manager.save_session()
        leaving = manager.get_session("leaving")
        monkeypatch.setattr(DeferredWrites, "settle", settling)
        monkeypatch.setattr(FilesStore, "commit", committing)
        leaving.add_message(user("kept"))
        assert "kept" not in journal()
        assert manager.load_session("next") is not None
        assert list(manager.sessions) == ["next"]
        assert "kept" in journal()


@pytest.mark.req("B-24")
def test_the_interval_bounds_how_long_a_refusal_stays_unseen(opener: Opener):
    lp = opener(write="deferred", auto_save_interval=60)
    set_clock(lp, 0)
    session = lp.sessions.create_session("s")
    session.add_message(giving("nobody"))
    set_clock(lp, 61_000_000)
    with pytest.raises(errors.ResultWithoutCall):
        session.add_message(user())


def test_closing_waits_and_says_what_went_wrong(fast_dir: Path):
    path = fast_dir / "closing.db"
    lp = limpet.connect(path, write="deferred")
    session = lp.sessions.create_session("s")
    for number in range(50):
        session.add_message(user(str(number)))
    session.add_message(giving("nobody"))
    with pytest.raises(errors.ResultWithoutCall):
        lp.close()
    with limpet.connect(path) as again:
        assert texts(again.sessions.get_session("s")) == [str(number) for number in range(50)]


FORGETFUL = """
import gc, sys
from limpet import Message, SessionManager
manager = SessionManager(base_path=sys.argv[1], write="deferred")
session = manager.create_session("s")
for number in range(500):
    session.add_message(Message("user", str(number)))
if sys.argv[2] == "collected":
    del manager, session
    gc.collect()
"""


@pytest.mark.req("B-9")
@pytest.mark.parametrize("how", ["exiting", "collected"])
def test_a_manager_that_nobody_closes_loses_nothing(fast_dir: Path, how: str):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORGETFUL, fast_dir / "folder", how],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with SessionManager(base_path=fast_dir / "folder") as again:
        assert texts(again.get_session("s")) == [str(number) for number in range(500)]


COLLECTED = """
import gc, sys, threading
from limpet import Message, SessionManager
manager = SessionManager(base_path=sys.argv[1], write="deferred")
session = manager.create_session("s")
store = manager._service.engine.store
commit, done, gone = store.commit, threading.Event(), threading.Event()
def committing(appends):
    gone.wait()
    gc.collect()
    outcomes = commit(appends)
    done.set()
    return outcomes
store.commit = committing
gc.disable()
session.add_message(Message("user", "kept"))
del manager, session
gone.set()
assert done.wait(120)
"""


def test_a_manager_collected_by_the_thread_that_commits_for_it_ends_quietly(fast_dir: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", COLLECTED, fast_dir / "folder"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with SessionManager(base_path=fast_dir / "folder") as again:
        assert texts(again.get_session("s")) == ["kept"]


def test_many_threads_lose_nothing(lp: Limpet):
    names = [f"s{number}" for number in range(4)]
    for name in names:
        lp.sessions.create_session(name)

    def write(thread: int) -> None:
        handles = [lp.sessions.get_session(name) for name in names]
        for number in range(50):
            handles[number % 4].add_message(user(f"{thread}-{number}"))
        for handle in handles:
            lp.sessions.save_session(handle)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = said(lp)
    assert len(found) == len(set(found)) == 300
    for thread in range(6):
        mine = [text for text in found if text.startswith(f"{thread}-")]
        for name in range(4):
            of_one = [text for text in mine if int(text.split("-")[1]) % 4 == name]
            assert of_one == sorted(of_one, key=lambda text: int(text.split("-")[1]))
    feed(lp)


def test_a_write_that_comes_while_a_read_waits_is_in_the_next_read(lp: Limpet, monkeypatch: pytest.MonkeyPatch):
    session = lp.sessions.create_session("s")
    session.add_message(user("1"))
    service = session._handle.service
    wait = service.state_after_writes

    def waited(state: SessionState) -> SessionState:
        found = wait(state)
        with monkeypatch.context() as once:
            once.setattr(service, "state_after_writes", wait)
            session.add_message(answer("2"))
        return found

    monkeypatch.setattr(service, "state_after_writes", waited)
    assert session.message_count == 1
    monkeypatch.undo()
    assert session.message_count == 2
