"""Messages handed to another process: appended once whoever dies, and never in another order."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Limpet, Message, Session, ToolCallRequest, WindowPolicy
from limpet.runtime.commit_queue import Ticket
from limpet.stores.sqlite import SQLiteStore
from limpet.stores.sqlite.shared_file.commit_handoff import CommitHandoff, HandedOffAppends
from tests.acceptance.conversation_steps import engine_of, texts, user

HOLDER = """
import os, signal, sys, time
import limpet
from limpet import errors
from limpet.stores.sqlite.shared_file.commit_handoff import CommitHandoff
from limpet.stores.sqlite.store import SQLiteStore

path, fate = sys.argv[1:]

def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def fail(*_): raise errors.Unavailable("no more room")

collect = CommitHandoff.collect
def wait_for_parcels(handoff):
    print("collecting", flush=True)
    while not (parcels := collect(handoff)):
        time.sleep(0.001)
    return parcels

lp = limpet.connect(path)
session = lp.sessions.create_session("own")
CommitHandoff.collect = wait_for_parcels
if fate == "dies before the commit":
    SQLiteStore._append_all = die
elif fate == "dies before it can tell":
    CommitHandoff.answer = die
elif fate == "fails to commit":
    SQLiteStore._append_all = fail
try:
    session.add_message({"role": "user", "content": "own"})
except errors.Unavailable:
    pass
