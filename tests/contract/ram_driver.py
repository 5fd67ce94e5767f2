"""The driver in RAM as a server across a network: it counts round trips, and its pipeline answers late."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

from limpet.stores import volatile
from limpet.stores.server.driver import ChangeResult, TenantChange
from limpet.stores.volatile import RamServer, TenantTables


class RemoteDriver(volatile.RamDriver):
    """A driver in RAM that counts its accesses to a tenant and has a pipeline."""

    def __init__(self, server: RamServer) -> None:
        super().__init__(server)
        self.trips = 0
        self.late_s = 0.0

    def tables(self, tenant: str) -> TenantTables:
        self.trips += 1
        return super().tables(tenant)

    def pipeline(self) -> LatePipeline:
        return LatePipeline(self.apply, self.late_s)


class LatePipeline:
    """Applies what is sent at once and answers in order after a delay, as a server across a network does."""

    def __init__(self, apply: Callable[[Sequence[TenantChange]], list[ChangeResult]], late_s: float = 0.0) -> None:
        self._apply = apply
        self._late_s = late_s
        self._answers: deque[list[ChangeResult]] = deque()

    def __enter__(self) -> LatePipeline:
        self._read, self._write = os.pipe()
        self._timers: list[threading.Timer] = []
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        os.close(self._read)
        os.close(self._write)

    def send(self, changes: Sequence[TenantChange]) -> bool:
        self._answers.append(self._apply(changes))
        self._timers.append(threading.Timer(self._late_s, os.write, (self._write, b"!")))
        self._timers[-1].start()
        return True

    def receive(self) -> list[ChangeResult]:
        os.read(self._read, 1)
        return self._answers.popleft()

    def has_answer(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._read
