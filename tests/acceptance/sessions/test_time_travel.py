"""Sessions as they were: at a version, at a position of the log, and what differs between two."""

from __future__ import annotations

import asyncio

import pytest

import limpet
from limpet import Limpet, Message, WindowPolicy, errors
from limpet.sessions import Moment, PastSession
from tests.acceptance.conversation_steps import answer, asking, giving, neighbour, texts, user


def position(lp: Limpet) -> int:
    return list(lp.events.feed())[-1].position


def said(past: PastSession) -> list[str]:
    return [str(message.content) for message in past.messages]


def test_a_session_at_each_of_its_versions(lp: Limpet):
    session = lp.sessions.create_session("s", title="T")
    session.add_messages([user("1"), answer("2"), user("3")])
    session.rewind(1)
    session.add_message(answer("2b"))
    want = {1: "", 2: "1", 3: "12", 4: "123", 5: "1", 6: "12b"}
    for version, shown in want.items():
        past = session.at(version)
        assert "".join(said(past)) == shown
        assert (past.version, past.message_count, past.title) == (version, len(past.messages), "T")
        assert "".join(str(m.content) for m in past.window(1_000).messages) == shown
    assert texts(session) == ["1", "2b"]
    for version in (0, -1, True, "1"):
        with pytest.raises(errors.InvalidRequest):
            session.at(version)  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.NotFound):
        session.at(7)


def test_everything_at_a_position_of_the_log(lp: Limpet):
    lp.sessions.create_session("a").add_message(user("1"))
    first = position(lp)
    lp.sessions.create_session("b").add_message(user("x"))
    lp.sessions.add_messages("a", [answer("2")])
    second = position(lp)
    lp.sessions.rewind_session("a", 1)
    lp.sessions.add_messages("a", [answer("other")])
    third = position(lp)
    moments = [lp.events.at(place) for place in (first, second, third)]
    assert [said(moment.session("a")) for moment in moments] == [["1"], ["1", "2"], ["1", "other"]]
    assert isinstance(moments[0], Moment) and moments[0].position == first
    with pytest.raises(errors.SessionNotFound):
        moments[0].session("b")
    with pytest.raises(errors.SessionNotFound):
        moments[2].session("nobody")
    with pytest.raises(errors.SessionNotFound):
        lp.events.at(0).session("a")
    with pytest.raises(errors.NotFound):
        lp.events.at(third + 1)
    for wrong in (-1, True, "1", None):
        with pytest.raises(errors.InvalidRequest):
            lp.events.at(wrong)  # pyright: ignore[reportArgumentType]


def test_what_differs_between_two_moments(lp: Limpet):
    session = lp.sessions.create_session("a")
    session.add_messages([user("1"), answer("2"), user("3")])
    before = lp.events.at(position(lp))
    session.rewind(1).add_message(answer("2b"))
    lp.sessions.create_session("b").add_message(user("x"))
    after = lp.events.at(position(lp))

    def shown(one: Moment, other: Moment, name: str) -> tuple[list[object], list[object]]:
        found = one.diff(other).session(name)
        return [m.content for m in found.removed], [m.content for m in found.added]

    assert shown(before, after, "a") == (["2", "3"], ["2b"])
    assert shown(after, before, "a") == (["2b"], ["2", "3"])
    assert shown(before, after, "b") == ([], ["x"])
    assert shown(after, before, "b") == (["x"], [])
    assert shown(after, after, "a") == ([], [])
    assert before.diff(after).sessions() == ["a", "b"]
    assert after.diff(after).sessions() == []
    with pytest.raises(errors.SessionNotFound):
        before.diff(after).session("nobody")
    lp.sessions.reset_session("a", system="S")
    assert shown(after, lp.events.at(position(lp)), "a") == (["1", "2b"], ["S"])


def test_the_past_is_read_only_and_can_be_forked(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_messages([user("1"), asking("c"), giving("c"), answer("2")])
    session.rewind(1)
    past = session.at(3)
    assert [call.call_id for call in past.pending_calls()] == ["c"]
    for change in (
        lambda: past.add_message(user()),
        lambda: past.add_messages([user()]),
        lambda: past.rewind(1),
        past.close_pending_calls,
        lambda: past.set_policy(WindowPolicy(budget=100)),
        lambda: past.trimmed(100),
        past.summarize,
    ):
        with pytest.raises(errors.PastIsReadOnly, match="fork"):
            change()
    fork = past.fork(new_id="f", title="F", key="k")
    assert past.fork(new_id="f", title="F", key="k").id == "f"
    assert fork.state.forked_from == ("s", 3)
    assert fork.add_message(giving("c")).message_count == 3
    assert session.message_count == 1 and lp.admin.verify().ok


def test_what_was_deleted_is_not_found_in_the_past(lp: Limpet):
    lp.sessions.create_session("s").add_message(user("secret"))
    before, version = position(lp), 2
    fork = lp.sessions.fork_session("s", new_id="f")
    lp.sessions.delete_session("s")
    with pytest.raises(errors.SessionNotFound):
        lp.events.at(before).session("s")
    again = lp.sessions.create_session("s")
    with pytest.raises(errors.SessionNotFound):
        lp.events.at(before).session("s")
    with pytest.raises(errors.NotFound):
        again.at(version)
    assert texts(fork) == ["secret"] and said(fork.at(3)) == ["secret"]
    assert said(fork.at(2)) == ["secret"], "before it was forked it was its source"


def test_tenants_have_their_own_past(lp: Limpet):
    lp.sessions.create_session("s").add_message(user("mine"))
    other = neighbour(lp, "other")
    other.create_session("s").add_message(user("theirs"))
    with pytest.raises(errors.SessionNotFound):
        lp.events.at(1).session("nobody")
    assert said(lp.events.at(2).session("s")) == ["mine"]


def test_a_recorded_window_in_the_past(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_message(user("q"))
    reply = Message("assistant", "a", id="m")
    session.add_message(reply, window=session.window(1_000))
    version = session.version
    session.rewind(1)
    past = session.at(version)
    assert [m.content for m in past.window_of("m").messages] == ["q"]
    assert [one.message_id for one in past.recorded_windows()] == ["m"]


def test_the_same_awaited():
    async def scenario() -> None:
        async with limpet.connect_async("volatile:") as lp:
            session = await lp.sessions.create_session("s")
            await session.add_messages([user("1"), answer("2"), user("3")])
            fork = await session.fork(2, new_id="f")
            assert [m.content async for m in fork.messages] == ["1", "2"]
            await session.rewind(1)
            await session.add_message(answer("2b"))
            past = await session.at(4)
            assert [m.content async for m in past.messages] == ["1", "2", "3"]
            assert len((await past.window(1_000)).messages) == 3
            assert await past.pending_calls() == []
            with pytest.raises(errors.PastIsReadOnly):
                await past.add_message(user())
            again = await past.fork(new_id="g")
            assert (again.id, again.message_count) == ("g", 3)
            one, two = await lp.events.at(4), await lp.events.at(7)
            assert [m.content async for m in (await one.session("s")).messages] == ["1", "2", "3"]
            changed = await one.diff(two).session("s")
            assert [m.content for m in changed.removed] == ["2", "3"]
            assert [m.content for m in changed.added] == ["2b"]
            assert await one.diff(two).sessions() == ["f", "s"]

    asyncio.run(scenario())