lp.close()
"""


@pytest.fixture
def lp(tmp_path: Path) -> Iterator[Limpet]:
    with limpet.connect(tmp_path / "state.db") as opened:
        yield opened


@pytest.fixture
def session(lp: Limpet) -> Session:
    return lp.sessions.create_session("s")


def crowd(lp: Limpet) -> None:
    """Make the store believe that other processes want the turn as well."""
    store = engine_of(lp).store
    assert isinstance(store, SQLiteStore)
    store._process_lock.contention = 1_000


FATES = ["lives", "dies before the commit", "dies before it can tell", "fails to commit"]


@pytest.mark.parametrize("fate", FATES)
def test_a_message_handed_over_is_there_once_whatever_becomes_of_the_holder(
    lp: Limpet, session: Session, tmp_path: Path, fate: str
):
    session.add_message(user("before"))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "state.db", fate], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "collecting\n"
        crowd(lp)
        session.add_message(user("handed over"))
        holder.wait(120)
    assert holder.returncode == (-signal.SIGKILL if fate.startswith("dies") else 0)
    session.add_message(user("after"))
    assert texts(session) == ["before", "handed over", "after"]
    assert texts(lp.sessions.get_session("s")) == ["before", "handed over", "after"]
    own = ["own"] if fate in ("lives", "dies before it can tell") else []
    assert texts(lp.sessions.get_session("own")) == own
    assert lp.admin.verify().ok


def test_who_commits_for_another_knows_of_it(lp: Limpet, session: Session, tmp_path: Path):
    """What it remembered of the session does not hold any more, though nobody else has committed."""
    other = lp.sessions.create_session("other")
    session.add_message(Message("assistant", tool_calls=[ToolCallRequest("c", "look")]))
    store = engine_of(lp).store
    assert isinstance(store, SQLiteStore)
    collecting, collect = threading.Event(), store._handoff.collect

    def wait_for_parcels() -> list[HandedOffAppends]:
        collecting.set()
        while not (parcels := collect()):
            time.sleep(0.001)
        return parcels

    with limpet.connect(tmp_path / "state.db") as theirs, pytest.MonkeyPatch.context() as patched:
        same = theirs.sessions.get_session("s")
        patched.setattr(store._handoff, "collect", wait_for_parcels)
        holder = threading.Thread(target=other.add_message, args=(user("own"),))
        holder.start()
        assert collecting.wait(120)
        crowd(theirs)
        same.add_message(Message("tool", tool_results=[limpet.ToolCallResult("c", "seen")]))
        holder.join(120)
        patched.undo()
        session.add_message(user("the call is answered"))
    assert [message.role for message in session.messages] == ["assistant", "tool", "user"]


def test_alone_in_a_crowd_that_is_gone_everything_still_works(lp: Limpet, session: Session):
    for number in range(5):
        crowd(lp)
        session.add_message(user(str(number)))
    assert texts(session) == list("01234")


def test_an_interrupt_while_waiting_leaves_the_store_usable(
    lp: Limpet, session: Session, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(_: CommitHandoff) -> None:
        raise KeyboardInterrupt

    crowd(lp)
    with monkeypatch.context() as patched:
        patched.setattr(CommitHandoff, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.add_message(user("perhaps"))
    other = threading.Thread(target=session.add_message, args=(user("from another thread"),))
    other.start()
    other.join(120)
    assert texts(session)[-1] == "from another thread"


def early(lp: Limpet, *requests: Any) -> int:
    """Return how many requests of a batch would be decided before the turn."""
    return len(engine_of(lp)._plan_unlocked([Ticket(request) for request in requests]))


def adding(lp: Limpet, session_id: str = "s", key: str | None = None) -> Any:
    requests = lp.sessions._service.requests
    return requests.add(session_id, [user("hi")], key=key, expected_version=None)


def test_messages_for_several_sessions_are_decided_before_the_turn(lp: Limpet, session: Session):
    lp.sessions.create_session("t")
    assert early(lp, adding(lp), adding(lp, "t")) == 2


def test_where_another_process_was_faster_deciding_waits_for_the_turn(lp: Limpet, session: Session, tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as theirs:
        theirs.sessions.add_messages("s", [user("theirs")])
    assert early(lp, adding(lp)) == 1
    crowd(lp)
    session.add_message(user("ours"))
    assert [early(lp, adding(lp)) for _ in range(3)] == [0, 0, 0]
    assert texts(lp.sessions.get_session("s")) == ["theirs", "ours"]


def with_policy(lp: Limpet) -> None:
    lp.sessions.get_session("s").set_policy(WindowPolicy(budget=2_000))


def continued(lp: Limpet) -> None:
    session = lp.sessions.get_session("s")
    session.add_message(user("one"))
    lp.sessions.create_continuation_session(session)


@pytest.mark.parametrize("change", [with_policy, continued])
def test_what_depends_on_more_than_one_version_is_decided_under_the_turn(
    lp: Limpet, session: Session, change: Callable[[Limpet], None]
):
    change(lp)
    assert early(lp, adding(lp)) == 0


def test_what_is_not_known_again_when_repeated_is_decided_under_the_turn(lp: Limpet, session: Session):
    naming = lp.sessions._service.requests.update(
        "s", title="t", metadata=None, drop_metadata=(), key=None, expected_version=None
    )
    assert early(lp, naming) == 0
    assert early(lp, adding(lp, key="k")) == 0
    assert early(lp, adding(lp, "nobody has heard of it")) == 0


def test_a_call_and_its_result_of_one_batch_are_never_decided_apart(lp: Limpet, session: Session):
    """The first may lose to another process, and the second may then fit by its version alone."""
    requests = lp.sessions._service.requests
    call = Message("assistant", tool_calls=[ToolCallRequest("c", "look")])
    result = Message("tool", tool_results=[limpet.ToolCallResult("c", "seen")])
    batch = [requests.add("s", [message], key=None, expected_version=None) for message in (call, result)]
    assert early(lp, *batch) == 0


def test_a_reading_left_open_by_an_interrupt_does_not_keep_the_store_busy(tmp_path: Path):
    """A kept traceback keeps the cursor, and that an old snapshot, on which nothing can be begun."""
    path = tmp_path / "state.db"
    with limpet.connect(path) as mine, limpet.connect(path) as theirs:
        session = mine.sessions.create_session("s")
        session.add_message(Message("user", "a"))
        store = engine_of(mine).store
        assert isinstance(store, SQLiteStore)
        with store.write_lock():
            left_open = store._writer.execute("SELECT key FROM events")
            next(left_open)
        theirs.sessions.add_messages("s", [Message("user", "b")])
        session.reload().add_message(Message("user", "c"))
        assert texts(session) == ["a", "b", "c"]
        del left_open  # kept till here, as a traceback would
