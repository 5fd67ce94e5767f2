"""The agent loop: a session, frames, a model and tools. Read `Agent.run` first.

Its process may be killed between any two lines. Run again, it goes on, because

- what comes next follows from what is stored, never from variables: each round looks at the last turn;
- whatever is written has a name that follows from the work: messages, frames, tools, keys. Written
  again, it is the same, and is there once;
- a tool is noted before it runs (`acting.py`). One that ran when the process died runs again under the same
  key if that does no harm; otherwise the model is told that the outcome is unknown.

(1) to (7) are the points of docs/how-to/build-an-agent-loop.md. One process at a time works on a piece
of work: a second one would take the tools that the first is running for lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import limpet
from demo.agent.acting import act, tool_id_of
from demo.agent.parts import AwaitingDecision, Model, Shown, Tool, Work, WorkFailed
from limpet import ContextHandle, ContextPriority, Frame, FrameStatus, Message, Scope, Session, StateIndex, TokenBudget
from limpet.frames import HandleType, PendingWorkType, ToolEffect, ToolStatus

CONTEXT_TOKENS: Final = 4_000
SUMMARY_CHARS: Final = 4_000
TURNS_MAX: Final = 100

OUT_OF_MEANS: Final = (
    limpet.errors.BudgetTooSmall,
    limpet.ContextOverflow,
    limpet.errors.TimeLimitExceeded,
    limpet.errors.ToolLimitExceeded,
)


def nobody(_session: Session) -> None:
    """Watch nothing."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An actor: its words, model and tools. `worker` does what it delegates; `watch` is called after each step.

    `index` is optional (1): without it this is an agent on a session alone. It survives a kill all the same,
    but has no budgets and nobody to ask, so destructive tools are refused.
    """

    sessions: limpet.SessionManager
    index: StateIndex | None = None
    actor: str
    system: str
    model: Model
    tools: Mapping[str, Tool]
    worker: Agent | None = None
    watch: Callable[[Session], None] = nobody

    def run(self, work: Work) -> str:
        """Do a piece of work, from wherever it stands, to its end; return the answer.

        Raises AwaitingDecision when somebody has to decide first, WorkFailed when its means do not suffice.
        """
        session = self.sessions.get_or_create_session(work.session_id, system=self.system)
        self._come_back(work, session)
        frame = self._begin(work)
        if frame is None or frame.open:
            task = Message("user", work.goal, id=f"{work.id}/task")
            session.add_message(task, key=task.id)  # the same key: the same message, once
            try:
                self._take_turns(work, session)
            except OUT_OF_MEANS as error:
                self._give_up(work, str(error))
        return self._outcome(work, session)

    def _come_back(self, work: Work, session: Session) -> None:
        """On start (2): settle what an earlier process left behind (7)."""
        if self.index is None:
            for call in session.pending_calls():
                if call.name in self.tools and self.tools[call.name].asks:
                    session.close_pending_calls(call_ids=[call.call_id])
            return
        found = self.index.resume_actor(Scope(self.actor, session.id))
        for item in found.pending_work:
            if item.frame_id != work.id:
                continue  # of a parent, or of other work in this session
            match item.work_type:
                case PendingWorkType.TOOL_IN_PROGRESS if item.tool is not None:
                    lost = item.tool.status is ToolStatus.UNKNOWN
                    if lost and not item.tool.safe_to_retry:
                        self.index.resolve_tool(work.id, item.ref_id, "abandon")
                case PendingWorkType.WAITING_FOR_USER:
                    standing = self.index.get_suspension(item.ref_id)
                    if standing.status == "waiting":  # one that ran out is asked about anew
                        raise AwaitingDecision(standing)
                case _:
                    # A subcall is come back to by the call that delegated it. A child that failed is told
                    # of by that call's result, and dealt with before the next turn.
                    pass

    def _begin(self, work: Work) -> Frame | None:
        """On new work, push a frame (3). Its id is the work's: pushed again, it is the same frame."""
        if self.index is None:
            return None
        return self.index.push_frame(
            Scope(self.actor, work.session_id),
            goal=work.goal,
            budget=TokenBudget(
                total=work.budget, max_context_tokens=CONTEXT_TOKENS, max_tool_calls=50, timeout_ms=None
            ),
            frame_id=work.id,
            parent_frame_id=work.parent,
        )

    def _take_turns(self, work: Work, session: Session) -> None:
        """Take turns until the model asks for no tool."""
        tools = self._offered(work)
        for _ in range(TURNS_MAX):
            self.watch(session.reload())
            turn = _last_turn(work, session)
            if turn is not None:
                self._charge(work, turn)
                if not turn.tool_calls:
                    return self._finish(work, turn)
                for call in session.pending_calls():
                    act(self.index, session, work, tools, call)
                    self.watch(session.reload())
                self._note_results(work, turn)
            self._think(work, session, tools)
        return self._give_up(work, f"there was no answer after {TURNS_MAX} turns")

    def _think(self, work: Work, session: Session, tools: Mapping[str, Tool]) -> None:
        """Show the model what fits, and record what it says under the name of this step."""
        reply = self.model(self._context(work, session), tools)
        said = Message(
            "assistant",
            reply.text or (None if reply.calls else "(no answer)"),
            id=f"{work.id}/{session.message_count}",
            tool_calls=list(reply.calls),
            metadata={"tokens": reply.tokens},
        )
        session.add_message(said)

    def _context(self, work: Work, session: Session) -> Shown:
        """Before the model is called, assemble what it is shown (4): no more than the frame has tokens for.

        The pack is recorded with the frame: `pack_of` shows later what the model saw.
        """
        if self.index is None:
            return session.window(CONTEXT_TOKENS)
        scope = Scope(self.actor, session.id)
        return self.index.assemble_context_pack(scope, frame_id=work.id, role=self.actor)

    def _charge(self, work: Work, turn: Message) -> None:
        """Record what a turn cost. It is under the turn's name: recorded again, it counts once."""
        tokens = turn.metadata.get("tokens")
        if self.index is not None and isinstance(tokens, int):
            self.index.record_usage(work.id, tokens, key=f"{turn.id}/tokens")

    def _note_results(self, work: Work, turn: Message) -> None:
        """After tool calls, give the frame a handle on each result (5). Given again, it changes nothing."""
        if self.index is None:
            return
        for call in turn.tool_calls:
            tool_id = tool_id_of(call.name, turn.id, call.id)
            handle = ContextHandle(
                handle_id=tool_id,
                handle_type=HandleType.TOOL_OUTPUT,
                description=f"what {call.name} gave",
                priority=ContextPriority.LOW,  # the conversation has it, while it has room
                target={"frame_id": work.id, "tool_id": tool_id},
            )
            self.index.add_context_handle(work.id, handle)
        failed = self.index.get_frame(work.id).failures
        if failed:  # The model has been told: each call of the turn has its result.
            self.index.update_frame(work.id, handled=failed)

    def _finish(self, work: Work, turn: Message) -> None:
        """On completion, pop the frame (6): what is left of its tokens goes back to its parent."""
        if self.index is not None:
            summary = str(turn.content)[:SUMMARY_CHARS]
            self.index.pop_frame(work.id, FrameStatus.COMPLETED, result_summary=summary)

    def _give_up(self, work: Work, reason: str) -> None:
        if self.index is None:
            raise WorkFailed(reason)
        self.index.pop_frame(work.id, FrameStatus.FAILED, reason=reason, cascade=True)

    def _outcome(self, work: Work, session: Session) -> str:
        """Return the answer of work that is through, in this run or in an earlier one."""
        frame = None if self.index is None else self.index.get_frame(work.id)
        if frame is not None and frame.status is not FrameStatus.COMPLETED:
            raise WorkFailed(frame.reason)
        turn = _last_turn(work, session)
        return str(turn.content) if turn is not None else ""

    def _offered(self, work: Work) -> Mapping[str, Tool]:
        """Return the tools that the model may call: delegating is one of them."""
        if self.worker is None:
            return self.tools
        delegate = Tool(
            partial(self._delegate, self.worker, work),
            ToolEffect.IDEMPOTENT,
            "Have a helper do a piece of work within a budget of tokens.",
            {"goal": "string", "budget": "integer"},
        )
        return {**self.tools, "delegate": delegate}

    def _delegate(self, worker: Agent, work: Work, goal: str, budget: int, *, key: str) -> str:
        """Have a sub-agent do it, in a frame and a session named by the key: asked again, it goes on there."""
        child = Work(key, str(goal), session_id=key, budget=int(budget), parent=work.id)
        try:
            return worker.run(child)
        except (limpet.InsufficientTokens, limpet.errors.MaxDepthExceeded) as error:
            raise WorkFailed(str(error)) from error


def _last_turn(work: Work, session: Session) -> Message | None:
    """Return the last thing that the model said about a piece of work; None if it has said nothing."""
    for number in range(len(session.messages) - 1, -1, -1):
        message = session.messages[number]
        if message.role == "assistant" and message.id.startswith(f"{work.id}/"):
            return message
        if message.id == f"{work.id}/task":
            return None
    return None
