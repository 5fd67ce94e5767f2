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
    """Open the store at a URL, creating it if there is none."""
    return ServerStore(PostgresDriver(connections.parse_url(url)))


def exists(url: str) -> bool:
    """Whether there is a store at a URL. Creates nothing; raises NotAStore if the schema holds something else."""
    return schema.store_exists(connections.parse_url(url))


def open_index_store(url: str) -> PostgresIndexStore:
    """Open the index store beside the store at a URL."""
    return PostgresIndexStore(connections.parse_url(url))
