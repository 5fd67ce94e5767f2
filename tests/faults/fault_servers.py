"""Real servers for the fault tests, each with the ways to its store: straight, or through a proxy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tests.faults import slow_servers
from tests.servers import postgres, valkey


@dataclass(frozen=True, slots=True)
class Served:
    """A store of its own on a server. `kill` ends the server as a crash would, `start` starts it again."""

    name: str
    direct: str
    port: int
    kill: Callable[[], None]
    start: Callable[[], object]
    forget: Callable[[], object] = bool
    """Makes the server forget what it may: then all of it has to be sent again."""
    held: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Transactions take their time to commit."""

    def url(self, port: int = 0, **options: str | float) -> str:
        """Return the store's URL, by way of another port, and with options."""
        parts = urlsplit(self.direct)
        user = f"{parts.username}@" if parts.username else ""
        query = urlencode(parse_qsl(parts.query) + [(k, str(v)) for k, v in options.items()])
        place = f"{user}127.0.0.1:{port or self.port}"
        return urlunsplit((parts.scheme, place, parts.path, query, ""))

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()


@contextlib.contextmanager
def on_postgres(*settings: str) -> Iterator[Served]:
    """A PostgreSQL of its own."""
    server = postgres.Server(*settings)
    try:
        url = server.url(postgres.create(server))
        yield Served(
            "postgres", url, server.port, server.kill, server.start,
            held=lambda: slow_servers.on_postgres(url),
        )  # fmt: skip
    finally:
        server.close()


@contextlib.contextmanager
def on_valkey(**settings: str) -> Iterator[Served]:
    """A Valkey of its own."""
    with valkey.server(within=None, **settings) as server:
        url = valkey.fresh(server.url)

        def forget() -> None:
            with server.client() as client:
                client.script_flush()

        yield Served(
            "redis", url, server.port, server.kill, server.start, forget,
            held=lambda: slow_servers.on_valkey(server),
        )  # fmt: skip


SERVERS: dict[str, Callable[..., AbstractContextManager[Served]]] = {"postgres": on_postgres, "redis": on_valkey}
