"""Tasks that hand ended histories to long-term memory.

`OffloadTask` queues a history before it advances its cursor, and removes the job after the log
records the offload. A crash leads to a repetition, which the engine recognises by its key.
`ReextractionTask` repeats extractions that used rules while the model was unavailable.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from limpet import errors, limits
from limpet.core.rules import session_rules
from limpet.core.rules.session_rules import is_continuation_of
from limpet.core.values import commands, events
from limpet.core.values.memory_records import ArchivedMessage, History, TenantUser
from limpet.core.values.session_state import EndReason, SessionState, SessionStatus
from limpet.core.values.validation import Json
from limpet.jobs import tasks
from limpet.jobs.tasks import AttemptFailure, FeedFollower, Heartbeat, LeaseLost, Task, attempt, short_digest
from limpet.memory.port import MemoryEngine
from limpet.runtime.engine import Engine
from limpet.runtime.event_reader import SessionEventSearch
from limpet.runtime.state_cache import SESSION_STREAM_PREFIX, decode_session_events, session_stream
from limpet.stores import port

if TYPE_CHECKING:
    from limpet.memory.builtin import BuiltInMemory
    from limpet.memory.index_store import IngestTracker

_ENDING_KINDS = (events.SessionEndedEvent.kind, events.SessionResetEvent.kind)

_log = logging.getLogger("limpet.memory")

OFFLOAD_TASK = "offload"
WAITING_PREFIX = "offload/job/"
DEAD_PREFIX = "offload/dead/"
REEXTRACTION_PREFIX = "offload/stand-in/"
QUEUE_PREFIXES = (WAITING_PREFIX, DEAD_PREFIX, REEXTRACTION_PREFIX)


class OffloadJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A generation of a session that ended: memory is to receive its history up to `version`.

    `position` is that of the ending event: memory receives histories in the order in which they ended.
    `begin` is the position of the first event; older versions did not store it, so it is 0 in their notes.
    """

    session_id: str
    generation: int
    version: int
    position: int
    ended_us: int
    begin: int = 0
    tries: int = 0
    retry_us: int = 0
    error: str = ""

    @property
    def key(self) -> str:
        """An idempotency key: the same for every try, and for no other history of the tenant."""
        named = f"{self.session_id}#{self.generation}"
        # A new session may have the id of an erased one, with its generations counted from 0.
        return f"{named}@{self.begin}" if self.begin else named

    @property
    def note_name(self) -> str:
        return f"{WAITING_PREFIX}{self.position:016x}.{short_digest(self.key)}"


class StoredJob(msgspec.Struct, frozen=True):
    """A job with the name and the version of its note."""

    name: str
    version: int
    job: OffloadJob


class QueuedOffload(msgspec.Struct, frozen=True, kw_only=True):
    """A history that long-term memory has not received: it is tried again, or was given up (`dead`)."""

    key: str
    session_id: str
    generation: int
    tries: int
    error: str | None
    retry_us: int | None
    dead: bool


