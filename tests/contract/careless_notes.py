"""Stores that are careless with notes, or wait for the wrong news: the suite has to notice."""

from __future__ import annotations

from collections.abc import Generator

from limpet.stores.port import Note, Rebuilt, StreamDeriver
from limpet.stores.volatile import VolatileStore


class PutsNotesUnseen(VolatileStore):
    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        found = self.note(tenant, name)
        return super().put_note(tenant, name, value, expected=found.version if found else 0)


class CountsNotesAnew(VolatileStore):
    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        put = super().put_note(tenant, name, value, expected=expected)
        if not self._server.tenants[tenant].notes:
            self._server.tenants[tenant].note_versions = 0
        return put


class SharesNotes(VolatileStore):
    def note(self, tenant: str, name: str) -> Note | None:
        kept = (tables.notes.get(name) for tables in self._server.tenants.values())
        return next((row.note for row in kept if row), None)


class RebuildForgetsNotes(VolatileStore):
    def rebuild(self, derive: StreamDeriver) -> Generator[int | Rebuilt]:
        yield from super().rebuild(derive)
        for tables in self._server.tenants.values():
            tables.notes.clear()


class WaitsForAnybody(VolatileStore):
    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        heads = [len(tables.rows) for tables in self._server.tenants.values()]
        return max(heads, default=0) > after or super().wait(tenant, after, timeout_s)


PLANTED: dict[type[VolatileStore], str] = {
    PutsNotesUnseen: "test_a_note_is_put_on_the_version_that_was_seen",
    CountsNotesAnew: "test_a_version_is_never_given_twice",
    SharesNotes: "test_tenants_do_not_see_one_another",
    RebuildForgetsNotes: "test_a_rebuild_leaves_notes_as_they_are",
    WaitsForAnybody: "test_what_is_there_is_not_waited_for",
}
