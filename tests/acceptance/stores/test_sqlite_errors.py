"""What a store file may be, or become, that Limpet must not write to: each with its own error."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import errors
from limpet.stores import sqlite
from limpet.stores.sqlite import database
from limpet.stores.sqlite.shared_file import store_files
from tests.acceptance.conversation_steps import engine_of, feed, said, texts, user


def folder_of(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.iterdir()}


def refused(path: Path, error: type[errors.Error], words: str) -> None:
    """Opening is refused with words that help, and no byte of the folder has changed."""
    before = folder_of(path.parent)
    with pytest.raises(error) as caught:
        limpet.connect(path)
    assert words in str(caught.value), str(caught.value)
    assert folder_of(path.parent) == before


def foreign(path: Path, *, wal: bool) -> None:
    """Somebody else's SQLite database, with its write-ahead log lying beside it if asked for."""
    away = path.with_name("away")
    other = sqlite3.connect(away)
    if wal:
        other.execute("PRAGMA journal_mode = WAL")
    other.execute("CREATE TABLE events (key INTEGER PRIMARY KEY, secret TEXT)")
    other.execute("INSERT INTO events VALUES (1, 'mine')")
    other.commit()
    for suffix in ("", "-wal"):
        if Path(f"{away}{suffix}").exists():
            shutil.copy(f"{away}{suffix}", f"{path}{suffix}")
    other.close()
    away.unlink()


@pytest.mark.parametrize("text", ["hi", "not a database " * 1000, "SQLite format 2", "\0" * 4096])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, text: str):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    refused(path, errors.NotAStore, "Choose another path")


@pytest.mark.parametrize("wal", [False, True])
def test_somebody_elses_database_is_left_alone(tmp_path: Path, wal: bool):
    path = tmp_path / "theirs.db"
    foreign(path, wal=wal)
    refused(path, errors.NotAStore, "Choose another path")


def test_an_empty_file_becomes_a_store(tmp_path: Path):
    path = tmp_path / "state.db"
    path.touch()
    with limpet.connect(path) as lp:
        lp.sessions.create_session("s")


def changed(path: Path, statement: str) -> None:
    """Change a store's header with the checksums kept right, as only a program of ours would."""
    database.register_checksum_vfs()
    connection = apsw.Connection(str(path), vfs=database.CHECKSUM_VFS)
    list(connection.execute(statement))
    connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one message, closed."""
    made = tmp_path / "state.db"
    with limpet.connect(made) as lp:
        lp.sessions.create_session("s").add_message(user("kept"))
    return made


def test_a_newer_store_is_refused_with_the_remedy(path: Path):
    changed(path, "PRAGMA user_version = 99")
    refused(path, errors.NewerStore, "pip install .")
    changed(path, f"PRAGMA user_version = {database.SCHEMA_VERSION}")
    with limpet.connect(path) as lp:
        assert texts(lp.sessions.get_session("s")) == ["kept"]


def test_settings_that_lose_data_are_refused(path: Path):
    changed(path, "PRAGMA journal_mode = DELETE")
    with pytest.raises(errors.UnsafeStore, match="journal_mode = WAL"):
        limpet.connect(path)
    changed(path, "PRAGMA journal_mode = WAL")
    with limpet.connect(path) as lp:
        assert said(lp) == ["kept"]


class Elsewhere(store_files.StoreFiles):
    """A file system of another kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def file_system_type(self, path: Path) -> str:
        return self._kind


@pytest.mark.parametrize("kind", sorted(store_files.NETWORK_FILE_SYSTEMS))
def test_network_file_systems_are_refused(tmp_path: Path, kind: str):
    with pytest.raises(errors.UnsafeStore, match="local disk"):
        sqlite.open_store(tmp_path / "state.db", files=Elsewhere(kind))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs", ""])
def test_local_file_systems_are_accepted(tmp_path: Path, kind: str):
    sqlite.open_store(tmp_path / "state.db", files=Elsewhere(kind)).close()


