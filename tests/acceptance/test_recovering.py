"""Sessions whose data is damaged: where the damage lies, whose what is left of them is, and what is said of it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, SessionManager
from holdfast.engine.recovering import recovery_id
from holdfast.store.files import FilesStore
from holdfast.store.port import Derive, Rebuilt
from holdfast.store.sqlite import opening
from tests.acceptance.test_session_files import damage, filled, say, texts


def spoil(path: Path, version: int, session_id: str = "tides") -> None:
    """Damage one event of a session in a SQLite store, or in an index."""
    with contextlib.closing(opening.connect(path, write=True)) as vandal:
        vandal.execute(
            "UPDATE events SET payload = x'7b7d' WHERE version = ?"
            " AND stream = (SELECT key FROM streams WHERE name = ?)",
            (version, f"session/{session_id}"),
        )
        assert vandal.changes() == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


def test_who_interrupts_a_recovery_can_go_on_with_the_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(folder, "tides")
    damage(folder, "tides")

    def rebuild(self: FilesStore, derive: Derive) -> Generator[int | Rebuilt]:
        self.take_turn()
        yield 1
        raise KeyboardInterrupt

    with SessionManager(base_path=folder) as manager:
        with monkeypatch.context() as patched:
            patched.setattr(FilesStore, "rebuild", rebuild)
            with pytest.raises(KeyboardInterrupt):
                manager.load_session("tides")
        assert manager.create_session("ebb").id == "ebb"


@pytest.mark.req("B-19")
def test_what_was_erased_is_not_counted_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holdfast.connect(path) as hf:
        session = hf.sessions.create_session("tides")
        session.add_message(Message("user", "canary", id="secret"))
        session.add_messages([say(f"tides {at}") for at in range(4)])
        hf.admin.erase(session_id="tides", message_id="secret")
    spoil(path, 4)
    with holdfast.connect(path) as hf:
        session = hf.sessions.load_session("tides")
        assert session is not None and session.id == recovery_id("tides")
        assert texts(session) == ["[erased]", "tides 0", "tides 2", "tides 3"]
        told = session.metadata["recovery"]
        assert (told["damaged_events"], told["erased_events"]) == (1, 1)


@pytest.mark.req("B-19")
def test_a_deleted_session_of_the_same_id_is_not_recovered_along(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with holdfast.connect(path) as hf:
        hf.sessions.create_session("tides").add_message(say("of the one before"))
        hf.sessions.delete_session("tides")
        hf.sessions.create_session("tides").add_messages([say("one"), say("two")])
    spoil(path, 5)
    with holdfast.connect(path) as hf:
        session = hf.sessions.load_session("tides")
        assert session is not None and texts(session) == ["two"]


def test_one_damaged_event_stops_one_sessions_file_and_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"s{at}" for at in range(6)]
    with holdfast.connect(f"files:{folder}", auto_save_interval=0) as hf:
        for name in names:
            hf.sessions.create_session(name).add_messages([say("one"), say("two")])
        spoil(folder / ".index" / "state.db", 2, "s2")
    assert {path.stem for path in (folder / "sessions").glob("s*.json")} == {*names} - {"s2"}
    (said,) = [record.message for record in caplog.records if record.name == "holdfast.files"]
    assert "position 8 " in said and "'default'" in said
    caplog.clear()
    with holdfast.connect(f"files:{folder}", auto_save_interval=0) as hf:
        hf.sessions.get_session("s4").add_message(say("three"))
    assert "three" in (folder / "sessions" / "s4.json").read_text()
    assert not caplog.records
