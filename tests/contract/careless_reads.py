"""Stores that read what is not there, or not any more: the suite has to notice."""

from __future__ import annotations

from limpet.stores.port import StoredEvent
from limpet.stores.volatile import VolatileStore


class ReadsUntilExclusively(VolatileStore):
    def read(
        self,
        tenant: str,
        stream: str,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        at: int | None = None,
        newest: bool = False,
    ) -> list[StoredEvent]:
        last = until - 1 if until else until
        return super().read(tenant, stream, after=after, until=last, limit=limit, at=at, newest=newest)


class ForgetsHowItWas(VolatileStore):
    """Reads every stream as it is now."""

    def read(
        self,
        tenant: str,
        stream: str,
        *,
        after: int = 0,
        until: int | None = None,
        limit: int = 256,
        at: int | None = None,
        newest: bool = False,
    ) -> list[StoredEvent]:
        last = at if until is None else until
        return super().read(tenant, stream, after=after, until=last, limit=limit, newest=newest)


class KeepsClaimsOfTheRewound(VolatileStore):
    def find_claim(self, tenant: str, stream: str, claim: str, *, at: int | None = None) -> int:
        versions = range(self.version(tenant, stream), 0, -1) if at is None else [at]
        found = (super(KeepsClaimsOfTheRewound, self).find_claim(tenant, stream, claim, at=v) for v in versions)  # fmt: skip
        return next(filter(None, found), 0)
