"""`limpet frames`: trees with their tokens, what waits, and settling it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

import limpet
from tests.acceptance import frame_fixtures
from tests.acceptance.cli import command_runs
from tests.acceptance.cli.command_runs import on_terminal, run

PLAIN = {"NO_COLOR": "1", "TZ": "UTC"}
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

TREE = """\
frame                       status     budget                  own      Σ   free
frm_8K  plan the trip       waiting    █████▒▒░░░░░░░······  2,000  3,810  2,300
├─ frm_8M  compare flights  suspended  ████████████████····  1,500           300
└─ frm_8N  check visa rul…  active     █████▒▒▒▒···········    310           690
█ used  ▒ reserved  ░ lent to children  · free
8,000 = 2,000 used + 700 reserved + 3,000 lent + 2,300 free   conserved ✓
! frm_8M waits for approval (book_flight, destructive), expires in 41 min
"""

TROUBLE = """\
frame                       status     budget                  own    sum   free
frm_8K  plan the trip       waiting    ######==+++++++.....  2,000  5,160  1,850
|- frm_8M  compare flights  suspended  ################....  1,500           300
|- frm_8N  check visa r...  active     #############===!!!!  1,210          -210
`- frm_8P  ask the embassy  failed     #############!!!!!!!    450          -150
# used  = reserved  + lent to children  ! overdrawn  . free
8,000 = 2,450 used (450 by children) + 700 reserved + 3,000 lent + 1,850 free
conserved ok
! frm_8K has a failed child that was not handled: frm_8P
! frm_8M waits for approval (book_flight, destructive), expires in 41 min
! frm_8N does not know the outcome of send_mail (destructive): resolve it
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame_fixtures.trip(tmp_path)
    return tmp_path


def positions(folder: Path) -> int:
    with limpet.connect(folder / "state.db") as lp:
        return sum(1 for _ in lp.events.feed())


def test_the_tree_as_a_person_sees_it(folder: Path):
    for reference in ("planner", "frm_8N", "@last", "@last~2"):
        done = on_terminal("frames", "tree", reference, cwd=folder, env=PLAIN, columns=80)
        assert (done.code, done.out) == (0, TREE)
    frame_fixtures.trouble(folder)
    plain = PLAIN | {"LIMPET_ASCII": "1"}
    done = on_terminal("frames", "tree", "planner", "--all", cwd=folder, env=plain, columns=80)
    assert (done.code, done.out) == (0, TROUBLE)
    narrow = on_terminal("frames", "tree", "planner", cwd=folder, env=PLAIN, columns=56)
    assert "█████▒" not in narrow.out
    assert max(map(len, narrow.out.splitlines())) <= 56


def test_the_tree_for_programs(folder: Path):
    (tree,) = json.loads(run("frames", "tree", "planner", "--json", cwd=folder).out)["trees"]
    assert tree["conserved"]
    root, *_ = tree["frames"]
    of = root["budget"]
    assert of["total"] == of["used"] + of["reserved"] + of["lent"] + of["free"] - of["overdrawn"]
    assert (of["own"], of["with_descendants"]) == (2_000, 3_810)
    (waits,) = tree["waits"]
    assert (waits["kind"], waits["frame"]) == ("approval", "frm_8M")
    rows = [line.split("\t") for line in run("frames", "tree", "frm_8K", cwd=folder).out.splitlines()]
    assert [row[1] for row in rows] == ["frm_8K", "frm_8M", "frm_8N"]
    assert {len(row) for row in rows} == {14}


def test_the_list_and_its_conditions(folder: Path):
    frame_fixtures.trouble(folder)
    with limpet.connect(folder / "state.db") as lp:
        long = lp.index.push_frame(limpet.Scope("other"), goal="else", budget=10).frame_id
    names = lambda *words: [  # noqa: E731 - a short name for a long call
        line.split("\t")[0] for line in run("frames", "list", *words, cwd=folder).out.splitlines()
    ]
    assert names() == [long, "frm_8N", "frm_8M", "frm_8K"]
    assert names("--actor", "planner", "--limit", "1") == ["frm_8N"]
    assert names("--session", "ses") == ["frm_8N", "frm_8M", "frm_8K"]
    assert "frm_8P" in names("--all", "--session", "@last")
    assert names("--actor", "nobody") == names("--session", "none") == []
    cut = run("frames", "list", "--limit", "1", cwd=folder)
    assert "frames list --limit 4" in cut.err
    shown = on_terminal("frames", "list", cwd=folder, env=PLAIN, columns=80).out
    (short,) = re.findall(r"^(frm_…\w+)", shown, re.MULTILINE)
    # The newest is a root: frames below others are no newer for that.
    for reference in (short, short.replace("…", "..."), long[:-2], "@last"):
        assert json.loads(run("frames", "show", reference, "--json", cwd=folder).out)["id"] == long
    told = json.loads(run("frames", "list", "--json", "--all", cwd=folder).out)
    assert (told["count"], len(told["frames"])) == (5, 5)


def test_one_frame(folder: Path):
    told = json.loads(run("frames", "show", "frm_8M", "--json", cwd=folder).out)
    assert told["limits"] == {
        "max_context_tokens": 4_000, "max_tool_calls": 10, "max_subframe_depth": 3, "timeout_ms": None,
    }  # fmt: skip
    assert told["tools"][0]["status"] == "intent"
    assert told["suspension"]["effect"] == "destructive"
    shown = on_terminal("frames", "show", "frm_8M", cwd=folder, env=PLAIN, columns=80).out
    assert "booking costs money" in shown
    assert "1 of 10 tool calls" in shown
    rows = dict(line.split("\t", 1) for line in run("frames", "show", "frm_8M", cwd=folder).out.splitlines())
    assert rows["budget.free"] == "300"
    with limpet.connect(folder / "state.db") as lp:
        for id_, priority in (("low", "low"), ("pinned", "low"), ("high", "high")):
            handle = limpet.ContextHandle(
                handle_id=id_, handle_type=limpet.frames.HandleType.URL, priority=limpet.ContextPriority[priority.upper()], pinned=id_ == "pinned",
            )  # fmt: skip
            lp.index.add_context_handle("frm_8N", handle)
    told = json.loads(run("frames", "show", "frm_8N", "--json", cwd=folder).out)
    assert [handle["id"] for handle in told["handles"]] == ["pinned", "high", "low"]


def test_pending_work_is_looked_at_and_not_resumed(folder: Path):
    with limpet.connect(folder / "state.db") as lp:
        lp.index.begin_tool("frm_8N", "send_mail", tool_id="tol_mail")
    before = positions(folder)
    told = json.loads(run("frames", "pending", "planner", "--json", cwd=folder).out)
    kinds = [one["type"] for one in told["pending"]]
    assert kinds == ["waiting_for_subcall", "tool_in_progress", "waiting_for_user", "tool_in_progress"]
    assert told["pending"][1]["tool"]["status"] == "started"
    assert positions(folder) == before
    with limpet.connect(folder / "state.db") as lp:
        found = lp.index.resume_actor(limpet.Scope("planner"))
    assert [one.frame_id for one in found.pending_work] == [one["frame"] for one in told["pending"]]
    assert [frame.frame_id for frame in found.frame_stack] == told["stack"]
    nobody = run("frames", "pending", "nobody", cwd=folder)
    assert (nobody.code, nobody.out) == (0, "")
    assert run("frames", "pending", "planner", "--session", "none", cwd=folder).out == ""


def test_a_tool_of_unknown_outcome_is_settled(folder: Path):
    frame_fixtures.trouble(folder)
    assert run("frames", "resolve", "frm_8N", "send_mail", "result", cwd=folder).code == 2
    assert run("frames", "resolve", "frm_8N", "send_mail", "retry", "--output", "1", cwd=folder).code == 2
    assert run("frames", "resolve", "frm_8N", "nothing", "retry", cwd=folder).code == 3
    told = json.loads(run("frames", "resolve", "frm_8N", "tol_m", "retry", "--json", cwd=folder).out)
    with limpet.connect(folder / "state.db") as lp:
        (tool,) = lp.index.get_frame("frm_8N").tools
        assert (tool.status, tool.attempt, tool.key) == ("started", 2, told["key"])
        assert next(lp.events.feed(told["event"] - 1)).kind == "frame.updated"
    done = run("frames", "resolve", "frm_8N", "send_mail", "result", "--output", "sent", cwd=folder)
    assert done.code == 0
    assert done.out.startswith("result\tfrm_8N\ttol_mail\tsend_mail\t")
    assert run("frames", "resolve", "frm_8N", "send_mail", "abandon", cwd=folder).code == 3


def test_cancelling(folder: Path):
    before = positions(folder)
    refused = run("frames", "cancel", "frm_8K", "--yes", cwd=folder)
    assert (refused.code, refused.out) == (1, "")
    assert "has 2 open frames below it" in refused.err
    assert "--cascade" in refused.err
    stands = run("frames", "cancel", "frm_8M", "--yes", cwd=folder)
    assert stands.code == 1
    assert "frm_8M is suspended" in stands.err
    for more in ([], ["--json"]):
        asked = run("frames", "cancel", "frm_8K", "--cascade", *more, cwd=folder)
        assert (asked.code, asked.out) == (2, "")
        assert "--yes" in asked.err
        assert "2 open frames below it in state.db" in asked.err
    assert positions(folder) == before
    done = run("frames", "cancel", "frm_8K", "--cascade", "--yes", "--reason", "over", "--json", cwd=folder)
    told = json.loads(done.out)
    assert sorted(told["cancelled"]) == ["frm_8K", "frm_8M", "frm_8N"]
    shown = json.loads(run("frames", "show", "frm_8K", "--json", cwd=folder).out)
    assert (shown["status"], shown["reason"], shown["budget"]["used"]) == ("cancelled", "over", 3_810)
    again = run("frames", "cancel", "frm_8K", "--yes", cwd=folder)
    assert again.code == 5
    assert "was cancelled at" in again.err
    (closed,) = json.loads(run("frames", "tree", "frm_8M", "--json", cwd=folder).out)["trees"]
    assert closed["conserved"]
    assert len(closed["frames"]) == 3
    nothing = run("frames", "tree", "planner", cwd=folder)
    assert (nothing.code, nothing.out) == (0, "")
    assert "planner has no open frame" in nothing.err


@pytest.mark.parametrize(("answer", "code", "status"), [("y\n", 0, "cancelled"), ("\n", 1, "active")])
def test_a_person_is_asked(folder: Path, answer: str, code: int, status: str):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command_runs.LIMPET, "frames", "cancel", "frm_8N"],
        cwd=folder, env=command_runs.environment(), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(ours, 4_096)
    assert b"cancel frm_8N (check visa rules) in state.db?" in shown
    os.write(ours, answer.encode())
    process.communicate(timeout=300)
    os.close(ours)
    assert process.returncode == code
    assert json.loads(run("frames", "show", "frm_8N", "--json", cwd=folder).out)["status"] == status


@pytest.mark.parametrize(
    "words",
    ["frames tree nobody", "frames show nobody", "frames cancel nobody --yes", "frames resolve no tool retry",
     "frames show @last~99", "frames tree frm_…zz"],
)  # fmt: skip
def test_unknown_frames(folder: Path, words: str):
    done = run(*words.split(), cwd=folder)
    assert (done.code, done.out) == (3, "")
    assert "frames list --all" in done.err
    problem = json.loads(run(*words.split(), "--json", cwd=folder).err)
    assert (problem["code"], problem["exit_code"]) == ("frame_not_found", 3)
    assert run("frames", "show", "frm_8", cwd=folder).code == 2


def test_a_store_without_frames(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        lp.sessions.create_session("one")
    for words in ("frames list", "suspensions list", "frames pending planner"):
        done = on_terminal(*words.split(), cwd=tmp_path)
        assert (done.code, done.out) == (0, "")
        assert done.err
    assert json.loads(run("frames", "list", "--json", cwd=tmp_path).out) == {"frames": [], "count": 0}
    assert "open frame" not in on_terminal("status", cwd=tmp_path, env=PLAIN).out


def test_what_a_store_holds(folder: Path):
    shown = on_terminal("status", cwd=folder, env=PLAIN, columns=80).out
    assert "1 session (1 active) · 3 open frames · 1 approval waiting" in shown
    run("suspensions", "reject", "@last", "--yes", cwd=folder)
    run("frames", "cancel", "frm_8K", "--cascade", "--yes", cwd=folder)
    shown = on_terminal("status", cwd=folder, env=PLAIN, columns=80).out
    assert "0 open frames · 0 approvals waiting" in shown


@pytest.mark.parametrize("columns", [80, 200])
def test_hostile_texts_are_harmless(tmp_path: Path, columns: int):
    id_ = frame_fixtures.hostile(tmp_path)
    for words in (
        "frames list", "frames tree planner", "frames show @last", "frames pending planner", "events tail",
        "suspensions list", f"suspensions show {id_}", f"suspensions approve {id_}", "frames cancel @last",
    ):  # fmt: skip
        done = on_terminal(*words.split(), cwd=tmp_path, env=PLAIN, columns=columns)
        assert not OBEYED.search(done.out + done.err), words
        for more in ([], ["--json"]):
            piped = run(*words.split(), *more, cwd=tmp_path)
            assert not OBEYED.search(piped.out + piped.err), words
    told = json.loads(run("suspensions", "show", id_, "--json", cwd=tmp_path).out)
    assert told["payload"] == {frame_fixtures.HOSTILE: frame_fixtures.HOSTILE}
