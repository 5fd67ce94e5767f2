"""StateIndex: the verbs on frames for blocking callers.

Verbs that change a frame take an optional idempotency `key`: a call repeated with the same key has
one effect. A verb returns after its change is durable. The verbs of context packs are here, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec
from limpet.core.rules.frame_rules import is_suspension_open
from limpet.core.values import commands, ids
from limpet.core.values.budget import TokenBudget
from limpet.core.values.commands import CommandRequest
from limpet.core.values.context import (
    CompactionLevel,
    CompactionResult,
    CompactionStrategy,
    ContextHandle,
    HandleType,
    ResultRef,
)
from limpet.core.values.frame_state import (
    Frame,
    FrameStatus,
    Scope,
    Suspension,
    SuspensionToken,
    ToolEffect,
    ToolRun,
    TreeState,
)
from limpet.core.values.json_values import Json
from limpet.core.values.messages import checked_id
from limpet.core.values.pack_parts import BriefContext
from limpet.core.windows.pack import ContextPack
from limpet.frames import frame_commands, packs
from limpet.frames.handle_content import Resolver, bind_to_version
from limpet.frames.packs import FramePackAssembler, PackRequest
from limpet.frames.queries import FrameQueries, checked_limit, checked_scope
from limpet.runtime import state_cache
from limpet.runtime.commit_queue import CommandResult
from limpet.runtime.engine import Engine
from limpet.sessions.requests import Settings, When, moment_us

if TYPE_CHECKING:
    from limpet import tokens


class FrameContextOperations(FrameQueries):
    """Assembles what a model sees of a frame's work.

    `resolvers` finds the content of handles that point outside: `resolvers[HandleType.URL] = fn`, from a
    handle to text. Handles into the log, and those that came with their content, need none.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.resolvers: dict[HandleType, Resolver] = {}
        self._pack_assembler = FramePackAssembler(engine, self._tenant, self.resolvers)

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
        """Return what a model should see for a frame: the one named, or the top of the scope's stack.

        A brief context, the frames from the root down, the scope's conversation, and content of the frame's
        own handles, fitted into `budget_tokens`; without it, into what the frame has left and its limits
        allow. `include_handles` go in before others, within three quarters of the room;
        `exclude_handles` stay out, even critical ones. With `strict`, a budget above what the frame has
        left is refused. With overflow="flag" what is critical comes back even where it exceeds the budget.
        The pack is recorded with the frame, unless it is the one recorded last; pack_of gives it back.
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
        target = (
            self._top_frame_id(scope) if frame_id is None else checked_id("a frame's id", frame_id)
        )
        made = self._pack_assembler.assemble(scope, target, request)
        frame = self._engine.trees.find_frame(self._tenant, target)
        if record and (frame is None or frame.context_hash != made.context_hash):
            command = self._pack_assembler.record_command(made)
            self._engine.run(CommandRequest(tenant=self._tenant, command=command))
        return made

    def _top_frame_id(self, scope: Scope) -> str:
        leaves = self.leaves(scope)
        if not leaves:
            raise errors.FrameNotFound(
                "No active frame: nothing is on the scope's stack.",
                hint="Push a frame first, or name one with frame_id.",
                facts={"actor": scope.actor_id},
            )
        return leaves[0].frame_id

    def pack_of(
        self, frame_id: str, context_hash: str | None = None, *, version: int | None = None
    ) -> ContextPack:
        """Return a pack that was recorded, its messages byte for byte: the frame's last, or by its hash, or by its event.

        `version` is that of the event in the frame's tree. Nothing is decided anew, and no resolver is
        asked. Raises FrameNotFound, NotFound, Corrupt.
        """
        self._engine.check()
        frame = self._engine.trees.find_frame(self._tenant, checked_id("a frame's id", frame_id))
        if frame is None:
            raise state_cache.unknown_frame_error(frame_id)
        store = self._engine.store
        chosen = packs.find_recorded_pack(store, self._tenant, frame, context_hash, version)
        packs.check_sessions_exist(self._engine, self._tenant, chosen)
        return packs.rebuild_pack(store, self._tenant, chosen)

    def compact_context(
        self,
        frame_id: str,
        target_budget: int,
        strategy: CompactionStrategy = CompactionStrategy.PRIORITY_BASED,
    ) -> CompactionResult:
        """Let a frame go of handles until those that are left have `target_budget` tokens, by a strategy.

        Critical and pinned handles stay, and a tool's call stays or goes with its result; `target_met` says
        whether it was enough. Sizes are those of the handles: what the frame has spent stays spent. The
        level is none if nothing changed, critical if only critical handles are left, else light from three
        quarters on of the tokens that are left, moderate from a half on, aggressive below; with a summary
        moderate at least. Raises FrameNotFound, and InvalidRequest for a custom strategy that drops what
        must stay.
        """
        self._engine.check()
        request = PackRequest(brief=BriefContext())
        checked_id("a frame's id", frame_id)
        for tries_left in reversed(range(limits.RETRIES_MAX)):
            planned = self._pack_assembler.plan_compaction(
                frame_id, target_budget, strategy, request
            )
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

    get_context_pack = assemble_context_pack


UNSET = msgspec.UNSET


class StateIndex(FrameContextOperations):
    """Frames of one tenant: pushed, changed, suspended, resumed and popped."""

    def __init__(
        self, engine: Engine, settings: Settings, factory: ids.Factory = ids.SYSTEM_FACTORY
    ) -> None:
        super().__init__(engine, settings)
        self._commands = frame_commands.FrameCommandFactory(factory)

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
        """Begin a frame. Under a parent, its total comes out of the parent's account, or nothing happens.

        The parent waits until its last child is popped, unless `parent_waits` is False. A child may belong
        to another actor. With a `frame_id` of the caller's own, asking again gives the same frame.
        Raises ParentFrameNotFound, MaxDepthExceeded, InsufficientTokens, TimeLimitExceeded,
        InvalidTransition, DuplicateFrame.
        """
        command = self._commands.push(
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
        """Change what is named: the goal, the inputs, or whether it works or waits.

        `handled` are failed children that somebody has dealt with. Raises InvalidTransition.
        """
        command = self._commands.update(frame_id, goal, inputs, status, handled)
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
        """Close a frame: what it spent is charged to its parent, what is left goes back.

        With `cascade` open descendants are cancelled first. Calls that a frame leaves unanswered are closed
        in their conversation with a result that says so. Raises OpenChildren, InvalidTransition.
        """
        command = self._commands.pop(
            frame_id, final_status, result_summary, reason, cascade=cascade
        )
        return self._submit(command, key).frame

    def find_top_of_stack(self, scope: Scope) -> Frame | None:
        """Return the frame that a scope works on: the deepest open one, then the newest; None if there is none.

        What a scope does not name may be anything: Scope("planner") finds the frames of all its sessions.
        """
        leaves = self.leaves(scope)
        return leaves[0] if leaves else None

    def get_frame_ancestry(self, frame_id: str) -> list[Frame]:
        """Return the frames from the root down to one, itself included. Raises FrameNotFound."""
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

    def reserve(
        self, frame_id: str, amount: int, *, purpose: str = "", key: str | None = None
    ) -> Frame:
        """Set tokens of a frame aside. Raises InsufficientTokens if fewer are available."""
        return self._submit(
            self._commands.change_reservation(frame_id, purpose, reserve=amount), key
        ).frame

    def release_reservation(
        self, frame_id: str, amount: int | None = None, *, purpose: str = "", key: str | None = None
    ) -> Frame:
        """Give back what was set aside for a purpose: all of it, or some. Raises BudgetError."""
        return self._submit(
            self._commands.change_reservation(frame_id, purpose, release=amount), key
        ).frame

    def record_usage(
        self, frame_id: str, amount: int, *, settles: str | None = None, key: str | None = None
    ) -> Frame:
        """Record what a frame spent, available or not: `frame.budget.overdrawn` says what was not.

        `settles` names a reservation that this was for: it ends, and what is left of it is free again.
        """
        return self._submit(self._commands.record_usage(frame_id, amount, settles), key).frame

    def add_context_handle(
        self, frame_id: str, handle: ContextHandle, *, key: str | None = None
    ) -> Frame:
        """Give a frame a pointer to content that it may need. The same handle again changes nothing.

        One to messages stays with those that have the numbers now, whatever becomes of the session; its
        target says so by the version "at". Raises DuplicateHandle if another one has its id.
        """
        self._engine.check()
        command = bind_to_version(
            self._engine, self._tenant, self._commands.add_handle(frame_id, handle)
        )
        return self._submit(command, key).frame

    def remove_handle(self, frame_id: str, handle_id: str, *, key: str | None = None) -> Frame:
        """Take a handle from a frame. Raises HandleNotFound if it has none by that id."""
        return self._submit(self._commands.remove_handle(frame_id, handle_id), key).frame

    def add_result(self, frame_id: str, result: ResultRef, *, key: str | None = None) -> Frame:
        """Note what a frame produced."""
        return self._submit(self._commands.add_result(frame_id, result), key).frame

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
        """Have a frame stand still; return the right to resume it, once, from any process.

        `payload` is what is asked about, for example a tool call's arguments; whoever decides may edit it.
        Only a hash of the token is kept. Asked again with the same key, a new token replaces the first.
        Raises AlreadySuspended, InvalidTransition, and AlreadyDecided if that suspension was ended.
        """
        secret = self._commands.new_secret()
        command = self._commands.suspend(
            self._tenant, frame_id, secret, reason=reason, purpose=purpose,
            payload=payload, expires_in_s=expires_in_s,
        )  # fmt: skip
        answer = self._submit(command, key)
        standing = answer.frame.suspension
        if answer.replayed:
            if standing is None or not self._is_waiting_for_key(standing, key):
                raise errors.AlreadyDecided("the suspension was ended meanwhile.")
            again = frame_commands.reissue_command(self._tenant, command, standing, secret)
            standing = self._submit(again).frame.suspension
        assert standing is not None, "a frame that was just suspended is"
        return frame_commands.suspension_token(standing, secret)

    def resume_frame(
        self,
        token: SuspensionToken | str,
        *,
        payload: Json | msgspec.UnsetType = UNSET,
        purpose: str | None = None,
        key: str | None = None,
    ) -> Frame:
        """Let a suspended frame go on where it was, once; `frame.resumption` has what it is handed.

        `purpose` given must be the one that the frame was suspended for. Raises InvalidSuspensionToken for
        a token that is unknown, used, revoked or of elsewhere; SuspensionExpired.
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

        The frame goes on in each case; `frame.resumption` tells it how. Raises SuspensionNotFound,
        AlreadyDecided (with who and when), SuspensionExpired.
        """
        found = self.get_suspension(suspension_id)
        command = frame_commands.decide_command(
            found, decision, by=by, reason=reason, payload=payload
        )
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
        row = self._engine.store.find_projection(
            self._tenant, state_cache.SUSPENSION_KIND, suspension_id
        )
        return codec.decode_suspension(row.document) if row else None

    def list_suspensions(
        self, scope: Scope | None = None, *, waiting: bool = True, limit: int = 100
    ) -> list[Suspension]:
        """Return suspensions, newest first: those that can still be resumed or decided, or all."""
        self._engine.check()
        checked_limit(limit)
        checked_scope(scope, optional=True)
        rows = self._rows(
            state_cache.SUSPENSION_KIND,
            lookup=state_cache.ROW_WAITING if waiting else None,
            owner=scope.actor_id if scope else None,
        )
        every = (codec.decode_suspension(row.document) for row in rows)
        now = self._engine.now_us()
        found = (
            one
            for one in every
            if (scope is None or scope.covers(one.scope))
            and (not waiting or is_suspension_open(one, now))
        )
        return list(itertools.islice(found, limit))

    def revoke_suspension(
        self, suspension_id: str, *, by: str = "", reason: str = "", key: str | None = None
    ) -> Frame:
        """Make a token void. The frame stays suspended until it is suspended anew and resumed."""
        found = self.get_suspension(suspension_id)
        return self._submit(self._commands.revoke_suspension(found, by, reason), key).frame

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
        """Note that a tool runs from here on; hand `.key` of what is returned to the tool.

        With `intent` it is only meant to run; the same call again starts it. `call_id` and `message_id`
        name the call in the session's conversation. Raises ToolLimitExceeded, TimeLimitExceeded, and
        InvalidTransition if the call has begun already.
        """
        command = self._commands.begin_tool(
            frame_id, name, effect=effect, call_id=call_id, message_id=message_id, tool_id=tool_id,
            summary=summary, intent=intent,
        )  # fmt: skip
        return frame_commands.find_tool_run(self._submit(command, key).frame, command)

    def end_tool(
        self,
        frame_id: str,
        tool_id: str,
        output: Json = None,
        *,
        is_error: bool = False,
        key: str | None = None,
    ) -> Frame:
        """Note a tool's result. A conversation that waits for it gets it in the same step. Raises ToolNotFound."""
        return self._submit(
            self._end_tool_command(frame_id, tool_id, output, is_error=is_error), key
        ).frame

    def _end_tool_command(
        self, frame_id: str, tool_id: str, output: Json, *, is_error: bool, abandon: bool = False
    ) -> commands.EndTool:
        return self._commands.end_tool(
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

        An abandoned call gets a result that tells the model that its outcome is unknown, or, if it was only
        meant to run, that it was not run.
        """
        if how == "retry" and output is not None:
            raise errors.InvalidRequest("a tool that is retried has no output yet.")
        if how == "retry":
            command: commands.FrameCommand = self._commands.retry_tool(frame_id, tool_id)
        elif how == "result":
            command = self._end_tool_command(frame_id, tool_id, output, is_error=is_error)
        elif how == "abandon":
            command = self._end_tool_command(frame_id, tool_id, output, is_error=True, abandon=True)
        else:
            raise errors.InvalidRequest(
                f"a tool is resolved by 'retry', 'result' or 'abandon', not {how!r}."
            )
        return self._submit(command, key).frame

    def expire(self, now: When | None = None) -> list[str]:
        """Fail frames whose time is up or whose session has ended, expire suspensions; return their frames.

        Time that a frame, or anything below it, is suspended does not count.
        """
        self._engine.check()
        given = moment_us(now)
        return self._expire(self._engine.now_us() if given is None else given)

    add_handle = add_context_handle
