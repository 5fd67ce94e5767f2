"""The session manager for blocking callers, and what it shares with the handles that it returns.

A deferred write is submitted at once and in order. Only the wait for its commit is postponed: until
`save_session`, eviction, a read, or the next call after the save interval. Its error is raised by
the next call on its session.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules
from limpet.core.values import ids
from limpet.core.values.commands import CommandRequest
from limpet.core.values.session_state import EndReason, SessionState, WindowPolicy
from limpet.core.values.validation import Json, checked_id, checked_int
from limpet.runtime import event_reader
from limpet.runtime.commit_queue import Ticket
from limpet.runtime.engine import Engine
from limpet.sessions import requests
from limpet.sessions.requests import UNKNOWN_OUTCOME, MessageLike, Page, Settings, When
from limpet.sessions.session import HandleState, PastSession, PendingCall, Session, checked_session

if TYPE_CHECKING:
    from limpet.memory.profile import Bootstrap
    from limpet.sessions.session_files import SessionFiles, SessionRecovery

RECOVERED_TO_KEY: Final = "recovered_to"
"""The key of a damaged session's metadata that names its recovery session, as far as it can still be said there."""


class DeferredWrites:
    """Tickets under way, by session."""

    def __init__(self, engine: Engine, interval_s: float) -> None:
        self._engine = engine
        self._interval_us = int(interval_s * 1e6)
        self._changed = threading.Condition()
        self._in_flight: dict[str, list[Ticket]] = {}
        self._failed: dict[str, list[BaseException]] = {}
        self._waited_us = 0

    def is_due(self) -> bool:
        """Return whether the interval is over, so that the next write waits for those before it."""
        return bool(self._interval_us) and self._engine.now_us() - self._waited_us > self._interval_us

    def settle_if_due(self) -> None:
        """Wait for every write if the interval is over."""
        if self.is_due():
            self._waited_us = self._engine.now_us()
            self.settle()

    def add(self, request: CommandRequest) -> None:
        """Submit a request. Raises instead, once, if an earlier one of its session was refused."""
        session_id = request.session_id
        self.settle_if_due()
        self._raise(session_id)
        with self._changed:
            ticket = Ticket(request, self)
            self._engine.submit(ticket)
            self._in_flight.setdefault(session_id, []).append(ticket)
        self._engine.start()

    def deliver(self, tickets: Sequence[Ticket]) -> None:
        """Wake whoever waits for these."""
        assert all(ticket.settled for ticket in tickets)
        with self._changed:
            self._changed.notify_all()

    def wait(self, session_id: str) -> None:
        """Wait for the writes of one session; raise the first error among them, once."""
        self.settle(session_id)
        self._raise(session_id)

    def wait_all(self) -> None:
        """Wait for every write; raise the first error among them, once."""
        self.settle()
        for session_id in list(self._failed):
            self._raise(session_id)

    def settle(self, session_id: str | None = None) -> None:
        """Wait for the writes of one session, or all; errors are kept for whoever asks for the session."""
        if not self._in_flight:
            return
        self._engine.start()
        with self._changed:
            chosen = list(self._in_flight) if session_id is None else [session_id]
            tickets = {ticket for place in chosen for ticket in self._in_flight.get(place, ())}
            self._changed.wait_for(lambda: all(ticket.settled for ticket in tickets))
            for place in chosen:
                self._remove(place, tickets)

    def _remove(self, session_id: str, settled: set[Ticket]) -> None:
        present = self._in_flight.pop(session_id, [])
        if left := [ticket for ticket in present if ticket not in settled]:
            self._in_flight[session_id] = left
        if refusals := [t.error for t in present if t in settled and t.error is not None]:
            self._failed.setdefault(session_id, []).extend(refusals)

    def _raise(self, session_id: str) -> None:
        failed = self._failed.pop(session_id, None) if self._failed else None
        if failed:
            if len(failed) > 1:
                failed[0].add_note(f"{len(failed) - 1} more deferred write(s) were refused after it")
            raise failed[0]


