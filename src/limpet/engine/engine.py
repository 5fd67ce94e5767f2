"""The engine: one road from a request to the log. Loads, decides, appends, answers.

Everything that changes state passes `run` or `submit`; everything that looks passes `states` and
the store. The rules are in `history`, the promises in `store.port`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from limpet import errors, limits
from limpet.engine import planning
from limpet.engine.coming import Coming, on_its_way
from limpet.engine.commits import Answer, CommitQueue, Ticket, own_error
from limpet.engine.planning import Later, Plan, Round
from limpet.engine.policies import Policies
from limpet.engine.states import States, messages_of, stream_of
from limpet.engine.tails import Tails
from limpet.engine.trees import Trees, recorded
from limpet.history import continuation
from limpet.store import port
from limpet.values import command as c
from limpet.values import ids
from limpet.values.frame_command import AboutFrame, PushFrame
from limpet.values.message import Message
from limpet.values.session import SessionState

FORGET_EVERY_US = 3_600_000_000
"""How often old idempotency keys are dropped, at most."""

CONTESTED_TURNS = 100
"""For how many requests a session is decided under the turn after another process was faster in it."""

AHEAD_MAX = 2
"""Commits on their way at once: one that the server works on, and one that it finds when it is through."""

IDLE_MAX, IDLE_TIMES, TOGETHER_S = 0.7, 3, 1.0
"""If the leader waits for a larger part of its time, so many times on end, all go together for so many seconds."""

Known = Callable[[str, str], SessionState | None]
"""What is known of a tenant's session."""

