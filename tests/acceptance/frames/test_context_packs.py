"""Packs over a real store: whose content is found where, what is recorded, and what comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import CompactionLevel, ContextHandle, ContextPack, Frame, FrameStatus, Limpet, Scope, TokenBudget, errors
from limpet.core.values.context import Fate
from limpet.core.values.events import FrameUpdatedEvent, MessageAddedEvent
from limpet.frames import HandleType, ResultRef, SegmentType
from tests.acceptance.conversation_steps import Opener, answer, asking, engine_of, giving, user

SCOPE = Scope("planner", "trip")


def pushed(lp: Limpet, total: int = 10_000, **limits: Any) -> Frame:
    budget = TokenBudget(total, **limits)
    return lp.index.push_frame(SCOPE, goal="plan the trip", budget=budget)


def add(lp: Limpet, frame: Frame, name: str, kind: str = "document", **fields: Any) -> None:
    lp.index.add_context_handle(frame.frame_id, ContextHandle(handle_id=name, handle_type=HandleType(kind), **fields))


def talked(lp: Limpet, turns: int = 3) -> limpet.Session:
    session = lp.sessions.create_session("trip", system="You plan trips.")
    for turn in range(turns):
        session.add_messages([user(f"question {turn}"), answer(f"answer {turn}")])
    session.add_message(user("Which ferry?"))
    return session


def contents(pack: ContextPack) -> dict[str, str]:
    return {s.handle_id: s.content for s in pack.segments if s.handle_id is not None}


def recorded(lp: Limpet) -> list[Any]:
    return [
        event.event.pack
        for event in lp.events.feed()
        if isinstance(event.event, FrameUpdatedEvent) and event.event.pack
    ]


@pytest.mark.req("C-23")
def test_the_frame_is_looked_for_before_the_budget(lp: Limpet):
    with pytest.raises(errors.FrameNotFound, match="No active frame"):
        lp.index.assemble_context_pack(SCOPE, budget_tokens=3)
    with pytest.raises(errors.FrameNotFound):
        lp.index.assemble_context_pack(SCOPE, frame_id="nobody", budget_tokens=3)
    frame = pushed(lp)
    with pytest.raises(errors.BudgetTooSmall):
        lp.index.assemble_context_pack(SCOPE, budget_tokens=499)
    assert lp.index.assemble_context_pack(SCOPE, budget_tokens=500).token_summary.budget == 500
    lp.index.pop_frame(frame.frame_id)
    with pytest.raises(errors.InvalidTransition):
        lp.index.assemble_context_pack(SCOPE, frame_id=frame.frame_id)


@pytest.mark.req("C-7")
@pytest.mark.req("C-23")
def test_without_a_budget_it_is_what_the_frame_has_left(lp: Limpet):
    frame = pushed(lp, 5_000)
    index = lp.index
    assert index.assemble_context_pack(SCOPE).token_summary.budget == 4_000, "max_context_tokens"
    index.record_usage(frame.frame_id, 3_000)
    assert index.assemble_context_pack(SCOPE).token_summary.budget == 2_000
    assert index.assemble_context_pack(SCOPE, budget_tokens=3_000).token_summary.budget == 3_000
    with pytest.raises(errors.InsufficientTokens) as caught:
        index.assemble_context_pack(SCOPE, budget_tokens=2_001, strict=True)
    assert caught.value.facts == {"requested": 2_001, "available": 2_000}
    index.record_usage(frame.frame_id, 2_000)
    with pytest.raises(errors.BudgetTooSmall):
        index.assemble_context_pack(SCOPE)


@pytest.mark.req("C-23")
def test_only_the_target_has_a_say(lp: Limpet):
    root = pushed(lp)
    child = lp.index.push_frame(SCOPE, goal="compare", budget=TokenBudget(2_000), parent_frame_id=root.frame_id)
    add(lp, root, "a", content="of the root")
    add(lp, child, "b", content="of the child")
    pack = lp.index.assemble_context_pack(SCOPE, role="planner")
    assert contents(pack) == {"b": "of the child"}
    assert [crumb.goal for crumb in pack.breadcrumbs] == ["plan the trip", "compare"]
    assert [crumb.status for crumb in pack.breadcrumbs] == [FrameStatus.WAITING, FrameStatus.ACTIVE]
    assert contents(lp.index.assemble_context_pack(SCOPE, frame_id=root.frame_id)) == {"a": "of the root"}


@pytest.mark.req("C-17")
@pytest.mark.req("C-18")
def test_content_is_found_in_the_log(lp: Limpet):
    session = talked(lp)
    worker = lp.index.push_frame(Scope("worker"), goal="look", budget=TokenBudget(1_000))
    tool = lp.index.begin_tool(worker.frame_id, "search")
    lp.index.end_tool(worker.frame_id, tool.tool_id, {"ferries": ["Nordlys"]})
    large = lp.index.begin_tool(worker.frame_id, "read")
    lp.index.end_tool(worker.frame_id, large.tool_id, "Oslo " * 10_000)
    lp.index.add_result(worker.frame_id, ResultRef("table", "t1", "three ferries"))
    lp.index.pop_frame(worker.frame_id, result_summary="The Nordlys is best.")
    session.add_message(asking("c1"))
    frame = pushed(lp)
    own = lp.index.begin_tool(frame.frame_id, "tool_c1", call_id="c1", message_id=session.messages[-1].id)
    lp.index.end_tool(frame.frame_id, own.tool_id, "at pier 9")
    added = [e for e in lp.events.feed() if isinstance(e.event, MessageAddedEvent)]
    said = added[4]
    add(lp, frame, "event", "event_ref", target={"position": said.position})
    add(lp, frame, "range", "message_range", target={"session_id": "trip", "first": 2, "last": 3})
    add(lp, frame, "tool", "tool_output", target={"frame_id": worker.frame_id, "tool_id": tool.tool_id})
    add(lp, frame, "large", "tool_output", target={"frame_id": worker.frame_id, "tool_id": large.tool_id})
    add(lp, frame, "own", "tool_output", target={"frame_id": frame.frame_id, "tool_id": own.tool_id})
    add(lp, frame, "found", "worker_finding", target={"frame_id": worker.frame_id})
    add(lp, frame, "kept", content="beside the log")
    pack = lp.index.assemble_context_pack(SCOPE, budget_tokens=40_000)
    assert contents(pack) == {
        "event": "assistant: answer 1",
        "range": "user: question 0\nassistant: answer 0",
        "tool": '{"ferries":["Nordlys"]}',
        "large": "Oslo " * 10_000,
        "own": "at pier 9",
        "found": "The Nordlys is best.\ntable t1: three ferries",
        "kept": "beside the log",
    }
    types = {s.handle_id: s.segment_type for s in pack.segments}
    assert types["tool"] is SegmentType.TOOL_OUTPUT and types["range"] is SegmentType.EVIDENCE
    assert lp.index.pack_of(frame.frame_id).messages == pack.messages


def test_what_the_log_does_not_have_is_unresolved(lp: Limpet):
    talked(lp)
    frame = pushed(lp)
    targets = {
        "no event": ("event_ref", {"position": 9_999}),
        "no text": ("event_ref", {"position": 1}),
        "no session": ("message_range", {"session_id": "x", "first": 1, "last": 2}),
        "no message": ("message_range", {"session_id": "trip", "first": 1, "last": 99}),
        "backwards": ("message_range", {"session_id": "trip", "first": 3, "last": 2}),
        "no frame": ("tool_output", {"frame_id": "x", "tool_id": "y"}),
        "no tool": ("tool_output", {"frame_id": frame.frame_id, "tool_id": "y"}),
        "no worker": ("worker_finding", {"frame_id": "x"}),
        "no result": ("worker_learning", {"frame_id": frame.frame_id}),
        "no resolver": ("memory", {}),
    }
    for name, (kind, target) in targets.items():
        add(lp, frame, name, kind, target=target)
    pack = lp.index.assemble_context_pack(SCOPE)
    assert contents(pack) == {}
    rules = {entry.handle_id: entry.rule for entry in pack.ledger}
    assert rules.keys() == targets.keys()
    assert all(rule.startswith("unresolved: ") for rule in rules.values())
    for name in targets:
        with pytest.raises(errors.HandleUnresolved) as caught:
            lp.index.assemble_context_pack(SCOPE, include_handles=[name])
        assert caught.value.facts["handle"] == name


def test_a_resolver_is_asked_once_and_never_for_what_was_recorded(lp: Limpet):
    asked: list[str] = []

    def look(handle: ContextHandle) -> str:
        asked.append(handle.handle_id)
        return f"page of {handle.target['url']}, as seen {len(asked)} times. " * 20

    lp.index.resolvers[HandleType.URL] = look
    frame = pushed(lp)
    add(lp, frame, "page", "url", target={"url": "https://pier.example"})
    pack = lp.index.assemble_context_pack(SCOPE)
    again = lp.index.pack_of(frame.frame_id)
    assert asked == ["page"]
    assert contents(again) == contents(pack)
    assert "as seen 1 times" in contents(again)["page"]
    assert again.context_hash == pack.context_hash == lp.index.get_frame(frame.frame_id).context_hash


@pytest.mark.parametrize("bad", [lambda h: 1 / 0, lambda h: None, lambda h: "\ud800"])
def test_a_resolver_may_fail(lp: Limpet, bad: Any):
    lp.index.resolvers[HandleType.URL] = bad
    frame = pushed(lp)
    add(lp, frame, "page", "url")
    add(lp, frame, "kept", content="beside the log")
    assert contents(lp.index.assemble_context_pack(SCOPE)) == {"kept": "beside the log"}
    with pytest.raises(errors.HandleUnresolved) as caught:
        lp.index.assemble_context_pack(SCOPE, include_handles=["page"])
    if "raised" in str(caught.value):
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def same(one: ContextPack, other: ContextPack) -> None:
    for name in ContextPack.__struct_fields__:
        if name != "ledger":
            assert getattr(one, name) == getattr(other, name), name
    assert one.explain().splitlines()[:6] == other.explain().splitlines()[:6]
    for fate in Fate:
        assert one.ledger.count(fate) == other.ledger.count(fate)


@pytest.mark.parametrize("least", list(CompactionLevel))
def test_what_was_recorded_comes_back_byte_for_byte(opener: Opener, backend: str, least: CompactionLevel):
    lp = opener()
    session = talked(lp, turns=12)
    session.add_messages([asking("c1", "c2"), giving("c2", "c1"), answer("long " * 900)])
    session.add_message(user("And then?"))
    frame = pushed(lp)
    for number in range(14):
        add(lp, frame, f"h{number}", content=f"Ferry {number} leaves at {number}. " * (number * 20))
    pack = lp.index.assemble_context_pack(
        SCOPE, role="planner", budget_tokens=6_000, min_compaction=least,
        working_context={"seen": "pier " * 200}, exclude_handles=["h3", "x"],
    )  # fmt: skip
    assert pack.token_summary.compaction_level is least
    session.add_messages([answer("later"), user("much later")])
    lp.index.remove_handle(frame.frame_id, "h13")
    same(pack, lp.index.pack_of(frame.frame_id, pack.context_hash))
    lp.index.pop_frame(frame.frame_id)
    if backend == "sqlite":
        lp.close()
        lp = opener()
    same(pack, lp.index.pack_of(frame.frame_id))
    assert lp.index.pack_of(frame.frame_id).metadata.unknown_excludes == ("x",)


def test_recording_again_costs_references_only(lp: Limpet):
    talked(lp)
    frame = pushed(lp)
    for number in range(5):
        add(lp, frame, f"h{number}", content=f"Ferry {number} leaves. " * 200)
    pack = lp.index.assemble_context_pack(SCOPE, budget_tokens=8_000)
    lp.index.assemble_context_pack(SCOPE, budget_tokens=8_000)
    assert len(recorded(lp)) == 1, "the same pack is not recorded twice"
    add(lp, frame, "new", content="x")
    lp.index.assemble_context_pack(SCOPE, budget_tokens=8_000)
    first, second = recorded(lp)
    assert first.digest == pack.context_hash
    assert len(msgspec.json.encode(second)) < 4_000 < len(msgspec.json.encode(pack.to_dict()))
    assert len(set(first.hashes) & set(second.hashes)) == 5
    before = len(list(lp.events.feed()))
    lp.index.assemble_context_pack(SCOPE, budget_tokens=700, record=False)
    assert len(list(lp.events.feed())) == before
    assert lp.index.pack_of(frame.frame_id, first.digest).context_hash == first.digest
    with pytest.raises(errors.NotFound):
        lp.index.pack_of(frame.frame_id, "0" * 64)


def test_a_record_that_does_not_add_up_is_corrupt(lp: Limpet):
    from limpet.frames import packs

    frame = pushed(lp)
    add(lp, frame, "a", content="Ferry. " * 100)
    lp.index.assemble_context_pack(SCOPE)
    (chosen,) = recorded(lp)
    store = engine_of(lp).store
    assert packs.rebuild_pack(store, "default", chosen).context_hash == chosen.digest
    for parts in (chosen.parts[:-1], chosen.parts[1:], ({**chosen.parts[0], "hash": "00" * 32},)):
        with pytest.raises(errors.Corrupt):
            packs.rebuild_pack(store, "default", msgspec.structs.replace(chosen, parts=parts))
    with pytest.raises(errors.Corrupt):
        packs.rebuild_pack(store, "elsewhere", chosen)


def test_a_pack_follows_the_conversation_where_it_goes_on(opener: Opener):
    lp = opener(max_messages_per_session=6)
    session = talked(lp, turns=6)
    assert session.id != "trip"
    frame = pushed(lp)
    pack = lp.index.assemble_context_pack(SCOPE)
    assert pack.messages[-1].content == "Which ferry?"
    assert pack.conversation_moment is not None and pack.conversation_moment.session_id == session.id
    same(pack, lp.index.pack_of(frame.frame_id))


def test_what_was_deleted_is_shown_no_more(lp: Limpet):
    session = talked(lp)
    position = session.state.version
    frame = pushed(lp)
    add(lp, frame, "event", "event_ref", target={"position": position})
    add(lp, frame, "range", "message_range", target={"session_id": "trip", "first": 1, "last": 2})
    session.add_message(asking("c1"))
    tool = lp.index.begin_tool(frame.frame_id, "tool_c1", call_id="c1", message_id=session.messages[-1].id)
    lp.index.end_tool(frame.frame_id, tool.tool_id, "at pier 9")
    add(lp, frame, "tool", "tool_output", target={"frame_id": frame.frame_id, "tool_id": tool.tool_id})
    pack = lp.index.assemble_context_pack(SCOPE)
    assert contents(pack).keys() == {"event", "range", "tool"}
    lp.sessions.delete_session("trip")
    for again in range(2):
        after = lp.index.assemble_context_pack(SCOPE, record=False)
        assert contents(after) == {}, again
        assert [s for s in after.segments if s.message_id is not None] == []
        with pytest.raises(errors.NotFound, match="deleted"):
            lp.index.pack_of(frame.frame_id, pack.context_hash)
        if not again:
            lp.sessions.create_session("trip")


def test_hints_are_checked(lp: Limpet):
    pushed(lp)
    bad: list[dict[str, Any]] = [
        {"include_handles": "abc"}, {"exclude_handles": [3]}, {"budget_tokens": 1_000.5},
        {"min_compaction": 2}, {"overflow": "maybe"}, {"strict": 1}, {"role": 3},
        {"invariants": [1]}, {"counter": "nobody's"}, {"model": "o", "counter": "estimate"},
    ]  # fmt: skip
    for arguments in bad:
        with pytest.raises(errors.InvalidRequest):
            lp.index.assemble_context_pack(SCOPE, **arguments)


def test_the_verbs_are_awaited_too(fast_dir: Path):
    async def run() -> None:
        async with limpet.connect_async(fast_dir / "state.db") as lp:
            lp.index.resolvers[HandleType.URL] = lambda handle: "a page"
            frame = await lp.index.push_frame(SCOPE, goal="g", budget=TokenBudget(5_000))
            page = ContextHandle(handle_id="p", handle_type=HandleType.URL)
            await lp.index.add_context_handle(frame.frame_id, page)
            pack = await lp.index.assemble_context_pack(SCOPE)
            assert contents(pack) == {"p": "a page"}
            assert (await lp.index.pack_of(frame.frame_id)).context_hash == pack.context_hash
            assert (await lp.index.compact_context(frame.frame_id, 0)).items_removed == 1

    asyncio.run(run())
