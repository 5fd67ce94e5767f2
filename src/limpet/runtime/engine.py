"""The engine executes every request: it loads state, decides, appends and answers.

All changes go through `run` or `submit`; reads use the state caches and the store. The rules are
pure and in `limpet.core.rules`. What a store promises is in `limpet.stores.port`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from limpet import errors, limits
from limpet.core.rules import session_rules
from limpet.core.values import commands as c
from limpet.core.values import ids
from limpet.core.values.commands import FrameCommandBase, PushFrame
from limpet.core.values.messages import Message
from limpet.core.values.session_state import SessionState
from limpet.runtime import planner
from limpet.runtime.commit_queue import (
    CommandResult,
    CommitPipeline,
    CommitQueue,
    Ticket,
    TicketChannel,
    copy_error,
    in_flight_error,
)
from limpet.runtime.message_cache import MessageCache, NeedsCommit, PolicyApplier
from limpet.runtime.planner import CommandPlan, Planner
from limpet.runtime.state_cache import FrameTreeCache, SessionStateCache, decode_tree_event, messages_of, session_stream
from limpet.stores import port

FORGET_KEYS_EVERY_US = 3_600_000_000
"""The shortest time between two deletions of expired idempotency keys."""

CONTENDED_REQUESTS = 100
"""How many requests on a session are decided under the write lock after another process wrote to it first."""

IN_FLIGHT_MAX = 2
"""Commits in flight at once: one that the server executes, and one that it finds when that is done."""

IDLE_MAX, IDLE_TIMES, PIPELINE_PAUSE_S = 0.7, 3, 1.0
"""A leader that was idle for more than IDLE_MAX of its time, IDLE_TIMES in a row, does not pipeline for PIPELINE_PAUSE_S."""

StateLookup = Callable[[str, str], SessionState | None]
"""Returns the known state of a tenant's session."""

