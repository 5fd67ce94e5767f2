"""The commands, as people and scripts meet them: three faces, ids, filters, nothing created by looking."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cyclopts
import pytest

import limpet
import limpet.cli
from limpet import Message, ToolCallRequest
from limpet.cli import hints
from limpet.cli.subcommands import session_commands
from tests.acceptance.cli import command_runs
from tests.acceptance.cli.command_runs import Done, on_terminal, run

HOSTILE = "\x1b[2J\x1b]0;owned\x07 nul:\x00 csi:\x9b31m bidi:\u202e tag:\U000e0041\ttab\r\nnext\u2028"
# Everything a terminal might obey. Newline and tab are the only ones that an output may hold.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of several sessions."""
    place = tmp_path_factory.mktemp("stores")
    with limpet.connect(place / "state.db") as lp:
        for number in range(4):
            session = lp.sessions.create_session(
                f"trip-{number}",
                user_id="ada" if number % 2 else "bo",
                title=f"Trip {number}",
                metadata={"team": "north" if number < 2 else "south", "n": number},
            )
            for turn in range(number):
                session.add_message({"role": "user", "content": f"Grüße {turn} 你好\nline two"})
        lp.sessions.end_session("trip-1")
        long = lp.sessions.create_session("long")
        long.add_messages([{"role": "user", "content": f"number {n}"} for n in range(1, 301)])
        after = lp.sessions.create_continuation_session(long)
        lp.sessions.update_session(after.id, title="goes on")
        evil = lp.sessions.create_session("evil", title=HOSTILE, metadata={"bad": HOSTILE})
        evil.add_message({"role": "user", "content": HOSTILE})
        call = ToolCallRequest(name="charge_card", args={"note": HOSTILE, "amount": 12})
        evil.add_message(Message("assistant", tool_calls=[call]))
    return place


def document(done: command_runs.Done) -> Any:
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def commands(app: cyclopts.App, words: str = "") -> Iterator[str]:
    """Every command by its first name."""
    for name in app:
        if not name.startswith("-") and app[name].name[0] == name:
            yield from list(commands(app[name], f"{words}{name} ")) or [words + name]


def test_first_screen_names_every_command(tmp_path: Path):
    done = run("--help", cwd=tmp_path)
    assert done == (0, hints.FIRST_SCREEN + "\n", "")
    assert run(cwd=tmp_path) == run("help", cwd=tmp_path) == done
    assert len(done.out.splitlines()) <= 24
    for name in commands(limpet.cli.app):
        group, _, verb = name.partition(" ")
        (line,) = [line for line in done.out.splitlines() if re.match(rf"  {group}  ", line)]
        assert re.search(rf"\b{verb}\b", line), name


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("on", [run, on_terminal])
def test_help_fills_the_lines_that_there_are(on: Callable[..., Done], columns: int, tmp_path: Path):
    width: dict[str, Any] = {"columns": columns} if on is on_terminal else {}
    env = {"COLUMNS": str(columns), "NO_COLOR": "1", "PYTHONUTF8": "1"}
    shown = on("context", "--help", cwd=tmp_path, env=env, **width).out
    about = shown.partition("SESSION")[2].partition("Example:")[0]
    paragraphs = [part.strip().splitlines() for part in about.split("\n\n") if "Show which" in part or "byte" in part]
    assert len(paragraphs) == 2
    for lines in paragraphs:
        for line, following in itertools.pairwise(lines):
            assert len(line.rstrip()) <= columns
            assert len(line.rstrip()) + 1 + len(following.split()[0]) > columns, "it would have fitted"


