"""`limpet search`, `memory` and `erase`, as people and scripts meet them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import errors, limits
from limpet.testing.memory_fakes import Scribe
from tests.acceptance import memory_fixtures
from tests.acceptance.cli import command_runs
from tests.acceptance.cli.command_runs import Done, on_terminal, run

PLAIN = {"NO_COLOR": "1"}
SEAT = "I prefer a window seat."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return memory_fixtures.oslo(tmp_path)


def shown(folder: Path, *words: str) -> Done:
    """What a person sees, without colour."""
    return on_terminal(*words, cwd=folder, env=PLAIN)


def document(folder: Path, *words: str) -> Any:
    done = run(*words, "--json", "-q", cwd=folder)
    assert (done.code, done.err) == (0, ""), done
    return json.loads(done.out)


def rows(folder: Path, *words: str) -> list[list[str]]:
    done = run(*words, "-q", cwd=folder)
    assert (done.code, done.err) == (0, ""), done
    return [line.split("\t") for line in done.out.splitlines()]


def fact(folder: Path, text: str) -> str:
    (found,) = [row[0] for row in rows(folder, "memory", "list", "ada") if row[-1] == text]
    return found


# Searching


def test_search_has_three_faces(folder: Path):
    first, *_ = rows(folder, "search", "window seat", "--user", "ada")
    assert first[:3] == ["trip", "3", "user"] and SEAT in first[-1]
    told = document(folder, "search", "window seat", "--user", "ada", "--around", "1")
    hit = told["hits"][0]
    assert (hit["message"], told["behind"]) == (first[5], 0)
    assert [one["number"] for one in hit["around"]] == [2, 3, 4]
    done = shown(folder, "search", "window seat", "--user", "ada")
    assert done.out.startswith("trip #3  user  just now\n  I prefer a window seat.")
    assert done.err == ("To show the messages around each hit: limpet search 'window seat' --user ada --around 2\n")
    near = shown(folder, "search", "window seat", "--user", "ada", "--around", "2")
    assert "  →     3 user      I prefer a window seat." in near.out.splitlines()[3]
    assert near.err == ""


def test_conditions_of_a_search(folder: Path):
    def numbers(*words: str) -> set[str]:
        return {row[1] for row in rows(folder, "search", "seat booked", "--user", "ada", *words)}

    assert numbers() == {"3", "4"}
    assert numbers("--role", "assistant") == {"4"}
    assert numbers("--since", "1h", "--session", "tri") == {"3", "4"}
    assert numbers("--until", "1h") == set()
    assert len(numbers("--limit", "1")) == 1
    assert rows(folder, "search", "rome", "--user", "ada") == []


def test_a_search_says_whose_nothing_is_there(folder: Path):
    assert shown(folder, "search", "zebra", "--user", "ada").err == "Nothing was found.\n"
    done = shown(folder, "search", "oslo", "--user", "eve", "--url", "state.db")
    assert (done.code, done.out) == (0, "")
    assert "the store has no session of 'eve'" in done.err
    assert "limpet sessions list --url state.db\n" in done.err


def test_what_was_said_before_a_reset_is_marked(folder: Path):
    with limpet.connect(folder / "state.db") as lp:
        lp.sessions.reset_session("visit")
        visit = lp.sessions.get_session("visit")
        visit.add_message({"role": "user", "content": "Rome again."})
    heads = shown(folder, "search", "rome", "--user", "bo").out.splitlines()[::2]
    assert sorted(heads) == ["visit #1  user  just now", "visit #1 before a reset  user  just now"]


@pytest.mark.parametrize(
    "words",
    [
        ("search", "noted", "--user", "ada"),
        ("search", "noted", "--user", "ada", "--around", "1"),
        ("memory", "search", "ada", "noted"),
        ("memory", "list", "ada"),
        ("search", "x", "--user", "\x1b[2J"),
        ("memory", "list", "\x1b[2J"),
        ("memory", "forget", "\x1b[2J", "--yes"),
    ],
)
def test_stored_and_typed_text_is_harmless_on_a_terminal(folder: Path, words: tuple[str, ...]):
    for done in (on_terminal(*words, cwd=folder), run(*words, cwd=folder)):
        assert done.code == (0 if "ada" in words else 2)
        for bad in ("\x1b[2J", "\u202e", "\x07"):
            assert bad not in done.out + done.err
    if "noted" in words:
        assert "␛[2J" in done.out and "[bold]x[/bold]" in done.out


# What is known


def test_profile_has_three_faces(folder: Path):
    told = document(folder, "memory", "profile", "ada")
    assert told["tokens"] <= told["budget"] == limits.BOOTSTRAP_TOKENS
    assert {"I live in Oslo", SEAT} <= {one["text"] for one in told["facts"]}
    assert run("memory", "profile", "ada", "-q", cwd=folder).out == told["text"] + "\n"
    done = shown(folder, "memory", "profile", "ada")
    assert done.out == told["text"] + "\n"
    assert f"{told['tokens']} of {limits.BOOTSTRAP_TOKENS} tokens" in done.err
    assert done.err.endswith("To list the facts: limpet memory list ada\n")
    small = shown(folder, "memory", "profile", "ada", "--budget", "2")
    assert (small.code, small.out) == (0, "") and "fits into 2 tokens" in small.err


def test_facts_have_three_faces(folder: Path):
    told = document(folder, "memory", "list", "ada")["facts"]
    listed = rows(folder, "memory", "list", "ada")
    assert [row[0] for row in listed] == [one["id"] for one in told]
    (seat,) = [row for row in listed if row[-1] == SEAT]
    assert seat[1:3] == ["preference", "seat"] and (seat[4], seat[5]) == ("", "trip")
    done = shown(folder, "memory", "list", "ada")
    head, *lines = done.out.splitlines()
    assert head.split() == ["ID", "KIND", "SAID", "HOLDS", "FACT"]
    assert len(lines) == len(told)
    short = next(line.split()[0] for line in lines if line.rstrip().endswith(SEAT))
    assert seat[0].startswith(short) and short != seat[0]
    assert document(folder, "memory", "why", "ada", short)["fact"]["text"] == SEAT


def test_what_held_once_is_shown_to_whoever_asks(folder: Path):
    with limpet.connect(folder / "state.db", memory=True) as lp:
        moved = lp.sessions.create_session("moved", user_id="ada")
        moved.add_message({"role": "user", "content": "I live in Bergen now."})
        lp.sessions.end_session("moved")
        lp.worker().run_once()
    homes = [row for row in rows(folder, "memory", "list", "ada") if row[2] == "home"]
    assert len(homes) == 1 and "Bergen" in homes[0][-1]
    every = [row for row in rows(folder, "memory", "list", "ada", "--all") if row[2] == "home"]
    assert [bool(row[4]) for row in every] == [False, True]
    assert "until 20" in shown(folder, "memory", "list", "ada", "--all").out


def test_why_leads_to_the_message(folder: Path):
    id_ = fact(folder, SEAT)
    told = document(folder, "memory", "why", "ada", id_)
    assert (told["fact"]["session"], told["fact"]["text"]) == ("trip", SEAT)
    assert [one["number"] for one in told["around"]] == [1, 2, 3, 4]
    assert told["around"][2]["message"]["id"] == told["fact"]["message"]
    bare = id_.removeprefix("fact_")
    assert [row[1] for row in rows(folder, "memory", "why", "ada", bare, "--around", "0")] == ["3"]
    lines = shown(folder, "memory", "why", "ada", id_).out.splitlines()
    assert lines[:2] == [f"{SEAT}  (preference, said just now)", "trip"]
    assert [line.lstrip().startswith("→") for line in lines[2:]] == [False, False, True, False]


@pytest.mark.parametrize("named", ["", "fact_"])
def test_an_ambiguous_fact_is_not_guessed(folder: Path, named: str):
    done = run("memory", "why", "ada", named, cwd=folder)
    assert (done.code, done.out) == (2, "")
    assert "more than one fact's id" in done.err and "It could be fact_" in done.err
    assert "limpet memory list ada --all" in done.err


def test_recall_has_three_faces(folder: Path):
    listed = rows(folder, "memory", "search", "ada", "which seat")
    assert {row[0] for row in listed} >= {"preference", "message"}
    told = document(folder, "memory", "search", "ada", "which seat")["found"]
    assert [one["text"] for one in told] == [row[-1] for row in listed]
    done = shown(folder, "memory", "search", "ada", "which seat")
    assert f"trip  preference  just now\n  {SEAT}\n" in done.out
    assert shown(folder, "memory", "search", "ada", "zebra").err == "Nothing was found.\n"


@pytest.mark.parametrize("verb", ["profile", "list"])
def test_of_a_stranger_nothing_is_known(folder: Path, verb: str):
    done = shown(folder, "memory", verb, "eve", "--url", "state.db", "--tenant", "t2")
    assert (done.code, done.out) == (0, "")
    assert "Memory has no fact about 'eve'." in done.err
    assert done.err.endswith("limpet worker --once --url state.db\n")


# On the way


def test_the_queue_has_three_faces_and_is_replayed(tmp_path: Path):
    memory_fixtures.oslo(tmp_path, learnt=False)
    memory = Scribe()
    memory.failures.append(errors.InvalidRequest("no"))
    with limpet.connect(tmp_path / "state.db", memory=memory) as lp:
        lp.worker().run_once()
        assert [one.dead for one in lp.memory.queue()] == [True]
    ((key, state, session, _, tries, retry, error),) = rows(tmp_path, "memory", "queue")
    assert (state, session, tries, retry) == ("dead", "trip", "1", "") and error
    done = shown(tmp_path, "memory", "queue")
    assert "given up" in done.out
    assert done.err == "To retry the conversations that were given up: limpet memory queue --replay all\n"
    (one,) = document(tmp_path, "memory", "queue")["queue"]
    assert (one["key"], one["dead"], one["retry_at"]) == (key, True, None)
    assert document(tmp_path, "status")["behind"]["default"]["given_up"] == 1
    again = shown(tmp_path, "memory", "queue", "--replay", key)
    assert again.err == "1 conversation will be retried.\n" and "waiting" in again.out
    assert run("worker", "--once", cwd=tmp_path).code == 0
    assert shown(tmp_path, "memory", "queue").err.startswith("The queue is empty.")
    assert fact(tmp_path, SEAT)


def test_the_queue_says_that_nobody_has_looked_yet(tmp_path: Path):
    memory_fixtures.oslo(tmp_path, learnt=False)
    behind = document(tmp_path, "memory", "queue")["behind"]
    told = (
        f"{behind} events of the log wait for a worker, which finds the conversations that have ended:"
        " limpet worker --once --url state.db\n"
    )
    assert behind > 1
    for done in (shown(tmp_path, "memory", "queue", "--url", "state.db"),
                 run("memory", "queue", "--url", "state.db", cwd=tmp_path)):  # fmt: skip
        assert (done.code, done.out, done.err) == (0, "", told)
    assert run("worker", "--once", cwd=tmp_path).code == 0
    assert shown(tmp_path, "memory", "queue").err.startswith("The queue is empty.")
    assert document(tmp_path, "memory", "queue")["behind"] == 0


# Errors


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("search", "oslo"), 2, "--user"),
        (("search", "", "--user", "ada"), 2, "has at least one word"),
        (("search", "x", "--user", "ada", "--since", "soon"), 2, "not a time"),
        (("search", "x", "--user", "ada", "--session", "nope"), 3, "no session 'nope'"),
        (("search", "x", "--user", "ada", "--around", "-1"), 2, "--around"),
        (("search", "x", "--user", "ada", "--limit", "1000000"), 2, "from 1 to"),
        (("search", "x", "--user", "ada", "--url", "none.db"), 3, "no store at none.db"),
        (("memory", "list", ""), 2, "a user's id"),
        (("memory", "list", "ada", "--url", "none.db"), 3, "no store at none.db"),
        (("memory", "profile", "ada", "--budget", "0"), 2, "--budget"),
        (("memory", "why", "ada", "zz"), 3, "limpet memory list ada --all"),
        (("memory", "why", "bo", "zz"), 3, "Memory has 0 facts"),
        (("memory", "queue", "--replay", "zz"), 3, "limpet memory queue"),
        (("memory", "forget"), 2, "USER"),
        (("erase", "nope", "--yes"), 3, "no session 'nope'"),
        (("erase", "--message", "2", "--yes"), 2, "Name the session first"),
        (("erase", "trip", "--message", "9", "--yes"), 3, "limpet sessions show trip"),
        (("erase", "trip", "--message", "0", "--yes"), 3, "has no message #0"),
        (("erase", "trip", "--message", "msg_none", "--yes"), 3, "msg_none"),
        (("memory", "forget", "ada"), 2, "add --yes"),
        (("memory", "forget", "ada", "--json"), 2, "add --yes"),
        (("erase", "trip"), 2, "add --yes"),
        (("erase",), 2, "add --yes"),
    ],
)
def test_errors_say_what_and_change_nothing(folder: Path, words: tuple[str, ...], code: int, told: str):
    before = (folder / "state.db").read_bytes()
    done = run(*words, cwd=folder)
    assert (done.code, done.out) == (code, "") and told in done.err, done
    assert (folder / "state.db").read_bytes() == before
    assert not (folder / "none.db").exists()
    if "--json" in words:
        assert json.loads(done.err)["code"] == "would_ask"


# Gone


def found(folder: Path, query: str) -> list[list[str]]:
    return [
        *rows(folder, "search", query, "--user", "ada"),
        *rows(folder, "memory", "search", "ada", query),
        *rows(folder, "memory", "list", "ada"),
    ]


def test_who_is_forgotten_is_found_nowhere(folder: Path):
    assert found(folder, "seat")
    done = shown(folder, "memory", "forget", "ada", "--yes")
    assert done.code == 0 and done.out.startswith("✓ forgot ada: 1 session, ")
    assert "of index and memory. Receipt erasure_" in done.out
    assert found(folder, "seat") == [] and rows(folder, "sessions", "list", "--user", "ada") == []
    for file in folder.iterdir():
        assert b"QX7-119" not in file.read_bytes(), file.name
    assert len(rows(folder, "search", "rome", "--user", "bo")) == 1
    assert run("verify", cwd=folder).code == 0
    again = shown(folder, "memory", "forget", "ada", "--yes")
    assert (again.code, again.out) == (0, "✓ forgot ada: there was nothing.\n")


def test_forgetting_is_told_in_rows_and_in_json(folder: Path):
    told = dict(rows(folder, "memory", "forget", "ada", "--yes"))
    assert (told["what"], told["sessions"], told["pending"]) == ("user", "1", "false")
    document_ = document(folder, "memory", "forget", "bo", "--yes")
    assert (document_["what"], document_["sessions"]) == ("user", 1)


def test_nothing_is_said_to_be_nothing_in_a_pipe(folder: Path):
    gone = run("memory", "forget", "eve", "--yes", cwd=folder)
    assert (gone.code, gone.err) == (0, "The store has no data of 'eve'.\n")
    for words, told in (
        (("search", "zebra", "--user", "ada"), "Nothing was found."),
        (("search", "zebra", "--user", "eve"), "the store has no session of 'eve'"),
        (("memory", "search", "eve", "zebra"), "Nothing was found."),
        (("memory", "queue"), "The queue is empty."),
    ):
        done = run(*words, cwd=folder)
        assert (done.code, done.out) == (0, "") and told in done.err, words


def asked(folder: Path, answer: str, *words: str) -> tuple[int, bytes]:
    """Run a command for a person who gives an answer; return how it ended, and all that was seen."""
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    process = subprocess.Popen(
        [*command_runs.LIMPET, *words],
        cwd=folder, env=command_runs.environment(PLAIN), stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:
            break
        seen += chunk
    os.close(ours)
    return process.wait(), seen


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("", 1), ("y", 0)])
def test_a_person_is_told_how_much_it_is_and_asked(folder: Path, answer: str, code: int):
    ended, seen = asked(folder, answer, "memory", "forget", "ada")
    assert ended == code
    assert b"1 session with 4 messages" in seen and b"5 facts of memory" in seen
    assert b"permanently forget ada in state.db? [y/N]" in seen
    assert bool(found(folder, "seat")) is (answer != "y")


def test_a_person_sees_the_message_that_would_go(folder: Path):
    ended, seen = asked(folder, "n", "erase", "trip", "--message", "2")
    assert ended == 1 and b"permanently erase message 2 of trip in state.db? [y/N]" in seen
    assert "  assistant: Noted. ␛[2J".encode() in seen and b"\x1b[2J" not in seen
    assert len(rows(folder, "sessions", "show", "trip")) == 4


@pytest.mark.parametrize(("named", "meant"), [("tri", "trip (4 messages)"), ("@last", "visit (1 message)")])
def test_without_a_question_only_a_whole_id_is_erased(folder: Path, named: str, meant: str):
    """The same command once more must not take the next session that begins like that."""
    before = rows(folder, "sessions", "list")
    done = run("erase", named, "--yes", cwd=folder)
    assert done.code == 3 and "only a whole id" in done.err and "sessions list" in done.err
    assert rows(folder, "sessions", "list") == before
    ended, seen = asked(folder, "n", "erase", named)
    assert ended == 1 and f"permanently erase {meant} in state.db? [y/N]".encode() in seen


def test_a_message_is_erased_by_its_number(folder: Path):
    with limpet.connect(folder / "state.db") as lp:
        chat = lp.sessions.create_session("chat", user_id="ada")
        for text in ("first", "the password is swordfish", "third"):
            chat.add_message({"role": "user", "content": text})
    assert rows(folder, "search", "swordfish", "--user", "ada")
    done = shown(folder, "erase", "chat", "--message", "2", "--yes")
    assert done.code == 0 and done.out.startswith("✓ erased message 2 of chat: 1 event")
    again = shown(folder, "erase", "chat", "--message", "2", "--yes")
    assert again.code == 3 and "'chat' is erased already" in again.err
    assert "erased_" not in again.err
    assert rows(folder, "search", "swordfish", "--user", "ada") == []
    said = [row[-1] for row in rows(folder, "sessions", "show", "chat")]
    assert (said[0], said[-1]) == ("first", "third") and "swordfish" not in " ".join(said)
    for file in folder.iterdir():
        assert b"swordfish" not in file.read_bytes(), file.name


def test_a_session_and_what_was_deleted_are_erased(folder: Path):
    id_ = rows(folder, "sessions", "show", "trip")[0][4]
    assert dict(rows(folder, "erase", "trip", "--message", id_, "--yes"))["what"] == "message"
    told = document(folder, "erase", "trip", "--yes")
    assert (told["what"], told["sessions"]) == ("session", 1)
    with limpet.connect(folder / "state.db") as lp:
        lp.sessions.delete_session("visit")
    done = shown(folder, "erase", "--yes")
    assert done.out.startswith("✓ erased all deleted sessions: 1 session, ")
    assert shown(folder, "erase", "--yes").out == "✓ erased all deleted sessions: there was nothing.\n"
