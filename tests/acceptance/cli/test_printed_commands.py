"""Commands that are printed as what to type next can be typed as they are."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import limpet
from limpet import Message
from limpet.cli import exit_codes, hints
from tests.acceptance.cli.command_runs import Done, on_terminal, run

PRINTED = re.compile(
    r"(limpet (?:sessions|context|verify|backup|export|demo|frames|suspensions|events).*?)(?:  \(exit|$)", re.MULTILINE
)
STORE = "my stores/it's.db"
ON = ("--url", STORE, "--tenant", "north pole")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that only its --url and --tenant lead to."""
    (tmp_path / "my stores").mkdir()
    with limpet.connect(tmp_path / STORE, tenant="north pole") as lp:
        for name in ("trip one", "trip two", "-v"):
            session = lp.sessions.create_session(
                name, user_id="ada", system="You plan trips.", metadata={"team": "it's ours"}
            )
            for day in range(40):
                session.add_message({"role": "user", "content": f"What is on day {day} of it?"})
                window = session.window(200, counter="estimate")
                session.add_message(Message("assistant", "A ferry."), window=window)
        for name in ("frame one", "frame two"):
            lp.index.push_frame(limpet.Scope("it's me"), goal="plan", budget=100, frame_id=name)
            lp.index.suspend_frame(name, reason="ask")
    return tmp_path


def follow(done: Done, folder: Path) -> list[Done]:
    """Type every command that was printed."""
    printed = PRINTED.findall(done.out + "\n" + done.err)
    assert printed, (done.out, done.err)
    return [run(*shlex.split(command)[1:], cwd=folder) for command in printed]


@pytest.mark.parametrize(
    "words",
    [
        ["sessions", "show", "nobody"],
        ["sessions", "show", "trip"],
        ["sessions", "show", "@last~99"],
        ["sessions", "show", "trip one"],
        ["sessions", "show", "--tail", "60", "--", "-v"],
        ["sessions", "list", "--limit", "2", "--user", "ada", "--meta", "team=it's ours", "--since", "1h"],
        ["context", "trip one", "--budget", "200", "--counter", "estimate"],
        ["context", "--budget", "200", "--model", "gpt-4o", "--", "-v"],
        ["context", "trip one", "--at", "2"],
        ["context", "--at", "2", "--", "-v"],
        ["context", "trip two", "--at", "40"],
        ["context", "trip two", "--recorded", "--limit", "3"],
        ["context", "nobody", "--recorded"],
        ["frames", "show", "nobody"],
        ["frames", "tree", "frame"],
        ["frames", "tree", "it's me"],
        ["frames", "list", "--limit", "1", "--actor", "it's me"],
        ["frames", "cancel", "frame one"],
        ["suspensions", "show", "nobody"],
        ["suspensions", "list", "--limit", "1", "--actor", "it's me"],
        ["events", "tail", "--since", "3", "--limit", "2", "--session", "trip one"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_printed_runs(folder: Path, words: list[str]):
    options = [*words]
    at = options.index("--") if "--" in options else len(options)
    options[at:at] = ON
    done = on_terminal(*options, cwd=folder, env={"NO_COLOR": "1"}, columns=60)
    if "--tail" in words:
        assert done.code == 0
        return
    for followed in follow(done, folder):
        assert followed.code == 0
        assert "error" not in followed.err
        assert followed.out


def test_the_next_page_keeps_every_condition(folder: Path):
    asked = ("sessions", "list", "--limit", "1", "--user", "ada", "--meta", "team=it's ours")
    first = run(*asked, *ON, cwd=folder)
    (second,) = follow(first, folder)
    assert first.out.split("\t")[0] != second.out.split("\t")[0]
    assert len(second.out.splitlines()) == 1


def test_a_backup_and_its_check(folder: Path):
    made = run("backup", "a copy.db", *ON, cwd=folder)
    assert [done.code for done in follow(made, folder)] == [0]
    (folder / "a copy-2.db").touch()
    refused = run("backup", "a copy.db", *ON, cwd=folder)
    assert refused.code == 8
    assert [done.code for done in follow(refused, folder)] == [0]
    assert (folder / "a copy-3.db").exists()


@pytest.mark.parametrize("what", [("trip one",), ("--user", "ada"), ("--", "-v"), ()], ids=" ".join)
def test_an_export_beside_one_is_of_the_same(folder: Path, what: tuple[str, ...]):
    asked = ("export", "-o", "a file.jsonl", *ON, *what)
    first = run(*asked, cwd=folder)
    refused = run(*asked, cwd=folder)
    assert (first.code, refused.code) == (0, 8)
    assert [done.code for done in follow(refused, folder)] == [0]
    beside = (folder / "a file-2.jsonl").read_bytes()
    assert beside == (folder / "a file.jsonl").read_bytes()


@pytest.mark.parametrize(
    "asked",
    [("backup", "a copy.db", STORE), ("export", "-o", "x.jsonl", "trip one", STORE), ("sessions", "list", STORE),
     ("sessions", "show", "--tenant", "north pole", "--", "-v", STORE)],
    ids=" ".join,
)  # fmt: skip
def test_a_word_too_many_may_be_the_store(folder: Path, asked: tuple[str, ...]):
    with limpet.connect(folder / STORE) as lp:
        lp.sessions.create_session("trip one")
    refused = run(*asked, cwd=folder)
    assert refused.code == 2
    (printed,) = re.findall("names the store: (.*); else", refused.err)
    words = shlex.split(printed)[1:]
    assert sorted(words) == sorted([*asked, "--url"])
    assert run(*words, cwd=folder).code == 0


def test_of_more_words_too_many_none_is_taken_for_the_store(folder: Path):
    for more in (("one", "two"), ("one", "--url", STORE)):
        refused = run("sessions", "list", *more, cwd=folder)
        assert refused.code == 2 and "names the store" not in refused.err
        assert "See: limpet sessions list --help" in refused.err


def test_damage_leads_to_the_same_store(folder: Path):
    store = folder / STORE
    pages = bytearray(store.read_bytes())
    for at in range(5_000, len(pages), 4_096):
        pages[at] ^= 1
    store.write_bytes(pages)
    for asked in (("sessions", "list", *ON), ("status", STORE)):
        problem = json.loads(run(*asked, "--json", cwd=folder).err)
        assert problem["code"] == "corrupt"
        (command,) = re.findall(r"limpet verify [^`]*", problem["next"])
        assert run(*shlex.split(command)[1:], cwd=folder).code == 7


def test_the_demo_says_where_to_look(tmp_path: Path):
    done = run("demo", "--keep", "a night", cwd=tmp_path)
    assert all(followed.code == 0 for followed in follow(done, tmp_path))
    refused = run("demo", "--keep", "a night", cwd=tmp_path)
    assert refused.code == 8
    assert [followed.code for followed in follow(refused, tmp_path)] == [0]
    assert (tmp_path / "a night-2").is_dir()


def test_names_that_look_like_options():
    assert hints.command_line("context", "--at", "3", named="-v") == "limpet context --at 3 -- -v"
    assert hints.store_options("--odd", "default") == ("--url=--odd",)
    assert hints.store_options(None, "default") == ()


def test_where_the_name_is_not_found_the_program_is_named_as_it_was_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(sys, "argv", [".venv/bin/limpet", "status"])
    assert hints.command_line("verify") == ".venv/bin/limpet verify"
    assert exit_codes.problem_of(limpet.InvalidRequest()).next_step() == ".venv/bin/limpet --help"
    monkeypatch.setattr(sys, "argv", ["somewhere/__main__.py"])
    assert hints.command_line("verify") == "limpet verify"
