"""`limpet migrate`, `restore` and `backup`, as a person or a script meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import limpet
from tests.acceptance import full_store
from tests.acceptance.cli.command_runs import run
from tests.servers import valkey


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with limpet.connect(path) as lp:
        full_store.said(lp, "s", "ada", "words")
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
    with limpet.connect(tmp_path / "b.db") as lp:
        assert lp.sessions.get_session("s").message_count == 1


def test_what_can_not_be_migrated_is_refused(store: Path, tmp_path: Path):
    assert run("migrate", "none.db", "b.db", cwd=tmp_path).code == 3
    assert not (tmp_path / "b.db").exists()
    assert run("migrate", "a.db", "a.db", cwd=tmp_path).code == 2
    assert run("migrate", "a.db", "volatile:", cwd=tmp_path).code == 2
    assert run("migrate", "a.db", "strange://x", cwd=tmp_path).code == 2
    with limpet.connect(tmp_path / "b.db") as lp:
        full_store.said(lp, "other", "ada", "words")
    refused = run("migrate", "a.db", "b.db", cwd=tmp_path)
    assert refused.code == 5
    assert "other events of tenant 'default'" in refused.err
    assert "target has a log of its own" in refused.err and "Another writer" not in refused.err


@pytest.mark.parametrize("command", ["migrate", "restore"])
def test_where_no_file_can_be_the_way_out_is_told(command: str, store: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    done = run(command, "a.db", "none here/new.db", cwd=tmp_path)
    assert (done.code, f"mkdir -p '{tmp_path}/none here'" in done.err) == (2, True), done.err
    done = run(command, "a.db", "empty", cwd=tmp_path)
    assert done.code == 2 and f"files:{tmp_path}/empty" in done.err
    assert run(command, "a.db", f"files:{tmp_path}/empty", cwd=tmp_path).code == 0


def test_a_copy_that_is_cut_short_says_what_it_leaves_and_how_to_go_on(store: Path, tmp_path: Path):
    with valkey.server() as server, server.client() as client:
        client.config_set("maxmemory", "1")
        for command in ("migrate", "restore"):
            done = run(command, "a.db", server.url, cwd=tmp_path)
            assert done.code == 9 and "Nothing was changed" not in done.err, done.err
            assert "The target can't be opened until" in done.err
            assert f"limpet {command} a.db {server.url}" in done.err
        client.config_set("maxmemory", "0")
        assert run("restore", "a.db", server.url, cwd=tmp_path).code == 0


UNPRIVILEGED = """
import os, sys
from limpet.cli import main
codes = []
def both(folder):
    for words in (["backup", f"{folder}/r.db", "--url", "a.db"], ["restore", "a.db", f"{folder}/s.db"]):
        codes.append(main([*words, "--quiet"]))
both("own")  # loads all that another user could not
os.setgid(65534)
os.setuid(65534)
both("rod")
print(codes)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_of_a_folder_that_can_not_be_written_the_target_is_named(store: Path, tmp_path: Path):
    (tmp_path / "rod").mkdir(mode=0o555)
    (tmp_path / "own").mkdir()
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if "pytest" in str(folder):
            folder.chmod(0o777)
    for path in tmp_path.glob("a.db*"):
        path.chmod(0o666)
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED], cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("[0, 0, 9, 9]\n"), done.stderr
    for name in ("r", "s"):
        assert f"{tmp_path}/rod/{name}.db can't be written" in done.stderr


@pytest.mark.parametrize("goal", ["files:bk", "redis://localhost", "redis:bk", "sqlite:///bk.db"])
def test_a_backup_is_a_file(store: Path, tmp_path: Path, goal: str):
    before = set(tmp_path.iterdir())
    done = run("backup", goal, "--url", "a.db", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "limpet migrate" in done.err or "./redis:" in done.err
    assert set(tmp_path.iterdir()) == before


def test_a_backup_comes_back(store: Path, tmp_path: Path):
    assert run("backup", "copy.db", "--url", "a.db", cwd=tmp_path).code == 0
    done = run("restore", "copy.db", "new.db", "--json", cwd=tmp_path)
    assert (done.code, json.loads(done.out)["events"]) == (0, 3)
    again = run("restore", "copy.db", "new.db", cwd=tmp_path)
    assert again.code == run("backup", "copy.db", "--url", "a.db", cwd=tmp_path).code == 8
    assert "exists already" in again.err and "nothing is ever overwritten" in again.err
    assert run("restore", "none.db", "newer.db", cwd=tmp_path).code == 3
    assert run("verify", "new.db", cwd=tmp_path).code == 0
