"""Connections to PostgreSQL: the settings in a URL, the connection class, the pool and the pipeline.

Every wait has a timeout, also for a server that stops answering without closing the connection. A connection that
raised an error is closed and never reused. Changes are sent through libpq's pipeline mode by statements that are
prepared once a connection: a cursor for each would take about as long as the server needs for a small change.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
import psycopg
from psycopg import conninfo, pq, sql
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGconn, PGresult

from limpet import errors, limits
from limpet.stores import split_statements, urls
from limpet.stores.port import DURABILITY_LEVELS
from limpet.stores.server.postgres import error_mapping, serialization


def sql_text(name: str) -> str:
    return (Path(__file__).with_name("sql") / name).read_text(encoding="utf-8")


@functools.cache
def sql_statements(file: str) -> dict[str, str]:
    return split_statements(sql_text(file))


SCRUB_MODES: Final = ("full", "plain")
DEFAULT_ROLE: Final = "limpet_app"
_NAME_PATTERN = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}")


class PostgresDsn(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a store in a database. `conninfo` may hold a password; `shown` never does."""

    conninfo: str
    shown: str
    schema: str = "limpet"
    role: str = DEFAULT_ROLE
    durability: str = "power-loss"
    scrub: str = "full"
    timeout_s: float = limits.SERVER_RESPONSE_S
    connections: int = limits.SERVER_CONNECTIONS

    def __repr__(self) -> str:
        return f"PostgresDsn({self.shown}, schema={self.schema})"

    @property
    def channel(self) -> str:
        """The channel of the store's notifications."""
        return f"limpet:{self.schema}"


def parse_url(url: str) -> PostgresDsn:
    """Return the settings in a URL; raise InvalidRequest for a wrong one."""
    urls.check_credentials(url)
    urls.split_url(url)
    named, ours = _split_options(url)
    try:
        # Timeouts that the URL leaves out get a value, so that no wait is endless.
        options = {**_LIBPQ_DEFAULTS, **conninfo.conninfo_to_dict(named)}
    except (psycopg.Error, ValueError) as error:
        # Without its cause, which quotes the URL with its password: a traceback would show it.
        raise errors.InvalidRequest(
            f"this is no URL of a PostgreSQL database: {_without_password(error, named)}.",
            hint=_option_hint(str(error)),
        ) from None
    for host in str(options.get("host") or "").split(","):
        if not host.startswith(("/", "@")):
            urls.check_host(host)
    for name, value in ours.items():
        check, form = _OPTIONS[name]
        if not re.fullmatch(check, value):
            raise errors.InvalidRequest(
                f"{name}={value} in the URL of the store is not what it can be.", hint=f"For {name} write {form}."
            )
    return PostgresDsn(
        conninfo=conninfo.make_conninfo("", **options),
        shown=_display_name(options),
        schema=ours.get("schema", "limpet"),
        role=ours.get("role", DEFAULT_ROLE),
        durability=ours.get("durability", "power-loss"),
        scrub=ours.get("scrub", "full"),
        timeout_s=float(ours.get("timeout_s", limits.SERVER_RESPONSE_S)),
        connections=int(ours.get("connections", limits.SERVER_CONNECTIONS)),
    )


