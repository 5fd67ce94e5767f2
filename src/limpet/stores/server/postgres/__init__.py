"""The store on PostgreSQL: `postgresql://user@host/database`. Needs the extra `postgres`.

The tables, policies and functions are in `sql/schema-1.sql` and its successors.
"""

from __future__ import annotations

from limpet.stores.port import Store
from limpet.stores.server.postgres import connections, schema
from limpet.stores.server.postgres.driver import PostgresDriver
from limpet.stores.server.postgres.index_store import PostgresIndexStore
from limpet.stores.server.store import ServerStore

__all__ = ["PostgresDriver", "PostgresIndexStore", "exists", "open_index_store", "open_store"]


def open_store(url: str) -> Store:
    """Open the store that a URL names, making it the first time."""
    return ServerStore(PostgresDriver(connections.parse_url(url)))


def exists(url: str) -> bool:
    """Whether there is a store where a URL says. Nothing is made; raises NotAStore if something else is there."""
    return schema.store_exists(connections.parse_url(url))


def open_index_store(url: str) -> PostgresIndexStore:
    """Open the shelf beside the store that a URL names."""
    return PostgresIndexStore(connections.parse_url(url))
