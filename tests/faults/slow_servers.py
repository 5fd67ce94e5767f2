"""Servers whose transactions take their time to commit, as those of busy servers do, and longer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg

from tests.servers import valkey

# At the commit, when all is written and nobody sees it yet: one in ten stays so for up to a twentieth of a second.
_LINGER = """
CREATE FUNCTION limpet.linger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < 0.1 THEN
        PERFORM pg_sleep(random() * 0.05);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON limpet.events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION limpet.linger();
"""
_LOCK = "SELECT * FROM limpet.heads ORDER BY random() LIMIT 1 FOR UPDATE"
_PAUSE_S, _PAUSE_EVERY_S = 0.03, 0.15


@contextlib.contextmanager
def on_postgres(url: str) -> Iterator[None]:
    """Have commits linger; one transaction stays open all the time, others lock a tenant's head for a while."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_LINGER)
    with psycopg.connect(url) as idle, psycopg.connect(url) as locking:
        idle.execute("SELECT pg_current_xact_id()")

        def lock() -> None:
            locking.execute(_LOCK)
            _moment.wait(_PAUSE_S)
            locking.rollback()

        with _again_and_again(lock):
            yield


@contextlib.contextmanager
def on_valkey(server: valkey.Server) -> Iterator[None]:
    """Have all writes wait for a while, again and again."""
    with server.client() as client, _again_and_again(lambda: client.client_pause(int(_PAUSE_S * 1_000), all=False)):
        yield


_moment = threading.Event()
"""Never set."""


@contextlib.contextmanager
def _again_and_again(act: Callable[[], object]) -> Iterator[None]:
    enough = threading.Event()

    def run() -> None:
        while not enough.wait(_PAUSE_EVERY_S):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
