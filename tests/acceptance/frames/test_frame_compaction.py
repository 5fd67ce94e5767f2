"""Compaction over a real store: what a frame lets go of is gone from it, and only from it."""

from __future__ import annotations

import msgspec
import pytest

from limpet import CompactionStrategy, ContextPack, Limpet, errors
from tests.acceptance.conversation_steps import answer, asking, giving, user
from tests.acceptance.frames.test_context_packs import SCOPE, add, contents, pushed


@pytest.mark.req("C-26")
def test_compacting_lets_go_for_good(lp: Limpet):
    frame = pushed(lp)
    for number, priority in enumerate(["critical", "low", "medium", "high"]):
        add(lp, frame, priority, content="x " * 100, priority=priority, estimated_tokens=100 + number)
    lp.index.record_usage(frame.frame_id, 77)
    result = lp.index.compact_context(frame.frame_id, 250)
    assert (result.original_tokens, result.final_tokens, result.items_removed) == (406, 203, 2)
    after = lp.index.get_frame(frame.frame_id)
    assert [handle.handle_id for handle in after.context_handles] == ["critical", "high"]
    assert after.budget.used == 77, "what was spent stays spent"
    before = len(list(lp.events.feed()))
    again = lp.index.compact_context(frame.frame_id, 250)
    assert (again.original_tokens, again.items_removed) == (203, 0)
    assert len(list(lp.events.feed())) == before, "nothing happened, so nothing is recorded"
    assert not lp.index.compact_context(frame.frame_id, 50).target_met
    with pytest.raises(errors.FrameNotFound):
        lp.index.compact_context("nobody", 50)
    with pytest.raises(errors.InvalidRequest):
        lp.index.compact_context(frame.frame_id, 50, "fastest")  # pyright: ignore[reportArgumentType]


@pytest.mark.req("C-26")
def test_a_summary_takes_the_place_of_the_oldest(lp: Limpet):
    frame = pushed(lp, 50_000, max_context_tokens=None)
    for number in range(16):
        add(lp, frame, f"h{number}", content=f"We decided on pier {number}. " + "Nothing else. " * 60)
    result = lp.index.compact_context(frame.frame_id, 1_000, CompactionStrategy.SUMMARIZE_OLDEST)
    assert (result.items_removed, result.items_summarized) == (0, 6)
    handles = lp.index.get_frame(frame.frame_id).context_handles
    assert [handle.handle_id for handle in handles[1:]] == [f"h{n}" for n in range(6, 16)]
    pack = lp.index.assemble_context_pack(SCOPE)
    assert "h2: We decided on pier 2." in contents(pack)[handles[0].handle_id]


@pytest.mark.req("C-26")
@pytest.mark.parametrize("target", [60, 120, 180])
def test_a_call_is_not_parted_from_its_result(lp: Limpet, target: int):
    session = lp.sessions.create_session("trip")
    session.add_messages([user("q"), asking("c1", "c2"), giving("c1"), giving("c2"), answer("a")])
    frame = pushed(lp)
    for number in range(1, 6):
        add(lp, frame, f"m{number}", "message_range", estimated_tokens=60,
            target={"session_id": "trip", "first": number, "last": number})  # fmt: skip
    for strategy in (CompactionStrategy.PRIORITY_BASED, CompactionStrategy.truncate_at(target // 60)):
        lp.index.compact_context(frame.frame_id, target, strategy)
        left = {handle.handle_id for handle in lp.index.get_frame(frame.frame_id).context_handles}
        assert left & {"m2", "m3", "m4"} in (set(), {"m2", "m3", "m4"})


@pytest.mark.req("C-11")
def test_a_function_compacts_a_frame(lp: Limpet):
    frame = pushed(lp)
    add(lp, frame, "a", content="keep")
    add(lp, frame, "b", content="drop")

    def choose(pack: ContextPack) -> ContextPack:
        kept = tuple(s for s in pack.segments if s.content != "drop")
        return msgspec.structs.replace(pack, segments=kept)

    result = lp.index.compact_context(frame.frame_id, 10, CompactionStrategy.custom(choose))
    assert result.items_removed == 1
    assert [h.handle_id for h in lp.index.get_frame(frame.frame_id).context_handles] == ["a"]
