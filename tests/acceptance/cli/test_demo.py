"""The demo kills for real, claims only what is so, and a broken agent makes it fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import limpet
from demo import director, keeper, logbook, script
from limpet import Scope
from tests.acceptance.cli import command_runs
from tests.acceptance.cli.command_runs import on_terminal, run
from tests.conftest import ROOT

CLAIMS = [
    "asked", "killed", "kept", "pending", "fits", "accounted", "seen", "learnt", "greeted",
    "finished", "kept_to_the_end", "once", "answered", "decided", "accounts", "whole",
]  # fmt: skip


def test_demo_in_a_pipe(tmp_path: Path):
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    done = run("demo", cwd=tmp_path, env={"TMPDIR": str(rooms)})
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert "kill -9" in done.out
    assert "13 of 13 acknowledged messages" in done.out
    assert list(rooms.iterdir()) == []
    again = run("demo", cwd=tmp_path, env={"TMPDIR": str(rooms)})
    assert same(again.out) == same(done.out)


# A path, process ids and the head of a chain of random ids are all that may differ.
DIFFERS = re.compile(r"store +/.*|process +\d+|kill -9 \d+|chain head .*|, .* free")


def same(told: str) -> str:
    return DIFFERS.sub("", told)


@pytest.mark.parametrize("ascii_", [False, True])
def test_demo_draws_what_context_draws(tmp_path: Path, ascii_: bool):
    """The bar and the sum are those of `limpet context`, of the window that the file holds."""
    env = {"NO_COLOR": "1"} | ({"LIMPET_ASCII": "1"} if ascii_ else {})
    shown = on_terminal("demo", "--fast", "--keep", "night", cwd=tmp_path, env=env, columns=80)
    assert shown.code == 0
    event = json.loads(run("context", "logbook", "--recorded", "--json", "--url", "night/state.db", cwd=tmp_path).out)[
        "windows"
    ][0]["event"]
    asked = ("context", "logbook", "--at", str(event), "--url", "night/state.db")
    drawn = on_terminal(*asked, cwd=tmp_path, env=env, columns=80).out.splitlines()
    bar = next(at for at, line in enumerate(drawn) if " / 1,200 " in line)
    (total,) = (line for line in drawn if "messages = " in line)
    for line in (*drawn[bar : bar + 2], total):
        assert line in shown.out.splitlines()
    assert ("SC" in drawn[bar]) == ascii_


def test_demo_on_a_terminal(tmp_path: Path):
    done = on_terminal("demo", "--fast", cwd=tmp_path, columns=80)
    assert done.code == 0
    assert "\x1b[" in done.out
    plain = on_terminal("demo", "--fast", cwd=tmp_path, columns=80, env={"NO_COLOR": "1"}).out
    told = [line for line in plain.splitlines() if "/" not in line]
    assert max(len(line) for line in told) <= 80


@pytest.mark.req("A-9", "C-14", "C-29")
def test_demo_tells_the_truth(tmp_path: Path):
    """What its JSON says is what the store and the files hold."""
    done = run("demo", "--json", "--keep", "night", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    assert told["ok"] is True
    assert told["killed"] == {"signal": 9, "during": "ring_bell", "strokes": 4}
    assert told["acknowledged"]["before_the_kill"] == told["acknowledged"]["found_after_it"] == 13
    assert [call["name"] for call in told["pending"]] == ["ring_bell"]
    assert told["approvals"] == 2
    assert [claim["name"] for claim in told["claims"]] == CLAIMS
    assert all(claim["held"] for claim in told["claims"])

    night = tmp_path / "night"
    assert (night / "bell.log").read_text().count("dong") == script.STROKES
    assert len(list((night / "outbox").iterdir())) == 1
    with limpet.connect(night / "state.db") as lp:
        session = lp.sessions.get_session(keeper.SESSION)
        (counted,) = lp.index.list_frames(Scope("storekeeper"), open_only=False)
        helpers = lp.sessions.get_session(str(counted.scope.session_id))
        assert session.message_count + len(helpers) == told["acknowledged"]["in_all"] == 23
        watch = lp.index.get_frame(keeper.WORKS[0].id)
        assert counted.parent_frame_id == watch.frame_id
        assert watch.budget.used == watch.spent + counted.budget.used
        assert [one.decided_by for one in lp.index.list_suspensions(waiting=False)] == [director.HARBOUR] * 2
        assert session.pending_calls() == []
        unknown = [r for m in session.messages for r in m.tool_results if r.is_error]
        assert len(unknown) == 1
        book = lp.sessions.get_session(logbook.SESSION)
        (row,) = book.recorded_windows()
        assert told["window"]["hash"] == row.digest == book.window_of(row.message_id).digest
        assert book.messages[row.number - 1].content == logbook.ANSWER
        assert len(book.messages) > row.number > row.messages
    assert run("verify", "night/state.db", cwd=tmp_path).code == 0


def test_demo_is_the_same_every_time(tmp_path: Path):
    def words() -> list[str]:
        run("demo", "--keep", "night", cwd=tmp_path)
        with limpet.connect(tmp_path / "night" / "state.db") as lp:
            session = lp.sessions.get_session(keeper.SESSION)
            said = [
                json.dumps([m.role, m.to_dict()["content"], [r.result for r in m.tool_results]], default=dict)
                for m in session.messages
            ]  # fmt: skip
        (tmp_path / "night").rename(tmp_path / f"night-{len(list(tmp_path.iterdir()))}")
        return said

    assert words() == words()


def test_demo_overwrites_nothing(tmp_path: Path):
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "diary.txt").write_text("mine")
    done = run("demo", "--keep", "night", cwd=tmp_path)
    assert (done.code, done.out) == (8, "")
    assert [p.name for p in (tmp_path / "night").iterdir()] == ["diary.txt"]


def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path):
    process = subprocess.Popen(
        [*command_runs.LIMPET, "demo"], cwd=tmp_path, env=command_runs.environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("  process"))
    child = int(line.split()[1].rstrip(","))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "interrupted.\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


BEFORE_COMMIT = """
    ring = tools.Station.ring_bell
    def rings(self, strokes, *, key):
        '''Acknowledges the result before it is there.'''
        said = limpet.Message("tool", tool_results=[limpet.ToolCallResult("early", "rang")]).to_dict()
        keeper.tell("acknowledged", {"session": keeper.SESSION, "position": 7, "message": said})
        return ring(self, strokes, key=key)
    tools.Station.ring_bell = rings
