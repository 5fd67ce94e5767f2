"""Plans commands on frames: loads the tree, decides, evolves and encodes.

A tool's result changes its frame and its conversation. Both changes are in one append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from limpet import errors
from limpet.core.formats import codec as wire
from limpet.core.rules import frame_rules
from limpet.core.rules.frame_fold import FrameWrite, evolve_one
from limpet.core.values import commands as c
from limpet.core.values import events as e
from limpet.core.values import ids
from limpet.core.values.frame_state import Frame, FrameStatus, ToolRun, TreeState
from limpet.core.values.messages import Message, ToolCallResult
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.core.values.validation import text_or_json
from limpet.runtime import state_cache
from limpet.runtime.state_cache import FrameTreeCache
from limpet.stores import port

replace = msgspec.structs.replace


class FramePlan(msgspec.Struct, frozen=True):
    """What a command makes of a tree: the write, the tree after it, and the frame that answers."""

    write: port.StreamWrite | None
    tree: TreeState | None
    frame: Frame
    projections: tuple[port.Projection, ...] = ()
    snapshots: tuple[port.Snapshot, ...] = ()
    session_commands: tuple[c.AddMessages, ...] = ()


class FramePlanner:
    """Commands about frames decided together, each on the trees that those before it lead to."""

    def __init__(
        self,
        store: port.Store,
        known: FrameTreeCache,
        factory: ids.Factory,
        last: Callable[[str, str], SessionState | None],
    ) -> None:
        """`last` gives the session where a conversation goes on, from tenant and id."""
        self._store = store
        self._tree_cache = known
        self._factory = factory
        self._conversation_end = last
        self._trees: dict[tuple[str, str], TreeState] = {}
        self._roots: dict[tuple[str, str], str] = {}
        self._closed: dict[tuple[str, str], Frame] = {}

    def plan(self, tenant: str, command: c.FrameCommand) -> FramePlan:
        """Decide a command; raise what the rules say against it. Nothing is kept before `accept`."""
        if isinstance(command, c.PushFrame):
            present = self._find(tenant, command.frame_id) if command.named else None
            if present is not None:
                return FramePlan(None, None, self._repeated_push(tenant, command, present))
            tree = self._parent_tree(tenant, command)
            command = replace(command, frame_id=self._new_frame_id(command, tree))
        else:
            tree = self._tree(tenant, command)
        time_us = max(self._factory.now_us(), tree.updated_us if tree else 0)
        made = frame_rules.decide(tree, command, now_us=time_us)
        if isinstance(command, c.BeginTool):
            self._check_new_tool(tenant, tree, command, made)
        if not made:
            assert tree is not None, "a push always makes something"
            return FramePlan(None, None, tree.frames[command.frame_id])
        saying: tuple[c.AddMessages, ...] = ()
        if isinstance(command, c.EndTool) and tree is not None:
            made, saying = self._with_tool_result(tenant, tree.frames[command.frame_id], command, made[0])
        elif isinstance(command, (c.PopFrame, c.ExpireTree)) and tree is not None:
            saying = self._abandoned_results(tenant, tree, made)
        return self._build_plan(tree, command.frame_id, made, saying, time_us)

    def _new_frame_id(self, command: c.PushFrame, tree: TreeState | None) -> str:
        """Return the id of a new frame. A child's begins with its root's: so its tree is found without a row."""
        if command.named:
            return command.frame_id
        return f"{tree.root_id}.{tree.version + 1}" if tree else ids.new_id("frm", self._factory)

    def accept(self, tenant: str, step: FramePlan) -> None:
        """Have later commands decided on what this one leads to, now that nothing of it is refused."""
        if step.tree is not None:
            self._trees[tenant, step.tree.root_id] = step.tree
            self._roots[tenant, step.frame.frame_id] = step.tree.root_id
            if not step.frame.open:
                self._closed[tenant, step.frame.frame_id] = step.frame

    def _open_tree(self, tenant: str, frame_id: str) -> TreeState | None:
        if not self._trees:
            tree = self._tree_cache.tree_locked(tenant, frame_id)
            if tree is not None and frame_id in tree.frames:
                return tree
        root = self._root(tenant, frame_id)
        tree = self._state(tenant, root) if root is not None else None
        return tree if tree is not None and frame_id in tree.frames else None

    def _state(self, tenant: str, root_id: str) -> TreeState | None:
        found = self._trees.get((tenant, root_id))
        return found if found is not None else self._tree_cache.get_locked(tenant, root_id)

    def _root(self, tenant: str, frame_id: str) -> str | None:
        return self._roots.get((tenant, frame_id)) or self._tree_cache.root_of(tenant, frame_id)

    def _find(self, tenant: str, frame_id: str) -> Frame | None:
        root = self._root(tenant, frame_id)
        if root is None:
            return None
        tree = self._state(tenant, root)
        found = tree.frames.get(frame_id) or tree.closed_frame(frame_id) if tree else None
        found = found or self._closed.get((tenant, frame_id))
        return found or self._tree_cache.frame_from_row(tenant, frame_id)

    def _tree(self, tenant: str, command: c.FrameCommand) -> TreeState:
        frame_id = command.frame_id
        tree = self._open_tree(tenant, frame_id)
        if tree is not None:
            return tree
        frame = self._find(tenant, frame_id)
        if frame is None:
            raise state_cache.unknown_frame_error(frame_id)
        if isinstance(command, c.EndSuspension) and command.token_hash is not None:
            raise errors.InvalidSuspensionToken
        raise frame_rules.invalid_transition_error(frame, "change any more", "Push a new one.")

    def _parent_tree(self, tenant: str, command: c.PushFrame) -> TreeState | None:
        parent_id = command.parent_frame_id
        if parent_id is None:
            return None
        tree = self._open_tree(tenant, parent_id)
        if tree is not None:
            return tree
        parent = self._find(tenant, parent_id)
        if parent is None:
            raise errors.ParentFrameNotFound(
                f"there is no frame {parent_id!r} to be the parent.",
                hint="Push it first, or leave parent_frame_id out.",
                facts={"frame": parent_id},
            )
        raise frame_rules.invalid_transition_error(parent, "get children", "Push under a frame that is open.")

    def _repeated_push(self, tenant: str, command: c.PushFrame, present: Frame) -> Frame:
        """Return the frame of a push that was made before; raise DuplicateFrame if it was another."""
        pushed = None
        stream, claim = state_cache.tree_stream(present.root_id), f"frame:{present.frame_id}"
        version = self._store.find_claim(tenant, stream, claim)
        if version:
            found = self._store.read(tenant, stream, after=version - 1, until=version, limit=1)
            pushed = state_cache.decode_tree_event(found[0]).event if found else None
        wanted = frame_rules.decide(None, replace(command, parent_frame_id=None), now_us=0)[0].event
        if (
            not isinstance(pushed, e.FramePushedEvent)
            or wire.encode_frame_event(replace(pushed, parent_frame_id=None)) != wire.encode_frame_event(wanted)
            or pushed.parent_frame_id != command.parent_frame_id
        ):
            raise errors.DuplicateFrame(
                f"another frame has the id {command.frame_id!r}.",
                hint="Give the new one its own id, or leave the id out.",
                facts={"frame": command.frame_id},
            )
        return present

    def _check_new_tool(
        self, tenant: str, tree: TreeState | None, command: c.BeginTool, made: Sequence[FrameWrite]
    ) -> None:
        frame = tree.frames[command.frame_id] if tree else None
        if tree is None or frame is None or not made or frame.tool(command.tool_id):
            return
        self._check_call(tenant, frame, command)
        stream, claim = state_cache.tree_stream(tree.root_id), f"tool:{command.tool_id}"
        if self._store.find_claim(tenant, stream, claim):
            raise errors.InvalidTransition(
                f"the tool {command.tool_id!r} is through already.",
                hint="Give a new call its own tool_id, or leave it out.",
                facts={"tool": command.tool_id},
            )

    def _check_call(self, tenant: str, frame: Frame, command: c.BeginTool) -> None:
        """Refuse a call that the frame's conversation does not wait for: its result would go nowhere."""
        if command.call_id is None or frame.scope.session_id is None:
            return
        session = self._conversation_end(tenant, frame.scope.session_id)
        if session is not None and not _waits_for_call(session, command):
            raise errors.CallNotFound(
                f"no open call of the session has the id {command.call_id!r} and that message.",
                hint="Add the assistant's message first, and take both ids from it.",
                facts={
                    "call": command.call_id, "message": command.message_id,
                    "open": [call.call_id for call in session.open_calls],
                },
            )  # fmt: skip

    def _with_tool_result(
        self, tenant: str, frame: Frame, command: c.EndTool, made: FrameWrite
    ) -> tuple[tuple[FrameWrite, ...], tuple[c.AddMessages, ...]]:
        """Put a tool's result into the conversation that asked for it, if one waits for it."""
        tool = frame_rules.find_tool(frame, command.tool_id)
        session = self._waiting_session(tenant, frame, tool)
        if session is None or tool.call_id is None:
            return (made,), ()
        result = ToolCallResult(
            tool.call_id, text_or_json(frame_rules.tool_output(tool, command)), is_error=command.is_error
        )
        message = self._result_message([result], abandoned=command.abandon)
        event = made.event
        assert isinstance(event, e.FrameUpdatedEvent), "that is how tools end"
        here = replace(event, output=None, output_hash=None, recorded_in=(session.id, message.id))
        saying = c.AddMessages(session_id=session.id, messages=(message,), max_messages=command.max_messages)
        return (FrameWrite(here),), (saying,)

    def _waiting_session(self, tenant: str, frame: Frame, tool: ToolRun) -> SessionState | None:
        """Return the session in which a tool's call waits: that very call, for providers reuse their ids."""
        if tool.call_id is None or frame.scope.session_id is None:
            return None
        session = self._conversation_end(tenant, frame.scope.session_id)
        if session is None or session.status is not SessionStatus.ACTIVE:
            return None
        return session if _waits_for_call(session, tool) else None

    def _abandoned_results(self, tenant: str, tree: TreeState, made: Iterable[FrameWrite]) -> tuple[c.AddMessages, ...]:
        """Tell conversations the truth about calls whose frames are closed before they were answered."""
        results: dict[str, dict[str, ToolCallResult]] = {}
        for one in made:
            event = one.event
            if not isinstance(event, e.FramePoppedEvent) or event.status is FrameStatus.COMPLETED:
                continue
            frame = tree.frames[event.frame_id]
            for tool in frame.tools:
                session = self._waiting_session(tenant, frame, tool)
                if session is not None and tool.call_id is not None:
                    result = ToolCallResult(tool.call_id, frame_rules.abandoned_tool_output(tool), is_error=True)
                    # Two frames may have run one call; it gets one result.
                    results.setdefault(session.id, {})[tool.call_id] = result
        return tuple(
            c.AddMessages(session_id=session_id, messages=(self._result_message(list(told.values()), abandoned=True),))
            for session_id, told in results.items()
        )

    def _result_message(self, results: Sequence[ToolCallResult], *, abandoned: bool) -> Message:
        metadata: Mapping[str, str] = {"type": "outcome_unknown"} if abandoned else {}
        with ids.using(self._factory):
            return Message("tool", tool_results=list(results), metadata=metadata)

    def _build_plan(
        self,
        before: TreeState | None,
        frame_id: str,
        made: Sequence[FrameWrite],
        saying: tuple[c.AddMessages, ...],
        time_us: int,
    ) -> FramePlan:
        tree = before
        after: list[TreeState] = []
        facts: list[e.FrameEvent] = []
        events: list[port.NewEvent] = []
        claims: list[tuple[str, int]] = []
        for one in made:
            fact = one.event
            for claim in state_cache.tree_event_claims(fact, tree):
                claims.append((claim, len(events)))
            tree = evolve_one(tree, fact, time_us=time_us)
            after.append(tree)
            facts.append(fact)
            blobs = tuple({text.encode(): None for text in one.texts}) if one.texts else ()
            payload = wire.encode_frame_event(fact)
            events.append(port.NewEvent(fact.kind, wire.FRAME_EVENT_SCHEMA, time_us, payload, blobs=blobs))
        assert tree is not None, "something was made"
        stream = state_cache.tree_stream(tree.root_id)
        write = port.StreamWrite(stream, before.version if before else 0, tuple(events), tuple(claims))
        snapshots: tuple[port.Snapshot, ...] = ()
        if before is not None and tree.due != before.due:
            snapshots = (port.Snapshot(stream, tree.version, wire.TREE_FOLD_VERSION, wire.encode_tree(tree)),)
        frame = tree.frames.get(frame_id) or tree.closed_frame(frame_id)
        assert frame is not None, "a frame that is not open any more was closed here"
        rows = state_cache.changed_tree_rows(before, facts, after)
        return FramePlan(write, tree, frame, tuple(rows), snapshots, saying)


def _waits_for_call(session: SessionState, of: ToolRun | c.BeginTool) -> bool:
    """Whether a session waits for the result of that very call."""
    return any(call.call_id == of.call_id and of.message_id in (None, call.message_id) for call in session.open_calls)
