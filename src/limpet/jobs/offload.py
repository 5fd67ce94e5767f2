"""Tasks that hand ended histories to long-term memory.

`OffloadTask` queues a history before it advances its cursor, and removes the job after the log
records the offload. A crash leads to a repetition, which the engine recognises by its key.
`ReextractionTask` repeats extractions that used rules while the model was unavailable.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

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
    `begin` is the position of the first event, 0 in notes of versions that did not write it.
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
        """The name of its note."""
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
        """Add a job, unless it is queued already."""
        self._store.put_note(self._tenant, job.note_name, msgspec.json.encode(job), expected=0)

    def next_due(self, now_us: int) -> StoredJob | None:
        """Return the first job that is due; None without any."""
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
        return [
            QueuedOffload(
                key=job.key,
                session_id=job.session_id,
                generation=job.generation,
                tries=job.tries,
                error=job.error or None,
                retry_us=None if dead else job.retry_us or None,
                dead=dead,
            )
            for dead, prefix in ((False, WAITING_PREFIX), (True, DEAD_PREFIX))
            for job in (one.job for one in self._stored_jobs(prefix))
        ]

    def counts(self) -> tuple[int, int]:
        """Return the number of waiting jobs, and of those that were given up."""
        return sum(1 for _ in self._stored_jobs(WAITING_PREFIX)), sum(1 for _ in self._stored_jobs(DEAD_PREFIX))

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


def history_of(tenant: str, job: OffloadJob, state: SessionState) -> History:
    """Return the description of a generation for a memory engine; `state` is the one in which it ended."""
    return History(
        key=job.key,
        user=TenantUser(tenant, state.user_id or ""),
        session_id=job.session_id,
        generation=job.generation,
        messages=state.uncarried_count,
        ended_us=job.ended_us,
        title=state.title or state.preview,
    )


def read_history(
    store: port.Store, tenant: str, state: SessionState, beat: Heartbeat
) -> Iterator[list[ArchivedMessage]]:
    """Yield the messages of a generation in chunks, without those that were carried over from another session."""
    stream, after, number = session_stream(state.id), state.began, 0
    while after < state.version:
        beat()
        page = store.read(
            tenant, stream, after=after, until=state.version, limit=limits.READ_CHUNK,
            at=state.version,
        )  # fmt: skip
        if not page:
            raise errors.Corrupt("a session's log ends early.", facts={"session": state.id})
        after = page[-1].version
        added = [stored for stored in page if stored.kind == events.MessageAddedEvent.kind]
        numbers = {stored.version: number + at for at, stored in enumerate(added, start=1)}
        number += len(added)
        whole = [stored for stored in added if stored.payload is not None]
        chunk = [
            ArchivedMessage(
                position=fact.position,
                session_id=state.id,
                generation=state.generation,
                number=numbers[fact.version],
                time_us=fact.time_us,
                message=fact.event.message,
            )
            for fact in decode_session_events(store, tenant, whole)
            if isinstance(fact.event, events.MessageAddedEvent) and fact.event.message.origin is None
        ]
        if chunk:
            yield chunk


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

    def has_ingested(self, user: TenantUser, session_id: str, key: str) -> bool:
        """Whether the engine has a history."""
        ...

    def used_fallback(self, user: TenantUser, session_id: str, key: str) -> bool:
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
        return None if ingest_status.has_ingested(TenantUser(tenant, state.user_id), session_id, job.key) else job

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

    def redo(self, history: History, messages: Iterable[Sequence[ArchivedMessage]]) -> bool:
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
        chunks = read_history(self._store, tenant, state, beat)
        if not self._memory.redo(history_of(tenant, job, state), chunks):
            raise errors.Unavailable("the model finds no facts now; those found by rules stay.")
