"""Engines of memory that are away, or refuse: here everything is gone, nobody else waits, and the store opens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import limpet
from limpet import errors
from limpet.core.values.memory_records import TenantUser
from limpet.testing.memory_fakes import Scribe
from tests.acceptance.full_store import has, known, said


class Stubborn(Scribe):
    """An engine that can be made to fail when it is to forget."""

    fails: Exception | None = None

    def forget(self, user: TenantUser, session_id: str | None = None, position: int | None = None) -> int:
        """Fail, or forget."""
        if self.fails is not None:
            raise self.fails
        return super().forget(user, session_id, position)


@pytest.fixture
def path(fast_dir: Path) -> Path:
    return fast_dir / "state.db"


def taught(path: Path, memory: Scribe, tenant: str = "default") -> None:
    with limpet.connect(path, memory=memory, tenant=tenant) as lp:
        said(lp, "one", "ada", "I live in Oslo.")
        assert lp.worker().run_once().failures == 0
    assert memory.taken


@pytest.mark.parametrize(
    "error", [errors.Refused("no such key."), errors.EngineClosed(), ValueError("strange"), KeyError("x")]
)
def test_a_store_opens_whatever_an_engine_raises(path: Path, error: Exception):
    memory = Stubborn()
    taught(path, memory)
    memory.fails = error
    with limpet.connect(path, memory=memory) as lp, pytest.raises(errors.Error) as caught:
        lp.admin.erase(user_id="ada")
    assert caught.value.facts["pending"] is True
    assert "'events': 4" in str(caught.value.facts["receipt"])
    with limpet.connect(path, memory=memory) as lp:
        assert lp.sessions.load_session("one") is None
        assert lp.worker().run_once().failures == 1
    asyncio.run(_opened(path, memory))
    limpet.SessionManager(path.parent, memory=memory).close()
    assert not memory.forgotten
    memory.fails = None
    with limpet.connect(path, memory=memory) as lp:
        assert not memory.forgotten, "nobody is asked while a store is opened"
        assert lp.admin.erase().pending is False
        assert lp.sessions._service.engine.store.pending_erasures() is None
    assert memory.forgotten


async def _opened(path: Path, memory: Scribe) -> None:
    async with limpet.connect_async(path, memory=memory) as lp:
        assert await lp.sessions.load_session("one") is None


def test_the_worker_tells_what_is_pending(path: Path):
    memory = Stubborn()
    taught(path, memory)
    with limpet.connect(path) as lp, pytest.raises(errors.Unavailable):
        lp.admin.erase(user_id="ada")
    with limpet.connect(path, memory=memory) as lp:
        assert lp.worker().run_once().failures == 0
        assert lp.sessions._service.engine.store.pending_erasures() is None
    assert memory.forgotten


def test_a_tenant_does_not_wait_for_the_engine_of_another(path: Path):
    taught(path, Scribe(), "acme")
    acme = limpet.connect(path, tenant="acme", memory=True)
    with acme, pytest.raises(errors.Unavailable):
        acme.admin.erase(user_id="ada")
    with limpet.connect(path, tenant="globex", memory=True) as lp:
        said(lp, "two", "bob", "I live in Marmotville.")
        assert lp.worker().run_once().failures == 0
        assert known(lp, "bob")
        receipt = lp.admin.erase(user_id="bob")
        assert (receipt.pending, receipt.sessions) == (False, 1)
        assert not known(lp, "bob")
    assert not has(path.parent, "Marmotville")
    acme = limpet.connect(path, tenant="acme", memory=True)
    with acme, pytest.raises(errors.Unavailable):
        acme.admin.erase()


def test_a_store_with_something_left_to_tell_is_not_written_anew_each_time(path: Path, monkeypatch: pytest.MonkeyPatch):
    from limpet.stores.sqlite import event_erasure

    taught(path, Scribe())
    with limpet.connect(path) as lp, pytest.raises(errors.Unavailable):
        lp.admin.erase(user_id="ada")
    rewritten: list[object] = []
    monkeypatch.setattr(event_erasure, "rewrite_file", lambda *given: rewritten.append(given))
    limpet.connect(path).close()
    assert not rewritten
