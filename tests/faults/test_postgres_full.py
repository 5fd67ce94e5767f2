"""A PostgreSQL server whose files may grow no more, as with a quota: it is said, reading goes on, and later writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from limpet import errors
from limpet.stores.port import Appended, KeyRecord, KeyUse
from limpet.stores.server.postgres import open_store
from limpet.testing.store_contract.harness import commit, feed_all, make_append, verify_store, write
from tests.servers import postgres

FILE_BYTES = 17 * 2**20
"""A little more than a segment of the server's own log takes."""


@contextmanager
def cramped(server: postgres.Server) -> Iterator[None]:
    server.restart(file_bytes=FILE_BYTES)
    yield
    server.restart()


@pytest.mark.req("A-20")
def test_a_server_that_has_no_room_left():
    payload, size = os.urandom(1_000_000), 0

    def put() -> object:
        key = KeyUse(str(size), b"hash")
        return commit(store, make_append(write("a", size, payload), key=key))[0]

    with closing(postgres.Server()) as server, postgres.database(server) as url:
        open_store(url).close()
        with cramped(server), closing(open_store(url)) as store:
            full: errors.StoreFull | None = None
            while full is None and size < 60:
                try:
                    assert isinstance(put(), Appended)
                    size += 1
                except errors.StoreFull as error:
                    full = error
            assert full is not None and size > 10
            assert "no space left" in str(full) and "free some space" in full.hint
            assert len(feed_all(store)) == size
            assert verify_store(store).ok, "reading goes on"
        with closing(open_store(url)) as store:
            assert isinstance(put(), Appended), "and so does writing, once there is room"
            assert isinstance(put(), KeyRecord), "it had no effect before"
            assert verify_store(store).ok
