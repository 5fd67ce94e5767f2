"""The memory's file is lost, damaged, older, or of another store: what is known comes back from the log, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from limpet import Limpet
from limpet.jobs.worker import Worker
from tests.acceptance.conversation_steps import engine_of
from tests.acceptance.full_store import beside, has, known, opened, said, worked


def lived(lp: Limpet) -> None:
    """Have two users of two tenants say who they are, in sessions that ended in each way there is."""
    said(lp, "one", "ada", "I live in Oslo.", "I am allergic to peanuts.")
    said(lp, "two", "ada", "I moved to Bergen.", end=False)
    lp.sessions.reset_session("two")
    lp.sessions.add_messages("two", [{"role": "user", "content": "My name is Ada."}])
    lp.sessions.end_session("two")
    said(lp, "three", "bob", "I live in Rome.")
    source = lp.sessions.create_session("four", user_id="bob")
    source.add_message({"role": "user", "content": "I work as a baker."})
    following = lp.sessions.create_continuation_session(source)
    following.add_message({"role": "user", "content": "I prefer tea."})
    lp.sessions.end_session(following.id)


def all_known(lp: Limpet) -> dict[str, tuple[list[str], str, set[int]]]:
    return {
        user: (
            known(lp, user),
            lp.memory.profile(user).text,
            {hit.position for hit in lp.archive.search("I live work tea", user_id=user)},
        )
        for user in ("ada", "bob")
    }


@pytest.fixture
def path(fast_dir: Path) -> Path:
    return fast_dir / "state.db"


@pytest.fixture
def before(path: Path) -> dict[str, tuple[list[str], str, set[int]]]:
    with opened(path, "globex") as lp:
        lived(lp)
    with opened(path) as lp:
        lived(lp)
        worked(lp)
        found = all_known(lp)
    assert "Oslo" in str(found["ada"]) and "baker" in str(found["bob"])
    return found


def test_a_lost_one_is_learnt_again(path: Path, before: object):
    for file in beside(path):
        file.unlink()
    with opened(path) as lp, opened(path, "globex") as other:
        assert known(lp, "ada") == []
        worked(lp)
        assert all_known(lp) == before
        assert known(other, "ada") == known(lp, "ada")
        events = sum(1 for _ in lp.events.feed())
        worked(lp)
        assert sum(1 for _ in lp.events.feed()) == events
        assert lp.memory.queue() == []


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_damaged_one_is_learnt_again(path: Path, before: object, meanwhile: bool):
    lp = opened(path)
    lp._opened.index_store().scrub()
    if not meanwhile:
        lp.close()
    file = beside(path)[0]
    with file.open("r+b") as pages:
        for at in range(4_096, file.stat().st_size, 4_096):
            pages.seek(at + 200)
            pages.write(b"\xaa" * 60)
    if not meanwhile:
        lp = opened(path)
    else:
        lp._opened.index_store()._readers.renew()  # pyright: ignore[reportAttributeAccessIssue]
    lp.memory.profile("ada")
    worked(lp)
    assert all_known(lp) == before
    lp.close()


def test_an_older_one_learns_what_came_since(path: Path, before: object, tmp_path: Path):
    old = {file.name: file.read_bytes() for file in beside(path)}
    with opened(path) as lp:
        said(lp, "five", "ada", "I speak Norwegian.", "I prefer window seats.")
        worked(lp)
        now = all_known(lp)
        assert now != before
    for file in beside(path):
        file.unlink()
    for name, data in old.items():
        (path.parent / name).write_bytes(data)
    with opened(path) as lp:
        worked(lp)
        assert all_known(lp) == now


def test_what_was_learnt_of_a_log_that_is_gone_is_gone_with_it(path: Path, before: object, tmp_path: Path):
    with opened(path) as lp:
        lp.admin.backup(tmp_path / "old.db")
        said(lp, "five", "ada", "I speak Norwegian.")
        worked(lp)
        assert "Norwegian" in str(known(lp, "ada"))
    for end in ("", "-wal", "-shm", "-anchor"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "old.db", path)
    with opened(path) as lp:
        said(lp, "five", "ada", "I speak Danish.")
        worked(lp)
        assert "Norwegian" not in str(known(lp, "ada"))
        assert "Danish" in str(known(lp, "ada"))
        lp.admin.erase(session_id="five")
        worked(lp)
        assert all_known(lp) == before


def test_what_was_deleted_is_not_learnt_again(path: Path, before: object):
    with opened(path) as lp:
        said(lp, "five", "ada", "I speak Norwegian.")
        worked(lp)
        lp.sessions.delete_session("five")
        said(lp, "five", "ada", "I speak Danish.")
    for file in beside(path):
        file.unlink()
    with opened(path) as lp:
        # Before anybody has erased what was deleted.
        tasks = [task for task in lp._background.tasks() if task.name == "offload"]
        Worker(engine_of(lp), tasks).run_once()
        assert "Norwegian" not in str(known(lp, "ada"))
        assert "Danish" in str(known(lp, "ada"))
        worked(lp)
        assert "Norwegian" not in str(known(lp, "ada"))


def test_of_one_id_that_was_used_twice_only_what_was_deleted_is_forgotten(path: Path):
    with opened(path) as lp:
        said(lp, "trip", "ada", "I speak Norwegian.")
        worked(lp)
        lp.sessions.delete_session("trip")
        said(lp, "trip", "ada", "I prefer tea.")
        worked(lp)
        lp.admin.erase()
        worked(lp)
        assert "Norwegian" not in str(known(lp, "ada"))
        assert "tea" in str(known(lp, "ada"))
        assert "Norwegian" not in str(lp.archive.search("Norwegian", user_id="ada"))
        assert len(lp.archive.search("tea", user_id="ada")) == 1
    assert has(path.parent, "norwegian") == set()


def test_another_user_who_has_the_id_now_keeps_everything(path: Path):
    with opened(path) as lp:
        said(lp, "trip", "ada", "I speak Norwegian.")
        worked(lp)
        lp.sessions.delete_session("trip")
        said(lp, "trip", "bob", "I prefer tea.")
        worked(lp)
        lp.admin.erase()
        assert known(lp, "ada") == []
        assert "tea" in str(known(lp, "bob"))
        assert len(lp.archive.search("tea", user_id="bob")) == 1
    assert has(path.parent, "norwegian") == set()
