"""The background erases what was deleted: what can go goes, what waits is told of once, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import limits
from limpet.core.values.memory_records import TenantUser
from limpet.memory.index_store import PairedIndexStore
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from limpet.testing.memory_fakes import Scribe
from tests.acceptance.full_store import has, known, opened, said, worked


class Listening(Scribe):
    """An engine that keeps what it was told to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str | None, int | None]] = []

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
        """Note it."""
        self.told.append((session_id, position))
        return super().forget(user, session_id, position)


@pytest.fixture
def path(fast_dir: Path) -> Path:
    return fast_dir / "state.db"


@pytest.mark.parametrize("at_once", [1, 3])
def test_those_that_wait_for_forks_hold_up_no_other(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int):
    monkeypatch.setattr(limits, "PURGE_BATCH_SESSIONS", at_once)
    scrubbed, forks = list[int](), list[str]()
    scrub = SQLiteIndexStore.scrub
    monkeypatch.setattr(SQLiteIndexStore, "scrub", lambda self: (scrubbed.append(1), scrub(self)))
    with opened(path) as lp:
        said(lp, "old", "ada", "I live in Marmotville.")
        for name in ("one", "two", "three"):
            said(lp, name, "ada", f"I work as a baker of {name}.")
            forks.append(lp.sessions.fork_session(name).id)
        worked(lp)
        assert len(known(lp, "ada")) >= 2
        for name in ("old", "one", "two", "three"):
            lp.sessions.delete_session(name)
        worked(lp)
        assert not has(path.parent, "Marmotville")
        assert not known(lp, "ada")
        scrubbed.clear()
        lp.sessions.create_session("new")
        worked(lp)
        assert not scrubbed, "what waits is told of once"
        for name in forks:
            lp.sessions.delete_session(name)
        worked(lp)
        assert not has(path.parent, "baker")
        assert scrubbed


def test_an_id_that_is_used_again_costs_nobody_their_memory(path: Path, monkeypatch: pytest.MonkeyPatch):
    renewed: list[int] = []
    renew = PairedIndexStore.clear
    monkeypatch.setattr(PairedIndexStore, "clear", lambda self: (renewed.append(1), renew(self)))
    with opened(path) as lp:
        said(lp, "one", "ada", "I live in Marmotville.")
        said(lp, "two", "ada", "I work as a baker.")
        worked(lp)
        lp.sessions.delete_session("one")
        said(lp, "one", "ada", "I am allergic to peanuts.")
        worked(lp)
        found = " ".join(known(lp, "ada"))
        assert "baker" in found and "peanuts" in found and "Marmotville" not in found
        assert lp.archive.search("peanuts", user_id="ada")
    assert not has(path.parent, "Marmotville")
    assert not renewed


def test_an_engine_elsewhere_is_told_what_had_the_id_before(path: Path):
    memory = Listening()
    with limpet.connect(path, memory=memory) as lp:
        said(lp, "one", "ada", "I live in Oslo.")
        assert lp.worker().run_once().failures == 0
        ((_, (before,)),) = memory.taken.values()
        lp.sessions.delete_session("one")
        said(lp, "one", "ada", "I like tea.")
        assert lp.admin.erase().pending is False
    assert ("one", before.position) in memory.told
    assert ("one", None) not in memory.told
