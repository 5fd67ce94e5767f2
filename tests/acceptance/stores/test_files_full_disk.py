"""A folder whose disk is full, or that others write to meanwhile: what is said of it, and what is held in memory."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Message, errors, limits
from limpet.stores.files import FilesStore, StoreFolder, journal_index
from limpet.stores.files.journal import START, CommitJournal, CommitLine, JournalLine, JournalPoint
from limpet.stores.files.journal_index import RowChangeRecorder
from limpet.stores.sqlite.shared_file.store_files import StoreFiles
from tests.acceptance.stores.test_files_store import filled, say, texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def url(folder: Path) -> str:
    return f"files:{folder}"


class Full:
    """Lets the disk of the index be full at a statement, once."""

    def __init__(self, beginning: str) -> None:
        self._beginning, self.met = beginning, False

    def __call__(self, _: object, sql: str, __: object) -> bool:
        if not self.met and sql.startswith(self._beginning):
            self.met = True
            raise apsw.FullError("database or disk is full")
        return True


@pytest.mark.parametrize("at", ["COMMIT", "INSERT INTO store (name, value) VALUES ('journal'"])
def test_a_disk_that_is_full_when_the_journal_has_the_line_is_not_said_to_have_nothing(url: str, at: str) -> None:
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        full, message = Full(at), say("pay 5")
        store_of(lp)._writer.exec_trace = full
        with pytest.raises(limpet.Unavailable, match=r"is full\).* unknown") as info:
            session.add_message(message)
        assert full.met and type(info.value) is limpet.Unavailable
        assert "same message ids" in str(info.value.hint)
        session.add_message(message)
        assert texts(lp, "tides") == ["pay 5"] and lp.admin.verify().ok


def test_a_disk_that_is_full_before_the_journal_has_the_line_has_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def failing(*_: object) -> None:
        raise full

    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        with monkeypatch.context() as patched:
            patched.setattr(StoreFiles, "datasync", failing)
            with pytest.raises(limpet.errors.StoreFull, match="Nothing was written"):
                session.add_message(say("pay 5"))
            assert texts(lp, "tides") == []
            # Then it can't be taken back either.
            patched.setattr(StoreFiles, "truncate", failing)
            message = say("pay 5")
            with pytest.raises(limpet.Unavailable, match="unknown") as info:
                session.add_message(message)
            assert type(info.value) is limpet.Unavailable
        session.add_message(message)
        assert texts(lp, "tides") == ["pay 5"] and lp.admin.verify().ok


def test_who_is_interrupted_between_journal_and_index_and_again_takes_it_up_himself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> bool:
        if not args or args[1] == "COMMIT":
            raise KeyboardInterrupt
        return True

    with limpet.connect(url) as lp:
        session, store = lp.sessions.create_session("tides"), store_of(lp)
        session.add_message(say("one"))
        store._writer.exec_trace = interrupted
        with monkeypatch.context() as patched:
            # Before it could say that the connection is not to be used any more.
            patched.setattr(store, "_abandon_writer", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.add_message(say("two"))
        store._writer.exec_trace = None
        session.add_message(say("three"))
        assert texts(lp, "tides") == ["one", "two", "three"] and lp.admin.verify().ok


DYING = """
import os, sys, limpet
from limpet.stores.files.store import JournalCommitHook
real = JournalCommitHook.commit
def commit(self, connection):
    real(self, connection)
    os.kill(os.getpid(), 9)
with limpet.connect(sys.argv[1]) as lp:
    session = lp.sessions.get_session("tides")
    JournalCommitHook.commit = commit
    session.add_message({"role": "user", "content": "another's"})
