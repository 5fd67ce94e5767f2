"""What the command line says to do next: it can be done, and it helps."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import limpet
from tests.acceptance import full_store
from tests.acceptance.cli.command_runs import run
from tests.servers import valkey


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with limpet.connect(tmp_path / "a.db") as lp:
        full_store.said(lp, "s", "ada", "words")
    return tmp_path / "a.db"


def told(err: str, begins: str) -> list[str]:
    """The words of the command that a line ends with."""
    line = next(line for line in err.splitlines() if begins in line)
    return shlex.split(line.partition(begins)[2].partition("  (exit")[0])[1:]


@pytest.mark.parametrize("url", ["state", "files:state"])
def test_what_an_index_has_is_saved_from_a_journal_that_was_cut_off(url: str, tmp_path: Path):
    with limpet.connect(f"files:{tmp_path}/state") as lp:
        full_store.said(lp, "s", "ada", "words")
    segment = max((tmp_path / "state" / "journal").iterdir(), key=lambda path: path.stat().st_size)
    segment.write_bytes(segment.read_bytes()[:-30])
    done = run("verify", url, cwd=tmp_path)
    assert done.code == 7
    words = told(done.err, "save the events of the index: ")
    assert words == ["backup", "saved.db", "--url", "state/.index/state.db"]
    assert run(*words, cwd=tmp_path).code == 0
    assert json.loads(run("verify", "saved.db", "--json", cwd=tmp_path).out)["events"] == 3


def test_a_damaged_file_is_put_back_from_an_earlier_backup(store: Path, tmp_path: Path):
    assert run("backup", "b.db", "--url", "a.db", cwd=tmp_path).code == 0
    store.write_bytes(store.read_bytes()[:20_000])
    done = run("verify", "a.db", cwd=tmp_path)
    assert done.code == 7 and "files away together" in done.err
    words = [word.replace("BACKUP", "b.db") for word in told(done.err, "in their place: ")]
    assert words == ["restore", "b.db", "a.db"]
    for part in tmp_path.glob("a.db*"):
        part.rename(tmp_path / f"away-{part.name}")
    assert run(*words, cwd=tmp_path).code == 0
    assert run("verify", "a.db", cwd=tmp_path).code == 0


def test_an_anchor_of_somebody_else_is_moved_away(store: Path, tmp_path: Path):
    anchor = tmp_path / "a.db-anchor"
    anchor.write_bytes(b"junk" * 100)
    done = run("status", "a.db", cwd=tmp_path)
    assert done.code == 8
    assert f"mv {anchor} {anchor}.away" in done.err and "Choose another name" not in done.err
    anchor.rename(f"{anchor}.away")
    assert "there was no anchor" in run("verify", "a.db", cwd=tmp_path).out
    store.unlink()
    (tmp_path / "b.db-anchor").write_bytes(b"junk" * 100)
    with pytest.raises(limpet.errors.NotAStore, match="Choose another name"):
        limpet.connect(tmp_path / "b.db")


def test_a_tenant_that_is_not_there_is_said_to_be_none(store: Path, tmp_path: Path):
    said = "The store has no tenant nosuch; it has: default.\n"
    for words in (("status",), ("sessions", "list"), ("frames", "list")):
        done = run(*words, "--url", "a.db", "--tenant", "nosuch", cwd=tmp_path)
        assert (done.code, done.err) == (0, said)
        assert "nosuch" not in done.out
        assert not run(*words, "--url", "a.db", "--tenant", "nosuch", "-q", cwd=tmp_path).err
    assert "open_frames.default\t0" in run("status", "a.db", cwd=tmp_path).out


def test_a_store_that_is_named_where_none_is_taken(store: Path, tmp_path: Path):
    done = run("sessions", "list", "a.db", cwd=tmp_path)
    assert done.code == 2 and "Unused" not in done.err
    words = told(done.err, "If it names the store: ")
    assert run(*[word.rstrip(";") for word in words[:4]], cwd=tmp_path).out.startswith("s\t")


@pytest.mark.parametrize("words", [("verify", "a.db", "b.db"), ("sessions", "list", "a.db", "--tenant", "a.db")])
def test_a_word_too_many_that_can_be_no_store_is_not_taken_for_one(store: Path, tmp_path: Path, words: tuple[str, ...]):
    done = run(*words, cwd=tmp_path)
    assert done.code == 2 and "takes no more arguments" in done.err
    assert "--help" in done.err and "If it names the store" not in done.err


@pytest.mark.parametrize(
    "words",
    [("backup", "."), ("backup", "/"), ("export", "-o", "."), ("demo", "--keep", "/"), ("demo", "--keep", "")],
)  # fmt: skip
def test_a_folder_in_the_place_of_a_new_file_is_said_to_be_there(store: Path, tmp_path: Path, words: tuple[str, ...]):
    done = run(*words, cwd=tmp_path, env={"LIMPET_URL": str(store)})
    assert done.code == 8 and "should not" not in done.err and "-2  (exit 8)" in done.err, done


@pytest.mark.parametrize(("name", "told"), [("", "is empty"), ("~nobody-here/b.db", "no user")])
def test_a_backup_to_no_name_is_a_matter_of_usage(store: Path, tmp_path: Path, name: str, told: str):
    done = run("backup", name, "--url", "a.db", cwd=tmp_path)
    assert done.code == 2 and told in done.err


def test_a_backup_at_home(store: Path, tmp_path: Path):
    (tmp_path / "home").mkdir()
    home = {"HOME": str(tmp_path / "home")}
    for code in (0, 8):
        assert run("backup", "~/b.db", "--url", "a.db", cwd=tmp_path, env=home).code == code
    assert (tmp_path / "home" / "b.db").stat().st_size


@pytest.mark.parametrize("words", [("status",), ("sessions", "list"), ("memory", "profile", "ada")])
def test_a_tenant_that_is_no_text_is_refused(store: Path, tmp_path: Path, words: tuple[str, ...]):
    done = run(*words, "--url", "a.db", "--tenant", "\udcff", cwd=tmp_path)
    assert done.code == 1 and "should not" not in done.err and "lone surrogates" in done.err


def test_how_a_store_on_a_server_is_made_is_told(store: Path, tmp_path: Path):
    url = valkey.fresh()
    done = run("status", url, cwd=tmp_path)
    assert done.code == 3
    assert told(done.err, "and so does: ") == ["migrate", "state.db", url]
