"""Assembles, records and rebuilds context packs, and plans the compaction of a frame's handles.

It collects the ancestry, the conversation, the token counter and the content of handles; the
fitting itself is in `core.windows`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules as rules
from limpet.core.values import events as e
from limpet.core.values import ids
from limpet.core.values.commands import RecordPack
from limpet.core.values.context import CompactionLevel, CompactionStrategy, ContextHandle, HandleType, PackSelection
from limpet.core.values.frame_state import Frame, Scope, TreeState, insufficient_tokens_error
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState
from limpet.core.values.validation import checked_bool, checked_choice, checked_id, checked_instance, checked_int
from limpet.core.windows import compaction, pack_assembly, recorded_selection
from limpet.core.windows import window as windows
from limpet.core.windows.compaction import CompactionPlan
from limpet.core.windows.fitter import ContextItem
from limpet.core.windows.pack import BriefContext, ContextPack, ConversationMoment
from limpet.core.windows.pack_assembly import PackInput
from limpet.frames.handle_content import HandleReader, Resolvers, SessionVersions, find_session
from limpet.runtime import state_cache
from limpet.runtime.engine import Engine
from limpet.runtime.message_cache import CorrectedCounter, WindowInput
from limpet.sessions.windows import RecordedMessages, WindowOptions
from limpet.stores import port

if TYPE_CHECKING:
    from limpet import tokens


class PackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a context pack."""

    brief: BriefContext
    budget_tokens: int | None = None
    include_handles: frozenset[str] = frozenset()
    exclude_handles: frozenset[str] = frozenset()
    min_compaction: CompactionLevel = CompactionLevel.NONE
    model: str | None = None
    counter: str | tokens.Counter | None = None
    overflow: str = "raise"
    strict: bool = False

    def __post_init__(self) -> None:
        checked_choice("overflow", self.overflow, ("raise", "flag"))
        checked_bool("strict", self.strict)


def checked_handle_ids(what: str, handles: Collection[str]) -> frozenset[str]:
    """Return handle ids as a set; raise InvalidRequest for anything but a list of ids."""
    if isinstance(cast("object", handles), (str, bytes)) or not isinstance(cast("object", handles), Collection):
        raise errors.InvalidRequest(f"{what} is a list of handles' ids.")
    return frozenset(checked_id("a handle's id", each) for each in handles)


