"""The guard of a tenant: an advisory lock on a connection of its own, which ends with whoever holds it."""

from __future__ import annotations

import contextlib
import threading

import psycopg

from limpet.store.postgres import connections, names, translate
from limpet.store.postgres.connections import Connection
from limpet.store.postgres.place import Place


class Guard:
    """One store's guard, of one tenant at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._sql = names.named("guarding.sql")
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._held: str | None = None
        self.teller = 0
        """The server's number of the connection that tells others: whoever listens here is none of them."""

    def take(self, tenant: str, timeout_s: float) -> bool:
        """Return whether the guard is had within a time. Others are told that it is asked for."""
        with self._lock, translate.at(self._place.shown):
            connection = self._connected()
            values = {
                "tenant": names.kept(tenant), "channel": self._place.channel,
                "timeout": f"{max(1, int(timeout_s * 1000))}ms",
            }  # fmt: skip
            try:
                with connection.pipeline() as pipeline:
                    for name in ("tell", "patience", "take"):
                        wanted = {k: v for k, v in values.items() if f"%({k})s" in self._sql[name]}
                        connection.execute(self._sql[name].encode(), wanted)
                        # What is told is told before it waits.
                        pipeline.sync()
            except psycopg.errors.LockNotAvailable:
                return False
            except BaseException:
                self._drop()
                raise
            self._held = tenant
            return True

    def has(self, tenant: str) -> bool:
        """Whether it is a tenant's that is had."""
        return self._held == tenant

    def give_back(self, tenant: str) -> None:
        """Give it back, if it is had."""
        with self._lock:
            self._held = None
            if self._connection is None:
                return
            try:
                values = {"tenant": names.kept(tenant), "channel": self._place.channel}
                self._connection.execute(self._sql["give_back"].encode(), values)
            except (psycopg.Error, OSError):
                # It ends with the connection.
                self._drop()

    def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.is_idle():
            self._drop()
        if self._connection is None:
            self._connection = connections.connect(self._place)
            self.teller = self._connection.info.backend_pid
        return self._connection

    def _drop(self) -> None:
        connection, self._connection, self._held = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()

    def close(self) -> None:
        """Give everything back. Closing twice is fine."""
        with self._lock:
            self._drop()
