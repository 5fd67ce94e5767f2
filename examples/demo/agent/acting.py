"""One tool call, from the model's wish to its result in the conversation.

It is noted before it runs, with its effect and a key. A call that was noted and has no result is found by
`resume_actor` after a crash: its outcome is unknown, and nobody runs it again before that was said.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from demo.agent.parts import AwaitingDecision, Tool, ToolFailed, Work, WorkFailed
from limpet import Message, Session, StateIndex, ToolCallResult
from limpet.frames import Decision, ToolEffect, ToolStatus
from limpet.sessions import PendingCall

NOBODY_TO_ASK = "Not done: without frames there is nobody to ask."


def tool_id_of(name: str, message_id: str, call_id: str) -> str:
    """Return the name of one call: the same in every process."""
    return f"{name}@{message_id}/{call_id}"


def act(
    index: StateIndex | None, session: Session, work: Work, tools: Mapping[str, Tool], call: PendingCall
) -> None:  # fmt: skip
    """Run a call, or settle it in another way; it has a result when this returns.

    Raises AwaitingDecision if somebody has to say yes first.
    """
    tool = tools.get(call.name) or _missing(call.name)
    tool_id = tool_id_of(call.name, call.message_id, call.call_id)
    if index is not None:
        _Acting(index, work, tool, call, tool_id).run()
        return
    key = f"idk_{hashlib.sha256(tool_id.encode()).hexdigest()[:32]}"
    output, is_error = (NOBODY_TO_ASK, True) if tool.asks else _use(tool, lambda: call.args, key)
    result = ToolCallResult(call.call_id, output, is_error=is_error)
    session.add_message(Message("tool", tool_results=[result], id=tool_id))


@dataclass(frozen=True)
class _Acting:
    index: StateIndex
    work: Work
    tool: Tool
    call: PendingCall
    tool_id: str

    def run(self) -> None:
        known = self.index.get_frame(self.work.id).tool(self.tool_id)
        if known is not None and known.status is ToolStatus.UNKNOWN:
            # It ran when a process died, and running it again does no harm: the others are abandoned on start.
            self.index.resolve_tool(self.work.id, self.tool_id, "retry")
            self._run(known.key)
        elif not self.tool.asks:
            self._run(self._note(intent=False))
        elif known is None:
            self._note(intent=True)
            self._ask()
        elif (refusal := self._refusal()) is None:
            self._ask()
        elif refusal:
            self.index.end_tool(self.work.id, self.tool_id, refusal, is_error=True)
        else:
            self._run(self._note(intent=False))

    def _note(self, *, intent: bool) -> str:
        """Note that the tool is meant to run, or runs from here on; return the key of all its attempts."""
        return self.index.begin_tool(
            self.work.id, self.call.name, tool_id=self.tool_id, effect=self.tool.effect, intent=intent,
            call_id=self.call.call_id, message_id=self.call.message_id,
        ).key  # fmt: skip

    def _ask(self) -> None:
        """Have the frame stand still. The tool's id as purpose binds the decision to this one call."""
        token = self.index.suspend_frame(
            self.work.id, reason=f"{self.call.name} needs a yes", purpose=self.tool_id, payload=self.call.args
        )
        raise AwaitingDecision(self.index.get_suspension(token.suspension_id))

    def _decision(self):
        told = self.index.get_frame(self.work.id).resumption
        return told if told is not None and told.purpose == self.tool_id else None

    def _refusal(self) -> str | None:
        """Return why it is not to run; "" if it is, None if nobody has decided."""
        told = self._decision()
        if told is None:
            return None
        rejected = told.decision is Decision.REJECTED
        return f"Not done: rejected by {told.by}. {told.reason}".strip() if rejected else ""

    def _run(self, key: str) -> None:
        output, is_error = _use(self.tool, self._args, key)
        # The result goes into the conversation and off the frame's list in one step.
        self.index.end_tool(self.work.id, self.tool_id, output, is_error=is_error)

    def _args(self) -> Mapping[str, Any]:
        """Return the arguments that were decided on, edited or not; those of the call if nobody was asked."""
        told = self._decision()
        if told is None:
            return self.call.args
        if not isinstance(told.payload, Mapping):
            raise ToolFailed(f"Not done: {told.by} edited the arguments to what is no object.")
        return cast("Mapping[str, Any]", told.payload)


def _use(tool: Tool, args: Callable[[], Mapping[str, Any]], key: str) -> tuple[Any, bool]:
    """Return what a tool gave, and whether that is an error."""
    try:
        return tool.do(**args(), key=key), False
    except (ToolFailed, WorkFailed, TypeError, ValueError) as error:
        return str(error), True


def _missing(name: str) -> Tool:
    def _refuse(**_: object) -> None:
        raise ToolFailed(f"There is no tool {name!r}.")

    return Tool(_refuse, ToolEffect.PURE)
