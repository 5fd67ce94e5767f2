"""The log and everything kept beside it: the store port and its backends.

A store keeps bytes. It does not know what a message is.
"""

from __future__ import annotations


def split_statements(text: str) -> dict[str, str]:
    """Return the statements of an SQL file by the names that stand above them, without the last semicolon."""
    parts = (part.split("\n", 1) for part in text.split("-- name: ")[1:])
    return {name.strip(): statement.strip().removesuffix(";") for name, statement in parts}
