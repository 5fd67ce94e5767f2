"""The store on Redis or Valkey: streams and Lua scripts, all keys of a tenant in one cluster slot.

A change is the script `apply` in `lua/apply.lua`. `driver` has the verbs, `connections` decides
which server a command goes to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from limpet.core.values import ids
from limpet.stores.server.redis import connections
from limpet.stores.server.redis.driver import RedisDriver
from limpet.stores.server.redis.index_store import RedisIndexStore
from limpet.stores.server.store import ServerStore

__all__ = ["RedisDriver", "RedisIndexStore", "exists", "open_driver", "open_index_store", "open_store"]


def open_driver(url: str) -> RedisDriver:
    """Return a driver for the server at a URL, after a check of the server's settings."""
    driver = RedisDriver(connections.parse_url(url))
    try:
        driver.check()
    except BaseException:
        driver.close()
        raise
    return driver


def open_store(url: str, *, random: Callable[[int], bytes] = ids.SYSTEM_FACTORY.random) -> ServerStore:
    """Open the store at a URL. Raises UnsafeStore, StoreReadOnly, NewerStore, InvalidRequest or Unavailable."""
    return ServerStore(open_driver(url), random=random)


def exists(url: str) -> bool:
    """Whether there is a store at a URL. Creates nothing; raises as `open_store` does."""
    with contextlib.closing(RedisDriver(connections.parse_url(url))) as driver:
        return driver.exists()


def open_index_store(url: str) -> RedisIndexStore:
    """Open the index store beside the store at a URL."""
    return RedisIndexStore(connections.parse_url(url))
