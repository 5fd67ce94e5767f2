"""`holdfast migrate`, `restore` and `backup`, as a person or a script meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from tests.acceptance import whole
from tests.acceptance.cli_runs import run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with holdfast.connect(path) as hf:
        whole.said(hf, "s", "ada", "words")
    return path


def test_a_store_is_migrated_and_says_so(store: Path, tmp_path: Path):
    done = run("migrate", "a.db", "b.db", "--json", cwd=tmp_path)
    told = json.loads(done.out)
    assert done.code == 0
    assert (told["source"], told["target"], told["verified"]) == ("a.db", "b.db", True)
    assert told["events"] == told["copied"] == 3
    piped = run("migrate", "a.db", "b.db", "--no-verify", cwd=tmp_path)
    assert piped.out == "b.db\t1\t3\t0\t0\n"
    assert "status b.db" in piped.err
    with holdfast.connect(tmp_path / "b.db") as hf:
        assert hf.sessions.get_session("s").message_count == 1


def test_what_can_not_be_migrated_is_refused(store: Path, tmp_path: Path):
    assert run("migrate", "none.db", "b.db", cwd=tmp_path).code == 3
    assert not (tmp_path / "b.db").exists()
    assert run("migrate", "a.db", "a.db", cwd=tmp_path).code == 2
    assert run("migrate", "a.db", "volatile:", cwd=tmp_path).code == 2
    assert run("migrate", "a.db", "strange://x", cwd=tmp_path).code == 2
    with holdfast.connect(tmp_path / "b.db") as hf:
        whole.said(hf, "other", "ada", "words")
    refused = run("migrate", "a.db", "b.db", cwd=tmp_path)
    assert refused.code == 5
    assert "other events of tenant 'default'" in refused.err


@pytest.mark.parametrize("goal", ["files:bk", "redis://localhost", "redis:bk", "sqlite:///bk.db"])
def test_a_backup_is_a_file(store: Path, tmp_path: Path, goal: str):
    before = set(tmp_path.iterdir())
    done = run("backup", goal, "--url", "a.db", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "holdfast migrate" in done.err or "./redis:" in done.err
    assert set(tmp_path.iterdir()) == before


def test_a_backup_comes_back(store: Path, tmp_path: Path):
    assert run("backup", "copy.db", "--url", "a.db", cwd=tmp_path).code == 0
    done = run("restore", "copy.db", "new.db", "--json", cwd=tmp_path)
    assert (done.code, json.loads(done.out)["events"]) == (0, 3)
    again = run("restore", "copy.db", "new.db", cwd=tmp_path)
    assert again.code == 2
    assert "exists already" in again.err
    assert run("restore", "none.db", "newer.db", cwd=tmp_path).code == 3
    assert run("verify", "new.db", cwd=tmp_path).code == 0
