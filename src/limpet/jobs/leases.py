"""Leases: one worker at a time runs a task of a tenant.

A lease is a note that is renewed during the work and released afterwards. Clocks may differ and be
set back, so two workers may run the same task for a short time. Correctness does not depend on
leases: every result is written conditionally.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from limpet import errors, limits
from limpet.jobs import tasks
from limpet.jobs.tasks import LeaseLost
from limpet.stores import port

LEASE_PREFIX = "lease/"


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """The holder of a task and the end of its time; the failures in a row, and the time of the next try."""

    holder: str = ""
    until_us: int = 0
    failures: int = 0
    retry_us: int = 0
    error: str = ""


def read_lease(store: port.Store, tenant: str, task: str) -> tuple[Lease, int]:
    """Return a lease and the version of its note."""
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
        """Whether a third of the lease's time has passed."""
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
        """Set the number of failures to 0."""
        if self._lease.failures:
            self._update(failures=0, retry_us=0, error="")

    def record_failure(self, code: str) -> int:
        """Release the lease with a delay before the next try; return the number of failures in a row."""
        failures = self._lease.failures + 1
        retry = self._leases.now_us() + tasks.backoff_us(failures)
        self._update(holder="", until_us=0, failures=failures, retry_us=retry, error=code)
        return failures

    def release(self) -> None:
        """Release the lease."""
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
    """Renews leases in a thread, for steps that wait long for a model or an external engine.

    A step is renewed for limits.TASK_STEP_S_MAX at most: then another worker may take over.
    """

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
