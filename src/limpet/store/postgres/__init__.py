"""A store on PostgreSQL: `postgresql://user@host/database`. Needs the extra `postgres`."""

from __future__ import annotations

from limpet.store.port import Store
from limpet.store.postgres import opening, place
from limpet.store.postgres.driver import PostgresDriver
from limpet.store.postgres.shelf import PostgresShelf
from limpet.store.remote.store import RemoteStore

__all__ = ["PostgresDriver", "PostgresShelf", "exists", "open_shelf", "open_store"]


def open_store(url: str) -> Store:
    """Open the store that a URL names, making it the first time."""
    return RemoteStore(PostgresDriver(place.of(url)))


def exists(url: str) -> bool:
    """Whether there is a store where a URL says. Nothing is made; raises NotAStore if something else is there."""
    return opening.exists(place.of(url))


def open_shelf(url: str) -> PostgresShelf:
    """Open the shelf beside the store that a URL names."""
    return PostgresShelf(place.of(url))
