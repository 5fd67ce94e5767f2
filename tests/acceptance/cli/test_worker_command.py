"""`limpet worker`, and what `status` says of its work."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.jobs import worker
from limpet.wiring.store_opener import open_store
from tests.acceptance import memory_fixtures
from tests.acceptance.cli import command_runs
from tests.acceptance.cli.command_runs import on_terminal, run

PLAIN = {"NO_COLOR": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return memory_fixtures.oslo(tmp_path, learnt=False)


def document(folder: Path, *words: str) -> Any:
    done = run(*words, "--json", cwd=folder)
    assert (done.code, done.err) == (0, ""), done
    return json.loads(done.out)


def test_once_teaches_memory(folder: Path):
    assert run("memory", "list", "ada", cwd=folder).out == ""
    steps, failures = run("worker", "--once", cwd=folder).out.split()
    assert (int(steps) > 0, failures) == (True, "0")
    assert "I am vegetarian." in run("memory", "profile", "ada", cwd=folder).out
    assert run("memory", "list", "bo", cwd=folder).out == "", "bo's session has not ended"
    again = on_terminal("worker", "--once", cwd=folder, env=PLAIN)
    assert again.code == 0 and again.out.startswith("✓ nothing is left to do now (")


def test_once_works_for_every_tenant_and_without_memory(folder: Path):
    with limpet.connect(folder / "state.db", tenant="t2") as lp:
        lp.sessions.create_session("s", user_id="cy").add_message({"role": "user", "content": "I am vegan."})
        lp.sessions.end_session("s")
    told = document(folder, "worker", "--once", "--no-memory")
    assert {one["tenant"] for one in told["tasks"]} == {"default", "t2"}
    assert "offload" not in {one["task"] for one in told["tasks"]}
    assert run("memory", "list", "cy", "--tenant", "t2", cwd=folder).out == ""
    told = document(folder, "worker", "--once")
    assert told["failures"] == 0 and {one["holder"] for one in told["tasks"]} == {None}
    assert "vegan" in run("memory", "list", "cy", "--tenant", "t2", cwd=folder).out


def test_once_works_for_the_tenant_that_is_named(folder: Path):
    with limpet.connect(folder / "state.db", tenant="t2") as lp:
        lp.sessions.create_session("s", user_id="cy")
    for tenant in ("t2", "default"):
        told = document(folder, "worker", "--once", "--tenant", tenant)
        assert {one["tenant"] for one in told["tasks"]} == {tenant}
        assert bool(run("memory", "list", "ada", cwd=folder).out) == (tenant == "default")


def test_once_says_who_has_the_work(folder: Path):
    names = {one["task"] for one in document(folder, "worker", "--status")["tasks"]}
    store = open_store(folder / "state.db")
    try:
        other = worker.WorkerLeases(store, "other-1", now_us=lambda: time.time_ns() // 1000)
        assert all(other.take("default", name) for name in names)
    finally:
        store.close()
    done = on_terminal("worker", "--once", cwd=folder, env=PLAIN)
    assert done.code == 0 and "nothing is left" not in done.out
    assert "(0 steps done): held by other-1 until 20" in done.err
    piped = run("worker", "--once", cwd=folder)
    assert piped.out == "0\t0\n" and "held by other-1" in piped.err
    assert json.loads(run("worker", "--once", "--json", cwd=folder).out)["held"] > 0


def test_a_session_that_was_touched_since_stays_open(folder: Path):
    assert run("worker", "--once", "--idle", "9999w", cwd=folder).code == 0
    with limpet.connect(folder / "state.db") as lp:
        assert lp.sessions.get_session("visit").status == "active"


def test_how_far_it_is_has_three_faces(folder: Path):
    told = document(folder, "worker", "--status")["tasks"]
    lags = {one["task"]: one["told"].get("lag") for one in told}
    assert lags["archive"] == lags["offload"] == 8
    shown = on_terminal("worker", "--status", cwd=folder, env=PLAIN).out
    assert "TENANT   TASK     HELD BY  FAILED  STATE" in shown
    assert shown.count("8 events behind") == 2
    assert run("worker", "--once", cwd=folder).code == 0
    rows = [line.split("\t") for line in run("worker", "--status", cwd=folder).out.splitlines()]
    assert {(row[0], row[1], row[2], row[3]) for row in rows} >= {
        ("default", "archive", "", "0"),
        ("default", "offload", "", "0"),
    }
    assert any("lag 0" in row[5] for row in rows)
    shown = on_terminal("worker", "--status", cwd=folder, env=PLAIN).out
    assert shown.count("up to date") == 2 and "behind" not in shown


def test_status_says_how_far_behind_it_is(folder: Path):
    (folder / "state.db-memory").unlink(missing_ok=True)
    assert "behind" not in document(folder, "status")
    assert "behind" not in on_terminal("status", cwd=folder, env=PLAIN).out
    assert not (folder / "state.db-memory").exists(), "looking has made one"
    run("search", "oslo", "--user", "ada", cwd=folder)
    assert document(folder, "status")["behind"] == {"default": {"archive": 0, "memory": 8, "waiting": 0, "given_up": 0}}
    shown = on_terminal("status", cwd=folder, env=PLAIN).out
    assert "archive 0 events · memory 8 events" in shown
    assert "behind.default.memory\t8\n" in run("status", cwd=folder).out
    run("worker", "--once", cwd=folder)
    lines = on_terminal("status", cwd=folder, env=PLAIN).out.splitlines()
    assert ["behind", "nothing"] in [line.split() for line in lines]


def test_status_of_a_damaged_shelf_is_still_told(folder: Path):
    run("worker", "--once", cwd=folder)
    (folder / "state.db-memory").write_bytes(b"no database at all" * 400)
    done = run("status", cwd=folder)
    assert done.code == 0 and "durability\tpower-loss" in done.out, done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_works_until_it_is_told_to_stop(folder: Path, number: signal.Signals):
    worker = subprocess.Popen(
        [*command_runs.LIMPET, "worker"],
        cwd=folder, env=command_runs.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert worker.stderr is not None
        assert "works on state.db; ^C ends it." in worker.stderr.readline()
        with limpet.connect(folder / "state.db") as lp:
            news = lp.events.watch(0, timeout_s=60)
            assert any(fact.kind == "session.offloaded" for fact in news), "nothing was learnt"
        worker.send_signal(number)
        out, err = worker.communicate(timeout=300)
    finally:
        worker.kill()
    assert (worker.returncode, out) == (0, "")
    assert err == "Stopped. The next worker continues the work.\n"
    tasks = document(folder, "worker", "--status")["tasks"]
    assert {one["holder"] for one in tasks} == {None}
    assert "vegetarian" in run("memory", "list", "ada", cwd=folder).out


@pytest.mark.parametrize("face", [(), ("--json",)])
def test_what_fails_is_told_with_what_it_is_about(folder: Path, face: tuple[str, ...]):
    (folder / "state.db-memory").unlink(missing_ok=True)
    (folder / "state.db-memory").mkdir()
    done = run("worker", "--once", *face, cwd=folder)
    assert done.code == 1 and done.out, done
    assert "task failed: task archive, tenant default, error unavailable, failures 1\n" in done.err
    assert "task failed: task offload, tenant default, error unavailable, failures 1\n" in done.err
    assert "\nTraceback" not in done.err
    quiet = run("worker", "--once", "-q", *face, cwd=folder)
    assert quiet.err == ""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--idle", "5"), 2, "--idle 30m, --idle 24h, or --idle 7d"),
        (("--idle", "0h"), 2, "not a duration"),
        (("--idle", "soon", "--once"), 2, "'soon' is not a duration"),
        (("--once", "--url", "none.db"), 3, "no store at none.db"),
        (("--once", "--url", "volatile:"), 2, "volatile: is a store in the memory"),
        (("--status", "--url", "none.db"), 3, "no store at none.db"),
        (("--once", "--provider", "acme"), 2, "acme"),
        (("--once", "--model", "m"), 2, "OPENAI_API_KEY"),
        (("--once", "--model", "m", "--provider", "anthropic"), 2, "ANTHROPIC_API_KEY"),
    ],
)
def test_errors_say_what_to_do(folder: Path, words: tuple[str, ...], code: int, told: str):
    keys = {"OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": ""}
    done = run("worker", *words, cwd=folder, env=keys)
    assert (done.code, done.out) == (code, "") and told in done.err, done
    assert not (folder / "none.db").exists()