"""
TELEGRAM_TWICE = """
    send = tools.Station.send_telegram
    def twice(self, to, text, *, key):
        send(self, to, text, key=f"{key}-again")
        return send(self, to, text, key=key)
    tools.Station.send_telegram = twice
"""
RINGS_AGAIN = """
    def comes_back(self, work, session):
        self.index.resume_actor(limpet.Scope(self.actor, session.id))
    loop.Agent._come_back = comes_back
"""
ASKS_NOBODY = """
    mine = tools.keepers
    def careless(station):
        kind = limpet.frames.ToolEffect.IDEMPOTENT
        return {name: tool._replace(effect=kind) for name, tool in mine(station).items()}
    tools.keepers = careless
"""
SAYS_YES_ITSELF = """
    asked = parts.AwaitingDecision.__init__
    def asks(self, suspension):
        asked(self, suspension)
        lp.index.decide_suspension(suspension.suspension_id, "approve", by="me")
    parts.AwaitingDecision.__init__ = asks
    made = keeper.keeper
    def keeps(engine, *args, **more):
        global lp
        lp = engine
        return made(engine, *args, **more)
    keeper.keeper = keeps
"""
ENDS_BY_ITSELF = """
    tell = keeper.tell
    keeper.tell = lambda event, facts: sys.exit(0) if event == "jammed" else tell(event, facts)
"""
NEVER_SETTLES = """
    loop.Agent._come_back = lambda self, work, session: None
"""
CHARGES_TWICE = """
    charge = loop.Agent._charge
    def charges(self, work, turn):
        charge(self, work, turn)
        self.index.record_usage(work.id, turn.metadata["tokens"])
    loop.Agent._charge = charges
