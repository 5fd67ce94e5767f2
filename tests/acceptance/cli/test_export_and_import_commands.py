"""`limpet export` and `limpet import`, as people and scripts meet them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

import limpet
from tests.acceptance.cli.command_runs import on_terminal, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a store of three sessions of two users."""
    with limpet.connect(tmp_path / "state.db") as lp:
        for name, user in (("trip", "ada"), ("visit", "ada"), ("other", "bo")):
            session = lp.sessions.create_session(name, user_id=user)
            session.add_message({"role": "user", "content": f"{name} \x1b[2J\u202e"})
    return tmp_path


def test_out_and_in_again(folder: Path):
    told = run("export", "--user", "ada", "-o", "ada.jsonl", cwd=folder)
    assert (told.code, told.out.split("\t")[:4]) == (0, ["ada.jsonl", "2", "4", "2"])
    assert stat.S_IMODE((folder / "ada.jsonl").stat().st_mode) == 0o600
    told = run("import", "ada.jsonl", "--url", "new.db", cwd=folder)
    assert (told.code, told.out) == (0, "ada.jsonl\tlimpet\t2\t2\t0\t0\n")
    again = run("import", "ada.jsonl", "--url", "new.db", "--json", cwd=folder)
    document = json.loads(again.out)
    assert (document["sessions"], document["already"], document["skipped"]) == (0, 2, 0)
    assert document["files"][0]["format"] == "limpet"
    made = run("export", "-o", "again.jsonl", "--url", "new.db", "--json", "-q", cwd=folder)
    assert made.err == "" and json.loads(made.out)["messages"] == 2
    assert (folder / "again.jsonl").read_bytes() == (folder / "ada.jsonl").read_bytes()


def test_one_session_by_its_beginning_to_a_pipe(folder: Path):
    told = run("export", "tri", "-o", "-", cwd=folder)
    lines = [json.loads(line) for line in told.out.split("\n")[:-1]]
    assert [line["id"] for line in lines if line["line"] == "session"] == ["trip"]
    assert "1 session" in told.err


def test_people_see_what_was_done(folder: Path):
    assert "✓ all.jsonl" in on_terminal("export", "-o", "all.jsonl", cwd=folder).out
    seen = on_terminal("import", "all.jsonl", "--dry-run", cwd=folder).out
    assert "0 sessions with 0 messages would be imported, 3 already there (limpet)" in seen
    (folder / "chats.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\nno\n')
    seen = on_terminal("import", "chats.jsonl", cwd=folder).out
    assert "1 session with 1 message imported, 1 skipped (openai)" in seen
    assert "chats.jsonl:2: it is not JSON" in seen


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("export", "-o", "state.db"), 8, "never overwrites"),
        (("export", "nobody", "-o", "x.jsonl"), 3, "nobody"),
        (("export", "trip", "--user", "ada", "-o", "x.jsonl"), 2, "both"),
        (("export", "-o", "-", "--json"), 2, "stdout"),
        (("export",), 2, "--output"),
        (("import",), 2, "no file"),
        (("import", "nothing.jsonl"), 3, "nothing.jsonl"),
        (("import", "cut.jsonl"), 7, "cut off"),
        (("import", "taken.jsonl"), 5, "another session here has the id"),
        (("import", "taken.jsonl", "--format", "word"), 2, "word"),
        (("import", "chats.json"), 1, ""),
    ],
)
def test_errors_say_what_and_end_as_documented(arguments: tuple[str, ...], code: int, told: str, folder: Path):
    with limpet.connect("volatile:") as lp:
        lp.sessions.create_session("trip").add_message({"role": "user", "content": "another"})
        lp.admin.export(folder / "taken.jsonl")
    (folder / "cut.jsonl").write_bytes((folder / "taken.jsonl").read_bytes()[:-50])
    (folder / "chats.json").write_text('{"messages": []}')
    before = (folder / "state.db").stat().st_size
    done = run(*arguments, cwd=folder)
    assert done.code == code and told in done.err, done
    assert not (folder / "x.jsonl").exists() and not (folder / "none.db").exists()
    assert (folder / "state.db").stat().st_size == before


def test_of_a_user_without_sessions_no_file_is_made(folder: Path):
    for output in ("x.jsonl", "-"):
        told = run("export", "--user", "nobody", "-o", output, cwd=folder)
        assert (told.code, told.out) == (0, "")
        assert "the store has no session of 'nobody'" in told.err and "limpet sessions list" in told.err
    told = run("export", "--user", "nobody", "-o", "x.jsonl", "--json", cwd=folder)
    document = json.loads(told.out)
    assert (told.code, document["file"], document["sessions"]) == (0, None, 0)
    assert told.code == run("search", "words", "--user", "nobody", cwd=folder).code
    assert not (folder / "x.jsonl").exists()


def test_a_terminal_is_not_sent_the_file(folder: Path):
    told = on_terminal("export", "-o", "-", cwd=folder)
    assert told.code == 2 and "\x1b[2J" not in told.out


