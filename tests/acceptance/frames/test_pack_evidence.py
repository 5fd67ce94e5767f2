"""Evidence out of the log: handles in circles, and messages that stay what they were, or go with their session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import ContextHandle, ContextPack, Frame, Limpet, Scope, errors
from limpet.core.values.context import CompactionLevel
from limpet.core.values.events import MessageAddedEvent
from limpet.frames import HandleType
from tests.acceptance.conversation_steps import Opener, answer, asking, giving, user

SCOPE = Scope("planner")


def made(name: str, kind: str = "message_range", **fields: Any) -> ContextHandle:
    return ContextHandle(handle_id=name, handle_type=HandleType(kind), **fields)


def ranged(name: str, first: int, last: int, **target: Any) -> ContextHandle:
    return made(name, target={"session_id": "notes", "first": first, "last": last, **target})


def scene(lp: Limpet, *texts: str) -> tuple[Frame, limpet.Session]:
    session = lp.sessions.create_session("notes")
    session.add_messages([user(text) for text in texts])
    return lp.index.push_frame(SCOPE, goal="plan", budget=20_000), session


def loaded(lp: Limpet) -> limpet.Session:
    session = lp.sessions.load_session("notes")
    assert session is not None
    return session


def contents(pack: ContextPack) -> dict[str, str]:
    return {s.handle_id: s.content for s in pack.segments if s.handle_id is not None}


def seen(lp: Limpet) -> dict[str, str]:
    return contents(lp.index.assemble_context_pack(SCOPE))


def last(lp: Limpet) -> int:
    return max(event.position for event in lp.events.feed())


@pytest.mark.parametrize("length", [1, 2, 3])
def test_handles_in_a_circle_have_no_content(lp: Limpet, length: int):
    frame = lp.index.push_frame(SCOPE, goal="plan", budget=20_000)
    lp.index.add_context_handle(frame.frame_id, made("kept", "document", content="Pier 9."))
    first = last(lp) + 1
    for number in range(length):
        pointed = first + (number + 1) % length
        lp.index.add_context_handle(frame.frame_id, made(f"h{number}", "event_ref", target={"position": pointed}))
    pack = lp.index.assemble_context_pack(SCOPE)
    assert contents(pack) == {"kept": "Pier 9."}
    for number in range(length):
        entry = pack.ledger.entry_of(f"h{number}")
        assert entry is not None and entry.rule.startswith("unresolved: ")
        with pytest.raises(errors.HandleUnresolved) as caught:
            lp.index.assemble_context_pack(SCOPE, include_handles=[f"h{number}"])
        assert caught.value.facts["handle"] == f"h{number}"


def test_a_few_handles_are_followed(lp: Limpet):
    frame, _ = scene(lp, "one")
    lp.index.add_context_handle(frame.frame_id, ranged("h0", 1, 1))
    for number in range(1, 10):
        lp.index.add_context_handle(frame.frame_id, made(f"h{number}", "event_ref", target={"position": last(lp)}))
    assert seen(lp) == {f"h{number}": "user: one" for number in range(9)}


def reset(lp: Limpet) -> None:
    lp.sessions.reset_session("notes")


def rewound(lp: Limpet) -> None:
    lp.sessions.rewind_session("notes", 1)


@pytest.mark.parametrize("turn", [reset, rewound])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_handle_stays_with_its_messages(opener: Opener, backend: str, turn: Callable[[Limpet], None], reopened: bool):
    lp = opener()
    frame, session = scene(lp, "one", "two", "three")
    lp.index.add_context_handle(frame.frame_id, ranged("old", 2, 3))
    session.add_message(user("four"))
    assert seen(lp) == {"old": "user: two\nuser: three"}, "what is added changes nothing"
    turn(lp)
    if reopened and backend == "sqlite":
        lp.close()
        lp = opener()
    assert seen(lp) == {"old": "user: two\nuser: three"}
    loaded(lp).add_messages([user(f"other {n}") for n in range(5)])
    assert seen(lp) == {"old": "user: two\nuser: three"}
    lp.index.add_context_handle(frame.frame_id, ranged("new", 2, 3))
    found = seen(lp)
    assert found["old"] == "user: two\nuser: three"
    assert "other" in found["new"] and "two" not in found["new"]


def test_what_was_not_there_yet_is_never_another(lp: Limpet):
    frame, session = scene(lp, "one")
    lp.index.add_context_handle(frame.frame_id, ranged("next", 2, 2))
    assert seen(lp) == {}
    session.add_message(user("two"))
    assert seen(lp) == {"next": "user: two"}
    lp.sessions.reset_session("notes")
    loaded(lp).add_messages([user("other one"), user("other two")])
    assert seen(lp) == {}


def test_a_version_may_be_named(lp: Limpet):
    frame, session = scene(lp, "one", "two")
    before = session.state.version
    lp.sessions.reset_session("notes")
    loaded(lp).add_message(user("other"))
    lp.index.add_context_handle(frame.frame_id, ranged("then", 1, 2, at=before))
    lp.index.add_context_handle(frame.frame_id, ranged("never", 1, 1, at=before + 1_000))
    assert seen(lp) == {"then": "user: one\nuser: two"}
    for bad in (0, "1", None, True):
        with pytest.raises(errors.InvalidRequest, match="version"):
            lp.index.add_context_handle(frame.frame_id, ranged("bad", 1, 1, at=bad))


def test_a_bound_handle_given_again_is_the_same(lp: Limpet):
    frame, session = scene(lp, "one", "two")
    first = lp.index.add_context_handle(frame.frame_id, ranged("r", 1, 1), key="k")
    (kept,) = first.context_handles
    assert kept.target["at"] == session.state.version
    session.add_message(user("three"))
    before = last(lp)
    for again in (ranged("r", 1, 1), kept):
        assert lp.index.add_context_handle(frame.frame_id, again).context_handles == (kept,)
    lp.index.add_context_handle(frame.frame_id, ranged("r", 1, 1), key="k")
    assert last(lp) == before
    for other in (ranged("r", 1, 2), ranged("r", 1, 1, at=kept.target["at"] + 1)):
        with pytest.raises(errors.DuplicateHandle):
            lp.index.add_context_handle(frame.frame_id, other)


def test_the_awaited_verb_binds_too(fast_dir: Path):
    async def run() -> None:
        async with limpet.connect_async(fast_dir / "state.db") as lp:
            session = await lp.sessions.create_session("notes")
            await session.add_message(user("one"))
            frame = await lp.index.push_frame(SCOPE, goal="plan", budget=20_000)
            await lp.index.add_context_handle(frame.frame_id, ranged("r", 1, 1))
            await lp.sessions.reset_session("notes")
            assert contents(await lp.index.assemble_context_pack(SCOPE)) == {"r": "user: one"}

    asyncio.run(run())


def test_a_call_from_before_is_not_parted_from_its_result(lp: Limpet):
    frame, session = scene(lp, "q")
    session.add_messages([asking("c1"), giving("c1"), answer("a")])
    for number in range(1, 5):
        handle = made(
            f"m{number}", estimated_tokens=60,
            target={"session_id": "notes", "first": number, "last": number},
        )  # fmt: skip
        lp.index.add_context_handle(frame.frame_id, handle)
    lp.sessions.reset_session("notes")
    loaded(lp).add_messages([user(f"other {n}") for n in range(4)])
    lp.index.compact_context(frame.frame_id, 120)
    left = {handle.handle_id for handle in lp.index.get_frame(frame.frame_id).context_handles}
    assert left & {"m2", "m3"} in (set(), {"m2", "m3"})


@pytest.mark.parametrize("kind", ["range", "event", "tool", "followed"])
@pytest.mark.parametrize("recreated", [False, True])
def test_evidence_of_a_deleted_session_does_not_come_back(lp: Limpet, kind: str, recreated: bool):
    frame, session = scene(lp, "a secret " * 60)
    worker = lp.index.push_frame(Scope("worker", "notes"), goal="look", budget=1_000)
    session.add_message(asking("c1"))
    tool = lp.index.begin_tool(worker.frame_id, "tool_c1", call_id="c1", message_id=session.messages[-1].id)
    lp.index.end_tool(worker.frame_id, tool.tool_id, "a secret " * 60)
    said = next(e for e in lp.events.feed() if isinstance(e.event, MessageAddedEvent))
    where: dict[str, ContextHandle] = {
        "range": ranged("h", 1, 1),
        "followed": ranged("h", 1, 1),
        "event": made("h", "event_ref", target={"position": said.position}),
        "tool": made("h", "tool_output", target={"frame_id": worker.frame_id, "tool_id": tool.tool_id}),
    }
    lp.index.add_context_handle(frame.frame_id, where[kind])
    if kind == "followed":
        target = {"position": last(lp)}
        lp.index.remove_handle(frame.frame_id, "h")
        lp.index.add_context_handle(frame.frame_id, made("h", "event_ref", target=target))
    pack = lp.index.assemble_context_pack(SCOPE)
    assert "a secret" in contents(pack)["h"]
    moment = lp.events.at(last(lp))
    again = lp.index.pack_of(frame.frame_id)
    assert (again.messages, again.sources) == (pack.messages, pack.sources)
    lp.sessions.reset_session("notes")
    assert moment.pack(frame.frame_id).messages == pack.messages, "a reset deletes nothing"
    lp.sessions.delete_session("notes")
    if recreated:
        lp.sessions.create_session("notes").add_message(user("hello"))
    for read in (lambda: lp.index.pack_of(frame.frame_id), lambda: moment.pack(frame.frame_id)):
        with pytest.raises(errors.NotFound, match="deleted") as caught:
            read()
        assert caught.value.facts["session"] == "notes"
    assert seen(lp) == {}
    assert lp.index.pack_of(frame.frame_id).context_hash != pack.context_hash


def test_nor_does_what_a_summary_says_of_it(lp: Limpet):
    frame, _ = scene(lp, *(f"We decided on secret pier {n}." for n in range(3)))
    for number in range(1, 4):
        lp.index.add_context_handle(frame.frame_id, ranged(f"old{number}", number, number))
    for number in range(12):
        lp.index.add_context_handle(frame.frame_id, made(f"new{number}", "document", content=f"Ferry {number}."))
    pack = lp.index.assemble_context_pack(SCOPE, min_compaction=CompactionLevel.MODERATE)
    assert not any(name.startswith("old") for name in contents(pack)), "they are under the summary"
    assert any("secret pier" in str(message.content) for message in pack.messages)
    again = lp.index.pack_of(frame.frame_id)
    assert (again.messages, again.sources) == (pack.messages, pack.sources)
    lp.sessions.delete_session("notes")
    with pytest.raises(errors.NotFound, match="deleted"):
        lp.index.pack_of(frame.frame_id)
