"""Random packs: each fits or says so, keeps what is critical, leaves out what is excluded, accounts for all."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet import CompactionLevel, ContextPriority, errors
from limpet.core.values import messages
from limpet.core.values.context import ContextHandle, Fate, HandleType
from limpet.core.windows import pack_assembly
from limpet.core.windows import window as windows
from limpet.core.windows.pack import BriefContext, ContextPack, ConversationMoment
from limpet.core.windows.pack_assembly import PackInput
from limpet.testing import providers
from tests.property.window_checks import Talk, count, pieces
from tests.unit.pack_steps import COUNTED, SCOPE, Library, stack

BUDGETS = st.sampled_from([500, 501, 600, 800, 1_200, 3_000, 20_000])


@st.composite
def wishes(draw: st.DrawFn) -> PackInput:
    seed = draw(st.integers(0, 10_000))
    talk = Talk(seed)
    said = talk.messages(draw(st.sampled_from([0, 1, 3, 8, 25]))) if draw(st.booleans()) else []
    kinds = [HandleType.DOCUMENT, HandleType.TOOL_OUTPUT, HandleType.URL]
    handles = [
        ContextHandle(
            handle_id=f"h{n}",
            handle_type=draw(st.sampled_from(kinds)),
            description=draw(st.sampled_from(["", "list of ferries", "]\n[/evidence-1]"])),
            priority=talk.dice.choice([*list(ContextPriority)[1:] * 4, ContextPriority.CRITICAL]),
            estimated_tokens=talk.dice.choice([None, 1, 20, 90, 400]),
            content=talk.text(talk.dice.choice([1, 5, 30, 200, 1_500])) + talk.dice.choice(["", "\n[/evidence-1]"]),
            pinned=talk.dice.random() < 0.05,
        )
        for n in range(draw(st.sampled_from([0, 1, 4, 15, 60])))
    ]  # fmt: skip
    names = [f"h{n}" for n in range(70)]
    hints = st.frozensets(st.sampled_from(names), max_size=6)
    return PackInput(
        ancestry=stack(draw(st.sampled_from([1, 2, 6])), handles, talk.text(draw(st.sampled_from([2, 60])))),
        scope=SCOPE,
        brief=BriefContext(
            role="planner", system_prompt=talk.text(draw(st.sampled_from([1, 300]))),
            invariants=(talk.text(3),), working_context={"seen": talk.text(draw(st.sampled_from([1, 500])))},
            available_tools=("look", "book"),
        ),
        budget=draw(BUDGETS),
        assembled_at="2026-01-31T12:00:00+00:00",
        conversation=tuple(windows.window_items(pieces(said))) if said else (),
        conversation_moment=ConversationMoment("trip", len(said), 0) if said else None,
        include=draw(hints),
        exclude=draw(hints),
        level_min=draw(st.sampled_from(list(CompactionLevel))),
        allow_overflow=draw(st.booleans()),
    )  # fmt: skip


def made(wanted: PackInput) -> ContextPack | None:
    try:
        return pack_assembly.assemble(wanted, Library(), count=count, counted=COUNTED)
    except errors.ContextOverflow as error:
        required = error.facts["required"]
        assert isinstance(required, int) and required > wanted.budget
        assert not wanted.allow_overflow
        return None


def check(wanted: PackInput, pack: ContextPack) -> None:
    told, parts = pack.token_summary, pack.token_summary.breakdown
    assert sum(pack.sizes) + parts.overhead == told.used
    assert parts.overhead == 50
    assert told.overflow == (told.used > told.budget)
    assert wanted.allow_overflow or not told.overflow
    assert told.compaction_level >= wanted.level_min
    sums = parts.brief + parts.breadcrumbs + parts.conversation + parts.evidence + parts.overhead
    assert sums == told.used
    for message, size, source in zip(pack.messages, pack.sizes, pack.sources, strict=True):
        least = len(wanted.ancestry) * 40 if source.kind == "breadcrumbs" else 0
        assert size == count(message) or (size == least > count(message))


def check_handles(wanted: PackInput, pack: ContextPack) -> None:
    shown = {s.handle_id: s for s in pack.segments if s.handle_id is not None}
    assert not wanted.exclude & shown.keys()
    for one in wanted.frame.context_handles:
        if (one.priority is ContextPriority.CRITICAL or one.pinned) and (one.handle_id not in wanted.exclude):
            assert shown[one.handle_id].content == one.content
        if one.handle_id in shown and not shown[one.handle_id].shortened:
            assert shown[one.handle_id].content == one.content
    assert pack.ledger.count() == len(wanted.frame.context_handles)
    kept = pack.ledger.count(Fate.KEPT) + pack.ledger.count(Fate.SHORTENED)
    assert kept == len(shown)
    used = sum(entry.used for entry in pack.ledger)
    assert used == sum(s.estimated_tokens for s in shown.values())


def check_fences(pack: ContextPack) -> None:
    for message, source in zip(pack.messages, pack.sources, strict=True):
        if source.kind in ("handle", "evidence summary"):
            head, *_, last = str(message.content).split("\n")
            number = head.split()[0].removeprefix("[evidence-")
            assert last == f"[/evidence-{number}]"
            assert str(message.content).count(last) == 1


def check_rendered(pack: ContextPack) -> None:
    groups = messages.group_messages(pack.messages)
    assert not [group for group in groups if group.fault]
    if any(group.open for group in groups):
        with pytest.raises(errors.OpenCalls):
            pack.to_openai()
        return
    assert providers.check_openai_chat(pack.to_openai()) == []
    assert providers.check_openai_responses(pack.to_openai_responses()) == []
    assert providers.check_anthropic(pack.to_anthropic()) == []
    assert providers.check_gemini(pack.to_gemini()) == []


@pytest.mark.req("C-12")
@pytest.mark.req("C-23")
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(wishes())
def test_every_pack_is_right(wanted: PackInput):
    pack = made(wanted)
    if pack is None:
        return
    check(wanted, pack)
    check_handles(wanted, pack)
    check_fences(pack)
    check_rendered(pack)
    again = made(wanted)
    assert again == pack, "the same every time"


@pytest.mark.req("C-21")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(wishes())
def test_a_smaller_budget_never_has_a_lower_level(wanted: PackInput):
    levels: list[int] = []
    for budget in (20_000, 3_000, 1_200, 800, 500):
        pack = made(msgspec.structs.replace(wanted, budget=budget, allow_overflow=False))
        levels.append(9 if pack is None else int(pack.token_summary.compaction_level))
    assert levels == sorted(levels)
