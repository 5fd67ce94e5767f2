"""The background worker, and its leases: one worker at a time runs a task of a tenant.

Any number of workers may run in any number of processes. A task that fails is retried after a
backoff and does not delay other tasks.

A lease is a note that is renewed during the work and released afterwards. Clocks may differ and be
set back, so two workers may run the same task for a short time. Correctness does not depend on
leases: every result is written conditionally.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from limpet import errors, limits
from limpet.core.values.validation import EMPTY, Json
from limpet.jobs import tasks
from limpet.jobs.tasks import AttemptFailure, LeaseLost, Task, attempt, backoff_us
from limpet.runtime.engine import Engine
from limpet.stores import port, store_copy

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
            engine.store, f"{name}-{engine.factory.random(8).hex()}", now_us=engine.now_us, lease_s=lease_s,
            monotonic=monotonic,
        )  # fmt: skip
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
        """The worker's name in its leases."""
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
                failures = 0 if self._succeeds(self._work_or_wait) else failures + 1
                if failures:
                    stop.wait(min(backoff_us(failures) / 1_000_000, limits.LEASE_S))
            self._succeeds(self._finish_last_tasks)
        except errors.EngineClosed:
            _log.info("engine closed", extra={"action": "worker.closed", "worker": self.holder})
        finally:
            self._release()

    def _succeeds(self, work: Callable[[], None]) -> bool:
        outcome = attempt(work)
        if isinstance(outcome, AttemptFailure):
            facts = {"action": "worker.failed", "worker": self.holder, "error": outcome.code}
            _log.warning("the worker can't use the store", extra=facts)
        return outcome is None

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
        lease, _ = read_lease(self._engine.store, tenant, task.name)
        return TaskStatus(
            tenant=tenant, task=task.name, holder=lease.holder or None, until_us=lease.until_us or None,
            failures=lease.failures, error=lease.error or None, retry_us=lease.retry_us or None,
            told=task.progress(tenant),
        )  # fmt: skip

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
        held = self._held_leases.pop((tenant, task.name), None)
        recorded = attempt(lambda: held.record_failure(outcome.code)) if held is not None else 1
        failures = 1 if isinstance(recorded, AttemptFailure) else recorded
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
            lease, _ = read_lease(self._engine.store, tenant, task.name)
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
            for lease in held:
                lease.release()


LEASE_PREFIX = "lease/"


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """The holder of a task and the end of its time; the failures in a row, and the time of the next try."""

    holder: str = ""
    until_us: int = 0
    failures: int = 0
    retry_us: int = 0
    error: str = ""


def read_lease(store: port.Store, tenant: str, task: str) -> tuple[Lease, int]:
    note = store.note(tenant, LEASE_PREFIX + task)
    if note is None:
        return Lease(), 0
    return tasks.decode_note(note.value, Lease, f"the lease of {task}"), note.version


class WorkerLeases:
    """Takes leases for one worker, whose name is `holder`."""

    def __init__(
        self,
        store: port.Store,
        holder: str,
        *,
        now_us: Callable[[], int],
        lease_s: float = limits.LEASE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.holder = holder
        self.now_us = now_us
        self.monotonic = monotonic
        self.lease_s = lease_s
        self._seen_versions: dict[tuple[str, str], tuple[int, float]] = {}

    def take(self, tenant: str, task: str) -> HeldLease | None:
        """Take a lease that is free or has expired; None if another worker has it, or a retry is not due."""
        lease, version = read_lease(self.store, tenant, task)
        now = self.now_us()
        if not tasks.retry_is_due(lease.retry_us, now):
            return None
        if lease.holder not in ("", self.holder) and not self._may_take_over((tenant, task), lease, version):
            return None
        held = HeldLease(self, tenant, task, lease, version)
        return held if held.renew() else None

    def _may_take_over(self, key: tuple[str, str], lease: Lease, version: int) -> bool:
        if self.now_us() >= lease.until_us:
            return True
        # The holder's clock may be ahead of ours. A lease that was not renewed for its whole time, by our
        # own monotonic clock, has expired whatever it says.
        seen, since = self._seen_versions.get(key, (0, 0.0))
        if seen != version:
            self._seen_versions[key] = version, self.monotonic()
            return False
        return self.monotonic() - since > self.lease_s


class HeldLease:
    """A lease that this worker has. Used by the worker's thread and by the thread of its LeaseRenewer."""

    def __init__(self, leases: WorkerLeases, tenant: str, task: str, lease: Lease, version: int) -> None:
        self._leases = leases
        self._note_key = tenant, LEASE_PREFIX + task
        self._task = task
        self._lease = lease
        self._version = version
        self._renewed = 0.0
        # Both threads update the note by compare-and-set: without the mutex one would lose to the other,
        # and take that for a loss of the lease.
        self._mutex = threading.Lock()

    def heartbeat(self) -> None:
        """Renew the lease if that is due; raise LeaseLost if another worker has it now."""
        if self.renewal_due and not self.renew():
            raise LeaseLost(f"another worker has taken over {self._task}")

    @property
    def renewal_due(self) -> bool:
        return self._leases.monotonic() - self._renewed > self._leases.lease_s / 3

    def renew(self) -> bool:
        """Extend the lease to its whole time from now on; return False if another worker has it."""
        leases = self._leases
        until = leases.now_us() + int(leases.lease_s * 1_000_000)
        began = leases.monotonic()
        if not self._update(holder=leases.holder, until_us=until):
            return False
        self._renewed = began
        return True

    def clear_failures(self) -> None:
        if self._lease.failures:
            self._update(failures=0, retry_us=0, error="")

    def record_failure(self, code: str) -> int:
        """Release the lease with a delay before the next try; return the number of failures in a row."""
        failures = self._lease.failures + 1
        retry = self._leases.now_us() + tasks.backoff_us(failures)
        self._update(holder="", until_us=0, failures=failures, retry_us=retry, error=code)
        return failures

    def release(self) -> None:
        self._update(holder="", until_us=0)

    def _update(self, **changes: object) -> bool:
        """Change fields of the lease; return whether the stored lease has our holder afterwards."""
        with self._mutex:
            changed = msgspec.structs.replace(self._lease, **changes)
            store = self._leases.store
            value = msgspec.json.encode(changed)
            if not store.put_note(*self._note_key, value, expected=self._version):
                return False
            self._lease, self._version = read_lease(store, self._note_key[0], self._task)
            return self._lease.holder == changed.holder


class LeaseRenewer:
    """Renews leases in a thread during long steps, for limits.TASK_STEP_S_MAX at most: then others may take over."""

    def __init__(self, lease_s: float) -> None:
        self._every_s = lease_s / 4
        self._stop = threading.Event()
        # Read by the thread without a lock: the tuple is replaced in one assignment.
        self._current: tuple[HeldLease, float] | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def renewing(self, held: HeldLease) -> Iterator[None]:
        """Renew a lease while the body of the `with` statement runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew_loop, name="limpet-leases", daemon=True)
            self._thread.start()
        self._current = held, time.monotonic()
        try:
            yield
        finally:
            self._current = None

    def _renew_loop(self) -> None:
        while not self._stop.wait(self._every_s):
            held, since = self._current or (None, 0.0)
            if held is not None and time.monotonic() - since < limits.TASK_STEP_S_MAX and held.renewal_due:
                # A lost lease is reported to the step by its next heartbeat.
                with contextlib.suppress(errors.Error):
                    held.renew()

    def close(self) -> None:
        """Stop the thread. The renewer can be used again."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stop = threading.Event()
