"""A process is killed at any step of a migration, a backup or a restore: whoever repeats it finishes it, and it is the same."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import limpet
from limpet import errors, limits
from limpet.admin import migrate
from limpet.stores import sqlite, store_copy
from limpet.stores.volatile import VolatileStore
from limpet.wiring import store_opener
from limpet.wiring.store_opener import open_store
from tests.acceptance import full_store
from tests.acceptance.admin.test_migrate import kept, kept_at
from tests.acceptance.marker_words import Canaries, fill, found
from tests.faults.test_erase_kills import Steps, file_step

INDEX = Path(".index") / "state.db"
"""Where a store in a folder has its index."""

EVERY = 7
"""Of the statements of a migration, one in so many is the last of a process."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two tenants and something erased."""
    path = tmp_path_factory.mktemp("source") / "a.db"
    for tenant in ("default", "globex"):
        with limpet.connect(path, tenant=tenant) as lp:
            fill(lp, "ada", Canaries(), 30)
            full_store.said(lp, "gone", "bob", "goes")
            lp.admin.erase(user_id="bob")
    return path


def killed_at(step: int, path: Path, work: Callable[[], object]) -> bool:
    """Work in a process that is killed at a statement on the store at a path, or when it puts or removes a file.

    False if it came to its end before.
    """
    child = os.fork()
    if not child:
        try:
            steps = Steps(step)
            connected = sqlite.SQLiteStore._connect_writer

            def counted(store: sqlite.SQLiteStore) -> object:
                made = connected(store)
                if store.path == path:
                    made[0].exec_trace = steps
                return made

            sqlite.SQLiteStore._connect_writer = counted  # type: ignore[method-assign,assignment]
            for name in ("rename", "remove", "sync"):
                setattr(sqlite.StoreFiles, name, file_step(getattr(sqlite.StoreFiles, name), steps))
            limits.IMPORT_STEP_EVENTS = 7
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def migrated(source: Path, target: Path) -> None:
    with closing(open_store(source)) as from_, closing(open_store(target)) as to:
        migrate.migrate(from_, to, lambda *_: None)


def closed_to_all(target: Path) -> bool:
    """Whether nobody can use what is half there."""
    try:
        with limpet.connect(target) as lp:
            return not lp.sessions.list_sessions()
    except errors.UnsafeStore:
        return True


@pytest.mark.slow
def test_a_migration_that_was_killed_is_taken_up(source: Path, scratch: Path):
    before, kills = kept_at(source), 0
    for step in range(1, 10**6, EVERY):
        target = scratch / f"{step}.db"
        if not killed_at(step, target, lambda to=target: migrated(source, to)):
            break
        kills += 1
        assert kept_at(target) == before or closed_to_all(target)
        migrated(source, target)
        assert kept_at(target) == before
        with limpet.connect(target, tenant="globex") as lp:
            assert lp.admin.verify().ok
            assert lp.sessions.list_sessions()
        for file in scratch.glob(f"{step}.db*"):
            file.unlink()
    assert kills > 20
    assert kept_at(source) == before


@pytest.mark.slow
def test_a_migration_that_is_killed_again_and_again_comes_to_its_end(source: Path, scratch: Path):
    target, tries = scratch / "b.db", 0
    # Making it usable is one transaction: each gets a little further than the one before.
    while killed_at(40 + 10 * tries, target, lambda: migrated(source, target)):
        tries += 1
    assert tries > 5
    assert kept_at(target) == kept_at(source)


def test_a_backup_that_was_killed_is_taken_up(source: Path, scratch: Path):
    store = VolatileStore()
    with closing(open_store(source)) as from_:
        migrate.migrate(from_, store, lambda *_: None)
    copy, part = scratch / "b.db", scratch / "b.db.part" / "state.db"
    for step in (3, 40, 90, 200):
        assert killed_at(step, part, lambda: migrate.backup(store, copy, open_store, lambda *_: None))
        assert not copy.exists()
    migrate.backup(store, copy, open_store, lambda *_: None)
    assert kept_at(copy) == kept_at(source)
    assert not part.parent.exists()


def restored(backup: Path, target: Path | str) -> None:
    store_opener.restore(backup, target, lambda *_: None)


@pytest.mark.slow
def test_a_restore_onto_a_file_that_was_killed_at_any_step_is_repeated(tmp_path: Path, scratch: Path):
    copy, kills = scratch / "copy.db", list[bool]()
    with limpet.connect(tmp_path / "a.db") as lp:
        fill(lp, "ada", Canaries(), 30)
        full_store.said(lp, "kept", "bob", "stays")
        lp.admin.backup(copy)
        lp.admin.erase(user_id="ada")
    listed = Path(f"{tmp_path / 'a.db'}-erased").read_bytes()
    for step in range(1, 10**6):
        home = scratch / str(step)
        home.mkdir()
        target = home / "state.db"
        (home / "state.db-erased").write_bytes(listed)
        part = store_copy.staging_folder(target) / "restored" / "state.db"
        if not killed_at(step, part, lambda to=target: restored(copy, to)):
            break
        kills.append(target.exists())
        if not target.exists():
            restored(copy, target)
        shutil.rmtree(store_copy.staging_folder(target), ignore_errors=True)
        assert found(home) == {}
        with limpet.connect(target) as lp:
            assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]
            assert lp.admin.verify().ok
        shutil.rmtree(home)
    assert len(kills) > 30
    assert kills == sorted(kills), "once it is there, all of it is done"
    assert kills[-1]


@pytest.mark.slow
def test_a_restore_of_several_tenants_that_was_killed_is_repeated(source: Path, scratch: Path):
    before, kills = kept_at(source), 0
    for step in range(1, 10**6, EVERY):
        target = scratch / f"{step}"
        url = f"files://{target}"
        if not killed_at(step, target / INDEX, lambda to=url: restored(source, to)):
            break
        kills += 1
        try:
            restored(source, url)
        except errors.InvalidRequest:
            # It was killed when all of it was there.
            with limpet.connect(url) as lp, limpet.connect(url, tenant="globex") as other:
                assert lp.sessions.list_sessions()
                assert other.sessions.list_sessions()
        with closing(open_store(url)) as store:
            assert kept(store) == before
        shutil.rmtree(target)
    assert kills > 20
