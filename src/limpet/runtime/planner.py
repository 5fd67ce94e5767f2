"""Plans requests: loads the state, decides, evolves and encodes, and returns what to append.

A `Planner` plans the requests of one batch, each on the state that the previous ones lead to. A
plan takes effect only when the store has appended it. The module also makes the write of imported
events, and drops a session's opening if a message that it is made from was erased.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeGuard

import msgspec

from limpet import errors, limits
from limpet.core.formats import codec
from limpet.core.rules import session_rules
from limpet.core.values import commands, ids
from limpet.core.values.commands import FrameCommand, FrameCommandBase, ReplaySession
from limpet.core.values.events import MessageAddedEvent, SessionEvent
from limpet.core.values.frame_state import Frame, TreeState
from limpet.core.values.memory_records import positions_in_metadata
from limpet.core.values.messages import Message
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.runtime import event_reader
from limpet.runtime.frame_planner import FramePlan, FramePlanner
from limpet.runtime.message_cache import NeedsCommit, PolicyApplier
from limpet.runtime.state_cache import (
    SESSION_KIND,
    FrameTreeCache,
    SessionStateCache,
    deleted_session_row,
    messages_of,
    session_row,
    session_stream,
)
from limpet.stores import port


def imported_write(command: ReplaySession) -> port.StreamWrite:
    """Return the write of imported events, each with its original time."""
    stream, ordinal = session_stream(command.session_id), command.state.ordinal
    ordinal -= sum(isinstance(fact, MessageAddedEvent) for fact, _ in command.events)
    events: list[port.NewEvent] = []
    claims: list[tuple[str, int]] = []
    for fact, time_us in command.events:
        if isinstance(fact, MessageAddedEvent):
            ordinal += 1
            claims.append((fact.message.id, len(events)))
        events.append(_new_event(fact, time_us, ordinal))
    base = None if command.base is None else (stream, command.base)
    return port.StreamWrite(stream, command.expected, tuple(events), tuple(claims), base)


def _new_event(fact: SessionEvent, time_us: int, ordinal: int) -> port.NewEvent:
    tokens = counter = None
    if isinstance(fact, MessageAddedEvent):
        tokens, counter = fact.tokens, fact.counter
    made = codec.encode_with_blobs(fact)
    return port.NewEvent(fact.kind, made.schema, time_us, made.payload, ordinal, tokens, counter, made.blobs)


def without_erased_opening(store: port.Store, tenant: str, command: commands.SessionCommand) -> commands.SessionCommand:
    """Return a command without its opening if a message that it was made from is erased; to be called under the turn."""
    if not isinstance(command, (commands.CreateSession, commands.ResetSession)) or command.opening is None:
        return command
    if any(_is_position_erased(store, tenant, at) for at in positions_in_metadata(command.opening.sources)):
        return msgspec.structs.replace(command, opening=None)
    return command


def _is_position_erased(store: port.Store, tenant: str, position: int) -> bool:
    # An engine elsewhere may name a place that never was.
    found = store.feed(tenant, after=position - 1, limit=1)
    there = found[0] if found and found[0].position == position else None
    return there is not None and (there.erased or there.payload is None)


class CommandPlan(msgspec.Struct, frozen=True, gc=False):
    """The plan of a request: the append, the states after it, and the session or frame that answers it."""

    append: port.Append | None
    states: tuple[SessionState, ...]
    answer: SessionState | Frame
    tree: TreeState | None = None


class Planner:
    """Plans the requests of one batch."""

    def __init__(
        self,
        store: port.Store,
        states: SessionStateCache,
        trees: FrameTreeCache,
        policies: PolicyApplier,
        factory: ids.Factory,
    ) -> None:
        self._store = store
        self._trees = trees
        self._states = states
        self._policies = policies
        self._factory = factory
        self._loaded: dict[tuple[str, str], SessionState | None] = {}
        self._drafts: set[tuple[str, str]] = set()

    @functools.cached_property
    def _frame_planner(self) -> FramePlanner:
        # Made on first use: most rounds have no command on frames.
        return FramePlanner(self._store, self._trees, self._factory, self._conversation_end)

    def plan(self, request: commands.CommandRequest) -> CommandPlan:
        """Plan a request. Raises the error of the rule, or of the expected version, that refuses it."""
        tenant, command = request.tenant, request.command
        if isinstance(command, commands.AddMessages):
            state = self.state(tenant, command.session_id)
            if request.key is None and session_rules.is_simple_append(state, command.max_messages):
                return self.plan_plain_append(request, command, state)
        elif isinstance(command, FrameCommandBase):
            return self._plan_frame_command(request, command)
        elif isinstance(command, commands.ReplaySession):
            return self._plan_import(tenant, command)
        else:
            state = self.state(tenant, command.session_id)
        if request.expected_version is not None:
            _check_version(request.expected_version, state)
        writings = self._decide(tenant, state, command)
        if isinstance(writings, SessionState):
            return CommandPlan(None, (), writings)
        return self._build_plan(request, writings)

    def plan_plain_append(
        self, request: commands.CommandRequest, command: commands.AddMessages, state: SessionState
    ) -> CommandPlan:
        """Plan messages without a key for a session that `session_rules.is_simple_append`, as most requests are.

        The result is that of `_decide` and `_build_plan`; leaving out their other cases saves a seventh of a commit.
        """
        tenant = request.tenant
        if request.expected_version is not None:
            _check_version(request.expected_version, state)
        events = session_rules.add_messages_events(state, command)
        assert events, "a request to add messages has some"
        after, write = self._evolve(state, command.session_id, events)
        append = port.Append(
            tenant=tenant,
            writes=(write,),
            projections=(session_row(after),),
            snapshots=(_session_snapshot(after),) if _is_snapshot_due(after, write) else (),
            time_us=after.active_us,
        )
        # Noted last: from here on nothing of the request can be refused.
        self._set_planned_state(tenant, after)
        return CommandPlan(append, (after,), after)

    def _plan_import(self, tenant: str, command: commands.ReplaySession) -> CommandPlan:
        """Plan the append of imported events, if the session has not changed since they were checked."""
        _check_version(command.expected, self.state(tenant, command.session_id))
        after = command.state
        self._set_planned_state(tenant, after)
        self._states.clear_chain_ends()
        append = port.Append(
            tenant=tenant,
            writes=(imported_write(command),),
            projections=(session_row(after),) if command.whole else (),
            snapshots=(_session_snapshot(after),),
            time_us=after.active_us,
        )
        return CommandPlan(append, (after,), after)

    def _plan_frame_command(self, request: commands.CommandRequest, command: FrameCommand) -> CommandPlan:
        tenant = request.tenant
        step = self._frame_planner.plan(tenant, command)
        if step.write is None:
            return CommandPlan(None, (), step.frame)
        writings: list[session_rules.SessionWrite] = []
        for adding in step.session_commands:
            made = self._decide(tenant, self.state(tenant, adding.session_id), adding)
            assert not isinstance(made, SessionState), "adding a message makes an event"
            writings += made
        return self._build_plan(request, writings, step)

    def _conversation_end(self, tenant: str, session_id: str) -> SessionState | None:
        state = self.state(tenant, session_id)
        return self.chain_end(tenant, state) if _is_present(state) else None

    def _decide(
        self, tenant: str, state: SessionState | None, command: commands.SessionCommand
    ) -> Sequence[session_rules.SessionWrite] | SessionState:
        """Return the events that a command makes; the session itself if it makes none."""
        if isinstance(command, commands.AddMessages) and state is not None:
            if state.continuations or state.continued_from is not None:
                *earlier, state = self.recent_chain(tenant, state.id)
                for session in earlier:
                    self._refuse_repeats(tenant, session, command.messages)
            command = self._continue_if_full(tenant, state, command)
            if state.policy is None and isinstance(command, commands.AddMessages):
                # Without a policy no counts are added and no window is cut.
                return session_rules.decide(state, command)
        elif isinstance(command, commands.CreateSession) and command.or_get and _is_present(state):
            if self.chain_end(tenant, state).status is SessionStatus.ACTIVE:
                return state
            command = commands.ResetSession(session_id=state.id, messages=command.messages, opening=command.opening)
        elif isinstance(command, commands.EndSession) and state and command.reason is EndReason.ENDED:
            state = self.chain_end(tenant, state)
            command = msgspec.structs.replace(command, session_id=state.id)
        elif isinstance(command, commands.ContinueSession):
            source = session_rules.active_state(state, command.session_id)
            carry = session_rules.carry_on_request(source, command.max_messages)
            command = self.continue_command(tenant, source, carry)
        elif isinstance(command, commands.TrimSession):
            command = self._with_cut(tenant, session_rules.active_state(state, command.session_id), command)
        elif isinstance(command, event_reader.ForkOrRewind):
            command = self._with_source_state(tenant, session_rules.existing_state(state, command.session_id), command)
        writings = session_rules.decide(state, without_erased_opening(self._store, tenant, command))
        if not writings:
            return session_rules.existing_state(state, command.session_id)
        return [self._with_policy(tenant, each) for each in writings]

    def _with_policy(self, tenant: str, writing: session_rules.SessionWrite) -> session_rules.SessionWrite:
        state = self.state(tenant, writing.session_id)
        return self._policies.apply(tenant, state, writing, drafted=(tenant, writing.session_id) in self._drafts)

    def _refuse_draft(self, tenant: str, state: SessionState) -> None:
        """Raise NeedsCommit if a session has planned events: what a command needs is read from the log."""
        if (tenant, state.id) in self._drafts:
            raise NeedsCommit

    def _with_source_state(
        self, tenant: str, state: SessionState, command: event_reader.ForkOrRewind
    ) -> event_reader.ForkOrRewind:
        if isinstance(command, commands.ForkSession) and self.state(tenant, command.fork_id) is not None:
            # A fork begins a stream, and the stream of a deleted session can't be begun again.
            raise session_rules.duplicate_session_error(command.fork_id)
        self._refuse_draft(tenant, state)
        return event_reader.with_source_state(self._store, self._states, tenant, state, command)

    def _with_cut(self, tenant: str, state: SessionState, command: commands.TrimSession) -> commands.TrimSession:
        self._refuse_draft(tenant, state)
        cut, summary = self._policies.trim(tenant, state, command.policy)
        return msgspec.structs.replace(command, cut=cut, summary=summary)

    def command_hash(self, request: commands.CommandRequest) -> bytes:
        """Return the hash by which a repeated command is known; the same for every session of a conversation."""
        command = request.command
        if isinstance(command, FrameCommandBase):
            return codec.digest(codec.frame_command_bytes(command))
        assert not isinstance(command, commands.ReplaySession), "an import has no key"
        if isinstance(command, commands.AddMessages):
            state = self.state(request.tenant, command.session_id)
            root = (state.root_id if state else None) or command.session_id
            command = msgspec.structs.replace(command, session_id=root)
        return codec.digest(codec.session_command_bytes(command))

    def state(self, tenant: str, session_id: str) -> SessionState | None:
        """Return a session's state with the plans of this round applied."""
        place = (tenant, session_id)
        state = self._loaded.get(place)
        if state is None and place not in self._loaded:
            state = self._loaded[place] = self._states.get_locked(tenant, session_id)
        return state

    def chain_end(self, tenant: str, state: SessionState) -> SessionState:
        """Return the last session of a conversation's chain; the session itself if nothing continues it."""
        last = self._states.cached_chain_end(tenant, state)
        tail = self.state(tenant, last) if last else None
        tail = state if tail is None or tail.hidden else tail
        for _ in range(limits.CHAIN_SESSIONS_MAX):
            following = self.continuation_of(tenant, tail)
            if following is None:
                self._states.put_chain_end(tenant, state, tail.id)
                return tail
            tail = following
        raise errors.Corrupt("a chain of sessions does not end.", facts={"session": state.id})

    def continuation_of(self, tenant: str, state: SessionState) -> SessionState | None:
        """Return the newest session that continues another and is not deleted."""
        for session_id in reversed(state.continuations):
            found = self.state(tenant, session_id)
            if session_rules.is_continuation_of(found, state):
                return found
        return None

    def recent_chain(self, tenant: str, session_id: str) -> tuple[SessionState, ...]:
        """Return the sessions in which a repeated message is known: the named one and the last two of its chain."""
        named = session_rules.existing_state(self.state(tenant, session_id), session_id)
        if not named.continuations and named.continued_from is None:
            return (named,)
        tail = self.chain_end(tenant, named)
        before = self.state(tenant, tail.continued_from) if tail.continued_from else None
        earlier = {state.id: state for state in (named, before) if state and state.id != tail.id}
        return (*earlier.values(), tail)

    def _refuse_repeats(self, tenant: str, session: SessionState, messages: tuple[Message, ...]) -> None:
        # A claim makes an id unique in one stream; a conversation can have several.
        for message in messages:
            version = self._store.find_claim(tenant, session_stream(session.id), message.id)
            if version > session.began:
                raise duplicate_message_error(message.id)

    def _continue_if_full(
        self, tenant: str, state: SessionState, command: commands.AddMessages
    ) -> commands.SessionCommand:
        here = command
        if command.session_id != state.id:
            here = msgspec.structs.replace(command, session_id=state.id)
        if command.max_messages is None or state.status is not SessionStatus.ACTIVE:
            return here
        carry = session_rules.carry_if_due(state, command.messages, command.max_messages)
        if carry is None:
            return here
        continuing_command = self.continue_command(tenant, state, carry, command)
        self._refuse_repeats(tenant, state, command.messages)
        return continuing_command

    def continue_command(
        self,
        tenant: str,
        state: SessionState,
        carry: session_rules.CarriedVersions,
        adding: commands.AddMessages | None = None,
    ) -> commands.ContinueSession:
        """Return the command that continues a conversation in a new session, with the messages carried over."""
        self._refuse_draft(tenant, state)
        stream = session_stream(state.id)
        singles = [self._read_event(tenant, stream, version) for version in carry.singles]
        standing = messages_of(self._store, tenant, singles)
        kept = [message for message in standing if session_rules.is_carried(message)]
        turn: list[Message] = []
        after = carry.since - 1
        while carry.since and after < state.version:
            found = self._store.read(tenant, stream, after=after, until=state.version, limit=limits.READ_CHUNK)
            turn += messages_of(self._store, tenant, found)
            after = found[-1].version
        opening = session_rules.first_messages(state, kept, turn, session_rules.transition_marker(state))
        return commands.ContinueSession(
            session_id=state.id,
            next_id=ids.new_session_id(self._factory),
            carried=opening,
            messages=adding.messages if adding else (),
            window=adding.window if adding else None,
            usage=adding.usage if adding else None,
            summary=session_rules.carried_summary(state),
        )

    def _read_event(self, tenant: str, stream: str, version: int) -> port.StoredEvent:
        found = self._store.read(tenant, stream, after=version - 1, until=version, limit=1)
        if not found:
            raise errors.Corrupt(f"version {version:,} of {stream} is missing.", facts={"stream": stream})
        return found[0]

    def _build_plan(
        self,
        request: commands.CommandRequest,
        writings: Sequence[session_rules.SessionWrite],
        step: FramePlan | None = None,
    ) -> CommandPlan:
        tenant, key = request.tenant, None
        if request.key is not None:
            key = port.KeyUse(request.key, self.command_hash(request))
        writes: list[port.StreamWrite] = []
        states: list[SessionState] = []
        projections: list[port.Projection] = []
        drops: list[tuple[str, str]] = []
        snapshots: list[port.Snapshot] = []
        for writing in writings:
            before = self.state(tenant, writing.session_id)
            state, write = self._evolve(before, writing.session_id, writing.events, writing.base)
            writes.append(write)
            states.append(state)
            deleted = state.status is SessionStatus.DELETED
            if deleted:
                drops.append((SESSION_KIND, state.id))
                projections.append(deleted_session_row(state))
            else:
                projections.append(session_row(state))
            if _is_snapshot_due(state, write):
                snapshots.append(_session_snapshot(state))
            if deleted or write.base or (state.generation and state.began > write.expected):
                # The session leaves its chain.
                self._states.clear_chain_ends()
        # Noted last: from here on nothing of the request can be refused.
        for state in states:
            self._set_planned_state(tenant, state)
        tree, answer = None, states[-1] if states else None
        time_us = answer.active_us if answer else 0
        if step is not None and step.write is not None and step.tree is not None:
            self._frame_planner.accept(tenant, step)
            # The frame's write comes last: a repeated key is answered from the command's last event.
            writes.append(step.write)
            projections += step.projections
            snapshots += step.snapshots
            tree, answer, time_us = step.tree, step.frame, step.tree.updated_us
        assert answer is not None, "a plan has an answer"
        append = port.Append(
            tenant=tenant,
            writes=tuple(writes),
            projections=tuple(projections),
            drops=tuple(drops),
            snapshots=tuple(snapshots),
            key=key,
            time_us=time_us,
        )
        return CommandPlan(append, tuple(states), answer, tree)

    def _set_planned_state(self, tenant: str, state: SessionState) -> None:
        """Have later requests of this round see a state that is not in the log yet."""
        place = (tenant, state.id)
        self._loaded[place] = state
        self._drafts.add(place)

    def _evolve(
        self,
        state: SessionState | None,
        session_id: str,
        facts: Sequence[SessionEvent],
        base: tuple[str, int] | None = None,
    ) -> tuple[SessionState, port.StreamWrite]:
        before = state.version if state else 0
        time_us = max(self._factory.now_us(), state.active_us if state else 0)
        events: list[port.NewEvent] = []
        claims: list[tuple[str, int]] = []
        for fact in facts:
            state = session_rules.evolve_one(state, fact, time_us=time_us)
            if isinstance(fact, MessageAddedEvent):
                claims.append((fact.message.id, len(events)))
            events.append(_new_event(fact, time_us, state.ordinal))
        assert state is not None
        origin = base and (session_stream(base[0]), base[1])
        write = port.StreamWrite(session_stream(session_id), before, tuple(events), tuple(claims), origin)
        return state, write


