"""The state index's verbs for context: packs of frames, what was recorded of them, and compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from limpet import errors, limits
from limpet.core.values.commands import CommandRequest
from limpet.core.values.context import (
    CompactionLevel,
    CompactionResult,
    CompactionStrategy,
    HandleType,
)
from limpet.core.values.frame_state import Scope
from limpet.core.values.json_values import Json
from limpet.core.values.messages import checked_id
from limpet.core.values.pack_parts import BriefContext
from limpet.core.windows.pack import ContextPack
from limpet.engine import packs
from limpet.engine.packs import Packing, PackRequest
from limpet.engine.requests import Settings
from limpet.engine.resolving import Resolver
from limpet.engine.resuming import Resuming, checked_scope
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine

if TYPE_CHECKING:
    from limpet import tokens


class Contexts(Resuming):
    """Assembles what a model sees of a frame's work.

    `resolvers` finds the content of handles that point outside: `resolvers[HandleType.URL] = fn`, from a
    handle to text. Handles into the log, and those that came with their content, need none.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        super().__init__(engine, settings)
        self.resolvers: dict[HandleType, Resolver] = {}
        self._packing = Packing(engine, self._tenant, self.resolvers)

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
            include_handles=packs.named("include_handles", include_handles),
            exclude_handles=packs.named("exclude_handles", exclude_handles),
            min_compaction=min_compaction, model=model, counter=counter, overflow=overflow,
            strict=strict,
        )  # fmt: skip
        target = self._target(scope) if frame_id is None else checked_id("a frame's id", frame_id)
        made = self._packing.assemble(scope, target, request)
        frame = self._engine.trees.find(self._tenant, target)
        if record and (frame is None or frame.context_hash != made.context_hash):
            command = self._packing.recording(made)
            self._engine.run(CommandRequest(tenant=self._tenant, command=command))
        return made

    def _target(self, scope: Scope) -> str:
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
        frame = self._engine.trees.find(self._tenant, checked_id("a frame's id", frame_id))
        if frame is None:
            raise state_cache.unknown_frame_error(frame_id)
        store = self._engine.store
        chosen = packs.recorded(store, self._tenant, frame, context_hash, version)
        packs.check_talk(self._engine, self._tenant, chosen)
        return packs.rebuilt_pack(store, self._tenant, chosen)

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
            planned = self._packing.planned(frame_id, target_budget, strategy, request)
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