"""


def test_where_what_another_left_in_the_journal_can_not_be_taken_it_is_taken_later(folder: Path, url: str) -> None:
    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        session.add_message(say("one"))
        subprocess.run([sys.executable, "-c", DYING, url], check=False)
        log = folder / ".index" / "state.db-wal"
        most, at_all = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            # The disk of the index is full: nothing can be added to its log.
            resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, at_all))
            with pytest.raises(errors.Unavailable):
                session.add_message(say("two"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, at_all))
        session.add_message(say("three"))
        assert texts(lp, "tides") == ["one", "another's", "three"]
        lp.admin.rebuild()
        assert texts(lp, "tides") == ["one", "another's", "three"] and lp.admin.verify().ok


def store_of(lp: limpet.Limpet) -> FilesStore:
    store = lp.sessions._service.engine.store
    assert isinstance(store, FilesStore)
    return store


@pytest.mark.parametrize("verb", ["rebuild", "verify"])
def test_a_sound_store_is_not_called_damaged_because_another_erases_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_SEGMENT_BYTES", 800)
    with limpet.connect(url) as lp:
        lp.sessions.create_session("going").add_message(say("x" * limits.BLOB_BYTES_MIN * 2))
    filled(url)
    with limpet.connect(url) as lp, limpet.connect(url) as other:
        sound, erased = CommitJournal.walk, False

        def slow(self: CommitJournal, after: JournalPoint = START) -> Iterator[JournalLine]:
            nonlocal erased
            for step in sound(self, after):
                if not erased:
                    erased = True
                    other.admin.erase(session_id="going")
                yield step

        monkeypatch.setattr(CommitJournal, "walk", slow)
        if verb == "rebuild":
            lp.admin.rebuild()
        else:
            assert lp.admin.verify().faults == ()
        assert erased and lp.sessions.load_session("going") is None
        assert len(texts(lp, "tides")) == 6 and lp.admin.verify().ok


def test_damage_is_still_damage_to_a_rebuild_and_nothing_is_changed(folder: Path, url: str) -> None:
    filled(url)
    with limpet.connect(url) as lp:
        path = folder / "journal" / "000001.jsonl"
        path.write_bytes(path.read_bytes().replace(b"message 2", b"message X"))
        with pytest.raises(limpet.Corrupt, match="line 5"):
            lp.admin.rebuild()
        assert texts(lp, "tides") == [f"message {at}" for at in range(6)]


def test_in_a_turn_verify_reads_only_what_came_since_it_began(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def large(text: str) -> Message:
        return say(text * limits.BLOB_BYTES_MIN * 2)

    with limpet.connect(url) as lp:
        session = lp.sessions.create_session("tides")
        for text in "abc":
            session.add_message(large(text))
        sound, read, held = StoreFolder.read_blob, list[bool](), store_of(lp)

        def noted(self: StoreFolder, name: str) -> bytes:
            in_turn = held._holder is not None
            if not read:
                session.add_message(large("d"))
            read.append(in_turn)
            return sound(self, name)

        monkeypatch.setattr(StoreFolder, "read_blob", noted)
        assert lp.admin.verify().ok
        assert read == [False, False, False, True]


class Holding:
    """How many rows a store holds at most, to write them to its journal, while lines of it are put into the index."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines = self.rows = 0
        self._recordings: list[RowChangeRecorder] = []
        attach, apply = RowChangeRecorder.attach, journal_index.apply_commit

        def attached(recording: RowChangeRecorder, connection: apsw.Connection) -> None:
            self._recordings.append(recording)
            attach(recording, connection)

        def applied(connection: apsw.Connection, change: CommitLine, fetch: journal_index.BlobFileLoader) -> None:
            apply(connection, change, fetch)
            self.lines += 1
            every = (rows for each in self._recordings for rows in each._rows.values())
            self.rows = max(self.rows, sum(map(len, every)))

        monkeypatch.setattr(RowChangeRecorder, "attach", attached)
        monkeypatch.setattr(journal_index, "apply_commit", applied)


@pytest.mark.parametrize("how", ["rebuild", "no index", "older index"])
def test_what_comes_from_the_journal_is_not_held_in_memory_until_the_end(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    filled(url, 1)
    shutil.copytree(folder / ".index", tmp_path / "older")
    with limpet.connect(url) as lp:
        for at in range(10):
            lp.sessions.get_session("tides").add_message(say(f"{at} " * limits.BLOB_BYTES_MIN))
    if how != "rebuild":
        shutil.rmtree(folder / ".index")
    if how == "older index":
        shutil.copytree(tmp_path / "older", folder / ".index")
    holding = Holding(monkeypatch)
    with limpet.connect(url) as lp:
        if how == "rebuild":
            lp.admin.rebuild()
        assert holding.lines >= 10 and holding.rows == 0
        # From then on it is heard of again.
        lp.sessions.get_session("tides").add_message(say("later"))
    shutil.rmtree(folder / ".index")
    with limpet.connect(url) as lp:
        assert len(texts(lp, "tides")) == 12 and texts(lp, "tides")[-1] == "later"
        assert lp.admin.verify().ok


def test_status_counts_what_is_there_while_others_rename(
    folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(url)
    with limpet.connect(url) as lp:
        before = int(str(lp.admin.status()["bytes"]))
        going = [folder / "sessions" / f"{name}.json.{name}.new" for name in ("first", "second")]
        for path in going:
            path.write_text("12345")
        first, second = map(str, going)

        def looking(sound: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
            def look(path: str | Path, **more: bool) -> os.stat_result:
                if str(path) == first:
                    Path(first).unlink(missing_ok=True)
                try:
                    return sound(path, **more)
                finally:
                    if str(path) == second:
                        Path(second).unlink(missing_ok=True)

            return look

        with monkeypatch.context() as patched:
            for name in ("stat", "lstat"):
                patched.setattr(os, name, looking(getattr(os, name)))
            counted = int(str(lp.admin.status()["bytes"]))
        assert before <= counted <= before + 5
        assert not any(path.exists() for path in going)
