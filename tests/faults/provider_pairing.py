"""What a provider accepts, written down a second time, without looking at the engine's rules.

A conversation is accepted if every tool call is answered exactly once, by the tool messages that
follow its own message directly, and nothing else answers anything. Calls at the very end may still
wait: the agent that made them can be asked for the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Call(Protocol):
    """A tool call."""

    @property
    def id(self) -> str: ...


class Result(Protocol):
    """A tool's answer."""

    @property
    def tool_call_id(self) -> str: ...


class Spoken(Protocol):
    """As much of a message as pairing is about."""

    @property
    def role(self) -> str: ...
    @property
    def tool_calls(self) -> Sequence[Call]: ...
    @property
    def tool_results(self) -> Sequence[Result]: ...


def faults(messages: Sequence[Spoken]) -> list[str]:
    """Why a provider would reject these messages; empty if it would not."""
    found: list[str] = []
    waiting: set[str] = set()
    for number, message in enumerate(messages):
        if message.role == "tool":
            for result in message.tool_results:
                if result.tool_call_id not in waiting:
                    found.append(f"message {number} answers {result.tool_call_id}, which is not open")
                waiting.discard(result.tool_call_id)
            continue
        if waiting:
            found.append(f"message {number} comes before the results of {sorted(waiting)}")
        waiting = {call.id for call in message.tool_calls}
        if len(waiting) != len(message.tool_calls):
            found.append(f"message {number} uses a call id twice")
    return found


def waiting(messages: Sequence[Spoken]) -> list[str]:
    """The ids of the calls at the end that have no result yet."""
    calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            answered = {result.tool_call_id for result in message.tool_results}
            calls = [call for call in calls if call not in answered]
        else:
            calls = [call.id for call in message.tool_calls]
    return calls
