"""Asking the model again about histories that rules had to be asked about, because it was away.

What the rules have found stands until the model has found something. Every failure leaves the whole task alone
for a while, longer each time (`leases.py`), so that a model that is away is asked about one history now and then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from limpet import errors
from limpet.core.values.json_values import Json
from limpet.core.values.memory_records import History, Said
from limpet.core.values.session_state import SessionStatus
from limpet.engine import histories
from limpet.engine.attempts import Failed, attempt
from limpet.engine.jobs import Job, Jobs
from limpet.engine.tasks import Beat, Task
from limpet.runtime.engine import Engine


class Redoes(Protocol):
    """A memory that can take a history again."""

    def redo(self, history: History, said: Iterable[Sequence[Said]]) -> bool:
        """Have the model look where rules stood in; return whether nothing stands in any more."""
        ...


class Redoing:
    """The task that has a model find the facts for which rules stand in."""

    def __init__(self, engine: Engine, memory: Redoes) -> None:
        self._engine = engine
        self._store = engine.store
        self._memory = memory

    @property
    def name(self) -> str:
        """What it is called."""
        return "redo"

    def due(self, tenant: str) -> bool:
        """Whether rules stand in somewhere."""
        return bool(Jobs(self._store, tenant).stand_ins(limit=1))

    def told(self, tenant: str) -> Mapping[str, Json]:
        """Return in how many histories rules stand in."""
        return {"waiting": len(Jobs(self._store, tenant).stand_ins())}

    def step(self, tenant: str, beat: Beat) -> bool:
        """Have the model look at one history: one that it has failed at least often."""
        jobs = Jobs(self._store, tenant)
        noted = min(jobs.stand_ins(), key=lambda one: one.job.tries, default=None)
        if noted is None:
            return False
        outcome = attempt(lambda: self._redo(tenant, noted.job, beat))
        if isinstance(outcome, Failed):
            jobs.stands_still(noted, outcome.code)
            raise outcome.error
        jobs.done(noted)
        return True

    def _redo(self, tenant: str, job: Job, beat: Beat) -> None:
        now = self._engine.states.current(tenant, job.session_id)
        if now is None or now.status is SessionStatus.DELETED:
            return
        state = self._engine.states.at(tenant, job.session_id, job.version)
        if state is None or state.generation != job.generation or state.user_id is None:
            return
        said = histories.said(self._store, tenant, state, beat)
        if not self._memory.redo(histories.history(tenant, job, state), said):
            raise errors.Unavailable("the model finds no facts now; what rules have found stands.")


_: type[Task] = Redoing
