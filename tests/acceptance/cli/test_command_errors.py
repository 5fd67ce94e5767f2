"""Errors of the command line: three lines or one problem, nothing on stdout, and the promised exit code."""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet import errors
from limpet.cli import exit_codes, run_guarded
from limpet.stores.sqlite import database
from tests.acceptance.cli import command_runs
from tests.acceptance.cli.command_runs import run
from tests.conftest import ROOT

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.Error)]
CODES = {
    errors.NotFound: 3,
    errors.Conflict: 5,
    errors.ContextOverflow: 6,
    errors.InvalidRequest: 2,
    errors.UnknownScheme: 2,
    errors.NotInstalled: 2,
    errors.UnsafeStore: 8,
    errors.NotAStore: 8,
    errors.NewerStore: 8,
    errors.DamagedFile: 7,
    errors.Unavailable: 9,
    errors.Corrupt: 7,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with limpet.connect(tmp_path / "state.db") as lp:
        session = lp.sessions.create_session("one", system="Be brief.")
        session.add_messages([{"role": "user", "content": f"number {n}"} for n in range(50)])
    return tmp_path / "state.db"


def raising(error: BaseException) -> Any:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_its_exit_code_and_three_lines(kind: type[errors.Error], capsys: pytest.CaptureFixture[str]):
    expected = next((code for base, code in CODES.items() if issubclass(kind, base)), 1)
    error = kind("it is so.", facts={"count": 12_345})
    assert run_guarded(raising(error), as_json=False) == expected
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 3
    assert err.startswith("error: it is so.\n")
    assert "12,345" in err
    assert f"(exit {expected})" in err


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_one_problem(kind: type[errors.Error], capsys: pytest.CaptureFixture[str]):
    expected = run_guarded(raising(kind(facts={"count": 1})), as_json=True)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    problem = json.loads(line)
    assert problem["code"] == kind.code
    assert problem["exit_code"] == expected
    assert problem["facts"] == {"count": 1}
    assert problem["title"] and problem["detail"] and problem["next"]


def test_interrupt_and_defect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert run_guarded(raising(KeyboardInterrupt()), as_json=False) == 130
    assert run_guarded(raising(KeyError("odd")), as_json=False) == 1
    told = capsys.readouterr().err
    assert "bug in Limpet" in told and "KeyError" in told and "Traceback" not in told
    monkeypatch.setenv("LIMPET_DEBUG", "1")
    run_guarded(raising(KeyError("odd")), as_json=False)
    assert "Traceback" in capsys.readouterr().err


def test_what_is_not_installed_was_not_forbidden(capsys: pytest.CaptureFixture[str]):
    error = errors.NotInstalled("a store at redis:// needs redis.", hint="Install it with: pip")
    assert run_guarded(raising(error), as_json=False) == 2
    assert capsys.readouterr().err.splitlines()[1].strip() == "Nothing was opened."


def test_codes_are_documented():
    used = {rule.exit for rule in exit_codes.ERROR_RULES.values()}
    assert used | {0, 130} <= set(exit_codes.EXIT_CODE_MEANINGS)


@pytest.mark.parametrize(
    "words",
    ["sessions lst", "status --bogus", "backup", "sessions list --limit 0", "sessions list --limit x",
     "sessions list --status gone", "sessions list --since soon", "sessions list --meta nokey",
     "sessions list --cursor nonsense", "sessions list --limit 100000", "status x:///y", "status volatile:"],
)  # fmt: skip
def test_misuse(store: Path, words: str):
    done = run(*words.split(), cwd=store.parent)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 3


@pytest.mark.parametrize("verb", ["status", "verify", "rebuild"])
def test_two_stores_are_one_too_many(store: Path, verb: str):
    done = run(verb, "--url", "files:two", "state.db", cwd=store.parent)
    assert (done.code, done.out) == (2, "")
    assert "two stores are named" in done.err
    assert run(verb, "--url", "state.db", "state.db", cwd=store.parent).code == 0


@pytest.mark.parametrize("verb", ["status", "verify"])
def test_a_url_of_a_file_with_two_slashes_says_how_to_write_it(store: Path, verb: str):
    done = run(verb, "sqlite://state.db", cwd=store.parent)
    assert (done.code, done.out) == (2, "")
    assert "sqlite:///absolute/path" in done.err
    assert run(verb, f"sqlite://{store}", cwd=store.parent).code == 0


def test_errors_about_windows_say_what_helps_and_only_that(store: Path):
    unknown = run("context", "one", "--why", "999", cwd=store.parent)
    assert (unknown.code, unknown.out) == (3, "")
    assert "numbered from 1 to 51" in unknown.err and "@last" not in unknown.err
    over = run("context", "one", "--budget", "5", cwd=store.parent)
    assert (over.code, over.out) == (6, "")
    assert "[[" not in over.err and over.err.count("dropped") == 1


def test_misuse_as_a_problem(store: Path):
    done = run("sessions", "list", "--bogus", "--json", cwd=store.parent)
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err)["exit_code"] == 2


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_not_a_store(tmp_path: Path, option: list[str]):
    (tmp_path / "notes.txt").write_text("Dear diary\n" * 500)
    before = (tmp_path / "notes.txt").read_bytes()
    done = run("status", "notes.txt", *option, cwd=tmp_path)
    assert (done.code, done.out) == (8, "")
    assert (tmp_path / "notes.txt").read_bytes() == before


