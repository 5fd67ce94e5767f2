"""Files of sessions beside the log, and what is left when the log is damaged. Each fault is one that Penguin has."""

from __future__ import annotations

import builtins
import contextlib
import errno
import json
import random
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

import limpet
from limpet import Message, SessionManager
from limpet.sessions.requests import Write
from limpet.sessions.session_files import recovery_id
from limpet.stores.files import FilesStore, StoreFiles
from limpet.stores.files import folder as store_folder
from limpet.stores.port import Rebuilt, StreamDeriver
from limpet.stores.sqlite import database


def say(text: str) -> Message:
    return Message(role="user", content=text)


def texts(session: limpet.Session) -> list[object]:
    return [message.content for message in session.messages if message.role == "user"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


def filled(folder: Path, *ids: str, count: int = 5) -> None:
    """Have sessions of so many messages, each with a file and a backup of it."""
    with SessionManager(base_path=folder) as manager:
        for each in ids:
            session = manager.create_session(each)
            session.add_messages([say(f"{each} {at}") for at in range(count - 1)])
            manager.save_session(session)
            session.add_message(say(f"{each} {count - 1}"))


def damage(folder: Path, session_id: str) -> None:
    """Change one message of a session in the journal and in the index."""
    path = folder / "journal" / "000001.jsonl"
    said = f'"{session_id} 1"'.encode()
    assert said in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(said, said.replace(b" 1", b" X")))
    index = folder / ".index" / "state.db"
    with contextlib.closing(database.connect(index, write=True)) as vandal:
        vandal.execute(
            "UPDATE events SET payload = CAST(replace(payload, ?, 'damaged') AS BLOB) WHERE instr(payload, ?)",
            (f"{session_id} 1", said),
        )


@pytest.mark.req("B-18")
def test_a_save_writes_the_new_file_whole_keeps_the_one_before_and_lists_it(folder: Path) -> None:
    with SessionManager(base_path=folder) as manager:
        session = manager.create_session("tides")
        session.add_message(say("one"))
        assert manager.save_session(session)
        session.add_message(say("two"))
        assert manager.save_session(session)
        present = json.loads((folder / "sessions" / "tides.json").read_text())
        before = json.loads((folder / "sessions" / "tides.json.bak").read_text())
        assert [m["content"] for m in present["messages"]] == ["one", "two"]
        assert [m["content"] for m in before["messages"]] == ["one"]
        assert present["version"] == session.version
        listed = json.loads((folder / "sessions" / "index.json").read_text())["sessions"]
        assert listed["tides"]["id"] == "tides"
    assert not list(folder.rglob("*.new"))
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*"))


@pytest.mark.req("B-18")
def test_what_is_new_is_on_the_disk_before_it_has_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for verb in ("sync", "rename"):
        monkeypatch.setattr(StoreFiles, verb, _noting(done, verb, getattr(StoreFiles, verb)))
    own_open = builtins.open
    with SessionManager(base_path=folder) as manager:
        session = manager.create_session("tides")
        session.add_message(say("one"))
        manager.save_session(session)
        session.add_message(say("two"))
        done.clear()
        manager.save_session(session)
        steps = [step.split()[:2] for step in done if "tides.json" in step or "sessions" in step]
    kinds = [verb for verb, _ in steps[:6]]
    assert kinds == ["sync", "rename", "sync", "sync", "rename", "sync"]
    assert steps[1][1].endswith("tides.json.bak") and steps[4][1].endswith("tides.json")
    assert builtins.open is own_open


def _noting(done: list[str], verb: str, sound: Callable[..., None]) -> Callable[..., None]:
    def noted(self: StoreFiles, *paths: Path) -> None:
        done.append(f"{verb} {paths[-1]}")
        sound(self, *paths)

    return noted


@pytest.mark.req("B-19")
def test_a_damaged_index_is_made_again_and_the_session_is_as_it_was(folder: Path) -> None:
    filled(folder, "tides")
    index = folder / ".index" / "state.db"
    with contextlib.closing(database.connect(index, write=True)) as vandal:
        vandal.execute("UPDATE events SET payload = x'7b7d' WHERE version = 3")
    with SessionManager(base_path=folder) as manager:
        session = manager.load_session("tides")
        assert session is not None and session.id == "tides"
        assert texts(session) == [f"tides {at}" for at in range(5)]


