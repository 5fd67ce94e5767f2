"""The SQL files of this package, and the text under which PostgreSQL stores a tenant's name.

PostgreSQL's text type has no NUL, and an empty name is needed for "no tenant is set".
"""

from __future__ import annotations

import functools
from pathlib import Path

from limpet.stores import sql_statements as stores_sql_statements

_EMPTY_NAME = "\\-"


def encode_tenant(tenant: str) -> str:
    """Return a tenant's name as text that PostgreSQL can keep: it has no NUL, and is never empty."""
    if "\\" in tenant or "\0" in tenant:
        tenant = tenant.replace("\\", "\\\\").replace("\0", "\\0")
    return tenant or _EMPTY_NAME


def decode_tenant(kept_: str) -> str:
    """Return the tenant's name that was kept so."""
    if "\\" not in kept_:
        return kept_
    if kept_ == _EMPTY_NAME:
        return ""
    parts = kept_.split("\\\\")
    return "\\".join(part.replace("\\0", "\0") for part in parts)


def sql_text(name: str) -> str:
    """Return the text of one of this package's SQL files."""
    return (Path(__file__).with_name("sql") / name).read_text(encoding="utf-8")


@functools.cache
def sql_statements(file: str) -> dict[str, str]:
    """Return the statements of an SQL file by the names that stand above them."""
    return stores_sql_statements.split_statements(sql_text(file))
