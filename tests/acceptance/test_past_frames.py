"""Frames as they were: at any position of the log, with what the model had seen, and what differs. C-18."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import ContextHandle, FrameStatus, HandleType, Scope, TokenBudget, errors

SCOPE = Scope("planner")


def last(hf: holdfast.Holdfast) -> int:
    return max((fact.position for fact in hf.events.feed()), default=0)


@pytest.fixture(params=["volatile:", "file"])
def hf(request: pytest.FixtureRequest, tmp_path: Path):
    url = tmp_path / "state.db" if request.param == "file" else request.param
    with holdfast.connect(url) as opened:
        yield opened


def test_every_position_of_the_log_shows_the_frame_as_it_was_then(hf: holdfast.Holdfast):
    root = hf.index.push_frame(SCOPE, goal="plan", budget=TokenBudget(total=8_000))
    seen = {last(hf): hf.index.get_frame(root.frame_id)}
    child = hf.index.push_frame(SCOPE, goal="look", budget=3_000, parent_frame_id=root.frame_id)
    seen[last(hf)] = hf.index.get_frame(root.frame_id)
    hf.index.record_usage(child.frame_id, 2_500)
    hf.index.reserve(root.frame_id, 100, purpose="brief")
    seen[last(hf)] = hf.index.get_frame(root.frame_id)
    hf.index.pop_frame(child.frame_id, result_summary="found")
    seen[last(hf)] = hf.index.get_frame(root.frame_id)
    hf.index.pop_frame(root.frame_id, FrameStatus.FAILED, reason="no")
    seen[last(hf)] = hf.index.get_frame(root.frame_id)

    for position, frame in seen.items():
        moment = hf.events.at(position)
        assert moment.frame(root.frame_id) == frame
        assert (root.frame_id in moment.tree(root.frame_id).frames) is frame.open
    assert len({frame.budget.available() for frame in seen.values()}) > 2


def test_a_frame_that_was_not_there_yet_is_not_found(hf: holdfast.Holdfast):
    root = hf.index.push_frame(SCOPE, goal="plan", budget=8_000)
    before = last(hf)
    child = hf.index.push_frame(SCOPE, goal="look", budget=3_000, parent_frame_id=root.frame_id)
    with pytest.raises(errors.FrameNotFound):
        hf.events.at(before).frame(child.frame_id)
    with pytest.raises(errors.FrameNotFound):
        hf.events.at(before).frame("nothing")
    difference = hf.events.at(before).diff(hf.events.at(last(hf))).frame(child.frame_id)
    assert difference.before is None and difference.after == child


def test_the_difference_of_two_moments_names_what_changed(hf: holdfast.Holdfast):
    root = hf.index.push_frame(SCOPE, goal="plan", budget=8_000)
    before = last(hf)
    hf.index.record_usage(root.frame_id, 10)
    hf.index.update_frame(root.frame_id, goal="plan well")
    difference = hf.events.at(before).diff(hf.events.at(last(hf))).frame(root.frame_id)
    assert set(difference.changed) == {"goal", "budget", "updated_us"}


def test_what_the_model_saw_at_a_past_moment_is_the_pack_of_then(hf: holdfast.Holdfast):
    frame = hf.index.push_frame(SCOPE, goal="plan", budget=8_000)
    start = last(hf)
    packs: dict[int, str] = {}
    for number in range(3):
        handle = ContextHandle(
            handle_id=f"h{number}", handle_type=HandleType.DOCUMENT, content=f"fact {number}"
        )
        hf.index.add_context_handle(frame.frame_id, handle)
        pack = hf.index.assemble_context_pack(SCOPE, budget_tokens=2_000)
        packs[last(hf)] = pack.context_hash
    assert len(set(packs.values())) == 3
    for position, digest in packs.items():
        assert hf.events.at(position).pack(frame.frame_id).context_hash == digest
    with pytest.raises(errors.NotFound):
        hf.events.at(start).pack(frame.frame_id)


def test_another_tenants_frames_were_never_there(tmp_path: Path):
    with holdfast.connect(tmp_path / "state.db") as hf:
        frame = hf.index.push_frame(SCOPE, goal="plan", budget=8_000)
    with holdfast.connect(tmp_path / "state.db", tenant="other") as other:
        other.index.push_frame(SCOPE, goal="else", budget=10)
        with pytest.raises(errors.FrameNotFound):
            other.events.at(1).frame(frame.frame_id)
