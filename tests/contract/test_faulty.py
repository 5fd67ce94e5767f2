"""The faulty store fails where it is told to, and is otherwise the store it wraps."""

from pathlib import Path
from typing import ClassVar

import pytest

from limpet import errors
from limpet.stores.port import Appended, AppendOutcome, KeyRecord, KeyUse, Store
from limpet.stores.volatile import VolatileStore
from limpet.testing import faulty, store_contract
from limpet.testing.store_contract.harness import TENANT, commit, feed_all, make_append, write

KEYED = make_append(write("a", 0, b"1"), key=KeyUse("k1", b"hash"))


class TestFaultyStoreBeforeItsFault(store_contract.StoreContract):
    reopens: ClassVar[bool] = False

    def open_store(self, folder: Path) -> Store:
        return faulty.FaultyStore(VolatileStore(), fail_at=1_000_000)


@pytest.mark.parametrize(("before", "kept"), [(True, []), (False, [b"1"])])
def test_a_fault_comes_before_the_effect_or_after_it(before: bool, kept: list[bytes]):
    store = faulty.FaultyStore(VolatileStore(), fail_at=1, before=before)
    assert not store.failed
    with pytest.raises(errors.Unavailable):
        commit(store, KEYED)
    assert store.failed
    assert [event.payload for event in feed_all(store)] == kept


def test_it_fails_at_that_call_only():
    store = faulty.FaultyStore(VolatileStore(), fail_at=2)
    assert commit(store, make_append(write("a", 0, b"1"))) == [Appended(1, 1)]
    with pytest.raises(errors.Unavailable):
        store.delete_keys(TENANT, before_us=9)
    assert commit(store, make_append(write("a", 1, b"2"))) == [Appended(2, 2)]
    assert store.calls == 3


def test_forgetting_keys_can_fail_after_its_effect():
    store = faulty.FaultyStore(VolatileStore(), fail_at=2, before=False)
    commit(store, KEYED)
    with pytest.raises(errors.Unavailable):
        store.delete_keys(TENANT, before_us=9)
    assert store.find_key(TENANT, "k1") is None


@pytest.mark.parametrize("before", [True, False])
def test_a_caller_who_retries_with_the_key_has_one_effect(before: bool):
    store = faulty.FaultyStore(VolatileStore(), fail_at=1, before=before)
    assert retried(store) == (Appended(1, 1) if before else KeyRecord(b"hash", 1, 1))
    assert len(feed_all(store)) == 1


def test_a_caller_who_retries_blindly_is_found_out():
    store = faulty.FaultyStore(VolatileStore(), fail_at=1, before=False)
    with pytest.raises(errors.Unavailable):
        blind(store)
    blind(store)
    assert len(feed_all(store)) == 2, "the planted bug: the same thing twice"


def test_a_seed_chooses_the_call_and_the_side():
    faults = [faulty.seeded(VolatileStore(), seed=seed, within=5) for seed in range(40)]
    places = {(fault.fail_at, fault.before) for fault in faults}
    assert places == {(call, side) for call in range(1, 6) for side in (True, False)}
    again = [faulty.seeded(VolatileStore(), seed=seed, within=5) for seed in range(40)]
    assert [(f.fail_at, f.before) for f in again] == [(f.fail_at, f.before) for f in faults]


def retried(store: Store) -> AppendOutcome:
    for _ in range(2):
        try:
            return commit(store, KEYED)[0]
        except errors.Unavailable:
            continue
    raise AssertionError


def blind(store: Store) -> None:
    commit(store, make_append(write("a", store.version(TENANT, "a"), b"1")))
