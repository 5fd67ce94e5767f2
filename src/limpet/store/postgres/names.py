"""Texts as PostgreSQL keeps them, and the statements of this package by name."""

from __future__ import annotations

import functools
from pathlib import Path

from limpet.store import statements

_EMPTY = "\\-"


def kept(tenant: str) -> str:
    """Return a tenant's name as text that PostgreSQL can keep: it has no NUL, and is never empty."""
    if "\\" in tenant or "\0" in tenant:
        tenant = tenant.replace("\\", "\\\\").replace("\0", "\\0")
    return tenant or _EMPTY


def read(kept_: str) -> str:
    """Return the tenant's name that was kept so."""
    if "\\" not in kept_:
        return kept_
    if kept_ == _EMPTY:
        return ""
    parts = kept_.split("\\\\")
    return "\\".join(part.replace("\\0", "\0") for part in parts)


def sql(name: str) -> str:
    """Return the text of one of this package's SQL files."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@functools.cache
def named(file: str) -> dict[str, str]:
    """Return the statements of an SQL file by the names that stand above them."""
    return statements.named(sql(file))
