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
from limpet.jobs.tasks import (
    AttemptFailure,
    LeaseLost,
    SupportsDue,
    SupportsProgress,
    Task,
    attempt,
    backoff_us,
)
from limpet.runtime.engine import Engine
from limpet.stores import store_copy

_log = logging.getLogger("limpet.worker")


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a task of a tenant stands: who works on it, how often it has failed in a row, and what it tells itself."""

    tenant: str
    task: str
    holder: str | None = None
    until_us: int | None = None
    failures: int = 0
    error: str | None = None
    retry_us: int | None = None
    told: Mapping[str, Json] = EMPTY


class Done(msgspec.Struct, frozen=True):
    """What a worker did: how many steps it took, how many more failed, and how many tasks another worker has."""

    steps: int = 0
    failures: int = 0
    held: int = 0


class Worker:
    """Works on tasks until it is told to stop. `tenants`: whose; None: everybody's."""

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
        """What it is called in leases."""
        return self._leases.holder

    def run_once(self) -> Done:
        """Do all the work that there is now, then give every lease back."""
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
        """Return where each tenant's feed ends: what one task has done may be work for another."""
        return {
            tenant: tasks.feed_head(self._engine.store, tenant) for tenant in self._tenant_names()
        }

    def _drain(self, tenant: str, task: Task, done: Done) -> Done:
        while (outcome := self._step(tenant, task)) is not None:
            failed = isinstance(outcome, AttemptFailure)
            done = Done(done.steps + (not failed), done.failures + failed)
            if outcome is not True:
                break
        return done

    def run(
        self,
        stop: threading.Event,
        *,
        last: Sequence[str] = (),
        abandon: threading.Event | None = None,
    ) -> None:
        """Work until `stop` is set, or the engine is closed.

        What is due then of the tasks named in `last` is seen through first, until `abandon` is set.
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
        told = {"action": "worker.failed", "worker": self.holder, "error": failed.code}
        _log.warning("the store can't be worked on", extra=told)

    def _work_or_wait(self) -> None:
        if not self._round():
            self._wait()

    def _finish_last_tasks(self) -> None:
        """Do what is due of the last tasks, in turns: none of them takes all the time that there is."""
        whose = (
            [tenant for tenant in self._tenant_names() if self._may_have_work(tenant)]
            if self._last_tasks
            else []
        )
        places = [(tenant, task) for tenant in whose for task in self._last_tasks]
        while places and not self._abandon.is_set():
            places = [place for place in places if self._step(*place) is True]

    def status(self) -> list[TaskStatus]:
        """Return how every task of every tenant stands, whichever worker does it."""
        return [
            self._status(tenant, task) for tenant in self._tenant_names() for task in self._tasks
        ]

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
            told=task.progress(tenant) if isinstance(task, SupportsProgress) else EMPTY,
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
        """Do a step of a task; return whether there may be more, or its failure; None if there is nothing to do."""
        outcome = attempt(lambda: self._leased_step(tenant, task))
        if not isinstance(outcome, AttemptFailure):
            return outcome
        held, failures = self._held_leases.pop((tenant, task.name), None), 1
        if held is not None:
            told = attempt(lambda: held.record_failure(outcome.code))
            failures = failures if isinstance(told, AttemptFailure) else told
        _log.warning(
            "task failed",
            extra={
                "action": "task.failed", "task": task.name, "tenant": tenant, "worker": self.holder,
                "error": outcome.code, "failures": failures,
            },
        )  # fmt: skip
        return outcome

    def _leased_step(self, tenant: str, task: Task) -> bool | None:
        if isinstance(task, SupportsDue) and not task.due(tenant):
            return None
        place = (tenant, task.name)
        if place not in self._held_leases and store_copy.is_copy_incomplete(
            self._engine.store, tenant
        ):
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
                raise LeaseLost("the worker is to stop")
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
        """Wait until something has happened, or it is time to look."""
        self._stop.wait(limits.WORKER_BATCH_DELAY_S)
        whose = self._tenant_names()
        pause = limits.WORKER_STOP_CHECK_S / 2
        while not self._stop.is_set() and not any(map(self._may_have_work, whose)):
            if len(whose) == 1:
                self._engine.store.wait(
                    whose[0], self._seen_heads.get(whose[0], 0), limits.WORKER_STOP_CHECK_S
                )
                continue
            self._stop.wait(pause)
            pause = min(pause * 2, 1.0)
            whose = self._tenant_names()

    def _release(self) -> None:
        self._renewer.close()
        held, self._held_leases = list(self._held_leases.values()), {}
        with contextlib.suppress(errors.EngineClosed, errors.Unavailable):
            for one in held:
                one.release()
