"""Summaries that are written in the background: of messages that cuts have taken out and nobody wrote of yet.

Sentences that were taken out of what was said, or nothing, stand in for a summary until it is there. A model is
asked outside of any turn; its text is taken only if what it stands for is as it was read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from limpet import errors, limits
from limpet.core.values import events as e
from limpet.core.values.json_values import Json
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.engine import attempts
from limpet.engine.attempts import Failed, attempt
from limpet.engine.cursors import Follower
from limpet.engine.jobs import digest
from limpet.engine.tasks import Beat, Task
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX
from limpet.sessions import window_requests
from limpet.sessions.session_view import MessageReader
from limpet.sessions.window_requests import Summarizer
from limpet.stores import port

WANTED = "summary/todo/"

_KINDS = (
    e.WindowCutEvent.kind, e.SessionSummarizedEvent.kind, e.SessionForkedEvent.kind, e.SessionRewoundEvent.kind,
)  # fmt: skip
"""Events after which messages may be out that no written summary stands for."""

_log = logging.getLogger("limpet.summaries")


class Unwritten(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session to be summarised, since the event at a position."""

    session_id: str
    position: int
    tries: int = 0
    retry_us: int = 0
    error: str = ""


class Summarizing:
    """The task that has summaries written by a summariser, one for each session that needs one."""

    def __init__(self, engine: Engine, summarizer: Summarizer) -> None:
        window_requests.checked_summary_language(summarizer, "en")
        self._engine = engine
        self._store = engine.store
        self._summarizer = summarizer
        self._feed = Follower(engine.store, self.name)

    @property
    def name(self) -> str:
        """What it is called."""
        return "summarize"

    def due(self, tenant: str) -> bool:
        """Whether the log has gone on, or a summary's time has come."""
        return self._feed.news(tenant) or self._next(tenant) is not None

    def told(self, tenant: str) -> Mapping[str, Json]:
        """Return how far the log was read, and how many sessions wait."""
        waiting = list(self._waiting(tenant))
        failing = sum(1 for _, _, one in waiting if one.tries)
        return {**self._feed.told(tenant), "waiting": len(waiting), "failing": failing}

    def step(self, tenant: str, beat: Beat) -> bool:
        """Read on in the log, or have one summary written."""
        if self._feed.follow(tenant, lambda page: self._look(tenant, page)):
            return True
        found = self._next(tenant)
        if found is None:
            return False
        name, version, one = found
        beat()
        outcome = attempt(lambda: self._summarize(tenant, one.session_id))
        conflict = isinstance(outcome, Failed) and isinstance(outcome.error, errors.Conflict)
        wanted = self._wanted(tenant, one.session_id)
        if isinstance(outcome, Failed) and (wanted or not conflict):
            self._failed(tenant, name, version, one, outcome)
        elif not wanted:
            # If that fails, somebody has noted it anew since it was read.
            self._store.put_note(tenant, name, None, expected=version)
        return True

    def _look(self, tenant: str, page: Sequence[port.StoredEvent]) -> None:
        """Note the sessions that a part of the log leaves without a written summary."""
        touched = {
            stored.stream.removeprefix(SESSION_STREAM_PREFIX): stored.position
            for stored in page
            if stored.kind in _KINDS
        }
        for session_id, position in touched.items():
            if self._wanted(tenant, session_id):
                self._note(tenant, Unwritten(session_id, position))

    def _note(self, tenant: str, one: Unwritten) -> None:
        """Note a session; one that is noted already is noted anew, so that nobody who has read it drops it."""
        name = WANTED + digest(one.session_id)
        before = self._store.note(tenant, name)
        if before is not None:
            old = _read(before.value)
            one = msgspec.structs.replace(
                one, tries=old.tries, retry_us=old.retry_us, error=old.error
            )
        version = before.version if before else 0
        self._store.put_note(tenant, name, msgspec.json.encode(one), expected=version)

    def _wanted(self, tenant: str, session_id: str) -> SessionState | None:
        """Return a session of which messages are out that no written summary stands for."""
        state = self._engine.states.current(tenant, session_id)
        if state is None or state.status is not SessionStatus.ACTIVE or state.cut is None:
            return None
        return state if window_requests.needs_written_summary(state) else None

    def _summarize(self, tenant: str, session_id: str) -> None:
        state = self._wanted(tenant, session_id)
        out = window_requests.unsummarized_messages(MessageReader(self._engine, tenant, state), state, written=True) if state else None  # fmt: skip
        if state is None or out is None:
            return
        language = window_requests.checked_summary_language(self._summarizer, None, state.policy)
        text = window_requests.checked_summary_text(self._summarizer(out.messages, out.before))
        author = window_requests.author_of(self._summarizer)
        try:
            self._engine.run(out.summarized(tenant, text, language, author))
        except (errors.SessionEnded, errors.SessionNotFound):
            # There is nobody left to read it.
            return

    def _failed(self, tenant: str, name: str, version: int, one: Unwritten, failed: Failed) -> None:
        tries = one.tries + 1
        retry = self._engine.now_us() + attempts.backoff_us(tries)
        noted = msgspec.structs.replace(one, tries=tries, retry_us=retry, error=failed.code)
        self._store.put_note(tenant, name, msgspec.json.encode(noted), expected=version)
        if isinstance(failed.error, errors.Conflict):
            # The session went on meanwhile: nobody's fault, but paid for, so it is not asked for again at once.
            return
        _log.warning(
            "a summary was not written",
            extra={
                "action": "summary.failed", "tenant": tenant, "session": one.session_id,
                "tries": tries, "error": failed.code,
            },
        )  # fmt: skip

    def _next(self, tenant: str) -> tuple[str, int, Unwritten] | None:
        now = self._engine.now_us()
        return next(
            (one for one in self._waiting(tenant) if attempts.due(one[2].retry_us, now)), None
        )

    def _waiting(self, tenant: str) -> Iterator[tuple[str, int, Unwritten]]:
        after = ""
        while page := self._store.notes(tenant, WANTED, after=after, limit=limits.READ_CHUNK):
            for name, note in page:
                yield name, note.version, _read(note.value)
            after = page[-1][0]


def _read(value: bytes) -> Unwritten:
    try:
        return msgspec.json.decode(value, type=Unwritten)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a noted summary can't be read.") from error


_: type[Task] = Summarizing
