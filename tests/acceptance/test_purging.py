"""The background erases what was deleted: what can go goes, what waits is told of once, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import limits
from holdfast.engine.bonding import BondedShelf
from holdfast.store.sqlite.shelf import SQLiteShelf
from holdfast.testing.scribe import Scribe
from holdfast.values.memory import Who
from tests.acceptance.whole import has, known, opened, said, worked


class Listening(Scribe):
    """An engine that keeps what it was told to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str | None, int | None]] = []

    def forget(self, who: Who, session_id: str | None = None, position: int | None = None) -> int:
        """Note it."""
        self.told.append((session_id, position))
        return super().forget(who, session_id, position)


@pytest.fixture
def path(fast_dir: Path) -> Path:
    return fast_dir / "state.db"


@pytest.mark.parametrize("at_once", [1, 3])
def test_those_that_wait_for_forks_hold_up_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
):
    monkeypatch.setattr(limits, "PURGE_SESSIONS", at_once)
    scrubbed, forks = list[int](), list[str]()
    scrub = SQLiteShelf.scrub
    monkeypatch.setattr(SQLiteShelf, "scrub", lambda self: (scrubbed.append(1), scrub(self)))
    with opened(path) as hf:
        said(hf, "old", "ada", "I live in Marmotville.")
        for name in ("one", "two", "three"):
            said(hf, name, "ada", f"I work as a baker of {name}.")
            forks.append(hf.sessions.fork_session(name).id)
        worked(hf)
        assert len(known(hf, "ada")) >= 2
        for name in ("old", "one", "two", "three"):
            hf.sessions.delete_session(name)
        worked(hf)
        assert not has(path.parent, "Marmotville")
        assert not known(hf, "ada")
        scrubbed.clear()
        hf.sessions.create_session("new")
        worked(hf)
        assert not scrubbed, "what waits is told of once"
        for name in forks:
            hf.sessions.delete_session(name)
        worked(hf)
        assert not has(path.parent, "baker")
        assert scrubbed


def test_an_id_that_is_used_again_costs_nobody_their_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    renewed: list[int] = []
    renew = BondedShelf.renew
    monkeypatch.setattr(BondedShelf, "renew", lambda self: (renewed.append(1), renew(self)))
    with opened(path) as hf:
        said(hf, "one", "ada", "I live in Marmotville.")
        said(hf, "two", "ada", "I work as a baker.")
        worked(hf)
        hf.sessions.delete_session("one")
        said(hf, "one", "ada", "I am allergic to peanuts.")
        worked(hf)
        found = " ".join(known(hf, "ada"))
        assert "baker" in found and "peanuts" in found and "Marmotville" not in found
        assert hf.archive.search("peanuts", user_id="ada")
    assert not has(path.parent, "Marmotville")
    assert not renewed


def test_an_engine_elsewhere_is_told_what_had_the_id_before(path: Path):
    memory = Listening()
    with holdfast.connect(path, memory=memory) as hf:
        said(hf, "one", "ada", "I live in Oslo.")
        assert hf.worker().run_once().failures == 0
        ((_, (before,)),) = memory.taken.values()
        hf.sessions.delete_session("one")
        said(hf, "one", "ada", "I like tea.")
        assert hf.admin.erase().pending is False
    assert ("one", before.position) in memory.told
    assert ("one", None) not in memory.told
