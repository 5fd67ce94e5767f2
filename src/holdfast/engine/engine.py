"""The engine: one road from a request to the log. Loads, decides, appends, answers.

Everything that changes state passes `run` or `submit`; everything that looks passes `states` and
the store. The rules are in `history`, the promises in `store.port`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from holdfast import errors, limits
from holdfast.engine import planning
from holdfast.engine.commits import Answer, Channel, CommitQueue, Ticket
from holdfast.engine.planning import Later, Plan, Round
from holdfast.engine.states import States, message_of, stream_of
from holdfast.store import port
from holdfast.values import command as c
from holdfast.values.session import SessionState

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
        now_us: Callable[[], int],
        cached_sessions: int = limits.CACHED_SESSIONS,
    ) -> None:
        self.store = store
        self.now_us = now_us
        self.states = States(store, cached_sessions)
        self._commits = CommitQueue(self._process)
        self._born = _forks
        self._closed = False

    def run(self, request: c.Request) -> Answer:
        """Carry a request out; return when it is durable. Raises whatever refuses it."""
        self.check()
        return self._commits.run(Ticket(request))

    def submit(self, request: c.Request, channel: Channel) -> Ticket:
        """Hand a request in without waiting; the channel gets the ticket when it is done."""
        self.check()
        ticket = Ticket(request, channel)
        self._commits.submit(ticket)
        return ticket

    def check(self) -> None:
        """Raise unless this engine can be used here and now."""
        if _forks != self._born:
            raise errors.ForkedEngine
        if self._closed:
            raise errors.EngineClosed

    def close(self) -> None:
        """See what was submitted through, then close the store. Closing twice is fine."""
        if self._closed or _forks != self._born:
            return
        self._closed = True
        self._commits.close()
        self.store.close()

    def _process(self, batch: Sequence[Ticket]) -> None:
        with self.store.turn():
            pending = list(batch)
            for _ in range(limits.RETRIES_MAX):
                pending = self._round(pending)
                if not pending:
                    return
        for ticket in pending:
            ticket.fail(errors.Conflict("other writers were faster every time.", hint="Retry."))

    def _round(self, tickets: list[Ticket]) -> list[Ticket]:
        """Decide and commit; return the tickets that have to be decided again."""
        deciding = Round(self.store, self.states, self.now_us)
        again: list[Ticket] = []
        planned: list[tuple[Ticket, Plan, port.Append]] = []
        quiet: list[tuple[Ticket, Plan]] = []
        for ticket in tickets:
            try:
                plan = self._plan(deciding, ticket)
            except Later:
                again.append(ticket)
                continue
            except errors.Error as error:
                ticket.fail(error)
                continue
            if plan is not None and plan.append is not None:
                planned.append((ticket, plan, plan.append))
            elif plan is not None:
                quiet.append((ticket, plan))
        outcomes = self.store.commit([append for _, _, append in planned]) if planned else []
        lost = [
            ticket
            for (ticket, plan, _), outcome in zip(planned, outcomes, strict=True)
            if not self._settled(ticket, plan, outcome)
        ]
        for ticket, plan in quiet:
            # What changes nothing may rest on something of this round that did not come about.
            if lost:
                again.append(ticket)
            else:
                ticket.succeed(Answer(plan.answer))
        return sorted(again + lost, key=tickets.index) if again or lost else []

    def _plan(self, deciding: Round, ticket: Ticket) -> Plan | None:
        request = ticket.request
        if request.key is not None:
            used = self.store.find_key(request.tenant, request.key)
            if used is not None:
                self._replay(ticket, used)
                return None
        try:
            return deciding.plan(request)
        except errors.Refused:
            if self._said_before(request):
                ticket.succeed(Answer(self._tail_state(request), replayed=True))
                return None
            raise

    def _settled(self, ticket: Ticket, plan: Plan, outcome: port.Outcome) -> bool:
        tenant = ticket.request.tenant
        match outcome:
            case port.Appended():
                for state in plan.states:
                    self.states.keep(tenant, state)
                ticket.succeed(Answer(plan.answer))
            case port.Replayed():
                self._replay(ticket, outcome)
            case port.Claimed():
                self._clash(ticket, outcome)
            case port.Stale():
                for state in plan.states:
                    self.states.forget(tenant, state.id)
                return False
        return True

    def _replay(self, ticket: Ticket, used: port.Replayed) -> None:
        request = ticket.request
        if used.command_hash != planning.command_hash(request):
            ticket.fail(
                errors.KeyReused(
                    f"the key {request.key!r} was used for another command.",
                    hint="Use a new key for a new command.",
                    facts={"key": request.key, "position": used.first},
                )
            )
            return
        made = self.store.feed(request.tenant, after=used.last - 1, limit=1)
        session_id = (
            made[0].stream.removeprefix(stream_of("")) if made else request.command.session_id
        )
        state = self.states.current(request.tenant, session_id)
        if state is None:
            ticket.fail(errors.Corrupt("an idempotency key names events that are not there."))
        else:
            ticket.succeed(Answer(state, replayed=True))

    def _clash(self, ticket: Ticket, taken: port.Claimed) -> None:
        if self._said_before(ticket.request):
            ticket.succeed(Answer(self._tail_state(ticket.request), replayed=True))
            return
        ticket.fail(
            errors.DuplicateMessage(
                f"another message of the session has the id {taken.claim!r}.",
                hint="Give the new one its own id, or leave the id out.",
                facts={"message": taken.claim, "version": taken.version},
            )
        )

    def _said_before(self, request: c.Request) -> bool:
        """Whether the request only adds messages that the session has already, word for word."""
        if not isinstance(request.command, c.AddMessages):
            return False
        state = self._tail_state(request)
        stream = stream_of(state.id)
        for message in request.command.messages:
            version = self.store.find_claim(request.tenant, stream, message.id)
            found = (
                self.store.read(request.tenant, stream, after=version - 1, until=version)
                if version
                else []
            )
            if not found or not planning.same_message(message_of(found[0]), message):
                return False
        return True

    def _tail_state(self, request: c.Request) -> SessionState:
        return Round(self.store, self.states, self.now_us).tail(
            request.tenant, request.command.session_id
        )
