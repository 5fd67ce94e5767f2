"""The archive's file: lost, damaged or of another log it is made again; what is forgotten leaves nothing in it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Message, errors
from limpet.core.values.memory_records import TenantUser
from limpet.jobs.index_task import IndexTask
from limpet.memory.index import inverted_index, search
from limpet.memory.index.inverted_index import ArchiveIndex, IndexBatch
from limpet.memory.index_store import VolatileIndexStore
from limpet.stores.port import StoredEvent


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (inverted_index, search):
        monkeypatch.setattr(module, "SEGMENT_SIZES", (2, 4, 8, 16))


def fill(lp: limpet.Limpet, name: str, user: str, count: int, word: str) -> None:
    session = lp.sessions.create_session(name, user_id=user)
    session.add_messages(
        Message(role=("user", "assistant")[at % 2], content=f"{word}{at} common {user}word") for at in range(count)
    )


def positions(lp: limpet.Limpet, query: str, user: str = "ada") -> set[int]:
    return {hit.position for hit in lp.archive.search(query, user_id=user, limit=100)}


def files(folder: Path) -> Iterator[Path]:
    return folder.glob("state.db-memory*")


def test_a_lost_file_is_made_again(tmp_path: Path):
    path = str(tmp_path / "state.db")
    with limpet.connect(path) as lp:
        fill(lp, "a", "ada", 40, "walrus")
        before = positions(lp, "common")
    for file in files(tmp_path):
        file.unlink()
    with limpet.connect(path) as lp:
        assert positions(lp, "common") == before
        assert len(before) == 40


@pytest.mark.parametrize("open_meanwhile", [False, True])
@pytest.mark.parametrize("where", ["pages", "schema", "end"])
def test_a_damaged_file_is_made_again_and_that_is_told(tmp_path: Path, where: str, open_meanwhile: bool):
    path = str(tmp_path / "state.db")
    lp = limpet.connect(path)
    fill(lp, "a", "ada", 90, "walrus")
    before = positions(lp, "common")
    lp._opened.index_store().scrub()
    if not open_meanwhile:
        lp.close()
    target = tmp_path / "state.db-memory"
    size = target.stat().st_size
    with target.open("r+b") as file:
        if where == "end":
            file.truncate(size - 6_000)
        for at in {"pages": range(4_096, size, 4_096), "schema": [100], "end": []}[where]:
            file.seek(at + 20)
            file.write(b"\xaa" * 60)
    if not open_meanwhile:
        lp = limpet.connect(path)
    else:
        shelf: Any = lp._opened.index_store()
        shelf._readers.renew()
    assert positions(lp, "common") == before
    assert any("was damaged and is rebuilt" in note for note in lp.archive.task.notes)
    fill(lp, "b", "ada", 3, "walrus")
    assert len(positions(lp, "common")) == 93
    lp.close()


def test_another_program_s_file_in_the_way_is_left_alone(tmp_path: Path):
    other = tmp_path / "state.db-memory"
    other.write_bytes(b"my notes, not a database, nobody may touch them" * 50)
    with limpet.connect(str(tmp_path / "state.db")) as lp:
        fill(lp, "a", "ada", 2, "walrus")
        with pytest.raises(errors.NotAStore):
            lp.archive.search("walrus", user_id="ada")
    assert other.read_bytes().startswith(b"my notes")


def test_an_index_of_another_log_is_made_again(tmp_path: Path):
    path = tmp_path / "state.db"
    with limpet.connect(str(path)) as lp:
        fill(lp, "a", "ada", 5, "walrus")
        lp.admin.backup(tmp_path / "copy.db")
        fill(lp, "b", "ada", 5, "penguin")
        assert positions(lp, "penguin3")
    kept = [(file.name, file.read_bytes()) for file in files(tmp_path)]
    for file in tmp_path.glob("state.db*"):
        file.unlink()
    shutil.copy(tmp_path / "copy.db", path)
    for name, data in kept:
        (tmp_path / name).write_bytes(data)
    with limpet.connect(str(path)) as lp:
        fill(lp, "c", "ada", 6, "seal")
        assert positions(lp, "penguin3") == set()
        assert len(positions(lp, "common")) == 11
        assert any("not of this log" in note for note in lp.archive.task.notes)


@pytest.mark.parametrize("what", ["user", "session", "message"])
def test_no_fragment_of_what_was_forgotten_is_left_in_any_file(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
):
    small(monkeypatch)
    with limpet.connect(str(tmp_path / "state.db")) as lp:
        fill(lp, "keep", "ada" if what != "user" else "ben", 25, "walrus")
        session = lp.sessions.create_session("gone-session", user_id="ada")
        secrets = ["Xylophonist", "QZ9-7731", "quetzalcoatl", "ヴァイオリン協奏曲"]
        for secret in secrets:
            session.add_message(Message(role="user", content=f"about {secret}, please"))
            session.add_message(Message(role="assistant", content="common"))
            assert lp.archive.catch_up()
        fill(lp, "later", "ada" if what != "user" else "ben", 25, "seal")
        before = lp.archive.search("quetzalcoatl", user_id="ada")
        assert before[0].role == "user" and len(before) == 2
        fragments = [b"xylophonist", b"qz9", b"7731", b"quetzalcoatl", "ヴァ".encode(), b"gone-session"]  # fmt: skip
        everything = b"".join(file.read_bytes() for file in files(tmp_path))
        assert all(fragment in everything for fragment in fragments)
        if what == "user":
            assert lp.archive.forget("ada") == 8
        elif what == "session":
            assert lp.archive.forget("ada", "gone-session") == 8
        else:
            fragments = [b"quetzalcoatl"]
            assert lp.archive.forget("ada", "gone-session", before[0].position) == 1
        everything = b"".join(file.read_bytes() for file in files(tmp_path))
        assert [one for one in fragments if one in everything] == []
        assert lp.archive.search("quetzalcoatl", user_id="ada") == []
        keeper = "ben" if what == "user" else "ada"
        left = 50 if what != "message" else 50 + 4
        assert len(positions(lp, "common", keeper)) >= left - (what == "message")
        assert len(positions(lp, "walrus7", keeper)) == 2


def test_what_was_read_before_a_forgetting_is_not_written_after_it(tmp_path: Path):
    with limpet.connect(str(tmp_path / "state.db")) as lp:
        fill(lp, "a", "ada", 3, "walrus")
        shelf = lp._opened.index_store()
        reading = IndexBatch(ArchiveIndex(shelf), "default")
        reading.add_session("a", "ada", 0, 0)
        reading.add("a", position=2, time_us=0, role="user", terms={b"walrus0": 1}, has_words=True, calls=False)  # fmt: skip
        assert lp.archive.forget("ada") == 0
        assert not reading.write(2, b"")
        assert shelf.scan(inverted_index.PENDING, b"", b"\xff", limit=9) == []


class Erased:
    """A store in which payloads at some positions are gone."""

    def __init__(self, store: Any, gone: set[int]) -> None:
        self._store = store
        self._gone = gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def feed(self, tenant: str, *, after: int = 0, limit: int = 256) -> list[StoredEvent]:
        return [
            msgspec.structs.replace(event, payload=None) if event.position in self._gone else event
            for event in self._store.feed(tenant, after=after, limit=limit)
        ]


def test_what_was_erased_from_the_log_is_passed_over():
    with limpet.connect("volatile:") as lp:
        fill(lp, "a", "ada", 6, "walrus")
        engine: Any = lp._opened.engine
        engine.store = Erased(engine.store, {3, 5})
        assert positions(lp, "common") == {2, 4, 6, 7}
        # Its session's beginning too: then nobody knows whose it was, but its state does.
        engine.store._gone.add(1)
        lp.archive.forget("ada")
        fill(lp, "b", "ada", 1, "seal")
        assert len(positions(lp, "common")) == 1


KILLED = """
import sys, threading, os, signal
import limpet
from limpet.memory.index import inverted_index, search
for module in (inverted_index, search):
    module.SEGMENT_SIZES = (2, 4, 8, 16)
