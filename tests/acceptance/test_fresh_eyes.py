"""What careful strangers tried: each of these was once accepted, lost, or let through."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCallRequest
from holdfast.store import sqlite
from holdfast.store.sqlite import Files, opening
from holdfast.values import command
from holdfast.wire import codec


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
        idle_since = hf.sessions.get_session("root").state.active_us
        assert idle_since < session.state.active_us
        assert hf.sessions.expire(idle_since, idle_s=0) == ["root"]
        hf.sessions.get_or_create_session("root").add_message(Message("user", "four"))
        assert hf.sessions.get_session("root").generation == 0
        assert hf.sessions.get_session(tail).messages[-1].content == "four"


def test_a_retry_by_message_id_is_known_although_the_version_has_passed():
    with holdfast.connect("volatile:") as hf:
        session = hf.sessions.create_session("s")
        message = Message("user", "x")
        before = session.version
        session.add_message(message, expected_version=before)
        hf.sessions.add_messages("s", [message], expected_version=before)
        assert hf.sessions.get_session("s").message_count == 1


def test_a_deferred_refusal_waits_for_its_own_session():
    with holdfast.connect("volatile:", write="deferred") as hf:
        good, bad = hf.sessions.create_session("good"), hf.sessions.create_session("bad")
        bad.add_message({"role": "tool", "tool_call_id": "none", "content": "x"})
        good.add_message(Message("user", "x"))
        assert len(hf.sessions.list_sessions()) == 2
        assert hf.sessions.save_session(good)
        with pytest.raises(holdfast.ResultWithoutCall):
            hf.sessions.save_session(bad)


def test_a_store_that_a_newer_version_has_taken_over_is_not_written_any_more(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db") as hf:
        session = hf.sessions.create_session("s")
        newer = opening.connect(tmp_path / "state.db", write=True)
        newer.pragma("user_version", opening.SCHEMA + 1)
        with pytest.raises(holdfast.NewerStore):
            session.add_message(Message("user", "x"))
        newer.pragma("user_version", opening.SCHEMA)
        newer.close()
        assert session.add_message(Message("user", "x")).message_count == 1


def test_a_ram_disk_is_not_called_safe_from_power_loss(tmp_path: Path):
    class InMemory(Files):
        def kind(self, path: Path) -> str:
            return "tmpfs"

    store = sqlite.open_store(tmp_path / "state.db", files=InMemory())
    assert store.durability == "process-crash"
    store.close()


def test_the_bytes_of_a_command_are_what_they_were():
    added = command.AddMessages(session_id="s", messages=(), max_messages=5)
    assert codec.command_bytes(added) == b'["add",{"messages":[],"session_id":"s"}]'
    ended = command.EndSession(session_id="s")
    assert codec.command_bytes(ended) == b'["end",{"session_id":"s"}]'


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
        message = Message("user", "x")
        with pytest.raises(holdfast.Unavailable, match="removed or replaced"):
            session.add_message(message)
        (tmp_path / "moved.db").rename(tmp_path / "state.db")
        assert session.add_message(message).message_count == 1


@pytest.mark.parametrize("url", [None, ":memory:", "volatile", "a\0b", 5])
def test_what_names_no_store_is_refused(url: Any):
    with pytest.raises(holdfast.InvalidRequest):
        holdfast.connect(url)


class Text(str):
    """Text of another type, as some libraries make it."""

    __slots__ = ()


def test_text_of_another_type_is_taken_as_the_text_it_is(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db", tenant=Text("t")) as hf:
        session = hf.sessions.create_session(Text("s"), user_id=Text("u"), title=Text("T"))
        session.add_message(Message(Text("user"), Text("x"), id=Text("m")), key=Text("k"))
        session.add_message({Text("role"): Text("user"), "content": Text("y")})
        call = holdfast.ToolCallRequest(Text("c"), Text("f"), {Text("a"): Text("b")})
        session.add_message(Message("assistant", tool_calls=[call]))
        session.add_message(
            Message("tool", tool_results=[holdfast.ToolCallResult(Text("c"), Text("r"))])
        )
        found = hf.sessions.get_session(Text("s"))
        assert [type(message.id) for message in found.messages] == [str] * 4
        assert hf.sessions.list_sessions(user_id=Text("u"))[0]["id"] == "s"
        assert hf.sessions.end_session(Text("s")).status is holdfast.SessionStatus.ENDED


@pytest.mark.parametrize("dropped", ["team", None, 5])
def test_metadata_to_drop_comes_in_a_list(tmp_path: Path, dropped: Any):
    with holdfast.connect(tmp_path / "state.db") as hf:
        hf.sessions.create_session("s", metadata={"t": 1})
        with pytest.raises(holdfast.InvalidRequest, match="list of keys"):
            hf.sessions.update_session("s", drop_metadata=dropped)
        assert hf.sessions.get_session("s").metadata["t"] == 1


@pytest.mark.parametrize("size", [0, -1, "9", None, True])
def test_a_cache_of_no_size_is_refused_before_anything_is_opened(tmp_path: Path, size: Any):
    with pytest.raises(holdfast.InvalidRequest, match="cached_sessions"):
        holdfast.connect(tmp_path / "state.db", cached_sessions=size)
    assert list(tmp_path.iterdir()) == []


def test_an_idle_time_beyond_all_measure_ends_nothing(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db") as hf:
        hf.sessions.create_session("s")
        assert hf.sessions.expire(idle_s=1e300) == []
