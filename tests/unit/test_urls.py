"""URLs of stores as all backends read them."""

from __future__ import annotations

import pytest

from holdfast.store import urls


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("state.db", "state.db"),
        ("a:b@c.db", "a:b@c.db"),
        ("redis://host:6379/1?prefix=x", "redis://host:6379/1?prefix=x"),
        ("redis://:sesame@host", "redis://:***@host"),
        ("redis://me@host:1", "redis://me@host:1"),
        ("postgresql://me:p@s/s?s@host/db", "postgresql://me:***@host/db"),
        ("postgresql://host/db?user=me&password=sesame&x=1", "postgresql://host/db?user=me&password=***&x=1"),
    ],
)  # fmt: skip
def test_a_password_is_never_shown(url: str, shown: str):
    assert urls.shown(url) == shown
