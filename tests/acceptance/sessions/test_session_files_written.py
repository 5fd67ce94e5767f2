"""Files of sessions beside the log: what is written when, what an erasure drops, and what is said when it fails."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import cast

import pytest

import limpet
from limpet import Message, SessionManager, limits
from limpet.stores.files import StoreFiles
from limpet.stores.files import folder as store_folder
from tests.acceptance.sessions.test_session_files import filled, say, texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


def full(self: StoreFiles, path: Path, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def test_the_list_of_sessions_is_read_again_only_after_others_have_written_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(folder, *(f"s{at}" for at in range(40)), count=2)
    read: list[bytes] = []
    sound = store_folder.decode_document

    def opened(data: bytes) -> object:
        read.append(data[:40])
        return sound(data)

    with SessionManager(base_path=folder) as manager, SessionManager(base_path=folder) as other:
        monkeypatch.setattr(store_folder, "decode_document", opened)
        for at in range(10):
            manager.get_session("s1").add_message(say(f"more {at}"))
            manager.save_session(manager.get_session("s1"))
        assert sum(b'"sessions"' in each for each in read) == 1
        for at in range(8):
            other.save_session(other.create_session(f"theirs {at}"))
        for at in range(8):
            manager.save_session(manager.create_session(f"ours {at}"))
    listed = json.loads((folder / "sessions" / "index.json").read_text())["sessions"]
    ids = {row["id"] for row in listed.values()}
    assert ids >= {f"{whose} {at}" for whose in ("theirs", "ours") for at in range(8)}


def test_an_erasure_drops_the_files_that_may_show_it_and_no_others(folder: Path) -> None:
    filled(folder, "ebb", "flow", "gone", count=100)
    sessions = folder / "sessions"
    with limpet.connect(f"files:{folder}", auto_save_interval=0) as lp:
        secret = Message(role="user", content="canary one", id="secret")
        lp.sessions.get_session("flow").add_message(secret)
        lp.sessions.fork_session("flow", new_id="fork").add_message(say("of the fork"))
        named = lp.sessions.create_session("named", title="canary two")
        for each in ("flow", "fork", "named"):
            assert lp.sessions.save_session(lp.sessions.get_session(each))
        lp.sessions.save_session(lp.sessions.create_session("waits", title="canary three"))
        kept = {path.name for path in sessions.glob("ebb.json*")}
        before = (sessions / "ebb.json").stat().st_ino
        lp.admin.erase(session_id="flow", message_id="secret")
        for each in ("gone", named.id, "waits"):
            lp.admin.erase(session_id=each)
        assert {path.name for path in sessions.glob("*.json*")} == kept
        assert (sessions / "ebb.json").stat().st_ino == before
        for each in ("flow", "fork", "ebb"):
            assert lp.sessions.save_session(lp.sessions.get_session(each))
            assert (sessions / f"{each}.json").exists()
        assert not [path for path in sessions.iterdir() if b"canary" in path.read_bytes()]
    assert not [path for path in sessions.iterdir() if b"canary" in path.read_bytes()]
    listed = json.loads((sessions / "index.json").read_text())["sessions"]
    assert set(listed) == {"ebb", "flow", "fork"}


def test_a_file_that_can_not_be_written_is_said_in_each_interval_and_raised_at_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = SessionManager(base_path=folder, auto_save_interval=0.05)
    with monkeypatch.context() as patched:
        patched.setattr(StoreFiles, "replace_content", full)
        session = manager.create_session("tides")
        session.add_message(say("kept"))
        until = time.monotonic() + 120
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.02)
        assert "could not be written" in caplog.text
        with pytest.raises(limpet.errors.StoreFull):
            manager.close()
    with pytest.raises(limpet.errors.EngineClosed):
        session.add_message(say("too late"))
    with SessionManager(base_path=folder) as manager:
        assert texts(manager.get_session("tides")) == ["kept"]
    assert "kept" in (folder / "sessions" / "tides.json").read_text()


def test_a_process_that_does_not_pass_the_files_on_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.2)
    with SessionManager(base_path=folder) as manager:
        session = manager.create_session("tides")
        with (folder / "sessions" / ".lock").open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(limpet.errors.StoreBusy, match=str(os.getpid())):
                manager.save_session(session)
        assert manager.save_session(session)
    assert (folder / "sessions" / "tides.json").exists()


@pytest.mark.parametrize("name", ["one.json", "index.json", "notes.txt"])
def test_a_folder_with_somebody_elses_sessions_does_not_become_a_store(folder: Path, name: str) -> None:
    theirs = folder / "sessions" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"mine": 1}')
    with pytest.raises(limpet.InvalidRequest, match=name) as info:
        SessionManager(folder)
    assert "elsewhere" in str(info.value.hint)
    assert [path for path in folder.rglob("*") if path.is_file()] == [theirs]
    assert theirs.read_text() == '{"mine": 1}'


@pytest.mark.parametrize("name", ["tides.json", "tides.json.bak", "index.json"])
def test_a_file_of_somebody_elses_is_never_written_over(folder: Path, name: str) -> None:
    filled(folder, "tides")
    theirs = folder / "sessions" / name
    for text in ('{"mine": 1}', '{"mine": 2}'):
        theirs.write_text(text)
        with SessionManager(folder) as manager:
            session = manager.get_session("tides")
            for more in ("one", "two"):
                session.add_message(say(more))
                manager.save_session(session)
        assert store_folder.decode_document(theirs.read_bytes()) is not None
    kept = sorted(path.read_text() for path in theirs.parent.glob(f"{name}.other-*"))
    assert kept == ['{"mine": 1}', '{"mine": 2}']


def saved_by_time(folder: Path, text: str) -> list[str]:
    """Wait until an interval has written a text to the file of tides; return what that says."""
    path, until = folder / "sessions" / "tides.json", time.monotonic() + 120
    while time.monotonic() < until:
        if path.exists() and text in path.read_text():
            break
        time.sleep(0.02)
    return [message["content"] for message in json.loads(path.read_text())["messages"]]


@pytest.mark.req("B-24")
def test_after_a_trim_auto_save_writes_the_session_that_goes_on(folder: Path) -> None:
    # Fault D-P2: the manager kept the session from before the trim, and auto-save wrote that one.
    said = [f"m{at} {'and so on ' * 20}" for at in range(12)]
    with SessionManager(base_path=folder, auto_save_interval=0.05) as manager:
        before = manager.create_session("tides")
        before.add_messages(map(say, said[:10]))
        after = before.trimmed(200)
        assert len(after.window(200).messages) < 10
        for text in said[10:]:
            after.add_message(say(text))
        assert saved_by_time(folder, "m11") == said
        assert manager.save_session(before) and manager.save_session()
        assert saved_by_time(folder, "m11") == said
    with SessionManager(base_path=folder) as manager:
        assert texts(manager.get_session("tides")) == said


@pytest.mark.req("B-24")
def test_what_a_rewind_took_back_is_not_brought_back_by_auto_save(folder: Path) -> None:
    # Fault D-P22: a rollback left the manager's own session as it was, and auto-save wrote that one.
    with SessionManager(base_path=folder, auto_save_interval=0.05) as manager:
        session = manager.create_session("tides")
        session.add_messages([say("one"), say("two"), say("three")])
        held = manager.get_session("tides")
        assert saved_by_time(folder, "three") == ["one", "two", "three"]
        manager.rewind_session("tides", 1).add_message(say("after the rewind"))
        assert saved_by_time(folder, "after") == ["one", "after the rewind"]
        assert manager.save_session(held) and manager.save_session(session)
    with SessionManager(base_path=folder) as manager:
        assert texts(manager.get_session("tides")) == ["one", "after the rewind"]
    assert saved_by_time(folder, "after") == ["one", "after the rewind"]


def words(folder: Path, text: str) -> list[str]:
    """Return the files of a folder that have a text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if text.encode() in path.read_bytes())


