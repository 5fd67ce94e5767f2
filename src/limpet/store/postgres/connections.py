"""Connections to one store: made when they are needed, kept while they are good, each with every setting made."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn

from limpet import errors, limits
from limpet.store.postgres import packing, translate, writing
from limpet.store.postgres.place import Place

GRACE_S = 5.0
"""How much longer than the server may take the client waits, so that the server's own word comes first."""

_PINNED = sql.SQL(
    "SELECT set_config('synchronous_commit', current_setting('synchronous_commit'), false)"
)
"""What is looked at when a connection is made holds as long as it: loosened on the server, it stays here."""

RV = TypeVar("RV")
Rows = list[tuple[Any, ...]]


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that does not wait for ever, not even for a server that stands still."""

    patience_s: float = limits.SERVER_RESPONSE_S

    def __init__(self, pgconn: PGconn, *args: Any, **kwargs: Any) -> None:
        super().__init__(pgconn, *args, **kwargs)
        self.prepared: set[bytes] = set()
        """The statements that it knows by names of ours. psycopg drops them with its own after a rollback: whoever rolls
        back, and goes on, closes the connection."""
        self.kinds: writing.Kinds | None = None
        """The numbers of the types of rows, once they were asked for."""
        self._poll = select.poll()
        self._poll.register(pgconn.socket, select.POLLIN)

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Run an exchange to its end; raise TimeoutError if nothing comes for too long."""
        patient = _patient(gen, self.patience_s if timeout is None else timeout)
        return super().wait(patient, interval)

    def wait_for_server(self, *, to_send: bool = False) -> bool:
        """Wait until something came, or more can be sent; return whether something came. Raises TimeoutError too."""
        if to_send:
            self._poll.modify(self.pgconn.socket, select.POLLIN | select.POLLOUT)
        timeout_ms = None if math.isinf(self.patience_s) else self.patience_s * 1000
        ready = self._poll.poll(timeout_ms)
        if to_send:
            self._poll.modify(self.pgconn.socket, select.POLLIN)
        if not ready:
            raise TimeoutError(f"no answer within {self.patience_s:g} s")
        return ready[0][1] != select.POLLOUT

    def is_idle(self) -> bool:
        """Whether a connection that nobody uses still stands: one that was ended has something to read."""
        return not self.closed and not self._poll.poll(0)


@contextlib.contextmanager
def unhurried(connection: Connection) -> Iterator[None]:
    """Let statements of the body take as long as they need: tables are written anew, or much is dropped."""
    patience, connection.patience_s = connection.patience_s, math.inf
    before = connection.execute("SHOW statement_timeout", prepare=False).fetchone()
    try:
        connection.execute("SET statement_timeout = 0", prepare=False)
        yield
        connection.execute(
            sql.SQL("SET statement_timeout = {}").format(sql.Literal(before[0] if before else "0")),
            prepare=False,
        )
    finally:
        connection.patience_s = patience


