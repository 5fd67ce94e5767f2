"""Loads the profile of a user for a new session, within a time limit.

Each request runs in its own thread. While one is late, and for a pause after repeated failures, no
further request is made, so threads do not pile up behind an engine that does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import cast

import msgspec

from limpet import errors, limits
from limpet.core.values import commands as c
from limpet.core.values import memory_records
from limpet.core.values.memory_records import Profile, ProfilePrompt, TenantUser
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.core.values.validation import checked_int, checked_number
from limpet.jobs.tasks import AttemptFailure, attempt
from limpet.memory.port import MemoryEngine
from limpet.runtime.engine import Engine

_log = logging.getLogger("limpet.memory")

LastSession = Callable[[SessionState], SessionState]
"""From a session to the last one of its conversation."""


class Bootstrap:
    """Adds the profile of a user to commands that begin a session or its next generation."""

    def __init__(
        self,
        memory: MemoryEngine,
        *,
        tokens: int = limits.BOOTSTRAP_TOKENS,
        timeout_s: float = limits.BOOTSTRAP_TIMEOUT_S,
        language: str = "en",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        checked_int("bootstrap_tokens", tokens, unit="a number of tokens", hint="0: no profile is asked for.")
        checked_number("bootstrap_timeout_s", timeout_s, above=0, most=60, unit="a number of seconds")
        self._memory = memory
        self._tokens = tokens
        self._timeout_s = timeout_s
        self._language = memory_records.checked_language(language)
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self._requests: dict[int, float] = {}
        self._request_count = 0
        self._failures = 0
        self._rests_until = 0.0

    def with_profile(self, engine: Engine, request: c.CommandRequest, last: LastSession) -> c.CommandRequest:
        """Return a request whose command has the profile of its user; the same request if there is no profile."""
        command = request.command
        if not isinstance(command, (c.CreateSession, c.ResetSession)):
            return request
        if request.key is not None and engine.store.find_key(request.tenant, request.key):
            return request
        state = engine.states.current(request.tenant, command.session_id)
        user_id = _new_session_user(command, state, last)
        opening = self.opening(TenantUser(request.tenant, user_id)) if user_id is not None else None
        if opening is None:
            return request
        filled = msgspec.structs.replace(command, opening=opening)
        return msgspec.structs.replace(request, command=filled)

    def opening(self, user: TenantUser) -> ProfilePrompt | None:
        """Return the profile of a user as part of a prompt; None if it is empty or the engine is late or fails."""
        budget = memory_records.profile_tokens_left(self._tokens, self._language)
        number = self._begin_request() if budget else None
        if number is None:
            return None
        profile = self._answer(number, user, budget)
        if isinstance(profile, AttemptFailure):
            self._count_failure(user, profile)
            return None
        self._failures = 0
        return memory_records.fit_profile(profile, self._memory.name, budget=self._tokens, language=self._language)

    def _begin_request(self) -> int | None:
        """Register a request and return its number; None if no request may be made now."""
        now = self._monotonic()
        with self._mutex:
            late = any(now - since > self._timeout_s for since in self._requests.values())
            if late or now < self._rests_until:
                return None
            if len(self._requests) >= limits.BOOTSTRAP_REQUESTS_MAX:
                return None
            self._request_count += 1
            self._requests[self._request_count] = now
            return self._request_count

    def _answer(self, number: int, user: TenantUser, budget: int) -> Profile | AttemptFailure:
        answers: SimpleQueue[Profile | AttemptFailure] = SimpleQueue()

        def request() -> None:
            answers.put(self._profile(user, budget))
            with self._mutex:
                self._requests.pop(number, None)

        try:
            threading.Thread(target=request, name="limpet-profile", daemon=True).start()
            return answers.get(timeout=self._timeout_s)
        except Empty:
            return AttemptFailure(TimeoutError())
        except RuntimeError as error:
            # The thread could not be started, so no request is running.
            with self._mutex:
                self._requests.pop(number, None)
            return AttemptFailure(error)

    def _profile(self, user: TenantUser, budget: int) -> Profile | AttemptFailure:
        try:
            found = attempt(lambda: self._memory.profile(user, budget))
        except errors.Refused as error:
            return AttemptFailure(error)
        if isinstance(found, AttemptFailure) or isinstance(cast("object", found), Profile):
            return found
        return AttemptFailure(TypeError())

    def _count_failure(self, user: TenantUser, failed: AttemptFailure) -> None:
        with self._mutex:
            self._failures += 1
            if self._failures >= limits.BOOTSTRAP_FAILURES_MAX:
                self._failures = 0
                self._rests_until = self._monotonic() + limits.BOOTSTRAP_COOLDOWN_S
        _log.warning(
            "a session began without a profile",
            extra={"action": "bootstrap.failed", "tenant": user.tenant, "error": failed.code},
        )


def _new_session_user(
    command: c.CreateSession | c.ResetSession, state: SessionState | None, last: LastSession
) -> str | None:
    """Return the user of the session that a command begins; None if it begins none, or the session has no user."""
    existing = state if state is not None and state.status is not SessionStatus.DELETED else None
    if isinstance(command, c.ResetSession):
        return existing.user_id if existing else None
    if existing is None:
        return command.user_id
    if command.or_get and last(existing).status is not SessionStatus.ACTIVE:
        return existing.user_id
    return None
