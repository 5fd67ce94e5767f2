"""A process is killed at any step of a migration, a backup or a restore: whoever repeats it finishes it, and it is the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast import errors, limits
from holdfast.engine import migrating
from holdfast.store import sqlite
from holdfast.store.volatile import VolatileStore
from holdfast.wiring import moving
from holdfast.wiring.stores import open_store
from tests.acceptance import whole
from tests.acceptance.canaries import Canaries, fill
from tests.acceptance.test_migrating import kept_at
from tests.faults.test_erasing import Steps

EVERY = 7
"""Of the statements of a migration, one in so many is the last of a process."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two tenants and something erased."""
    path = tmp_path_factory.mktemp("source") / "a.db"
    for tenant in ("default", "globex"):
        with holdfast.connect(path, tenant=tenant) as hf:
            fill(hf, "ada", Canaries(), 30)
            whole.said(hf, "gone", "bob", "goes")
            hf.admin.erase(user_id="bob")
    return path


def killed_at(step: int, path: Path, work: Callable[[], object]) -> bool:
    """Work in a process that is killed at a statement on the store at a path; False if it came to its end before."""
    child = os.fork()
    if not child:
        try:
            steps = Steps(step)
            opened = sqlite.SQLiteStore._open

            def counted(store: sqlite.SQLiteStore, again: object) -> None:
                opened(store, again)  # type: ignore[arg-type]
                if store.path == path:
                    store._writer.exec_trace = steps

            sqlite.SQLiteStore._open = counted  # type: ignore[method-assign]
            limits.IMPORT_STEP_EVENTS = 7
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def migrated(source: Path, target: Path) -> None:
    with closing(open_store(source)) as from_, closing(open_store(target)) as to:
        migrating.migrate(from_, to, lambda *_: None)


def closed_to_all(target: Path) -> bool:
    """Whether nobody can use what is half there."""
    try:
        with holdfast.connect(target) as hf:
            return not hf.sessions.list_sessions()
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
        with holdfast.connect(target, tenant="globex") as hf:
            assert hf.admin.verify().ok
            assert hf.sessions.list_sessions()
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


def test_a_backup_and_a_restore_that_were_killed_are_repeated(source: Path, scratch: Path):
    store = VolatileStore()
    with closing(open_store(source)) as from_:
        migrating.migrate(from_, store, lambda *_: None)
    copy, part = scratch / "b.db", scratch / "b.db.part" / "state.db"
    for step in (3, 40, 90, 200):
        assert killed_at(
            step, part, lambda: migrating.backup(store, copy, open_store, lambda *_: None)
        )
        assert not copy.exists()
    migrating.backup(store, copy, open_store, lambda *_: None)
    assert kept_at(copy) == kept_at(source)
    assert not part.parent.exists()
    again = scratch / "c.db"
    for step in (1, 2, 5):
        killed_at(step, again, lambda: moving.restore(copy, again, lambda *_: None))
        if again.exists():
            assert kept_at(again) == kept_at(source)
    if not again.exists():
        moving.restore(copy, again, lambda *_: None)
    assert kept_at(again) == kept_at(source)
