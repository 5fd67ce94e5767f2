"""Backups: one that is larger than what SQLite keeps in memory, one that is killed, and two at once."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import limpet
from limpet import errors
from limpet.stores import sqlite


def test_a_large_backup_can_be_opened(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.create_session("long")
        for part in range(12):
            batch = [{"role": "user", "content": f"{part} {n} " * 2_500} for n in range(60)]
            session.add_messages(batch)
        lp.admin.backup(tmp_path / "copy.db")
    with limpet.connect(tmp_path / "copy.db") as lp:
        assert lp.admin.verify().ok
        assert lp.sessions.get_session("long").message_count == 720


KILLED = """
import os, pathlib, sys
from limpet.stores import sqlite
folder = pathlib.Path(sys.argv[1])
copying = sqlite.open_store(folder / "state.db").backup(str(folder / "copy.db"))
next(copying)
os._exit(0)
"""


def test_what_a_killed_backup_left_is_gone_with_the_next(tmp_path: Path) -> None:
    with closing(sqlite.open_store(tmp_path / "state.db")) as store:
        before = {path.name for path in tmp_path.iterdir()}
        # A process of its own: one that is forked from a test run has whatever locks others held.
        subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=True)
        assert {path.name for path in tmp_path.iterdir()} == before | {"copy.db.part"}
        for _ in store.backup(str(tmp_path / "copy.db")):
            pass
        assert {path.name for path in tmp_path.iterdir()} == before | {"copy.db"}


def test_two_backups_to_one_file_do_not_mix(tmp_path: Path) -> None:
    with closing(sqlite.open_store(tmp_path / "state.db")) as store:
        first = store.backup(str(tmp_path / "copy.db"))
        next(first)
        with pytest.raises(errors.InvalidRequest, match="under way"):
            next(store.backup(str(tmp_path / "copy.db")))
        for _ in first:
            pass
    sqlite.open_store(tmp_path / "copy.db").close()
    assert not (tmp_path / "copy.db.part").exists()
