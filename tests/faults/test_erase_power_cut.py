"""The power fails at any moment of an erasure: everything or nothing is there, and whoever opens it next finishes it."""

from __future__ import annotations

import multiprocessing
import re
import shutil
from pathlib import Path

import pytest

import limpet
from tests.acceptance.marker_words import WORDS
from tests.faults import campaign, images, recorded_erasure, recorded_run
from tests.faults.oplog import Kind, Op, read
from tests.faults.recorded_erasure import SECRET

IMAGES = 150
MEMORY = re.compile(rb"-memory|\.index/memory")


def judge(home: Path, backend: str) -> bool:
    """Open an image; return whether the user is gone."""
    with limpet.connect(recorded_run.url(home, backend)) as lp:
        assert lp.admin.verify().ok
        assert lp.sessions._service.engine.store.pending_erasures() is None
        assert len(lp.sessions.get_session("kept").messages) == 5
        mine = lp.sessions.load_session("mine")
        assert mine is None or [str(m.content) for m in mine.messages] == [SECRET] * 5
        assert mine is not None or left(home) == {}
    if backend == "files":
        shutil.rmtree(home / "state" / ".index")
        with limpet.connect(recorded_run.url(home, backend)) as lp:
            assert lp.admin.verify().ok
            assert (lp.sessions.load_session("mine") is None) == (mine is None)
    return mine is None


def left(home: Path) -> dict[str, int]:
    """Return the files that have a word of what was to go, in whichever folder."""
    every = [home, *(path for path in home.rglob("*") if path.is_dir())]
    return {name: n for folder in every for name, n in words(folder).items()}


def words(folder: Path) -> dict[str, int]:
    """Return the files of one folder that have a word of what was to go."""
    texts = ((f.name, len(set(WORDS.findall(f.read_bytes().lower())))) for f in folder.iterdir() if f.is_file())
    return {name: count for name, count in texts if count}


def of_the_store(ops: list[Op]) -> list[Op]:
    """Leave out the memory's file: it is made under another name, which the recorder does not see, and has nothing here."""
    named = (Kind.CREATE, Kind.DELETE, Kind.RENAME)
    ours = [op for op in ops if op.kind not in named or not MEMORY.search(op.data)]
    known = {op.inode for op in ours if op.kind is Kind.CREATE} | {0}
    return [op for op in ours if op.inode in known]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite", "files"])
def test_whatever_the_disk_had_cached_it_is_all_or_nothing(scratch: Path, backend: str) -> None:
    (scratch / "store").mkdir()
    child = multiprocessing.get_context("spawn").Process(target=recorded_erasure.erase, args=(str(scratch), backend))
    child.start()
    child.join()
    assert child.exitcode == 0
    ops = of_the_store(read(scratch / "operations"))
    begins, done = [at for at, op in enumerate(ops) if op.kind is Kind.NOTE]
    planned = [one for one in images.plan(ops, 1 << 20, 7, rounds=6) if one.last > begins]
    after = [one for one in planned if one.last > done]
    planned = planned[:: max(1, len(planned) // IMAGES)] + after
    outcomes: list[bool] = []
    for (_, image), one in zip(images.render(ops, [each.cut for each in planned]), planned, strict=True):
        home = scratch / "home"
        campaign.laid_out(home, image, backend)
        if one.last > done:
            assert left(home) == {}, "it was through, whoever looks next"
        gone = judge(home, backend)
        assert gone or one.last <= done, "what was acknowledged came back"
        outcomes.append(gone)
        shutil.rmtree(home)
    assert len(outcomes) >= IMAGES + len(after) and after
    assert {True, False} == set(outcomes)
