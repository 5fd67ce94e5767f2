"""The proxy fails at exactly the byte that it was told, and is no obstacle otherwise."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.proxy import WAYS, Fault, Kind, Proxy, Way

QUESTION, ANSWER = b"0123456789", b"abcdefghijklmnopqrst"


class Server(socketserver.ThreadingTCPServer):
    """Answers each ten bytes by twenty, and notes all that it got and how it ended."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got = b""
        self.ends: list[str] = []
        self.ended = threading.Condition()

    def wait_for_ends(self, count: int) -> None:
        with self.ended:
            assert self.ended.wait_for(lambda: len(self.ends) >= count, 10)


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server, rest, end = self.server, b"", "fin"
        assert isinstance(server, Server)
        try:
            while data := self.request.recv(1 << 16):
                server.got += data
                rest += data
                while len(rest) >= len(QUESTION):
                    rest = rest[len(QUESTION) :]
                    self.request.sendall(ANSWER)
        except ConnectionResetError:
            end = "rst"
        with server.ended:
            server.ends.append(end)
            server.ended.notify_all()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", int(server.server_address[1])) as proxy:
        yield proxy


def ask(proxy: Proxy, times: int = 1, timeout_s: float = 10.0) -> tuple[bytes, str]:
    """Ask over one connection; return what came back, and how it ended."""
    got = b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout_s) as wire:
        try:
            for number in range(times):
                wire.sendall(QUESTION)
                while len(got) < (number + 1) * len(ANSWER):
                    data = wire.recv(1 << 16)
                    if not data:
                        return got, "fin"
                    got += data
        except TimeoutError:
            return got, "silence"
        except (ConnectionResetError, BrokenPipeError):
            return got, "rst"
    return got, "ok"


def test_everything_passes_and_is_counted(proxy: Proxy, server: Server) -> None:
    assert ask(proxy, 3) == (ANSWER * 3, "ok")
    assert (proxy.passed("up"), proxy.passed("down")) == (30, 60)
    proxy.count_anew()
    assert (proxy.passed("up"), proxy.passed("down")) == (0, 0)
    assert server.got == QUESTION * 3
    with ThreadPoolExecutor(8) as many:
        assert list(many.map(lambda _: ask(proxy, 20), range(8))) == [(ANSWER * 20, "ok")] * 8
    assert (proxy.passed("up"), proxy.passed("down")) == (8 * 20 * 10, 8 * 20 * 20)


@pytest.mark.parametrize("kind", ["rst", "fin"])
@pytest.mark.parametrize("way", WAYS)
def test_a_connection_is_cut_at_each_byte(proxy: Proxy, server: Server, way: Way, kind: Kind) -> None:
    total = 2 * len(QUESTION if way == "up" else ANSWER)
    for at in range(total):
        server.got, server.ends = b"", []
        proxy.count_anew(Fault(way, at, kind))
        got, end = ask(proxy, 2)
        assert end != "ok" and not proxy.armed
        assert proxy.passed(way) == at
        server.wait_for_ends(1)
        if kind == "fin":
            assert len(server.got if way == "up" else got) == at
        assert ask(proxy) == (ANSWER, "ok"), "the next connection is whole"
        server.wait_for_ends(2)
    assert proxy.faults_happened == total


@pytest.mark.parametrize("way", WAYS)
def test_nothing_comes_out_of_a_hole(proxy: Proxy, server: Server, way: Way) -> None:
    proxy.count_anew(Fault(way, 15, "hole"))
    got, end = ask(proxy, 2, timeout_s=0.2)
    assert end == "silence"
    assert len(got) == (20 if way == "up" else 15)
    server.wait_for_ends(1)
    assert len(server.got) == (15 if way == "up" else 10)
    assert ask(proxy) == (ANSWER, "ok")


@pytest.mark.parametrize("kind", ["stall", "delay"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_late_comes_whole(proxy: Proxy, way: Way, kind: Kind) -> None:
    proxy.count_anew(Fault(way, 7, kind, seconds=0.3))
    with socket.create_connection(("127.0.0.1", proxy.port), 0.1) as wire:
        wire.sendall(QUESTION)
        early = wire.recv(100) if way == "down" else b""
        with pytest.raises(TimeoutError):
            wire.recv(100)
        wire.settimeout(10)
        assert early + wire.recv(100) == ANSWER
    assert proxy.armed is (kind == "delay")
    proxy.arm(None)
    assert ask(proxy) == (ANSWER, "ok")


def test_who_is_away_is_away_until_it_is_back(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as wire:
        wire.sendall(QUESTION)
        assert wire.recv(100) == ANSWER
        proxy.go_away()
        with pytest.raises(ConnectionResetError):
            wire.recv(100)
    assert ask(proxy)[1] in ("rst", "fin")
    proxy.go_away(False)
    assert ask(proxy) == (ANSWER, "ok")
