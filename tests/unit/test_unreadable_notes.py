"""Notes and rows that can't be read are damage, and whoever is always overtaken gives up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from limpet import errors
from limpet.engine import engines, jobs, pending
from limpet.memory.builtin import BuiltIn
from limpet.memory.facts import factbook, journal
from limpet.memory.facts.journal import Journal
from limpet.memory.shelf import Put, VolatileShelf, key
from limpet.stores.volatile import VolatileStore
from limpet.testing.memory_contract import ADA

JUNK = b"\xc1 no row"


def noted(name: str) -> VolatileStore:
    store = VolatileStore()
    assert store.put_note("t", name, JUNK, expected=0)
    return store


def shelved(book: str, at: bytes) -> VolatileShelf:
    shelf = VolatileShelf()
    assert shelf.write([Put(book, at, JUNK)])
    return shelf


MINE = key(ADA.tenant, ADA.user_id)


@pytest.mark.parametrize(
    "read",
    [
        lambda: engines.known(noted(engines.NOTE), "t"),
        lambda: jobs.drop_gone(noted("x/1"), "t", ["x/"], lambda _: True),
        lambda: list(pending.todos(JUNK)),
        lambda: list(Journal(shelved(journal.TAKEN, MINE)).stand_ins(ADA)),
        lambda: Journal(shelved(journal.EPOCHS, key(ADA.tenant))).stop(ADA),
        lambda: list(factbook.Factbook(shelved(factbook.SLOTS, MINE)).all_slots(ADA)),
        lambda: factbook.Factbook(shelved(factbook.READY, MINE)).ready(ADA),
    ],
)
def test_what_can_not_be_read_is_corrupt(read: Callable[[], object]):
    with pytest.raises(errors.Corrupt):
        read()


def test_an_engine_that_can_not_be_noted_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch):
    store = VolatileStore()
    monkeypatch.setattr(store, "put_note", lambda *_, **__: False)
    with pytest.raises(errors.Unavailable):
        engines.remember(store, "t", "x")


@pytest.mark.parametrize("position", [None, 3])
def test_forgetting_that_is_always_overtaken_ends(
    monkeypatch: pytest.MonkeyPatch, position: int | None
):
    shelf = VolatileShelf()
    memory = BuiltIn(shelf, count=len)
    monkeypatch.setattr(shelf, "write", lambda *_, **__: False)
    with pytest.raises(errors.Unavailable):
        memory.forget(ADA, "s", position)
