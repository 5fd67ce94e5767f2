"""Connections to Redis servers: the settings in a URL, Lua scripts, and the routing within a cluster.

redis-py's pools and retries are not used, because they repeat a command whose answer was lost.
Here a write that was sent and not answered is never repeated; a read is, once.

Each file in `lua/` holds several scripts, each below a line `-- name: x FLAGS`. The flags are
`writes`; `repeatable` (writes, but may be sent twice); `derived` (needs the functions for derived
rows); `no-tenant` (needs no functions). A script is sent in full once and then called by its SHA-1.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qsl, unquote

import msgspec
import redis
import redis.connection
import redis.crc
from redis import exceptions
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, TryAgainError

from limpet import errors, limits
from limpet.stores import urls
from limpet.stores.port import DURABILITY_LEVELS
from limpet.stores.server.redis import error_mapping

_TLS_OPTIONS: Final = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
_OPTIONS: Final = ("prefix", "durability", "waitaof", "timeout_s", "connections", *_TLS_OPTIONS)
_OPTION_PATTERNS: Final = {
    # A brace would be taken for the part of a key that says where in a cluster it lies.
    "prefix": (r"[A-Za-z0-9_-]{1,64}", "a prefix is made of letters, digits, - and _"),
    "durability": ("|".join(DURABILITY_LEVELS), f"durability is one of {', '.join(DURABILITY_LEVELS)}"),
    "waitaof": ("[01]", "waitaof is 0 or 1"),
    "connections": (r"(?=[0-9]{1,5}$)0*([1-9][0-9]{0,3}|10000)", "connections is a whole number from 1 to 10,000"),
}
_SECONDS_MAX: Final = 86_400.0


class RedisDsn(msgspec.Struct, frozen=True, kw_only=True):
    """A server, or one of a cluster, and how a store on it is used."""

    host: str
    port: int
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: Mapping[str, str] | None = None
    cluster: bool = False
    prefix: str = "limpet"
    durability: str | None = None
    waitaof: bool = False
    timeout_s: float = limits.SERVER_RESPONSE_S
    connections: int = limits.SERVER_CONNECTIONS

    @property
    def shown(self) -> str:
        """The server as errors and status name it, without the password."""
        scheme = ("rediss" if self.tls is not None else "redis") + ("+cluster" * self.cluster)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}" + (f"/{self.database}" if self.database else "")

    def __repr__(self) -> str:
        return f"RedisDsn({self.shown})"


def parse_url(url: str) -> RedisDsn:
    """Return the settings in a URL; raise InvalidRequest for a wrong one."""
    urls.check_credentials(url)
    parts = urls.split_url(url)
    # Neither error is quoted or kept as the cause: it may quote a password after a typing mistake.
    try:
        port = parts.port or 6379
    except ValueError:
        raise _bad_url_error("the port in the URL is no number up to 65535") from None
    try:
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _bad_url_error("an option in the URL is not written as name=value") from None
    host = unquote(parts.hostname or "localhost")
    urls.check_host(host)
    cluster = parts.scheme.endswith("+cluster")
    if unknown := sorted(set(given) - set(_OPTIONS)):
        close = urls.closest_name(unknown[0], _OPTIONS)
        ours = f"Options are {', '.join(_OPTIONS)}."
        raise errors.InvalidRequest(
            f"{unknown[0]!r} is no option of a Redis store.", hint=f"Did you mean {close}=? {ours}" if close else ours
        )
    secure = parts.scheme.startswith("rediss")
    if not secure and (extra := sorted(set(given) & set(_TLS_OPTIONS))):
        raise _bad_url_error(f"{extra[0]!r} is for rediss:// only")
    database = _database(parts.path, cluster=cluster)
    for name, (pattern, form) in _OPTION_PATTERNS.items():
        if name in given and not re.fullmatch(pattern, given[name]):
            raise _bad_url_error(form)
    return RedisDsn(
        host=host,
        port=port,
        database=database,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls={_TLS_OPTIONS[name]: given[name] for name in _TLS_OPTIONS if name in given} if secure else None,
        cluster=cluster,
        prefix=given.get("prefix", "limpet"),
        durability=given.get("durability"),
        waitaof=given.get("waitaof") == "1",
        timeout_s=_timeout_s(given.get("timeout_s", limits.SERVER_RESPONSE_S)),
        connections=int(given.get("connections", limits.SERVER_CONNECTIONS)),
    )


def _database(path: str, *, cluster: bool) -> int:
    number = path.strip("/")
    if not number:
        return 0
    if cluster:
        raise _bad_url_error("a cluster has just one database: its URL has no path")
    if not (number.isascii() and number.isdigit()):
        raise _bad_url_error("what stands behind the host and its / is the number of a database")
    return int(number)


def _timeout_s(text: str | float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= _SECONDS_MAX:
        raise _bad_url_error(f"timeout_s is a number above 0, up to {_SECONDS_MAX:g}")
    return number


def _bad_url_error(why: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"{why}.", hint="Write redis://user:password@host:6379/0?durability=power-loss, for instance."
    )


_HEADER = "-- name: "


class LuaScript(msgspec.Struct, frozen=True):
    """A script, its SHA-1, and whether it changes anything that must be durable."""

    source: bytes
    sha1: bytes
    writes: bool


@cache
def load_script(name: str) -> LuaScript:
    sections = _load_sections()
    flags, text = sections[name]
    # A script flagged `no-writes` runs on a server whose memory is full; the others are refused there as a whole.
    parts = ["#!lua\n" if "writes" in flags else "#!lua flags=no-writes\n"]
    if "no-tenant" not in flags:
        parts.append(sections["common"][1])
    if "derived" in flags:
        parts.append(sections["derived_rows"][1])
    source = "".join((*parts, text)).encode()
    sha1 = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return LuaScript(source, sha1, "writes" in flags and "repeatable" not in flags)


@cache
def _load_sections() -> dict[str, tuple[frozenset[str], str]]:
    """Return flags and text of each section of all files, by its name."""
    sections: dict[str, tuple[frozenset[str], str]] = {}
    for file in resources.files(__package__).joinpath("lua").iterdir():
        for section in file.read_text("utf-8").split(_HEADER)[1:]:
            header, text = section.split("\n", 1)
            name, *flags = header.split()
            assert name not in sections, "two scripts have one name"
            sections[name] = frozenset(flags), text.rstrip("\n") + "\n"
    return sections


RedisArgument = bytes | str | int
RedisAnswer = object
"""Bytes, a number, None, a list of these, or an error."""


class RedisConnection(Protocol):
    """The part of redis-py's connection that is used here."""

    _sock: socket.socket | None

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def pack_commands(self, commands: Sequence[tuple[RedisArgument, ...]]) -> list[bytes]: ...
    def send_packed_command(self, command: list[bytes]) -> None: ...
    def read_response(self) -> RedisAnswer: ...


