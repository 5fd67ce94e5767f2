"""A process is killed at each step of a retention: a session is there whole or gone whole, wherever it is looked for."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

import limpet
from tests.acceptance import full_store
from tests.acceptance.marker_words import found
from tests.faults import retention_processes
from tests.faults.step_kills import Kill

OLD = ("old-0", "old-1", "old-2", "old-3", "old-4")
SAID = ["I live in Oslo.", "A lighthouse, Kestrel0001 MARMOT0001."]
BATCHES = [set(OLD[: retention_processes.BATCH * number]) for number in range(4)]


def made(folder: Path) -> None:
    """Make a store of sessions that ended and that memory has, and one that goes on."""
    folder.mkdir()
    with limpet.connect(folder / "state.db", memory=True, idle_timeout_s=None) as lp:
        for name in OLD:
            full_store.said(lp, name, "ada", *SAID)
        full_store.said(lp, "open", "ada", "A lighthouse.", end=False)
        full_store.worked(lp)
        assert full_store.known(lp, "ada") == SAID[:1]


def judged(folder: Path) -> int:
    """Look at what a killed process has left, let the rest go; return how many had gone."""
    with retention_processes.opened(folder) as lp:
        assert retention_processes.engine_of(lp).store.pending_erasures() is None, "whoever opens it finishes it"
        gone = {name for name in OLD if lp.sessions.load_session(name) is None}
        assert gone in BATCHES, "a batch goes whole or not at all"
        for name in {*OLD} - gone:
            assert [m.content for m in lp.sessions.get_session(name).messages] == SAID
        left = {*OLD, "open"} - gone
        assert {row["id"] for row in lp.sessions.list_sessions()} == left
        hits = lp.archive.search("lighthouse", user_id="ada", limit=50)
        assert {hit.session_id for hit in hits} == left, "the archive has what the log has"
        assert full_store.known(lp, "ada") == SAID[:1], "what memory has learnt stays"
        assert lp.admin.verify().ok
        told = lp.admin.retention(30)
        assert {*told.gone} == {*OLD} - gone
        lp.admin.rebuild()
        assert {row["id"] for row in lp.sessions.list_sessions()} == {"open"}
        assert full_store.known(lp, "ada") == SAID[:1]
    assert found(folder) == {}
    return len(gone)


@pytest.mark.slow
def test_killed_at_each_step_every_session_is_there_whole_or_gone_whole(scratch: Path) -> None:
    first, home = scratch / "first", scratch / "home"
    made(first)
    with retention_processes.Server() as server:

        def left(kill: Kill | None) -> int:
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(first, home)
            assert server.ask(home, kill) == (-signal.SIGKILL if kill else 0), kill
            return judged(home)

        assert left(None) == len(OLD)
        steps = json.loads((scratch / "steps.json").read_text())
        assert steps.count("SQLiteStore.erase") == len(BATCHES) - 1
        kills = [Kill(1, after=False), *(Kill(at + 1, after=True) for at in range(len(steps)))]
        gone = [*map(left, kills)]
    assert gone == sorted(gone), "once it is gone, it stays gone"
    assert {*gone} == {0, 2, 4, 5}
