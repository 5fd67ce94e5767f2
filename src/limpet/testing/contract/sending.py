"""Promises 1, 2 and 4 once more, for stores that send commits ahead of outcomes: each stands on those before it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from limpet.stores.port import Appended, KeyUse, Projection, Snapshot, Stale, Store, StorePipeline
from limpet.testing.contract import stage
from limpet.testing.contract.stage import (
    OTHER,
    TENANT,
    commit,
    feed_all,
    is_passed,
    step,
    take,
    verified,
    write,
)


class SendingAhead(stage.Stage):
    """Commits on their way. Skipped where a store has none."""

    def test_commits_sent_ahead_are_appended_in_their_order(self, store: Store) -> None:
        take(store, *(step(write(name, 0, name.encode())) for name in "abc"))
        with store.turn(), _sending(store) as out:
            assert out.send([step(write("a", 1, b"4", b"5", claims=(("c1", 1),)))])
            assert out.send([step(write("b", 1, b"6")), step(write("c", 1, b"7"))])
            assert out.receive() == [Appended(4, 5)]
            assert out.send([step(write("a", 3, b"8"))])
            assert out.receive() == [Appended(6, 6), Appended(7, 7)]
            assert out.receive() == [Appended(8, 8)]
        told = [event.payload for event in feed_all(store)]
        assert told == [b"a", b"b", b"c", b"4", b"5", b"6", b"7", b"8"]
        assert store.find_claim(TENANT, "a", "c1") == 3
        assert commit(store, step(write("d", 0, b"9"))) == [Appended(9, 9)]
        assert verified(store).ok

    def test_all_that_an_append_brings_is_there(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1")))
        row, snapshot = Projection(kind="row", id="1", document=b"d"), Snapshot("a", 2, 7, b"state")
        with store.turn(), _sending(store) as out:
            whole = step(
                write("a", 1, b"2", blobs=(b"large",)),
                projections=(row,),
                snapshots=(snapshot,),
                key=KeyUse("k1", b"h" * 32),
            )
            sent = out.send([whole]) and [out.receive()]
        if not sent:
            take(store, whole)
        assert (store.find(TENANT, "row", "1"), store.snapshot(TENANT, "a")) == (row, snapshot)
        assert store.find_key(TENANT, "k1") is not None
        assert stage.blobs_of(store, b"large") == [b"large"]
        assert verified(store).ok

    def test_tenants_are_told_apart(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1")), step(write("a", 0, b"1"), tenant=OTHER))
        with store.turn(), _sending(store) as out:
            assert out.send([step(write("a", 1, b"2"), tenant=OTHER), step(write("a", 1, b"2"))])
            assert out.send([step(write("a", 2, b"3"), tenant=OTHER)])
            assert out.receive() == [Appended(2, 2), Appended(2, 2)]
            assert out.receive() == [Appended(3, 3)]
        assert [event.payload for event in feed_all(store)] == [b"1", b"2"]
        assert [event.payload for event in feed_all(store, OTHER)] == [b"1", b"2", b"3"]

    def test_what_is_known_to_be_refused_is_not_sent(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1")))
        with store.turn(), _sending(store) as out:
            assert out.send([step(write("a", 1, b"2"))])
            assert not out.send([step(write("a", 1, b"3"))]), "one on its way has that version"
            assert not out.send([step(write("b", 0, b"4")), step(write("a", 7, b"5"))])
            assert out.receive() == [Appended(2, 2)]
        assert [event.payload for event in feed_all(store)] == [b"1", b"2"]

    def test_one_that_is_not_taken_takes_all_behind_it_along(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", claims=(("c1", 0),))), step(write("b", 0, b"2")))
        again = step(write("a", 1, b"3", claims=(("c1", 0),)))
        with store.turn(), _sending(store) as out:
            sent = [out.send([again]), out.send([step(write("b", 1, b"4"))])]
            outcomes = [out.receive() for each in sent if each]
        if sent[0]:
            assert all(is_passed(each) for (each,) in outcomes), "nothing of them is there"
            assert [event.payload for event in feed_all(store)] == [b"1", b"2"]
        assert not isinstance(commit(store, again)[0], Appended | Stale)
        take(store, step(write("b", store.version(TENANT, "b"), b"5")))
        assert verified(store).ok

    def test_others_who_were_faster_are_noticed(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        take(store, step(write("a", 0, b"1")), step(write("b", 0, b"2")))
        with closing(self.open_store(folder)) as other, store.turn(), _sending(store) as out:
            assert out.send([step(write("a", 1, b"3"))]) and out.receive() == [Appended(3, 3)]
            # Where nobody can be kept out of a store, another may write between two of its commits.
            take(other, step(write("c", 0, b"4")))
            assert out.send([step(write("a", 2, b"5"))]) and out.send([step(write("b", 1, b"6"))])
            assert all(is_passed(each) for each in (*out.receive(), *out.receive()))
        assert [event.payload for event in feed_all(store)] == [b"1", b"2", b"3", b"4"]
        take(store, step(write("a", 2, b"5")), step(write("b", 1, b"6")))
        assert verified(store).ok

    def test_who_leaves_while_some_are_on_their_way_finds_out_what_became_of_them(
        self, store: Store
    ) -> None:
        take(store, step(write("a", 0, b"1")), step(write("b", 0, b"2")))
        with store.turn(), _sending(store) as out:
            assert out.send([step(write("a", 1, b"3"))]) and out.send([step(write("b", 1, b"4"))])
        made = {name: store.version(TENANT, name) for name in "ab"}
        take(store, step(write("a", made["a"], b"5")), step(write("b", made["b"], b"6")))
        told = [event.payload for event in feed_all(store)]
        assert told.count(b"3") <= 1 and told.count(b"4") <= told.count(b"3"), (
            "none without those before"
        )
        assert verified(store).ok


def _sending(store: Store) -> StorePipeline:
    sending = store.sending()
    if sending is None:
        pytest.skip("this store sends nothing ahead")
    return sending
