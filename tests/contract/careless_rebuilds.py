"""Stores that rebuild too little or too much: the suite has to notice."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from limpet.stores.port import DerivedState, Rebuilt, StreamDeriver
from limpet.stores.volatile import VolatileStore


class RebuildsOnTop(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        before = {t: tables.projections for t, tables in self._server.tenants.items()}
        yield from super().rebuild(derive)
        for tenant, rows in before.items():
            for kind, known in rows.items():
                now = self._server.tenants[tenant].projections.setdefault(kind, {})
                now.update({id_: row for id_, row in known.items() if id_ not in now})


class RebuildsWithoutClaims(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        return super().rebuild(lambda *given: msgspec.structs.replace(derive(*given), claims=()))


class RebuildsTheLastClaims(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        def backwards(*given: Any) -> DerivedState:
            made = derive(*given)
            return msgspec.structs.replace(made, claims=made.claims[::-1])

        return super().rebuild(backwards)


class RebuildsWithoutUses(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        return super().rebuild(lambda *given: msgspec.structs.replace(derive(*given), blobs=()))


class RebuildsByPieces(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        for tables in self._server.tenants.values():
            tables.projections.clear()
        return super().rebuild(derive)


class RebuildForgetsKeys(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        yield from super().rebuild(derive)
        for tables in self._server.tenants.values():
            tables.keys.clear()


class RebuildKeepsSnapshots(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        before = {tenant: tables.snapshots for tenant, tables in self._server.tenants.items()}
        yield from super().rebuild(derive)
        for tenant, snapshots in before.items():
            self._server.tenants[tenant].snapshots = snapshots


class RebuildsUncounted(VolatileStore):
    def cache_epoch(self, tenant: str) -> int:
        return 0


PLANTED: dict[type[VolatileStore], str] = {
    RebuildsOnTop: "test_what_was_tampered_with_is_put_right",
    RebuildsWithoutClaims: "test_a_rebuild_gives_the_same_again",
    RebuildsTheLastClaims: "test_a_claim_that_the_log_has_twice_is_the_first_ones",
    RebuildsWithoutUses: "test_it_is_known_again_which_events_need_a_blob",
    RebuildsByPieces: "test_one_that_fails_changes_nothing",
    RebuildForgetsKeys: "test_keys_stay_and_snapshots_go",
    RebuildKeepsSnapshots: "test_keys_stay_and_snapshots_go",
    RebuildsUncounted: "test_rebuilds_are_counted",
}
