"""Frames as they were: at any position of the log, with what the model had seen, and what differs. C-18."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import ContextHandle, FrameStatus, Scope, TokenBudget, errors
from limpet.frames import HandleType

SCOPE = Scope("planner")


def last(lp: limpet.Limpet) -> int:
    return max((fact.position for fact in lp.events.feed()), default=0)


@pytest.fixture(params=["volatile:", "file"])
def lp(request: pytest.FixtureRequest, tmp_path: Path):
    url = tmp_path / "state.db" if request.param == "file" else request.param
    with limpet.connect(url) as opened:
        yield opened


def test_every_position_of_the_log_shows_the_frame_as_it_was_then(lp: limpet.Limpet):
    root = lp.index.push_frame(SCOPE, goal="plan", budget=TokenBudget(total=8_000))
    seen = {last(lp): lp.index.get_frame(root.frame_id)}
    child = lp.index.push_frame(SCOPE, goal="look", budget=3_000, parent_frame_id=root.frame_id)
    seen[last(lp)] = lp.index.get_frame(root.frame_id)
    lp.index.record_usage(child.frame_id, 2_500)
    lp.index.reserve(root.frame_id, 100, purpose="brief")
    seen[last(lp)] = lp.index.get_frame(root.frame_id)
    lp.index.pop_frame(child.frame_id, result_summary="found")
    seen[last(lp)] = lp.index.get_frame(root.frame_id)
    lp.index.pop_frame(root.frame_id, FrameStatus.FAILED, reason="no")
    seen[last(lp)] = lp.index.get_frame(root.frame_id)

    for position, frame in seen.items():
        moment = lp.events.at(position)
        assert moment.frame(root.frame_id) == frame
        assert (root.frame_id in moment.tree(root.frame_id).frames) is frame.open
    assert len({frame.budget.available() for frame in seen.values()}) > 2


def test_a_frame_that_was_not_there_yet_is_not_found(lp: limpet.Limpet):
    root = lp.index.push_frame(SCOPE, goal="plan", budget=8_000)
    before = last(lp)
    child = lp.index.push_frame(SCOPE, goal="look", budget=3_000, parent_frame_id=root.frame_id)
    with pytest.raises(errors.FrameNotFound):
        lp.events.at(before).frame(child.frame_id)
    with pytest.raises(errors.FrameNotFound):
        lp.events.at(before).frame("nothing")
    difference = lp.events.at(before).diff(lp.events.at(last(lp))).frame(child.frame_id)
    assert difference.before is None and difference.after == child


def test_the_difference_of_two_moments_names_what_changed(lp: limpet.Limpet):
    root = lp.index.push_frame(SCOPE, goal="plan", budget=8_000)
    before = last(lp)
    lp.index.record_usage(root.frame_id, 10)
    lp.index.update_frame(root.frame_id, goal="plan well")
    difference = lp.events.at(before).diff(lp.events.at(last(lp))).frame(root.frame_id)
    assert set(difference.changed) == {"goal", "budget", "updated_us"}


def test_what_the_model_saw_at_a_past_moment_is_the_pack_of_then(lp: limpet.Limpet):
    frame = lp.index.push_frame(SCOPE, goal="plan", budget=8_000)
    start = last(lp)
    packs: dict[int, str] = {}
    for number in range(3):
        handle = ContextHandle(handle_id=f"h{number}", handle_type=HandleType.DOCUMENT, content=f"fact {number}")
        lp.index.add_context_handle(frame.frame_id, handle)
        pack = lp.index.assemble_context_pack(SCOPE, budget_tokens=2_000)
        packs[last(lp)] = pack.context_hash
    assert len(set(packs.values())) == 3
    for position, digest in packs.items():
        assert lp.events.at(position).pack(frame.frame_id).context_hash == digest
    with pytest.raises(errors.NotFound):
        lp.events.at(start).pack(frame.frame_id)


def test_another_tenants_frames_were_never_there(tmp_path: Path):
    with limpet.connect(tmp_path / "state.db") as lp:
        frame = lp.index.push_frame(SCOPE, goal="plan", budget=8_000)
    with limpet.connect(tmp_path / "state.db", tenant="other") as other:
        other.index.push_frame(SCOPE, goal="else", budget=10)
        with pytest.raises(errors.FrameNotFound):
            other.events.at(1).frame(frame.frame_id)
