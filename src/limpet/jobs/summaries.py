"""The task that writes summaries of messages which cuts removed from the window.

The summarizer is called outside any transaction. Its text is used only if the range that it
summarises has not changed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from limpet import errors
from limpet.core.values import events as e
from limpet.core.values.commands import CommandRequest
from limpet.core.values.session_state import SessionState, SessionStatus
from limpet.core.values.validation import Json
from limpet.jobs import tasks
from limpet.jobs.tasks import AttemptFailure, FeedFollower, Heartbeat, Task, attempt, short_digest
from limpet.runtime.engine import Engine
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX
from limpet.sessions import windows
from limpet.sessions.session import MessageReader
from limpet.sessions.windows import Summarizer
from limpet.stores import port

SUMMARY_PREFIX = "summary/todo/"

_TRIGGER_KINDS = (
    e.WindowCutEvent.kind, e.SessionSummarizedEvent.kind, e.SessionForkedEvent.kind, e.SessionRewoundEvent.kind,
)  # fmt: skip
"""Events after which messages may be cut from the window without a written summary."""

_log = logging.getLogger("limpet.summaries")


class PendingSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session that needs a summary because of the event at a position."""

    session_id: str
    position: int
    tries: int = 0
    retry_us: int = 0
    error: str = ""


class SummaryTask(Task):
    """Has a summarizer write the summaries of sessions that need one."""

    name = "summarize"

    def __init__(self, engine: Engine, summarizer: Summarizer) -> None:
        windows.checked_summary_language(summarizer, "en")
        self._engine = engine
        self._store = engine.store
        self._summarizer = summarizer
        self._feed = FeedFollower(engine.store, self.name)

    def due(self, tenant: str) -> bool:
        return self._feed.has_news(tenant) or self._next_due(tenant) is not None

    def progress(self, tenant: str) -> Mapping[str, Json]:
        waiting = [pending for _, _, pending in self._pending(tenant)]
        failing = sum(pending.tries > 0 for pending in waiting)
        return {**self._feed.progress(tenant), "waiting": len(waiting), "failing": failing}

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        if self._feed.process_next(tenant, lambda page: self._note_sessions(tenant, page)):
            return True
        found = self._next_due(tenant)
        if found is None:
            return False
        name, version, pending = found
        beat()
        outcome = attempt(lambda: self._summarize(tenant, pending.session_id))
        conflict = isinstance(outcome, AttemptFailure) and isinstance(outcome.error, errors.Conflict)
        wanted = self._session_to_summarize(tenant, pending.session_id)
        if isinstance(outcome, AttemptFailure) and (wanted or not conflict):
            self._record_failure(tenant, name, version, pending, outcome)
        elif not wanted:
            # Fails if the session was noted again since: then it needs another summary.
            self._store.put_note(tenant, name, None, expected=version)
        return True

    def _note_sessions(self, tenant: str, page: Sequence[port.StoredEvent]) -> None:
        positions = {stored.stream: stored.position for stored in page if stored.kind in _TRIGGER_KINDS}
        for stream, position in positions.items():
            session_id = stream.removeprefix(SESSION_STREAM_PREFIX)
            if self._session_to_summarize(tenant, session_id):
                self._put_pending(tenant, PendingSummary(session_id, position))

    def _put_pending(self, tenant: str, pending: PendingSummary) -> None:
        """Note a session. An existing note gets a new version, so that a step that read the old one does not drop it."""
        name, version = SUMMARY_PREFIX + short_digest(pending.session_id), 0
        if before := self._store.note(tenant, name):
            old, version = _decode_pending(before.value), before.version
            pending = msgspec.structs.replace(old, position=pending.position)
        self._store.put_note(tenant, name, msgspec.json.encode(pending), expected=version)

    def _session_to_summarize(self, tenant: str, session_id: str) -> SessionState | None:
        """Return an active session if cut messages lack a written summary; else None."""
        state = self._engine.states.current(tenant, session_id)
        if state is None or state.status is not SessionStatus.ACTIVE or state.cut is None:
            return None
        return state if windows.needs_written_summary(state) else None

    def _summarize(self, tenant: str, session_id: str) -> None:
        state = self._session_to_summarize(tenant, session_id)
        if state is None:
            return
        out = windows.unsummarized_messages(MessageReader(self._engine, tenant, state), state, self._summarizer, None)
        if out is None:
            return
        text = self._summarizer(out.messages, out.previous_text)
        try:
            self._engine.run(CommandRequest(tenant=tenant, command=out.summary_command(text)))
        except (errors.SessionEnded, errors.SessionNotFound):
            return

    def _record_failure(
        self, tenant: str, name: str, version: int, pending: PendingSummary, failed: AttemptFailure
    ) -> None:
        tries = pending.tries + 1
        retry = self._engine.now_us() + tasks.backoff_us(tries)
        noted = msgspec.structs.replace(pending, tries=tries, retry_us=retry, error=failed.code)
        self._store.put_note(tenant, name, msgspec.json.encode(noted), expected=version)
        if isinstance(failed.error, errors.Conflict):
            # The session changed meanwhile. Not worth a warning, but a model was paid: wait before the next try.
            return
        _log.warning(
            "a summary was not written",
            extra={
                "action": "summary.failed", "tenant": tenant, "session": pending.session_id,
                "tries": tries, "error": failed.code,
            },
        )  # fmt: skip

    def _next_due(self, tenant: str) -> tuple[str, int, PendingSummary] | None:
        now = self._engine.now_us()
        return next((found for found in self._pending(tenant) if tasks.retry_is_due(found[2].retry_us, now)), None)

    def _pending(self, tenant: str) -> Iterator[tuple[str, int, PendingSummary]]:
        for name, note in tasks.iter_notes(self._store, tenant, SUMMARY_PREFIX):
            yield name, note.version, _decode_pending(note.value)


def _decode_pending(value: bytes) -> PendingSummary:
    return tasks.decode_note(value, PendingSummary, "a queued summary")
