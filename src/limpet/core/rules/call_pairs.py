"""Pairing of tool calls with results: which calls are open, and which message may follow.

While calls are open only their results may be added, in any order, in one message or several, so
that no provider rejects a history. Call ids are unique only among open calls: providers reuse them.
"""

from __future__ import annotations

from limpet import errors
from limpet.core.values.messages import Message
from limpet.core.values.session_state import OpenCall

OpenToolCalls = tuple[OpenCall, ...]


def check_message(open_calls: OpenToolCalls, answered: tuple[str, ...], message: Message) -> None:
    """Raise a PairingError if the message may not follow."""
    if message.role == "tool":
        _check_results(open_calls, answered, message)
        return
    if open_calls:
        waiting = ", ".join(f"{call.name} ({call.call_id})" for call in open_calls[:5])
        raise errors.OpenCalls(
            f"{len(open_calls)} tool call(s) wait for results: {waiting}.",
            hint="Add their results first, or close them with close_pending_calls().",
            facts={"calls": [call.call_id for call in open_calls]},
        )
    if len(message.tool_calls) > 1:
        ids = [call.id for call in message.tool_calls]
        if len(set(ids)) < len(ids):
            raise errors.InvalidMessage("two tool calls of one message have the same id.", facts={"calls": ids})


def _check_results(open_calls: OpenToolCalls, answered: tuple[str, ...], message: Message) -> None:
    waiting = {call.call_id for call in open_calls}
    done = set(answered)
    for result in message.tool_results:
        if result.tool_call_id in waiting:
            waiting.remove(result.tool_call_id)
            done.add(result.tool_call_id)
        elif result.tool_call_id in done:
            raise errors.SecondResult(
                f"the call {result.tool_call_id} already has its result.", facts={"call": result.tool_call_id}
            )
        else:
            raise errors.ResultWithoutCall(
                f"no open call has the id {result.tool_call_id}.",
                hint="pending_calls() lists the open ones.",
                facts={"call": result.tool_call_id, "open": sorted(waiting)},
            )


def calls_after(
    open_calls: OpenToolCalls, answered: tuple[str, ...], message: Message
) -> tuple[OpenToolCalls, tuple[str, ...]]:
    """Return the open and the answered calls after a message."""
    if message.tool_calls:
        return tuple(OpenCall(message.id, call.id, call.name) for call in message.tool_calls), ()
    if message.tool_results:
        now = tuple(result.tool_call_id for result in message.tool_results)
        return tuple(call for call in open_calls if call.call_id not in now), (*answered, *now)
    return open_calls, ()
