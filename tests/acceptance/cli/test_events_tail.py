"""`limpet events tail`: the log in lines, from the end, from a position, and as it grows."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import limpet
from tests.acceptance import frame_fixtures
from tests.acceptance.cli import command_runs
from tests.acceptance.cli.command_runs import on_terminal, run
from tests.servers import postgres, valkey

PLAIN = {"NO_COLOR": "1", "TZ": "UTC"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame_fixtures.trip(tmp_path)
    return tmp_path


def tail(folder: Path, *words: str) -> list[list[str]]:
    done = run("events", "tail", *words, cwd=folder)
    assert done.code == 0
    return [line.split("\t") for line in done.out.splitlines()]


def test_lines(folder: Path):
    rows = tail(folder)
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0][2:] == ["session.created", "ses_1", "ada · Oslo"]
    assert rows[-1][2:4] == ["frame.suspended", "frm_8M"]
    assert rows[-1][4].endswith(" book_flight · booking costs money")
    shown = on_terminal("events", "tail", "--limit", "3", cwd=folder, env=PLAIN, columns=80).out
    assert max(map(len, shown.splitlines())) == 80
    assert "frame.suspended  frm_8M compare" in shown
    told = [json.loads(line) for line in run("events", "tail", "--json", cwd=folder).out.splitlines()]
    assert [one["position"] for one in told] == [int(row[0]) for row in rows]
    assert told[-1]["data"]["payload"]["seat"] == "12A"


def test_conditions(folder: Path):
    with limpet.connect(folder / "state.db") as lp:
        other = lp.sessions.create_session("other")
        other.add_messages([{"role": "user", "content": f"number {n}"} for n in range(300)])
    assert {row[3] for row in tail(folder, "--session", "other", "--limit", "5")} == {"other"}
    about = tail(folder, "--session", "ses_1", "--limit", "50")
    assert {row[3] for row in about} == {"ses_1", "frm_8K", "frm_8M", "frm_8N"}
    mine = tail(folder, "--frame", "frm_8M")
    assert {row[3] for row in mine} == {"frm_8M"}
    assert tail(folder, "--frame", "frm_8M", "--limit", "1") == mine[-1:]
    assert tail(folder, "--frame", "frm_8M", "--since", mine[0][0]) == mine[1:]
    assert len(tail(folder)) == 20
    assert len(tail(folder, "--since", "0")) == 312
    cut = run("events", "tail", "--since", "2", "--limit", "2", cwd=folder)
    assert len(cut.out.splitlines()) == 2
    assert "events tail --since 4 --limit 2" in cut.err
    assert run("events", "tail", "--frame", "nothing", cwd=folder).code == 3
    assert run("events", "tail", "--since", "-1", cwd=folder).code == 2


def sleeps(pid: int) -> None:
    """Wait until no thread of a process has run for a while."""
    quiet = 0
    while quiet < 20:
        time.sleep(0.01)
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
        quiet = quiet + 1 if set(states) == {"S"} else 0


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_following(folder: Path, more: list[str]):
    """Events are printed as they come; an interrupt says where to go on, and nothing is shown twice."""
    process = subprocess.Popen(
        [*command_runs.LIMPET, "events", "tail", "--follow", "--frame", "frm_8N", "--limit", "1", *more],
        cwd=folder, env=command_runs.environment(), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "frm_8N" in first
    with limpet.connect(folder / "state.db") as lp:
        lp.index.record_usage("frm_8N", 5)
        lp.index.record_usage("frm_8K", 5)
        last = list(lp.events.feed())[-1].position
        assert "5" in process.stdout.readline()
        lp.index.record_usage("frm_8N", 6)
        assert "6" in process.stdout.readline()
    sleeps(process.pid)  # what was printed is noted by the time that it waits for more
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, "", f"resumable: --since {last + 1}\n")
    assert tail(folder, "--since", str(last + 1)) == []


@pytest.mark.parametrize("kind", ["postgresql", "redis"])
def test_following_goes_on_when_the_server_is_back(kind: str, tmp_path: Path):
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            server = stack.enter_context(valkey.server())
            url = server.url
        else:
            server = stack.enter_context(contextlib.closing(postgres.Server()))
            url = server.url(postgres.create(server))
        with limpet.connect(url) as lp:
            lp.sessions.create_session("one")
        process = stack.enter_context(
            subprocess.Popen(
                [*command_runs.LIMPET, "events", "tail", "--follow", "--url", url],
                cwd=tmp_path, env=command_runs.environment(), text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        stack.callback(process.kill)
        assert process.stdout is not None and process.stderr is not None
        assert "one" in process.stdout.readline()
        server.stop()
        assert "Continues after position 1 when the server is back." in process.stderr.readline()
        server.start()
        with limpet.connect(url) as lp:
            lp.sessions.create_session("two")
        assert "two" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 130
        assert re.fullmatch(r"resumable: --since [12]\n", err), "nothing else was said"
