"""The session manager for blocking callers, and its deferred writes.

A deferred write is submitted at once and in order. Only the wait for its commit is postponed: until
`save_session`, eviction, a read, or the next call after the save interval. Its error is raised by
the next call on its session.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules
from limpet.core.values import ids
from limpet.core.values.commands import CommandRequest
from limpet.core.values.messages import checked_id
from limpet.core.values.session_state import EndReason, SessionState, WindowPolicy
from limpet.core.values.validation import Json
from limpet.core.windows.window import Window
from limpet.runtime import event_reader
from limpet.runtime.commit_queue import CommandResult, Ticket
from limpet.runtime.engine import Engine
from limpet.sessions import requests
from limpet.sessions.requests import UNKNOWN_OUTCOME, MessageLike, Page, Settings, When
from limpet.sessions.session import Session, checked_session
from limpet.sessions.session_view import PendingCall

if TYPE_CHECKING:
    from limpet.memory.profile import Bootstrap


class DeferredWrites:
    """Tickets under way, by session."""

    def __init__(self, engine: Engine, interval_s: float) -> None:
        self._engine = engine
        self._interval_us = int(interval_s * 1e6)
        self._changed = threading.Condition()
        self._in_flight: dict[str, list[Ticket]] = {}
        self._failed: dict[str, list[BaseException]] = {}
        self._waited_us = 0

    def add(self, request: CommandRequest) -> None:
        """Submit a request. Raises instead, once, if an earlier one of its session was refused."""
        session_id = request.session_id
        now = self._engine.now_us()
        if self._interval_us and now - self._waited_us > self._interval_us:
            self._waited_us = now
            self.settle()
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
            tickets = [ticket for place in chosen for ticket in self._in_flight.get(place, ())]
            self._changed.wait_for(lambda: all(ticket.settled for ticket in tickets))
            for place in chosen:
                self._remove(place, tickets)

    def _remove(self, session_id: str, settled: list[Ticket]) -> None:
        present = self._in_flight.pop(session_id, [])
        left = [ticket for ticket in present if ticket not in settled]
        if left:
            self._in_flight[session_id] = left
        errors = [t.error for t in present if t in settled and t.error is not None]
        if errors:
            self._failed.setdefault(session_id, []).extend(errors)

    def _raise(self, session_id: str) -> None:
        failed = self._failed.pop(session_id, None) if self._failed else None
        if failed:
            if len(failed) > 1:
                failed[0].add_note(f"{len(failed) - 1} more deferred write(s) were refused after it")
            raise failed[0]


class Sessions:
    """Creates, finds, changes and ends sessions of one tenant.

    Every mutating verb takes an optional idempotency `key`: repeated with the same key, a verb has one
    effect and one answer. What a verb returns is on disk.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        factory: ids.Factory = ids.SYSTEM_FACTORY,
        bootstrap: Bootstrap | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._bootstrap = bootstrap
        self._requests = requests.SessionRequests(settings, factory)
        self._deferred = DeferredWrites(engine, settings.auto_save_interval)
        self._mutex = threading.Lock()
        self.current_session: Session | None = None
        self.sessions: OrderedDict[str, Session] = OrderedDict()
        self.max_messages_per_session = settings.max_messages_per_session
        self.max_sessions_in_memory = settings.max_sessions_in_memory

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
            self._requests.create(
                session_id,
                user_id=user_id,
                system=system,
                title=title,
                metadata=metadata,
                or_get=False,
                key=key,
                policy=policy,
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
            self._requests.create(
                session_id,
                user_id=user_id,
                system=system,
                title=title,
                metadata=metadata,
                or_get=True,
                key=None,
                policy=policy,
            )
        )

    def _open(self, request: CommandRequest) -> Session:
        return self._remember(self._handle(self._run(self.with_profile(request)).state))

    def with_profile(self, request: CommandRequest) -> CommandRequest:
        """Return a request that begins a session with what is known of its user, if that is asked for."""
        if self._bootstrap is None:
            return request
        self._engine.check()
        self._deferred.wait(request.session_id)
        return self._bootstrap.with_profile(self._engine, request, self.conversation_end)

    def load_session(self, session_id: str) -> Session | None:
        """Return the session by that id, which becomes the current one; None if there is none.

        Raises Corrupt if its data is damaged.
        """
        found = self._find(session_id)
        return self._remember(self._handle(found)) if found else None

    def get_session(self, session_id: str) -> Session:
        """Return the session by that id; raise SessionNotFound if there is none. Changes no current session."""
        return self._handle(session_rules.existing_state(self._find(session_id), session_id))

    def _find(self, session_id: str) -> SessionState | None:
        self._engine.check()
        named = checked_id("a session's id", session_id)
        self._deferred.wait(named)
        state = self._engine.states.current(self._settings.tenant, named)
        return None if state is None or state.hidden else state

    def _handle(self, state: SessionState) -> Session:
        return Session(self, self._engine, self._settings.tenant, state)

    def _remember(self, session: Session) -> Session:
        with self._mutex:
            self.current_session = session
            self.sessions[session.last_known_id] = session
            self.sessions.move_to_end(session.last_known_id)
            over = len(self.sessions) - self.max_sessions_in_memory
            evicted = [self.sessions.popitem(last=False)[0] for _ in range(over)]
        for session_id in evicted:
            self._deferred.settle(session_id)
        return session

    def _run(self, request: CommandRequest) -> CommandResult:
        self._deferred.wait(request.session_id)
        return self._engine.run(request)

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
        request = self._requests.update(
            session_id,
            title=title,
            metadata=metadata,
            drop_metadata=drop_metadata,
            key=key,
            policy=policy,
            expected_version=expected_version,
        )
        return self._handle(self._run(request).state)

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
        self._engine.check()
        self._deferred.settle()
        query = self._requests.list_query(
            limit=limit,
            offset=offset,
            cursor=cursor,
            user_id=user_id,
            status=status,
            active_after=active_after,
            active_before=active_before,
            metadata=metadata,
        )
        rows = self._engine.store.query_projections(
            self._settings.tenant, msgspec.structs.replace(query, limit=query.limit + 1)
        )
        return requests.session_page(rows, limit)

    def add_messages(
        self,
        session_id: str,
        messages: Iterable[MessageLike],
        *,
        key: str | None = None,
        expected_version: int | None = None,
    ) -> Session:
        """Append messages to the session, or to where its conversation goes on: all of them or none."""
        request = self._requests.add(session_id, messages, key=key, expected_version=expected_version)
        return self._handle(self._run(request).state)

    def save_session(self, session: Session | None = None) -> bool:
        """Wait until all that was written to the session is on disk, or raise why not. False if there is no session."""
        chosen = checked_session(session, Session) or self.current_session
        if chosen is None:
            return False
        self._engine.check()
        self._deferred.wait(chosen.id)
        return True

    def end_session(self, session_id: str, *, key: str | None = None) -> Session:
        """End the session. Its history stays readable; messages are no longer taken."""
        return self._handle(self._run(self._requests.end(session_id, EndReason.ENDED, key=key)).state)

    def reset_session(self, session_id: str, *, system: str | None = None, key: str | None = None) -> Session:
        """End the present generation and begin the next, empty, under the same id."""
        request = self.with_profile(self._requests.reset(session_id, system=system, key=key))
        return self._handle(self._run(request).state)

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
        request = self._requests.fork(
            session_id, at, new_id=new_id, user_id=user_id, title=title, metadata=metadata, key=key
        )
        return self._open(self.prefetch_source_state(request))

    def fork_version(
        self,
        session_id: str,
        version: int,
        *,
        new_id: str | None,
        title: str | None,
        metadata: Mapping[str, Json] | None,
        key: str | None,
    ) -> Session:
        """Fork for a handle on a session as it was."""
        request = self._requests.fork(
            session_id, None, version=version, new_id=new_id, user_id=None, title=title,
            metadata=metadata, key=key,
        )  # fmt: skip
        return self._open(self.prefetch_source_state(request))

    def rewind_session(
        self, session_id: str, at: str | int, *, key: str | None = None, expected_version: int | None = None
    ) -> Session:
        """Take the session back to a message: later ones leave the conversation.

        `at` is the message's id, or its number from 1 on. Nothing is deleted: `session.at(version)` and
        `events.at(position)` show what was. Title and metadata stay. Raises MessageNotFound, SessionEnded.
        """
        request = self._requests.rewind(session_id, at, key=key, expected_version=expected_version)
        return self._handle(self._run(self.prefetch_source_state(request)).state)

    def prefetch_source_state(self, request: CommandRequest) -> CommandRequest:
        """Return the request of a fork or a rewind with what can be found out before its turn."""
        self._engine.check()
        self._deferred.wait(request.session_id)
        return event_reader.prefetch_source_state(self._engine.store, self._engine.states, request)

    def delete_session(self, session_id: str, *, key: str | None = None) -> bool:
        """Delete the session: no verb finds it any more. False if there was none."""
        try:
            self._run(self._requests.end(session_id, EndReason.DELETED, key=key))
        except errors.SessionNotFound:
            return False
        self.drop_handles([session_id])
        return True

    def drop_handles(self, session_ids: Sequence[str]) -> None:
        """Let go of handles on sessions that are not there any more."""
        with self._mutex:
            for session_id in session_ids:
                self.sessions.pop(session_id, None)
                if self.current_session is not None and self.current_session.last_known_id == session_id:
                    self.current_session = None

    def expire(self, now: When | None = None, *, idle_s: float = limits.IDLE_TIMEOUT_S) -> list[str]:
        """End every session that nobody touched for `idle_s` seconds; return their ids."""
        self._engine.check()
        self._deferred.settle()
        cutoff = requests.idle_cutoff_us(now, self._engine.now_us, idle_s)
        seen, ended = set[str](), list[str]()
        while True:
            rows = self._engine.store.query_projections(self._settings.tenant, requests.idle_sessions_query(cutoff))
            fresh = [row.id for row in rows if row.id not in seen]
            if not fresh:
                return ended
            seen.update(fresh)
            ended += [session_id for session_id in fresh if self._end_if_idle(session_id, cutoff)]

    def _end_if_idle(self, session_id: str, cutoff: int) -> bool:
        """End a session that is still idle; False if it was touched, ended or deleted meanwhile."""
        try:
            request = self._requests.end(session_id, EndReason.TIMEOUT, idle_since_us=cutoff)
            return self._run(request).state.end_reason is EndReason.TIMEOUT
        except errors.SessionNotFound:
            return False

    def check_session_boundary(self, session: Session | None = None) -> bool:
        """Whether the session (None: the current one) has reached its number of messages."""
        chosen = session or self.current_session
        return chosen is not None and self.is_at_boundary(chosen.state)

    def is_at_boundary(self, state: SessionState) -> bool:
        """Whether a state has reached the number of messages of a session."""
        return session_rules.is_full(state, self.max_messages_per_session)

    def create_continuation_session(self, source_session: Session | None = None, *, key: str | None = None) -> Session:
        """Go on in a new session that begins with the system and context messages of the source."""
        chosen = source_session or self.current_session
        if chosen is None:
            raise errors.NoCurrentSession
        answer = self._run(self._requests.continue_(chosen.id, key=key))
        return self._remember(self._handle(answer.state))

    def pending_calls(self, session_id: str) -> list[PendingCall]:
        """Return the tool calls that have no result yet, wherever the conversation is now."""
        return self.get_session(session_id).pending_calls()

    def close_pending_calls(
        self, session_id: str, *, call_ids: Sequence[str] | None = None, outcome: str = UNKNOWN_OUTCOME
    ) -> Session:
        """Close open calls (None: all) with an error result that says so; the session goes on."""
        state = self.conversation_end(session_rules.existing_state(self._find(session_id), session_id))
        message = self._requests.closing_message(state.open_calls, call_ids, outcome)
        if message is None:
            return self._handle(state)
        return self.add_messages(state.id, [message])

    def session_chain(self, session_id: str) -> list[Session]:
        """Return every session of the conversation, first to last, each once."""
        state = session_rules.existing_state(self._find(session_id), session_id)
        chain = [state]
        while before := self._before(chain[0]):
            chain.insert(0, before)
        while following := self._following(chain[-1]):
            chain.append(following)
        return [self._handle(part) for part in chain]

    def _before(self, state: SessionState) -> SessionState | None:
        found = self._find(state.continued_from) if state.continued_from else None
        return found if found and session_rules.is_continuation_of(state, found) else None

    def _following(self, state: SessionState) -> SessionState | None:
        found = (self._find(session_id) for session_id in reversed(state.continuations))
        return next((part for part in found if session_rules.is_continuation_of(part, state)), None)

    def chain_tokens(self, session_id: str) -> int:
        """Return the tokens of the whole conversation; what was carried over counts once."""
        chain = self.session_chain(session_id)
        return sum(session.state.tokens - session.state.carried_tokens for session in chain)

    def append_for_handle(
        self,
        session: Session,
        messages: Iterable[MessageLike],
        *,
        key: str | None,
        expected_version: int | None,
        window: Window | None,
        usage: int | None,
    ) -> SessionState | None:
        """Append for a handle; None if the write is deferred and the state is not known yet."""
        request = self._requests.add(
            session.last_known_id, messages, key=key, expected_version=expected_version, window=window, usage=usage
        )  # fmt: skip
        if self._settings.write == "deferred":
            self._deferred.add(request)
            return None
        return self._engine.run(request).state

    def state_after_writes(self, state: SessionState) -> SessionState:
        """Return the state once deferred writes to its session are through; raise what refused one, once."""
        self._deferred.wait(state.id)
        return self.conversation_end(self._find(state.id) or state)

    def conversation_end(self, state: SessionState) -> SessionState:
        """Return the state of the last session of a conversation."""
        while following := self._following(state):
            state = following
        return state

    def wait_for_writes(self) -> None:
        """Wait until deferred writes are through; what refused one is told to whoever asks for its session."""
        self._deferred.settle()

    def flush(self) -> None:
        """Wait for every deferred write; raise the first error among them."""
        self._deferred.wait_all()
