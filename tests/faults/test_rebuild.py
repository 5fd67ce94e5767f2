"""The power fails after any operation of a rebuild: all the old rows are there, or all the new ones."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
from pathlib import Path

import pytest

import limpet
from tests.faults import images, oplog, recorded_rebuild, recorded_run
from tests.faults.images import Cut
from tests.faults.oplog import Kind
from tests.faults.recorded_rebuild import SEED, Rows, rows

STYLES = ("none", "all", *["mixed"] * 4)


@pytest.mark.slow
def test_a_power_cut_leaves_the_old_rows_or_the_new(scratch: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=recorded_rebuild.record, args=(scratch,))
    child.start()
    child.join()
    assert child.exitcode == 0
    before, after = pickle.loads((scratch / "rows").read_bytes())
    assert before != after
    ops = oplog.read(scratch / recorded_run.LOG)
    begins, done = (at for at, op in enumerate(ops) if op.kind is Kind.NOTE and "rebuild" in op.note())
    cuts = [
        Cut(at, SEED * at + number, style) for at in range(begins, len(ops) + 1) for number, style in enumerate(STYLES)
    ]
    seen: set[bytes] = set()
    found = {"before": 0, "after": 0}
    for cut, image in images.render(ops, cuts):
        if cut.ops <= done and images.digest(image) in seen:
            continue
        seen.add(images.digest(image))
        left = judged(scratch / "image", image)
        assert left in (before, after), cut
        assert left == after or cut.ops <= done, cut
        found["after" if left == after else "before"] += 1
    print(f"{len(seen)} images of {len(ops) - begins} operations: {found}")
    assert all(found.values())
    assert found["before"] > 50, "most of a rebuild is not there until it is whole"


def judged(folder: Path, image: images.Image) -> Rows:
    """Open a store as the power cut left it; return what is derived there."""
    folder.mkdir()
    try:
        for name, content in image.items():
            (folder / name).write_bytes(content)
        with limpet.connect(folder / recorded_run.STORE) as lp:
            found = rows(folder / recorded_run.STORE)
            faults = lp.admin.verify().faults
            # The rows that were spoiled are the only fault there may be.
            assert set(faults) <= {"a row of projections is damaged."}
            return found
    finally:
        shutil.rmtree(folder)