class SessionService:
    """What the manager of one tenant's sessions and its handles share. Callers never see it."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        factory: ids.Factory = ids.SYSTEM_FACTORY,
        bootstrap: Bootstrap | None = None,
        files: SessionFiles | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.tenant = settings.tenant
        self.requests = requests.SessionRequests(settings, factory)
        self.deferred = DeferredWrites(engine, settings.auto_save_interval)
        self.defers = settings.write == "deferred"
        self.bootstrap = bootstrap
        self.files = files
        self.current: Session | None = None
        self.handles: OrderedDict[str, Session] = OrderedDict()
        self._mutex = threading.Lock()

    def handle(self, state: SessionState) -> Session:
        return Session(HandleState(self, state))

    def remember(self, session: Session) -> Session:
        """Make a handle the current one. Beyond max_sessions_in_memory the one used longest ago is dropped."""
        with self._mutex:
            session_id = session.id
            self.current = self.handles[session_id] = session
            self.handles.move_to_end(session_id)
            over = len(self.handles) - self.settings.max_sessions_in_memory
            evicted = [self.handles.popitem(last=False)[0] for _ in range(over)]
        for session_id in evicted:
            self.deferred.settle(session_id)
        return session

    def drop_handles(self, session_ids: Iterable[str]) -> None:
        """Let go of handles on sessions that are not there any more."""
        with self._mutex:
            for session_id in session_ids:
                self.handles.pop(session_id, None)
                current = self.current
                # `Session.id` would wait for deferred writes.
                if current is not None and current._handle.last.id == session_id:  # pyright: ignore[reportPrivateUsage]
                    self.current = None

    def find(self, session_id: str) -> SessionState | None:
        """Return a session's state, its deferred writes included; None if there is none, or it was deleted."""
        self.engine.check()
        named = checked_id("a session's id", session_id)
        self.deferred.wait(named)
        state = self.engine.states.current(self.tenant, named)
        return None if state is None or state.hidden else state

    def existing(self, session_id: str) -> SessionState:
        return session_rules.existing_state(self.find(session_id), session_id)

    def execute(self, request: CommandRequest) -> SessionState:
        """Execute a request after the deferred writes of its session."""
        self.deferred.wait(request.session_id)
        return self.engine.run(request).state

    def begin(self, request: CommandRequest) -> SessionState:
        """Begin a session or its next generation, with what is known of its user if that is asked for."""
        if self.bootstrap is not None:
            self.engine.check()
            self.deferred.wait(request.session_id)
            request = self.bootstrap.with_profile(self.engine, request, self.conversation_end)
        return self.execute(request)

    def fork(
        self,
        session_id: str,
        at: str | int | None,
        *,
        version: int | None = None,
        new_id: str | None,
        user_id: str | None = None,
        title: str | None,
        metadata: Mapping[str, Json] | None,
        key: str | None,
    ) -> Session:
        """Begin a session that is what another was at a message or a version; it becomes the current one."""
        request = self.requests.fork(
            session_id, at, version=version, new_id=new_id, user_id=user_id, title=title, metadata=metadata, key=key
        )
        return self.remember(self.handle(self._execute_from_past(request)))

    def rewind(self, session_id: str, at: str | int, *, key: str | None, expected_version: int | None) -> SessionState:
        request = self.requests.rewind(session_id, at, key=key, expected_version=expected_version)
        return self._execute_from_past(request)

    def _execute_from_past(self, request: CommandRequest) -> SessionState:
        # The state that it goes on from is read before the write lock is held.
        self.engine.check()
        self.deferred.wait(request.session_id)
        return self.execute(event_reader.prefetch_source_state(self.engine.store, self.engine.states, request))

    def close_pending_calls(self, session_id: str, call_ids: Sequence[str] | None, outcome: str) -> SessionState:
        """Close open calls (None: all) where the conversation is now."""
        state = self.conversation_end(self.existing(session_id))
        message = self.requests.closing_message(state.open_calls, call_ids, outcome)
        return state if message is None else self.execute(self.requests.add(state.id, [message]))

    def past_session(self, state: SessionState, version: int) -> PastSession:
        """Return a session as it was at a version; raise NotFound if it was not there."""
        self.engine.check()
        checked_int("a version", version, 1)
        found = event_reader.fold_at_version(self.engine.store, self.engine.states, self.tenant, state, version)
        return PastSession(HandleState(self, found))

    def state_after_writes(self, state: SessionState) -> SessionState:
        """Return the state once deferred writes to its session are through; raise what refused one, once."""
        self.deferred.wait(state.id)
        return self.conversation_end(self.find(state.id) or state)

    def conversation_end(self, state: SessionState) -> SessionState:
        """Return the state of the last session of a conversation."""
        while following := self.continuation_of(state):
            state = following
        return state

    def continuation_of(self, state: SessionState) -> SessionState | None:
        """Return the newest session that continues another; None if none does."""
        found = map(self.find, reversed(state.continuations))
        return next((part for part in found if session_rules.is_continuation_of(part, state)), None)

    def is_full(self, state: SessionState) -> bool:
        return session_rules.is_full(state, self.settings.max_messages_per_session)

    def wait_for_writes(self) -> None:
        """Wait until deferred writes are through; what refused one is told to whoever asks for its session."""
        self.deferred.settle()

    def load(self, session_id: str) -> Session | None:
        """Return a handle that recovers on a session, or on its recovery session if it is damaged; None without any."""
        try:
            state = self.find(session_id)
        except errors.Corrupt as error:
            state = self.recover(session_id, error)
        if state is not None and RECOVERED_TO_KEY in state.metadata:
            state = self._recovery().replacement(state) or state
        return None if state is None else Session(HandleState(self, state, recovers=True))

    def recover(self, session_id: str, damage: errors.Corrupt) -> SessionState:
        """Return the state of a mended session or of its recovery session; raise the damage if it lies elsewhere."""
        if isinstance(damage, errors.EventsLost):
            raise damage
        recovery = self._recovery()
        # Where there is a recovery session, no other copy was of use: none is looked at again.
        if known := recovery.complete_recovery(session_id):
            return known
        if recovery.is_sound(session_id):
            raise damage
        if recovery.rebuild_from_copy() and recovery.is_sound(session_id):
            return self.existing(session_id)
        return recovery.recover(session_id, damage)

    def _recovery(self) -> SessionRecovery:
        from limpet.sessions.session_files import SessionRecovery  # noqa: PLC0415 - few programs need it

        return SessionRecovery(Sessions(self), self.engine, self.tenant, self.files)

    def write_file(self, session_id: str) -> None:
        """Write a session's file, if the store has a folder for such."""
        if self.files is not None:
            self.files.write_after_save(self.tenant, session_id)


