"""`limpet context` on recorded windows: --at, --diff and --recorded, in three faces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import CompactionLevel, Message
from limpet.cli.subcommands.context_command import CAUSE_UNKNOWN
from tests.acceptance.cli.command_runs import Done, on_terminal, run
from tests.acceptance.cli.test_commands import HOSTILE, OBEYED

PLAIN = {"NO_COLOR": "1"}
COUNTER = "estimate"


class Scene:
    """A store with recorded windows, and the windows as they were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.windows: dict[int, limpet.Window] = {}
        with limpet.connect(folder / "state.db") as lp:
            session = lp.sessions.create_session("trip", system="You plan trips.", title=HOSTILE)
            for day in range(60):
                text = HOSTILE if day == 59 else f"What is on day {day} of the trip, and why? " * 2
                session.add_message({"role": "user", "content": text})
                level = CompactionLevel.MODERATE if day == 50 else CompactionLevel.NONE
                budget = 2_000 if day == 55 else 1_000
                window = session.window(budget, counter=COUNTER, min_compaction=level)
                self.windows[session.version + 1] = window
                session.add_message(Message("assistant", f"A ferry, {day}."), window=window)
            session.add_message({"role": "user", "content": "Thank you."})
            self.version = session.version
            lp.sessions.create_session("bare", system="Nothing recorded here.")
        with limpet.connect(folder / "state.db", tenant="other") as lp:
            lp.sessions.create_session("theirs", system="Mine alone.")
        self.events = list(self.windows)

    def ask(self, *options: object, session: str = "trip", **how: Any) -> Done:
        return run("context", session, *map(str, options), cwd=self.folder, **how)

    def told(self, *options: object, session: str = "trip") -> Any:
        done = self.ask(*options, "--json", session=session)
        assert (done.code, done.err) == (0, "")
        return json.loads(done.out)

    def shown(self, *options: object, columns: int = 80, ascii_: bool = False) -> str:
        plain = PLAIN | ({"LIMPET_ASCII": "1"} if ascii_ else {})
        asked = ("context", "trip", *map(str, options))
        done = on_terminal(*asked, cwd=self.folder, env=plain, columns=columns)
        assert (done.code, done.err) == (0, "")
        return done.out


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize("place", [0, 30, 50, 55, 59])
def test_a_window_is_rebuilt_by_its_event_or_its_answer(scene: Scene, place: int):
    event = scene.events[place]
    window = scene.windows[event]
    told = scene.told("--at", event)
    assert told["messages"] == json.loads(json.dumps([m.to_dict() for m in window]))
    assert told["hash"] == told["recorded"]["hash"] == window.digest
    assert (told["tokens"], told["budget"], told["at"]) == (window.tokens, window.budget, event)
    assert told["version"] == window.version
    assert sum(told["by_part"].values()) == window.budget
    assert (told["by_part"]["summary"] > 0) == (place == 50)
    coverage = told["coverage"]
    assert coverage["in"] + coverage["not_in"] == coverage["messages"] == 2 * place + 2
    assert scene.told("--at", event + 1) == told


def test_a_person_sees_that_it_is_the_same(scene: Scene):
    event = scene.events[30]
    shown = scene.shown("--at", event)
    assert f"recorded with event {event}, answer #63" in shown
    assert f"hash {scene.windows[event].digest[:12]}… equals the recorded hash  ✓" in shown
    assert "62 messages = " in shown
    assert "level none · cut at #" in shown
    assert f"limpet context trip --diff {scene.events[29]} {event}" in shown
    assert "--diff" not in scene.shown("--at", scene.events[0])


def test_what_was_under_a_summary_is_not_called_left_out(scene: Scene):
    event = scene.events[50]
    shown = scene.shown("--at", event)
    assert "▓ summary" in shown
    assert "under the summary or left out" in shown
    assert "not in  ✓" in shown
    coverage = scene.told("--at", event)["coverage"]
    assert (coverage["under_summary"], coverage["left_out"]) == (None, None)