from limpet import limits
limits.ARCHIVE_BATCH = limits.READ_CHUNK = 7
lp = limpet.connect(sys.argv[1])
shelf, steps = lp._opened.index_store(), int(sys.argv[2])
change, seen = shelf._apply, 0
def counted(writer, one):
    global seen
    seen += 1
    if seen > steps:
        os.kill(os.getpid(), signal.SIGKILL)
    change(writer, one)
shelf._apply = counted
while lp.archive.task.step("default"):
    pass
lp.close()
"""


@pytest.mark.parametrize("steps", [1, 9, 20, 40, 61])
def test_an_indexer_killed_in_the_middle_is_taken_up_where_it_was(
    tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
):
    small(monkeypatch)
    path = str(tmp_path / "state.db")
    with limpet.connect(path) as lp:
        fill(lp, "a", "ada", 60, "walrus")
        fill(lp, "b", "ben", 30, "seal")
    run = subprocess.run([sys.executable, "-c", KILLED, path, str(steps)], check=False, timeout=300)
    assert run.returncode == -signal.SIGKILL
    with limpet.connect(path) as lp:
        hits = lp.archive.search("common", user_id="ada", limit=100)
        assert len(hits) == len({hit.position for hit in hits}) == 60
        assert len(positions(lp, "common", "ben")) == 30
        assert lp.archive.task.notes == []


def test_searches_see_whole_states_while_others_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every search finds a beginning of what was said, whatever is moved meanwhile."""
    small(monkeypatch)
    with limpet.connect(str(tmp_path / "state.db")) as lp:
        fill(lp, "a", "ada", 200, "walrus")
        monkeypatch.setattr(limpet.limits, "READ_CHUNK", 3)
        monkeypatch.setattr(limpet.limits, "ARCHIVE_BATCH", 2)
        tasks = [IndexTask(lp._opened.engine, lp._opened.index_store()) for _ in range(2)]

        def follow(task: IndexTask) -> None:
            while task.step("default"):
                pass

        threads = [threading.Thread(target=follow, args=(task,)) for task in tasks]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            rows = ArchiveIndex(lp._opened.index_store())
            owner = rows.owner(TenantUser("default", "ada"))
            if owner is not None:
                sought = search.ArchiveQuery(terms=[b"common"], limit=500)
                try:
                    matches = search.find_messages(rows, owner, sought).matches
                except errors.Unavailable:
                    # It changes faster than it can be read, and says so: whoever asks again is answered.
                    continue
                found = {match.position for match in matches}
                assert found == set(range(2, 2 + len(found)))
        for thread in threads:
            thread.join()
        assert lp.archive.search("common", user_id="ada", limit=100)[0]
        assert lp.archive.behind() == 0


def test_tenants_share_a_shelf_and_nothing_else():
    shelf = VolatileIndexStore()
    for tenant in ("one", "two"):
        one = IndexBatch(ArchiveIndex(shelf), tenant)
        one.add_session("s", "ada", 0, 0)
        one.add("s", position=1, time_us=0, role="user", terms={tenant.encode(): 1}, has_words=True, calls=False)  # fmt: skip
        assert one.write(1, b"link")
    inverted_index.forget(ArchiveIndex(shelf), TenantUser("one", "ada"))
    left = b"".join(key + value for book in (*inverted_index.OWNER_TABLES, inverted_index.OWNERS, inverted_index.SESSIONS) for key, value in shelf.scan(book, b"", b"\xff", limit=99))  # fmt: skip
    assert b"one" not in left and b"two" in left
