"""Tasks that hand ended histories to long-term memory.

`OffloadTask` queues a history before it advances its cursor, and removes the job after the log
records the offload. A crash leads to a repetition, which the engine recognises by its key.
`ReextractionTask` repeats extractions that used rules while the model was unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from limpet import errors
from limpet.core.rules import session_rules
from limpet.core.rules.session_rules import is_continuation_of
from limpet.core.values import commands, events
from limpet.core.values.json_values import Json
from limpet.core.values.memory_records import History, Said, Who
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.jobs import memory_queue
from limpet.jobs.memory_queue import OFFLOAD_TASK, OffloadJob, OffloadQueue, StoredJob
from limpet.jobs.tasks import AttemptFailure, FeedFollower, Heartbeat, Task, attempt
from limpet.memory.port import MemoryEngine
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX, decode_session_events, session_stream
from limpet.stores import port

_ENDING_KINDS = (events.SessionEndedEvent.kind, events.SessionResetEvent.kind)

_log = logging.getLogger("limpet.memory")


class IngestStatus(Protocol):
    """Whether a memory engine still has the histories that it has received."""

    def lost(self, tenant: str) -> bool:
        """Whether histories of a tenant may be lost."""
        ...

    def begin(self, tenant: str) -> None:
        """Record that all histories are sent again."""
        ...

    def count_ingested(self, tenant: str) -> None:
        """Count one more history."""
        ...

    def has_ingested(self, who: Who, session_id: str, key: str) -> bool:
        """Whether the engine has a history."""
        ...

    def used_fallback(self, who: Who, session_id: str, key: str) -> bool:
        """Whether facts of a history were extracted by rules because the model was unavailable."""
        ...


class OffloadTask(Task):
    """Sends ended generations of sessions that have an owner to long-term memory."""

    name = OFFLOAD_TASK

    def __init__(self, engine: Engine, memory: MemoryEngine, ingest_status: IngestStatus | None = None) -> None:
        self._engine = engine
        self._store = engine.store
        self._memory = memory
        self._ingest_status = ingest_status
        self._feed = FeedFollower(engine.store, self.name)

    def due(self, tenant: str) -> bool:
        """Whether the feed has new events, a job is due, or the engine has lost histories."""
        if self._feed.has_news(tenant):
            return True
        if self._ingest_status is not None and self._ingest_status.lost(tenant):
            return True
        return OffloadQueue(self._store, tenant).next_due(self._engine.now_us()) is not None

    def progress(self, tenant: str) -> Mapping[str, Json]:
        """Return the cursor, and how many histories wait or were given up."""
        waiting, dead = OffloadQueue(self._store, tenant).counts()
        return {**self._feed.progress(tenant), "waiting": waiting, "dead": dead}

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        """Process the next page of the feed, or send one history."""
        if self._ingest_status is not None and self._ingest_status.lost(tenant):
            self._feed.restart(tenant)
            self._ingest_status.begin(tenant)
            return True
        if self._feed.process_next(tenant, lambda page: self._add_jobs(tenant, page)):
            return True
        jobs = OffloadQueue(self._store, tenant)
        noted = jobs.next_due(self._engine.now_us())
        if noted is None:
            return False
        if jobs.is_dead(noted.job) or not self._is_needed(tenant, noted.job):
            jobs.remove(noted)
            return True
        outcome = attempt(lambda: self._hand_over(tenant, jobs, noted.job, beat))
        if isinstance(outcome, AttemptFailure):
            self._record_failure(tenant, jobs, noted, outcome)
        else:
            jobs.remove(noted)
        return True

    def _add_jobs(self, tenant: str, page: Sequence[port.StoredEvent]) -> None:
        """Queue the generations that ended in a page of the feed."""
        jobs = OffloadQueue(self._store, tenant)
        for stored in page:
            job = None
            if stored.kind in _ENDING_KINDS:
                job = self._ended_job(tenant, stored)
            elif stored.kind == events.SessionOffloadedEvent.kind and self._ingest_status is not None:
                job = self._lost_job(tenant, stored, self._ingest_status)
            if job is not None:
                jobs.add(job)

    def _ended_job(self, tenant: str, stored: port.StoredEvent) -> OffloadJob | None:
        """Return the job of an event that ended a generation; None if the session has no owner or was deleted."""
        session_id = stored.stream.removeprefix(SESSION_STREAM_PREFIX)
        state = self._engine.states.current(tenant, session_id)
        if state is None or state.user_id is None or stored.payload is None:
            return None
        (fact,) = decode_session_events(self._store, tenant, [stored])
        if isinstance(fact.event, events.SessionEndedEvent) and fact.event.reason is EndReason.DELETED:
            return None
        ended = self._ended_state(tenant, state, stored)
        if ended is None or session_rules.is_offloaded(state, ended.generation):
            return None
        return OffloadJob(
            session_id=session_id,
            generation=ended.generation,
            begin=self._begin_position(tenant, ended),
            version=stored.version - 1,
            position=stored.position,
            ended_us=stored.time_us,
        )

    def _lost_job(self, tenant: str, stored: port.StoredEvent, ingest_status: IngestStatus) -> OffloadJob | None:
        """Return the job of a generation that the engine has received and lost."""
        session_id = stored.stream.removeprefix(SESSION_STREAM_PREFIX)
        now = self._engine.states.current(tenant, session_id)
        if now is None or now.status is SessionStatus.DELETED or stored.payload is None:
            return None
        (fact,) = decode_session_events(self._store, tenant, [stored])
        if not isinstance(fact.event, events.SessionOffloadedEvent):
            return None
        if stored.version <= SessionEventSearch(self._store, tenant, now).version_before_creation():
            # The event is of an earlier session with this id, which was deleted.
            return None
        state = self._engine.states.at_version(tenant, session_id, stored.version - 1)
        while state is not None and state.generation > fact.event.generation:
            state = self._engine.states.at_version(tenant, session_id, state.began - 1)
        if state is None or state.user_id is None or not state.uncarried_count:
            return None
        job = OffloadJob(
            session_id=session_id,
            generation=fact.event.generation,
            begin=self._begin_position(tenant, state),
            version=state.version,
            position=stored.position,
            ended_us=state.active_us,
        )
        return None if ingest_status.has_ingested(Who(tenant, state.user_id), session_id, job.key) else job

    def _ended_state(self, tenant: str, now: SessionState, stored: port.StoredEvent) -> SessionState | None:
        """Return a state of the generation that an event ended."""
        if stored.version > now.began:
            return now
        return self._engine.states.at_version(tenant, now.id, stored.version - 1)

    def _begin_position(self, tenant: str, state: SessionState) -> int:
        """Return the position of the session's first own event in a generation: unique in the log."""
        forked = state.forked_from[1] if state.forked_from else 0
        after = max(state.began - 1, forked)
        found = self._store.read(
            tenant, session_stream(state.id), after=after, until=state.version, limit=1,
            at=state.version,
        )  # fmt: skip
        if not found:
            raise errors.Corrupt("a session's log ends early.", facts={"session": state.id})
        return found[0].position

    def _is_needed(self, tenant: str, job: OffloadJob) -> bool:
        state = self._engine.states.current(tenant, job.session_id)
        if state is None or state.status is SessionStatus.DELETED:
            return False
        if not session_rules.is_offloaded(state, job.generation):
            return True
        # The log says that memory has received it, so it is needed only if memory has lost it.
        return (
            self._ingest_status is not None
            and state.user_id is not None
            and not self._ingest_status.has_ingested(Who(tenant, state.user_id), job.session_id, job.key)
        )

    def _hand_over(self, tenant: str, jobs: OffloadQueue, job: OffloadJob, beat: Heartbeat) -> None:
        state = self._engine.states.at_version(tenant, job.session_id, job.version)
        if state is None or state.generation != job.generation or state.user_id is None:
            raise errors.Corrupt("the log lacks a queued history.", facts={"key": job.key})
        self._add_source_job(tenant, jobs, job, state)
        if state.uncarried_count:
            history = memory_queue.history_of(tenant, job, state)
            memory_queue.remember_engine(self._store, tenant, self._memory.name)
            self._memory.ingest(history, memory_queue.read_history(self._store, tenant, state, beat))
            if self._ingest_status is not None:
                self._ingest_status.count_ingested(tenant)
                if self._ingest_status.used_fallback(history.who, history.session_id, history.key):
                    jobs.add_reextraction(job)
        beat()
        # The event comes after the ingestion: a crash between them repeats it, and the engine knows its key.
        command = commands.OffloadSession(
            session_id=job.session_id, generation=job.generation, engine=self._memory.name
        )
        try:
            self._engine.run(commands.CommandRequest(tenant=tenant, command=command))
        except errors.SessionNotFound:
            # Deleted or erased since: the erasure's hook may have run before this history arrived.
            self._memory.forget(Who(tenant, state.user_id), job.session_id)

    def _add_source_job(self, tenant: str, jobs: OffloadQueue, job: OffloadJob, state: SessionState) -> None:
        """Queue the session that this one continues: its part of the conversation has ended, too."""
        if state.continued_from is None:
            return
        source = self._engine.states.current(tenant, state.continued_from)
        if source is not None and is_continuation_of(state, source):
            jobs.add(
                OffloadJob(
                    session_id=source.id,
                    generation=source.generation,
                    begin=self._begin_position(tenant, source),
                    version=source.version,
                    position=job.position,
                    ended_us=job.ended_us,
                )
            )

    def _record_failure(self, tenant: str, jobs: OffloadQueue, noted: StoredJob, failed: AttemptFailure) -> None:
        useless = isinstance(failed.error, errors.Refused)
        dead = jobs.record_failure(noted, failed.code, self._engine.now_us(), useless=useless)
        _log.warning(
            "memory did not take a history",
            extra={
                "action": "offload.dead" if dead else "offload.failed", "tenant": tenant,
                "session": noted.job.session_id, "generation": noted.job.generation,
                "tries": noted.job.tries + 1, "error": failed.code,
            },
        )  # fmt: skip


