"""The queue of histories for long-term memory, stored in notes.

A history waits, was given up, or is to be extracted again with a model. The module also reads the
messages of a history and keeps the list of memory engines that have received any.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec

from limpet import errors, limits
from limpet.core.values import events
from limpet.core.values.memory_records import History, Said, Who
from limpet.core.values.session_state import SessionState
from limpet.jobs import tasks
from limpet.jobs.tasks import Heartbeat, LeaseLost
from limpet.runtime.state_cache import decode_session_events, session_stream
from limpet.stores import port

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


def short_digest(key: str) -> str:
    """Return a short name for a key of any length."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class _SessionNote(msgspec.Struct):
    session_id: str = ""


def drop_notes_of_missing_sessions(
    store: port.Store, tenant: str, prefixes: Sequence[str], exists: Callable[[str], bool]
) -> int:
    """Drop notes about sessions that no longer exist; return how many."""
    dropped = 0
    for prefix in prefixes:
        for name, note in tasks.iter_notes(store, tenant, prefix):
            about = tasks.decode_note(note.value, _SessionNote, "a note about a session")
            if not exists(about.session_id):
                dropped += store.put_note(tenant, name, None, expected=note.version)
    return dropped


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
        who=Who(tenant, state.user_id or ""),
        session_id=job.session_id,
        generation=job.generation,
        messages=state.uncarried_count,
        ended_us=job.ended_us,
        title=state.title or state.preview,
    )


def read_history(store: port.Store, tenant: str, state: SessionState, beat: Heartbeat) -> Iterator[list[Said]]:
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
            Said(
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


ENGINES_NOTE = "memory/engines"


def known_engines(store: port.Store, tenant: str) -> frozenset[str]:
    """Return the names of the engines that have received a history."""
    return _read_engines(store, tenant)[0]


def remember_engine(store: port.Store, tenant: str, name: str) -> None:
    """Record that an engine is about to receive a history; raise Unavailable after too many concurrent changes."""
    for _ in range(limits.RETRIES_MAX):
        names, version = _read_engines(store, tenant)
        if name in names:
            return
        value = msgspec.json.encode(sorted({*names, name}))
        if store.put_note(tenant, ENGINES_NOTE, value, expected=version):
            return
    raise errors.Unavailable("other processes changed the list of memory engines at the same time; retry.")


def _read_engines(store: port.Store, tenant: str) -> tuple[frozenset[str], int]:
    note = store.note(tenant, ENGINES_NOTE)
    if note is None:
        return frozenset(), 0
    names = tasks.decode_note(note.value, list[str], "the list of memory engines")
    return frozenset(names), note.version
