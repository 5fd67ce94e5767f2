"""Names of keys: a fixed prefix and encoded names, so that nobody's text is read as part of a pattern or a key."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from typing import Final

_PLAIN_BYTES_MAX: Final = 48
"""A longer text is named by its sum: a key stays short."""


@lru_cache(maxsize=4_096)
def encoded(text: str) -> str:
    """Return a text as letters, digits, - and _; what is long as its sum. No two texts have the same."""
    raw = text.encode()
    if len(raw) > _PLAIN_BYTES_MAX:
        return "~" + hashlib.sha256(raw).hexdigest()
    return "=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decoded(name: str) -> str:
    """Return the text that `encoded` made a name of; of a sum, the sum."""
    if not name.startswith("="):
        return name
    return base64.urlsafe_b64decode(name[1:] + "=" * (-len(name[1:]) % 4)).decode()


class Names:
    """The names of a store's keys. All of a tenant's have the same tag, so that they lie on one server."""

    def __init__(self, prefix: str, sender: bytes = b"") -> None:
        self.prefix = prefix
        self.sender = sender
        """Who tells news: whoever does need not hear them."""
        self.tenants = f"{prefix}:tenants".encode()
        self.noted = f"{prefix}:noted".encode()
        self.erasing = f"{prefix}:erasing".encode()
        self.pending = f"{prefix}:pending".encode()
        self.channel = f"{prefix}:news".encode()
        self.format = f"{prefix}:format".encode()
        self.logs = f"{prefix}:{{t*}}:log".encode()
        """What the keys of all logs are like, for a look through all keys."""
        self._bases: dict[str, bytes] = {}

    def base(self, tenant: str) -> bytes:
        """Return what all keys of a tenant begin with."""
        base = self._bases.get(tenant)
        if base is None:
            if len(self._bases) >= 10_000:
                self._bases.clear()
            tag = base64.urlsafe_b64encode(tenant.encode()).rstrip(b"=").decode()
            base = self._bases[tenant] = f"{self.prefix}:{{t{tag}}}:".encode()
        return base

    def tenant(self, key: bytes) -> str:
        """Return whose key it is: the inverse of `base`."""
        tag = key.removeprefix(f"{self.prefix}:{{t".encode()).partition(b"}")[0]
        return base64.urlsafe_b64decode(tag + b"=" * (-len(tag) % 4)).decode()

    def head(self, tenant: str) -> bytes:
        """Return the key that every script of a tenant is given."""
        return self.base(tenant) + b"head"