class FramePackAssembler:
    """Assembles context packs for frames of one tenant."""

    def __init__(self, engine: Engine, tenant: str, resolvers: Resolvers) -> None:
        self._engine = engine
        self._tenant = tenant
        self._handle_reader = HandleReader(engine, tenant, resolvers)

    def open_tree(self, frame_id: str) -> TreeState:
        """Return the tree of an open frame; raise FrameNotFound, or InvalidTransition if the frame is closed."""
        trees = self._engine.trees
        if (tree := trees.open_tree(self._tenant, frame_id)) is not None:
            return tree
        if (frame := trees.find_frame(self._tenant, frame_id)) is None:
            raise state_cache.unknown_frame_error(frame_id)
        raise errors.InvalidTransition(
            f"the frame {frame_id!r} is {frame.status}: no context is assembled for it.",
            hint="pack_of gives back what was recorded.",
            facts={"frame": frame_id, "status": str(frame.status)},
        )

    def assemble(self, scope: Scope, frame_id: str, request: PackRequest) -> ContextPack:
        tree = self.open_tree(frame_id)
        frame = tree.frames[frame_id]
        if not scope.covers(frame.scope):
            raise errors.InvalidRequest(
                f"the frame {frame_id!r} is not of that scope.",
                hint="Give its own: frame.scope. Handles bring in the work of other actors.",
                facts={"frame": frame_id, "actor": frame.scope.actor_id},
            )
        return self._assemble(tree, scope, frame_id, request, self._pack_budget(tree, frame, request))

    def _assemble(self, tree: TreeState, scope: Scope, frame_id: str, request: PackRequest, budget: int) -> ContextPack:
        ancestry = tree.ancestry(frame_id)
        session_id = scope.session_id or ancestry[-1].scope.session_id
        state = self._current_session(session_id) if session_id is not None else None
        measure = self._measure(request, state, budget)
        talk, talked = self._conversation_items(state, measure, budget)
        wanted = PackInput(
            ancestry=ancestry, scope=scope, brief=request.brief, budget=budget,
            assembled_at=ids.iso(self._engine.now_us()), conversation=talk, conversation_moment=talked,
            include=request.include_handles, exclude=request.exclude_handles, level_min=request.min_compaction,
            allow_overflow=request.overflow == "flag",
        )  # fmt: skip
        fetch, count = self._handle_reader.fetch, measure.count
        return pack_assembly.assemble(wanted, fetch, count=count, counted=measure.counted)

    def _pack_budget(self, tree: TreeState, frame: Frame, request: PackRequest) -> int:
        free, asked = frame.budget.available(), request.budget_tokens
        if asked is None:
            most = tree.strictest_limit(frame.frame_id, "max_context_tokens")
            return pack_assembly.checked_pack_budget(free if most is None else min(free, most))
        hint = "For example budget_tokens=4_000."
        checked_int("budget_tokens", asked, 0, limits.TOKENS_MAX, hint=hint)
        pack_assembly.checked_pack_budget(asked)
        if request.strict and asked > free:
            raise insufficient_tokens_error(asked, free)
        return asked

    def _measure(self, request: PackRequest, state: SessionState | None, budget: int) -> CorrectedCounter:
        """Return the caller's counter, the session's, or the default one, with the session's corrections."""
        model, counter = request.model, request.counter
        policy = state.policy if state else None
        if model is None and counter is None and policy is not None:
            model, counter = policy.model, policy.counter
        asked = WindowOptions(
            budget=budget, model=model, counter=counter, reserve=limits.PACK_OVERHEAD, reserve_covers_tools=True,
            min_compaction=request.min_compaction,
        )  # fmt: skip
        return asked.corrected_counter(state.corrections if state else ())

    def _current_session(self, session_id: str) -> SessionState | None:
        """Return the last session of a conversation; None if the session does not exist yet."""
        find = partial(find_session, self._engine, self._tenant)
        state = find(session_id)
        while state is not None and (following := rules.find_continuation(state, find)):
            state = following
        return state

    def _conversation_items(
        self, state: SessionState | None, measure: CorrectedCounter, budget: int
    ) -> tuple[tuple[ContextItem, ...], ConversationMoment | None]:
        if state is None or not state.message_count:
            return (), None
        parts = WindowInput(self._engine.message_cache.get(self._tenant, state), state, measure, budget)
        items = windows.window_items(parts.parts(stable=False), known=parts.cached_items)
        return tuple(items), ConversationMoment(state.id, state.version, state.ordinal_began)

    def record_command(self, made: ContextPack) -> RecordPack:
        chosen, texts = recorded_selection.pack_selection(made)
        return RecordPack(frame_id=made.metadata.frame_id, selection=chosen, texts=texts)

    def plan_compaction(
        self, frame_id: str, target: int, strategy: CompactionStrategy, request: PackRequest
    ) -> CompactionPlan:
        hint = "For example CompactionStrategy.PRIORITY_BASED."
        checked_instance("strategy", strategy, CompactionStrategy, hint=hint)
        tree = self.open_tree(frame_id)
        frame = tree.frames[frame_id]
        return compaction.plan_compaction(
            frame, target, strategy, together=self._handle_groups(frame.context_handles), contents=self._handle_texts,
            whole=partial(self._assemble, tree, frame.scope, frame_id, request, limits.TOKENS_MAX),
        )  # fmt: skip

    def _handle_texts(self, handles: Sequence[ContextHandle]) -> dict[str, str]:
        found = self._handle_reader.fetch(handles, must=False)
        return {name: content.text for name, content in found.items() if content.text is not None}

    def _handle_groups(self, handles: Sequence[ContextHandle]) -> dict[str, int]:
        """Return a group number for each handle that shares a tool call with another."""
        groups, versions = _HandleGroups(), SessionVersions(self._engine, self._tenant)
        for handle in handles:
            target = handle.target
            if handle.handle_type is HandleType.MESSAGE_RANGE and target:
                state = versions.get(target["session_id"], handle.session_version)
                if state is not None:
                    edges = {target["first"], target["last"]}
                    groups.add(handle.handle_id, [self._message_group(state, n) for n in edges])
        return groups.numbers()

    def _message_group(self, state: SessionState, number: int) -> tuple[str, int]:
        """Return the key of a message's group: the session, and the version of the first message."""
        if not 1 <= number <= state.message_count:
            return state.id, -number
        cached = self._engine.message_cache.get(self._tenant, state)
        version = cached.version_of(number)
        group = cached.group(version, state.version)
        return state.id, group[0].version if group else version