def interrupt_reader(connection: RedisConnection) -> None:
    """End a read of another thread on a connection. That thread closes it."""
    sock = connection._sock  # pyright: ignore[reportPrivateUsage]
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


class RedisCall(msgspec.Struct):
    """A command, or a script with its arguments, and the key that decides its server in a cluster."""

    key: bytes
    arguments: tuple[RedisArgument, ...]
    script: LuaScript | None = None

    def command(self, *, whole: bool = False) -> tuple[RedisArgument, ...]:
        """Return the command to send: a script by its SHA-1, or `whole` to a server that does not know it."""
        if self.script is None:
            return self.arguments
        if whole:
            return (b"EVAL", self.script.source, 1, self.key, *self.arguments)
        return (b"EVALSHA", self.script.sha1, 1, self.key, *self.arguments)


class RedisConnectionPool:
    """The connections to one server. Each is used by one thread at a time, and closed after any error."""

    def __init__(self, place: RedisDsn) -> None:
        self.dsn = place
        self._idle: list[RedisConnection] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(place.connections)
        self._closed = False
        self.opened_count = 0

    def run(self, commands: Sequence[tuple[RedisArgument, ...]]) -> list[RedisAnswer]:
        """Send commands together; return the answers, an error for a refused command. Raises redis-py's errors."""
        with self.borrow() as connection:
            connection.send_packed_command(connection.pack_commands(commands))
            return [read_answer(connection) for _ in commands]

    @contextlib.contextmanager
    def borrow(self) -> Generator[RedisConnection]:
        """Yield a connection. If the body raises, it is closed."""
        if not self._free.acquire(timeout=self.dsn.timeout_s):
            raise exceptions.TimeoutError("all connections are in use")
        try:
            connection = self._take_connection()
            try:
                yield connection
            except BaseException:
                connection.disconnect()
                raise
            with self._lock:
                if not self._closed:
                    self._idle.append(connection)
                    return
            connection.disconnect()
        finally:
            self._free.release()

    def _take_connection(self) -> RedisConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise errors.EngineClosed
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.open_connection()
            # An idle connection with input was closed by the server, or is out of step.
            try:
                if not connection.can_read(0):
                    return connection
            except error_mapping.DRIVER_ERRORS:
                pass
            connection.disconnect()

    def open_connection(self) -> RedisConnection:
        place = self.dsn
        kind = redis.connection.Connection if place.tls is None else redis.connection.SSLConnection
        options: dict[str, Any] = {
            "host": place.host,
            "port": place.port,
            "db": place.database,
            "username": place.user,
            "password": place.password,
            "socket_timeout": place.timeout_s,
            "socket_connect_timeout": min(place.timeout_s, limits.SERVER_CONNECT_S),
            "socket_keepalive": True,
            "protocol": 2,
            **(place.tls or {}),
        }
        connection = cast("RedisConnection", kind(**options))
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        self.opened_count += 1
        return connection

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()