@pytest.mark.req("B-19")
@pytest.mark.parametrize("lost", ["", "primary", "both"])
def test_a_damaged_session_is_restored_from_its_file_or_the_backup(folder: Path, lost: str) -> None:
    filled(folder, "tides")
    damage(folder, "tides")
    before = (folder / "journal" / "000001.jsonl").read_bytes()
    for name in ("tides.json", "tides.json.bak")[: ("", "primary", "both").index(lost)]:
        (folder / "sessions" / name).unlink()
    with SessionManager(base_path=folder) as manager:
        session = manager.load_session("tides")
        assert session is not None and session.id == recovery_id("tides")
        assert session.metadata["recovered_from"] == "tides"
        assert "tides" in str(session.messages[0].content)
        kept = [0, 2, 3, 4] if lost == "both" else [0, 1, 2, 3, 4]
        assert texts(session) == [f"tides {at}" for at in kept]
    assert (folder / "journal" / "000001.jsonl").read_bytes().startswith(before)


@pytest.mark.req("B-19")
def test_a_backup_is_used_when_the_file_does_not_verify_and_an_edited_file_is_not_believed(folder: Path) -> None:
    filled(folder, "tides")
    path = folder / "sessions" / "tides.json"
    path.write_text(path.read_text().replace("tides 0", "forged 0"))
    with limpet.connect(f"files:{folder}") as lp:
        assert lp.admin.status()["session_files"] == {
            "files": 1, "lagging": 0, "edited": 1, "others": 0,
        }  # fmt: skip
        session = lp.sessions.load_session("tides")
        assert session is not None and texts(session)[0] == "tides 0"
        session.add_message(say("tides 5"))
    assert store_folder.decode_document((folder / "sessions" / "tides.json.bak").read_bytes()) is not None
    (folder / "sessions" / "tides.json").write_bytes(path.read_bytes()[:-40])
    damage(folder, "tides")
    with SessionManager(base_path=folder) as manager:
        session = manager.load_session("tides")
        assert session is not None and texts(session) == [f"tides {at}" for at in range(6)]


@pytest.mark.req("B-19")
def test_each_damaged_session_has_one_recovery_session_however_often_it_is_loaded(folder: Path) -> None:
    filled(folder, "ebb", "flow")
    for each in ("ebb", "flow"):
        damage(folder, each)
    found: list[str] = []
    for _ in range(2):
        with SessionManager(base_path=folder) as manager:
            for each in ("ebb", "flow"):
                session = manager.load_session(each)
                assert session is not None
                found.append(session.id)
            assert len(manager.list_sessions()) == 4
    assert found[:2] == found[2:] and len(set(found)) == 2


