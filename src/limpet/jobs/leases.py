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
    """Who has the work until when, and how it went: how often it has failed in a row, and when it is tried again."""

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
    try:
        return msgspec.json.decode(note.value, type=Lease), note.version
    except msgspec.MsgspecError as error:
        raise errors.Corrupt(f"the lease of {task} can't be read.", facts={"task": task}) from error


class WorkerLeases:
    """The leases of one worker, which is called `holder`."""

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
        """Take a lease that nobody has, or whose time is up; None if another has it, or it is too early to retry."""
        lease, version = read_lease(self.store, tenant, task)
        now = self.now_us()
        if not tasks.retry_is_due(lease.retry_us, now):
            return None
        if lease.holder not in ("", self.holder) and not self._may_take_over(
            (tenant, task), lease, version
        ):
            return None
        held = HeldLease(self, tenant, task, lease, version)
        return held if held.renew() else None

    def _may_take_over(self, place: tuple[str, str], lease: Lease, version: int) -> bool:
        if self.now_us() >= lease.until_us:
            return True
        known, since = self._seen_versions.get(place, (0, 0.0))
        if known != version:
            self._seen_versions[place] = version, self.monotonic()
            return False
        return self.monotonic() - since > self.lease_s


class HeldLease:
    """A lease that was taken."""

    def __init__(
        self, leases: WorkerLeases, tenant: str, task: str, lease: Lease, version: int
    ) -> None:
        self._leases = leases
        self._note_key = tenant, LEASE_PREFIX + task
        self._task = task
        self._lease = lease
        self._version = version
        self._renewed = 0.0
        self._mutex = threading.Lock()

    def heartbeat(self) -> None:
        """Say that the work goes on; raise LeaseLost if somebody else has it now."""
        if self.renewal_due and not self.renew():
            raise LeaseLost(f"another worker has taken over {self._task}")

    @property
    def renewal_due(self) -> bool:
        """Whether a third of its time is over."""
        return self._leases.monotonic() - self._renewed > self._leases.lease_s / 3

    def renew(self) -> bool:
        """Have the lease for its whole time from now on; return whether it is still ours."""
        leases = self._leases
        until = leases.now_us() + int(leases.lease_s * 1_000_000)
        began = leases.monotonic()
        if not self._update(holder=leases.holder, until_us=until):
            return False
        self._renewed = began
        return True

    def clear_failures(self) -> None:
        """Forget failures of before."""
        if self._lease.failures:
            self._update(failures=0, retry_us=0, error="")

    def record_failure(self, code: str) -> int:
        """Give the work back after a failure, to be left alone for a while; return how often it has failed."""
        failures = self._lease.failures + 1
        retry = self._leases.now_us() + tasks.backoff_us(failures)
        self._update(holder="", until_us=0, failures=failures, retry_us=retry, error=code)
        return failures

    def release(self) -> None:
        """Give the work back."""
        self._update(holder="", until_us=0)

    def _update(
        self,
        *,
        holder: str | None = None,
        until_us: int | None = None,
        failures: int | None = None,
        retry_us: int | None = None,
        error: str | None = None,
    ) -> bool:
        with self._mutex:
            return self._update_locked(holder, until_us, failures, retry_us, error)

    def _update_locked(
        self,
        holder: str | None,
        until_us: int | None,
        failures: int | None,
        retry_us: int | None,
        error: str | None,
    ) -> bool:
        lease = self._lease
        made = Lease(
            lease.holder if holder is None else holder,
            lease.until_us if until_us is None else until_us,
            lease.failures if failures is None else failures,
            lease.retry_us if retry_us is None else retry_us,
            lease.error if error is None else error,
        )
        store = self._leases.store
        if not store.put_note(*self._note_key, msgspec.json.encode(made), expected=self._version):
            return False
        self._lease, self._version = read_lease(store, self._note_key[0], self._task)
        return self._lease.holder == made.holder


class LeaseRenewer:
    """Renews the lease of a step that takes long and can't say so itself: a model, or an engine elsewhere.

    For limits.TASK_STEP_S_MAX at most: what hangs is to be taken over some time.
    """

    def __init__(self, lease_s: float) -> None:
        self._every_s = lease_s / 4
        self._stop = threading.Event()
        self._current: tuple[HeldLease, float] | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def renewing(self, held: HeldLease) -> Iterator[None]:
        """Keep a lease for as long as the body takes."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._renew_loop, name="limpet-leases", daemon=True
            )
            self._thread.start()
        self._current = held, time.monotonic()
        try:
            yield
        finally:
            self._current = None

    def _renew_loop(self) -> None:
        while not self._stop.wait(self._every_s):
            held, since = self._current or (None, 0.0)
            if (
                held is not None
                and time.monotonic() - since < limits.TASK_STEP_S_MAX
                and held.renewal_due
            ):
                # Whoever has lost it hears of that at its next beat.
                with contextlib.suppress(errors.Error):
                    held.renew()

    def close(self) -> None:
        """Keep nothing any more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._stop = threading.Event()
