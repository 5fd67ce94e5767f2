"""Tenants that are being copied into a store: a note says so, until all of them is there."""

from __future__ import annotations

from typing import Final

from holdfast import errors
from holdfast.store.port import Store

NOTE: Final = "arriving"


def is_arriving(store: Store, tenant: str) -> bool:
    """Whether a tenant is not all there yet."""
    return store.note(tenant, NOTE) is not None


def refuse(store: Store, tenant: str) -> None:
    """Raise UnsafeStore if a tenant is not all there yet: what is written now would part the copy from its source."""
    if is_arriving(store, tenant):
        raise errors.UnsafeStore(
            f"a copy of tenant {tenant!r} into this store was begun and is not through.",
            hint="Run the same holdfast migrate or holdfast restore again: it goes on where it was stopped.",
            facts={"tenant": tenant},
        )
