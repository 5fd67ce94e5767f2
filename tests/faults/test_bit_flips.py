"""Damage to any byte of a store is reported, or does not matter; it is never read as truth."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from tests.faults import damage, results, small_store
from tests.faults.bit_flips import Truth, all_unnoticed, changed_by_refusal

SEED = 11


@pytest.fixture
def truth(scratch: Path) -> Truth:
    return Truth(scratch)


@pytest.mark.parametrize("every", [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)])
def test_one_flipped_bit_in_any_byte_is_never_read_as_truth(truth: Truth, every: int) -> None:
    count, silent = all_unnoticed(truth, damage.flips(truth.files, SEED, every))
    sizes = {name: len(content) for name, content in truth.files.items()}
    print(f"seed {SEED}: {count:,} flips of {sizes}")
    results.keep("bit flips", flips=count, seed=SEED, unnoticed=len(silent))
    assert silent == []
    assert count >= sum(sizes.values()) // every


@pytest.mark.slow
def test_nor_with_the_index_that_a_crash_left(truth: Truth) -> None:
    kept = {f"{small_store.STORE}-shm": truth.shm}
    _, silent = all_unnoticed(truth, damage.flips(truth.files, SEED, every=31), kept=kept)
    assert silent == []


@pytest.mark.slow
def test_nor_are_zeroed_sectors_and_shortened_files(truth: Truth) -> None:
    damages = [*damage.zeroed(truth.files), *damage.shortened(truth.files, every=101)]
    _, silent = all_unnoticed(truth, damages)
    assert silent == []


@pytest.mark.slow
def test_a_store_that_refuses_to_open_is_left_as_it_was(truth: Truth) -> None:
    damages = [*damage.flips(truth.files, SEED, every=97), *damage.shortened(truth.files, 997)]
    assert changed_by_refusal(truth, damages) == []


def test_an_emptied_database_is_no_new_store(scratch: Path) -> None:
    store = scratch / small_store.STORE
    with limpet.connect(store) as engine:
        engine.sessions.create_session("kept")
    store.write_bytes(b"")
    with pytest.raises(limpet.Corrupt):
        limpet.connect(store).close()
    assert store.read_bytes() == b""


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "file"), [("no-page-sums", ""), ("no-digests", ""), ("no-anchor", "-wal")])
def test_a_planted_bug_is_caught(truth: Truth, bug: str, file: str) -> None:
    name = small_store.STORE + file
    flips = damage.flips({name: truth.files[name]}, SEED, every=11)
    assert all_unnoticed(truth, flips, plant=bug, enough=1)[1]