"""
OTHER_WORDS = """
    add = limpet.Session.add_message
    limpet.Session.add_message = lambda self, message, **more: add(
        self, msgspec.structs.replace(message, content="forgotten") if message.role == "user" else message, **more
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "caught"),
    [
        pytest.param(BEFORE_COMMIT, {"kept", "kept_to_the_end"}, id="acks before commit"),
        pytest.param(TELEGRAM_TWICE, {"once"}, id="telegram twice"),
        pytest.param(RINGS_AGAIN, {"once"}, id="rings again"),
        pytest.param(ASKS_NOBODY, {"asked", "decided"}, id="asks nobody"),
        pytest.param(SAYS_YES_ITSELF, {"asked", "decided"}, id="says yes itself"),
        pytest.param(ENDS_BY_ITSELF, {"killed"}, id="not killed"),
        pytest.param(NEVER_SETTLES, {"finished", "answered"}, id="never settles"),
        pytest.param(CHARGES_TWICE, {"accounts"}, id="charges twice"),
        pytest.param(OTHER_WORDS, {"finished"}, id="other words"),
    ],
)
def test_planted_bug_is_caught(tmp_path: Path, bug: str, caught: set[str]):
    """The demo fails, and says why, when the agent or the store under it is wrong."""
    head = (
        "import sys\nimport msgspec\nimport limpet\nfrom demo import keeper, tools\n"
        "from demo.agent import loop, parts\n"
    )
    played(tmp_path, "actor", f"{head}{textwrap.dedent(bug)}\nkeeper.main()\n", caught)


NOT_PINNED = """
    logbook.DEBT_NIGHT = 0
"""
TWICE_THE_BUDGET = """
    logbook.BUDGET *= 2
"""
OTHER_BYTES = """
    sent = logbook.sent
    logbook.sent = lambda window: sent(msgspec.structs.replace(window, messages=window.messages[:-1]))
"""
NOT_RECORDED = """
    add = limpet.Session.add_messages
    limpet.Session.add_messages = lambda self, messages, window=None, **rest: add(self, messages, **rest)
"""
ALL_SHOWN = """
    logbook.NIGHTS = 5
"""
FAILS = """
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("bug", "caught"),
    [
        (NOT_PINNED, {"fits"}),
        (TWICE_THE_BUDGET, {"fits"}),
        (OTHER_BYTES, {"seen"}),
        (NOT_RECORDED, {"fits", "accounted", "seen"}),
        (ALL_SHOWN, {"accounted"}),
        (FAILS, {"fits", "accounted", "seen"}),
    ],
    ids=["not pinned", "over budget", "other bytes", "not recorded", "all shown", "fails"],
)
def test_a_wrong_logbook_is_caught(tmp_path: Path, bug: str, caught: set[str]):
    head = "import sys\nimport msgspec\nimport limpet\nfrom demo import logbook\n"
    told = played(tmp_path, "book", f"{head}{textwrap.dedent(bug)}\nlogbook.main()\n", caught)
    assert {claim["name"] for claim in told["claims"] if not claim["held"]} == caught


NEVER_ENDS = """
    limpet.SessionManager.end_session = lambda self, session_id: None
"""
SOMEBODY_ELSE = """
    relief.USER = "somebody"
"""
KNOWS_NOTHING = """
    connect = limpet.connect
    limpet.connect = lambda url, memory=None: connect(url)
"""
NO_EAR = """
    relief.greeting = lambda shown: relief.STRANGER
"""


@pytest.mark.req("A-17")
@pytest.mark.parametrize(
    ("bug", "caught"),
    [
        (NEVER_ENDS, {"learnt", "greeted"}),
        (SOMEBODY_ELSE, {"learnt"}),
        (KNOWS_NOTHING, {"greeted"}),
        (NO_EAR, {"greeted"}),
    ],
    ids=["never ends", "somebody else", "knows nothing", "no ear"],
)
def test_a_relief_that_is_not_known_is_caught(tmp_path: Path, bug: str, caught: set[str]):
    head = "import limpet\nfrom demo import relief\n"
    told = played(tmp_path, "relief", f"{head}{textwrap.dedent(bug)}\nrelief.main()\n", caught)
    assert {claim["name"] for claim in told["claims"] if not claim["held"]} == caught


def played(folder: Path, part: str, program: str, caught: set[str]) -> dict[str, Any]:
    """Play the demo with another program for a part of it, which must make it fail."""
    actor = folder / "actor.py"
    actor.write_text(program)
    director = folder / "director.py"
    director.write_text(
        "import sys\n"
        "from demo import command\n"
        "from limpet.cli.options import OutputOptions\n"
        f"actor = (sys.executable, {str(actor)!r})\n"
        f"printing = OutputOptions(json=True)\n"
        f"sys.exit(command.run(keep=None, fast=True, printing=printing, {part}=actor))\n"
    )
    env = {"PYTHONPATH": os.pathsep.join((str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")))}
    done = run(cwd=folder, env=env, program=(sys.executable, str(director)))
    assert done.code == 1
    told: dict[str, Any] = json.loads(done.out)
    assert told["ok"] is False
    assert caught <= {claim["name"] for claim in told["claims"] if not claim["held"]}
    return told
