"""Calls that a stopped run left unanswered: reported, and answered, retried or closed."""

from __future__ import annotations

import pytest

from limpet import Limpet, Message, ToolCallRequest, errors
from tests.acceptance.conversation_steps import answer, asking, feed, giving, user


@pytest.fixture
def stopped(lp: Limpet) -> Limpet:
    """A run that stopped with one of three parallel calls answered."""
    session = lp.sessions.create_session("s")
    session.add_messages([user("plan a trip"), asking("a", "b", "c"), giving("b")])
    return lp


@pytest.mark.req("A-9")
def test_pending_calls_say_what_to_do_again(stopped: Limpet):
    session = stopped.sessions.get_session("s")
    calls = session.pending_calls()
    assert [(call.call_id, call.name, call.args) for call in calls] == [
        ("a", "tool_a", {"of": "a"}),
        ("c", "tool_c", {"of": "c"}),
    ]
    assert {call.session_id for call in calls} == {"s"}
    assert {call.message_id for call in calls} == {session.messages[1].id}
    assert stopped.sessions.pending_calls("s") == calls
    assert stopped.sessions.list_sessions()[0]["pending_calls"] == 2


@pytest.mark.req("A-9")
def test_each_side_is_found_from_the_other(stopped: Limpet):
    """The call of a result and the result of a call, although ids come again."""
    session = stopped.sessions.get_session("s")
    session.add_message(giving("c", "a"))
    session.add_messages([asking("a"), giving("a")])
    open_: dict[str, tuple[str, str]] = {}
    pairs: list[tuple[str, str]] = []
    for message in session.messages:
        open_ |= {call.id: (message.id, call.name) for call in message.tool_calls}
        for result in message.tool_results:
            pairs.append(open_.pop(result.tool_call_id))
    assert not open_
    assert [name for _, name in pairs] == ["tool_b", "tool_c", "tool_a", "tool_a"]
    assert len(set(pairs)) == 4, "a call is known by its message and its id"


@pytest.mark.req("A-9")
def test_they_can_be_answered_late_in_any_order(stopped: Limpet):
    session = stopped.sessions.get_session("s")
    session.add_message(giving("c"))
    session.add_message(giving("a"))
    assert session.pending_calls() == []
    session.add_message(answer("Here is your trip."))


def test_they_can_be_closed_with_a_result_that_tells_the_truth(stopped: Limpet):
    session = stopped.sessions.get_session("s").close_pending_calls()
    closing = session.messages[-1]
    assert {result.tool_call_id for result in closing.tool_results} == {"a", "c"}
    assert all(result.is_error for result in closing.tool_results)
    assert all("unknown" in str(result.result) for result in closing.tool_results)
    assert session.pending_calls() == []
    session.add_message(user("go on"))


def test_one_can_be_closed_with_words_of_ones_own(stopped: Limpet):
    session = stopped.sessions.close_pending_calls("s", call_ids=["c"], outcome="Cancelled by Ada.")
    assert session.messages[-1].tool_results[0].result == "Cancelled by Ada."
    assert [call.call_id for call in session.pending_calls()] == ["a"]


def test_closing_nothing_writes_nothing(lp: Limpet):
    session = lp.sessions.create_session("s")
    before = feed(lp)
    assert session.close_pending_calls().version == session.version
    assert feed(lp) == before


def test_closing_a_call_that_is_not_open_is_refused(stopped: Limpet):
    before = feed(stopped)
    for wrong in (["b"], ["nobody"], ["a", "nobody"]):
        with pytest.raises(errors.CallNotFound, match="no open call"):
            stopped.sessions.close_pending_calls("s", call_ids=wrong)
    assert feed(stopped) == before


@pytest.mark.req("A-9")
def test_until_then_nothing_else_is_taken(stopped: Limpet):
    session = stopped.sessions.get_session("s")
    for message in (user(), answer(), asking("d"), Message("system", "x")):
        with pytest.raises(errors.OpenCalls, match="close_pending_calls"):
            session.add_message(message)


@pytest.mark.req("A-6")
def test_generated_call_ids_pair_as_well(lp: Limpet):
    session = lp.sessions.create_session("s")
    message = Message("assistant", tool_calls=[ToolCallRequest(name="f"), ToolCallRequest(name="f")])
    session.add_messages([user(), message])
    session.add_message(giving(*[call.id for call in message.tool_calls]))
    assert lp.sessions.pending_calls("s") == []


@pytest.mark.req("A-6")
def test_an_id_that_a_provider_uses_again_is_accepted_once_answered(lp: Limpet):
    session = lp.sessions.create_session("s")
    session.add_message(user())
    for _ in range(5):
        session.add_messages([asking("call_1"), giving("call_1")])
    assert session.message_count == 11
    with pytest.raises(errors.InvalidMessage):
        session.add_message(asking("x", "x"))
