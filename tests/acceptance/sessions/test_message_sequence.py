"""A session's messages as a lazy sequence: like a list, of one moment, whatever happens meanwhile."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from limpet import Limpet, Message, Session, limits
from tests.acceptance.conversation_steps import engine_of, texts, user


@pytest.fixture
def thirty(lp: Limpet) -> Session:
    """30 messages in the third generation, with changes of title and metadata in between."""
    session = lp.sessions.create_session("s", system="first life")
    session.add_messages([user(f"old {n}") for n in range(7)])
    lp.sessions.reset_session("s", system="second life")
    lp.sessions.add_messages("s", [user("old")])
    session = lp.sessions.reset_session("s")
    for number in range(30):
        session.add_message(user(str(number)))
        if number % 4 == 0:
            lp.sessions.update_session("s", title=str(number), metadata={"n": number})
    return lp.sessions.get_session("s")


EXPECTED = [str(number) for number in range(30)]


@pytest.mark.req("A-4", "A-1")
def test_it_has_length_indices_and_iteration_like_a_list(thirty: Session):
    messages = thirty.messages
    assert len(messages) == 30
    assert [message.content for message in messages] == EXPECTED
    for index in range(-30, 30):
        assert messages[index].content == EXPECTED[index]
    for index in (30, -31, 10**12, -(10**12)):
        with pytest.raises(IndexError):
            messages[index]
    assert [message.content for message in reversed(messages)] == EXPECTED[::-1]
    assert messages[3] in messages
    assert messages.index(messages[7]) == 7


@pytest.mark.req("A-4")
def test_every_slice_is_the_lists_slice(thirty: Session):
    rng = random.Random(7)
    bounds: list[Any] = [None, *range(-35, 36)]
    tried: list[tuple[Any, Any, Any]] = [(None, None, -1), (None, None, 2), (29, 0, -3), (5, 5, 1)]
    tried += [
        (rng.choice(bounds), rng.choice(bounds), rng.choice([None, 1, 2, 7, -1, -2, -9, 100])) for _ in range(150)
    ]
    messages = thirty.messages
    for part in tried:
        found = [message.content for message in messages[slice(*part)]]
        assert found == EXPECTED[slice(*part)], part
    with pytest.raises(ValueError, match="zero"):
        messages[::0]


def test_nothing_is_read_before_it_is_asked_for(thirty: Session, monkeypatch: pytest.MonkeyPatch):
    store = thirty._handle.service.engine.store
    limits_asked: list[int] = []
    read = store.read

    def counting(tenant: str, stream: str, **options: Any) -> Any:
        limits_asked.append(options["limit"])
        return read(tenant, stream, **options)

    monkeypatch.setattr(store, "read", counting)
    messages = thirty.messages
    assert len(messages) == 30 and limits_asked == []
    _ = messages[15]
    assert sum(limits_asked) <= 3, "one index reads one message, not the history"


def test_a_view_is_of_the_moment_it_was_asked_for(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_messages([user(str(n)) for n in range(3)])
    view = session.messages
    lp.sessions.add_messages("s", [user("later")])
    session.add_message(user("latest"))
    assert [message.content for message in view] == ["0", "1", "2"]
    assert len(view) == 3 and view[-1].content == "2"
    lp.sessions.reset_session("s")
    assert [message.content for message in view] == ["0", "1", "2"]
    assert texts(session) == ["0", "1", "2", "later", "latest"]


def test_iterating_while_others_append_gives_each_message_once(lp: Limpet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "READ_CHUNK", 5)
    session = lp.sessions.create_session("s")
    session.add_messages([user(str(n)) for n in range(100)])
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            lp.sessions.add_messages("s", [user("noise")])
            lp.sessions.update_session("s", metadata={"n": session.version})

    other = threading.Thread(target=disturb)
    other.start()
    try:
        for _ in range(10):
            assert texts(session) == [str(n) for n in range(100)]
    finally:
        stop.set()
        other.join()


@pytest.mark.parametrize("count", [1, 127, 128, 129, 256, 257, 600])
def test_any_length_around_the_sizes_of_chunks_and_snapshots(lp: Limpet, count: int):
    session = lp.sessions.create_session("s")
    session.add_messages([user(str(n)) for n in range(count)])
    found = lp.sessions.get_session("s")
    assert texts(found) == [str(n) for n in range(count)]
    assert found.messages[-1].content == str(count - 1)


@pytest.mark.req("B-9")
def test_states_in_memory_are_bounded(opener: Any):
    lp = opener(cached_sessions=10, max_sessions_in_memory=4)
    for number in range(50):
        lp.sessions.create_session(f"s{number}").add_message(user())
        assert len(engine_of(lp).states) <= 10
        assert len(lp.sessions.sessions) <= 4
    assert list(lp.sessions.sessions) == ["s46", "s47", "s48", "s49"]
    lp.sessions.load_session("s46")
    assert list(lp.sessions.sessions) == ["s47", "s48", "s49", "s46"], "last used, last to go"
    assert sum(lp.sessions.get_session(f"s{number}").message_count for number in range(50)) == 50


def test_a_cold_session_is_read_from_its_snapshot_not_from_its_history(opener: Any, monkeypatch: pytest.MonkeyPatch):
    lp = opener(cached_sessions=1)
    long = lp.sessions.create_session("long")
    for batch in range(20):
        long.add_messages([user(f"{batch}-{n}") for n in range(100)])
    lp.sessions.create_session("another")
    read: list[int] = []
    store = engine_of(lp).store
    original = store.read

    def counting(tenant: str, stream: str, **options: Any) -> Any:
        found = original(tenant, stream, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(store, "read", counting)
    assert lp.sessions.get_session("long").state == long.state
    assert sum(read) <= limits.SNAPSHOT_EVERY


def test_a_message_of_every_kind_comes_back_equal(lp: Limpet):
    session = lp.sessions.create_session("s")
    given = [
        Message("user", [{"type": "text", "text": "\0é👩‍💻"}], metadata={"deep": [{"a": None}]}),
        Message.from_dict({"role": "assistant", "content": "x", "later": {"v": [9]}}),
    ]
    session.add_messages(given)
    assert list(lp.sessions.get_session("s").messages) == given
