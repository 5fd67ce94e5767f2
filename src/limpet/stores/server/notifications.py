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
"""How long somebody who waits does not look at first, and at most. Twice as long after each look in vain."""

LISTEN_RETRY_S = 0.2
"""How long after a failure the server is listened to again."""

NOTIFIED_TENANTS_MAX = 10_000
"""Tenants that were heard of between two turns. Beyond, it is only known that news was missed."""

JOIN_TIMEOUT_S = 5.0
"""How long closing waits for the thread that listens."""


class _TenantWaiters:
    """Where those wait who wait for one tenant."""

    __slots__ = ("changed", "notified", "waiting")

    def __init__(self, lock: threading.Lock) -> None:
        self.changed = threading.Condition(lock)
        self.waiting = 0
        self.notified = 0

    def wake(self) -> None:
        self.notified += 1
        self.changed.notify_all()


class CommitNotifications:
    """Those who wait, and those who have something to tell. Telling costs nothing while nobody waits."""

    def __init__(self, listen: Callable[[], Iterator[tuple[str, int]]]) -> None:
        self._listen = listen
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiters: dict[str, _TenantWaiters] = {}
        self._received: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def notify(self, tenants: Iterable[str]) -> None:
        """Wake those who wait for tenants. Whoever begins to wait later looks first, so nothing is missed."""
        if self._waiters:
            with self._lock:
                for tenant in tenants:
                    self._wake(tenant)

    def _wake(self, tenant: str) -> None:
        for place in self._waiters.values() if not tenant else [self._waiters.get(tenant)]:
            if place is not None:
                place.wake()

    def take_received(self) -> dict[str, int]:
        """Return the positions that tenants are said to have reached since this was asked; 0: others want them.

        Without a name: news may have been missed.
        """
        if not self._received:
            return {}
        # Nothing is heard before somebody attends: if nobody does now, the thread has ended by a fault.
        self.start_listener()
        with self._changed:
            heard, self._received = self._received, {}
            return heard

    def start_listener(self) -> None:
        """Listen from now on."""
        if self._thread is None:
            with self._changed:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(
                        target=self._run_listener, name="limpet-news", daemon=True
                    )
                    self._thread.start()

    def wait(self, tenant: str, there: Callable[[], bool], timeout_s: float) -> bool:
        """Return True as soon as a look finds it there; False after a time. Looks when there is news of a tenant."""
        until, pause = time.monotonic() + timeout_s, POLL_S
        with self._lock:
            place = self._waiters.setdefault(tenant, _TenantWaiters(self._lock))
            place.waiting += 1
        try:
            while True:
                told = place.notified
                if there():
                    return True
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self.start_listener()
                with self._lock:
                    if place.notified == told:
                        place.changed.wait(min(pause, left))
                    pause = min(pause * 2, POLL_S_MAX)
        finally:
            with self._lock:
                place.waiting -= 1
                if not place.waiting:
                    del self._waiters[tenant]

    def close(self) -> None:
        """Wake everybody, and listen no more."""
        with self._changed:
            self._closed = True
            self._wake("")
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread that listens. The driver is closed by now, so that it has nothing to wait for."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run_listener(self) -> None:
        try:
            self._listen_with_retries()
        except BaseException as error:
            told = {"action": "store.not_heard", "error": type(error).__name__}
            _log.error("listening to the news of the store has failed", extra=told)
            with self._changed:
                # Whoever waits next, or takes the turn, has it listened to anew. Until then news is missed.
                self._thread = None
                self._received[""] = 0
            raise

    def _listen_with_retries(self) -> None:
        silent = False
        while not self._closed:
            try:
                for tenant, position in self._listen():
                    silent = False
                    self._receive(tenant, position)
                    if self._closed:
                        return
            except errors.Error as error:
                # It is told again as soon as the server can be reached; until then those who wait look.
                if not (silent or self._closed):
                    told = {"action": "store.not_heard", "error": error.code}
                    _log.warning(
                        "news of the store can't be heard now: %s", error.message, extra=told
                    )
                silent = True
            with self._changed:
                self._changed.wait_for(lambda: self._closed, LISTEN_RETRY_S)

    def _receive(self, tenant: str, position: int) -> None:
        with self._changed:
            if len(self._received) >= NOTIFIED_TENANTS_MAX:
                self._received.clear()
                tenant = ""
            # Who wants it has more to say than whoever has added to it.
            before = self._received.get(tenant, position)
            self._received[tenant] = max(position, before) if position and before else 0
            # Somebody who wants a tenant has added nothing to it yet.
            if position or not tenant:
                self._wake(tenant)