def test_a_pipe_gets_the_ledger_and_the_rest_on_stderr(scene: Scene):
    done = scene.ask("--at", scene.events[30])
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert sum(int(last) - int(first) + 1 for first, last, *_ in rows) == 62
    assert {len(row) for row in rows} == {7}
    assert "byte for byte" in done.err
    assert scene.ask("--at", scene.events[30], "--quiet").err == ""


def test_why_and_as_of_a_recorded_window(scene: Scene):
    event = scene.events[30]
    window = scene.windows[event]
    assert scene.told("--at", event, "--as", "anthropic") == json.loads(json.dumps(window.to_anthropic()))
    assert scene.told("--at", event, "--why", 1)["fate"] == "kept"
    out = scene.told("--at", event, "--why", 2)
    assert (out["fate"], out["budget_needed"]) == ("left out", None)
    assert "0 tokens" not in scene.ask("--at", event, "--why", 2).out
    assert scene.ask("--at", event, "--why", 63).code == 3


def test_no_window_there_names_the_nearest(scene: Scene):
    low, high = scene.events[29], scene.events[30]
    done = scene.ask("--at", low + 2)
    assert (done.code, done.out) == (3, "")
    assert f"The nearest before is event {low}, the nearest after is event {high}." in done.err
    assert f"limpet context trip --at {high}" in done.err
    problem = json.loads(scene.ask("--at", low + 2, "--json").err)
    assert problem["code"] == "window_not_found"
    assert problem["facts"] == {"version": low + 2, "before": low, "after": high}
    first = scene.ask("--at", 1).err
    assert f"The nearest after is event {scene.events[0]}." in first
    assert "None" not in first
    for beyond in (scene.version + 1, 10**30):
        assert f"its last is {scene.version}" in scene.ask("--at", beyond).err
    bare = scene.ask("--at", 1, session="bare")
    assert bare.code == 3
    assert "No window is recorded in this session." in bare.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--at 0", ">= 1"),
        ("--at -3", ">= 1"),
        ("--at three", "int"),
        ("--diff 3", "argument"),
        ("--diff 0 4", ">= 1"),
        ("--recorded --limit 0", ">= 1"),
        ("--recorded --limit 100000", "limit"),
        ("--recorded --before 0", ">= 1"),
        ("--limit 3", "--recorded"),
        ("--before 3", "--recorded"),
        ("--at 4 --limit 3", "--recorded"),
        ("--at 4 --budget 500", "together"),
        ("--at 4 --counter estimate", "together"),
        ("--at 4 --what-if 500", "together"),
        ("--at 4 --diff 3 4", "together"),
        ("--diff 4 7 --why 3", "together"),
        ("--recorded --as openai", "together"),
        ("--why 3 --as openai", "together"),
    ],
)
def test_nonsense_is_refused(scene: Scene, options: str, says: str):
    done = scene.ask(*options.split())
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 3
    assert says in done.err


def test_another_tenant_has_no_such_window(scene: Scene):
    for options in (("--at", 4), ("--diff", 4, 7), ("--recorded",)):
        done = scene.ask(*options, "--tenant", "other")
        assert (done.code, done.out) == (3, "")
        assert "limpet sessions list --tenant other" in done.err
    assert scene.told("--recorded", "--tenant", "other", session="theirs")["windows"] == []


def test_the_difference_adds_up(scene: Scene):
    for first, second in ((30, 31), (31, 34), (49, 50), (54, 55), (10, 59)):
        a, b = scene.events[first], scene.events[second]
        told = scene.told("--diff", a, b)
        before, after = scene.windows[a], scene.windows[b]
        gone = [c for c in told["changes"] if c["sign"] == "-"]
        new = [c for c in told["changes"] if c["sign"] == "+"]
        assert told["common"]["messages"] + sum(c["messages"] for c in gone) == len(before)
        assert told["common"]["messages"] + sum(c["messages"] for c in new) == len(after)
        assert told["common"]["tokens"] + sum(c["tokens"] for c in new) == (after.tokens - after.overhead)
        same = told["same"]
        assert before.messages[:same] == after.messages[:same]
        assert before.messages[same : same + 1] != after.messages[same : same + 1]
        ids = {i for c in told["changes"] for i in c["ids"]}
        assert ids == {m.id for m in before} ^ {m.id for m in after}


