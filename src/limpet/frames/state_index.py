"""StateIndex: the verbs on frames and their context packs, for blocking callers.

Verbs that change a frame take an optional idempotency `key`: a call repeated with the same key has
one effect. A verb returns after its change is durable.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec
from limpet.core.rules.frame_rules import is_suspension_open
from limpet.core.values import commands, ids
from limpet.core.values.commands import CommandRequest
from limpet.core.values.context import (
    CompactionLevel,
    CompactionResult,
    CompactionStrategy,
    ContextHandle,
    HandleType,
    ResultRef,
)
from limpet.core.values.events import FrameSuspendedEvent
from limpet.core.values.frame_state import (
    ActorResumeState,
    Frame,
    FrameStatus,
    Scope,
    Suspension,
    SuspensionStatus,
    SuspensionToken,
    TokenBudget,
    ToolEffect,
    ToolRun,
    TreeState,
)
from limpet.core.values.validation import Json, checked_id, checked_limit
from limpet.core.windows.pack import BriefContext, ContextPack
from limpet.frames import frame_commands, packs, queries
from limpet.frames.handle_content import Resolver, bind_to_version
from limpet.frames.packs import FramePackAssembler, PackRequest
from limpet.frames.queries import checked_scope
from limpet.runtime import state_cache
from limpet.runtime.commit_queue import CommandResult
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import iter_rows
from limpet.sessions.requests import Settings, When, moment_us
from limpet.stores import port

if TYPE_CHECKING:
    from limpet import tokens


UNSET = msgspec.UNSET


class StateIndex:
    """Frames of one tenant: pushed, changed, suspended, resumed and popped; and what a model sees of them.

    `resolvers` finds the content of handles that point outside the log: `resolvers[HandleType.URL] = fn`,
    where `fn` returns the text of a handle. Handles into the log, and those with content, need none.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        factory: ids.Factory = ids.SYSTEM_FACTORY,
        resolvers: dict[HandleType, Resolver] | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._tenant = settings.tenant
        self._factory = factory
        self.resolvers: dict[HandleType, Resolver] = {} if resolvers is None else resolvers
        self._pack_assembler = FramePackAssembler(engine, settings.tenant, self.resolvers)

    def _submit(self, command: commands.FrameCommand, key: str | None = None) -> CommandResult:
        if key is not None:
            key = checked_id("an idempotency key", key)
        return self._engine.run(CommandRequest(tenant=self._tenant, command=command, key=key))

    def push_frame(
        self,
        scope: Scope,
        *,
        goal: str,
        budget: TokenBudget | int,
        inputs: Json = None,
        parent_frame_id: str | None = None,
        frame_id: str | None = None,
        parent_waits: bool = True,
        key: str | None = None,
    ) -> Frame:
        """Open a frame and return it. Under a parent, its total is taken from the parent's budget.

        The parent waits until its last child is popped, unless `parent_waits` is False. A child may belong
        to another actor. A repeated call with the same `frame_id` returns the same frame.
        Raises ParentFrameNotFound, MaxDepthExceeded, InsufficientTokens, TimeLimitExceeded,
        InvalidTransition, DuplicateFrame.
        """
        command = frame_commands.push(
            scope, goal=goal, budget=budget, inputs=inputs, parent_frame_id=parent_frame_id,
            frame_id=frame_id, waits=parent_waits,
        )  # fmt: skip
        return self._submit(command, key).frame

    def get_frame(self, frame_id: str) -> Frame:
        """Return a frame, open or closed; raise FrameNotFound if there is none."""
        self._engine.check()
        found = self._engine.trees.find_frame(self._tenant, checked_id("a frame's id", frame_id))
        if found is None:
            raise state_cache.unknown_frame_error(frame_id)
        return found

    def update_frame(
        self,
        frame_id: str,
        *,
        goal: str | msgspec.UnsetType = UNSET,
        inputs: Json | msgspec.UnsetType = UNSET,
        status: FrameStatus | None = None,
        handled: Sequence[str] = (),
        key: str | None = None,
    ) -> Frame:
        """Change the goal, the inputs or the status (active or waiting); return the changed frame.

        `handled` are failed children that need no more attention. Raises FrameNotFound, InvalidTransition.
        """
        command = frame_commands.update(frame_id, goal, inputs, status, handled)
        return self._submit(command, key).frame

    def pop_frame(
        self,
        frame_id: str,
        final_status: FrameStatus = FrameStatus.COMPLETED,
        *,
        result_summary: str = "",
        reason: str = "",
        cascade: bool = False,
        key: str | None = None,
    ) -> Frame:
        """Close a frame. Its used tokens are charged to its parent; the parent gets the rest back.

        With `cascade` open descendants are cancelled first. The frame's unanswered tool calls get a result
        in their conversation that says so. Raises OpenChildren, InvalidTransition.
        """
        command = frame_commands.pop(frame_id, final_status, result_summary, reason, cascade=cascade)
        return self._submit(command, key).frame

    def find_top_of_stack(self, scope: Scope) -> Frame | None:
        """Return the frame that a scope works on: the deepest open one, of these the newest; None without any.

        A scope without a session covers all of them: Scope("planner") finds the frames of all its sessions.
        """
        leaves = self.leaves(scope)
        return leaves[0] if leaves else None

    def get_frame_ancestry(self, frame_id: str) -> list[Frame]:
        """Return the frames from the root down to a frame, which is the last. Raises FrameNotFound."""
        self._engine.check()
        tree = self._engine.trees.open_tree(self._tenant, checked_id("a frame's id", frame_id))
        if tree is not None:
            return list(tree.ancestry(frame_id))
        found = [self.get_frame(frame_id)]
        while found[0].parent_frame_id is not None:
            found.insert(0, self.get_frame(found[0].parent_frame_id))
        return found

    def get_tree(self, frame_id: str) -> TreeState:
        """Return the open frames of the tree that a frame belongs to. Raises FrameNotFound."""
        root = self.get_frame(frame_id).root_id
        tree = self._engine.trees.current(self._tenant, root)
        assert tree is not None, "a frame is in a tree"
        return tree

    def list_frames(self, scope: Scope | None = None, *, open_only: bool = True, limit: int = 100) -> list[Frame]:
        """Return open frames, the deepest first, then the newest; after them, if asked for, closed ones."""
        return queries.list_frames(self._engine, self._tenant, scope, open_only=open_only, limit=limit)

    def leaves(self, scope: Scope) -> list[Frame]:
        """Return a scope's open frames without an open child in the scope, the deepest first, then the newest."""
        return queries.leaves(self._engine, self._tenant, scope)

    def resume_actor(self, scope: Scope) -> ActorResumeState:
        """Return a scope's stack and pending work after a restart. Tools that were running become "outcome unknown".

        Settle each of these with resolve_tool. Frames of other actors do not change. Without an open frame
        the state is empty.
        """
        return queries.resume_actor(self._engine, self._tenant, scope)

    def reserve(self, frame_id: str, amount: int, *, purpose: str = "", key: str | None = None) -> Frame:
        """Reserve tokens of a frame for a purpose. Raises InsufficientTokens if fewer are available."""
        return self._submit(frame_commands.change_reservation(frame_id, purpose, reserve=amount), key).frame

    def release_reservation(
        self, frame_id: str, amount: int | None = None, *, purpose: str = "", key: str | None = None
    ) -> Frame:
        """Release reserved tokens of a purpose: `amount`, or all of them. Raises BudgetError."""
        return self._submit(frame_commands.change_reservation(frame_id, purpose, release=amount), key).frame

    def record_usage(self, frame_id: str, amount: int, *, settles: str | None = None, key: str | None = None) -> Frame:
        """Record used tokens, even if fewer are available: `frame.budget.overdrawn` is the difference.

        `settles` names the purpose of a reservation, which ends; what is left of it becomes available.
        """
        return self._submit(frame_commands.record_usage(frame_id, amount, settles), key).frame

    def add_context_handle(self, frame_id: str, handle: ContextHandle, *, key: str | None = None) -> Frame:
        """Give a frame a pointer to content. The same handle again changes nothing.

        A handle to messages is bound to the session's present version (`target["at"]`), so a later rewind
        does not change what it points at. Raises DuplicateHandle if another handle has its id.
        """
        self._engine.check()
        command = bind_to_version(self._engine, self._tenant, frame_commands.add_handle(frame_id, handle))
        return self._submit(command, key).frame

    def remove_handle(self, frame_id: str, handle_id: str, *, key: str | None = None) -> Frame:
        """Remove a handle from a frame. Raises HandleNotFound."""
        return self._submit(frame_commands.remove_handle(frame_id, handle_id), key).frame

    def add_result(self, frame_id: str, result: ResultRef, *, key: str | None = None) -> Frame:
        """Add a reference to something that the frame produced."""
        return self._submit(frame_commands.add_result(frame_id, result), key).frame

    def suspend_frame(
        self,
        frame_id: str,
        *,
        reason: str,
        purpose: str = "",
        payload: Json = None,
        expires_in_s: float | None = limits.SUSPENSION_S,
        key: str | None = None,
    ) -> SuspensionToken:
        """Suspend a frame; return a token that resumes it, once, from any process.

        `payload` is the question, for example a tool call's arguments; a decision may edit it. Only a hash
        of the token is stored. A repeated call with the same key returns a new token and voids the first.
        Raises AlreadySuspended, InvalidTransition, and AlreadyDecided if that suspension was ended.
        """
        secret = frame_commands.new_secret(self._factory)
        command = frame_commands.suspend(
            self._factory, self._tenant, frame_id, secret, reason=reason, purpose=purpose,
            payload=payload, expires_in_s=expires_in_s,
        )  # fmt: skip
        answer = self._submit(command, key)
        suspension = answer.frame.suspension
        if answer.replayed:
            if suspension is None or not self._is_waiting_for_key(suspension, key):
                raise errors.AlreadyDecided("the suspension was ended meanwhile.")
            again = frame_commands.reissue_command(self._tenant, command, suspension, secret)
            suspension = self._submit(again).frame.suspension
        assert suspension is not None, "the frame was suspended just now"
        return frame_commands.suspension_token(suspension, secret)

    def _is_waiting_for_key(self, suspension: Suspension, key: str | None) -> bool:
        """Whether a suspension waits, and was begun by the command with this idempotency key."""
        store = self._engine.store
        used = None if key is None else store.find_key(self._tenant, key)
        found = store.feed(self._tenant, after=used.last - 1, limit=1) if used else []
        began = state_cache.decode_tree_event(found[0]).event if found else None
        return (
            isinstance(began, FrameSuspendedEvent)
            and began.suspension_id == suspension.suspension_id
            and suspension.status is SuspensionStatus.WAITING
        )

    def resume_frame(
        self,
        token: SuspensionToken | str,
        *,
        payload: Json | msgspec.UnsetType = UNSET,
        purpose: str | None = None,
        key: str | None = None,
    ) -> Frame:
        """Resume a suspended frame; `frame.resumption` has the payload.

        A `purpose` must be the one of the suspension. Raises InvalidSuspensionToken for a token that is
        unknown, used, revoked or of another tenant or frame; SuspensionExpired.
        """
        suspension_id, secret = frame_commands.parse_token(token)
        found = self._find_suspension(suspension_id)
        if found is None:
            raise errors.InvalidSuspensionToken
        command = frame_commands.resume_command(self._tenant, found, secret, payload, purpose)
        return self._submit(command, key).frame

    def decide_suspension(
        self,
        suspension_id: str,
        decision: str,
        *,
        by: str,
        reason: str = "",
        payload: Json | msgspec.UnsetType = UNSET,
        key: str | None = None,
    ) -> Frame:
        """Decide a suspension without its token: "approve", "reject", or "edit" with the edited payload.

        The frame is resumed in each case; `frame.resumption` has the decision. Raises SuspensionNotFound,
        AlreadyDecided (its facts name the decider and the time), SuspensionExpired.
        """
        found = self.get_suspension(suspension_id)
        command = frame_commands.decide_command(found, decision, by=by, reason=reason, payload=payload)
        try:
            return self._submit(command, key).frame
        except (errors.AlreadyDecided, errors.InvalidTransition) as error:
            raise frame_commands.already_decided(self.get_suspension(suspension_id)) from error

    def get_suspension(self, suspension_id: str) -> Suspension:
        """Return a suspension, waiting or ended. Raises SuspensionNotFound."""
        self._engine.check()
        found = self._find_suspension(checked_id("a suspension's id", suspension_id))
        if found is None:
            raise errors.SuspensionNotFound(
                f"there is no suspension {suspension_id!r}.", facts={"suspension": suspension_id}
            )
        return found

    def _find_suspension(self, suspension_id: str) -> Suspension | None:
        row = self._engine.store.find_projection(self._tenant, state_cache.SUSPENSION_KIND, suspension_id)
        return codec.decode_suspension(row.document) if row else None

    def list_suspensions(
        self, scope: Scope | None = None, *, waiting: bool = True, limit: int = 100
    ) -> list[Suspension]:
        """Return suspensions, newest first: those that can still be resumed or decided, or all."""
        self._engine.check()
        checked_limit(limit, sys.maxsize)
        checked_scope(scope, optional=True)
        query = port.Query(
            kind=state_cache.SUSPENSION_KIND,
            lookup=state_cache.ROW_WAITING if waiting else None,
            owner=scope.actor_id if scope else None,
        )
        rows = iter_rows(self._engine.store, self._tenant, query)
        now = self._engine.now_us()
        found = (
            suspension
            for suspension in (codec.decode_suspension(row.document) for row in rows)
            if (scope is None or scope.covers(suspension.scope))
            and (not waiting or is_suspension_open(suspension, now))
        )
        return list(itertools.islice(found, limit))

    def revoke_suspension(self, suspension_id: str, *, by: str = "", reason: str = "", key: str | None = None) -> Frame:
        """Make a token void. The frame stays suspended; suspend it again to get a new token."""
        found = self.get_suspension(suspension_id)
        return self._submit(frame_commands.revoke_suspension(found, by, reason), key).frame

    def begin_tool(
        self,
        frame_id: str,
        name: str,
        *,
        effect: ToolEffect = ToolEffect.DESTRUCTIVE,
        call_id: str | None = None,
        message_id: str | None = None,
        tool_id: str | None = None,
        summary: str = "",
        intent: bool = False,
        key: str | None = None,
    ) -> ToolRun:
        """Record that a tool starts; pass the `.key` of the returned run to the tool.

        With `intent` the tool is only planned; the same call without `intent` starts it. `call_id` and
        `message_id` name the call in the session's conversation. Raises ToolLimitExceeded,
        TimeLimitExceeded, and InvalidTransition if the call has started already.
        """
        command = frame_commands.begin_tool(
            self._factory, frame_id, name, effect=effect, call_id=call_id, message_id=message_id, tool_id=tool_id,
            summary=summary, intent=intent,
        )  # fmt: skip
        return frame_commands.find_tool_run(self._submit(command, key).frame, command)

    def end_tool(
        self, frame_id: str, tool_id: str, output: Json = None, *, is_error: bool = False, key: str | None = None
    ) -> Frame:
        """Record a tool's result, and add it to a conversation that waits for it, in one commit. Raises ToolNotFound."""
        return self._submit(self._end_tool_command(frame_id, tool_id, output, is_error=is_error), key).frame

    def _end_tool_command(
        self, frame_id: str, tool_id: str, output: Json, *, is_error: bool, abandon: bool = False
    ) -> commands.EndTool:
        return frame_commands.end_tool(
            frame_id, tool_id, output, is_error=is_error, abandon=abandon,
            max_messages=self._settings.max_messages_per_session,
        )  # fmt: skip

    def resolve_tool(
        self,
        frame_id: str,
        tool_id: str,
        how: str,
        *,
        output: Json = None,
        is_error: bool = False,
        key: str | None = None,
    ) -> Frame:
        """Settle a tool of unknown outcome: "retry" (it runs again under the same key), "result", or "abandon".

        An abandoned call gets a result that tells the model that the outcome is unknown, or, if the tool
        was only planned, that it did not run.
        """
        if how == "retry" and output is not None:
            raise errors.InvalidRequest("a tool that is retried has no output yet.")
        if how == "retry":
            command: commands.FrameCommand = frame_commands.retry_tool(frame_id, tool_id)
        elif how == "result":
            command = self._end_tool_command(frame_id, tool_id, output, is_error=is_error)
        elif how == "abandon":
            command = self._end_tool_command(frame_id, tool_id, output, is_error=True, abandon=True)
        else:
            raise errors.InvalidRequest(f"a tool is resolved by 'retry', 'result' or 'abandon', not {how!r}.")
        return self._submit(command, key).frame

    def expire(self, now: When | None = None) -> list[str]:
        """Fail frames whose time is up or whose session has ended, and expire suspensions.

        Returns the ids of the frames that changed. Time in which a frame or a descendant is suspended does
        not count.
        """
        self._engine.check()
        given = moment_us(now)
        now_us = self._engine.now_us() if given is None else given
        return queries.expire_frames(self._engine, self._tenant, now_us)

    def assemble_context_pack(
        self,
        scope: Scope,
        *,
        frame_id: str | None = None,
        role: str = "",
        budget_tokens: int | None = None,
        include_handles: Sequence[str] = (),
        exclude_handles: Sequence[str] = (),
        min_compaction: CompactionLevel = CompactionLevel.NONE,
        system_prompt: str = "",
        invariants: Sequence[str] = (),
        working_context: Json = None,
        available_tools: Sequence[str] = (),
        model: str | None = None,
        counter: str | tokens.Counter | None = None,
        overflow: str = "raise",
        strict: bool = False,
        record: bool = True,
    ) -> ContextPack:
        """Return the context pack for a frame: the one named, or the top of the scope's stack.

        It has a brief context, the frames from the root down, the scope's conversation, and content of the
        frame's handles, fitted into `budget_tokens`, by default the frame's available tokens and limits.
        `include_handles` go in first, within three quarters of the budget; `exclude_handles` stay out, even
        critical ones. With `strict`, a budget above the available tokens is refused. With overflow="flag"
        critical content is included even if it exceeds the budget. The pack is recorded with the frame,
        unless the last record is equal; pack_of returns it.
        Raises FrameNotFound, BudgetTooSmall, InsufficientTokens, HandleUnresolved, ContextOverflow.
        """
        self._engine.check()
        checked_scope(scope)
        request = PackRequest(
            brief=BriefContext(
                role=role, system_prompt=system_prompt, invariants=cast("tuple[str, ...]", invariants),
                working_context=working_context, available_tools=cast("tuple[str, ...]", available_tools),
            ),
            budget_tokens=budget_tokens,
            include_handles=packs.checked_handle_ids("include_handles", include_handles),
            exclude_handles=packs.checked_handle_ids("exclude_handles", exclude_handles),
            min_compaction=min_compaction, model=model, counter=counter, overflow=overflow,
            strict=strict,
        )  # fmt: skip
        target = self._top_frame_id(scope) if frame_id is None else checked_id("a frame's id", frame_id)
        made = self._pack_assembler.assemble(scope, target, request)
        frame = self._engine.trees.find_frame(self._tenant, target)
        if record and (frame is None or frame.context_hash != made.context_hash):
            command = self._pack_assembler.record_command(made)
            self._engine.run(CommandRequest(tenant=self._tenant, command=command))
        return made

    def _top_frame_id(self, scope: Scope) -> str:
        top = self.find_top_of_stack(scope)
        if top is None:
            raise errors.FrameNotFound(
                "No active frame: nothing is on the scope's stack.",
                hint="Push a frame first, or name one with frame_id.",
                facts={"actor": scope.actor_id},
            )
        return top.frame_id

    def pack_of(self, frame_id: str, context_hash: str | None = None, *, version: int | None = None) -> ContextPack:
        """Return a recorded pack, its messages byte for byte: the frame's last, or the one with a hash or version.

        `version` is the version of the recording event in the frame's tree. No resolver is called. Raises
        FrameNotFound, NotFound, Corrupt.
        """
        frame, store = self.get_frame(frame_id), self._engine.store
        chosen = packs.find_recorded_pack(store, self._tenant, frame, context_hash, version)
        packs.check_sessions_exist(self._engine, self._tenant, chosen)
        return packs.rebuild_pack(store, self._tenant, chosen)

    def compact_context(
        self, frame_id: str, target_budget: int, strategy: CompactionStrategy = CompactionStrategy.PRIORITY_BASED
    ) -> CompactionResult:
        """Remove handles from a frame until the rest has at most `target_budget` tokens.

        Critical and pinned handles stay, and the handles of one tool call stay or go together; `target_met`
        says whether the target was reached. Used tokens stay used. The result's level is "none" if nothing
        changed, "critical" if only critical handles are left, else "light" if at least three quarters of
        the tokens are left, "moderate" from a half, "aggressive" below; with a summary at least "moderate".
        Raises FrameNotFound, and InvalidRequest for a custom strategy that removes what must stay.
        """
        self._engine.check()
        request = PackRequest(brief=BriefContext())
        checked_id("a frame's id", frame_id)
        for tries_left in reversed(range(limits.RETRIES_MAX)):
            planned = self._pack_assembler.plan_compaction(frame_id, target_budget, strategy, request)
            if planned.command is None:
                return planned.result
            try:
                self._engine.run(CommandRequest(tenant=self._tenant, command=planned.command))
            except errors.Conflict:
                if not tries_left:
                    raise
            else:
                return planned.result
        raise AssertionError("the last try returns or raises")

    add_handle = add_context_handle
    get_context_pack = assemble_context_pack