Planned = tuple[Ticket, Plan, port.Append]

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - a fork changes the whole process
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Engine:
    """State of many sessions over one store. Threads may share it; a forked child may not use it."""

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
        self.tails = Tails(store)
        self.states = States(store, cached_sessions, self.tails.clear)
        self.trees = Trees(store, cached_trees)
        self._policies = Policies(self.tails)
        self._commits = CommitQueue(self._process, self._send_ahead)
        self._born = _forks
        self._closed = False
        self._forgot_us = 0
        self._contested: dict[tuple[str, str], int] = {}
        self._ahead_from, self._idle_times = 0.0, 0

    def run(self, request: c.Request) -> Answer:
        """Carry a request out; return when it is durable. Raises whatever refuses it."""
        self.check()
        return self._commits.run(Ticket(request))

    def submit(self, ticket: Ticket) -> None:
        """Hand a request in without waiting; once started, its channel gets the ticket when it is done."""
        self.check()
        self._commits.submit(ticket)

    def start(self) -> None:
        """See to it that what was handed in is carried out, by a thread if nobody else does."""
        self._commits.start()

    def check(self) -> None:
        """Raise unless this engine can be used here and now."""
        if _forks != self._born:
            raise errors.ForkedEngine
        if self._closed:
            raise errors.EngineClosed

    def close(self) -> None:
        """See what was submitted through, then close the store. Closing twice is fine."""
        if _forks == self._born:
            self._closed = True
            self._commits.close()
            self.store.close()

    def _process(self, batch: Sequence[Ticket]) -> None:
        pending, lost_races = list(batch), 0
        try:
            early = self._decided_early(pending) if self.store.crowded else []
            if early:
                outcomes = self.store.hand_over([append for _, _, append in early])
                if outcomes is not None:
                    pending, early = self._contended(self._answer(early, outcomes)), []
                    if not pending:
                        return
            with self.store.turn() as alone:
                if early and self.states.outdated():
                    early = []
                self._begin_turn(alone=alone)
                if early:
                    pending = self._contended(self._commit(early))
                while pending and lost_races < limits.RETRIES_MAX:
                    before = len(pending)
                    pending, lost = self._round(pending)
                    # A round that settles something is progress, whatever it lost to.
                    lost_races = lost_races + 1 if lost and len(pending) == before else 0
            for ticket in pending:
                ticket.fail(errors.Conflict("other writers were faster every time.", hint="Retry."))
            self._forget_keys(batch)
        except BaseException:
            self._abandon_turn()
            raise

    def _abandon_turn(self) -> None:
        # An interrupt can come before the turn was given back, and what was committed may not
        # have been remembered.
        self.store.leave_turn()
        self._begin_turn(alone=False)

    def _send_ahead(self, coming: Coming) -> None:
        """Send commit after commit, each decided while the server works on those before; what can't be is left to `_process`."""
        if len(coming) < 2 or time.monotonic() < self._ahead_from or not coming.hears():
            return
        sending = self.store.sending()
        if sending is None:
            return
        try:
            with self.store.turn() as alone:
                self._begin_turn(alone=alone)
                self._go_on(sending, coming)
        except BaseException:
            self._abandon_turn()
            raise
        self._idle_times = self._idle_times + 1 if coming.idle > IDLE_MAX else 0
        if self._idle_times == IDLE_TIMES:
            # The server is what takes time: parts of a commit only cost it more.
            self._idle_times, self._ahead_from = 0, time.monotonic() + TOGETHER_S

    def _go_on(self, sending: port.Sending, coming: Coming) -> None:
        out: deque[list[Planned]] = deque()
        asked: list[Planned] = []
        try:
            with sending:
                while True:
                    tickets = coming.take()
                    asked = self._planned_alone(self.states.at_hand, tickets, out)
                    # What begins with a part would make the rest wait for it.
                    sent = bool(asked) and (bool(out) or len(asked) == len(tickets))
                    if sent:
                        out.append(asked)
                        sent = sending.send([append for _, _, append in asked])
                        if not sent:
                            out.pop()
                    if left := tickets[len(asked) if sent else 0 :]:
                        coming.refuse(left)
                    if not out:
                        return
                    if len(out) == AHEAD_MAX or coming.wait(sending):
                        coming.tell()
                        asked = out[0]
                        if self._answer(asked, coming.waited_for(sending.receive)):
                            coming.end()
                        out.popleft()
        except errors.Error as error:
            for planned in out:
                for ticket, _, _ in planned if planned is not asked else ():
                    ticket.fail(on_its_way(error))
            raise

    def _begin_turn(self, *, alone: bool) -> None:
        self.states.begin_turn(alone=alone)
        self.trees.begin_turn(alone=alone)

    def _forget_keys(self, batch: Sequence[Ticket]) -> None:
        for ticket in batch:
            if ticket.request.key is not None:
                break
        else:
            return
        now = self.now_us()
        if now - self._forgot_us > FORGET_EVERY_US:
            self._forgot_us = now
            for tenant in {ticket.request.tenant for ticket in batch}:
                before = now - limits.IDEMPOTENCY_KEEP_S * 1_000_000
                with contextlib.suppress(errors.Unavailable):
                    self.store.forget_keys(tenant, before_us=before)

    def _round(self, tickets: list[Ticket]) -> tuple[list[Ticket], bool]:
        """Decide and commit; return the tickets to be decided again, and whether a race was lost."""
        deciding = self._deciding()
        planned: list[Planned] = []
        resting: list[tuple[Ticket, Plan | errors.Error]] = []
        again: list[Ticket] = []
        for index, ticket in enumerate(tickets):
            try:
                verdict = _verdict(self._plan, deciding, ticket)
            except Later:
                # Everything after it waits too: what was submitted first is decided first.
                again = tickets[index:]
                break
            if isinstance(verdict, Plan) and verdict.append is not None:
                planned.append((ticket, verdict, verdict.append))
            elif verdict is not None:
                resting.append((ticket, verdict))
        lost = self._commit(planned) if planned else []
        for ticket, verdict in resting:
            # A refusal, or an answer that changes nothing, may rest on what others of this round made
            # or did not make; it stands once it is reached on what is in the log.
            if planned or not self._held(ticket.request.tenant):
                again.append(ticket)
            elif isinstance(verdict, Plan):
                ticket.succeed(Answer(verdict.answer))
            else:
                ticket.fail(verdict)
        return sorted(again + lost, key=tickets.index) if again or lost else [], bool(lost)

    def _held(self, tenant: str) -> bool:
        """Whether what this turn knows of a tenant holds; if not, it is looked at again from here on."""
        held = self.store.held(tenant)
        if not held:
            self._begin_turn(alone=False)
        return held

    def _decided_early(self, batch: Sequence[Ticket]) -> list[Planned]:
        """Decide requests before the turn, on what is remembered; empty unless all can be decided so.

        Those can that add messages to sessions that stand alone, each to another: they depend on one
        version of one stream, which the store checks, and are known again if they are repeated.
        """
        try:
            self.states.begin_early({ticket.request.tenant for ticket in batch})
        except errors.UnsafeStore:
            # One of the tenants is being copied here: in the turn only what is about that one is refused.
            return []
        planned = self._planned_alone(self.states.remembered, batch)
        return planned if len(planned) == len(batch) else []

    def _planned_alone(
        self, known: Known, tickets: Sequence[Ticket], out: Iterable[Sequence[Planned]] = ()
    ) -> list[Planned]:
        """Decide requests up to the first that does more than add messages to a session that stands alone and has none `out`."""
        planned: list[Planned] = []
        deciding = self._deciding()
        busy = {state.id for sent in out for _, plan, _ in sent for state in plan.states}
        for ticket in tickets:
            request, command = ticket.request, ticket.request.command
            if not isinstance(command, c.AddMessages) or command.session_id in busy:
                break
            tenant, session_id = request.tenant, command.session_id
            if request.key is not None or self._waits_for_turn(tenant, session_id):
                break
            state = known(tenant, session_id)
            if not continuation.is_plain(state, command.max_messages):
                break
            plan = _verdict(deciding.said, request, command, state)
            if not isinstance(plan, Plan):
                break
            assert plan.append is not None, "messages are appended"
            busy.add(session_id)
            planned.append((ticket, plan, plan.append))
        return planned

    def _contended(self, lost: list[Ticket]) -> list[Ticket]:
        """Remember where others write too: what is decided early there would be decided in vain."""
        if len(self._contested) > limits.CACHED_SESSIONS:
            self._contested.clear()
        for ticket in lost:
            place = (ticket.request.tenant, ticket.request.session_id)
            self._contested[place] = CONTESTED_TURNS
        return lost

    def _waits_for_turn(self, tenant: str, session_id: str) -> bool:
        """Whether a session was contended for lately; each time that somebody asks is one of the turns that it waits."""
        left = self._contested.get((tenant, session_id), 0) if self._contested else 0
        if left:
            self._contested[tenant, session_id] = left - 1
        return left > 0

    def _commit(self, planned: Sequence[Planned]) -> list[Ticket]:
        """Append what was planned, answer each ticket; return those that lost a race."""
        outcomes = self.store.commit([append for _, _, append in planned])
        for tenant, stream in self.store.served():
            self.states.forget(tenant, stream.removeprefix(stream_of("")))
        return self._answer(planned, outcomes)

    def _answer(
        self, planned: Sequence[Planned], outcomes: Sequence[port.Outcome | None]
    ) -> list[Ticket]:
        others: list[tuple[Ticket, Plan, port.Outcome | None]] = []
        for (ticket, plan, append), outcome in zip(planned, outcomes, strict=True):
            if not isinstance(outcome, port.Appended):
                others.append((ticket, plan, outcome))
                continue
            tenant, command, tree = append.tenant, ticket.request.command, plan.tree
            for state in plan.states:
                self.states.keep(tenant, state)
            if tree is not None:
                self.trees.keep(tenant, tree)
                if isinstance(command, PushFrame) and command.named:
                    self.trees.keep_root(tenant, command.frame_id, tree.root_id)
            elif isinstance(command, c.AddMessages) and len(plan.states) == 1:
                self.tails.appended(tenant, plan.states[0], append.writes[0], command.messages)
            ticket.answer = Answer(plan.answer)
        if not others:
            return []
        return [
            ticket for ticket, plan, outcome in others if not self._settled(ticket, plan, outcome)
        ]

    def _plan(self, deciding: Round, ticket: Ticket) -> Plan | None:
        """Return what a ticket leads to; None if it is answered already."""
        request = ticket.request
        if request.key is not None:
            used = self.store.find_key(request.tenant, request.key)
            if used is not None:
                self._replay(ticket, used)
                return None
        try:
            return deciding.plan(request)
        except (errors.Refused, errors.DuplicateMessage, errors.StaleVersion):
            if self._said_before(request):
                ticket.succeed(Answer(self._tail_state(request), replayed=True))
                return None
            raise

    def _settled(self, ticket: Ticket, plan: Plan, outcome: port.Outcome | None) -> bool:
        """Answer a ticket that was not appended; False if it has to be decided again."""
        try:
            match outcome:
                case port.Replayed():
                    self._replay(ticket, outcome)
                case port.Claimed() if plan.tree is None:
                    self._clash(ticket, outcome)
                case port.Stale(stream=""):
                    self._begin_turn(alone=False)
                    return False
                case _:
                    tenant = ticket.request.tenant
                    for state in plan.states:
                        self.states.forget(tenant, state.id)
                    if plan.tree is not None:
                        self.trees.forget(tenant, plan.tree.id)
                    return False
        except errors.Error as error:
            ticket.fail(error)
        return True

    def _replay(self, ticket: Ticket, used: port.Replayed) -> None:
        request = ticket.request
        if used.command_hash != self._deciding().command_hash(request):
            ticket.fail(
                errors.KeyReused(
                    f"the key {request.key!r} was used for another command.",
                    hint="Use a new key for a new command.",
                    facts={"key": request.key, "position": used.first},
                )
            )
            return
        made = self.store.feed(request.tenant, after=used.last - 1, limit=1)
        if made and isinstance(request.command, AboutFrame):
            frame = self.trees.find(request.tenant, recorded(made[0]).event.frame_id)
            assert frame is not None, "a frame that something happened to is there"
            ticket.succeed(Answer(frame, replayed=True))
            return
        session_id = made[0].stream.removeprefix(stream_of("")) if made else request.session_id
        state = self.states.current(request.tenant, session_id)
        if state is None:
            ticket.fail(errors.Corrupt("an idempotency key names events that are not there."))
        else:
            ticket.succeed(Answer(state, replayed=True))

    def _clash(self, ticket: Ticket, taken: port.Claimed) -> None:
        if self._said_before(ticket.request):
            ticket.succeed(Answer(self._tail_state(ticket.request), replayed=True))
        else:
            ticket.fail(planning.duplicate(taken.claim))

    def _said_before(self, request: c.Request) -> bool:
        """Whether the request only adds messages that the conversation has already, word for word.

        They count in the named session and the last two of its chain, in the open generations.
        """
        command = request.command
        if not isinstance(command, c.AddMessages):
            return False
        reach = self._deciding().reach(request.tenant, command.session_id)
        return all(self._holds(request.tenant, reach, message) for message in command.messages)

    def _holds(self, tenant: str, reach: Sequence[SessionState], message: Message) -> bool:
        for state in reach:
            stream = stream_of(state.id)
            version = self.store.find_claim(tenant, stream, message.id)
            if version > state.began:
                found = self.store.read(tenant, stream, after=version - 1, until=version)
                (said,) = messages_of(self.store, tenant, found)
                return planning.same_message(said, message)
        return False

    def _tail_state(self, request: c.Request) -> SessionState:
        return self._deciding().reach(request.tenant, request.session_id)[-1]

    def _deciding(self) -> Round:
        return Round(self.store, self.states, self.trees, self._policies, self.factory)


def _verdict(plan: Callable[..., Plan | None], *asked: object) -> Plan | errors.Error | None:
    """Return what deciding one request came to: one's defect must not fail its neighbours."""
    try:
        return plan(*asked)
    except Later:
        raise
    except errors.Error as error:
        return error
    except Exception as error:  # noqa: BLE001 - see above
        return own_error(error)