def test_the_cause_is_told_where_it_follows(scene: Scene):
    def cause(first: int, second: int) -> str:
        return scene.told("--diff", scene.events[first], scene.events[second])["cause"]

    assert cause(0, 0) == "nothing changed"
    assert cause(0, 1) == "new messages at the end"
    assert cause(1, 0) == "B is older and has fewer messages"
    cuts = {cause(number, number + 1) for number in range(14, 30)}
    assert cuts - {"new messages at the end"}
    assert all(c.startswith("cut: at ") for c in cuts - {"new messages at the end"})
    assert "level: none, then moderate" in cause(49, 50)
    assert cause(54, 55) == CAUSE_UNKNOWN


def test_a_person_sees_the_difference(scene: Scene):
    a, b = scene.events[20], scene.events[45]
    shown = scene.shown("--diff", a, b)
    assert f"A event {a}, answer #43" in shown
    assert "  =  " in shown
    assert "  -  #" in shown
    assert "  +  #" in shown
    assert "prefix identical for 12 tokens (" in shown
    assert "both rebuilt byte for byte ✓" in shown
    piped = scene.ask("--diff", a, b)
    assert [line[0] for line in piped.out.splitlines()] == ["=", "-", "+"]
    assert {line.count("\t") for line in piped.out.splitlines()} == {6}
    assert scene.ask("--diff", a, a + 2).code == 3


def test_the_list_has_pages_newest_first(scene: Scene):
    seen: list[int] = []
    before: tuple[object, ...] = ()
    while True:
        told = scene.told("--recorded", "--limit", 25, *before)
        seen += [row["event"] for row in told["windows"]]
        if told["next_before"] is None:
            break
        before = ("--before", told["next_before"])
    assert seen == scene.events[::-1]
    newest = scene.told("--recorded", "--limit", 1)["windows"][0]
    assert newest["hash"] == scene.windows[scene.events[-1]].digest
    piped = scene.ask("--recorded", "--limit", 3)
    rows = [line.split("\t") for line in piped.out.splitlines()]
    assert [int(row[0]) for row in rows] == scene.events[:-4:-1]
    assert {len(row) for row in rows} == {9}
    assert f"--before {scene.events[-3]}" in piped.err
    listed = scene.shown("--recorded", "--limit", 60)
    assert len(listed.splitlines()) == 61
    nothing = scene.ask("--recorded", session="bare")
    assert (nothing.code, nothing.out) == (0, "")
    assert "window=window" in nothing.err


@pytest.mark.parametrize("columns", [24, 80])
@pytest.mark.parametrize(
    ("option", "places"), [("--at", [57]), ("--at", [59]), ("--diff", [3, 59]), ("--recorded", [])]
)
def test_stored_text_is_harmless_on_terminals_of_any_width(scene: Scene, option: str, places: list[int], columns: int):
    options = (option, *(str(scene.events[place]) for place in places))
    for ascii_ in (False, True):
        how = {"NO_COLOR": "1", "TERM": "dumb"} | ({"LIMPET_ASCII": "1"} if ascii_ else {})
        done = on_terminal("context", "trip", *options, cwd=scene.folder, env=how, columns=columns)
        assert done.code == 0
        assert OBEYED.findall(done.out) == []
        if ascii_:
            shown = done.out.replace("␛", "").translate(dict.fromkeys(range(9216, 9250), ""))
            assert shown.isascii()
    piped = scene.ask(*options)
    assert OBEYED.findall(piped.out + piped.err) == []
    told = scene.ask(*options, "--json")
    assert OBEYED.findall(told.out) == []


@pytest.mark.parametrize("columns", [32, 40, 80, 200])
def test_bar_and_account_keep_to_the_width(scene: Scene, columns: int):
    shown = scene.shown("--budget", 1000, "--counter", COUNTER, columns=columns, ascii_=True)
    lines = shown.splitlines()
    bars = [line for line in lines if line.startswith("  S") and "D" in line and "." in line]
    assert bars
    assert all(len(line) <= columns for line in lines if "messages =" not in line and "why" not in line)
