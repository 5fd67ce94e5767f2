"""Vectors on the shelf: found as they were put, apart by owner, gone when forgotten, whoever writes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import errors, limits
from limpet.core.values.memory_records import TenantUser
from limpet.memory.index.search import MessageFilter
from limpet.memory.index_store import IndexStore, VolatileIndexStore
from limpet.memory.vectors import vector_store
from limpet.memory.vectors.vector_store import VectorIndex, VectorStore
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from tests.unit.word_vectors import Words, rows, vector

ADA, BOB = TenantUser("t", "ada"), TenantUser("t", "bob")
SIZE = 16


@pytest.fixture(params=["volatile", "sqlite"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexStore]:
    made = VolatileIndexStore() if request.param == "volatile" else SQLiteIndexStore(tmp_path / "x-memory")
    yield made
    made.close()


def opened(shelf: IndexStore, name: str = "words") -> VectorStore:
    return VectorStore(shelf, Words(name, SIZE))


def add(store: VectorStore, user: TenantUser, count: int, first: int = 1, session: str = "s") -> None:
    made = [vector(first + n, row, session) for n, row in enumerate(rows(count, SIZE, first))]
    assert store.add(user.tenant, store.progress(user.tenant), {user.user_id: made}, first + count - 1)


def positions(store: VectorStore, user: TenantUser) -> list[int]:
    return sorted(store.owner_index(user).vectors.positions.tolist())


def test_nothing_is_found_where_nothing_is(shelf: IndexStore):
    assert opened(shelf).owner_index(ADA).nearest(rows(1, SIZE)[0], 5) == []


def test_each_vector_is_the_nearest_to_itself(shelf: IndexStore):
    store = opened(shelf)
    count = limits.VECTOR_BLOCK * 2 + 7
    add(store, ADA, count)
    for n, row in enumerate(rows(count, SIZE, 1)[::50]):
        assert store.owner_index(ADA).vectors.rows[n * 50] @ row > 0.999
    assert opened(shelf).progress("t").position == count


def test_blocks_fill_up_and_what_was_read_grows(shelf: IndexStore):
    store, reader = opened(shelf), opened(shelf)
    first = 1
    for count in (1, 254, 1, 1, 300, 2):
        add(store, ADA, count, first)
        first += count
        assert positions(reader, ADA) == list(range(1, first))
        fresh = opened(shelf).owner_index(ADA)
        assert np.allclose(reader.owner_index(ADA).densities, fresh.densities, atol=1e-6)
    assert len(shelf.scan("vectors", b"", b"\xff", limit=99)) == 3


@given(st.lists(st.integers(1, 700), min_size=1, max_size=4))
@settings(max_examples=20)
def test_crowds_do_not_depend_on_how_a_gallery_came_about(counts: list[int]):
    every = rows(sum(counts), 8)
    made = [vector(n + 1, row) for n, row in enumerate(every)]
    whole = VectorIndex(vector_store.pack_block(made, 8).vectors())
    grown, first = VectorIndex(vector_store.pack_block(made[: counts[0]], 8).vectors()), counts[0]
    for count in counts[1:]:
        grown = grown.extended(vector_store.pack_block(made[first : first + count], 8).vectors())
        first += count
    assert np.allclose(grown.densities, whole.densities, atol=1e-5)


def test_owners_tenants_and_embedders_are_apart(shelf: IndexStore):
    store, other = opened(shelf), opened(shelf, "other")
    add(store, ADA, 3)
    add(store, BOB, 2, 4)
    add(store, TenantUser("t2", "ada"), 1)
    assert positions(store, ADA) == [1, 2, 3]
    assert positions(store, BOB) == [4, 5]
    assert positions(store, TenantUser("t2", "ada")) == [1]
    assert positions(other, ADA) == [] and other.progress("t").position == 0


def test_of_two_workers_one_is_first(shelf: IndexStore):
    one, two = opened(shelf), opened(shelf)
    mark = two.progress("t")
    add(one, ADA, 2)
    late = [vector(n, row) for n, row in enumerate(rows(2, SIZE), 1)]
    assert not two.add("t", mark, {"ada": late}, 2)
    assert positions(two, ADA) == [1, 2]


def test_forgetting_a_user_leaves_the_others_and_no_bytes(shelf: IndexStore):
    store, reader = opened(shelf), opened(shelf)
    add(store, ADA, 300, session="secret-session")
    add(store, BOB, 2, 301)
    assert positions(reader, ADA)
    assert store.forget(ADA) == 300
    assert positions(store, ADA) == positions(reader, ADA) == []
    assert positions(store, BOB) == [301, 302]
    assert store.forget(ADA) == 0
    if isinstance(shelf, SQLiteIndexStore):
        for file in shelf.path.parent.iterdir():
            assert b"secret-session" not in file.read_bytes()


def test_forgetting_a_session_or_a_message_leaves_the_rest(shelf: IndexStore):
    store, reader = opened(shelf), opened(shelf)
    add(store, ADA, 256, 1, "one")
    add(store, ADA, 10, 257, "two")
    add(store, ADA, 10, 267, "three")
    assert len(positions(reader, ADA)) == 276
    assert store.forget(ADA, "one") == 256
    assert store.forget(ADA, "two", 260) == 1
    assert store.forget(ADA, "three", 260) == 0
    rest = [n for n in range(257, 277) if n != 260]
    assert positions(store, ADA) == positions(reader, ADA) == rest
    add(store, ADA, 300, 277)
    assert positions(reader, ADA) == [*rest, *range(277, 577)]
    assert store.forget(ADA, "nothing") == 0


def test_a_step_that_began_before_something_was_forgotten_brings_nothing_back(shelf: IndexStore):
    worker, other = opened(shelf), opened(shelf)
    add(worker, ADA, 2)
    mark = worker.progress("t")
    made = [vector(3, rows(1, SIZE)[0])]
    other.forget(ADA, "s", 3)
    assert not worker.add("t", mark, {"ada": made}, 3)
    other.forget(BOB)
    assert not worker.add("t", mark, {"bob": made}, 3)
    assert worker.add("t", worker.progress("t"), {}, 3)
    assert positions(worker, ADA) == [1, 2] and positions(worker, BOB) == []


def test_what_comes_after_everything_was_forgotten_is_not_mixed_with_what_was(shelf: IndexStore):
    store, reader = opened(shelf), opened(shelf)
    add(store, ADA, 5)
    assert positions(reader, ADA) == [1, 2, 3, 4, 5]
    store.forget(ADA)
    add(store, ADA, 5, 11)
    assert positions(reader, ADA) == [11, 12, 13, 14, 15]


def test_filters_hold():
    made = [vector(n, row, f"s{n % 3}", ("user", "assistant")[n % 2]) for n, row in enumerate(rows(60, SIZE))]
    gallery = VectorIndex(vector_store.pack_block(made, SIZE).vectors())

    def found(wanted: MessageFilter) -> set[int]:
        return set(gallery.nearest(rows(1, SIZE, 9)[0], 100, wanted))

    assert found(MessageFilter()) == set(range(60))
    assert found(MessageFilter(roles=frozenset({"user"}))) == set(range(0, 60, 2))
    assert found(MessageFilter(session_id="s1")) == set(range(1, 60, 3))
    assert found(MessageFilter(since_us=10_000, until_us=12_000)) == {10, 11, 12}
    assert found(MessageFilter(session_id="none")) == set()


def test_a_message_of_several_passages_is_found_once():
    same = rows(1, SIZE)[0]
    made = [vector(7, same), vector(7, -same), vector(8, rows(2, SIZE)[1])]
    gallery = VectorIndex(vector_store.pack_block(made, SIZE).vectors())
    assert gallery.nearest(same, 5) == [7, 8]
    assert set(gallery.likeness([7, 8])) == {(7, 8)}


def test_what_is_said_all_the_time_is_worth_less():
    rng = np.random.default_rng(4)
    usual, asked = rows(2, SIZE, 4)
    often = [usual + rng.normal(scale=0.02, size=SIZE) for _ in range(40)]
    once = 0.45 * asked + rng.normal(scale=0.1, size=SIZE)
    made = [vector(n, row) for n, row in enumerate([*often, once])]
    gallery = VectorIndex(vector_store.pack_block(made, SIZE).vectors())
    question = (asked + 1.2 * usual) / np.linalg.norm(asked + 1.2 * usual)
    plain = gallery.vectors.rows @ question
    assert plain.argmax() != 40
    assert gallery.nearest(question.astype(np.float32), 1)[0] == 40


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_blocks_are_read_back_as_they_were_packed(count: int, seed: int):
    every = rows(count, 12, seed)
    block = vector_store.pack_block([vector(n, row, f"sé{n}") for n, row in enumerate(every)], 12)
    again = vector_store.decode_block(block.encode())
    assert again.encode() == block.encode()
    assert np.all((again.vectors().rows * every).sum(1) > 0.999)
    assert np.allclose(np.linalg.norm(again.vectors().rows, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x96\xa0\xa0\xa0\x90\xa0\xa0", b"\x93\x01\x02\x03"])
def test_a_damaged_block_is_reported(data: bytes):
    with pytest.raises(errors.Corrupt):
        vector_store.decode_block(data)


@pytest.mark.parametrize("answer", [[[1.0]], [[0.0] * 4], [[float("nan")] * 4], "text", [[1.0] * 4] * 2])
def test_an_embedder_that_gives_something_else_is_refused(answer: object):
    with pytest.raises(errors.WrongEmbedder):
        vector_store.unit_vectors(answer, 1, 4)  # pyright: ignore[reportArgumentType]


def test_memory_for_vectors_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "VECTOR_CACHE_BYTES", 3 * 10 * SIZE * 4)
    store = opened(VolatileIndexStore())
    for n in range(5):
        user = TenantUser("t", f"u{n}")
        add(store, user, 10, 1 + 10 * n)
        store.owner_index(user)
    assert list(store._cache) == [TenantUser("t", f"u{n}") for n in (2, 3, 4)]