@pytest.mark.req("B-19")
def test_a_session_that_has_its_recovery_session_costs_no_further_look_at_the_whole_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(folder, "tides")
    damage(folder, "tides")
    asked: list[str] = []
    sound = FilesStore.rebuild

    def rebuild(self: FilesStore, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        asked.append("rebuild")
        return sound(self, derive)

    monkeypatch.setattr(FilesStore, "rebuild", rebuild)
    for _ in range(2):
        with SessionManager(base_path=folder) as manager:
            for _ in range(2):
                session = manager.load_session("tides")
                assert session is not None and session.id == recovery_id("tides")
                assert manager.current_session is session
    assert asked == ["rebuild"]


@pytest.mark.req("B-19")
def test_a_field_that_nobody_knows_costs_no_message(folder: Path) -> None:
    filled(folder, "tides", count=50)
    path = folder / "sessions" / "tides.json"
    document = store_folder.decode_document(path.read_bytes())
    assert document is not None
    document.pop("checksum")
    document["messages"][7]["mood"] = "of a newer version"
    path.write_bytes(store_folder.encode_document(document))
    damage(folder, "tides")
    with SessionManager(base_path=folder) as manager:
        session = manager.load_session("tides")
        assert session is not None and len(texts(session)) == 50
        assert session.messages[8].extra["mood"] == "of a newer version"


def test_saving_after_each_message_does_not_write_the_whole_session_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    sound = StoreFiles.replace_content

    def put(self: StoreFiles, path: Path, data: bytes) -> None:
        written.append(len(data))
        sound(self, path, data)

    monkeypatch.setattr(StoreFiles, "replace_content", put)
    monkeypatch.setattr(StoreFiles, "datasync", lambda _self, _fd: None)
    with SessionManager(base_path=folder) as manager:
        session = manager.create_session("long")
        for at in range(600):
            session.add_message(say(f"message {at}"))
            manager.save_session(session)
    whole = (folder / "sessions" / "long.json").stat().st_size
    assert sum(written) < 30 * whole
    assert len(json.loads((folder / "sessions" / "long.json").read_text())["messages"]) == 600


def test_threads_that_save_one_session_at_once_fail_nobody_and_tear_nothing(folder: Path) -> None:
    with SessionManager(base_path=folder) as manager:
        session = manager.create_session("busy")
        manager.save_session(session)
        faults: list[str] = []

        def save(number: int) -> None:
            try:
                handle = manager.get_session("busy")
                for at in range(10):
                    handle.add_message(say(f"{number}.{at}"))
                    manager.save_session(handle)
            except Exception as error:
                faults.append(repr(error))

        threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        path = folder / "sessions" / "busy.json"
        while any(thread.is_alive() for thread in threads):
            if store_folder.decode_document(path.read_bytes()) is None:
                faults.append("a reader saw half a file")
        assert faults == []
        assert len(texts(manager.get_session("busy"))) == 40


@pytest.mark.req("B-23")
def test_few_sessions_are_in_memory_and_a_held_one_loses_nothing(folder: Path) -> None:
    with SessionManager(base_path=folder, max_sessions_in_memory=5) as manager:
        held = manager.create_session("held")
        for at in range(30):
            manager.create_session(f"s{at}").add_message(say("kept"))
            assert len(manager.sessions) <= 5
        held.add_message(say("after eviction"))
        again = manager.load_session("held")
        assert again is not None and texts(again) == ["after eviction"]
        assert all(texts(manager.get_session(f"s{at}")) == ["kept"] for at in range(30))


@pytest.mark.req("B-24")
@pytest.mark.parametrize("write", ["durable", "deferred"])
def test_changed_sessions_are_saved_every_interval(folder: Path, write: Write) -> None:
    with SessionManager(base_path=folder, auto_save_interval=0.05, write=write) as manager:
        manager.create_session("tides").add_message(say("nobody saves this"))
        path, until = folder / "sessions" / "tides.json", time.monotonic() + 120
        while time.monotonic() < until:
            if path.exists() and "nobody saves this" in path.read_text():
                break
            time.sleep(0.02)
        assert "nobody saves this" in path.read_text()


def test_ids_never_lead_out_of_the_folder(tmp_path: Path, folder: Path) -> None:
    victim = tmp_path / "victim_x.json"
    victim.write_text("mine")
    with SessionManager(base_path=folder) as manager:
        assert manager.delete_session("../../victim_x") is False
        assert manager.load_session("../../victim_x") is None
        session = manager.create_session("../../victim_x")
        manager.save_session(session)
        assert manager.delete_session("../../victim_x")
    assert victim.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conversations", "victim_x.json"]


def test_two_managers_in_one_folder_both_have_their_sessions_listed(folder: Path) -> None:
    with SessionManager(base_path=folder) as one, SessionManager(base_path=folder) as other:
        for manager, name in ((one, "first"), (other, "second")):
            manager.save_session(manager.create_session(name))
        listed = json.loads((folder / "sessions" / "index.json").read_text())["sessions"]
        assert set(listed) == {"first", "second"}
        assert {row["id"] for row in one.list_sessions()} == {"first", "second"}


def test_saving_changes_no_time_and_no_order(folder: Path) -> None:
    with SessionManager(base_path=folder) as manager:
        older, newer = manager.create_session("older"), manager.create_session("newer")
        newer.add_message(say("later"))
        before = manager.get_session("older").last_active
        manager.save_session(older)
        assert manager.get_session("older").last_active == before
        assert [row["id"] for row in manager.list_sessions()] == ["newer", "older"]


def test_a_value_that_is_no_json_is_refused_at_once_and_the_rest_is_saved(folder: Path) -> None:
    with SessionManager(base_path=folder) as manager:
        session = manager.create_session("tides")
        session.add_message(say("good"))
        with pytest.raises(limpet.Error):
            session.add_message(Message(role="user", content="x", metadata={"raw": b"\xff"}))
        assert manager.save_session(session)
    said = json.loads((folder / "sessions" / "tides.json").read_text())["messages"]
    assert [m["content"] for m in said] == ["good"]
    assert not list(folder.rglob("*.new")) and not list(folder.rglob("*.temp"))


@pytest.mark.req("B-16")
def test_a_deleted_session_is_not_written_back_by_who_still_holds_it(folder: Path) -> None:
    with SessionManager(base_path=folder) as manager:
        held = manager.create_session("gone")
        held.add_message(say("secret"))
        manager.save_session(held)
        assert manager.delete_session("gone")
        assert not list((folder / "sessions").glob("gone*"))
        with pytest.raises(limpet.Error):
            held.add_message(say("back again"))
        manager.save_session(held)
    assert not list((folder / "sessions").glob("gone*"))
    listed = json.loads((folder / "sessions" / "index.json").read_text())["sessions"]
    assert "gone" not in listed


@pytest.mark.slow
def test_ten_thousand_hostile_ids_write_nothing_outside(tmp_path: Path) -> None:
    from limpet.stores.files import safe_name

    parts = ("..", "/", "\\", "\0", "a", "A", ".", "~", "con", " ", "é", "%2e%2e", "index", "-", "!")
    rng, seen = random.Random(3), dict[str, str]()
    for _ in range(10_000):
        text = "".join(rng.choices(parts, k=rng.randint(1, 40)))
        name = safe_name(text)
        path = (tmp_path / f"{name}.json").resolve()
        assert path.parent == tmp_path.resolve() and len(name) < 120 and name != "index"
        assert not name.startswith((".", "-"))
        assert seen.setdefault(name.lower(), text) == text


@pytest.mark.req("B-19")
def test_a_damaged_session_of_a_sqlite_store_has_its_recovery_session(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        lp.sessions.create_session("tides").add_messages([say(f"tides {at}") for at in range(4)])
    with contextlib.closing(database.connect(path, write=True)) as vandal:
        vandal.execute("UPDATE events SET payload = x'7b7d' WHERE version = 3")
    with limpet.connect(path) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None and session.metadata["recovered_from"] == "tides"
        assert texts(session) == ["tides 0", "tides 2", "tides 3"]
        with pytest.raises(limpet.Corrupt):
            lp.sessions.get_session("tides")


def test_a_full_disk_is_said_and_the_message_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: StoreFiles, path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with SessionManager(base_path=folder) as manager:
        session = manager.create_session("tides")
        session.add_message(say("kept"))
        with monkeypatch.context() as patched:
            patched.setattr(StoreFiles, "replace_content", full)
            with pytest.raises(limpet.errors.StoreFull):
                manager.save_session(session)
        assert manager.save_session(session)
    assert "kept" in (folder / "sessions" / "tides.json").read_text()


def test_penguins_own_files_in_the_same_folder_are_imported_and_left_as_they_are(folder: Path) -> None:
    folder.mkdir()
    theirs = folder / "session_1.json"
    said = {"role": "user", "content": "hello", "category": "DIALOG", "id": "m1", "metadata": {}}
    theirs.write_text(json.dumps({"id": "session_1", "messages": [said], "metadata": {}}))
    before = theirs.read_bytes()
    filled(folder, "tides")
    with limpet.connect(folder) as lp:
        report = lp.admin.import_(folder)
        assert (report.format, report.sessions, report.skipped) == ("penguin", 1, ())
        assert texts(lp.sessions.get_session("session_1")) == ["hello"]
    assert theirs.read_bytes() == before
