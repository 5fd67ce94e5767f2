"""Conversations of other programs: read whatever is odd about them, never by half, the same every time."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import limpet
from limpet import MessageCategory, errors, limits
from tests import corpus

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{ "x":1}'}}
ASKING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
HELLO = {"role": "user", "content": "hello"}


Taken = Callable[..., tuple[Any, Any]]


@pytest.fixture
def taken() -> Iterator[Taken]:
    """Imports a file into a new store; returns the report and the store."""
    with contextlib.ExitStack() as stack:

        def take(path: Path, data: Any) -> tuple[Any, Any]:
            text = data if isinstance(data, str) else json.dumps(data)
            path.write_text(text, encoding="utf-8")
            lp = stack.enter_context(limpet.connect("volatile:"))
            return lp.admin.import_(path), lp

        yield take


def said(lp: Any, name: str) -> list[Any]:
    return [message.raw() for message in lp.sessions.get_session(name).messages]


@pytest.mark.parametrize("shape", ["list", "object", "objects", "chat lines", "list lines", "message lines", "pretty"])
def test_every_shape_of_a_chat(shape: str, tmp_path: Path, taken: Taken):
    (chat,) = corpus.conversations(5, 1, parallel=True)
    whole = {"id": "chat-1", "user": "ada", "title": "t", "metadata": {"k": 1}, "messages": chat}
    text = {
        "list": json.dumps(chat),
        "object": json.dumps(whole),
        "objects": json.dumps([whole, {"messages": [HELLO]}]),
        "chat lines": json.dumps(whole) + "\n\n" + json.dumps({"messages": [HELLO]}) + "\n",
        "list lines": json.dumps({"messages": chat}) + "\n" + json.dumps([HELLO]),
        "message lines": "\n".join(map(json.dumps, chat)),
        "pretty": json.dumps(whole, indent=2),
    }[shape]
    report, lp = taken(tmp_path / "chat.json", text)
    assert report.format == "openai" and not report.skipped
    rows = {row["id"]: row for row in lp.sessions.list_sessions()}
    name = "chat-1" if "chat-1" in rows else max(rows, key=lambda one: rows[one]["message_count"])
    assert said(lp, name) == chat, "verbatim"
    if name == "chat-1":
        assert (rows[name]["user_id"], rows[name]["title"]) == ("ada", "t")
        assert rows[name]["metadata"] == {"k": 1}
    again = lp.admin.import_(tmp_path / "chat.json")
    assert (again.sessions, again.already) == (0, len(rows)), "the same every time"
    lp.admin.verify()


def test_real_chats(data_dir: Path | None, tmp_path: Path, taken: Taken):
    if data_dir is None:
        pytest.skip("the recorded conversations are not here")
    chats = list(corpus.read_recorded(data_dir / "agent-conversations.jsonl.gz"))
    lines = [json.dumps({"id": f"r{n}", "messages": chat}) for n, chat in enumerate(chats)]
    report, lp = taken(tmp_path / "chats.jsonl", "\n".join(lines))
    assert (report.sessions, report.notes) == (len(chats), ())
    assert [said(lp, f"r{n}") for n in range(len(chats))] == chats


def test_broken_pairs_are_mended_and_told(tmp_path: Path, taken: Taken):
    result = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    chat = [HELLO, ASKING, HELLO, result, ASKING, result, result, ASKING]
    report, lp = taken(tmp_path / "a.json", {"id": "a", "messages": chat})
    session = lp.sessions.get_session("a")
    roles = [message.role for message in session.messages]
    assert roles == [
        "user", "assistant", "tool", "user", "system", "assistant", "tool", "system", "assistant",
    ]  # fmt: skip
    assert "outcome" in str(session.messages[2].tool_results[0].result)
    assert session.messages[4].content == "done" and session.messages[4].extra["original"] == result
    assert [call.name for call in session.pending_calls()] == ["f"]
    assert len(report.notes) == 4
    session.add_message(result)
    assert lp.admin.import_(tmp_path / "a.json").already == 1


def test_odd_messages_are_kept_as_far_as_they_go(tmp_path: Path, taken: Taken):
    bad = {"id": "c9", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
    chat: list[Any] = [
        {"role": "function", "name": "f", "content": "legacy"},
        {"role": "assistant", "content": "x", "tool_calls": [bad]},
        {"role": "tool", "content": "nobody asked"},
        {"role": "user", "content": 7},
        "no object",
        {"role": "user", "content": "fine", "id": "same"},
        {"role": "user", "content": "fine too", "id": "same", "custom_field": {"a": 1}},
    ]
    report, lp = taken(tmp_path / "a.json", {"id": "a", "messages": chat})
    messages = list(lp.sessions.get_session("a").messages)
    assert messages[0].extra["original_role"] == "function" and messages[0].content == "legacy"
    assert messages[1].tool_calls[0].args == {"text": "{oops"}
    assert [m.content for m in messages if m.role == "user"] == ["7", "fine", "fine too"]
    assert messages[-1].id == "same-2" and messages[-1].openai["custom_field"] == {"a": 1}
    assert any("no object" in note for note in report.notes)


def test_chats_that_can_not_be_kept_do_not_stop_the_others(tmp_path: Path, taken: Taken):
    lines = [
        '{"id": "a", "messages": [{"role": "user", "content": "1"}]}',
        "{not json",
        '{"id": "b", "messages": []}',
        '{"id": "c", "what": 1}',
        '{"id": "a", "messages": [{"role": "user", "content": "again"}]}',
        json.dumps({"id": "d", "messages": [{"role": "user", "content": "x" * 9_000_000}]}),
        '{"id": "e", "messages": [{"role": "user", "content": "last"}]}',
    ]
    report, lp = taken(tmp_path / "a.jsonl", "\n".join(lines))
    assert sorted(row["id"] for row in lp.sessions.list_sessions()) == ["a", "e"]
    assert len(report.skipped) == 5 and all(one.reason for one in report.skipped)
    assert [one.source for one in report.skipped] == [
        f"{tmp_path / 'a.jsonl'}:2", "b", f"{tmp_path / 'a.jsonl'}:4", "a", "d",
    ]  # fmt: skip


@pytest.mark.parametrize("odd", [None, 5, {"messages": "x"}, [], {"id": "x"}])
def test_an_element_of_a_list_that_is_no_chat_does_not_stop_the_others(odd: Any, tmp_path: Path, taken: Taken):
    report, lp = taken(tmp_path / "l.json", [{"id": "a", "messages": [HELLO]}, odd])
    assert said(lp, "a") == [HELLO] and report.sessions == 1
    (left_out,) = report.skipped
    assert left_out.source.endswith("l.json, chat 2") and left_out.reason == "it is no chat."


def test_what_is_left_out_is_told_of_within_bounds(tmp_path: Path, taken: Taken):
    lines = [json.dumps({"id": "a", "messages": [HELLO]}), *["{not json"] * (limits.IMPORT_NOTES_MAX + 7)]
    report, _ = taken(tmp_path / "a.jsonl", "\n".join(lines))
    assert (report.sessions, len(report.skipped), report.more_notes) == (1, limits.IMPORT_NOTES_MAX, 7)


def test_a_file_with_a_message_a_line_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(HELLO)}\n" * 50)
    monkeypatch.setattr(limits, "IMPORT_FILE_BYTES_MAX", 500)
    with limpet.connect("volatile:") as lp, pytest.raises(errors.TooLarge):
        lp.admin.import_(tmp_path / "a.jsonl")


def test_another_session_of_the_id_is_skipped(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps({"id": "a", "messages": [HELLO]}))
    with limpet.connect("volatile:") as lp:
        lp.sessions.create_session("a").add_message({"role": "user", "content": "mine"})
        report = lp.admin.import_(tmp_path / "a.json")
        assert (report.sessions, len(report.skipped)) == (0, 1)
        assert [m.content for m in lp.sessions.get_session("a").messages] == ["mine"]
        assert lp.admin.import_(tmp_path / "a.json", rename="-2", user_id="eve").sessions == 1
        assert lp.sessions.get_session("a-2").state.user_id == "eve"


PENGUIN = {
    "id": "session_20230401_123456_ab12cd34",
    "messages": [
        {"role": "system", "content": "You are Penguin.", "category": "SYSTEM", "id": "msg_1",
         "timestamp": "2023-04-01T12:34:56.000001", "metadata": {}, "tokens": 12},
        {"role": "user", "content": "Read the docs.", "category": "CONTEXT", "id": "msg_2",
         "timestamp": "2023-04-01T12:35:00", "metadata": {"source": "README.md"}, "tokens": 4,
         "agent_id": "default", "recipient_id": None, "message_type": "message"},
        {"role": "assistant", "content": "Calling.", "category": "DIALOG", "id": "msg_3",
         "timestamp": "2023-04-01T12:35:01",
         "metadata": {"tool_calls": [{"id": "t1", "name": "read", "arguments": "{\"p\": 1}"}]}},
        {"role": "tool", "content": "text of it", "category": "SYSTEM_OUTPUT", "id": "msg_4",
         "timestamp": "2023-04-01T12:35:02", "metadata": {"tool_call_id": "t1"}, "tokens": 3},
        {"role": "system", "content": "Action executed: ls", "category": "SYSTEM_OUTPUT",
         "id": "msg_5", "timestamp": "2023-04-01T12:35:03", "metadata": {}},
        {"role": "assistant", "content": "It failed.", "category": "ERROR", "id": "msg_6",
         "timestamp": "2023-04-01T12:35:04"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
         "category": "UNKNOWN", "id": "msg_7", "timestamp": "not a time", "tokens": -3},
        {"role": "tool", "content": "orphan", "category": "SYSTEM_OUTPUT", "id": "msg_8",
         "timestamp": "2023-04-01T12:35:09", "metadata": {"tool_call_id": "zz"}},
    ],
    "created_at": "2023-04-01T12:34:56",
    "last_active": "2023-04-01T12:36:00",
    "metadata": {"message_count": 8, "title": "Docs", "continued_to": "session_2", "goal": "g"},
    "llm_request_lifecycles": [{"request_id": "r1"}],
    "tool_call_records": [],
}  # fmt: skip


@pytest.mark.req("B-1")
def test_a_session_file_of_penguin(tmp_path: Path, taken: Taken):
    report, lp = taken(tmp_path / "session_x.json", PENGUIN)
    assert (report.format, report.sessions, report.messages) == ("penguin", 1, 8)
    session = lp.sessions.get_session(PENGUIN["id"])
    messages = list(session.messages)
    assert [message.id for message in messages] == [f"msg_{n}" for n in range(1, 9)]
    assert [message.category for message in messages[:6]] == [
        MessageCategory.SYSTEM, MessageCategory.CONTEXT, MessageCategory.DIALOG,
        MessageCategory.SYSTEM_OUTPUT, MessageCategory.SYSTEM_OUTPUT, MessageCategory.SYSTEM_OUTPUT,
    ]  # fmt: skip
    assert messages[5].extra["original_category"] == "ERROR"
    assert messages[6].category is MessageCategory.DIALOG
    assert messages[1].extra["agent_id"] == "default" and messages[1].tokens == 4
    assert messages[2].tool_calls[0].args == {"p": 1}
    assert messages[3].tool_results[0].result == "text of it"
    assert messages[7].role == "system" and messages[7].content == "orphan"
    assert messages[0].timestamp == "2023-04-01T12:34:56.000001+00:00"
    assert (session.title, session.state.created_at) == ("Docs", "2023-04-01T12:34:56.000000+00:00")
    assert session.state.metadata["goal"] == "g"
    assert session.state.metadata["penguin"] == {"llm_request_lifecycles": [{"request_id": "r1"}]}
    assert session.state.continuations == ("session_2",)
    assert lp.admin.import_(tmp_path / "session_x.json").already == 1


def test_a_folder_of_penguin_with_its_index(tmp_path: Path):
    folder = tmp_path / "conversations"
    (folder / "agent").mkdir(parents=True)

    def put(name: str, value: Any, inside: Path = folder) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        (inside / name).write_text(text, encoding="utf-8")

    message = {"role": "user", "content": "hi", "category": "DIALOG", "id": "m1"}
    put("session_1.json", {"id": "session_1", "messages": [message],
        "created_at": "2024-01-01T00:00:00", "last_active": "2024-01-01T00:00:01",
        "metadata": {"continued_to": "session_2"}})  # fmt: skip
    put("session_2.json", {"id": "session_2", "messages": [message | {"id": "m2"}],
        "created_at": "2024-01-02T00:00:00", "last_active": "2024-01-02T00:00:01",
        "metadata": {"continued_from": "session_1"}})  # fmt: skip
    put("session_3.json", '{"id": "session_3", "messages": [')
    put("session_3.json.bak", {"id": "session_3", "messages": [message], "metadata": {}})
    put("session_4.json", "\0\0\0")
    put("session_5.json", {"id": "session_5", "messages": [message]}, folder / "agent")
    put("session_index.json", {"session_5": {"title": "x"}, "session_1": {"title": "One"}})
    put("notes.txt", "not ours")
    with limpet.connect("volatile:") as lp:
        report = lp.admin.import_(folder)
        assert (report.format, report.sessions, len(report.skipped)) == ("penguin", 4, 1)
        assert "session_4" in report.skipped[0].source
        assert any("backup" in note for note in report.notes)
        chain = lp.sessions.session_chain("session_1")
        assert [part.id for part in chain] == ["session_1", "session_2"]
        assert chain[0].title == "One" and chain[1].state.continuation_index == 1
        session = lp.sessions.get_session("session_1")
        session.add_message({"role": "user", "content": "goes on"})
        assert lp.sessions.get_session("session_2").messages[-1].content == "goes on"
        assert lp.admin.import_(folder).already == 4
        lp.admin.export(tmp_path / "out.jsonl")
    with limpet.connect("volatile:") as there:
        assert there.admin.import_(tmp_path / "out.jsonl").sessions == 4


def test_the_example_of_penguins_document(tmp_path: Path, taken: Taken):
    """A session as its classes write it: the fields of its document, in the order of its dataclasses."""
    value = {
        "id": "session_20230401_123456",
        "messages": [
            {"role": "user", "content": "How do I implement binary search in Python?",
             "category": "DIALOG", "id": "msg_0a1b2c3d", "timestamp": "2023-04-01T12:34:57",
             "metadata": {}, "tokens": 0},
        ],
        "created_at": "2023-04-01T12:34:56",
        "last_active": "2023-04-01T12:34:57",
        "metadata": {},
    }  # fmt: skip
    report, lp = taken(tmp_path / "a.json", value)
    assert report.sessions == 1 and not report.notes
    (message,) = lp.sessions.get_session("session_20230401_123456").messages
    assert {**message.to_dict(), "timestamp": "2023-04-01T12:34:57"} | {"timestamp": ""} == {
        **cast("dict[str, Any]", value["messages"][0]), "timestamp": "", "tool_calls": [], "tool_results": [],
    }  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
FIELDS = st.sampled_from(
    ["role", "content", "id", "tool_calls", "tool_call_id", "metadata", "category", "timestamp",
     "tokens", "extra", "openai", "tool_results", "origin"]
)  # fmt: skip
ROLE = st.sampled_from(["user", "assistant", "tool", "system", "function", 7])
MESSAGES = st.dictionaries(FIELDS, JSON | ROLE, max_size=6) | st.sampled_from(
    [HELLO, ASKING, {"role": "tool", "tool_call_id": "c1", "content": "r"}]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(MESSAGES | JSON, max_size=6),
    rest=st.dictionaries(st.sampled_from(["id", "user", "title", "metadata", "created_at", "last_active"]), JSON),
    kind=st.sampled_from(["openai", "penguin"]),
)
def test_whatever_is_in_a_file_it_is_kept_or_told_of(
    messages: list[Any], rest: dict[str, Any], kind: Any, tmp_path: Path
):
    path = tmp_path / "any.json"
    path.write_text(json.dumps({**rest, "messages": messages}), encoding="utf-8")
    with limpet.connect("volatile:") as lp:
        report = lp.admin.import_(path, format=kind)
        assert report.sessions + len(report.skipped) == 1
        for row in lp.sessions.list_sessions():
            session = lp.sessions.get_session(row["id"])
            assert len(list(session.messages)) == report.messages
            session.close_pending_calls()
            session.add_message(HELLO)
        assert lp.admin.verify().ok
        assert lp.admin.import_(path, format=kind).already == report.sessions
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        lp.admin.export(tmp_path / "out.jsonl")
    with limpet.connect("volatile:") as there:
        assert there.admin.import_(tmp_path / "out.jsonl").sessions == report.sessions


def test_a_file_that_is_nothing_known_is_refused(tmp_path: Path):
    for text in ("{}", "7", "hello", "[]", '{"a": 1}\n{"b": 2}', "[" * 100_000):
        (tmp_path / "x").write_text(text)
        with limpet.connect("volatile:") as lp:
            try:
                report = lp.admin.import_(tmp_path / "x")
            except (errors.DamagedFile, errors.InvalidRequest):
                continue
            assert report.sessions == 0 and report.skipped


BAD = {
    "byte": (b'{"role": "user", "content": "caf\xe9"}', "not UTF-8 text: byte"),
    "half": (b'{"role": "user", "content": "x\\ud83d y"}', "half of a character, \\ud83d,"),
    "other half": (b'{"role": "user", "content": "\\\\ud83d \\uDE00"}', "half of a character, \\ude00,"),
    "cut": (b'{"role": "user", "content": "\\ud83d\\ude00', "not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_text_that_can_not_be_kept_is_told_and_stops_nobody(bad: str, tmp_path: Path):
    data, why = BAD[bad]
    session = b'{"session_id": "%s", "messages": [%s]}'
    good = session % (b"good", json.dumps(HELLO).encode())
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.json").write_bytes(session % (b"bad", data))
    (folder / "b.json").write_bytes(good)
    with limpet.connect("volatile:") as lp:
        report = lp.admin.import_(folder)
        assert (report.sessions, len(report.skipped)) == (1, 1) and why in report.skipped[0].reason
        with pytest.raises(errors.DamagedFile) as caught:
            lp.admin.import_(folder / "a.json")
        assert why in caught.value.message


@pytest.mark.parametrize("bad", ["byte", "half"])
@pytest.mark.parametrize("first", [True, False])
def test_a_chat_of_lines_that_can_not_be_kept_is_skipped(bad: str, tmp_path: Path, *, first: bool):
    data, why = BAD[bad]
    good = json.dumps({"messages": [HELLO]}).encode()
    lines = [b'{"messages": [%s]}' % data, good]
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"\n".join(lines if first else lines[::-1]))
    with limpet.connect("volatile:") as lp:
        report = lp.admin.import_(path)
    assert report.sessions == 1
    (skipped,) = report.skipped
    assert why in skipped.reason and skipped.source == f"{path}:{1 if first else 2}"


@pytest.mark.parametrize("text", ["[%s]", '{"messages": [%s]}\n{"messages": [%s, %s]}\n', "%s\n%s\n"])
def test_a_byte_order_mark_is_no_harm(text: str, tmp_path: Path, taken: Taken):
    report, _ = taken(tmp_path / "chat.json", "\ufeff" + text.replace("%s", json.dumps(HELLO)))
    assert report.sessions and not report.skipped


def test_an_index_that_is_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "session_index.json")
    (tmp_path / "s.json").write_text(json.dumps({"session_id": "s", "messages": [HELLO]}))
    with limpet.connect("volatile:") as lp:
        assert lp.admin.import_(tmp_path).sessions == 1
