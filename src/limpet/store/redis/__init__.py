"""The store on Redis or Valkey: streams and scripts, one tenant on one server, safe in company of other processes.

Read `lua/apply.lua` first (a change), then `driver.py` (the verbs) and `servers.py` (what is sent where).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from limpet.core.values import ids
from limpet.store.redis import place
from limpet.store.redis.driver import RedisDriver
from limpet.store.redis.shelf import RedisShelf
from limpet.store.remote.store import RemoteStore

__all__ = ["RedisDriver", "RedisShelf", "exists", "open_driver", "open_shelf", "open_store"]


def open_driver(url: str) -> RedisDriver:
    """Return a driver for the server that a URL names, once its settings are seen to hold what is asked of them."""
    driver = RedisDriver(place.of(url))
    try:
        driver.check()
    except BaseException:
        driver.close()
        raise
    return driver


def open_store(
    url: str, *, random: Callable[[int], bytes] = ids.SYSTEM_FACTORY.random
) -> RemoteStore:
    """Open the store that a URL names; it begins empty.

    Raises UnsafeStore, StoreReadOnly, NewerStore, InvalidRequest or Unavailable; nothing is changed then.
    """
    return RemoteStore(open_driver(url), random=random)


def exists(url: str) -> bool:
    """Whether there is a store where a URL says. Nothing is made; raises as `open_store` does."""
    with contextlib.closing(RedisDriver(place.of(url))) as driver:
        return driver.exists()


def open_shelf(url: str) -> RedisShelf:
    """Return the shelf beside the store that a URL names."""
    return RedisShelf(place.of(url))
