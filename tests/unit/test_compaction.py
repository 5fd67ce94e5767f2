"""Which handles a frame lets go of: four strategies, saturating, never critical, never half a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from limpet import CompactionLevel, errors
from limpet.core.values.context import CompactionStrategy, ContextHandle
from limpet.core.windows import compaction
from limpet.core.windows.compaction import CompactionPlan
from limpet.core.windows.pack import ContextPack
from tests.unit.pack_steps import assemble, handle, stack, wanted

PRIORITY, OLDEST = CompactionStrategy.PRIORITY_BASED, CompactionStrategy.SUMMARIZE_OLDEST
replace = msgspec.structs.replace


def plan(
    handles: Sequence[ContextHandle], target: int, strategy: CompactionStrategy, **together: int
) -> CompactionPlan:
    (frame,) = stack(1, handles)
    return compaction.plan_compaction(
        frame,
        target,
        strategy,
        together=together,
        contents=lambda asked: {one.handle_id: one.content or "" for one in asked},
        whole=lambda: assemble(wanted(1_000_000, handles)),
    )


def removed(planned: CompactionPlan) -> list[str]:
    return list(planned.command.removed) if planned.command else []


@pytest.mark.req("C-26")
def test_the_least_important_go_first_and_no_more_than_needed():
    names = ["critical", "background", "low", "medium", "high", "background", "low"]
    handles = [handle(f"{name}{n}", 100, name) for n, name in enumerate(names)]
    planned = plan(handles, 400, PRIORITY)
    assert removed(planned) == ["background1", "background5", "low2"], "the oldest first"
    result = planned.result
    assert (result.original_tokens, result.final_tokens) == (700, 400)
    assert (result.items_removed, result.items_summarized) == (3, 0)
    assert result.target_met and result.compaction_level is CompactionLevel.MODERATE
    all_but = plan(handles, 0, PRIORITY)
    assert "critical0" not in removed(all_but) and len(removed(all_but)) == 6
    assert not all_but.result.target_met and all_but.result.final_tokens == 100
    assert all_but.result.compaction_level is CompactionLevel.CRITICAL


@pytest.mark.req("C-26")
def test_a_handle_that_nobody_counted_has_a_hundred():
    handles = [handle("a", 5, estimated_tokens=None), handle("b", 30)]
    assert plan(handles, 50, PRIORITY).result.original_tokens == 130
    assert plan(handles, 50, PRIORITY).result.final_tokens == 30


@pytest.mark.req("C-26")
def test_nothing_happens_where_it_fits():
    handles = [handle(f"h{n}", 10) for n in range(30)]
    for strategy in (PRIORITY, OLDEST):
        planned = plan(handles, 300, strategy)
        assert planned.command is None
        assert planned.result.compaction_level is CompactionLevel.NONE
        assert planned.result.target_met
    assert plan([], 0, PRIORITY).command is None


@pytest.mark.req("C-26")
def test_pinned_handles_stay():
    handles = [handle("a", 10, "background", pinned=True), handle("b", 10, "high")]
    for strategy in (PRIORITY, CompactionStrategy.truncate_at(0)):
        assert removed(plan(handles, 0, strategy)) == ["b"]


@pytest.mark.req("C-26")
def test_the_newest_ten_stay_and_one_summary_stands_for_the_rest():
    text = "We decided on pier {n} because of the tide. " + "Nothing else happened here. " * 40
    handles = [handle(f"h{n}", 300, content=text.format(n=n)) for n in range(15)]
    handles[2] = replace(handles[2], priority=100)
    planned = plan(handles, 3_500, OLDEST)
    assert removed(planned) == ["h0", "h1", "h3", "h4"]
    command = planned.command
    assert command is not None
    (made,) = command.replaced
    assert made.content is not None and "h1: We decided on pier 1" in made.content
    assert (planned.result.items_removed, planned.result.items_summarized) == (0, 4)
    assert planned.result.final_tokens == 11 * 300 + made.size
    assert planned.result.compaction_level is CompactionLevel.MODERATE
    again = [made, handles[2], *handles[5:]]
    assert plan(again, 1_000, OLDEST).command is None, "a summary is not summarised alone"
    rolled = plan([*again, handle("new", 300)], 1_000, OLDEST)
    assert removed(rolled) == [made.handle_id, "h5"], "at most one summary"


@pytest.mark.req("C-26")
@pytest.mark.parametrize(("most", "gone"), [(0, 4), (1, 3), (3, 1), (9, 0)])
def test_the_newest_so_many_stay(most: int, gone: int):
    handles = [handle("c", 10, "critical"), *(handle(f"h{n}", 10) for n in range(4))]
    planned = plan(handles, 1_000, CompactionStrategy.truncate_at(most))
    assert sorted(removed(planned)) == [f"h{n}" for n in range(gone)]


@pytest.mark.req("C-26")
@pytest.mark.parametrize("strategy", [PRIORITY, OLDEST, CompactionStrategy.truncate_at(3)])
def test_a_pair_goes_together_or_stays(strategy: CompactionStrategy):
    for target in range(0, 1_300, 50):
        handles = [handle(f"h{n}", 100, "low" if n % 2 else "medium") for n in range(13)]
        gone = set(removed(plan(handles, target, strategy, h1=1, h2=1, h9=2, h10=2)))
        assert ("h1" in gone) == ("h2" in gone)
        assert ("h9" in gone) == ("h10" in gone)
    critical = [handle("call", 10, "critical"), handle("result", 10, "low")]
    assert removed(plan(critical, 0, strategy, call=1, result=1)) == []


def without(*names: str) -> Callable[[ContextPack], ContextPack]:
    return lambda pack: replace(pack, segments=tuple(s for s in pack.segments if s.handle_id not in names))


@pytest.mark.req("C-11")
@pytest.mark.req("C-26")
def test_a_function_may_choose():
    handles = [handle("a", 10, "critical"), handle("b", 10), handle("c", 10), handle("d", 10)]
    chosen = CompactionStrategy.custom(without("b", "c"))
    assert removed(plan(handles, 20, chosen)) == ["b", "c"]
    assert removed(plan(handles, 20, chosen, c=1, d=1)) == ["b"], "half a pair stays whole"
    with pytest.raises(errors.InvalidRequest, match="'a', which is critical"):
        plan(handles, 20, CompactionStrategy.custom(without("a")))
    with pytest.raises(errors.InvalidRequest, match="returns a ContextPack"):
        plan(handles, 20, CompactionStrategy.custom(lambda pack: None))

    def made_up(pack: ContextPack) -> ContextPack:
        first = replace(pack.segments[0], handle_id="nobody")
        return replace(pack, segments=(*pack.segments, first))

    with pytest.raises(errors.InvalidRequest, match="no handle of the frame"):
        plan(handles, 20, CompactionStrategy.custom(made_up))


def shorter(name: str) -> Callable[[ContextPack], ContextPack]:
    return lambda pack: replace(
        pack, segments=tuple(replace(s, content="short") if s.handle_id == name else s for s in pack.segments)
    )


def test_a_function_may_shorten():
    handles = [handle("a", 10, "critical"), handle("b", 100)]
    planned = plan(handles, 20, CompactionStrategy.custom(shorter("b")))
    assert planned.command is not None and planned.command.replaced[0].content == "short"
    assert (planned.result.items_summarized, planned.result.final_tokens) == (1, 12)
    with pytest.raises(errors.InvalidRequest, match="altered 'a'"):
        plan(handles, 20, CompactionStrategy.custom(shorter("a")))


@pytest.mark.req("C-11")
def test_strategies_are_checked():
    assert PRIORITY.label == "priority_based"
    assert CompactionStrategy.truncate_at(5).label == "truncate_at(5)"
    bad: list[Callable[[], Any]] = [
        lambda: CompactionStrategy("fastest"),
        lambda: CompactionStrategy.truncate_at(-1),
        lambda: CompactionStrategy.truncate_at(True),
        lambda: CompactionStrategy.custom(3),  # pyright: ignore[reportArgumentType]
        lambda: plan([], -1, PRIORITY),
    ]
    for make in bad:
        with pytest.raises(errors.InvalidRequest):
            make()


@pytest.mark.req("C-26")
@pytest.mark.parametrize(
    ("final", "summarised", "level"),
    [(750, False, "light"), (749, False, "moderate"), (500, False, "moderate"),
     (499, False, "aggressive"), (900, True, "moderate"), (100, True, "aggressive")],
)  # fmt: skip
def test_the_level_follows_a_written_rule(final: int, summarised: bool, level: str):
    found = compaction.resulting_level(1_000, final, changed=True, summarised=summarised, only_critical=False)
    assert found.label == level
