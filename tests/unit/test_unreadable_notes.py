"""Notes and rows that can't be read are damage, and whoever is always overtaken gives up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from limpet import errors
from limpet.admin import erasure
from limpet.jobs import tasks
from limpet.memory.builtin import BuiltInMemory
from limpet.memory.facts import fact_store
from limpet.memory.facts.fact_store import IngestJournal
from limpet.memory.index_store import PutRow, VolatileIndexStore, encode_key
from limpet.stores.volatile import VolatileStore
from limpet.testing.memory_contract import ADA

JUNK = b"\xc1 no row"


def noted(name: str) -> VolatileStore:
    store = VolatileStore()
    assert store.put_note("t", name, JUNK, expected=0)
    return store


def shelved(book: str, at: bytes) -> VolatileIndexStore:
    shelf = VolatileIndexStore()
    assert shelf.write([PutRow(book, at, JUNK)])
    return shelf


MINE = encode_key(ADA.tenant, ADA.user_id)


@pytest.mark.parametrize(
    "read",
    [
        lambda: tasks.known_engines(noted(tasks.ENGINES_NOTE), "t"),
        lambda: tasks.drop_notes_of_missing_sessions(noted("x/1"), "t", ["x/"], lambda _: True),
        lambda: list(erasure.decode_hook_calls(JUNK)),
        lambda: list(IngestJournal(shelved(fact_store.INGESTED, MINE)).fallback_ingests(ADA)),
        lambda: IngestJournal(shelved(fact_store.EPOCHS, encode_key(ADA.tenant))).abort_attempts(ADA),
        lambda: list(fact_store.FactStore(shelved(fact_store.SLOTS, MINE)).all_slots(ADA)),
        lambda: fact_store.FactStore(shelved(fact_store.RANKED_FACTS, MINE)).read_ranked(ADA),
    ],
)
def test_what_can_not_be_read_is_corrupt(read: Callable[[], object]):
    with pytest.raises(errors.Corrupt):
        read()


def test_an_engine_that_can_not_be_noted_is_no_endless_loop(monkeypatch: pytest.MonkeyPatch):
    store = VolatileStore()
    monkeypatch.setattr(store, "put_note", lambda *_, **__: False)
    with pytest.raises(errors.Unavailable):
        tasks.remember_engine(store, "t", "x")


@pytest.mark.parametrize("position", [None, 3])
def test_forgetting_that_is_always_overtaken_ends(monkeypatch: pytest.MonkeyPatch, position: int | None):
    shelf = VolatileIndexStore()
    memory = BuiltInMemory(shelf, count=len)
    monkeypatch.setattr(shelf, "write", lambda *_, **__: False)
    with pytest.raises(errors.Unavailable):
        memory.forget(ADA, "s", position)
