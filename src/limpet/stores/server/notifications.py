"""Waiting for commits: waiters are woken by commits of this process and by server notifications.

One thread listens as soon as a caller waits or another writer was seen. A lost notification only
delays: waiters also poll, and the server refuses what was decided on stale state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from limpet import errors

_log = logging.getLogger("limpet.store")

POLL_S = 0.005
POLL_S_MAX = 0.25
"""The time between two polls of a waiter, at first and at most. It doubles after each poll."""

LISTEN_RETRY_S = 0.2
"""The pause before the server is listened to again after a failure."""

NOTIFIED_TENANTS_MAX = 10_000
"""Tenants whose notifications are held between two batches. Beyond, only the fact that some were missed is kept."""

JOIN_TIMEOUT_S = 5.0
"""How long `join` waits for the listener thread."""


class _TenantWaiters:
    """The waiters for one tenant. `notified` counts notifications: it shows one that came before the wait began."""

    __slots__ = ("changed", "notified", "waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self.changed = threading.Condition(lock)
        self.waiting = 0
        self.notified = 0

    def wake(self) -> None:
        self.notified += 1
        self.changed.notify_all()


class CommitNotifications:
    """Wakes waiters after commits, and collects the server's notifications for the next batch. Thread-safe."""

    def __init__(self, listen: Callable[[], Iterator[tuple[str, int]]]) -> None:
        self._listen = listen
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters: dict[str, _TenantWaiters] = {}
        self._received: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def notify(self, tenants: Iterable[str]) -> None:
        # Read without the lock: a waiter that is added just now polls once before it sleeps, so it misses nothing.
        if self._waiters:
            with self._lock:
                for tenant in tenants:
                    self._wake(tenant)

    def _wake(self, tenant: str) -> None:
        for waiters in self._waiters.values() if not tenant else [self._waiters.get(tenant)]:
            if waiters is not None:
                waiters.wake()

    def take_received(self) -> dict[str, int]:
        """Return the positions by tenant that were notified since the last call; 0: another store wants the advisory lock.

        The key "" means that notifications may have been missed.
        """
        if not self._received:
            return {}
        # Something was received, so a listener was started. If it has ended, by an error, it is started again.
        self.start_listener()
        with self._changed:
            received, self._received = self._received, {}
            return received

    def start_listener(self) -> None:
        if self._thread is None:
            with self._changed:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run_listener, name="limpet-news", daemon=True)
                    self._thread.start()

    def wait(self, tenant: str, is_reached: Callable[[], bool], timeout_s: float) -> bool:
        """Return True as soon as `is_reached` does; False after the timeout. Calls it after each notification of the tenant."""
        until, pause = time.monotonic() + timeout_s, POLL_S
        with self._lock:
            waiters = self._waiters.setdefault(tenant, _TenantWaiters(self._lock))
            waiters.waiting += 1
        try:
            while True:
                # Read before the poll: a notification during the poll is then not slept through.
                notified = waiters.notified
                if is_reached():
                    return True
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self.start_listener()
                with self._lock:
                    if waiters.notified == notified:
                        waiters.changed.wait(min(pause, left))
                    pause = min(pause * 2, POLL_S_MAX)
        finally:
            with self._lock:
                waiters.waiting -= 1
                if not waiters.waiting:
                    del self._waiters[tenant]

    def close(self) -> None:
        """Wake all waiters and let the listener thread end."""
        with self._changed:
            self._closed = True
            self._wake("")
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the listener thread. The driver must be closed: that ends its `listen`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run_listener(self) -> None:
        try:
            self._listen_with_retries()
        except BaseException as error:
            extra = {"action": "store.not_heard", "error": type(error).__name__}
            _log.error("the listener for notifications of the store has failed", extra=extra)
            with self._changed:
                # The next `wait` or `take_received` starts it again. Until then notifications are missed.
                self._thread = None
                self._received[""] = 0
            raise

    def _listen_with_retries(self) -> None:
        is_reported = False
        while not self._closed:
            try:
                for tenant, position in self._listen():
                    is_reported = False
                    self._receive(tenant, position)
                    if self._closed:
                        return
            except errors.Error as error:
                # Logged once for each outage. Waiters poll until the server can be reached again.
                if not (is_reported or self._closed):
                    extra = {"action": "store.not_heard", "error": error.code}
                    _log.warning("notifications of the store can't be received: %s", error.message, extra=extra)
                is_reported = True
            with self._changed:
                self._changed.wait_for(lambda: self._closed, LISTEN_RETRY_S)

    def _receive(self, tenant: str, position: int) -> None:
        with self._changed:
            if len(self._received) >= NOTIFIED_TENANTS_MAX:
                self._received.clear()
                tenant = ""
            # A wanted advisory lock (0) outweighs any position.
            before = self._received.get(tenant, position)
            self._received[tenant] = max(position, before) if position and before else 0
            # A wanted advisory lock is no commit: nothing to wake for.
            if position or not tenant:
                self._wake(tenant)
