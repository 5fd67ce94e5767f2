"""Tenants that are being copied into a store: a note says so, until all of them is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from limpet import errors, limits
from limpet.store.port import Store

NOTE: Final = "arriving"


def is_arriving(store: Store, tenant: str) -> bool:
    """Whether a tenant is not all there yet."""
    try:
        return store.note(tenant, NOTE) is not None
    except errors.EventsLost:
        raise
    except errors.Corrupt:
        # A damaged note keeps nobody from what can be read; where nothing can be, that is told.
        store.head(tenant)
        return False


def refuse(store: Store, tenant: str) -> None:
    """Raise UnsafeStore if a tenant is not all there yet: what is written now would part the copy from its source."""
    if is_arriving(store, tenant):
        raise errors.UnsafeStore(
            f"a copy of tenant {tenant!r} into this store was begun and is not through.",
            hint="Run the same limpet migrate or limpet restore again: it goes on where it was stopped."
            " To use what has come so far instead: limpet rebuild --give-up-copy.",
            facts={"tenant": tenant},
        )


def put_note(store: Store, tenant: str, name: str, value: bytes | None) -> bool:
    """Have a note of a copy be so, whatever it was; return whether it was otherwise."""
    for _ in range(limits.RETRIES_MAX):
        found = store.note(tenant, name)
        if (found.value if found else None) == value:
            return False
        if store.put_note(tenant, name, value, expected=found.version if found else 0):
            return True
    raise errors.Unavailable("others change the target's notes; try again when nobody uses it.")


class Marks:
    """The notes of one copy on its way. It knows which tenants could be used before it came."""

    def __init__(self, source: Store, target: Store) -> None:
        self._source, self._target = source, target
        self._every: dict[str, bool] = {}
        """By tenant, whether it could be used before: it was all there, or not at all."""

    def put(self, tenant: str) -> None:
        """Say of a tenant that it is not all there; raise InvalidRequest if it is the source's own."""
        refuse(self._source, tenant)
        put = put_note(self._target, tenant, NOTE, b"unfinished")
        self._every.setdefault(tenant, put)
        if is_arriving(self._source, tenant):
            put_note(self._target, tenant, NOTE, None)
            raise errors.InvalidRequest(
                "source and target are the same store.", hint="Name another store to copy to."
            )

    def take_back(self, changed: Iterable[str]) -> None:
        """Let tenants be used again that could be before, but for those that were changed."""
        kept = frozenset(changed)
        for tenant, usable in self._every.items():
            if usable and tenant not in kept:
                put_note(self._target, tenant, NOTE, None)

    def clear(self) -> None:
        """Let all of them be used."""
        for tenant in self._every:
            put_note(self._target, tenant, NOTE, None)
