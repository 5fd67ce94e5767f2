"""`limpet context`: what a model sees, in three faces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import limpet
from limpet import Message, MessageCategory
from limpet.cli.output import share_cells
from tests.acceptance.cli.command_runs import on_terminal, run
from tests.acceptance.windows.test_window_fits import talk

ASK = ("context", "@last", "--budget", "1500", "--counter", "estimate")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.create_session("trip", system="You plan trips.", title="trip\x1b[31m")
        session.add_message(Message("user", "the map " * 30, MessageCategory.CONTEXT))
        talk(session, 60)
    return tmp_path


def test_a_person_sees_a_bar_and_the_account(folder: Path):
    done = on_terminal(*ASK, cwd=folder)
    assert done.code == 0
    assert "242 messages = " in done.out
    assert "older than what there is room for" in done.out
    assert "█" in done.out
    assert "\x1b[31m" not in done.out
    assert "why is #3 out?" in done.out


def test_a_pipe_gets_the_ledger(folder: Path):
    done = run(*ASK, cwd=folder)
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert rows[0][2:] == ["kept", rows[0][3], rows[0][3], "system", "initial system prompt"]
    assert sum(int(last) - int(first) + 1 for first, last, *_ in rows) == 242


def test_json_adds_up(folder: Path):
    told = json.loads(run(*ASK, "--json", cwd=folder).out)
    assert sum(told["by_part"].values()) == told["budget"] == 1_500
    assert told["tokens"] + told["by_part"]["free"] == 1_500
    coverage = told["coverage"]
    assert coverage["messages"] == coverage["in"] + coverage["under_summary"] + coverage["left_out"]
    assert len(told["messages"]) == coverage["in"]


def test_why_a_message_is_out_and_what_it_takes(folder: Path):
    told = run(*ASK, "--why", "40", cwd=folder).out
    assert "#40 is left out with all of" in told
    needed = json.loads(run(*ASK, "--why", "40", "--json", cwd=folder).out)["budget_needed"]
    with limpet.connect(folder / "state.db") as lp:
        session = lp.sessions.get_session("trip")
        entry = session.window(needed, counter="estimate").ledger.entry_of(40)
        assert entry is not None
        assert entry.used > 0
    assert run(*ASK, "--why", "999", cwd=folder).code == 3
    assert "pinned" not in run(*ASK, "--why", "1", cwd=folder).out


def test_another_budget_side_by_side(folder: Path):
    done = run(*ASK, "--what-if", "5000", cwd=folder)
    assert "0 removed" in done.out
    told = json.loads(run(*ASK, "--what-if", "5000", "--json", cwd=folder).out)
    assert told["messages_then"] - told["messages"] == len(told["new"]) > 0


@pytest.mark.parametrize(
    ("provider", "has"), [("openai", None), ("responses", "input"), ("anthropic", "messages"), ("gemini", "contents")]
)
def test_the_request_of_each_provider(folder: Path, provider: str, has: str | None):
    told = json.loads(run(*ASK, "--as", provider, cwd=folder).out)
    assert told[has] if has else told[0]["role"] == "system"


def test_too_small_a_budget_ends_with_its_own_code(folder: Path):
    done = run("context", "@last", "--budget", "20", "--counter", "estimate", cwd=folder)
    assert (done.code, done.out) == (6, "")
    assert "current question" in done.err
    assert run("context", "nobody", cwd=folder).code == 3
    assert run(*ASK, "--model", "gpt-4o", cwd=folder).code == 2


@pytest.mark.parametrize("width", [10, 52, 80])
def test_a_bar_shows_every_part_and_is_as_wide_as_asked(width: int):
    for sizes in ({"a": 1, "b": 1_000_000, "c": 0}, {"a": 5, "b": 5, "c": 5}, {"a": 1}, {}):
        shared = share_cells(sizes, width)
        assert sum(shared.values()) == (width if shared else 0)
        assert {name for name, size in sizes.items() if size} == set(shared)


def test_a_policy_decides_where_no_budget_is_given(folder: Path):
    with limpet.connect(folder / "state.db") as lp:
        policy = limpet.WindowPolicy(budget=900, counter="estimate")
        lp.sessions.get_session("trip").set_policy(policy)
    told = json.loads(run("context", "@last", "--json", cwd=folder).out)
    assert (told["budget"], told["counter"]) == (900, "estimate-2")
    assert json.loads(run("context", "@last", "--budget", "950", "--json", cwd=folder).out)["budget"] == 950  # fmt: skip
