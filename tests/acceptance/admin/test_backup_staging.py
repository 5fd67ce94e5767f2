"""Backups that are made by copying a log, in a folder beside the file: one at a time, each of one store only."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import limpet
from limpet import errors, limits
from limpet.admin import migrate
from limpet.stores import sqlite, store_copy
from limpet.stores.port import Store
from limpet.stores.volatile import VolatileStore
from limpet.wiring.store_opener import open_store
from tests.acceptance.admin.test_copy_into_open_store import said
from tests.acceptance.admin.test_migrate import kept, kept_at


def stored(tenant: str, word: str) -> VolatileStore:
    store = VolatileStore()
    said(store, tenant, "s", *(word for _ in range(9)))
    return store


def backed_up(store: Store, target: Path) -> None:
    migrate.backup(store, target, open_store, lambda *_: None)


def broken_off(store: Store, target: Path) -> None:
    """Begin a backup, and leave it when some of it is there."""

    def progress(*_: int) -> None:
        raise errors.Unavailable("told to.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "IMPORT_STEP_EVENTS", 4)
        with pytest.raises(errors.Unavailable):
            migrate.backup(store, target, open_store, progress)
    with closing(sqlite.open_store(store_copy.staging_folder(target) / "state.db")) as made:
        assert made.tenants() == store.tenants()


def test_two_at_once_to_one_file_do_not_mix(tmp_path: Path):
    store, target = stored("default", "words"), tmp_path / "monday.db"
    refused: list[str] = []

    def progress(*_: int) -> None:
        with pytest.raises(errors.InvalidRequest, match="another process is writing") as caught:
            backed_up(store, target)
        refused.append(str(caught.value))

    migrate.backup(store, target, open_store, progress)
    assert len(refused) > 2
    assert [file.name for file in tmp_path.iterdir()] == ["monday.db"]
    assert kept_at(target) == kept(store)


def test_one_that_comes_when_another_is_just_through_is_told_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, target = stored("default", "words"), tmp_path / "monday.db"
    real = store_copy.fcntl.flock

    def late(fd: int, how: int) -> None:
        monkeypatch.setattr(store_copy.fcntl, "flock", real)
        backed_up(store, target)
        target.rename(tmp_path / "moved.db")
        real(fd, how)

    monkeypatch.setattr(store_copy.fcntl, "flock", late)
    with pytest.raises(errors.InvalidRequest, match="another process is writing"):
        backed_up(store, target)
    backed_up(store, target)
    assert kept_at(target) == kept_at(tmp_path / "moved.db") == kept(store)


@pytest.mark.parametrize("tenant", ["default", "globex"])
def test_what_another_store_has_left_is_neither_taken_nor_lost(tmp_path: Path, tenant: str):
    ours, theirs = stored("default", "ours"), stored(tenant, "theirs")
    target = tmp_path / "monday.db"
    broken_off(theirs, target)
    with pytest.raises(errors.Conflict, match="another store") as caught:
        backed_up(ours, target)
    assert str(store_copy.staging_folder(target)) in str(caught.value.hint)
    assert not target.exists()
    backed_up(theirs, target)
    assert kept_at(target) == kept(theirs)


def test_no_place_for_a_file_is_said_in_time(tmp_path: Path):
    with limpet.connect("volatile:") as lp, pytest.raises(errors.InvalidRequest, match="made"):
        lp.admin.backup(tmp_path / "none" / "monday.db")