class Sessions:
    """Creates, finds, changes and ends sessions of one tenant.

    Every mutating verb takes an optional idempotency `key`: repeated with the same key, a verb has one
    effect and one answer. What a verb returns is on disk.
    """

    def __init__(self, service: SessionService) -> None:
        self._service = service

    @property
    def current_session(self) -> Session | None:
        """The session that was begun or loaded last; None if there is none, or it was deleted."""
        return self._service.current

    @current_session.setter
    def current_session(self, session: Session | None) -> None:
        self._service.current = session

    @property
    def sessions(self) -> OrderedDict[str, Session]:
        """The sessions that were begun or loaded last, by id, at most max_sessions_in_memory."""
        return self._service.handles

    @property
    def max_messages_per_session(self) -> int:
        """The number of messages at which a conversation goes on in a new session."""
        return self._service.settings.max_messages_per_session

    @property
    def max_sessions_in_memory(self) -> int:
        """How many sessions `sessions` keeps."""
        return self._service.settings.max_sessions_in_memory

    def create_session(
        self,
        session_id: str | None = None,
        *,
        user_id: str | None = None,
        system: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
        policy: WindowPolicy | None = None,
    ) -> Session:
        """Begin a session, which becomes the current one. `system` is its first message.

        Raises DuplicateSession if the id is taken.
        """
        return self._open(
            self._service.requests.create(
                session_id, user_id=user_id, system=system, title=title, metadata=metadata, key=key, policy=policy
            )
        )

    def get_or_create_session(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        system: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        policy: WindowPolicy | None = None,
    ) -> Session:
        """Return the session by that id, ready for messages; begin it, or its next generation, if need be."""
        return self._open(
            self._service.requests.create(
                session_id, user_id=user_id, system=system, title=title, metadata=metadata, or_get=True, policy=policy
            )
        )

    def _open(self, request: CommandRequest) -> Session:
        return self._service.remember(self._service.handle(self._service.begin(request)))

    def load_session(self, session_id: str) -> Session | None:
        """Return the session by that id, which becomes the current one; None if there is none.

        If its data is damaged, it is restored from another copy that verifies; else this returns its recovery
        session, which names it and holds every message that could be read, and from then on that one. Loading does not
        read the whole history: damage further back is met by the first read that comes to it, and the handle goes on
        in the recovery session then. Raises EventsLost: nothing of what is there is damaged then.
        """
        found = self._service.load(session_id)
        return None if found is None else self._service.remember(found)

    def get_session(self, session_id: str) -> Session:
        """Return the session by that id; raise SessionNotFound if there is none. Changes no current session."""
        return self._service.handle(self._service.existing(session_id))

    def update_session(
        self,
        session_id: str,
        *,
        title: str | None | msgspec.UnsetType = msgspec.UNSET,
        metadata: Mapping[str, Json] | None = None,
        drop_metadata: Sequence[str] = (),
        key: str | None = None,
        expected_version: int | None = None,
        policy: WindowPolicy | None | msgspec.UnsetType = msgspec.UNSET,
    ) -> Session:
        """Set the title, set keys of the metadata, remove others. What is not named stays."""
        return self._execute(
            self._service.requests.update(
                session_id, title=title, metadata=metadata, drop_metadata=drop_metadata, key=key,
                expected_version=expected_version, policy=policy,
            )
        )  # fmt: skip

    def _execute(self, request: CommandRequest) -> Session:
        return self._service.handle(self._service.execute(request))

    def list_sessions(
        self,
        limit: int = 100,
        offset: int = 0,
        *,
        cursor: str | None = None,
        user_id: str | None = None,
        status: str | None = None,
        active_after: When | None = None,
        active_before: When | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Page:
        """Return a page of sessions, last active first. `.next_cursor` of the page gets the next one.

        Every filter given must hold; `metadata` compares top-level values.
        """
        service = self._service
        service.engine.check()
        service.wait_for_writes()
        query = requests.list_query(
            limit=limit, offset=offset, cursor=cursor, user_id=user_id, status=status,
            active_after=active_after, active_before=active_before, metadata=metadata,
        )  # fmt: skip
        one_more = msgspec.structs.replace(query, limit=query.limit + 1)
        return requests.session_page(service.engine.store.query_projections(service.tenant, one_more), limit)

    def add_messages(
        self,
        session_id: str,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
    ) -> Session:
        """Append messages to the session, or to where its conversation goes on: all of them or none."""
        requests = self._service.requests
        return self._execute(requests.add_to(session_id, messages, key=key, expected_version=expected_version))

    def save_session(self, session: Session | None = None) -> bool:
        """Wait until all that was written to the session is on disk, or raise why not. False if there is no session.

        In a folder of files the session's own file is written, too, unless it is long and little is new.
        """
        chosen = checked_session(session, Session) or self.current_session
        if chosen is None:
            return False
        self._service.engine.check()
        self._service.deferred.wait(chosen.id)
        self._service.write_file(chosen.id)
        return True

    def flush(self) -> None:
        """Wait for every deferred write; raise the first error among them."""
        self._service.deferred.wait_all()

    def end_session(self, session_id: str, *, key: str | None = None) -> Session:
        """End the session. Its history stays readable; messages are no longer taken."""
        return self._execute(self._service.requests.end(session_id, key=key))

    def reset_session(self, session_id: str, *, system: str | None = None, key: str | None = None) -> Session:
        """End the present generation and begin the next, empty, under the same id."""
        request = self._service.requests.reset(session_id, system=system, key=key)
        return self._service.handle(self._service.begin(request))

    def fork_session(
        self,
        session_id: str,
        at: str | int | None = None,
        *,
        new_id: str | None = None,
        user_id: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        key: str | None = None,
    ) -> Session:
        """Begin a session that is what this one was at a message; it becomes the current one.

        `at` is the message's id, or its number from 1 on; None: the last one. Nothing is copied, and the
        two know nothing of each other from here on. Title and metadata are the source's unless given.
        Raises MessageNotFound, SessionNotFound, DuplicateSession.
        """
        return self._service.fork(
            session_id, at, new_id=new_id, user_id=user_id, title=title, metadata=metadata, key=key
        )

    def rewind_session(
        self, session_id: str, at: str | int, *, key: str | None = None, expected_version: int | None = None
    ) -> Session:
        """Take the session back to a message: later ones leave the conversation.

        `at` is the message's id, or its number from 1 on. Nothing is deleted: `session.at(version)` and
        `events.at(position)` show what was. Title and metadata stay. Raises MessageNotFound, SessionEnded.
        """
        return self._service.handle(self._service.rewind(session_id, at, key=key, expected_version=expected_version))

    def delete_session(self, session_id: str, *, key: str | None = None) -> bool:
        """Delete the session: no verb finds it any more. False if there was none."""
        try:
            self._service.execute(self._service.requests.end(session_id, reason=EndReason.DELETED, key=key))
        except errors.SessionNotFound:
            return False
        self._service.drop_handles([session_id])
        self._service.write_file(session_id)
        return True

    def expire(self, now: When | None = None, *, idle_s: float = limits.IDLE_TIMEOUT_S) -> list[str]:
        """End every session that nobody touched for `idle_s` seconds; return their ids."""
        service = self._service
        service.engine.check()
        service.wait_for_writes()
        cutoff = requests.idle_cutoff_us(now, service.engine.now_us, idle_s)
        seen, ended = set[str](), list[str]()
        while True:
            rows = service.engine.store.query_projections(service.tenant, requests.idle_sessions_query(cutoff))
            fresh = [row.id for row in rows if row.id not in seen]
            if not fresh:
                return ended
            seen.update(fresh)
            ended += [session_id for session_id in fresh if self._end_if_idle(session_id, cutoff)]

    def _end_if_idle(self, session_id: str, cutoff: int) -> bool:
        """End a session that is still idle; False if it was touched, ended or deleted meanwhile."""
        try:
            request = self._service.requests.end(session_id, reason=EndReason.TIMEOUT, idle_since_us=cutoff)
            return self._service.execute(request).end_reason is EndReason.TIMEOUT
        except errors.SessionNotFound:
            return False

    def check_session_boundary(self, session: Session | None = None) -> bool:
        """Whether the session (None: the current one) has reached its number of messages."""
        chosen = session or self.current_session
        return chosen is not None and self._service.is_full(chosen.state)

    def create_continuation_session(self, source_session: Session | None = None, *, key: str | None = None) -> Session:
        """Go on in a new session that begins with the system and context messages of the source."""
        chosen = source_session or self.current_session
        if chosen is None:
            raise errors.NoCurrentSession
        return self._service.remember(self._execute(self._service.requests.continue_(chosen.id, key=key)))

    def pending_calls(self, session_id: str) -> list[PendingCall]:
        """Return the tool calls that have no result yet, wherever the conversation is now."""
        return self.get_session(session_id).pending_calls()

    def close_pending_calls(
        self, session_id: str, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME
    ) -> Session:
        """Close open calls (None: all) with an error result that says so; the session goes on."""
        return self._service.handle(self._service.close_pending_calls(session_id, call_ids, outcome))

    def session_chain(self, session_id: str) -> list[Session]:
        """Return every session of the conversation, first to last, each once."""
        service = self._service
        chain = [service.existing(session_id)]
        while before := self._before(chain[0]):
            chain.insert(0, before)
        while following := service.continuation_of(chain[-1]):
            chain.append(following)
        return [service.handle(part) for part in chain]

    def _before(self, state: SessionState) -> SessionState | None:
        found = self._service.find(state.continued_from) if state.continued_from else None
        return found if found and session_rules.is_continuation_of(state, found) else None

    def chain_tokens(self, session_id: str) -> int:
        """Return the tokens of the whole conversation; what was carried over counts once."""
        chain = self.session_chain(session_id)
        return sum(session.state.tokens - session.state.carried_tokens for session in chain)


def service_of(sessions: Sessions) -> SessionService:
    """Return what a manager shares with its handles, for the client and the async face."""
    return sessions._service  # pyright: ignore[reportPrivateUsage] - callers of a manager see none of it
