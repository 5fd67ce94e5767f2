"""A session folded in memory: commands decided and their events evolved, without any store."""

from __future__ import annotations

from limpet import Message, ToolCallRequest, ToolCallResult
from limpet.core.rules import session_rules
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values.session_state import SessionState

States = dict[str, SessionState]


def user(text: str = "q") -> Message:
    return Message("user", text)


def answer(text: str = "a") -> Message:
    return Message("assistant", text)


def asking(*call_ids: str) -> Message:
    return Message("assistant", tool_calls=[ToolCallRequest(id_, "f") for id_ in call_ids])


def giving(*call_ids: str) -> Message:
    return Message("tool", tool_results=[ToolCallResult(id_, "r") for id_ in call_ids])


def apply(states: States, command: c.SessionCommand, *, time_us: int = 1) -> list[e.SessionEvent]:
    """Decide and evolve; return the events, in order."""
    made: list[e.SessionEvent] = []
    for writing in session_rules.decide(states.get(command.session_id), command):
        for fact in writing.events:
            before = states.get(writing.session_id)
            states[writing.session_id] = session_rules.evolve_one(before, fact, time_us=time_us)
            made.append(fact)
    return made


def began(*messages: Message, id_: str = "s") -> States:
    states: States = {}
    apply(states, c.CreateSession(session_id=id_, user_id="ada", messages=messages))
    return states