class OffloadQueue:
    """The jobs of one tenant."""

    def __init__(self, store: port.Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    def add(self, job: OffloadJob) -> None:
        """Add a job, unless its note exists."""
        self._store.put_note(self._tenant, job.note_name, msgspec.json.encode(job), expected=0)

    def next_due(self, now_us: int) -> StoredJob | None:
        found = self._stored_jobs(WAITING_PREFIX)
        return next((one for one in found if tasks.retry_is_due(one.job.retry_us, now_us)), None)

    def remove(self, noted: StoredJob) -> None:
        """Remove a job; raise LeaseLost if another worker has changed it."""
        self._put_note(noted.name, None, noted.version)

    def record_failure(self, noted: StoredJob, code: str, now_us: int, *, useless: bool) -> bool:
        """Record a failed try; return True if the job is given up: a retry is `useless`, or it has failed too often."""
        job, tries = noted.job, noted.job.tries + 1
        failed = msgspec.structs.replace(job, tries=tries, retry_us=now_us + tasks.backoff_us(tries), error=code)
        if not useless and tries < limits.OFFLOAD_TRIES_MAX:
            self._put_note(noted.name, failed, noted.version)
            return False
        name = DEAD_PREFIX + short_digest(job.key)
        self._put_note(name, failed, self._note_version(name))
        self.remove(noted)
        return True

    def is_dead(self, job: OffloadJob) -> bool:
        """Whether a job was given up, and waits for replay()."""
        return bool(self._note_version(DEAD_PREFIX + short_digest(job.key)))

    def add_reextraction(self, job: OffloadJob) -> None:
        """Queue a history whose facts were extracted by rules because the model was unavailable."""
        anew = msgspec.structs.replace(job, tries=0, retry_us=0, error="")
        name = REEXTRACTION_PREFIX + short_digest(job.key)
        self._store.put_note(self._tenant, name, msgspec.json.encode(anew), expected=0)

    def reextractions(self, limit: int | None = None) -> list[StoredJob]:
        """Return the histories, at most `limit`, that wait for an extraction with a model."""
        return list(itertools.islice(self._stored_jobs(REEXTRACTION_PREFIX), limit))

    def record_reextraction_failure(self, noted: StoredJob, code: str) -> None:
        """Record that the model has failed again; after too many failures the facts of the rules stay."""
        tries = noted.job.tries + 1
        failed = msgspec.structs.replace(noted.job, tries=tries, error=code)
        left = failed if tries < limits.REEXTRACTION_TRIES_MAX else None
        self._put_note(noted.name, left, noted.version)

    def replay(self, key: str | None = None) -> int:
        """Queue given-up jobs again, all or the one with a key; return how many."""
        count = 0
        for noted in list(self._stored_jobs(DEAD_PREFIX)):
            job = noted.job
            if key not in (None, job.key):
                continue
            self.add(msgspec.structs.replace(job, tries=0, retry_us=0, error=""))
            count += self._store.put_note(self._tenant, noted.name, None, expected=noted.version)
        return count

    def queued(self) -> list[QueuedOffload]:
        """Return every job; those that were given up come last."""
        waiting = (_queued_offload(each.job, dead=False) for each in self._stored_jobs(WAITING_PREFIX))
        dead = (_queued_offload(each.job, dead=True) for each in self._stored_jobs(DEAD_PREFIX))
        return [*waiting, *dead]

    def _stored_jobs(self, prefix: str) -> Iterator[StoredJob]:
        for name, note in tasks.iter_notes(self._store, self._tenant, prefix):
            job = tasks.decode_note(note.value, OffloadJob, "a queued history")
            yield StoredJob(name, note.version, job)

    def _note_version(self, name: str) -> int:
        found = self._store.note(self._tenant, name)
        return found.version if found else 0

    def _put_note(self, name: str, job: OffloadJob | None, version: int) -> None:
        value = None if job is None else msgspec.json.encode(job)
        if not self._store.put_note(self._tenant, name, value, expected=version):
            raise LeaseLost("another worker has changed this job")


def _queued_offload(job: OffloadJob, *, dead: bool) -> QueuedOffload:
    return QueuedOffload(
        key=job.key, session_id=job.session_id, generation=job.generation, tries=job.tries,
        error=job.error or None, retry_us=None if dead else job.retry_us or None, dead=dead,
    )  # fmt: skip


def history_of(tenant: str, job: OffloadJob, state: SessionState) -> History:
    """Return the description of a generation for a memory engine; `state` is the one in which it ended."""
    return History(
        key=job.key, user=TenantUser(tenant, state.user_id or ""), session_id=job.session_id, generation=job.generation,
        messages=state.uncarried_count, ended_us=job.ended_us, title=state.title or state.preview,
    )  # fmt: skip


def read_history(
    store: port.Store, tenant: str, state: SessionState, beat: Heartbeat
) -> Iterator[list[ArchivedMessage]]:
    """Yield the messages of a generation in chunks, without those that were carried over from another session."""
    stream, after, number = session_stream(state.id), state.began, 0
    while after < state.version:
        beat()
        page = store.read(tenant, stream, after=after, until=state.version, limit=limits.READ_CHUNK, at=state.version)
        if not page:
            raise errors.Corrupt("a session's log ends early.", facts={"session": state.id})
        after = page[-1].version
        added = [stored for stored in page if stored.kind == events.MessageAddedEvent.kind]
        numbers = {stored.version: number + at for at, stored in enumerate(added, start=1)}
        number += len(added)
        whole = [stored for stored in added if stored.payload is not None]
        chunk = [
            ArchivedMessage(
                position=fact.position, session_id=state.id, generation=state.generation,
                number=numbers[fact.version], time_us=fact.time_us, message=fact.event.message,
            )
            for fact in decode_session_events(store, tenant, whole)
            if isinstance(fact.event, events.MessageAddedEvent) and fact.event.message.origin is None
        ]  # fmt: skip
        if chunk:
            yield chunk


class OffloadTask(Task):
    """Sends ended generations of sessions that have an owner to long-term memory."""

    name = OFFLOAD_TASK

    def __init__(self, engine: Engine, memory: MemoryEngine, ingest_status: IngestTracker | None = None) -> None:
        self._engine = engine
        self._store = engine.store
        self._memory = memory
        self._ingest_status = ingest_status
        self._feed = FeedFollower(engine.store, self.name)

    def due(self, tenant: str) -> bool:
        if self._feed.has_news(tenant):
            return True
        if self._ingest_status is not None and self._ingest_status.lost(tenant):
            return True
        return OffloadQueue(self._store, tenant).next_due(self._engine.now_us()) is not None

    def progress(self, tenant: str) -> Mapping[str, Json]:
        dead = [job.dead for job in OffloadQueue(self._store, tenant).queued()]
        return {**self._feed.progress(tenant), "waiting": len(dead) - sum(dead), "dead": sum(dead)}

    def step(self, tenant: str, beat: Heartbeat) -> bool:
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
        is_current = stored.version > state.began
        ended = state if is_current else self._engine.states.at_version(tenant, session_id, stored.version - 1)
        if ended is None or session_rules.is_offloaded(state, ended.generation):
            return None
        return self._job(tenant, ended, stored.version - 1, stored.position, stored.time_us)

    def _lost_job(self, tenant: str, stored: port.StoredEvent, ingest_status: IngestTracker) -> OffloadJob | None:
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
        job = self._job(tenant, state, state.version, stored.position, state.active_us)
        return None if ingest_status.has_ingested(TenantUser(tenant, state.user_id), session_id, job.key) else job

    def _job(self, tenant: str, state: SessionState, version: int, position: int, ended_us: int) -> OffloadJob:
        return OffloadJob(
            session_id=state.id, generation=state.generation, begin=self._begin_position(tenant, state),
            version=version, position=position, ended_us=ended_us,
        )  # fmt: skip

    def _begin_position(self, tenant: str, state: SessionState) -> int:
        """Return the position of the session's first own event in a generation: unique in the log."""
        forked = state.forked_from[1] if state.forked_from else 0
        after = max(state.began - 1, forked)
        stream = session_stream(state.id)
        found = self._store.read(tenant, stream, after=after, until=state.version, limit=1, at=state.version)
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
            and not self._ingest_status.has_ingested(TenantUser(tenant, state.user_id), job.session_id, job.key)
        )

    def _hand_over(self, tenant: str, jobs: OffloadQueue, job: OffloadJob, beat: Heartbeat) -> None:
        state = self._engine.states.at_version(tenant, job.session_id, job.version)
        if state is None or state.generation != job.generation or state.user_id is None:
            raise errors.Corrupt("the log lacks a queued history.", facts={"key": job.key})
        self._add_source_job(tenant, jobs, job, state)
        if state.uncarried_count:
            history = history_of(tenant, job, state)
            tasks.remember_engine(self._store, tenant, self._memory.name)
            self._memory.ingest(history, read_history(self._store, tenant, state, beat))
            if self._ingest_status is not None:
                self._ingest_status.count_ingested(tenant)
                if self._ingest_status.used_fallback(history.user, history.session_id, history.key):
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
            self._memory.forget(TenantUser(tenant, state.user_id), job.session_id)

    def _add_source_job(self, tenant: str, jobs: OffloadQueue, job: OffloadJob, state: SessionState) -> None:
        """Queue the session that this one continues: its part of the conversation has ended, too."""
        if state.continued_from is None:
            return
        source = self._engine.states.current(tenant, state.continued_from)
        if source is not None and is_continuation_of(state, source):
            jobs.add(self._job(tenant, source, source.version, job.position, job.ended_us))

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


class ReextractionTask(Task):
    """Extracts facts with the model from histories for which rules were used."""

    name = "redo"

    def __init__(self, engine: Engine, memory: BuiltInMemory) -> None:
        self._engine = engine
        self._store = engine.store
        self._memory = memory

    def due(self, tenant: str) -> bool:
        return bool(OffloadQueue(self._store, tenant).reextractions(limit=1))

    def progress(self, tenant: str) -> Mapping[str, Json]:
        return {"waiting": len(OffloadQueue(self._store, tenant).reextractions())}

    def step(self, tenant: str, beat: Heartbeat) -> bool:
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
        chunks = read_history(self._store, tenant, state, beat)
        if not self._memory.redo(history_of(tenant, job, state), chunks):
            raise errors.Unavailable("the model finds no facts now; those found by rules stay.")
