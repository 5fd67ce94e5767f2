"""A backup is put back: whole, or so that the same command goes on with it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import limpet
from limpet import errors, limits
from limpet.admin import migrate
from limpet.stores import store_copy
from limpet.stores.sqlite import maintenance
from limpet.stores.volatile import VolatileStore
from limpet.wiring import store_opener
from tests.acceptance import full_store
from tests.acceptance.admin.test_copy_into_open_store import said
from tests.acceptance.admin.test_migrate import kept, kept_at
from tests.acceptance.cli.command_runs import run
from tests.acceptance.marker_words import Canaries, fill, found

TENANTS = ("default", "globex", "initech")


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of several tenants."""
    for tenant in TENANTS:
        with limpet.connect(tmp_path / "a.db", tenant=tenant) as lp:
            full_store.said(lp, "s", "ada", "words")
    with limpet.connect(tmp_path / "a.db") as lp:
        return lp.admin.backup(tmp_path / "monday.db")


def test_what_memory_knew_then_does_not_come_back_with_it(tmp_path: Path):
    """A copy of the memory may have what was forgotten since, of sessions that were gone by then."""
    with limpet.connect(tmp_path / "a.db", memory=True) as lp:
        full_store.said(lp, "s", "ada", "I live in Oslo.")
        lp.sessions.end_session("s")
        lp.worker().run_once()
        assert lp.memory.facts("ada")
        lp.admin.backup(tmp_path / "monday.db")
    store_opener.restore(tmp_path / "monday.db", tmp_path / "b.db", lambda _done, _total: None)
    (tmp_path / "a.db-memory").rename(tmp_path / "b.db-memory")
    with limpet.connect(tmp_path / "b.db", memory=True) as lp:
        assert not lp.memory.facts("ada")
        lp.worker().run_once()
        assert lp.memory.facts("ada")


class Stopped(BaseException):
    """Somebody presses Ctrl-C."""


def stopped_at(backup: str | Path, target: Path, step: int) -> bool:
    """Restore, and stop when it is told of progress for that time; False if it came to its end before."""
    told: list[int] = []

    def progress(done: int, _: int) -> None:
        told.append(done)
        if len(told) == step:
            raise Stopped

    try:
        store_opener.restore(backup, target, progress)
    except Stopped:
        return True
    return False


