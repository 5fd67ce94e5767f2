"""Where a store's files lie: what is noticed, and that noticing it costs no write of the log's inode."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from limpet import errors
from limpet.stores import sqlite
from limpet.stores.sqlite.shared_file.store_files import CLOCK_TICK_NS, SECOND_NS, FileIdentity, StoreFiles
from limpet.testing.store_contract.harness import commit_all, make_append, write


class Watched(StoreFiles):
    """Knows which files were looked at, and can have a folder that never seems to change."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.stopped: tuple[int, int, int] | None = None

    def inode_at(self, path: str) -> tuple[int, int] | None:
        self.looked.append(path)
        return super().inode_at(path)

    def folder_stamp(self, folder: str) -> tuple[int, int, int] | None:
        return self.stopped or super().folder_stamp(folder)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name in ("state.db", "state.db-wal"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path / "state.db"


def opened(files: StoreFiles, path: Path) -> FileIdentity:
    place = FileIdentity(files, path)
    place.accept(place.read_inodes())
    return place


def settle() -> None:
    """Let a folder's last change become older than a tick."""
    time.sleep(2 * CLOCK_TICK_NS / SECOND_NS)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"")
    other.replace(path)


@pytest.mark.parametrize("change", [Path.unlink, replace], ids=["removed", "replaced"])
@pytest.mark.parametrize("name", ["state.db", "state.db-wal"])
def test_a_file_that_is_not_there_any_more_is_noticed(path: Path, name: str, change):
    place = opened(StoreFiles(), path)
    settle()
    place.check()
    change(path.with_name(name))
    for _ in range(2):
        with pytest.raises(errors.Unavailable, match="removed"):
            place.check()


def test_a_folder_whose_time_was_put_back_has_changed_all_the_same(path: Path):
    """Programs that copy folders restore their times."""
    place = opened(StoreFiles(), path)
    settle()
    place.check()
    before = path.parent.stat()
    replace(path)
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(errors.Unavailable, match="removed or replaced"):
        place.check()


def test_a_folder_that_moves_away_is_noticed(path: Path):
    place = opened(StoreFiles(), path)
    settle()
    place.check()
    path.parent.rename(path.parent.with_name("elsewhere"))
    with pytest.raises(errors.Unavailable, match="removed or replaced"):
        place.check()


@pytest.mark.parametrize(
    ("age_ns", "whole_seconds"), [(CLOCK_TICK_NS // 2, False), (SECOND_NS, True)], ids=["fine", "coarse"]
)
def test_a_stamp_that_may_hide_a_second_change_is_not_trusted(path: Path, age_ns: int, whole_seconds: bool):
    """Two changes within one tick of the file system's clock have one stamp."""
    files = Watched()
    place = opened(files, path)
    then = time.time_ns() - age_ns
    files.stopped = (1, 1, then // SECOND_NS * SECOND_NS if whole_seconds else then | 1)
    place.check()
    path.unlink()
    with pytest.raises(errors.Unavailable, match="removed or replaced"):
        place.check()


def test_appends_in_a_quiet_folder_do_not_look_at_the_files(tmp_path: Path):
    """A look at the log's times makes some kernels write its inode at every sync."""
    files = Watched()
    store = sqlite.open_store(tmp_path / "state.db", files=files)
    commit_all(store, make_append(write("s", 0, b"one")))
    settle()
    commit_all(store, make_append(write("s", 1, b"two")))
    files.looked.clear()
    for version in range(2, 7):
        commit_all(store, make_append(write("s", version, b"more")))
    assert not files.looked
    store.close()
