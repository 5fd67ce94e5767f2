"""Frames that have closed: kept in their tree for a while, then in rows, and found the same either way."""

from pathlib import Path

import apsw
import pytest

import limpet
from limpet import FrameStatus, Scope, TokenBudget, errors, limits
from limpet.runtime import state_cache
from limpet.stores import port

SCOPE = Scope("planner", session_id="trip")
OTHER = Scope("reader")
KEPT = limits.FRAMES_CLOSED_KEPT


def worked(lp: limpet.Limpet, count: int, scope: Scope = SCOPE) -> tuple[str, list[str]]:
    """A root with so many children, one after another, each spent and closed."""
    root = lp.index.push_frame(scope, goal="plan", budget=TokenBudget(total=1_000_000))
    ids: list[str] = []
    for number in range(count):
        child = lp.index.push_frame(
            OTHER if number % 2 else scope, goal=f"part {number}", budget=100,
            parent_frame_id=root.frame_id,
        )  # fmt: skip
        lp.index.record_usage(child.frame_id, number)
        lp.index.pop_frame(child.frame_id, result_summary=f"found {number}")
        ids.append(child.frame_id)
    return root.frame_id, ids


def rows(lp: limpet.Limpet) -> list[str]:
    query = port.Query(kind=state_cache.FRAME_KIND)
    return [row.id for row in state_cache.iter_rows(lp._opened.engine.store, "default", query)]


@pytest.mark.parametrize("count", [1, KEPT - 1, KEPT, KEPT + 1, 3 * KEPT + 5])
def test_closed_frames_are_found_wherever_they_are_kept(tmp_path: Path, count: int) -> None:
    with limpet.connect(tmp_path / "a.db") as lp:
        root, ids = worked(lp, count)
        assert len(rows(lp)) == count // KEPT * KEPT
        for _ in range(2):
            with limpet.connect(tmp_path / "a.db") as other:
                for index in (lp.index, other.index):
                    found = [index.get_frame(frame_id) for frame_id in ids]
                    assert [frame.budget.used for frame in found] == list(range(count))
                    assert {frame.status for frame in found} == {FrameStatus.COMPLETED}
                    with pytest.raises(errors.InvalidTransition):
                        index.pop_frame(ids[-1])
                    listed = index.list_frames(open_only=False, limit=10_000)
                    assert [frame.frame_id for frame in listed] == [root, *reversed(ids)]
                    theirs = index.list_frames(OTHER, open_only=False, limit=10_000)
                    assert [frame.frame_id for frame in theirs] == [*reversed(ids[1::2])]
                    assert len(index.list_frames(open_only=False, limit=2)) == 2
            before = rows(lp)
            lp.admin.rebuild()
            assert rows(lp) == before


def test_a_tree_that_closes_leaves_nothing_behind(tmp_path: Path) -> None:
    with limpet.connect(tmp_path / "a.db") as lp:
        root, ids = worked(lp, 3)
        lp.index.pop_frame(root)
        assert sorted(rows(lp)) == sorted([root, *ids])
        assert lp.index.list_frames(SCOPE) == []
        assert lp.index.get_frame(ids[0]).result_summary == "found 0"


def test_large_closed_frames_leave_their_tree_at_once(tmp_path: Path) -> None:
    with limpet.connect(tmp_path / "a.db") as lp:
        root = lp.index.push_frame(SCOPE, goal="plan", budget=1_000)
        child = lp.index.push_frame(SCOPE, goal="read", budget=1, inputs=["x" * 20_000], parent_frame_id=root.frame_id)
        lp.index.pop_frame(child.frame_id)
        assert rows(lp) == [child.frame_id]
        assert lp.index.get_frame(child.frame_id).inputs == ["x" * 20_000]


def test_a_cascade_over_many_closes_them_all(tmp_path: Path) -> None:
    with limpet.connect(tmp_path / "a.db") as lp:
        root = lp.index.push_frame(SCOPE, goal="plan", budget=1_000)
        ids = [
            lp.index.push_frame(SCOPE, goal="part", budget=1, parent_frame_id=root.frame_id).frame_id
            for _ in range(2 * KEPT + 5)
        ]
        closed = lp.index.pop_frame(root.frame_id, FrameStatus.CANCELLED, cascade=True)
        assert (closed.frame_id, closed.status) == (root.frame_id, FrameStatus.CANCELLED)
        assert sorted(rows(lp)) == sorted([root.frame_id, *ids])


def test_the_view_of_frames_knows_how_each_ended(tmp_path: Path) -> None:
    with limpet.connect(tmp_path / "a.db") as lp:
        root, ids = worked(lp, KEPT + 2)
    connection = apsw.Connection(str(tmp_path / "a.db"))
    found = {row[0]: row[1:] for row in connection.execute(
        "SELECT frame_id, status, used, completed_at IS NULL FROM frames"
    )}  # fmt: skip
    connection.close()
    assert found[root] == ("open", None, 1)
    assert [found[id_] for id_ in ids[:KEPT]] == [("completed", n, 0) for n in range(KEPT)]
    assert [found[id_] for id_ in ids[KEPT:]] == [("completed", None, 0)] * 2