def _is_present(state: SessionState | None) -> TypeGuard[SessionState]:
    return state is not None and not state.hidden


def _is_snapshot_due(state: SessionState, write: port.StreamWrite) -> bool:
    every = limits.SNAPSHOT_EVERY
    return write.base is not None or state.version // every > write.expected // every


def _check_version(expected: int, state: SessionState | None) -> None:
    actual = state.version if state else 0
    if expected != actual:
        raise errors.StaleVersion(
            f"the session is at version {actual:,}, not {expected:,}.",
            hint="Load it again, look at what changed, then retry.",
            facts={"expected": expected, "actual": actual},
        )


def duplicate_message_error(message_id: str) -> errors.DuplicateMessage:
    return errors.DuplicateMessage(
        f"another message of the session has the id {message_id!r}.",
        hint="Give the new one its own id, or leave the id out.",
        facts={"message": message_id},
    )


def _session_snapshot(state: SessionState) -> port.Snapshot:
    return port.Snapshot(session_stream(state.id), state.version, codec.SESSION_FOLD_VERSION, codec.encode_state(state))


def is_same_message(one: Message, other: Message) -> bool:
    """Return whether two messages have the same content; their timestamps do not count."""
    return codec.canonical_json(codec.comparable_message(one)) == codec.canonical_json(codec.comparable_message(other))