def told(folder: Path) -> Path:
    """Have a session of Ada's and one of Bob's, both with files; return where the files are."""
    with limpet.connect(f"files:{folder}", auto_save_interval=0) as lp:
        for user in ("ada", "bob"):
            session = lp.sessions.create_session(f"of-{user}", user_id=user)
            session.add_message(say(f"canary of {user}"))
    return folder / "sessions"


@pytest.mark.req("B-18")
def test_an_erasure_touches_nothing_that_is_somebody_elses(tmp_path: Path, folder: Path) -> None:
    sessions = told(folder)
    outside = tmp_path / "outside.json"
    outside.write_text('{"limpet": "session", "of": "canary of ada, elsewhere"}')
    (sessions / "mine" / "deep.json").mkdir(parents=True)
    (sessions / "mine.json").mkdir()
    (sessions / "x.json.abcd1234.new").mkdir()
    (sessions / "link.json").symlink_to(outside)
    (folder / "blobs" / "mine").mkdir()
    texts = {
        sessions / "NOTES.md": "mine",
        sessions / "notes.json": '{"mine": "\\"limpet\\": \\"session\\""}',
        sessions / "tides.json.other-1": '{"mine": 1}',
        sessions / "copies.json": '{"mine": [{"limpet": "session"}]}',
        sessions / "draft.new": "mine",
        sessions / "mine" / "of-ada.json": '{"limpet": "session"}',
        folder / "blobs" / "README": "mine",
        folder / "journal" / "draft.new": "mine",
    }
    for path, text in texts.items():
        path.write_text(text)
    for _ in range(2):
        with limpet.connect(f"files:{folder}") as lp:
            receipt = lp.admin.erase(user_id="ada")
            assert not receipt.pending
            assert lp.admin.status()["session_files"]["others"] == 7
    assert {path: path.read_text() for path in texts} == texts
    assert outside.exists() and (sessions / "link.json").is_symlink()
    assert words(folder, "canary of ada") == ["link.json"]
    assert "of-bob.json" in words(folder, "canary of bob")


