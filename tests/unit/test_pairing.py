"""Calls and results: what may follow what, so that no provider would reject a history."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from limpet import Message, ToolCallRequest, ToolCallResult, errors
from limpet.core.rules import session_rules
from limpet.core.values.session_state import OpenCall


def asking(*call_ids: str) -> Message:
    return Message("assistant", tool_calls=[ToolCallRequest(id_, f"tool_{id_}") for id_ in call_ids])


def giving(*call_ids: str) -> Message:
    return Message("tool", tool_results=[ToolCallResult(id_, "r") for id_ in call_ids])


def follow(messages: Sequence[Message]) -> tuple[session_rules.OpenToolCalls, tuple[str, ...]]:
    """Add messages one by one; return what is open and answered at the end."""
    open_calls: session_rules.OpenToolCalls = ()
    answered: tuple[str, ...] = ()
    for message in messages:
        session_rules.check_message(open_calls, answered, message)
        open_calls, answered = session_rules.calls_after(open_calls, answered, message)
    return open_calls, answered


USER, ANSWER = Message("user", "x"), Message("assistant", "y")


def test_a_plain_conversation_opens_nothing():
    assert follow([USER, ANSWER, USER, ANSWER]) == ((), ())


@pytest.mark.req("A-9")
def test_calls_are_open_until_their_results_and_known_by_message_and_id():
    message = asking("a", "b")
    assert follow([USER, message])[0] == (OpenCall(message.id, "a", "tool_a"), OpenCall(message.id, "b", "tool_b"))
    assert [call.call_id for call in follow([USER, message, giving("b")])[0]] == ["a"]


@pytest.mark.req("A-9")
@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_parallel_results_come_in_any_order(order: tuple[str, ...]):
    single = [giving(id_) for id_ in order]
    assert follow([USER, asking("a", "b", "c"), *single, ANSWER])[0] == ()
    assert follow([USER, asking("a", "b", "c"), giving(*order), ANSWER])[0] == ()
    assert follow([USER, asking("a", "b", "c"), giving(*order[:2]), giving(order[2])])[0] == ()


@pytest.mark.req("A-9")
@pytest.mark.parametrize("id_", ["nobody", "A", "a "])
def test_a_result_for_no_call_is_refused(id_: str):
    for history in ([USER], [USER, asking("a")], [USER, asking("b"), giving("b"), ANSWER]):
        with pytest.raises(errors.ResultWithoutCall) as caught:
            follow([*history, giving(id_)])
        assert caught.value.facts["call"] == id_


@pytest.mark.req("A-9")
def test_a_second_result_is_refused_while_others_are_open_and_after():
    for history in ([asking("a", "b"), giving("a")], [asking("a"), giving("a")]):
        with pytest.raises(errors.SecondResult):
            follow([USER, *history, giving("a")])


@pytest.mark.req("A-9")
def test_two_results_for_one_call_in_one_message_are_refused():
    with pytest.raises(errors.SecondResult):
        follow([USER, asking("a", "b"), giving("a", "a")])


@pytest.mark.req("A-9")
@pytest.mark.parametrize("other", [USER, ANSWER, Message("system", "z"), asking("c")])
def test_nothing_but_results_may_follow_open_calls(other: Message):
    for history in ([asking("a")], [asking("a", "b"), giving("b")]):
        with pytest.raises(errors.OpenCalls, match="close_pending_calls") as caught:
            follow([USER, *history, other])
        assert caught.value.facts["calls"] == ["a"]


@pytest.mark.req("A-6")
def test_an_id_may_come_again_once_its_call_is_answered():
    history = [USER, asking("a"), giving("a"), asking("a"), giving("a"), ANSWER, asking("a", "b")]
    assert [call.call_id for call in follow(history)[0]] == ["a", "b"]


@pytest.mark.req("A-6")
def test_two_open_calls_can_not_have_one_id():
    with pytest.raises(errors.InvalidMessage, match="same id"):
        follow([USER, asking("a", "a")])


def test_a_result_long_after_its_call_was_answered_is_refused():
    with pytest.raises(errors.PairingError):
        follow([USER, asking("a"), giving("a"), ANSWER, USER, giving("a")])