def test_under_other_ids_for_another_user(folder: Path):
    run("export", "trip", "-o", "trip.jsonl", cwd=folder)
    told = run("import", "trip.jsonl", "--rename", "-copy", "--user", "eve", cwd=folder)
    assert told.out == "trip.jsonl\tlimpet\t1\t1\t0\t0\n"
    assert run("sessions", "list", "--user", "eve", cwd=folder).out.startswith("trip-copy\teve\t")
    assert run("import", "trip.jsonl", "--tenant", "t2", cwd=folder).code == 0
    assert run("sessions", "list", "--tenant", "t2", cwd=folder).out.startswith("trip\tada\t")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("import", "-"), "Save the pipe to a file and import"),
        (("import", "/dev/zero"), "Save the pipe to a file and import"),
        (("import", ""), "name is empty"),
        (("export", "-o", ""), "-o names no file"),
        (("export", "-o", "no/a.jsonl"), "no file can be made"),
        (("sessions", "list", "--url", ""), "--url path/to/state.db"),
        (("verify", ""), "--url path/to/state.db"),
        (("import", "x", "--url", ""), "--url path/to/state.db"),
    ],
)
def test_names_that_name_no_file_are_a_matter_of_usage(folder: Path, words: tuple[str, ...], told: str):
    (folder / "x").write_bytes(b"[]")
    before = sorted(folder.iterdir())
    done = run(*words, cwd=folder)
    assert (done.code, done.out) == (2, "") and told in done.err, done
    assert sorted(folder.iterdir()) == before


def test_a_damaged_file_leaves_no_store_behind(tmp_path: Path):
    with limpet.connect(tmp_path / "a.db") as lp:
        lp.sessions.create_session("s").add_message({"role": "user", "content": "words"})
        lp.admin.export(tmp_path / "whole.jsonl")
    whole = (tmp_path / "whole.jsonl").read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(whole[:-40])
    before = set(tmp_path.iterdir())
    for url in ("new.db", "files:new"):
        done = run("import", "cut.jsonl", "--url", url, cwd=tmp_path)
        assert (done.code, done.out) == (7, "") and "cut.jsonl" in done.err
        assert set(tmp_path.iterdir()) == before
        done = run("import", "cut.jsonl", "none.jsonl", "--url", url, cwd=tmp_path)
        assert done.code == 1 and done.out.count("unknown\t0") == 2
        assert set(tmp_path.iterdir()) == before
    assert run("import", "whole.jsonl", "--url", "new.db", cwd=tmp_path).code == 0


def test_a_file_of_which_nothing_can_be_taken_leaves_no_store_behind(tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text('{"id": "x", "messages": [5]}\n{"id": "y"}\n')
    before = set(tmp_path.iterdir())
    done = run("import", "bad.jsonl", "--url", "new.db", cwd=tmp_path)
    assert done.code == 1 and done.out.count("skipped\t") == 2
    seen = on_terminal("import", "bad.jsonl", "none.json", "--url", "new.db", cwd=tmp_path)
    assert seen.code == 1 and "0 messages imported" in seen.out
    assert set(tmp_path.iterdir()) == before


def test_a_file_that_has_the_name_of_a_chat_that_is_left_out_is_imported(tmp_path: Path):
    chats = [{"id": "both", "messages": [{"role": "user", "content": word}]} for word in "ab"]
    (tmp_path / "both").write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    done = run("import", "both", "--url", "new.db", cwd=tmp_path)
    assert done.code == 0 and "skipped\tboth\tits id comes twice." in done.out
    with limpet.connect(tmp_path / "new.db") as lp:
        (message,) = lp.sessions.get_session("both").messages
    assert message.content == "a"


def test_a_file_can_be_tried_before_there_is_a_store(folder: Path):
    assert run("export", "-o", "all.jsonl", cwd=folder).code == 0
    before = set(folder.iterdir())
    done = run("import", "all.jsonl", "--url", "new.db", "--dry-run", cwd=folder)
    assert done.code == 0 and done.out == "all.jsonl\tlimpet\t3\t3\t0\t0\n"
    assert set(folder.iterdir()) == before


def test_a_user_that_can_not_be_is_no_matter_of_the_files(folder: Path):
    (folder / "x").write_text("[]")
    done = run("import", "x", "none.json", "--user", "", cwd=folder)
    assert (done.code, done.out) == (2, "") and "a user's id has 0 bytes" in done.err


def test_a_file_that_can_not_be_imported_does_not_stop_the_others(folder: Path):
    with limpet.connect("volatile:") as lp:
        for name in ("fresh", "trip"):
            lp.sessions.create_session(name).add_message({"role": "user", "content": "another"})
        lp.admin.export(folder / "good.jsonl", session_id="fresh")
        lp.admin.export(folder / "taken.jsonl", session_id="trip")
    (folder / "cut.jsonl").write_bytes((folder / "good.jsonl").read_bytes()[:-50])
    (folder / "words.json").write_text("not json")
    (folder / "empty.json").touch()
    bad = ("cut.jsonl", "taken.jsonl", "words.json", "empty.json", "none.json")
    for url in ("state.db", "new.db"):
        done = run("import", *bad, "good.jsonl", "--url", url, "--json", cwd=folder)
        left_out = 5 if url == "state.db" else 4
        assert (done.code, done.err) == (1, f"{left_out} of 6 files skipped.\n")
        files = {one["file"]: one for one in json.loads(done.out)["files"]}
        assert files["good.jsonl"]["sessions"] == 1
        refused = {name for name in bad if files[name]["skipped"]}
        assert refused == set(bad) - ({"taken.jsonl"} if url == "new.db" else set())
        assert all(files[name]["skipped"][0]["source"] == name for name in refused)
    told = run("import", *bad, cwd=folder)
    assert told.code == 1
    assert "skipped\ttaken.jsonl\tanother session here has the id 'trip'" in told.out
    seen = on_terminal("import", *bad, "good.jsonl", "--dry-run", cwd=folder)
    assert seen.code == 1 and "skipped" in seen.out and "1 already there" in seen.out
