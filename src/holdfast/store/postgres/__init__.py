"""A store on PostgreSQL: `postgresql://user@host/database`. Needs the extra `postgres`."""

from __future__ import annotations

from holdfast.store.port import Store
from holdfast.store.postgres import place
from holdfast.store.postgres.driver import PostgresDriver
from holdfast.store.postgres.shelf import PostgresShelf
from holdfast.store.remote.store import RemoteStore

__all__ = ["PostgresDriver", "PostgresShelf", "open_shelf", "open_store"]


def open_store(url: str) -> Store:
    """Open the store that a URL names, making it the first time."""
    return RemoteStore(PostgresDriver(place.of(url)))


def open_shelf(url: str) -> PostgresShelf:
    """Open the shelf beside the store that a URL names."""
    return PostgresShelf(place.of(url))
