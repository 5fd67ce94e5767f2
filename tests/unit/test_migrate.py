"""What moving a store asks of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet import errors
from limpet.admin import migrate
from limpet.core.values import ids
from limpet.runtime.engine import Engine
from limpet.sessions.manager import Sessions, SessionService
from limpet.sessions.requests import Settings
from limpet.stores import store_copy
from limpet.stores.volatile import VolatileStore
from limpet.wiring.store_opener import open_store


class Asked(VolatileStore):
    """Counts how often it is asked where a tenant's log ends."""

    asked = 0

    def head(self, tenant: str) -> int:
        self.asked += 1
        return super().head(tenant)


def heads_asked(tenants: int) -> int:
    """Return how many ends are looked up to move so many tenants."""
    source = Asked()
    engine = Engine(source, factory=ids.SYSTEM_FACTORY)
    for number in range(tenants):
        Sessions(SessionService(engine, Settings(tenant=f"t{number}"))).create_session("s")
    source.asked = 0
    assert migrate.migrate(source, VolatileStore(), lambda *_: None).tenants == tenants
    return source.asked


def test_a_tenant_costs_the_same_however_many_there_are():
    assert heads_asked(40) == 4 * heads_asked(10)


def made_in(store: VolatileStore, session_id: str) -> None:
    """Have somebody write to a store."""
    manager = Sessions(SessionService(Engine(store, factory=ids.SYSTEM_FACTORY), Settings(tenant="default")))
    manager.create_session(session_id)


class Awaited(VolatileStore):
    """Somebody waits for a tenant to be there, and writes at once."""

    def put_note(self, tenant: str, name: str, value: bytes | None, *, expected: int) -> bool:
        put = super().put_note(tenant, name, value, expected=expected)
        if name == store_copy.COPY_NOTE and value is None:
            made_in(self, "new")
        return put


def test_what_is_written_to_the_target_as_soon_as_it_can_be_counts_for_nothing():
    source, target = VolatileStore(), Awaited()
    made_in(source, "s")
    moved = migrate.migrate(source, target, lambda *_: None)
    assert (moved.events, moved.behind) == (1, {})
    assert target.head("default") == 2


def test_only_a_store_without_a_file_is_backed_up_by_copying_its_log(tmp_path: Path):
    store = VolatileStore()
    migrate.backup(store, tmp_path / "monday.db", open_store, lambda *_: None)
    store.close()
    with pytest.raises(errors.EngineClosed):
        migrate.copy_store_file(store, tmp_path / "tuesday.db", lambda *_: None)
    with pytest.raises(errors.EngineClosed):
        migrate.backup(store, tmp_path / "tuesday.db", open_store, lambda *_: None)
    assert not list(tmp_path.glob("tuesday*"))
