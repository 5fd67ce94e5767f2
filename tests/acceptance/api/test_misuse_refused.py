"""What careful strangers tried: each of these was once accepted, lost, or let through."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Message, ToolCallRequest, limits
from limpet.core.formats import codec
from limpet.core.values import commands
from limpet.stores import sqlite
from limpet.stores.sqlite import StoreFiles, database
from limpet.stores.sqlite.shared_file.store_files import CHECK_VALID_S


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi", "openai": {}},
        {"role": "user", "content": "hi", "openai": {"role": "system", "content": "hi"}},
        {"role": "user", "content": "hi", "openai": {"role": "user", "content": "ho"}},
    ],
)
def test_what_is_checked_of_a_message_is_what_is_stored(message: dict[str, Any]):
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session()
        with pytest.raises(limpet.InvalidMessage):
            session.add_message(message)
        assert session.reload().message_count == 0


@pytest.mark.parametrize("name", ["tokens", "category", "openai", "role"])
def test_extra_can_not_pass_for_a_field(name: str):
    with pytest.raises(limpet.InvalidMessage, match=name):
        Message("user", "x", extra={name: "x"})


@pytest.mark.parametrize("after", [-1, 2**70, "x", None, 1.5])
def test_no_position_reaches_into_another_tenants_log(tmp_path: Path, after: Any):
    path = tmp_path / "state.db"
    with limpet.connect(path, tenant="a") as a, limpet.connect(path, tenant="b") as b:
        a.sessions.create_session("secret")
        b.sessions.create_session("own")
        try:
            found = b.events.page(after)
        except limpet.InvalidRequest:
            found = []
        assert all(event.session_id == "own" for event in found)
    store = sqlite.open_store(path)
    assert [event.stream for event in store.feed("b", after=-1)] == []
    store.close()


def test_open_calls_are_found_and_closed_wherever_the_conversation_is():
    with limpet.connect("volatile:", max_messages_per_session=2) as lp:
        session = lp.sessions.create_session("root")
        for text in ("one", "two", "three"):
            session.add_message(Message("user", text))
        session.add_message(Message("assistant", tool_calls=[ToolCallRequest("c", "ring")]))
        assert session.id != "root"
        assert [call.call_id for call in lp.sessions.pending_calls("root")] == ["c"]
        assert [call.call_id for call in lp.sessions.get_session("root").pending_calls()] == ["c"]
        lp.sessions.close_pending_calls("root")
        lp.sessions.add_messages("root", [Message("user", "four")])
        assert lp.sessions.pending_calls("root") == []


def test_a_conversation_that_went_on_is_not_cut_by_expiry():
    with limpet.connect("volatile:", max_messages_per_session=2) as lp:
        session = lp.sessions.create_session("root")
        for text in ("one", "two", "three"):
            session.add_message(Message("user", text))
        tail = session.id
        idle_since = lp.sessions.get_session("root").state.active_us
        assert idle_since < session.state.active_us
        assert lp.sessions.expire(idle_since, idle_s=0) == ["root"]
        lp.sessions.get_or_create_session("root").add_message(Message("user", "four"))
        assert lp.sessions.get_session("root").generation == 0
        assert lp.sessions.get_session(tail).messages[-1].content == "four"


def test_a_retry_by_message_id_is_known_although_the_version_has_passed():
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session("s")
        message = Message("user", "x")
        before = session.version
        session.add_message(message, expected_version=before)
        lp.sessions.add_messages("s", [message], expected_version=before)
        assert lp.sessions.get_session("s").message_count == 1


def test_a_deferred_refusal_waits_for_its_own_session():
    with limpet.connect("volatile:", write="deferred") as lp:
        good, bad = lp.sessions.create_session("good"), lp.sessions.create_session("bad")
        bad.add_message({"role": "tool", "tool_call_id": "none", "content": "x"})
        good.add_message(Message("user", "x"))
        assert len(lp.sessions.list_sessions()) == 2
        assert lp.sessions.save_session(good)
        with pytest.raises(limpet.errors.ResultWithoutCall):
            lp.sessions.save_session(bad)


def test_a_store_that_a_newer_version_has_taken_over_is_not_written_any_more(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.create_session("s")
        newer = database.connect(tmp_path / "state.db", write=True)
        newer.pragma("user_version", database.SCHEMA_VERSION + 1)
        with pytest.raises(limpet.errors.NewerStore):
            session.add_message(Message("user", "x"))
        newer.pragma("user_version", database.SCHEMA_VERSION)
        newer.close()
        assert session.add_message(Message("user", "x")).message_count == 1


def test_a_ram_disk_is_not_called_safe_from_power_loss(tmp_path: Path):
    class InMemory(StoreFiles):
        def file_system_type(self, path: Path) -> str:
            return "tmpfs"

    store = sqlite.open_store(tmp_path / "state.db", files=InMemory())
    assert store.durability == "process-crash"
    store.close()


def test_the_bytes_of_a_command_are_what_they_were():
    added = commands.AddMessages(session_id="s", messages=(), max_messages=5)
    assert codec.session_command_bytes(added) == b'["add",{"messages":[],"session_id":"s"}]'
    ended = commands.EndSession(session_id="s")
    assert codec.session_command_bytes(ended) == b'["end",{"session_id":"s"}]'


def test_a_key_used_twice_at_once_has_one_effect_and_two_answers(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        answers: list[object] = []

        def create() -> None:
            try:
                answers.append(lp.sessions.create_session("s", key="k").id)
            except limpet.Error as error:
                answers.append(error)

        threads = [threading.Thread(target=create) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["s"] * 16
        assert len(list(lp.events.feed())) == 1


def test_files_of_others_are_left_alone(tmp_path: Path):
    for name in ("a.db-anchor", "b.db-lock"):
        other = tmp_path / name
        other.write_bytes(b"somebody's own notes " * 400)
        with pytest.raises(limpet.errors.NotAStore, match="in the way"):
            limpet.connect(tmp_path / name[:4])
        assert other.read_bytes() == b"somebody's own notes " * 400
    with limpet.connect(tmp_path / "prod-new") as lp:
        lp.sessions.create_session("kept")
        lp.admin.backup(tmp_path / "prod")
        assert lp.sessions.load_session("kept") is not None


def test_a_hard_link_is_refused_and_a_symbolic_one_is_the_same_store(tmp_path: Path):
    path = tmp_path / "state.db"
    (tmp_path / "link.db").symlink_to(path)
    with limpet.connect(path) as one, limpet.connect(tmp_path / "link.db") as other:
        one.sessions.create_session("s")
        assert other.sessions.load_session("s") is not None
    assert not (tmp_path / "link.db-lock").exists()
    os.link(path, tmp_path / "hard.db")
    with pytest.raises(limpet.errors.UnsafeStore, match="hard link"):
        limpet.connect(path)


def test_a_store_that_is_moved_away_acknowledges_nothing_more(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.create_session("s")
        (tmp_path / "state.db").rename(tmp_path / "moved.db")
        # Within CHECK_VALID_S of the last check only the one after the commit notices, and the effect is unknown.
        time.sleep(2 * CHECK_VALID_S)
        for _ in range(3):
            with pytest.raises(limpet.Unavailable, match="removed or replaced"):
                session.add_message(Message("user", "x"))
            with pytest.raises(limpet.Unavailable, match="removed or replaced"):
                lp.sessions.get_or_create_session("s")
        (tmp_path / "moved.db").rename(tmp_path / "state.db")
        assert session.add_message(Message("user", "x")).message_count == 1


def _acknowledging(path: Path, said: int) -> None:
    with limpet.connect(path) as lp:
        lp.sessions.create_session("s").add_messages([Message("user", str(number)) for number in range(said)])


def _failed_once(lp: limpet.Limpet) -> None:
    """Bring the store to where it has to connect anew, as after a write that failed."""
    store: Any = lp._opened.engine.store
    store._abandon_writer()


def test_after_a_failed_write_another_store_at_the_path_is_not_taken_for_ours(tmp_path: Path):
    path, other = tmp_path / "state.db", tmp_path / "other.db"
    _acknowledging(other, 5)
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("mine")
        _failed_once(lp)
        for end in ("", "-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)
        other.rename(path)
        for _ in range(3):
            with pytest.raises(limpet.Unavailable, match="removed or replaced"):
                session.add_message(Message("user", "x"))


def test_after_a_failed_write_a_log_without_what_was_acknowledged_is_not_gone_on_with(tmp_path: Path):
    path = tmp_path / "state.db"
    _acknowledging(path, 2)
    with limpet.connect(path) as lp:
        session = lp.sessions.get_session("s").add_message(Message("user", "acknowledged"))
        _failed_once(lp)
        Path(f"{path}-wal").unlink()
        for _ in range(2):
            with pytest.raises(limpet.Error):
                session.add_message(Message("user", "x"))
    with pytest.raises(limpet.Corrupt):
        limpet.connect(path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_plain_file_is_left_alone(tmp_path: Path, make: Any):
    place = tmp_path / "pipe"
    make(place)
    with pytest.raises(limpet.InvalidRequest, match="is no file"):
        limpet.connect(place)
    assert not place.is_file()


def test_deferred_writes_of_a_program_that_forgets_to_close_are_kept(tmp_path: Path):
    program = (
        "import sys, limpet\n"
        "lp = limpet.connect(sys.argv[1], write='deferred')\n"
        "s = lp.sessions.create_session('s')\n"
        "for n in range(200): s.add_message({'role': 'user', 'content': str(n)})\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "state.db"], check=True)
    with limpet.connect(tmp_path / "state.db") as lp:
        assert lp.sessions.get_session("s").message_count == 200


@pytest.mark.parametrize("how", ["key", "id"])
def test_many_repeats_at_once_have_one_effect_each_and_no_conflict(tmp_path: Path, how: str):
    async def main() -> list[Any]:
        async with limpet.connect_async(tmp_path / "state.db") as lp:
            session = await lp.sessions.create_session("s")
            twice = [Message("user", str(n), id=f"m{n}") for n in range(30) for _ in range(2)]
            return await asyncio.gather(
                *(lp.sessions.add_messages(session.id, [m], key=m.id if how == "key" else None) for m in twice),
                return_exceptions=True,
            )

    answers = asyncio.run(main())
    assert [a for a in answers if isinstance(a, BaseException)] == []
    with limpet.connect(tmp_path / "state.db") as lp:
        assert [m.id for m in lp.sessions.get_session("s").messages] == [f"m{n}" for n in range(30)]


def test_a_refused_command_leaves_nothing_behind_for_its_neighbours(tmp_path: Path):
    async def main() -> Any:
        url = tmp_path / "state.db"
        async with limpet.connect_async(url, max_messages_per_session=2) as lp:
            session = await lp.sessions.create_session("s")
            for said in ("a", "b"):
                await session.add_message({"role": "user", "content": said})
            huge = "x" * (limits.MESSAGE_BYTES_MAX + 1)
            return await asyncio.gather(
                lp.sessions.add_messages("s", [{"role": "user", "content": huge}]),
                lp.sessions.update_session("s", title="T", expected_version=3),
                return_exceptions=True,
            )

    refused, updated = asyncio.run(main())
    assert isinstance(refused, limpet.errors.TooLarge)
    assert updated.title == "T"


def test_the_state_after_an_interrupted_commit_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.create_session("s")
        call = limpet.ToolCallRequest("c", "f")
        with monkeypatch.context() as patched:
            patched.setattr(lp._opened.engine.states, "put", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.add_message(Message("assistant", tool_calls=[call]))
        result = limpet.ToolCallResult("c", "r")
        session.add_message(Message("tool", tool_results=[result]))
        assert session.message_count == 2


@pytest.mark.parametrize("where", ["acquire_write_lock", "release_write_lock"])
def test_an_interrupt_at_the_edge_of_a_turn_leaves_it_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("s")
        store = lp._opened.engine.store
        sound = getattr(store, where)
        with monkeypatch.context() as patched:

            def interrupted() -> bool:
                patched.undo()
                if where == "acquire_write_lock":
                    sound()
                raise KeyboardInterrupt

            patched.setattr(store, where, interrupted)
            with pytest.raises(KeyboardInterrupt) as kept:
                session.add_message(Message("user", "a"))
        program = "import sys, limpet; limpet.connect(sys.argv[1]).sessions.create_session('t')"
        subprocess.run([sys.executable, "-c", program, path], check=True, timeout=300)
        session.reload().add_message(Message("user", "b"))
        assert kept.type is KeyboardInterrupt
        assert lp.admin.verify().ok


def test_what_others_wrote_is_still_news_after_keys_were_forgotten(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as mine, limpet.connect(tmp_path / "state.db") as theirs:
        session = mine.sessions.create_session("s")
        session.add_message(Message("user", "a"), key="k")
        theirs.sessions.add_messages("s", [Message("user", "b")])
        mine._opened.engine.store.delete_keys("default", before_us=0)
        assert session.add_message(Message("user", "c"), expected_version=3).message_count == 3


def test_damage_is_located_by_verify(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("s")
        for number in range(60):
            session.add_message(Message("user", f"needle-{number:03} " + "x" * 500))
    data = bytearray(path.read_bytes())
    data[data.index(b"needle-030")] ^= 1
    path.write_bytes(data)
    with limpet.connect(path) as lp:
        report = lp.admin.verify()
    assert "a page's checksum does not match." in report.faults
    assert any("32" in fault and "content is not what was written" in fault for fault in report.faults)


@pytest.mark.parametrize("url", [None, ":memory:", "volatile", "a\0b", 5])
def test_what_names_no_store_is_refused(url: Any):
    with pytest.raises(limpet.InvalidRequest):
        limpet.connect(url)


class Text(str):
    """Text of another type, as some libraries make it."""

    __slots__ = ()


def test_text_of_another_type_is_taken_as_the_text_it_is(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db", tenant=Text("t")) as lp:
        session = lp.sessions.create_session(Text("s"), user_id=Text("u"), title=Text("T"))
        session.add_message(Message(Text("user"), Text("x"), id=Text("m")), key=Text("k"))
        session.add_message({Text("role"): Text("user"), "content": Text("y")})
        call = limpet.ToolCallRequest(Text("c"), Text("f"), {Text("a"): Text("b")})
        session.add_message(Message("assistant", tool_calls=[call]))
        session.add_message(Message("tool", tool_results=[limpet.ToolCallResult(Text("c"), Text("r"))]))
        found = lp.sessions.get_session(Text("s"))
        assert [type(message.id) for message in found.messages] == [str] * 4
        assert lp.sessions.list_sessions(user_id=Text("u"))[0]["id"] == "s"
        assert lp.sessions.end_session(Text("s")).status is limpet.sessions.SessionStatus.ENDED


@pytest.mark.parametrize("dropped", ["team", None, 5])
def test_metadata_to_drop_comes_in_a_list(tmp_path: Path, dropped: Any):
    with limpet.connect(tmp_path / "state.db") as lp:
        lp.sessions.create_session("s", metadata={"t": 1})
        with pytest.raises(limpet.InvalidRequest, match="list of keys"):
            lp.sessions.update_session("s", drop_metadata=dropped)
        assert lp.sessions.get_session("s").metadata["t"] == 1


@pytest.mark.parametrize("size", [0, -1, "9", None, True])
def test_a_cache_of_no_size_is_refused_before_anything_is_opened(tmp_path: Path, size: Any):
    with pytest.raises(limpet.InvalidRequest, match="cached_sessions"):
        limpet.connect(tmp_path / "state.db", cached_sessions=size)
    assert list(tmp_path.iterdir()) == []


def test_an_idle_time_beyond_all_measure_ends_nothing(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        lp.sessions.create_session("s")
        assert lp.sessions.expire(idle_s=1e300) == []


def test_whoever_waited_too_long_is_told_the_holder_and_not_who_waits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    waiting = "import sys, limpet; limpet.connect(sys.argv[1]).close()"
    path = tmp_path / "state.db"
    monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.3)
    with limpet.connect(path) as lp, limpet.connect(path) as same:
        session = lp.sessions.create_session("s")
        with same._opened.engine.store.write_lock():
            other = subprocess.Popen([sys.executable, "-c", waiting, path], stderr=subprocess.PIPE)
            with pytest.raises(limpet.errors.StoreBusy, match=f"process {os.getpid()} has held") as busy:
                session.add_message(Message("user", "a"))
        assert busy.value.facts["holder"] == str(os.getpid())
        assert other.communicate(timeout=300)[1] == b""
