"""A process is killed at each step of an erasure: everything or nothing is readable, and whoever comes next finishes it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from limpet.stores import sqlite
from limpet.stores.sqlite import StoreFiles
from tests.acceptance.marker_words import found

SECRET = "Kestrel0001 MARMOT0001"
WORDS_LEFT = ["Plan.", "hello", "bye"]


class Steps:
    """Counts steps of a process and kills it at one of them: SQL statements, and file operations of our own."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __call__(self, *_: object) -> bool:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return True


def file_step(operation: Callable[..., object], steps: Steps) -> Callable[..., object]:
    """Return an operation on files that is a step."""

    def counted(self: StoreFiles, *given: object) -> object:
        steps()
        return operation(self, *given)

    return counted


def made(path: Path) -> None:
    """Make a store with a user to forget, a message to erase, and others."""
    with limpet.connect(path) as lp:
        for name, user in (("mine", "ada"), ("kept", "bob")):
            session = lp.sessions.create_session(name, user_id=user, system="Plan.")
            session.add_message({"role": "user", "content": "hello"})
            session.add_message(limpet.Message("user", SECRET, id=f"m-{name}"), key=f"k-{name}")
            session.add_message({"role": "user", "content": "bye"})


def killed_at(step: int, path: Path, what: dict[str, str]) -> bool:
    """Erase in a process that is killed at a step; False if it came to its end before."""
    child = os.fork()
    if not child:
        try:
            with pytest.MonkeyPatch.context() as patch:
                lp, steps = limpet.connect(path), Steps(step)
                store = lp.sessions._service.engine.store
                assert isinstance(store, sqlite.SQLiteStore)
                store._writer.exec_trace = steps
                for name in ("write", "rename", "sync", "remove"):
                    patch.setattr(StoreFiles, name, file_step(getattr(StoreFiles, name), steps))
                lp.admin.erase(**what)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def judge(path: Path, gone: Callable[[limpet.Limpet], bool], home: Path) -> bool:
    """Check a store after a crash; return whether the erasure took place."""
    with limpet.connect(path) as lp:
        assert lp.admin.verify().ok
        assert lp.sessions._service.engine.store.pending_erasures() is None
        done = gone(lp)
        lp.admin.rebuild()
        assert gone(lp) == done
        assert not done or found(home) == {}
    return done


def _user_gone(lp: limpet.Limpet) -> bool:
    kept = [str(m.content) for m in lp.sessions.get_session("kept").messages]
    assert len(kept) == 4
    mine = lp.sessions.load_session("mine")
    assert mine is None or len(mine.messages) == 4
    return mine is None


def _message_gone(lp: limpet.Limpet) -> bool:
    said = [str(m.content) for m in lp.sessions.get_session("mine").messages]
    assert said[:2] + said[3:] == WORDS_LEFT
    assert said[2] in (SECRET, "[erased]")
    return said[2] == "[erased]"


@pytest.mark.parametrize(
    ("what", "gone"),
    [
        pytest.param({"user_id": "ada"}, _user_gone, id="user"),
        pytest.param({"session_id": "mine", "message_id": "m-mine"}, _message_gone, id="message"),
    ],
)
def test_killed_at_each_step_it_is_all_or_nothing(
    tmp_path: Path, what: dict[str, str], gone: Callable[[limpet.Limpet], bool]
) -> None:
    first, home = tmp_path / "first", tmp_path / "home"
    first.mkdir()
    made(first / "state.db")
    with limpet.connect(first / "state.db") as lp:
        # The other one's secret is none: only the erased one may be left in no byte.
        other = {"session_id": "kept", "message_id": "m-kept"}
        lp.admin.erase(**other)
    outcomes: list[bool] = []
    step, alive = 1, True
    while alive:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(first, home)
        alive = killed_at(step, home / "state.db", what)
        outcomes.append(judge(home / "state.db", gone, home))
        step += 1 if step < 12 else 3
    assert outcomes[-1] is True
    assert outcomes[0] is False
    assert outcomes == sorted(outcomes), "once it is done, it stays done"
    assert len(outcomes) > 20


def test_a_store_is_scrubbed_by_whoever_opens_it_next(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    made(path)
    with limpet.connect(path) as lp:
        lp.admin.erase(session_id="kept", message_id="m-kept")
    step = 1
    while killed_at(step, path, {"user_id": "ada"}) and step < 400:
        store = sqlite.open_store(path)
        pending = store.pending_erasures()
        store.close()
        if pending is not None:
            break
        step += 5
    with limpet.connect(path):
        assert found(tmp_path) == {}
