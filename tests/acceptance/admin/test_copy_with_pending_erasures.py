"""Stores are copied while an engine elsewhere has not been told what was erased: it is told by whoever has the copy."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import limpet
from limpet import Limpet, errors
from limpet.admin import migrate
from limpet.admin.erasure import decode_hook_calls
from limpet.stores.port import Store
from limpet.testing.memory_fakes import Scribe
from limpet.wiring import store_opener
from limpet.wiring.store_opener import open_store
from tests.acceptance.conversation_steps import engine_of
from tests.acceptance.erasure.test_erase_unreachable_engines import Stubborn
from tests.acceptance.full_store import said
from tests.property.backends import OPENERS, opened


def left_to_tell(store: Store) -> list[tuple[str, str]]:
    """Return the tenants and users of whom engines elsewhere are still to be told."""
    return [(each.tenant, each.user_id) for each in decode_hook_calls(store.pending_erasures() or b"")]


def erased_without_it(lp: Limpet, memory: Stubborn) -> None:
    """Erase a user while an engine that knows them is away."""
    said(lp, "one", "ada", "I live in Oslo.")
    said(lp, "kept", "bob", "stays")
    assert lp.worker().run_once().failures == 0
    memory.fails = errors.Unavailable("away.")
    with pytest.raises(errors.Unavailable):
        lp.admin.erase(user_id="ada")
    assert left_to_tell(engine_of(lp).store) == [("default", "ada")]


def told_by(url: str | Path, memory: Stubborn) -> None:
    """Have a worker of a copy do what there is, now that the engine is back."""
    memory.fails = None
    with limpet.connect(url, memory=memory) as lp:
        assert [row["id"] for row in lp.sessions.list_sessions()] == ["kept"]
        assert lp.worker().run_once().failures == 0
        assert engine_of(lp).store.pending_erasures() is None
    assert memory.forgotten


@pytest.mark.parametrize("backend", list(OPENERS))
def test_a_backup_is_made_while_an_engine_is_away(backend: str, fast_dir: Path):
    memory, copy = Stubborn(), fast_dir / "copy.db"
    (fast_dir / "source").mkdir()
    with OPENERS[backend](fast_dir / "source") as url, limpet.connect(url, memory=memory) as lp:
        erased_without_it(lp, memory)
        lp.admin.backup(copy)
        assert left_to_tell(engine_of(lp).store) == [("default", "ada")]
    told_by(copy, memory)


@pytest.mark.parametrize("backend", [name for name in OPENERS if name != "volatile"])
def test_what_is_left_to_tell_moves_along_and_comes_back(backend: str, fast_dir: Path):
    memory, copy = Stubborn(), fast_dir / "copy.db"
    (fast_dir / "target").mkdir()
    with limpet.connect("volatile:", memory=memory) as lp:
        erased_without_it(lp, memory)
        lp.admin.backup(copy)
    with OPENERS[backend](fast_dir / "target") as url:
        store_opener.restore(copy, url, lambda *_: None)
        told_by(url, memory)


def test_what_a_target_has_to_tell_of_others_stays_and_what_was_told_goes(fast_dir: Path):
    memory, target = Stubborn(), fast_dir / "target.db"
    with limpet.connect(target, tenant="globex", memory=Scribe()) as lp:
        said(lp, "one", "cleo", "I live in Bergen.")
        assert lp.worker().run_once().failures == 0
    with limpet.connect(target, tenant="globex") as lp, pytest.raises(errors.Unavailable):
        lp.admin.erase(user_id="cleo")
    with limpet.connect("volatile:", memory=memory) as lp:
        erased_without_it(lp, memory)
        lp.admin.migrate(target)
        with closing(open_store(target)) as store:
            assert left_to_tell(store) == [("globex", "cleo"), ("default", "ada")]
        memory.fails = None
        lp.admin.erase()
        lp.admin.migrate(target)
    with closing(open_store(target)) as store:
        assert left_to_tell(store) == [("globex", "cleo")]


@pytest.mark.parametrize("backend", list(OPENERS))
def test_nothing_is_pending_after_a_copy_of_a_store_that_is_through(backend: str, fast_dir: Path):
    with limpet.connect("volatile:") as lp, opened(backend, fast_dir) as store:
        said(lp, "one", "ada", "I live in Oslo.")
        said(lp, "kept", "bob", "stays")
        lp.admin.erase(user_id="ada")
        migrate.migrate(engine_of(lp).store, store, lambda *_: None)
        assert store.pending_erasures() is None