PlannedCommit = tuple[Ticket, CommandPlan, port.Append]

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - a fork changes the whole process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Engine:
    """The state of all sessions and frame trees of one store. Thread-safe; a forked child may not use it."""

    def __init__(
        self,
        store: port.Store,
        *,
        factory: ids.Factory,
        cached_sessions: int = limits.CACHED_SESSIONS,
        cached_trees: int = limits.CACHED_TREES,
    ) -> None:
        self.store = store
        self.factory = factory
        self.now_us = factory.now_us
        self.message_cache = MessageCache(store)
        self.states = SessionStateCache(store, cached_sessions, self.message_cache.clear)
        self.trees = FrameTreeCache(store, cached_trees)
        self._policies = PolicyApplier(self.message_cache)
        self._commits = CommitQueue(self._process, self._commit_pipelined)
        self.loop_channels: dict[int, TicketChannel] = {}
        """The channels of the event loops that submit requests, by the id of the loop."""
        self._born = _forks
        self._closed = False
        self._forgot_us = 0
        self._contended: dict[tuple[str, str], int] = {}
        self._pipeline_from, self._idle_times = 0.0, 0

    def run(self, request: c.CommandRequest) -> CommandResult:
        """Execute a request; return once it is durable. Raises the error that refuses it."""
        self.check()
        return self._commits.run(Ticket(request))

    def submit(self, ticket: Ticket) -> None:
        """Submit a request without waiting. After `start`, its channel gets the finished ticket."""
        self.check()
        self._commits.submit(ticket)

    def start(self) -> None:
        """Have submitted requests executed, by the background thread if no caller leads."""
        self._commits.start()

    def check(self) -> None:
        """Raise ForkedEngine or EngineClosed if this engine can't be used."""
        if _forks != self._born:
            raise errors.ForkedEngine
        if self._closed:
            raise errors.EngineClosed

    def close(self) -> None:
        """Execute what was submitted, then close the store. Closing twice is fine."""
        if _forks == self._born:
            self._closed = True
            self._commits.close()
            self.store.close()

    def _process(self, batch: Sequence[Ticket]) -> None:
        pending, lost_races = list(batch), 0
        try:
            early = self._plan_unlocked(pending) if self.store.contended else []
            if early:
                outcomes = self.store.hand_off([append for _, _, append in early])
                if outcomes is not None:
                    pending, early = self._mark_contended(self._answer(early, outcomes)), []
                    if not pending:
                        return
            alone = self.store.acquire_write_lock()
            try:
                if early and self.states.is_unlocked_plan_stale():
                    early = []
                self._write_lock_acquired(alone=alone)
                if early:
                    pending = self._mark_contended(self._commit(early))
                while pending and lost_races < limits.RETRIES_MAX:
                    before = len(pending)
                    pending, lost = self._commit_round(pending)
                    # A round that settled a request made progress, even if others lost a race.
                    lost_races = lost_races + 1 if lost and len(pending) == before else 0
            finally:
                self.store.release_write_lock()
            for ticket in pending:
                ticket.fail(errors.Conflict("other writers committed first every time.", hint="Retry."))
            self._forget_keys(batch)
        except BaseException:
            self._reset_after_interrupt()
            raise

    def _reset_after_interrupt(self) -> None:
        # The interrupt may have come before the write lock was released, and after a commit that the
        # caches do not have.
        self.store.release_write_lock()
        self._write_lock_acquired(alone=False)

    def _commit_pipelined(self, queue: CommitPipeline) -> None:
        """Send commits, each decided while the server executes those before. The rest is left to `_process`."""
        if len(queue) < 2 or time.monotonic() < self._pipeline_from or not queue.can_wait():
            return
        sending = self.store.open_pipeline()
        if sending is None:
            return
        try:
            with self.store.write_lock() as alone:
                self._write_lock_acquired(alone=alone)
                self._send_commits(sending, queue)
        except BaseException:
            self._reset_after_interrupt()
            raise
        self._idle_times = self._idle_times + 1 if queue.idle_share > IDLE_MAX else 0
        if self._idle_times == IDLE_TIMES:
            # The server is the bottleneck: smaller commits would only cost it more.
            self._idle_times, self._pipeline_from = 0, time.monotonic() + PIPELINE_PAUSE_S

    def _send_commits(self, sending: port.StorePipeline, queue: CommitPipeline) -> None:
        in_flight: deque[list[PlannedCommit]] = deque()
        asked: list[PlannedCommit] = []
        try:
            with sending:
                while True:
                    tickets = queue.take()
                    asked = self._plan_appends(self.states.cached_locked, tickets, in_flight)
                    # The first commit takes its whole batch: the rest of it would wait for a part.
                    sent = bool(asked) and (bool(in_flight) or len(asked) == len(tickets))
                    if sent:
                        in_flight.append(asked)
                        sent = sending.send([append for _, _, append in asked])
                        if not sent:
                            in_flight.pop()
                    if left := tickets[len(asked) if sent else 0 :]:
                        queue.put_back(left)
                    if not in_flight:
                        return
                    if len(in_flight) == IN_FLIGHT_MAX or queue.wait(sending):
                        queue.finish_settled()
                        asked = in_flight[0]
                        if self._answer(asked, queue.timed(sending.receive)):
                            queue.stop()
                        in_flight.popleft()
        except errors.Error as error:
            for planned in in_flight:
                for ticket, _, _ in planned if planned is not asked else ():
                    ticket.fail(in_flight_error(error))
            raise

    def _write_lock_acquired(self, *, alone: bool) -> None:
        self.states.write_lock_acquired(alone=alone)
        self.trees.write_lock_acquired(alone=alone)

    def _forget_keys(self, batch: Sequence[Ticket]) -> None:
        if all(ticket.request.key is None for ticket in batch):
            return
        now = self.now_us()
        if now - self._forgot_us > FORGET_KEYS_EVERY_US:
            self._forgot_us = now
            for tenant in {ticket.request.tenant for ticket in batch}:
                before = now - limits.IDEMPOTENCY_KEEP_S * 1_000_000
                with contextlib.suppress(errors.Unavailable):
                    self.store.delete_keys(tenant, before_us=before)

    def _commit_round(self, tickets: list[Ticket]) -> tuple[list[Ticket], bool]:
        """Decide and commit; return the tickets to decide again, and whether a race was lost."""
        deciding = self._new_planner()
        planned: list[PlannedCommit] = []
        unchanged: list[tuple[Ticket, CommandPlan | errors.Error]] = []
        again: list[Ticket] = []
        for index, ticket in enumerate(tickets):
            try:
                verdict = _plan_or_error(self._plan, deciding, ticket)
            except NeedsCommit:
                # The tickets behind it wait too: requests are decided in the order of submission.
                again = tickets[index:]
                break
            if isinstance(verdict, CommandPlan) and verdict.append is not None:
                planned.append((ticket, verdict, verdict.append))
            elif verdict is not None:
                unchanged.append((ticket, verdict))
        lost = self._commit(planned) if planned else []
        for ticket, verdict in unchanged:
            # A refusal, or an answer without a change, may rest on what other requests of this round
            # planned. It stands only if it was decided on what is in the log.
            if planned or not self._is_current(ticket.request.tenant):
                again.append(ticket)
            elif isinstance(verdict, CommandPlan):
                ticket.succeed(CommandResult(verdict.answer))
            else:
                ticket.fail(verdict)
        return sorted(again + lost, key=tickets.index) if again or lost else [], bool(lost)

    def _is_current(self, tenant: str) -> bool:
        """Return whether the cached state of a tenant is current; if not, have it read again."""
        held = self.store.is_unchanged(tenant)
        if not held:
            self._write_lock_acquired(alone=False)
        return held

    def _plan_unlocked(self, batch: Sequence[Ticket]) -> list[PlannedCommit]:
        """Decide requests without the write lock, on cached state; return nothing unless all can be.

        Only plain messages can, each to another session: such a request depends on one version of one
        stream, which the store checks, and its message ids make a repetition known.
        """
        try:
            self.states.begin_unlocked_plan({ticket.request.tenant for ticket in batch})
        except errors.UnsafeStore:
            # One of the tenants is being copied. Under the write lock only its own requests are refused.
            return []
        planned = self._plan_appends(self.states.cached, batch)
        return planned if len(planned) == len(batch) else []

    def _plan_appends(
        self, known: StateLookup, tickets: Sequence[Ticket], in_flight: Iterable[Sequence[PlannedCommit]] = ()
    ) -> list[PlannedCommit]:
        """Decide requests up to the first that is no plain append to a session without a commit in flight."""
        planned: list[PlannedCommit] = []
        deciding = self._new_planner()
        busy = {state.id for sent in in_flight for _, plan, _ in sent for state in plan.states}
        for ticket in tickets:
            request, command = ticket.request, ticket.request.command
            if not isinstance(command, c.AddMessages) or command.session_id in busy:
                break
            tenant, session_id = request.tenant, command.session_id
            if request.key is not None or self._is_contended(tenant, session_id):
                break
            state = known(tenant, session_id)
            if not session_rules.is_simple_append(state, command.max_messages):
                break
            plan = _plan_or_error(deciding.plan_plain_append, request, command, state)
            if not isinstance(plan, CommandPlan):
                break
            assert plan.append is not None, "messages are appended"
            busy.add(session_id)
            planned.append((ticket, plan, plan.append))
        return planned

    def _mark_contended(self, lost: list[Ticket]) -> list[Ticket]:
        """Mark the sessions that other processes write to: deciding early there would fail again."""
        if len(self._contended) > limits.CACHED_SESSIONS:
            self._contended.clear()
        for ticket in lost:
            place = (ticket.request.tenant, ticket.request.session_id)
            self._contended[place] = CONTENDED_REQUESTS
        return lost

    def _is_contended(self, tenant: str, session_id: str) -> bool:
        """Return whether a session is marked as contended; each call uses up one of its CONTENDED_REQUESTS."""
        left = self._contended.get((tenant, session_id), 0) if self._contended else 0
        if left:
            self._contended[tenant, session_id] = left - 1
        return left > 0

    def _commit(self, planned: Sequence[PlannedCommit]) -> list[Ticket]:
        """Append the plans and answer each ticket; return those that lost a race."""
        outcomes = self.store.commit([append for _, _, append in planned])
        for tenant, stream in self.store.take_handed_off():
            self.states.invalidate(tenant, stream.removeprefix(session_stream("")))
        return self._answer(planned, outcomes)

    def _answer(self, planned: Sequence[PlannedCommit], outcomes: Sequence[port.AppendOutcome | None]) -> list[Ticket]:
        others: list[tuple[Ticket, CommandPlan, port.AppendOutcome | None]] = []
        for (ticket, plan, append), outcome in zip(planned, outcomes, strict=True):
            if not isinstance(outcome, port.Appended):
                others.append((ticket, plan, outcome))
                continue
            tenant, command, tree = append.tenant, ticket.request.command, plan.tree
            for state in plan.states:
                self.states.put(tenant, state)
            if tree is not None:
                self.trees.put(tenant, tree)
                if isinstance(command, PushFrame) and command.named:
                    self.trees.put_root(tenant, command.frame_id, tree.root_id)
            elif isinstance(command, c.AddMessages) and len(plan.states) == 1:
                self.message_cache.add_appended(tenant, plan.states[0], append.writes[0], command.messages)
            ticket.answer = CommandResult(plan.answer)
        if not others:
            return []
        return [ticket for ticket, plan, outcome in others if not self._settle_not_appended(ticket, plan, outcome)]

    def _plan(self, deciding: Planner, ticket: Ticket) -> CommandPlan | None:
        """Return the plan of a ticket; None if it was answered from an earlier execution."""
        request = ticket.request
        if request.key is not None:
            used = self.store.find_key(request.tenant, request.key)
            if used is not None:
                self._answer_repeated_key(ticket, used)
                return None
        try:
            return deciding.plan(request)
        except (errors.Refused, errors.DuplicateMessage, errors.StaleVersion):
            if self._answer_if_repeat(ticket):
                return None
            raise

    def _settle_not_appended(self, ticket: Ticket, plan: CommandPlan, outcome: port.AppendOutcome | None) -> bool:
        """Answer a ticket that was not appended; return False if it must be decided again."""
        try:
            match outcome:
                case port.KeyRecord():
                    self._answer_repeated_key(ticket, outcome)
                case port.ClaimTaken() if plan.tree is None:
                    if not self._answer_if_repeat(ticket):
                        ticket.fail(planner.duplicate_message_error(outcome.claim))
                case port.Stale(stream=""):
                    self._write_lock_acquired(alone=False)
                    return False
                case _:
                    tenant = ticket.request.tenant
                    for state in plan.states:
                        self.states.invalidate(tenant, state.id)
                    if plan.tree is not None:
                        self.trees.invalidate(tenant, plan.tree.id)
                    return False
        except errors.Error as error:
            ticket.fail(error)
        return True

    def _answer_repeated_key(self, ticket: Ticket, used: port.KeyRecord) -> None:
        request = ticket.request
        if used.command_hash != self._new_planner().command_hash(request):
            ticket.fail(
                errors.KeyReused(
                    f"the key {request.key!r} was used for another command.",
                    hint="Use a new key for a new command.",
                    facts={"key": request.key, "position": used.first},
                )
            )
            return
        made = self.store.feed(request.tenant, after=used.last - 1, limit=1)
        if made and isinstance(request.command, FrameCommandBase):
            frame = self.trees.find_frame(request.tenant, decode_tree_event(made[0]).event.frame_id)
            assert frame is not None, "a frame with an event exists"
            ticket.succeed(CommandResult(frame, replayed=True))
            return
        session_id = made[0].stream.removeprefix(session_stream("")) if made else request.session_id
        state = self.states.current(request.tenant, session_id)
        if state is None:
            ticket.fail(errors.Corrupt("an idempotency key names events that do not exist."))
        else:
            ticket.succeed(CommandResult(state, replayed=True))

    def _answer_if_repeat(self, ticket: Ticket) -> bool:
        """Answer a request that only adds messages that the conversation already has, unchanged; else return False.

        The named session and the last two of its chain are searched, in their present generation.
        """
        tenant, command = ticket.request.tenant, ticket.request.command
        if not isinstance(command, c.AddMessages):
            return False
        reach = self._new_planner().recent_chain(tenant, command.session_id)
        if not all(self._has_message(tenant, reach, message) for message in command.messages):
            return False
        ticket.succeed(CommandResult(reach[-1], replayed=True))
        return True

    def _has_message(self, tenant: str, reach: Sequence[SessionState], message: Message) -> bool:
        for state in reach:
            stream = session_stream(state.id)
            version = self.store.find_claim(tenant, stream, message.id)
            if version > state.began:
                found = self.store.read(tenant, stream, after=version - 1, until=version)
                (stored,) = messages_of(self.store, tenant, found)
                return planner.is_same_message(stored, message)
        return False

    def _new_planner(self) -> Planner:
        return Planner(self.store, self.states, self.trees, self._policies, self.factory)


def _plan_or_error(plan: Callable[..., CommandPlan | None], *asked: object) -> CommandPlan | errors.Error | None:
    """Return the plan or the error of one request: its defect must not fail the others of the batch."""
    try:
        return plan(*asked)
    except NeedsCommit:
        raise
    except errors.Error as error:
        return error
    except Exception as error:  # noqa: BLE001 - see the docstring
        return copy_error(error)