@pytest.mark.req("B-18")
def test_an_edited_copy_of_what_was_erased_goes_and_that_of_another_session_stays(folder: Path) -> None:
    sessions = told(folder)
    for user in ("ada", "bob"):
        document = json.loads((sessions / f"of-{user}.json").read_text())
        edited = json.dumps(dict(sorted(document.items())), indent=1)
        (sessions / f"of-{user}.json").write_text(edited)
        (sessions / f"of-{user}.json.other-7").write_text(edited)
    (sessions / "torn.json.other-1").write_text((sessions / "of-ada.json").read_text()[:-9])
    with limpet.connect(f"files:{folder}") as lp:
        lp.admin.erase(user_id="ada")
        assert words(folder, "canary of ada") == []
        assert set(words(sessions, "canary of bob")) >= {"of-bob.json", "of-bob.json.other-7"}


@pytest.mark.req("B-18")
def test_a_file_that_can_not_be_removed_leaves_the_erasure_pending_and_the_store_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = told(folder)
    stuck = [sessions / "of-ada.json", sessions / "of-ada.json.abcd1234.new"]
    stuck[1].write_text("canary of ada, half-made")
    sound = StoreFiles.remove

    def remove(self: StoreFiles, path: Path) -> None:
        if path in stuck:
            raise PermissionError(errno.EPERM, "not permitted", str(path))
        sound(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(StoreFiles, "remove", remove)
        with limpet.connect(f"files:{folder}") as lp:
            with pytest.raises(limpet.errors.StoreReadOnly, match=r"of-ada\.json") as info:
                lp.admin.erase(user_id="ada")
            assert cast("dict[str, object]", info.value.facts["receipt"])["pending"] is True
            assert lp.sessions.load_session("of-ada") is None
        assert words(folder, "canary of ada") == [path.name for path in stuck]
        for _ in range(2):
            with limpet.connect(f"files:{folder}") as lp:
                assert lp.sessions.get_session("of-bob").message_count == 1
                assert any("of-ada.json" in note for note in lp.admin.status()["notes"])
    with limpet.connect(f"files:{folder}") as lp:
        assert lp.admin.status()["notes"] == []
    assert words(folder, "canary of ada") == [] and not (sessions / "of-ada.json").exists()


def test_deleting_a_session_leaves_what_somebody_put_in_the_place_of_its_file(folder: Path) -> None:
    filled(folder, "tides", "ebb")
    theirs = folder / "sessions" / "tides.json"
    theirs.write_text('{"mine": 1}')
    (folder / "sessions" / "ebb.json").unlink()
    (folder / "sessions" / "ebb.json").mkdir()
    with SessionManager(folder) as manager:
        assert manager.delete_session("tides") and manager.delete_session("ebb")
    assert theirs.read_text() == '{"mine": 1}' and (folder / "sessions" / "ebb.json").is_dir()


def forged(text: str) -> bytes:
    """Return a document that somebody else wrote, with its checksum made right."""
    body = f'{{\n  "limpet": "sessions",\n  {text}'.encode()
    check = hashlib.sha256(body).hexdigest()
    return body + f',\n  "checksum": "{check}"\n}}\n'.encode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("index", '"positions": {"default": "x"}, "sessions": {}'),
        ("index", '"positions": [], "sessions": {}'),
        ("index", '"positions": {"default": 0.5}, "sessions": {}'),
        ("index", '"positions": {"default": -5}, "sessions": {}'),
        ("index", f'"positions": {{"default": {2**70}}}, "sessions": {{}}'),
        ("index", '"positions": {}, "sessions": [1, 2]'),
        ("index", '"positions": {}, "sessions": {"a": 1}'),
        ("index", '"positions": {}, "sessions": null'),
        ("index", f'"positions": {"[" * 5_000}{"]" * 5_000}'),
        ("a", f'"tenant": "default", "id": "a", "stream": "session/a", "version": {2**70}, "link": ""'),
        ("a", '"tenant": "default", "id": "a", "stream": "session/a", "version": 2, "link": "", "messages": 5'),
        ("a", f'"tenant": "default", "x": {"[" * 5_000}{"]" * 5_000}'),
    ],
)
def test_a_forged_file_is_written_over_and_hinders_nobody(folder: Path, name: str, text: str) -> None:
    url, path = f"files:{folder}", folder / "sessions" / f"{name}.json"
    with limpet.connect(url) as lp:
        lp.sessions.create_session("a", user_id="ada").add_message(Message("user", "hello"))
    path.write_bytes(forged(text))
    with limpet.connect(url) as lp:
        files = lp.sessions._service.files
        assert files is not None and (files.read_verified("default", "a") is None) == (name == "a")
        session = lp.sessions.get_session("a").add_message(Message("user", "more"))
        assert lp.sessions.save_session(session)
    listed = json.loads((folder / "sessions" / "index.json").read_text(encoding="utf-8"))
    assert listed["sessions"]["a"]["messages"] == 2 and listed["positions"] == {"default": 3}
    path.write_bytes(forged(text))
    with limpet.connect(url) as lp:
        assert not lp.memory.forget("ada").pending
    assert "hello" not in "".join(each.read_text() for each in (folder / "sessions").glob("*.json*"))