def test_newer_store(store: Path):
    database.register_checksum_vfs()
    newer = apsw.Connection(str(store), vfs=database.CHECKSUM_VFS)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    done = run("status", cwd=store.parent)
    assert done.code == 8
    assert "99" in done.err and "pip install ." in done.err


def damage(store: Path, offset: int) -> None:
    with store.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("place", ["middle", "first bytes"])
def test_damage_is_told(store: Path, place: str):
    size = store.stat().st_size
    damage(store, 3 if place == "first bytes" else size // 2)
    done = run("verify", "--json", cwd=store.parent)
    assert done.code == 7
    told = json.loads(done.out)
    assert told["ok"] is False
    assert told["faults"]
    piped = run("verify", cwd=store.parent)
    assert piped.code == 7
    assert [line.split("\t")[0] for line in piped.out.splitlines()][:2] == ["damage", "fault"]
    assert "backup" in piped.err
    shown = command_runs.on_terminal("verify", cwd=store.parent, env={"NO_COLOR": "1"})
    assert shown.code == 7
    assert "✗ damage" in shown.out


def test_damage_stops_other_commands_too(store: Path):
    damage(store, 3)
    done = run("sessions", "list", "--json", cwd=store.parent)
    assert (done.code, done.out) == (7, "")
    assert json.loads(done.err)["code"] == "corrupt"


def test_a_damaged_store_is_not_rebuilt(store: Path):
    damage(store, store.stat().st_size // 2)
    before = store.read_bytes()
    done = run("rebuild", "--json", cwd=store.parent)
    assert (done.code, done.out) == (7, "")
    assert json.loads(done.err)["code"] == "corrupt"
    assert store.read_bytes() == before


@contextlib.contextmanager
def held(store: Path) -> Iterator[None]:
    """Hold the store's turn as a process that never passes it on."""
    with Path(f"{store}-lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


IMPATIENT = """
import sys
from limpet import limits
limits.WRITE_LOCK_WAIT_S = 0.2
from limpet.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_busy_store(store: Path):
    with held(store):
        done = run("status", cwd=store.parent, program=(sys.executable, "-c", IMPATIENT))
    assert (done.code, done.out) == (9, "")
    assert "limpet" in done.err or "retry" in done.err
    assert run("status", cwd=store.parent).code == 0


def test_interrupted_while_waiting(store: Path):
    with held(store):
        process = subprocess.Popen(
            [*command_runs.LIMPET, "status"], cwd=store.parent, env=command_runs.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        # The thread that stands in line is the second one: then the command is inside its wait.
        while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "interrupted.\n")


AT_ONCE = """
import importlib, sys, tomllib
_, amid, project = sys.argv
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == amid:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
module, _, name = tomllib.load(open(project, "rb"))["project"]["scripts"]["limpet"].partition(":")
main = getattr(importlib.import_module(module), name)
sys.argv[1:] = ["status"]
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["limpet.runtime", "limpet.cli", "cyclopts"])
def test_interrupted_while_it_is_loaded(store: Path, module: str):
    program = (sys.executable, "-c", AT_ONCE, module, str(ROOT / "pyproject.toml"))
    done = run(cwd=store.parent, program=program)
    assert done == (130, "", "interrupted.\n")


WITHOUT_EXTRA = """
import sys
sys.modules[sys.argv.pop(1)] = None
from limpet_command import main
sys.exit(main())
"""


@pytest.mark.parametrize("library", ["cyclopts", "rich"])
@pytest.mark.parametrize("words", ["", "--help", "status", "status --json"])
def test_without_its_extra_it_says_how_to_install_it(tmp_path: Path, library: str, words: str):
    done = run(cwd=tmp_path, program=(sys.executable, "-c", WITHOUT_EXTRA, library, *words.split()))
    assert (done.code, done.out) == (2, "")
    assert f"the command line needs {library}: not installed." in done.err
    assert "In a clone of Limpet: pip install '.[cli]'" in done.err


@pytest.mark.parametrize("words", ["backup new.db", "migrate state.db new.db", "restore state.db new.db"])
def test_what_was_interrupted_can_be_repeated(store: Path, words: str):
    with held(store):
        process = subprocess.Popen(
            [*command_runs.LIMPET, *words.split()], cwd=store.parent, env=command_runs.environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err == "Repeat the same command to continue.\ninterrupted.\n"
    assert run(*words.split(), cwd=store.parent).code == 0


def test_an_interrupt_that_broke_something_is_one(capsys: pytest.CaptureFixture[str]):
    def body() -> int:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cannot release un-acquired lock")

    assert run_guarded(body, as_json=False) == 130
    assert capsys.readouterr().err == "interrupted.\n"


def test_reader_of_the_pipe_goes_away(store: Path):
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*command_runs.LIMPET, "sessions", "show", "one"], cwd=store.parent,
        env=command_runs.environment(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_output_that_can_not_be_written(store: Path):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*command_runs.LIMPET, "status"], cwd=store.parent, env=command_runs.environment(),
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert "No space left" in ended.stderr
    assert len(ended.stderr.splitlines()) == 3