def test_onto_a_file_one_that_is_stopped_anywhere_is_repeated(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(maintenance, "_BACKUP_PAGES", 8)
    monkeypatch.setattr(maintenance, "_EVENTS_PER_READ", 2)
    target, stops, verifying = tmp_path / "home" / "state.db", 0, 0
    target.parent.mkdir()
    while stopped_at(backup, target, stops + 1):
        stops += 1
        assert [file.name for file in target.parent.iterdir()] == ["state.db.part"]
        verifying += (store_copy.staging_folder(target) / "restored" / "state.db").exists()
    assert stops > verifying > 0
    assert [file.name for file in target.parent.iterdir()] == ["state.db"]
    assert kept_at(target) == kept_at(backup)


def test_onto_a_file_what_was_erased_since_is_gone_before_it_is_there(tmp_path: Path):
    home = tmp_path / "home"
    home.mkdir()
    with limpet.connect(tmp_path / "a.db") as lp:
        fill(lp, "ada", Canaries(), 40)
        full_store.said(lp, "kept", "bob", "stays")
        backup = lp.admin.backup(tmp_path / "monday.db")
        lp.admin.erase(user_id="ada")
    listed = Path(f"{tmp_path / 'a.db'}-erased").read_bytes()
    (home / "state.db-erased").write_bytes(listed)
    store_opener.restore(backup, home / "state.db", lambda *_: None)
    assert sorted(file.name for file in home.iterdir()) == ["state.db", "state.db-erased"]
    assert (home / "state.db-erased").read_bytes() == listed
    assert found(home) == {}, "in the file as it lies there, before anybody has opened it"


def test_onto_a_file_what_does_not_verify_is_not_put(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def verify(*_: object) -> None:
        raise errors.Corrupt("told to.")

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "verify_copy", verify)
        with pytest.raises(errors.Corrupt):
            restored(backup, tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()
    assert restored(backup, tmp_path / "b.db") == 9


@pytest.mark.parametrize("onto", ["state.db", "files:state"])
def test_what_help_says_of_the_list_is_so(tmp_path: Path, onto: str):
    with limpet.connect(tmp_path / "a.db") as lp:
        full_store.said(lp, "gone", "ada", "words")
        lp.admin.backup(tmp_path / "monday.db")
        lp.admin.erase(user_id="ada")
    listed = Path(f"{tmp_path / 'a.db'}-erased").read_bytes()
    for beside in ("state.db-erased", "state-erased"):
        (tmp_path / beside).write_bytes(listed)
    assert run("restore", "monday.db", onto, cwd=tmp_path).code == 0
    told = " ".join(run("restore", "--help", cwd=tmp_path).out.split())
    with limpet.connect(tmp_path / onto.removeprefix("files:")) as lp:
        erased = lp.sessions.load_session("gone") is None
    assert erased == (onto == "state.db")
    assert "the erasures that the file TARGET-erased lists are applied again" in told
    assert "A server and a folder have no such list" in told


class Ending(VolatileStore):
    """A server whose client dies when so many tenants were opened."""

    left = 0

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        if name == store_copy.COPY_NOTE and value is None:
            self.left -= 1
            if self.left == 0:
                raise errors.Unavailable("told to.")
        return super().put_note(tenant, name, value, expected=expected)

    def close(self) -> None:
        """A server stays."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Ending:
    """What mine://x names."""
    target, real = Ending(), store_opener.open_store
    monkeypatch.setattr(store_opener, "open_store", lambda url: target if str(url) == "mine://x" else real(url))
    return target


def restored(backup: str | Path, goal: str | Path) -> int:
    return store_opener.restore(backup, goal, lambda *_: None).events


@pytest.mark.parametrize("at", [1, 2, 3])
def test_one_that_ends_while_tenants_are_opened_goes_on(backup: Path, server: Ending, at: int):
    server.left = at
    with pytest.raises(errors.Unavailable):
        restored(backup, "mine://x")
    assert sum(store_copy.is_copy_incomplete(server, tenant) for tenant in TENANTS) == len(TENANTS) - at + 1
    assert restored(backup, "mine://x") == 9
    assert kept(server) == kept_at(backup)
    with pytest.raises(errors.InvalidRequest, match="not empty"):
        restored(backup, "mine://x")


def test_onto_a_file_a_log_that_was_on_its_way_there_goes_on(
    server: Ending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "IMPORT_STEP_EVENTS", 4)
    said(server, "default", "s", *("words" for _ in range(9)))
    target = tmp_path / "b.db"
    assert stopped_at("mine://x", target, 2)
    assert target.exists()
    assert restored("mine://x", target) == 10
    assert kept_at(target) == kept(server)


@pytest.mark.parametrize("there", ["default", "hooli"])
def test_onto_a_store_with_content_the_way_that_is_told_works(tmp_path: Path, there: str):
    with limpet.connect(tmp_path / "a.db") as lp:
        full_store.said(lp, "trip", "ada", "words")
        lp.admin.backup(tmp_path / "monday.db")
    with limpet.connect(f"files:{tmp_path}/its", tenant=there) as lp:
        full_store.said(lp, "visit", "bo", "words")
    done = run("restore", "monday.db", "files:its", cwd=tmp_path)
    assert done.code == 8 and "is not empty" in done.err
    told = done.err.splitlines()[2].partition(": ")[2].removesuffix("  (exit 8)")
    for command in told.split(" && "):
        assert run(*shlex.split(command)[1:], cwd=tmp_path).code == 0, command
    for tenant, name in (("default", "trip"), (there, "visit")):
        with limpet.connect(f"files:{tmp_path}/its", tenant=tenant) as lp:
            assert lp.sessions.get_session(name).message_count == 1


def test_another_backup_is_not_put_among_what_came_of_one(backup: Path, server: Ending, tmp_path: Path):
    server.left = 2
    with pytest.raises(errors.Unavailable):
        restored(backup, "mine://x")
    before = kept(server)
    with limpet.connect(tmp_path / "c.db", tenant="hooli") as lp:
        full_store.said(lp, "s", "ada", "words")
        other = lp.admin.backup(tmp_path / "other.db")
    with pytest.raises(errors.InvalidRequest, match="not empty"):
        restored(other, "mine://x")
    assert kept(server) == before