def test_the_kind_of_file_system_is_read_from_the_machine():
    assert store_files.StoreFiles().file_system_type(Path("/proc")) == "proc"
    assert store_files.StoreFiles().file_system_type(Path("/")) != ""
    assert store_files.StoreFiles().file_system_type(Path("/procession")) == store_files.StoreFiles().file_system_type(
        Path("/")
    )


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.51.0", "3.51.2"])
def test_an_sqlite_with_the_wal_reset_bug_is_refused(version: str):
    with pytest.raises(errors.UnsafeStore, match="pip install -U apsw"):
        database.check_sqlite_version(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.100.0", "4.0.0", apsw.sqlite_lib_version()])
def test_an_sqlite_without_it_is_accepted(version: str):
    database.check_sqlite_version(version)


def test_a_full_disk_says_so_and_a_retry_with_the_same_key_has_one_effect(path: Path):
    with limpet.connect(path) as lp:
        session = lp.sessions.get_session("s")
        before = feed(lp)
        writer = engine_of(lp).store._writer  # pyright: ignore[reportAttributeAccessIssue] - to fill it up
        writer.pragma("max_page_count", 1)
        big = {"role": "user", "content": "x" * 1_000_000}
        with pytest.raises(errors.StoreFull, match="free some space and retry"):
            session.add_message(big, key="k")
        assert feed(lp) == before
        session.add_message(big, key="k")
        session.add_message(big, key="k")
        assert len(feed(lp)) == len(before) + 1
        assert lp.admin.verify().ok


LIMITED = """
import resource, sys
import limpet
from limpet import errors
with limpet.connect(sys.argv[1]) as lp:
    session = lp.sessions.get_session("s")
    size = int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    acknowledged = failed = 0
    for number in range(60):
        try:
            session.add_message({"role": "user", "content": f"{number} " + "x" * 8000}, key=f"k{number}")
            acknowledged += 1
        except errors.Unavailable:
            failed += 1
    assert failed, "the limit was never met"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for number in range(60):
        session.add_message({"role": "user", "content": f"{number} " + "x" * 8000}, key=f"k{number}")
    assert lp.admin.verify().ok
    print(acknowledged, failed)
"""


@pytest.mark.parametrize("size", [8_192, 65_536, 300_000])
def test_a_file_that_can_grow_no_further_loses_and_doubles_nothing(path: Path, size: int):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, path, str(size)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    with limpet.connect(path) as lp:
        found = [text.split(" ")[0] for text in said(lp)]
        assert found[0] == "kept"
        assert sorted(found[1:], key=int) == [str(number) for number in range(60)]


NOBODY = 65_534
UNPRIVILEGED = """
import os, sys
import limpet
from limpet import errors
with limpet.connect(sys.argv[2]) as lp:  # loads all that another user could not
    list(lp.sessions.create_session(system="S").messages)
os.setgid({nobody})
os.setuid({nobody})
try:
    with limpet.connect(sys.argv[1]) as lp:
        try:
            lp.sessions.get_session("s").add_message({{"role": "user", "content": "x"}})
        except errors.StoreReadOnly as error:
            print(error)
except errors.StoreReadOnly as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("file_mode", "folder_mode"), [(0o444, 0o555), (0o444, 0o777), (0o400, 0o777)],
    ids=["file and folder", "file", "not even readable"],
)  # fmt: skip
def test_a_store_that_can_not_be_written_says_so(
    path: Path, file_mode: int, folder_mode: int, tmp_path_factory: pytest.TempPathFactory
):
    for parent in (path.parent, *path.parent.parents[:3]):
        if parent != Path("/") and "pytest" in str(parent):
            parent.chmod(0o755)
    for one in path.parent.iterdir():
        one.chmod(file_mode)
    path.parent.chmod(folder_mode)
    program = textwrap.dedent(UNPRIVILEGED.format(nobody=NOBODY))
    done = subprocess.run(
        [sys.executable, "-c", program, path, tmp_path_factory.mktemp("own") / "own.db"], cwd="/",
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "permissions" in done.stdout
    for one in path.parent.iterdir():
        one.chmod(0o644)
    path.parent.chmod(0o755)
    with limpet.connect(path) as lp:
        assert said(lp) == ["kept"]


def test_another_library_in_this_process_that_takes_the_log_away_is_noticed(path: Path):
    """Python's own sqlite3, opened on the same file and closed, drops our locks and removes the log."""
    with limpet.connect(path) as lp:
        session = lp.sessions.get_session("s")
        session.add_message(user("safe"))
        intruder = sqlite3.connect(path)
        intruder.execute("SELECT count(*) FROM events").fetchone()
        intruder.close()
        with pytest.raises(errors.Error, match="Another SQLite library"):
            session.add_message(user("not acknowledged"))
    with limpet.connect(path) as lp:
        assert said(lp)[:2] == ["kept", "safe"]
        lp.sessions.add_messages("s", [user("goes on")])
        assert lp.admin.verify().ok


def test_a_plain_sqlite_that_looked_into_a_crashed_store_does_not_ruin_it(path: Path):
    dying = "import sys, os, limpet; lp = limpet.connect(sys.argv[1]); lp.sessions.add_messages('s', [{'role': 'user', 'content': str(n)} for n in range(9)]); os._exit(0)"
    subprocess.run([sys.executable, "-c", dying, path], check=True)
    assert Path(f"{path}-wal").stat().st_size > 0
    looking = "import sys, sqlite3; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM sessions').fetchall(); c.close()"
    subprocess.run([sys.executable, "-c", looking, path], check=True)
    with limpet.connect(path) as lp:
        assert said(lp) == ["kept", *[str(n) for n in range(9)]]
        (row,) = lp.sessions.list_sessions()
        assert row["message_count"] == 10
        assert lp.admin.verify().ok
        lp.sessions.add_messages("s", [user("goes on")])


@pytest.mark.parametrize("part", ["-anchor", "-lock", "-wal", "-shm"])
def test_a_store_without_one_of_its_side_files_opens(path: Path, part: str):
    Path(f"{path}{part}").unlink(missing_ok=True)
    with limpet.connect(path) as lp:
        assert said(lp) == ["kept"]


def test_a_backup_that_fails_leaves_nothing_behind(path: Path, tmp_path: Path):
    with limpet.connect(path) as lp:
        for number in range(50):
            lp.sessions.get_or_create_session("s").add_message({"role": "user", "content": "x" * 500 + str(number)})
    data = bytearray(path.read_bytes())
    data[data.index(b"x" * 100 + b"25")] ^= 1
    path.write_bytes(data)
    target = tmp_path / "elsewhere"
    target.mkdir()
    with limpet.connect(path) as lp, pytest.raises(errors.Corrupt):
        lp.admin.backup(target / "copy.db")
    assert list(target.iterdir()) == []


def test_what_a_killed_creation_left_is_removed_by_the_next(tmp_path: Path):
    leftovers = [tmp_path / f"state.db.x1{end}" for end in (".new", ".new-journal")]
    others = [tmp_path / "state.db.notes", tmp_path / "other.db.x1.new"]
    for file in (*leftovers, *others):
        file.write_bytes(b"")
    limpet.connect(tmp_path / "state.db").close()
    assert not any(file.exists() for file in leftovers)
    assert all(file.exists() for file in others)