def _patient(gen: PQGen[RV], patience_s: float) -> Generator[Any, Any, RV]:
    until = time.monotonic() + patience_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                until = time.monotonic() + patience_s
            elif time.monotonic() > until:
                raise TimeoutError(f"no answer within {patience_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def connect(place: Place, *, role: bool = True) -> Connection:
    """Open a connection with every setting made; without the role it is the owner's, for upkeep."""
    connection = Connection.connect(place.conninfo, autocommit=True)
    try:
        connection.patience_s = place.timeout_s + GRACE_S
        connection.prepare_threshold = None
        packing.register(connection.adapters)
        connection.execute(_settings(place, role=role))
        # From now on every statement is prepared when it is first used; upkeep uses each once.
        connection.prepare_threshold = 0 if role else None
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def upkeep(place: Place) -> Iterator[Connection]:
    """The owner's connection for the body, where the server's errors become ours."""
    with translate.at_upkeep(place.shown), contextlib.closing(connect(place, role=False)) as owner:
        yield owner


def _settings(place: Place, *, role: bool) -> sql.Composed:
    wanted = {
        "search_path": place.schema,
        "statement_timeout": f"{int(place.timeout_s * 1000)}",
        "lock_timeout": f"{int(place.timeout_s * 1000)}",
        "idle_in_transaction_session_timeout": "0",
        # Whoever loses a race is told by what is there then. In a snapshot from before, it would only be told to fail.
        "default_transaction_isolation": "read committed",
        "client_min_messages": "warning",
        "jit": "off",
    }
    if role:
        wanted |= {
            "role": place.role,
            # Every statement is prepared once, and the tenant prunes partitions when it runs.
            "plan_cache_mode": "force_generic_plan",
            # It is planned while tables are small, and kept while they grow. Every look within a tenant has an index
            # that fits; lists of tenants read the whole table anyhow.
            "enable_seqscan": "off",
        }
    return sql.SQL("; ").join(
        (
            *(
                sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
                for name, value in wanted.items()
            ),
            _PINNED,
        )
    )


def readable(timeout_s: float, *descriptors: int) -> set[int]:
    """Return those that have something to read, or came to an end, within a time. Any number is fine, past 1023 too."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}


class Room:
    """Room for one connection. Whoever has it gives it back by forgetting it: so no interrupt, wherever it comes, loses it."""

    __slots__ = ("_rooms",)

    def __init__(self, rooms: queue.SimpleQueue[Room]) -> None:
        self._rooms = weakref.ref(rooms)

    def __del__(self) -> None:
        rooms = self._rooms()
        if rooms is not None:
            rooms.put(Room(rooms))


class Loan:
    """A connection for the body of a `with`, where the server's errors become ours. One that failed is not used again."""

    __slots__ = ("_connection", "_connections", "_room")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> Connection:
        self._room: Room | None = self._connections.room()
        try:
            self._connection = self._connections.connection()
        except BaseException:
            # The error knows this loan, and may be kept for long.
            self._room = None
            raise
        return self._connection

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self._connections.give_back(self._connection, sound=error is None)
        finally:
            self._room = None
        if isinstance(error, (psycopg.Error, OSError)):
            raise translate.of(error, self._connections.shown) from error


class Connections:
    """Idle connections, and how many there may be in all. Whoever comes when none is left waits a while."""

    def __init__(self, place: Place, made: Callable[[Connection], None]) -> None:
        self._place = place
        self._made = made
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._rooms: queue.SimpleQueue[Room] = queue.SimpleQueue()
        for _ in range(place.connections):
            self._rooms.put(Room(self._rooms))
        self.shown = place.shown
        self._closed = False
        self._process = os.getpid()

    @property
    def closed(self) -> bool:
        """Whether nobody gets a connection any more."""
        return self._closed

    def borrow(self) -> Loan:
        """Return a connection for the body of a `with`, which raises the server's errors as ours."""
        if self._closed:
            raise errors.EngineClosed
        if os.getpid() != self._process:
            raise errors.ForkedEngine
        return Loan(self)

    def room(self) -> Room:
        """Wait for room for one connection more."""
        try:
            return self._rooms.get(timeout=self._place.timeout_s)
        except queue.Empty:
            raise errors.StoreBusy(
                f"all {self._place.connections} connections of this process are in use.",
                hint="Retry, or allow more with ?connections=16 in the URL.",
            ) from None

    def connection(self) -> Connection:
        """Return a connection that nobody has."""
        return self._idle_one() or self._new()

    def _idle_one(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_idle():
                return connection
            _discard(connection)

    def _new(self) -> Connection:
        with translate.at(self._place.shown):
            connection = connect(self._place)
            try:
                self._made(connection)
            except BaseException:
                _discard(connection)
                raise
            return connection

    def give_back(self, connection: Connection, *, sound: bool) -> None:
        """Take back what was lent; what is not sound is closed."""
        if not (sound and self._kept(connection)) and os.getpid() == self._process:
            _discard(connection)

    def _kept(self, connection: Connection) -> bool:
        with self._lock:
            if self._closed or connection.closed:
                return False
            self._idle.append(connection)
            return True

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it is given back. Closing twice is fine."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if os.getpid() == self._process:
            for connection in idle:
                _discard(connection)


def _discard(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        connection.close()