def read_answer(connection: RedisConnection) -> RedisAnswer:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


RETRY_PAUSE_S: Final = 0.05
"""The pause between two checks whether a server has become ready."""

_CLUSTER_WAIT_S: Final = 5.0
"""How long a command is retried in a cluster while slots or primaries change."""

NOT_EXECUTED = (MovedError, AskError, TryAgainError, NoScriptError, ClusterDownError)
"""Answers to a command that was not executed, and may be: elsewhere, later, or sent whole."""

_CONNECTION_LOST: Final = (redis.ConnectionError, redis.TimeoutError)
"""Errors after which a server of a cluster may no longer be the primary."""

_NOT_SENT = TryAgainError("TRYAGAIN nothing was sent yet")


class RedisServers:
    """A server, or a cluster. Each command has a key; the commands for one server take one round trip."""

    def __init__(self, place: RedisDsn) -> None:
        self.dsn = place
        self._lock = threading.Lock()
        self._first_pool = RedisConnectionPool(place)
        self._pools: dict[tuple[str, int], RedisConnectionPool] = {(place.host, place.port): self._first_pool}
        self._slots: list[RedisConnectionPool] = []

    @property
    def opened_count(self) -> int:
        with self._lock:
            return sum(pool.opened_count for pool in self._pools.values())

    def script(self, name: str, key: bytes, *words: bytes | str | int) -> RedisAnswer:
        return self.run([RedisCall(key, words, load_script(name))])[0]

    def command(self, key: bytes, *words: bytes | str | int, write: bool = False) -> RedisAnswer:
        return self.run([RedisCall(key, words)], write=write)[0]

    def run(self, calls: Sequence[RedisCall], *, write: bool = False) -> list[RedisAnswer]:
        """Run calls, each atomic, and return their answers in order; raise the first error among them.

        A write that was sent and not answered is never repeated. A read is, once.
        """
        write = write or any(call.script is not None and call.script.writes for call in calls)
        try:
            answers = self._run_with_redirects(calls, write=write)
        except error_mapping.DRIVER_ERRORS as error:
            raise error_mapping.to_error(error, self.dsn) from error
        for answer in answers:
            if isinstance(answer, Exception):
                raise error_mapping.to_error(answer, self.dsn) from answer
        return answers

    def _run_with_redirects(self, calls: Sequence[RedisCall], *, write: bool) -> list[RedisAnswer]:
        if not self.dsn.cluster and not self.dsn.waitaof:
            answers = self._run_single_server(calls, write=write)
        else:
            answers = list[RedisAnswer](_NOT_SENT for _ in calls)
        left = [index for index, answer in enumerate(answers) if isinstance(answer, NOT_EXECUTED)]
        until = time.monotonic() + min(self.dsn.timeout_s, _CLUSTER_WAIT_S) if left else 0.0
        whole, again = False, not write
        while left and time.monotonic() < until:
            whole = self._prepare_retry([answers[index] for index in left], whole=whole)
            for pool, indexes in self._group_by_pool(calls, answers, left).items():
                chosen = [calls[index] for index in indexes]
                asking = [isinstance(answers[index], AskError) for index in indexes]
                try:
                    found = self._exchange(pool, chosen, asking, write=write, whole=whole)
                except _CONNECTION_LOST:
                    self.forget_pool(pool)
                    if not again or time.monotonic() >= until:
                        raise
                    again = False
                    continue
                for index, answer in zip(indexes, found, strict=True):
                    answers[index] = answer
            left = [index for index in left if isinstance(answers[index], NOT_EXECUTED)]
        return answers

    def _run_single_server(self, calls: Sequence[RedisCall], *, write: bool) -> list[RedisAnswer]:
        """Run calls on the only server. This is the usual case."""
        commands = [call.command() for call in calls]
        try:
            return self._first_pool.run(commands)
        except redis.ConnectionError:
            if write:
                raise
            return self._first_pool.run(commands)

    def _exchange(
        self, pool: RedisConnectionPool, calls: Sequence[RedisCall], asking: Sequence[bool], *, write: bool, whole: bool
    ) -> list[RedisAnswer]:
        commands: list[tuple[bytes | str | int, ...]] = []
        for call, ask in zip(calls, asking, strict=True):
            commands += [(b"ASKING",)] * ask
            commands.append(call.command(whole=whole))
        if write and self.dsn.waitaof:
            commands.append((b"WAITAOF", 1, 0, int(self.dsn.timeout_s * 900)))
        found = iter(pool.run(commands))
        answers: list[RedisAnswer] = []
        for ask in asking:
            if ask:
                next(found)
            answers.append(next(found))
        if write and self.dsn.waitaof:
            self._check_synced(next(found))
        return answers

    def _check_synced(self, answer: RedisAnswer) -> None:
        if isinstance(answer, Exception):
            raise answer
        if cast("list[int]", answer)[0] < 1:
            raise errors.Unavailable(
                f"{self.dsn.shown} has it, but has not synced it to its disk in time.",
                hint="Retry; with the same key it has one effect. ?timeout_s=60 in the URL waits longer.",
            )

    def _group_by_pool(
        self, calls: Sequence[RedisCall], answers: Sequence[RedisAnswer], left: Sequence[int]
    ) -> dict[RedisConnectionPool, list[int]]:
        parts: dict[RedisConnectionPool, list[int]] = {}
        for index in left:
            answer = answers[index]
            pool = (
                self._pool_at(str(cast("object", answer.host)), answer.port)
                if isinstance(answer, AskError)
                else self._pool_for_key(calls[index].key)
            )
            parts.setdefault(pool, []).append(index)
        return parts

    def _prepare_retry(self, refusals: Sequence[RedisAnswer], *, whole: bool) -> bool:
        """Wait or forget the slots, as the refusals require; return whether scripts must be sent whole."""
        if not self.dsn.cluster and any(isinstance(each, MovedError) for each in refusals):
            raise next(each for each in refusals if isinstance(each, MovedError))
        if any(isinstance(each, MovedError) for each in refusals):
            self._forget_slots()
        if any(isinstance(each, (TryAgainError, ClusterDownError)) and each is not _NOT_SENT for each in refusals):
            time.sleep(RETRY_PAUSE_S)
            self._forget_slots()
        return whole or any(isinstance(each, NoScriptError) for each in refusals)

    def single_pool(self) -> RedisConnectionPool | None:
        """Return the pool of the only server; None on a cluster, or if each write waits for a sync (WAITAOF).

        None, too, if only one connection is allowed: a pipeline would keep it, and its holder's reads would wait.
        """
        place = self.dsn
        return None if place.cluster or place.waitaof or place.connections < 2 else self._first_pool

    def primary_pools(self) -> list[RedisConnectionPool]:
        if not self.dsn.cluster:
            return [self._first_pool]
        self._pool_for_key(b"")
        with self._lock:
            return list(dict.fromkeys(self._slots))

    def _pool_for_key(self, key: bytes) -> RedisConnectionPool:
        if not self.dsn.cluster:
            return self._first_pool
        with self._lock:
            slots = self._slots
        if not slots:
            slots = self._load_slots()
        return slots[redis.crc.key_slot(key)]

    def _forget_slots(self) -> None:
        with self._lock:
            self._slots = []

    def forget_pool(self, pool: RedisConnectionPool) -> None:
        """Forget the slots, and ask this server last: it does not answer."""
        with self._lock:
            self._slots = []
            place = (pool.dsn.host, pool.dsn.port)
            if place in self._pools:
                self._pools[place] = self._pools.pop(place)

    def _pool_at(self, host: str, port: int) -> RedisConnectionPool:
        with self._lock:
            pool = self._pools.get((host, port))
            if pool is None:
                place = msgspec.structs.replace(self.dsn, host=host, port=port)
                pool = self._pools[host, port] = RedisConnectionPool(place)
            return pool

    def _load_slots(self) -> list[RedisConnectionPool]:
        failure: Exception | None = None
        with self._lock:
            known = list(self._pools.values())
        for pool in known:
            try:
                (answer,) = pool.run([(b"CLUSTER", b"SLOTS")])
                if isinstance(answer, Exception):
                    raise answer
            except error_mapping.DRIVER_ERRORS as error:
                self.forget_pool(pool)
                failure = failure or error
                continue
            ranges = cast("list[list[list[bytes | int]]]", answer)
            slots: list[RedisConnectionPool | None] = [None] * redis.crc.REDIS_CLUSTER_HASH_SLOTS
            for first, last, primary, *_ in ranges:
                host = cast("bytes", primary[0] or b"").decode() or pool.dsn.host
                at = self._pool_at(host, cast("int", primary[1]))
                low, high = cast("int", first), cast("int", last)
                slots[low : high + 1] = [at] * (high + 1 - low)
            if None in slots:
                failure = ClusterDownError("CLUSTERDOWN not every slot has a server")
                continue
            with self._lock:
                self._slots = cast("list[RedisConnectionPool]", slots)
                return self._slots
        raise failure or redis.ConnectionError("no server of the cluster answers")

    def close(self) -> None:
        with self._lock:
            links = list(self._pools.values())
        for pool in links:
            pool.close()
