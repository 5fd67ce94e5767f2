"""`limpet suspensions`: what waits for a person's word, and giving it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import limpet
from tests.acceptance import frame_fixtures
from tests.acceptance.cli.command_runs import Done, on_terminal, run

PLAIN = {"NO_COLOR": "1", "TZ": "UTC"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    frame_fixtures.trip(tmp_path)
    return tmp_path


def say(folder: Path, *words: str) -> Done:
    return run("approvals", *words, "--yes", "--by", "ola", cwd=folder)


def test_what_waits(folder: Path):
    (row,) = run("suspensions", "list", cwd=folder).out.splitlines()
    id_, status, frame, actor, session, purpose, *_, reason = row.split("\t")
    assert (status, frame, actor, session) == ("waiting", "frm_8M", "planner", "ses_1")
    assert (purpose, reason) == ("book_flight", "booking costs money")
    assert run("approvals", "list", "--actor", "planner", cwd=folder).out.startswith(id_)
    assert run("approvals", "list", "--actor", "nobody", cwd=folder).out == ""
    shown = on_terminal("approvals", "show", "@last", cwd=folder, env=PLAIN, columns=80).out
    lines = shown.splitlines()
    head = r"book_flight   destructive · planner for ada · waits \d+ s · expires (\S+ )?\d\d:\d\d UTC"
    assert re.fullmatch(head, lines[0])
    assert lines[1:4] == ['  flight  "SK 4718"', '  seat    "12A"', "  price   214.0"]
    short = re.findall(r"sus_…\w+", on_terminal("approvals", "list", cwd=folder, env=PLAIN).out)
    assert json.loads(run("approvals", "show", *short, "--json", cwd=folder).out)["id"] == id_


def test_a_word_is_given_once(folder: Path):
    id_ = run("suspensions", "list", cwd=folder).out.split("\t")[0]
    done = on_terminal(
        "approvals", "approve", id_, "--yes", "--reason", "ok, early one", cwd=folder, columns=80,
        env=PLAIN | {"USER": "ola"},
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    (event,) = re.fullmatch(rf"approved {id_} as ola \(event (\d+)\)\. frm_8M is active again\.\n", done.out).groups()  # pyright: ignore[reportOptionalMemberAccess]
    with limpet.connect(folder / "state.db") as lp:
        assert next(lp.events.feed(int(event) - 1)).kind == "frame.resumed"
        resumption = lp.index.get_frame("frm_8M").resumption
        assert resumption is not None
        assert (resumption.by, resumption.reason) == ("ola", "ok, early one")
    for word in ("approve", "reject", "deny", "revoke"):
        again = say(folder, word, id_)
        assert (again.code, again.out) == (5, "")
        assert re.match(rf"error: {id_} was already approved by ola at \S+Z\.\n", again.err)
        assert f"approvals show {id_}" in again.err
    problem = json.loads(say(folder, "edit", id_, "--payload", "1", "--json").err)
    assert (problem["code"], problem["facts"]["by"]) == ("already_decided", "ola")
    assert run("approvals", "list", cwd=folder).out == ""
    assert run("approvals", "list", "--all", cwd=folder).out.split("\t")[:2] == [id_, "approved"]
    shown = on_terminal("approvals", "show", id_, cwd=folder, env=PLAIN, columns=80)
    assert "by ola: ok, early one" in shown.out


@pytest.mark.parametrize("word", ["reject", "deny", "edit", "revoke"])
def test_other_words(folder: Path, word: str):
    more = ["--payload", '{"seat": "14C"}'] if word == "edit" else []
    told = json.loads(say(folder, word, "@last", *more, "--json").out)
    past = {"deny": "rejected", "edit": "edited", "revoke": "revoked"}.get(word, "rejected")
    assert (told["decision"], told["by"]) == (past, "ola")
    assert told["frame_status"] == ("suspended" if word == "revoke" else "active")
    shown = json.loads(run("approvals", "show", "@last", "--json", cwd=folder).out)
    assert shown["status"] == past
    with limpet.connect(folder / "state.db") as lp:
        resumption = lp.index.get_frame("frm_8M").resumption
    if word == "edit":
        assert resumption is not None
        assert resumption.payload == {"seat": "14C"} == shown["payload"]
    assert say(folder, "revoke", "@last").code == 5


def test_nobody_is_asked_in_a_pipe(folder: Path):
    for more in ([], ["--json"]):
        done = run("approvals", "approve", "@last", *more, cwd=folder)
        assert (done.code, done.out) == (2, "")
        assert "approve book_flight, destructive for planner in state.db?" in done.err
        assert "--yes" in done.err
    assert json.loads(run("approvals", "show", "@last", "--json", cwd=folder).out)["status"] == "waiting"


def test_mistakes(folder: Path):
    assert say(folder, "edit", "@last").code == 2
    assert say(folder, "edit", "@last", "--payload", "{seat").code == 2
    assert say(folder, "approve", "@last", "--payload", "1").code == 2
    for words in (["show", "nothing"], ["approve", "nothing", "--yes"], ["show", "@last~7"]):
        done = run("suspensions", *words, cwd=folder)
        assert (done.code, done.out) == (3, "")
        assert "suspensions list --all" in done.err


def test_a_late_word(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        frame = lp.index.push_frame(limpet.Scope("planner"), goal="late", budget=10)
        lp.index.suspend_frame(frame.frame_id, reason="ask", expires_in_s=0.001)
    done = say(tmp_path, "approve", "@last")
    assert done.code == 1
    assert "expired" in done.err
    assert json.loads(run("approvals", "show", "@last", "--json", cwd=tmp_path).out)["status"] == "expired"


def test_a_closed_frame_waits_for_nothing(folder: Path):
    assert run("frames", "cancel", "frm_8M", "--cascade", "--yes", cwd=folder).code == 0
    done = say(folder, "approve", "@last")
    assert done.code == 5
    assert "was already closed" in done.err


def test_no_token_is_ever_shown(tmp_path: Path):
    """Neither the right to resume nor what is kept of it leaves the store through a command."""
    secret = frame_fixtures.trip(tmp_path).partition(".")[2]
    with limpet.connect(tmp_path / "state.db") as lp:
        standing = lp.index.get_frame("frm_8M").suspension
    assert standing is not None
    assert standing.token_hash
    for words in (
        "suspensions list --all", "suspensions show @last", "frames show frm_8M", "frames tree planner",
        "frames pending planner", "frames list", "events tail",
    ):  # fmt: skip
        for more in ([], ["--json"]):
            done = run(*words.split(), *more, cwd=tmp_path)
            assert done.code == 0
            printed = done.out + done.err
            assert "frm_8M" in printed
            assert secret not in printed
            assert standing.token_hash not in printed
            assert "token_hash" not in printed
