"""Sessions whose data is damaged: where the damage lies, whose what is left of them is, and what is said of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

import limpet
from limpet import Message, SessionManager, limits
from limpet.sessions.session_files import recovery_id
from limpet.stores.files import FilesStore
from limpet.stores.port import Rebuilt, StoredEvent, StreamDeriver
from limpet.stores.sqlite import SQLiteStore, database
from tests.acceptance.sessions.test_session_files import damage, filled, say, texts


def spoil(path: Path, version: int, session_id: str = "tides") -> None:
    """Damage one event of a session in a SQLite store, or in an index."""
    with contextlib.closing(database.connect(path, write=True)) as vandal:
        vandal.execute(
            "UPDATE events SET payload = x'7b7d' WHERE version = ?"
            " AND stream = (SELECT key FROM streams WHERE name = ?)",
            (version, f"session/{session_id}"),
        )
        assert vandal.changes() == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


def test_who_interrupts_a_recovery_can_go_on_with_the_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(folder, "tides")
    damage(folder, "tides")

    def rebuild(self: FilesStore, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        self.acquire_write_lock()
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
    with limpet.connect(path) as lp:
        session = lp.sessions.create_session("tides")
        session.add_message(Message("user", "canary", id="secret"))
        session.add_messages([say(f"tides {at}") for at in range(4)])
        lp.admin.erase(session_id="tides", message_id="secret")
    spoil(path, 4)
    with limpet.connect(path) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None and session.id == recovery_id("tides")
        assert texts(session) == ["[erased]", "tides 0", "tides 2", "tides 3"]
        told = session.metadata["recovery"]
        assert (told["damaged_events"], told["erased_events"]) == (1, 1)


@pytest.mark.req("B-19")
def test_a_deleted_session_of_the_same_id_is_not_recovered_along(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with limpet.connect(path) as lp:
        lp.sessions.create_session("tides").add_message(say("of the one before"))
        lp.sessions.delete_session("tides")
        lp.sessions.create_session("tides").add_messages([say("one"), say("two")])
    spoil(path, 5)
    with limpet.connect(path) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None and texts(session) == ["two"]


def test_one_damaged_event_stops_one_sessions_file_and_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"s{at}" for at in range(6)]
    with limpet.connect(f"files:{folder}", auto_save_interval=0) as lp:
        for name in names:
            lp.sessions.create_session(name).add_messages([say("one"), say("two")])
        spoil(folder / ".index" / "state.db", 2, "s2")
    assert {path.stem for path in (folder / "sessions").glob("s*.json")} == {*names} - {"s2"}
    (said,) = [record.message for record in caplog.records if record.name == "limpet.files"]
    assert "position 8 " in said and "'default'" in said
    caplog.clear()
    with limpet.connect(f"files:{folder}", auto_save_interval=0) as lp:
        lp.sessions.get_session("s4").add_message(say("three"))
    assert "three" in (folder / "sessions" / "s4.json").read_text()
    assert not caplog.records


BLOB = "canary in a blob " * 8_000


def told(url: str | Path, count: int, *, framed: bool) -> None:
    """Have a session of Ada's with so many messages and a large one, one of Bob's, and frames about Bob's."""
    with limpet.connect(url, auto_save_interval=0) as lp:
        ada = lp.sessions.create_session("tides", user_id="ada", title="canary of a title")
        ada.add_messages([say(f"canary {at}") for at in range(count)])
        ada.add_message(say(BLOB))
        lp.sessions.create_session("ebb", user_id="bob").add_message(say("of bob"))
        if framed:
            scope = limpet.Scope(actor_id="planner", session_id="ebb")
            lp.index.push_frame(scope, goal="plan", budget=limpet.TokenBudget(total=100))


