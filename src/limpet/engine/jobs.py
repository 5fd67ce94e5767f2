"""Histories on their way to long-term memory: a note for each, until it was taken; another list for what was given up."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec

from limpet import errors, limits
from limpet.engine import attempts
from limpet.engine.tasks import LeaseLost
from limpet.stores import port

TASK = "offload"
"""What the work of handing them over is called."""
WAITING = "offload/job/"
GIVEN_UP = "offload/dead/"
STAND_IN = "offload/stand-in/"


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A generation of a session that ended: its history up to `version` is to be handed over.

    `position` is that of the event that ended it: who ended first is handed over first. `begin` is that of
    the event that began it, 0 in notes of versions that did not write it.
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
        """The same whenever it is handed over again; no other conversation of the tenant has it."""
        named = f"{self.session_id}#{self.generation}"
        # A session that was erased may be there again, with its generations counted from 0.
        return f"{named}@{self.begin}" if self.begin else named

    @property
    def name(self) -> str:
        """The name of its note."""
        return f"{WAITING}{self.position:016x}.{digest(self.key)}"


class Noted(msgspec.Struct, frozen=True):
    """A job as it stands in a note."""

    name: str
    version: int
    job: Job


class QueuedOffload(msgspec.Struct, frozen=True, kw_only=True):
    """A history that long-term memory has not taken yet: what is tried again, and what was given up (`dead`)."""

    key: str
    session_id: str
    generation: int
    tries: int
    error: str | None
    retry_us: int | None
    dead: bool


def digest(key: str) -> str:
    """Return a short name for a key of any length."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class _About(msgspec.Struct):
    session_id: str = ""


def _about(value: bytes) -> _About:
    try:
        return msgspec.json.decode(value, type=_About)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a note about a session can't be read.") from error


def drop_gone(
    store: port.Store, tenant: str, prefixes: Sequence[str], is_there: Callable[[str], bool]
) -> int:
    """Drop notes that are about sessions which are not there any more; return how many."""
    dropped = 0
    for prefix in prefixes:
        after = ""
        while page := store.notes(tenant, prefix, after=after, limit=limits.READ_CHUNK):
            for name, note in page:
                if not is_there(_about(note.value).session_id):
                    dropped += store.put_note(tenant, name, None, expected=note.version)
            after = page[-1][0]
    return dropped


class Jobs:
    """The jobs of one tenant."""

    def __init__(self, store: port.Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    def add(self, job: Job) -> None:
        """Note a job, unless it is noted."""
        self._store.put_note(self._tenant, job.name, msgspec.json.encode(job), expected=0)

    def due(self, now_us: int) -> Noted | None:
        """Return the first job whose time has come."""
        found = self._noted(WAITING)
        return next((one for one in found if attempts.due(one.job.retry_us, now_us)), None)

    def done(self, noted: Noted) -> None:
        """Forget a job; raise LeaseLost if somebody else has changed it."""
        self._put(noted.name, None, noted.version)

    def again(self, noted: Noted, code: str, now_us: int, *, useless: bool) -> bool:
        """Note that a job has failed; return whether it is given up, because that was too often or it is `useless`."""
        job, tries = noted.job, noted.job.tries + 1
        failed = msgspec.structs.replace(
            job, tries=tries, retry_us=now_us + attempts.backoff_us(tries), error=code
        )
        if not useless and tries < limits.OFFLOAD_TRIES_MAX:
            self._put(noted.name, failed, noted.version)
            return False
        name = GIVEN_UP + digest(job.key)
        self._put(name, failed, self._version(name))
        self.done(noted)
        return True

    def given_up(self, job: Job) -> bool:
        """Whether somebody has to look at a job before it is tried again."""
        return bool(self._version(GIVEN_UP + digest(job.key)))

    def stood_in(self, job: Job) -> None:
        """Note that rules stood in for a model when a history was taken, unless that is noted."""
        anew = msgspec.structs.replace(job, tries=0, retry_us=0, error="")
        name = STAND_IN + digest(job.key)
        self._store.put_note(self._tenant, name, msgspec.json.encode(anew), expected=0)

    def stand_ins(self, limit: int | None = None) -> list[Noted]:
        """Return the histories, or some, in which rules stand in for a model."""
        return list(itertools.islice(self._noted(STAND_IN), limit))

    def stands_still(self, noted: Noted, code: str) -> None:
        """Note that a model has failed at a history again; after too many times what stands in is left to stand."""
        tries = noted.job.tries + 1
        failed = msgspec.structs.replace(noted.job, tries=tries, error=code)
        kept = failed if tries < limits.REEXTRACTION_TRIES_MAX else None
        self._put(noted.name, kept, noted.version)

    def replay(self, key: str | None = None) -> int:
        """Have a job, or all, that was given up tried again from the beginning; return how many."""
        count = 0
        for noted in list(self._noted(GIVEN_UP)):
            job = noted.job
            if key not in (None, job.key):
                continue
            self.add(msgspec.structs.replace(job, tries=0, retry_us=0, error=""))
            count += self._store.put_note(self._tenant, noted.name, None, expected=noted.version)
        return count

    def queue(self) -> list[QueuedOffload]:
        """Return every job, those given up last."""
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
            for dead, prefix in ((False, WAITING), (True, GIVEN_UP))
            for job in (one.job for one in self._noted(prefix))
        ]

    def counts(self) -> tuple[int, int]:
        """Return how many jobs wait, and how many were given up."""
        return sum(1 for _ in self._noted(WAITING)), sum(1 for _ in self._noted(GIVEN_UP))

    def _noted(self, prefix: str) -> Iterator[Noted]:
        after = ""
        while page := self._store.notes(self._tenant, prefix, after=after, limit=limits.READ_CHUNK):
            for name, note in page:
                yield Noted(name, note.version, _job(note.value))
            after = page[-1][0]

    def _version(self, name: str) -> int:
        found = self._store.note(self._tenant, name)
        return found.version if found else 0

    def _put(self, name: str, job: Job | None, version: int) -> None:
        value = None if job is None else msgspec.json.encode(job)
        if not self._store.put_note(self._tenant, name, value, expected=version):
            raise LeaseLost("another worker has this history in hand")


def _job(value: bytes) -> Job:
    try:
        return msgspec.json.decode(value, type=Job)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt("a noted offload can't be read.") from error
