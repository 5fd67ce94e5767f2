"""The contract on Redis: on one server, and a part of it on a cluster of three."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

from limpet import errors
from limpet.stores.port import Projection, Store
from limpet.stores.server import redis as ours
from limpet.stores.server.driver import ProjectionRow
from limpet.stores.server.redis import serialization
from limpet.stores.server.redis.connections import RedisCall
from limpet.stores.server.store import ServerStore
from limpet.testing import store_contract
from limpet.testing.store_contract.durability_contract import ConcurrencyContract
from limpet.testing.store_contract.erasure_contract import CopyContract, ErasureContract
from limpet.testing.store_contract.harness import TENANT, StoreHarness
from limpet.testing.store_contract.log_contract import AppendContract
from limpet.testing.store_contract.projection_contract import NoteContract, RebuildContract
from tests.servers import valkey


class OnRedis(StoreHarness):
    """How the suite opens stores on Redis, and changes them beneath."""

    @pytest.fixture(autouse=True)
    def _urls(self) -> Iterator[None]:
        self.urls: dict[Path, str] = {}
        yield
        for url in self.urls.values():
            sweep(url)

    def server(self) -> str:
        return valkey.url()

    def open_store(self, folder: Path) -> Store:
        if folder not in self.urls:
            self.urls[folder] = valkey.fresh(self.server())
        return ours.open_store(self.urls[folder])

    def damage(self, store: Store, position: int) -> None:
        body = get(store, b"HGET", "body", position)
        spoil(store, b"HSET", "body", position, body[:-1] + bytes([body[-1] ^ 1]))

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        content = get(store, b"HGET", "blobs", hash_)
        spoil(store, b"HSET", "blobs", hash_, bytes([content[0] ^ 1]) + content[1:])

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        spoil(store, b"HDEL", "blobs", hash_)
        spoil(store, b"ZREM", "blobs:hash", hash_)

    def damage_note(self, store: Store, name: str) -> None:
        spoil(store, b"HSET", "notes", name, get(store, b"HGET", "notes", name) + b"x")

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        numbers = get(store, b"HGET", "names", stream), get(store, b"HGET", "names", other)
        for name, number in zip((other, stream), numbers, strict=True):
            spoil(store, b"HSET", "names", name, number)
            spoil(store, b"HSET", "streams", number, name)

    def damage_key(self, store: Store, key: str) -> None:
        first, last, rest = get(store, b"HGET", "keys", key).split(b" ", 2)
        spoil(store, b"HSET", "keys", key, b"%s %d %s" % (first, int(last) + 1, rest))

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        spoil(store, b"HDEL", "body", position)
        if like:
            spoil(store, b"HSET", "erased", position, get(store, b"HGET", "erased", like))

    def tamper(self, store: Store) -> None:
        """Change derived rows, make one up, lose others; change and lose claims; lose the uses of blobs."""
        d = f"d{int(get(store, b'HGET', 'head', 'g') or 0)}:"
        driver = driver_of(store)
        for kept in driver.projections(TENANT):
            row = kept.projection
            id_ = serialization.projection_key(row.kind, row.id)
            if row.id.endswith("/1"):
                spoil(store, b"HDEL", d + "rows", id_)
                continue
            false = Projection(kind=row.kind, id=row.id, owner="mallory", document=row.document)
            spoil(store, b"HSET", d + "rows", id_, serialization._pack_projection(ProjectionRow(false, kept.checksum)))
        made_up = ProjectionRow(Projection(kind="row", id="made up"), b"mark")
        spoil(
            store,
            b"HSET",
            d + "rows",
            serialization.projection_key("row", "made up"),
            serialization._pack_projection(made_up),
        )
        for stream in driver.streams(TENANT):
            spoil(store, b"DEL", f"{d}claims:{stream.number}")
            spoil(store, b"HSET", f"{d}claims:{stream.number}", "c0", 1)
        for order in ("at", "of", "by"):
            spoil(store, b"DEL", f"{d}uses:{order}")


class TestRedisStore(OnRedis, store_contract.StoreContract):
    walk_steps: ClassVar[int] = 200


class TestRedisCluster(
    OnRedis, AppendContract, ConcurrencyContract, CopyContract, ErasureContract, NoteContract, RebuildContract
):
    """What differs there: scripts find their server, tenants lie apart, and the store's own lists with neither."""

    walk_steps: ClassVar[int] = 60

    def server(self) -> str:
        return valkey.shared_cluster().url


def driver_of(store: Store) -> ours.RedisDriver:
    assert isinstance(store, ServerStore)
    assert isinstance(store._driver, ours.RedisDriver)
    return store._driver


def get(store: Store, command: bytes, key: str, *words: bytes | str | int) -> bytes:
    """Ask for something of TENANT's, beneath the store."""
    driver = driver_of(store)
    where = driver._names.tenant_prefix(TENANT) + key.encode()
    (answer,) = driver._servers.run([RedisCall(where, (command, where, *words))], write=True)
    return answer  # pyright: ignore[reportReturnType]


spoil = get


@contextmanager
def client_of(url: str) -> Iterator[redis.Redis | redis.RedisCluster]:
    """Talk to a server directly."""
    parts = urlsplit(url)
    kind = redis.RedisCluster if "cluster" in parts.scheme else redis.Redis
    made = kind(host=parts.hostname or "", port=parts.port or 6379, protocol=2)
    try:
        yield made
    finally:
        made.close()


def sweep(url: str) -> None:
    """Drop all keys of a store; none of them may have been set to expire."""
    (prefix,) = parse_qs(urlsplit(url).query)["prefix"]
    with client_of(url) as client:
        keys = list(client.scan_iter(f"{prefix}:*", count=1_000))
        with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.ttl(key)
                pipe.unlink(key)
            lives = pipe.execute()[::2]
        ends = [key for key, life in zip(keys, lives, strict=True) if life >= 0]
        assert all(key.endswith(b":guard") for key in ends), ends


def test_a_note_count_that_is_always_stale_raises_conflict(monkeypatch: pytest.MonkeyPatch):
    driver = ours.open_driver(valkey.fresh())
    assert driver.put_note(TENANT, "a", b"1", expected=0)
    monkeypatch.setattr(driver, "_note_counts", {})
    monkeypatch.setattr(driver, "_count_note", lambda *_: None)
    with pytest.raises(errors.Conflict):
        driver.put_note(TENANT, "a", b"2", expected=1)
    driver.close()