class _HandleGroups:
    """Groups of handles that share a tool call, directly or through other handles."""

    def __init__(self) -> None:
        self._number_by_key: dict[tuple[str, int], int] = {}
        self._members: dict[int, list[str]] = {}

    def add(self, handle_id: str, keys: Sequence[tuple[str, int]]) -> None:
        known = {self._number_by_key[key] for key in keys if key in self._number_by_key}
        number = min(known, default=len(self._number_by_key) + 1)
        members = [name for each in known for name in self._members.pop(each)]
        self._members[number] = [*members, handle_id]
        for key, each in list(self._number_by_key.items()) if len(known) > 1 else ():
            if each in known:
                self._number_by_key[key] = number
        self._number_by_key |= dict.fromkeys(keys, number)

    def numbers(self) -> dict[str, int]:
        """Return the group number of each handle that is not alone in its group."""
        return {name: number for number, names in self._members.items() if len(names) > 1 for name in names}


def check_sessions_exist(engine: Engine, tenant: str, chosen: PackSelection) -> None:
    """Raise NotFound if a session was deleted whose messages are in a recorded pack."""
    found = list(chosen.sessions)
    talked = chosen.about.get("talked")
    if talked is not None:
        moment = msgspec.convert(talked, ConversationMoment)
        found.append((moment.session_id, moment.version))
    for session_id, version in found:
        if find_session(engine, tenant, session_id, version) is None:
            raise errors.NotFound(
                f"the session {session_id!r}, whose messages are in the pack, was deleted.",
                facts={"session": session_id, "context_hash": chosen.digest},
            )


def rebuild_pack(store: port.Store, tenant: str, chosen: PackSelection) -> ContextPack:
    """Return the pack of a record, byte for byte; raise Corrupt if it can't be rebuilt."""

    def texts(hashes: Sequence[str]) -> dict[str, str]:
        found = store.blobs(tenant, {bytes.fromhex(each) for each in hashes})
        return {key.hex(): content.decode() for key, content in found.items()}

    def messages(moment: ConversationMoment, first: int, last: int) -> list[Message]:
        return RecordedMessages(store, tenant, moment).read(first, last)

    return recorded_selection.rebuilt_pack(chosen, texts, messages)


def find_recorded_pack(
    store: port.Store, tenant: str, frame: Frame, context_hash: str | None, version: int | None
) -> PackSelection:
    """Return the record of a frame's pack: the one at a version of the tree, with a hash, or the last; raise NotFound."""
    if version is not None:
        checked_int("version", version, 1, hint="It is that of an event in the frame's tree.")
    wanted = frame.context_hash if context_hash is None and version is None else context_hash
    stream = state_cache.tree_stream(frame.root_id)
    high = store.version(tenant, stream) if version is None else version
    while high > 0:
        low = max(0, high - limits.READ_CHUNK) if version is None else high - 1
        page = store.read(tenant, stream, after=low, until=high, limit=high - low)
        updates = (stored for stored in reversed(page) if stored.kind == e.FrameUpdatedEvent.kind)
        for event in (state_cache.decode_tree_event(stored).event for stored in updates):
            if not isinstance(event, e.FrameUpdatedEvent) or event.pack is None or event.frame_id != frame.frame_id:
                continue
            if wanted in (None, event.pack.digest):
                return event.pack
        if version is not None:
            break
        high = low
    raise errors.NotFound(
        f"no such pack was recorded for the frame {frame.frame_id!r}.",
        hint="assemble_context_pack records one; frame.context_hash names the last.",
        facts={"frame": frame.frame_id, "context_hash": context_hash, "version": version},
    )
