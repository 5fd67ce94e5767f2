"""The background worker: runs steps of tasks for every tenant, under leases.

Any number of workers may run in any number of processes. A task that fails is retried after a
backoff and does not delay other tasks.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from limpet import errors, limits
from limpet.core.values.json_values import EMPTY, Json
from limpet.jobs import leases, tasks
from limpet.jobs.leases import HeldLease, LeaseRenewer, WorkerLeases
from limpet.jobs.tasks import AttemptFailure, LeaseLost, Task, attempt, backoff_us
from limpet.runtime.engine import Engine
from limpet.stores import store_copy

_log = logging.getLogger("limpet.worker")


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a task of a tenant: its lease's holder, its failures in a row, and its own progress (`told`)."""

    tenant: str
    task: str
    holder: str | None = None
    until_us: int | None = None
    failures: int = 0
    error: str | None = None
    retry_us: int | None = None
    told: Mapping[str, Json] = EMPTY


class Done(msgspec.Struct, frozen=True):
    """What a worker did: successful steps, failed steps, and tasks whose leases other workers hold."""

    steps: int = 0
    failures: int = 0
    held: int = 0


class Worker:
    """Runs tasks until it is stopped, for the named tenants; None: for all."""

    def __init__(
        self,
        engine: Engine,
        tasks: Sequence[Task],
        *,
        tenants: Sequence[str] | None = None,
        name: str = "worker",
        lease_s: float = limits.LEASE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._tasks = tuple(tasks)
        self._tenants = tenants
        self._monotonic = monotonic
        self._leases = WorkerLeases(
            engine.store,
            f"{name}-{engine.factory.random(8).hex()}",
            now_us=engine.now_us,
            lease_s=lease_s,
            monotonic=monotonic,
        )
        self._renewer = LeaseRenewer(lease_s)
        self._held_leases: dict[tuple[str, str], HeldLease] = {}
        self._held_elsewhere: set[tuple[str, str]] = set()
        self._seen_heads: dict[str, int] = {}
        self._next_look: dict[str, float] = {}
        self._stop = threading.Event()
        self._abandon = self._stop
        self._last_tasks: tuple[Task, ...] = ()

    @property
    def holder(self) -> str:
        """The worker's name in leases."""
        return self._leases.holder

    def run_once(self) -> Done:
        """Do all the work that there is now, then release every lease."""
        self._stop = self._abandon = threading.Event()
        self._held_elsewhere.clear()
        done = Done()
        try:
            before: dict[str, int] = {}
            while before != (now := self._heads()):
                before = now
                for tenant in now:
                    for task in self._tasks:
                        done = self._drain(tenant, task, done)
            return Done(done.steps, done.failures, len(self._held_elsewhere))
        finally:
            self._release()

    def _heads(self) -> dict[str, int]:
        """Return the end of each tenant's feed: events of one task may be work for another."""
        return {tenant: tasks.feed_head(self._engine.store, tenant) for tenant in self._tenant_names()}

    def _drain(self, tenant: str, task: Task, done: Done) -> Done:
        while (outcome := self._step(tenant, task)) is not None:
            failed = isinstance(outcome, AttemptFailure)
            done = Done(done.steps + (not failed), done.failures + failed)
            if outcome is not True:
                break
        return done

    def run(self, stop: threading.Event, *, last: Sequence[str] = (), abandon: threading.Event | None = None) -> None:
        """Work until `stop` is set, or the engine is closed.

        Then the due work of the tasks named in `last` is finished, unless `abandon` is set before.
        """
        self._stop, self._abandon = stop, abandon or stop
        self._last_tasks = tuple(task for task in self._tasks if task.name in last)
        try:
            failures = 0
            while not stop.is_set():
                outcome = attempt(self._work_or_wait)
                failures = failures + 1 if isinstance(outcome, AttemptFailure) else 0
                if isinstance(outcome, AttemptFailure):
                    self._log_failure(outcome)
                    stop.wait(min(backoff_us(failures) / 1_000_000, limits.LEASE_S))
            outcome = attempt(self._finish_last_tasks)
            if isinstance(outcome, AttemptFailure):
                self._log_failure(outcome)
        except errors.EngineClosed:
            _log.info("engine closed", extra={"action": "worker.closed", "worker": self.holder})
        finally:
            self._release()

    def _log_failure(self, failed: AttemptFailure) -> None:
        facts = {"action": "worker.failed", "worker": self.holder, "error": failed.code}
        _log.warning("the worker can't use the store", extra=facts)

    def _work_or_wait(self) -> None:
        if not self._round():
            self._wait()

    def _finish_last_tasks(self) -> None:
        """Finish the last tasks, one step each in rotation, so that none uses up the time of the others."""
        if not self._last_tasks:
            return
        tenants = [tenant for tenant in self._tenant_names() if self._may_have_work(tenant)]
        places = [(tenant, task) for tenant in tenants for task in self._last_tasks]
        while places and not self._abandon.is_set():
            places = [place for place in places if self._step(*place) is True]

    def status(self) -> list[TaskStatus]:
        """Return the status of every task of every tenant, whichever worker holds it."""
        return [self._status(tenant, task) for tenant in self._tenant_names() for task in self._tasks]

    def _status(self, tenant: str, task: Task) -> TaskStatus:
        lease, _ = leases.read_lease(self._engine.store, tenant, task.name)
        return TaskStatus(
            tenant=tenant,
            task=task.name,
            holder=lease.holder or None,
            until_us=lease.until_us or None,
            failures=lease.failures,
            error=lease.error or None,
            retry_us=lease.retry_us or None,
            told=task.progress(tenant),
        )

    def _tenant_names(self) -> Sequence[str]:
        return self._engine.store.tenants() if self._tenants is None else self._tenants

    def _round(self) -> bool:
        """Do a step of each task that may have work; return whether there may be more at once."""
        more = False
        for tenant in self._tenant_names():
            if self._stop.is_set():
                return False
            if not self._may_have_work(tenant):
                continue
            head = tasks.feed_head(self._engine.store, tenant, self._seen_heads.get(tenant, 0))
            again = [self._step(tenant, task) is True for task in self._tasks]
            if any(again):
                more = True
            else:
                self._seen_heads[tenant] = head
                self._next_look[tenant] = self._monotonic() + limits.WORKER_POLL_S
        return more

    def _may_have_work(self, tenant: str) -> bool:
        if self._monotonic() >= self._next_look.get(tenant, 0.0):
            return True
        return self._engine.store.wait(tenant, self._seen_heads.get(tenant, 0), 0)

    def _step(self, tenant: str, task: Task) -> bool | AttemptFailure | None:
        """Run a step; return whether there may be more, or the failure; None if there was no work, or no lease."""
        outcome = attempt(lambda: self._leased_step(tenant, task))
        if not isinstance(outcome, AttemptFailure):
            return outcome
        held, failures = self._held_leases.pop((tenant, task.name), None), 1
        if held is not None:
            recorded = attempt(lambda: held.record_failure(outcome.code))
            failures = failures if isinstance(recorded, AttemptFailure) else recorded
        _log.warning(
            "task failed",
            extra={
                "action": "task.failed", "task": task.name, "tenant": tenant, "worker": self.holder,
                "error": outcome.code, "failures": failures,
            },
        )  # fmt: skip
        return outcome

    def _leased_step(self, tenant: str, task: Task) -> bool | None:
        if not task.due(tenant):
            return None
        place = (tenant, task.name)
        # A running task is not interrupted by a copy that begins; no task starts on a copy that is incomplete.
        if place not in self._held_leases and store_copy.is_copy_incomplete(self._engine.store, tenant):
            return None
        held = self._held_leases.get(place) or self._leases.take(tenant, task.name)
        if held is None:
            lease, _ = leases.read_lease(self._engine.store, tenant, task.name)
            if lease.holder not in ("", self.holder):
                self._held_elsewhere.add(place)
            return None
        self._held_elsewhere.discard(place)
        self._held_leases[place] = held

        def beat() -> None:
            if self._must_stop(task):
                raise LeaseLost("the worker stops")
            held.heartbeat()

        try:
            beat()
            with self._renewer.renewing(held):
                more = task.step(tenant, beat)
            held.clear_failures()
        except LeaseLost:
            del self._held_leases[place]
            if self._must_stop(task):
                held.release()
            return None
        return more

    def _must_stop(self, task: Task) -> bool:
        return (self._abandon if task in self._last_tasks else self._stop).is_set()

    def _wait(self) -> None:
        """Wait until a feed has grown, or until the next look is due."""
        self._stop.wait(limits.WORKER_BATCH_DELAY_S)
        tenants = self._tenant_names()
        pause = limits.WORKER_STOP_CHECK_S / 2
        while not self._stop.is_set() and not any(map(self._may_have_work, tenants)):
            if len(tenants) == 1:
                self._engine.store.wait(tenants[0], self._seen_heads.get(tenants[0], 0), limits.WORKER_STOP_CHECK_S)
                continue
            self._stop.wait(pause)
            pause = min(pause * 2, 1.0)
            tenants = self._tenant_names()

    def _release(self) -> None:
        self._renewer.close()
        held, self._held_leases = list(self._held_leases.values()), {}
        with contextlib.suppress(errors.EngineClosed, errors.Unavailable):
            for one in held:
                one.release()
