"""The memory's file is lost, damaged, older, or of another store: what is known comes back from the log, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.engine.worker import Worker
from tests.acceptance.scenes import engine_of
from tests.acceptance.whole import beside, has, known, opened, said, worked


def lived(hf: Holdfast) -> None:
    """Have two users of two tenants say who they are, in sessions that ended in each way there is."""
    said(hf, "one", "ada", "I live in Oslo.", "I am allergic to peanuts.")
    said(hf, "two", "ada", "I moved to Bergen.", end=False)
    hf.sessions.reset_session("two")
    hf.sessions.add_messages("two", [{"role": "user", "content": "My name is Ada."}])
    hf.sessions.end_session("two")
    said(hf, "three", "bob", "I live in Rome.")
    source = hf.sessions.create_session("four", user_id="bob")
    source.add_message({"role": "user", "content": "I work as a baker."})
    following = hf.sessions.create_continuation_session(source)
    following.add_message({"role": "user", "content": "I prefer tea."})
    hf.sessions.end_session(following.id)


def all_known(hf: Holdfast) -> dict[str, tuple[list[str], str, set[int]]]:
    return {
        user: (
            known(hf, user),
            hf.memory.profile(user).text,
            {hit.position for hit in hf.archive.search("I live work tea", user_id=user)},
        )
        for user in ("ada", "bob")
    }


@pytest.fixture
def path(fast_dir: Path) -> Path:
    return fast_dir / "state.db"


@pytest.fixture
def before(path: Path) -> dict[str, tuple[list[str], str, set[int]]]:
    with opened(path, "globex") as hf:
        lived(hf)
    with opened(path) as hf:
        lived(hf)
        worked(hf)
        found = all_known(hf)
    assert "Oslo" in str(found["ada"]) and "baker" in str(found["bob"])
    return found


def test_a_lost_one_is_learnt_again(path: Path, before: object):
    for file in beside(path):
        file.unlink()
    with opened(path) as hf, opened(path, "globex") as other:
        assert known(hf, "ada") == []
        worked(hf)
        assert all_known(hf) == before
        assert known(other, "ada") == known(hf, "ada")
        events = sum(1 for _ in hf.events.feed())
        worked(hf)
        assert sum(1 for _ in hf.events.feed()) == events
        assert hf.memory.queue() == []


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_damaged_one_is_learnt_again(path: Path, before: object, meanwhile: bool):
    hf = opened(path)
    hf._opened.shelf().scrub()
    if not meanwhile:
        hf.close()
    file = beside(path)[0]
    with file.open("r+b") as pages:
        for at in range(4_096, file.stat().st_size, 4_096):
            pages.seek(at + 200)
            pages.write(b"\xaa" * 60)
    if not meanwhile:
        hf = opened(path)
    else:
        hf._opened.shelf()._readers.renew()  # pyright: ignore[reportAttributeAccessIssue]
    hf.memory.profile("ada")
    worked(hf)
    assert all_known(hf) == before
    hf.close()


def test_an_older_one_learns_what_came_since(path: Path, before: object, tmp_path: Path):
    old = {file.name: file.read_bytes() for file in beside(path)}
    with opened(path) as hf:
        said(hf, "five", "ada", "I speak Norwegian.", "I prefer window seats.")
        worked(hf)
        now = all_known(hf)
        assert now != before
    for file in beside(path):
        file.unlink()
    for name, data in old.items():
        (path.parent / name).write_bytes(data)
    with opened(path) as hf:
        worked(hf)
        assert all_known(hf) == now


def test_what_was_learnt_of_a_log_that_is_gone_is_gone_with_it(
    path: Path, before: object, tmp_path: Path
):
    with opened(path) as hf:
        hf.admin.backup(tmp_path / "old.db")
        said(hf, "five", "ada", "I speak Norwegian.")
        worked(hf)
        assert "Norwegian" in str(known(hf, "ada"))
    for end in ("", "-wal", "-shm", "-anchor"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "old.db", path)
    with opened(path) as hf:
        said(hf, "five", "ada", "I speak Danish.")
        worked(hf)
        assert "Norwegian" not in str(known(hf, "ada"))
        assert "Danish" in str(known(hf, "ada"))
        hf.admin.erase(session_id="five")
        worked(hf)
        assert all_known(hf) == before


def test_what_was_deleted_is_not_learnt_again(path: Path, before: object):
    with opened(path) as hf:
        said(hf, "five", "ada", "I speak Norwegian.")
        worked(hf)
        hf.sessions.delete_session("five")
        said(hf, "five", "ada", "I speak Danish.")
    for file in beside(path):
        file.unlink()
    with opened(path) as hf:
        # Before anybody has erased what was deleted.
        tasks = [task for task in hf._background.tasks() if task.name == "offload"]
        Worker(engine_of(hf), tasks).run_once()
        assert "Norwegian" not in str(known(hf, "ada"))
        assert "Danish" in str(known(hf, "ada"))
        worked(hf)
        assert "Norwegian" not in str(known(hf, "ada"))


def test_of_one_id_that_was_used_twice_only_what_was_deleted_is_forgotten(path: Path):
    with opened(path) as hf:
        said(hf, "trip", "ada", "I speak Norwegian.")
        worked(hf)
        hf.sessions.delete_session("trip")
        said(hf, "trip", "ada", "I prefer tea.")
        worked(hf)
        hf.admin.erase()
        worked(hf)
        assert "Norwegian" not in str(known(hf, "ada"))
        assert "tea" in str(known(hf, "ada"))
        assert "Norwegian" not in str(hf.archive.search("Norwegian", user_id="ada"))
        assert len(hf.archive.search("tea", user_id="ada")) == 1
    assert has(path.parent, "norwegian") == set()


def test_another_user_who_has_the_id_now_keeps_everything(path: Path):
    with opened(path) as hf:
        said(hf, "trip", "ada", "I speak Norwegian.")
        worked(hf)
        hf.sessions.delete_session("trip")
        said(hf, "trip", "bob", "I prefer tea.")
        worked(hf)
        hf.admin.erase()
        assert known(hf, "ada") == []
        assert "tea" in str(known(hf, "bob"))
        assert len(hf.archive.search("tea", user_id="bob")) == 1
    assert has(path.parent, "norwegian") == set()
