"""What careful strangers tried: each of these was once accepted, lost, or let through."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCallRequest
from holdfast.store import sqlite


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi", "openai": {}},
        {"role": "user", "content": "hi", "openai": {"role": "system", "content": "hi"}},
        {"role": "user", "content": "hi", "openai": {"role": "user", "content": "ho"}},
    ],
)
def test_what_is_checked_of_a_message_is_what_is_stored(message: dict[str, Any]):
    with holdfast.connect("volatile:") as hf:
        session = hf.sessions.create_session()
        with pytest.raises(holdfast.InvalidMessage):
            session.add_message(message)
        assert session.reload().message_count == 0


@pytest.mark.parametrize("name", ["tokens", "category", "openai", "role"])
def test_extra_can_not_pass_for_a_field(name: str):
    with pytest.raises(holdfast.InvalidMessage, match=name):
        Message("user", "x", extra={name: "x"})


@pytest.mark.parametrize("after", [-1, 2**70, "x", None, 1.5])
def test_no_position_reaches_into_another_tenants_log(tmp_path: Path, after: Any):
    path = tmp_path / "state.db"
    with holdfast.connect(path, tenant="a") as a, holdfast.connect(path, tenant="b") as b:
        a.sessions.create_session("secret")
        b.sessions.create_session("own")
        try:
            found = b.events.page(after)
        except holdfast.InvalidRequest:
            found = []
        assert all(event.session_id == "own" for event in found)
    store = sqlite.open_store(path)
    assert [event.stream for event in store.feed("b", after=-1)] == []
    store.close()


def test_open_calls_are_found_and_closed_wherever_the_conversation_is():
    with holdfast.connect("volatile:", max_messages_per_session=2) as hf:
        session = hf.sessions.create_session("root")
        for text in ("one", "two", "three"):
            session.add_message(Message("user", text))
        session.add_message(Message("assistant", tool_calls=[ToolCallRequest("c", "ring")]))
        assert session.id != "root"
        assert [call.call_id for call in hf.sessions.pending_calls("root")] == ["c"]
        assert [call.call_id for call in hf.sessions.get_session("root").pending_calls()] == ["c"]
        hf.sessions.close_pending_calls("root")
        hf.sessions.add_messages("root", [Message("user", "four")])
        assert hf.sessions.pending_calls("root") == []


def test_a_conversation_that_went_on_is_not_cut_by_expiry():
    with holdfast.connect("volatile:", max_messages_per_session=2) as hf:
        session = hf.sessions.create_session("root")
        for text in ("one", "two", "three"):
            session.add_message(Message("user", text))
        tail = session.id
        hf.sessions.expire(2**61, idle_s=0)
        hf.sessions.reset_session(tail)
        hf.sessions.get_or_create_session("root").add_message(Message("user", "four"))
        assert hf.sessions.get_session("root").state.generation in (0, 1)
        assert hf.sessions.pending_calls("root") == []


def test_a_key_used_twice_at_once_has_one_effect_and_two_answers(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db") as hf:
        answers: list[object] = []

        def create() -> None:
            try:
                answers.append(hf.sessions.create_session("s", key="k").id)
            except holdfast.Error as error:
                answers.append(error)

        threads = [threading.Thread(target=create) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["s"] * 16
        assert len(list(hf.events.feed())) == 1


def test_files_of_others_are_left_alone(tmp_path: Path):
    for name in ("a.db-anchor", "b.db-lock"):
        other = tmp_path / name
        other.write_bytes(b"somebody's own notes " * 400)
        with pytest.raises(holdfast.NotAStore, match="in the way"):
            holdfast.connect(tmp_path / name[:4])
        assert other.read_bytes() == b"somebody's own notes " * 400
    with holdfast.connect(tmp_path / "prod-new") as hf:
        hf.sessions.create_session("kept")
        hf.admin.backup(tmp_path / "prod")
        assert hf.sessions.load_session("kept") is not None


def test_a_hard_link_is_refused_and_a_symbolic_one_is_the_same_store(tmp_path: Path):
    path = tmp_path / "state.db"
    (tmp_path / "link.db").symlink_to(path)
    with holdfast.connect(path) as one, holdfast.connect(tmp_path / "link.db") as other:
        one.sessions.create_session("s")
        assert other.sessions.load_session("s") is not None
    assert not (tmp_path / "link.db-lock").exists()
    os.link(path, tmp_path / "hard.db")
    with pytest.raises(holdfast.UnsafeStore, match="hard link"):
        holdfast.connect(path)


def test_a_store_that_is_moved_away_acknowledges_nothing_more(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db") as hf:
        session = hf.sessions.create_session("s")
        (tmp_path / "state.db").rename(tmp_path / "moved.db")
        with pytest.raises(holdfast.Unavailable, match="removed or replaced"):
            session.add_message(Message("user", "x"))
        (tmp_path / "moved.db").rename(tmp_path / "state.db")
        assert session.add_message(Message("user", "x")).message_count == 1


@pytest.mark.parametrize("url", [None, ":memory:", "volatile", "a\0b", 5])
def test_what_names_no_store_is_refused(url: Any):
    with pytest.raises(holdfast.InvalidRequest):
        holdfast.connect(url)
