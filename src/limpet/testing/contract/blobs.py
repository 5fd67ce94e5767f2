"""Promise 9: large content beside the log, kept once by its hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from limpet import errors
from limpet.stores.port import Appended, Stale, Store
from limpet.testing.contract import stage
from limpet.testing.contract.stage import (
    OTHER,
    TENANT,
    blobs_of,
    commit,
    hash_of,
    step,
    take,
    verified,
    write,
)

LARGE = bytes(range(256)) * 4096


class Blobs(stage.Stage):
    """Blobs."""

    def test_blobs_come_back_by_their_hash(self, store: Store) -> None:
        contents = (b"", b"\x00", b"one", LARGE)
        take(store, step(write("a", 0, b"1", blobs=contents)))
        assert store.blobs(TENANT, [hash_of(each) for each in contents]) == {
            hash_of(each): each for each in contents
        }
        assert store.blobs(TENANT, [hash_of(b"one")] * 2) == {hash_of(b"one"): b"one"}
        assert store.blobs(TENANT, []) == {}

    def test_a_blob_that_is_not_there_is_left_out(self, store: Store) -> None:
        assert store.blobs(TENANT, [hash_of(b"one")]) == {}
        take(store, step(write("a", 0, b"1", blobs=(b"one",))))
        for other in (hash_of(b"two"), b"", hash_of(b"one")[:-1], hash_of(b"one") + b"\x00"):
            assert store.blobs(TENANT, [other]) == {}
        assert blobs_of(store, b"two", b"one") == [b"one"]

    def test_many_blobs_are_read_at_once(self, store: Store) -> None:
        contents = tuple(b"%d" % number for number in range(3_000))
        take(store, step(write("a", 0, b"1", blobs=contents)))
        assert blobs_of(store, *contents) == list(contents)

    def test_a_refused_append_leaves_no_blob(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", blobs=(b"one",))))
        refused = step(write("b", 0, b"no", blobs=(b"two",)), write("a", 0, b"no"))
        taken = step(write("b", 0, b"2", blobs=(b"three",)))
        assert commit(store, refused) == [Stale("a", 1)]
        assert commit(store, refused, taken) == [Stale("a", 1), Appended(2, 2)]
        assert blobs_of(store, b"one", b"two", b"three") == [b"one", b"three"]
        assert store.status()["blobs"] == 2

    def test_a_blob_is_kept_once(self, store: Store) -> None:
        take(
            store,
            step(
                write("a", 0, b"1", b"2", blobs=(LARGE, LARGE)), write("b", 0, b"3", blobs=(LARGE,))
            ),
        )
        again = [
            step(write("a", 2, b"4", blobs=(LARGE,))),
            step(write("a", 3, b"5", blobs=(LARGE,))),
        ]
        take(store, *again)
        assert store.status()["blobs"] == 1
        assert blobs_of(store, LARGE) == [LARGE]
        assert verified(store).faults == ()

    def test_tenants_have_their_blobs_apart(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", blobs=(b"one", b"two"))))
        take(store, step(write("a", 0, b"1"), tenant=OTHER))
        assert blobs_of(store, b"one", b"two", tenant=OTHER) == []
        take(store, step(write("a", 1, b"2", blobs=(b"one",)), tenant=OTHER))
        assert blobs_of(store, b"one", b"two", tenant=OTHER) == [b"one"]
        assert store.status()["blobs"] == 3, "each tenant has its own"
        assert verified(store).faults == ()

    def test_blobs_outlast_the_opener(self, store: Store, folder: Path) -> None:
        take(store, step(write("a", 0, b"1", blobs=(LARGE,))))
        again = self.reopen(store, folder)
        take(again, step(write("a", 1, b"2", blobs=(LARGE, b"two"))))
        assert blobs_of(again, LARGE, b"two") == [LARGE, b"two"]
        assert again.status()["blobs"] == 2
        again.close()

    def test_a_damaged_blob_is_found(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", blobs=(b"one", b"two"))))
        self.damage_blob(store, hash_of(b"one"))
        with pytest.raises(errors.Corrupt) as info:
            blobs_of(store, b"one", b"two")
        assert info.value.facts["blob"] == hash_of(b"one").hex()
        assert blobs_of(store, b"two") == [b"two"]
        (fault,) = verified(store).faults
        assert hash_of(b"one").hex() in fault

    def test_a_blob_that_is_brought_again_is_whole_again(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", blobs=(b"one",))))
        self.damage_blob(store, hash_of(b"one"))
        take(store, step(write("a", 1, b"2", blobs=(b"one",))))
        assert blobs_of(store, b"one") == [b"one"]
        assert verified(store).ok

    def test_a_lost_blob_is_missed(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", blobs=(b"one", b"two"))))
        take(store, step(write("a", 0, b"1", blobs=(b"one",)), tenant=OTHER))
        self.lose_blob(store, hash_of(b"one"))
        assert blobs_of(store, b"one", b"two") == [b"two"]
        (fault,) = verified(store).faults
        assert hash_of(b"one").hex() in fault
        assert "position 1" in fault