def left(folder: Path) -> list[str]:
    """Return the files that have words of Ada's."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if b"canary" in path.read_bytes())


@pytest.mark.req("B-19")
@pytest.mark.parametrize("backend", ["sqlite", "files"])
@pytest.mark.parametrize("lost", ["", "row", "beginning"])
def test_a_recovery_session_is_its_users_and_goes_with_the_user(tmp_path: Path, backend: str, lost: str) -> None:
    url = tmp_path / "state.db" if backend == "sqlite" else f"files:{tmp_path / 'state'}"
    index = tmp_path / "state.db" if backend == "sqlite" else tmp_path / "state/.index/state.db"
    told(url, 20, framed=True)
    spoil(index, 1 if lost == "beginning" else 5)
    if lost == "row":
        with contextlib.closing(database.connect(index, write=True)) as vandal:
            vandal.execute("UPDATE projections SET owner = 'eve' WHERE id = 'tides'")
    if backend == "files":
        # Else the index would be made again from it.
        path = tmp_path / "state" / "journal" / "000001.jsonl"
        sound = path.read_bytes()
        path.write_bytes(sound.replace(b'"canary 1"', b'"canary X"'))
    with limpet.connect(url, auto_save_interval=0) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None and session.id == recovery_id("tides")
        assert session.user_id == "ada"
        assert session.title == (None if (lost, backend) == ("beginning", "sqlite") else "canary of a title")
        assert session.id in {row["id"] for row in lp.sessions.list_sessions(user_id="ada")}


@pytest.mark.req("B-19")
@pytest.mark.parametrize("count", [20, 300])
@pytest.mark.parametrize("verb", ["user", "session", "forget"])
def test_a_damaged_session_can_be_erased_with_its_recovery_session(tmp_path: Path, count: int, verb: str) -> None:
    path = tmp_path / "state.db"
    told(path, count, framed=True)
    spoil(path, 5)
    with limpet.connect(path) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None and list(session.messages)
        if verb == "session":
            for each in ("tides", recovery_id("tides")):
                lp.admin.erase(session_id=each)
        else:
            receipt = lp.memory.forget("ada") if verb == "forget" else lp.admin.erase(user_id="ada")
            assert receipt.sessions == 2 and receipt.blobs
        assert lp.sessions.load_session("tides") is None
        assert lp.admin.verify().ok
        assert {row["id"] for row in lp.sessions.list_sessions()} == {"ebb"}
    assert left(tmp_path) == []


def test_what_is_erased_of_a_damaged_journal_stays_pending_until_it_is_put_back(folder: Path) -> None:
    told(f"files:{folder}", 20, framed=False)
    path = folder / "journal" / "000001.jsonl"
    spoil(folder / ".index" / "state.db", 5)
    path.write_bytes(path.read_bytes().replace(b'"canary 3"', b'"canary X"'))
    with limpet.connect(f"files:{folder}", auto_save_interval=0) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None and session.user_id == "ada"
        with pytest.raises(limpet.Corrupt, match=r"000001\.jsonl") as info:
            lp.admin.erase(user_id="ada")
        assert cast("dict[str, object]", info.value.facts["receipt"])["pending"] is True
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["ebb"]
    assert "000001.jsonl" in left(folder)
    with limpet.connect(f"files:{folder}", auto_save_interval=0) as lp:
        assert any("000001.jsonl" in note for note in lp.admin.status()["notes"])
        assert lp.sessions.get_session("ebb").message_count == 1
    path.write_bytes(path.read_bytes().replace(b'"canary X"', b'"canary 3"'))
    with limpet.connect(f"files:{folder}", auto_save_interval=0) as lp:
        assert lp.admin.status()["notes"] == [] and lp.admin.verify().ok
    assert left(folder) == []


def place(tmp_path: Path, backend: str) -> tuple[str | Path, Path]:
    """Return the URL of a store, and the database that answers for it."""
    if backend == "sqlite":
        return tmp_path / "state.db", tmp_path / "state.db"
    return f"files:{tmp_path / 'state'}", tmp_path / "state" / ".index" / "state.db"


def long(url: str | Path, count: int) -> None:
    with limpet.connect(url, auto_save_interval=0) as lp:
        session = lp.sessions.create_session("tides", system="You know the sea.")
        for at in range(0, count, 50):
            session.add_messages([say(f"tides {at + each}") for each in range(50)])


LOOKS: dict[str, Callable[[limpet.Session], object]] = {
    "messages": lambda session: list(session.messages),
    "one": lambda session: session.messages[1],
    "slice": lambda session: session.messages[0:5],
    "window": lambda session: session.window(2_000),
    "history": lambda session: session.get_formatted_history(),
}


@pytest.mark.req("B-19")
@pytest.mark.parametrize("backend", ["sqlite", "files"])
@pytest.mark.parametrize("look", LOOKS)
def test_damage_before_the_last_snapshot_is_recovered_by_the_read_that_meets_it(
    tmp_path: Path, backend: str, look: str
) -> None:
    url, index = place(tmp_path, backend)
    long(url, 300)
    # The system prompt, which every window has.
    spoil(index, 2)
    with limpet.connect(url, auto_save_interval=0) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None and session.id == "tides"
        held = session.messages
        LOOKS[look](session)
        assert len(texts(session)) == 300
        if backend == "files":
            assert session.id == "tides" and lp.admin.verify().ok
            assert session.messages[0].content == "You know the sea."
            return
        assert session.id == recovery_id("tides")
        assert session.metadata["recovered_from"] == "tides"
        assert "tides" in str(session.messages[0].content)
        assert list(held) == list(session.messages)
        session.add_message(say("goes on"))
    with limpet.connect(url) as lp:
        again = lp.sessions.load_session("tides")
        assert again is not None and again.id == recovery_id("tides")
        assert texts(again)[-1] == "goes on"
        with pytest.raises(limpet.Corrupt):
            list(lp.sessions.get_session("tides").messages)


@pytest.mark.req("B-19")
@pytest.mark.parametrize("backend", ["sqlite", "files"])
def test_damage_met_half_way_is_said_once_or_mended_unnoticed(tmp_path: Path, backend: str) -> None:
    url, index = place(tmp_path, backend)
    long(url, 700)
    spoil(index, 502)
    whole, seen = [f"tides {at}" for at in range(700)], list[object]()
    with limpet.connect(url, auto_save_interval=0) as lp:
        session = lp.sessions.load_session("tides")
        assert session is not None
        with pytest.raises(limpet.Corrupt) if backend == "sqlite" else contextlib.nullcontext() as info:
            seen += (m.content for m in session.messages if m.role == "user")
        if backend == "sqlite":
            whole.remove("tides 499")
            assert info is not None and info.value.facts["recovery"] == recovery_id("tides")
        assert texts(session) == whole and seen == whole[: len(seen)]


@pytest.mark.req("B-19")
def test_loading_a_long_session_does_not_read_its_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "state.db", list[int]()
    long(path, 700)
    sound = SQLiteStore.read

    def noted(self: SQLiteStore, *args: Any, **options: Any) -> list[StoredEvent]:
        found = sound(self, *args, **options)
        read.append(len(found))
        return found

    with limpet.connect(path) as lp:
        monkeypatch.setattr(SQLiteStore, "read", noted)
        assert lp.sessions.load_session("tides")
    assert sum(read) <= limits.SNAPSHOT_EVERY


@pytest.mark.req("B-19")
def test_damage_elsewhere_makes_no_recovery_session(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with limpet.connect(path, max_messages_per_session=10) as lp:
        session = lp.sessions.create_session("tides")
        for at in range(12):
            session.add_message(say(f"tides {at}"))
        following = session.id
        assert following != "tides"
    spoil(path, 2, following)
    with limpet.connect(path) as lp:
        first = lp.sessions.load_session("tides")
        assert first is not None
        with pytest.raises(limpet.Corrupt):
            first.pending_calls()
        assert first.id == "tides" and lp.sessions.load_session(recovery_id("tides")) is None


@pytest.mark.req("B-19")
def test_a_long_session_is_recovered_from_its_file_if_the_log_has_no_other_copy(folder: Path) -> None:
    filled(folder, "tides", count=300)
    damage(folder, "tides")
    for _ in range(2):
        with SessionManager(base_path=folder) as manager:
            session = manager.load_session("tides")
            assert session is not None
            assert texts(session) == [f"tides {at}" for at in range(300)]
            assert session.id == recovery_id("tides")
            assert session.metadata["recovery"]["from"] == "session file"
            assert manager.save_session(session)