def _split_options(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL for libpq, unchanged but for the scheme and Limpet's options, and those options."""
    before, _, query = url.partition("#")[0].partition("?")
    ours: dict[str, str] = {}
    theirs: list[str] = []
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        if unquote(name) in _OPTIONS:
            ours[unquote(name)] = unquote(value)
        else:
            theirs.append(option)
    scheme, joint, rest = before.partition("://")
    return scheme.lower() + joint + rest + ("?" + "&".join(theirs) if theirs else ""), ours


def _option_hint(error: str) -> str:
    """Return the hint for an unknown option, or for a whole URL."""
    unknown = re.search(r'query parameter: "([^"]*)"', error)
    if unknown is None:
        return "Write postgresql://user@host:5432/database, with libpq's options after a ?."
    ours = f"Beside libpq's, options are {', '.join(_OPTIONS)}."
    libpq = (option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())
    close = urls.closest_name(unknown[1], (*_OPTIONS, *libpq))
    return f"Did you mean {close}=? {ours}" if close else ours


_NAME_FORM: Final = "up to 40 small letters, digits and underscores that do not begin with pg_"
_OPTIONS: Final = {
    "schema": (_NAME_PATTERN.pattern, _NAME_FORM),
    "role": (_NAME_PATTERN.pattern, _NAME_FORM),
    "durability": ("|".join(DURABILITY_LEVELS), " or ".join(DURABILITY_LEVELS)),
    "scrub": ("|".join(SCRUB_MODES), " or ".join(SCRUB_MODES)),
    "timeout_s": (r"[1-9][0-9]{0,4}(\.[0-9]+)?|0\.[0-9]*[1-9]", "seconds, such as 30"),
    "connections": ("[2-9]|[1-9][0-9]{1,2}", "a number from 2 to 999"),
}

_LIBPQ_DEFAULTS: Final = {
    "connect_timeout": str(limits.SERVER_CONNECT_S),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "limpet",
    "client_encoding": "utf8",
}


def _display_name(given: Mapping[str, object]) -> str:
    options = {**_environment_options(), **given}
    host = options.get("host") or options.get("hostaddr") or "the local socket"
    port = f":{options['port']}" if options.get("port") else ""
    return f"PostgreSQL at {host}{port}/{options.get('dbname') or ''}".rstrip("/")


def _environment_options() -> dict[str, str]:
    """Return the options that libpq takes from PG… variables unless the URL has them."""
    options = psycopg.pq.Conninfo.get_defaults()
    return {
        option.keyword.decode(): option.val.decode(errors="replace")
        for option in options
        if option.envvar and option.val is not None and option.val != option.compiled
    }


def _without_password(error: Exception, named: str) -> str:
    text = str(error).strip().rstrip(".").replace(named, urls.without_password(named))
    password = named.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return text.replace(password, "…") if password else text


CLIENT_GRACE_S = 5.0
"""How much longer than the server's own timeout the client waits, so that the server's error comes first."""

_PIN_SYNCHRONOUS_COMMIT = sql.SQL(
    "SELECT set_config('synchronous_commit', current_setting('synchronous_commit'), false)"
)
"""Pins the checked durability for the life of the connection, even if the server's default is loosened."""

Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every wait has a timeout, also if the server has stopped without closing the connection."""

    timeout_s: float = limits.SERVER_RESPONSE_S

    def __init__(self, pgconn: PGconn, *args: Any, **kwargs: Any) -> None:
        super().__init__(pgconn, *args, **kwargs)
        self.prepared: set[bytes] = set()
        """Names of the statements prepared here. psycopg drops them after a rollback, so a connection that was rolled
        back must be closed."""
        self.record_type_oids: serialization.RecordTypeOids | None = None
        """The type numbers of composite rows, once they are read."""
        self._poll = select.poll()
        self._poll.register(pgconn.socket, select.POLLIN)

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        """Run an exchange to its end; raise TimeoutError if nothing arrives within the timeout."""
        patient = _with_timeout(gen, self.timeout_s if timeout is None else timeout)
        return super().wait(patient, interval)

    def wait_for_server(self, *, to_send: bool = False) -> bool:
        """Wait until input arrives or output can be sent; return whether input arrived. Raises TimeoutError."""
        if to_send:
            self._poll.modify(self.pgconn.socket, select.POLLIN | select.POLLOUT)
        timeout_ms = None if math.isinf(self.timeout_s) else self.timeout_s * 1000
        ready = self._poll.poll(timeout_ms)
        if to_send:
            self._poll.modify(self.pgconn.socket, select.POLLIN)
        if not ready:
            raise TimeoutError(f"no answer within {self.timeout_s:g} s")
        return ready[0][1] != select.POLLOUT

    def is_idle(self) -> bool:
        """Whether an unused connection is still usable: one that the server has ended has input to read."""
        return not self.closed and not self._poll.poll(0)


@contextlib.contextmanager
def without_timeout(connection: PostgresConnection) -> Iterator[None]:
    """Let statements of the body take as long as they need: they rewrite tables or delete many rows."""
    patience, connection.timeout_s = connection.timeout_s, math.inf
    before = connection.execute("SHOW statement_timeout", prepare=False).fetchone()
    try:
        connection.execute("SET statement_timeout = 0", prepare=False)
        yield
        connection.execute(
            sql.SQL("SET statement_timeout = {}").format(sql.Literal(before[0] if before else "0")), prepare=False
        )
    finally:
        connection.timeout_s = patience


def _with_timeout(gen: PQGen[Result], patience_s: float) -> Generator[Any, Any, Result]:
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


def connect(place: PostgresDsn, *, role: bool = True) -> PostgresConnection:
    """Open a connection and apply the settings. Without `role` it acts as the owner of the schema, for maintenance."""
    connection = PostgresConnection.connect(place.conninfo, autocommit=True)
    try:
        connection.timeout_s = place.timeout_s + CLIENT_GRACE_S
        connection.prepare_threshold = None
        serialization.register_dumpers(connection.adapters)
        connection.execute(_settings_statement(place, role=role))
        # From now on every statement is prepared at its first use. Maintenance uses each once.
        connection.prepare_threshold = 0 if role else None
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def owner_connection(place: PostgresDsn) -> Iterator[PostgresConnection]:
    """Yield a connection of the schema's owner; the server's errors in the body are raised as Limpet's."""
    with (
        error_mapping.translate_errors(place.shown, owner=True),
        contextlib.closing(connect(place, role=False)) as owner,
    ):
        yield owner


def _settings_statement(place: PostgresDsn, *, role: bool) -> sql.Composed:
    wanted = {
        "search_path": place.schema,
        "statement_timeout": f"{int(place.timeout_s * 1000)}",
        "lock_timeout": f"{int(place.timeout_s * 1000)}",
        "idle_in_transaction_session_timeout": "0",
        # The loser of a race sees the winner's rows. At a stricter level it would only get a serialization error.
        "default_transaction_isolation": "read committed",
        "client_min_messages": "warning",
        "jit": "off",
    }
    if role:
        wanted |= {
            "role": place.role,
            # Every statement is prepared once, and the tenant prunes partitions when it runs.
            "plan_cache_mode": "force_generic_plan",
            # A plan is made while tables are small, and kept while they grow. Every read within a tenant has an index;
            # lists of tenants read the whole table anyway.
            "enable_seqscan": "off",
        }
    settings = [
        sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in wanted.items()
    ]
    return sql.SQL("; ").join([*settings, _PIN_SYNCHRONOUS_COMMIT])


def wait_readable(timeout_s: float, *descriptors: int) -> set[int]:
    """Return the descriptors that become readable or closed within a time. Numbers above 1023 work, too."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}


class PoolSlot:
    """The right to one connection. It returns to the pool when it is no longer referenced, so no interrupt can lose it."""

    __slots__ = ("_slots",)

    def __init__(self, rooms: queue.SimpleQueue[PoolSlot]) -> None:
        self._slots = weakref.ref(rooms)

    def __del__(self) -> None:
        rooms = self._slots()
        if rooms is not None:
            rooms.put(PoolSlot(rooms))


class BorrowedConnection:
    """A connection for the body of a `with`, which raises the server's errors as Limpet's. One that failed is closed."""

    __slots__ = ("_connection", "_pool", "_slot")

    def __init__(self, connections: PostgresConnectionPool) -> None:
        self._pool = connections

    def __enter__(self) -> PostgresConnection:
        self._slot: PoolSlot | None = self._pool.take_slot()
        try:
            self._connection = self._pool.take_connection()
        except BaseException:
            # The traceback refers to this object, and may be kept for long.
            self._slot = None
            raise
        return self._connection

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self._pool.give_back(self._connection, sound=error is None)
        finally:
            self._slot = None
        if isinstance(error, (psycopg.Error, OSError)):
            raise error_mapping.to_error(error, self._pool.shown) from error


class PostgresConnectionPool:
    """A limited number of connections. A thread that finds none free waits, up to the timeout."""

    def __init__(self, place: PostgresDsn, made: Callable[[PostgresConnection], None]) -> None:
        self._dsn = place
        self._check_new = made
        self._idle: list[PostgresConnection] = []
        self._lock = threading.Lock()
        self._slots: queue.SimpleQueue[PoolSlot] = queue.SimpleQueue()
        for _ in range(place.connections):
            self._slots.put(PoolSlot(self._slots))
        self.shown = place.shown
        self.closed = False
        self._process = os.getpid()

    def borrow(self) -> BorrowedConnection:
        if self.closed:
            raise errors.EngineClosed
        if os.getpid() != self._process:
            raise errors.ForkedEngine
        return BorrowedConnection(self)

    def take_slot(self) -> PoolSlot:
        try:
            return self._slots.get(timeout=self._dsn.timeout_s)
        except queue.Empty:
            raise errors.StoreBusy(
                f"all {self._dsn.connections} connections of this process are in use.",
                hint="Retry, or allow more with ?connections=16 in the URL.",
            ) from None

    def take_connection(self) -> PostgresConnection:
        """Return an idle connection, or a new one that was checked."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._open_checked()
            if connection.is_idle():
                return connection
            _close_quietly(connection)

    def _open_checked(self) -> PostgresConnection:
        with error_mapping.translate_errors(self._dsn.shown):
            connection = connect(self._dsn)
            try:
                self._check_new(connection)
            except BaseException:
                _close_quietly(connection)
                raise
            return connection

    def give_back(self, connection: PostgresConnection, *, sound: bool) -> None:
        if sound:
            with self._lock:
                if not (self.closed or connection.closed):
                    self._idle.append(connection)
                    return
        if os.getpid() == self._process:
            _close_quietly(connection)

    def close(self) -> None:
        """Close idle connections; others are closed when they are given back. Closing twice is fine."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        if os.getpid() == self._process:
            for connection in idle:
                _close_quietly(connection)


def _close_quietly(connection: PostgresConnection) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        connection.close()


BinaryArguments = Sequence[bytes | None]
PreparedCall = tuple[bytes, BinaryArguments]
"""The name of a prepared statement, and its arguments in binary format."""

DUPLICATE = b"taken"
"""The answer of a call that failed because a row that must be new exists."""

_UNIQUE_VIOLATION = b"23505"
_TUPLES_OK, _PIPELINE_SYNC = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.PIPELINE_SYNC
_SQLSTATE, _BINARY = pq.DiagnosticField.SQLSTATE, pq.Format.BINARY


def prepare_statement(connection: PostgresConnection, name: bytes, statement: bytes) -> None:
    if name not in connection.prepared:
        connection.pgconn.send_prepare(name, statement)
        _flush_output(connection)
        for result in _read_results(connection):
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise error_from_result(result)
        connection.prepared.add(name)


def send_calls(connection: PostgresConnection, calls: Sequence[PreparedCall]) -> None:
    """Send calls without waiting for answers. Each is a transaction of its own, unless a single one is within one."""
    if len(calls) == 1:
        ((name, arguments),) = calls
        connection.pgconn.send_query_prepared(name, arguments, [_BINARY] * len(arguments), _BINARY)
        _flush_output(connection)
    else:
        send_pipelined(connection, calls)


def send_pipelined(connection: PostgresConnection, calls: Sequence[PreparedCall]) -> None:
    """Send calls after unanswered ones. Until `end_pipeline`, only this and `receive_pipelined` may follow."""
    handle = connection.pgconn
    if handle.pipeline_status == pq.PipelineStatus.OFF:
        handle.enter_pipeline_mode()
    for name, arguments in calls:
        handle.send_query_prepared(name, arguments, [_BINARY] * len(arguments), _BINARY)
        # The calls between two syncs are one transaction.
        handle.pipeline_sync()
    _flush_output(connection)


def receive_pipelined(connection: PostgresConnection, count: int) -> list[bytes]:
    """Return the answers of the next `count` pipelined calls."""
    return [_single_value(_read_results_to_sync(connection)) for _ in range(count)]


def end_pipeline(connection: PostgresConnection) -> None:
    """Leave the pipeline mode: every call is answered."""
    if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        connection.pgconn.exit_pipeline_mode()


def receive_answers(connection: PostgresConnection, count: int) -> list[bytes]:
    """Return the answers of `count` calls, one value each. After an error the connection must not be used any more."""
    if count == 1:
        return [_single_value(_read_results(connection))]
    answers = receive_pipelined(connection, count)
    end_pipeline(connection)
    return answers


def _single_value(results: Iterable[PGresult]) -> bytes:
    """Return the value of the one row; raise the error in any of the results, since a commit fails at the end."""
    answer: bytes | None = None
    for result in results:
        if result.status == _TUPLES_OK:
            answer = result.get_value(0, 0)
        elif result.error_field(_SQLSTATE) == _UNIQUE_VIOLATION:
            answer = DUPLICATE
        else:
            raise error_from_result(result)
    if answer is None:
        raise psycopg.OperationalError("no answer came")
    return answer


def _read_results(connection: PostgresConnection) -> list[PGresult]:
    return list(iter(functools.partial(_next_result, connection), None))


def _read_results_to_sync(connection: PostgresConnection) -> list[PGresult]:
    """Return the results of one pipelined call, which end with a sync."""
    results = _read_results(connection)
    while (result := _next_result(connection)) is not None:
        if result.status == _PIPELINE_SYNC:
            return results
        results.append(result)
    # Raises the error among the last results, if there is one: it is more precise.
    _single_value(results)
    raise psycopg.OperationalError("the connection was lost")


def _next_result(connection: PostgresConnection) -> PGresult | None:
    handle = connection.pgconn
    while handle.is_busy():
        connection.wait_for_server()
        handle.consume_input()
    return handle.get_result()


def _flush_output(connection: PostgresConnection) -> None:
    """Send all output. Input is read meanwhile: a server that can't send its answers would stop reading."""
    handle = connection.pgconn
    while handle.flush():
        if connection.wait_for_server(to_send=True):
            handle.consume_input()