def test_first_screen_loads_no_terminal_library(tmp_path: Path):
    """Starting is quick because what is slow to import is not imported."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "limpet", "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "limpet.cli" in loaded
    assert not loaded & {"cyclopts", "rich", "asyncio.events"}


@pytest.mark.parametrize(
    "words", ["--help", "context --help", "version --json", "sessions list --json", "verify", "sessions lst"]
)
def test_a_forked_run_is_one_that_was_started(folder: Path, words: str):
    """Most runs here are forks of a process that has imported the command; these are both."""
    started = run(*words.split(), cwd=folder, env={"PYTHONUTF8": "1"})
    assert run(*words.split(), cwd=folder) == started


@pytest.mark.parametrize("name", sorted(commands(limpet.cli.app)))
def test_each_command_has_help_with_an_example(tmp_path: Path, name: str):
    done = run(*name.split(), "--help", cwd=tmp_path)
    assert done.code == 0
    assert done.err == ""
    if name != "version":
        assert f"Example: limpet {name}" in done.out


@pytest.mark.parametrize("topic", ["exit-codes", *hints.HELP_TOPICS, "sessions list"])
def test_topics(tmp_path: Path, topic: str):
    done = run("help", *topic.split(), cwd=tmp_path)
    assert done.code == 0
    assert len(done.out) > 100


def test_version(tmp_path: Path):
    told = document(run("version", "--json", cwd=tmp_path))
    assert told["limpet"] == limpet.__version__
    assert f"limpet {limpet.__version__}\n" in run("--version", cwd=tmp_path).out


def test_status_has_three_faces(folder: Path):
    told = document(run("status", "--json", cwd=folder))
    assert told["holds"]["session"] == {"active": 6, "ended": 1}
    lines = dict(line.split("\t") for line in run("status", cwd=folder).out.splitlines())
    assert lines["events"] == str(told["events"])
    assert lines["holds.session.active"] == "6"
    shown = on_terminal("status", cwd=folder, env={"NO_COLOR": "1"})
    assert f"{told['events']} events" in shown.out
    assert "power-loss safe" in shown.out


def test_target_is_argument_then_url_then_environment_then_here(folder: Path, tmp_path: Path):
    store = str(folder / "state.db")
    assert document(run("status", store, "--json", cwd=tmp_path))["store"] == store
    assert document(run("status", "--url", f"sqlite://{store}", "--json", cwd=tmp_path))
    named = {"LIMPET_URL": store}
    assert document(run("status", "--json", cwd=tmp_path, env=named))["store"] == store
    assert run("status", "missing.db", cwd=folder, env=named).code == 3
    assert document(run("status", "--json", cwd=folder))["store"] == store


@pytest.mark.parametrize(
    ("words", "target"),
    [
        *((words, None) for words in ("status", "verify", "rebuild", "sessions list", "backup copy.db")),
        *(("sessions show @last", path) for path in ("state.db", "new/state.db")),
        *(("status", path) for path in ("state.db", "sqlite:///nowhere/state.db")),
        ("verify", "state.db"),
        ("rebuild", "state.db"),
    ],
)
def test_looking_creates_nothing(tmp_path: Path, words: str, target: str | None):
    named = ["--url", target] if target else []
    done = run(*words.split(), *named, cwd=tmp_path)
    assert done.code == (3 if target else 2)
    assert list(tmp_path.iterdir()) == []


def test_looking_at_an_empty_file_leaves_it_empty(tmp_path: Path):
    (tmp_path / "state.db").touch()
    assert run("status", cwd=tmp_path).code == 3
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("state.db", 0)]


def test_list_has_three_faces_with_the_same_rows(folder: Path):
    told = document(run("sessions", "list", "--json", cwd=folder))
    assert [row["id"] for row in told["sessions"]][:2] == ["evil", told["sessions"][1]["id"]]
    lines = [line.split("\t") for line in run("sessions", "list", cwd=folder).out.splitlines()]
    assert len(lines) == len(told["sessions"]) == 7
    for cells, row in zip(lines, told["sessions"], strict=True):
        wanted = ["" if row[name] is None else str(row[name]) for name in session_commands.SESSION_COLUMNS]
        assert cells[:-1] == wanted[:-1]
    shown = on_terminal("sessions", "list", cwd=folder, env={"NO_COLOR": "1"}).out
    for row in told["sessions"]:
        line = next(line for line in shown.splitlines() if line.startswith(f"{row['id']} "))
        assert row["status"] in line
        assert f" {row['total_tokens']:,} " in line
    assert all(len(line) <= 100 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ("--user ada", {"trip-1", "trip-3"}),
        ("--status ended", {"trip-1"}),
        ("--meta team=north", {"trip-0", "trip-1"}),
        ("--meta team=north --meta n=1", {"trip-1"}),
        ("--meta n=zero", set[str]()),
        ("--since 1h --user bo", {"trip-0", "trip-2"}),
        ("--until 1h", set[str]()),
        ("--since 2999-01-01", set[str]()),
    ],
)
def test_list_filters(folder: Path, filters: str, ids: set[str]):
    told = document(run("sessions", "list", "--json", *filters.split(), cwd=folder))
    assert {row["id"] for row in told["sessions"]} == ids


def test_list_pages(folder: Path):
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        told = document(run("sessions", "list", "--limit", "3", *cursor, "--json", cwd=folder))
        seen += [row["id"] for row in told["sessions"]]
        if told["next_cursor"] is None:
            break
        cursor = ["--cursor", told["next_cursor"]]
    everything = document(run("sessions", "list", "--json", cwd=folder))
    assert seen == [row["id"] for row in everything["sessions"]]
    first = run("sessions", "list", "--limit", "3", cwd=folder)
    assert "--cursor" in first.err
    assert run("sessions", "list", "--limit", "3", "--quiet", cwd=folder) == (0, first.out, "")


def test_show_tells_messages_calls_and_links(folder: Path):
    told = document(run("sessions", "show", "evil", "--json", cwd=folder))
    assert told["messages"][0]["content"] == HOSTILE
    assert [call["args"] for call in told["pending_calls"]] == [{"note": HOSTILE, "amount": 12}]
    after = document(run("sessions", "show", "long", "--json", cwd=folder))["links"]["continued_to"]
    links = document(run("sessions", "show", after, "--json", cwd=folder))["links"]
    assert links["continued_from"] == "long"
    shown = on_terminal("sessions", "show", "evil", cwd=folder, env={"NO_COLOR": "1"}).out
    assert "waits for   charge_card" in shown
    assert "#1   user" in shown
    assert "→ charge_card" in shown


def test_show_parts(folder: Path):
    def positions(*options: str) -> list[int]:
        done = run("sessions", "show", "long", *options, cwd=folder)
        return [int(line.split("\t")[0]) for line in done.out.splitlines()]

    assert positions() == list(range(1, 301))
    assert positions("--limit", "2") == [1, 2]
    assert positions("--tail", "3") == [298, 299, 300]
    assert positions("--tail", "900") == list(range(1, 301))
    assert run("sessions", "show", "long", "--limit", "1", "--tail", "1", cwd=folder).code == 2
    shown = on_terminal("sessions", "show", "long", cwd=folder)
    assert "number 251" in shown.out
    assert "number 250" not in shown.out
    assert "--limit 300" in shown.err


def test_ids_by_beginning_and_by_age(folder: Path):
    def shown(reference: str) -> str:
        return document(run("sessions", "show", reference, "--json", cwd=folder))["id"]

    assert shown("trip-2") == "trip-2"
    assert shown("lo") == "long"
    assert shown("@last") == "evil"
    listed = document(run("sessions", "list", "--json", cwd=folder))["sessions"]
    assert shown("@last~2") == listed[2]["id"]
    several = run("sessions", "show", "trip", cwd=folder)
    assert several.code == 2
    assert "trip-3" in several.err
    assert run("sessions", "show", "trip-9", cwd=folder).code == 3
    assert run("sessions", "show", "@last~99", cwd=folder).code == 3


@pytest.mark.parametrize(
    "words", ["sessions list", "sessions show evil", "sessions list --json", "sessions show evil --json"]
)
@pytest.mark.parametrize("face", [run, on_terminal])
def test_stored_text_never_reaches_the_terminal_raw(folder: Path, words: str, face: Any):
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200", "LINES": "50"}
    done = face(*words.split(), cwd=folder, env=plain)
    assert done.code == 0
    assert OBEYED.findall(done.out) == []
    if "--json" not in words:
        assert "␛[2J" in done.out


def test_hostile_names_in_errors_are_harmless(folder: Path):
    done = run("sessions", "show", "\x1b[2J\x9b", cwd=folder)
    assert done.code in (2, 3)
    assert OBEYED.findall(done.err) == []


def test_raw_refuses_a_terminal(folder: Path):
    refused = on_terminal("sessions", "show", "evil", "--raw", cwd=folder)
    assert (refused.code, refused.out) == (8, "")
    assert "--force" in refused.err
    forced = on_terminal("sessions", "show", "evil", "--raw", "--force", cwd=folder)
    assert "\x1b[2J" in forced.out
    assert run("sessions", "show", "evil", "--raw", cwd=folder).out.startswith(HOSTILE)


def test_colour_follows_terminal_and_environment(folder: Path):
    assert "\x1b[" in on_terminal("sessions", "list", cwd=folder).out
    assert "\x1b[" not in on_terminal("sessions", "list", cwd=folder, env={"NO_COLOR": "1"}).out
    assert "\x1b[" not in on_terminal("sessions", "list", cwd=folder, env={"TERM": "dumb"}).out
    assert "\x1b[" not in run("sessions", "list", cwd=folder).out
    assert "\x1b[" in run("sessions", "list", cwd=folder, env={"FORCE_COLOR": "1"}).out


def test_terminal_without_unicode(folder: Path):
    plain = on_terminal("status", cwd=folder, env={"LIMPET_ASCII": "1", "NO_COLOR": "1"})
    assert plain.out.isascii()
    poor = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    assert run("sessions", "list", cwd=folder, env=poor).out.isascii()
    told = json.loads(run("sessions", "show", "evil", "--json", cwd=folder, env=poor).out)
    assert told["messages"][0]["content"] == HOSTILE


def test_backup_is_whole_and_overwrites_nothing(folder: Path, tmp_path: Path):
    copy = str(tmp_path / "copy.db")
    told = document(run("backup", copy, "--json", "--quiet", cwd=folder))
    assert told["bytes"] == Path(copy).stat().st_size
    assert document(run("verify", copy, "--json", cwd=tmp_path))["ok"] is True
    before = Path(copy).read_bytes()
    again = run("backup", copy, cwd=folder)
    assert (again.code, again.out) == (8, "")
    assert Path(copy).read_bytes() == before
    listed = run("sessions", "list", cwd=folder).out
    assert run("sessions", "list", "--url", copy, cwd=tmp_path).out == listed


def test_verify_says_whole(folder: Path):
    told = document(run("verify", "--json", cwd=folder))
    assert (told["ok"], told["faults"]) == (True, [])
    assert run("verify", cwd=folder) == (0, f"ok\t{told['events']}\t0\tstate.db\n", "")
    shown = on_terminal("verify", cwd=folder, env={"NO_COLOR": "1"})
    assert "✓ whole" in shown.out


def test_rebuild_says_what_it_made(folder: Path):
    told = document(run("rebuild", "--json", "--quiet", cwd=folder))
    assert told["events"] == document(run("status", "--json", cwd=folder))["events"]
    assert (told["store"], told["tenants"], told["projections"]) == ("state.db", 1, 7)
    piped = run("rebuild", "state.db", cwd=folder)
    assert piped.out == f"{told['events']}\t7\t{told['claims']}\tstate.db\n"
    assert piped.err == "Check it with: limpet verify --url state.db\n"
    shown = on_terminal("rebuild", cwd=folder, env={"NO_COLOR": "1"})
    assert "✓ rebuilt   7 rows" in shown.out
    assert run("verify", cwd=folder).code == 0