class SupportsReextraction(Protocol):
    """A memory that can extract facts from a history again."""

    def redo(self, history: History, said: Iterable[Sequence[Said]]) -> bool:
        """Extract facts with the model instead of the rules; return whether that succeeded."""
        ...


class ReextractionTask(Task):
    """Extracts facts with the model from histories for which rules were used."""

    name = "redo"

    def __init__(self, engine: Engine, memory: SupportsReextraction) -> None:
        self._engine = engine
        self._store = engine.store
        self._memory = memory

    def due(self, tenant: str) -> bool:
        """Whether a history waits."""
        return bool(OffloadQueue(self._store, tenant).reextractions(limit=1))

    def progress(self, tenant: str) -> Mapping[str, Json]:
        """Return how many histories wait."""
        return {"waiting": len(OffloadQueue(self._store, tenant).reextractions())}

    def step(self, tenant: str, beat: Heartbeat) -> bool:
        """Process one history, of those with the fewest failures."""
        jobs = OffloadQueue(self._store, tenant)
        noted = min(jobs.reextractions(), key=lambda one: one.job.tries, default=None)
        if noted is None:
            return False
        outcome = attempt(lambda: self._reextract(tenant, noted.job, beat))
        if isinstance(outcome, AttemptFailure):
            jobs.record_reextraction_failure(noted, outcome.code)
            raise outcome.error
        jobs.remove(noted)
        return True

    def _reextract(self, tenant: str, job: OffloadJob, beat: Heartbeat) -> None:
        now = self._engine.states.current(tenant, job.session_id)
        if now is None or now.status is SessionStatus.DELETED:
            return
        state = self._engine.states.at_version(tenant, job.session_id, job.version)
        if state is None or state.generation != job.generation or state.user_id is None:
            return
        chunks = memory_queue.read_history(self._store, tenant, state, beat)
        if not self._memory.redo(memory_queue.history_of(tenant, job, state), chunks):
            raise errors.Unavailable("the model finds no facts now; those found by rules stay.")
