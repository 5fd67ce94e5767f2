"""Contract of the log: atomic conditional appends, gapless positions, forks, rewinds, pipelined commits.

Forks and rewinds refer to a base and copy nothing. A pipeline sends commits before the outcomes of
earlier ones are known.
"""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from limpet.stores.port import (
    Append,
    Appended,
    AppendOutcome,
    ClaimTaken,
    KeyRecord,
    KeyUse,
    NewEvent,
    Projection,
    Snapshot,
    Stale,
    Store,
    StoredEvent,
    StorePipeline,
    StreamWrite,
)
from limpet.testing.store_contract import harness
from limpet.testing.store_contract.harness import (
    OTHER,
    TENANT,
    append,
    commit,
    commit_all,
    event,
    feed_all,
    lost_race,
    make_append,
    try_append,
    verify_store,
    visible_state,
    write,
)


class AppendContract(harness.StoreHarness):
    """The log."""

    def test_an_append_takes_effect_whole(self, store: Store) -> None:
        row, snapshot = Projection(kind="row", id="1", document=b"d"), Snapshot("a", 2, 7, b"state")
        used, told = KeyUse("k1", b"h" * 32), write("a", 0, b"1", b"2", claims=(("c1", 1),))
        whole = make_append(told, write("b", 0, b"3"), projections=(row,), snapshots=(snapshot,), key=used)
        assert commit(store, whole) == [Appended(1, 3)]
        assert _payloads(feed_all(store)) == [("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"3")]
        assert store.find_claim(TENANT, "a", "c1") == 2
        assert store.find_key(TENANT, "k1") == KeyRecord(used.command_hash, 1, 3)
        assert store.find_projection(TENANT, "row", "1") == row
        assert store.snapshot(TENANT, "a") == snapshot
        assert store.tenants() == [TENANT]

    def test_committing_nothing_is_fine(self, store: Store) -> None:
        assert commit(store) == []
        assert store.tenants() == []

    @pytest.mark.parametrize(
        ("second", "key", "outcome"),
        [
            (write("b", 3, b"no"), "k2", Stale("b", 1)),
            (write("b", 1, b"no", b"no", claims=(("c2", 0), ("c1", 1))), "k2", ClaimTaken("b", "c1", 1)),
            (write("b", 1, b"no"), "k1", KeyRecord(b"first", 1, 2)),
        ],
        ids=["stale", "claim", "key"],
    )
    def test_an_append_refused_for_its_second_stream_or_its_key_leaves_no_trace(
        self, store: Store, second: StreamWrite, key: str, outcome: AppendOutcome
    ) -> None:
        row = Projection(kind="row", id="1", terms=("t1",), document=b"before")
        told = write("a", 0, b"1"), write("b", 0, b"2", claims=(("c1", 0),), blobs=(b"x1",))
        snapshot = Snapshot("a", 1, 1, b"before")
        append(store, *told, projections=(row,), snapshots=(snapshot,), key=KeyUse("k1", b"first"))
        before = visible_state(store)
        refused = make_append(
            write("a", 1, b"no", claims=(("c1", 0),), blobs=(b"x1", b"x2")),
            second,
            write("c", 0, b"no", claims=(("c3", 0),)),
            projections=(Projection(kind="row", id="2", terms=("t2",)),),
            drops=(("row", "1"),),
            snapshots=(Snapshot("a", 2, 1, b"no"), Snapshot("c", 1, 1, b"no")),
            key=KeyUse(key, b"second"),
        )
        assert commit(store, refused) == [outcome]
        assert visible_state(store) == before
        assert try_append(store, write("c", 0, b"3")) == Appended(3, 3), "no hole in the feed"

    def test_a_refused_first_append_makes_no_tenant(self, store: Store) -> None:
        assert try_append(store, write("a", 1, b"no")) == Stale("a", 0)
        assert store.tenants() == []
        assert try_append(store, write("a", 0, b"yes")) == Appended(1, 1)

    def test_a_refused_append_beside_another_makes_no_tenant(self, store: Store) -> None:
        refused = make_append(write("a", 1, b"no"), tenant=OTHER)
        assert commit(store, refused, make_append(write("a", 0, b"1"))) == [Stale("a", 0), Appended(1, 1)]
        assert store.tenants() == [TENANT]
        assert verify_store(store).tenants == 1

    def test_a_write_on_another_version_is_stale(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2"))
        for expected in (0, 1, 3):
            assert try_append(store, write("a", expected, b"no")) == Stale("a", 2)
        assert try_append(store, write("a", 2, b"3")) == Appended(3, 3)

    def test_a_claim_is_unique_in_its_stream_for_ever(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", claims=(("c1", 1),)))
        assert try_append(store, write("a", 2, b"no", claims=(("c1", 0),))) == ClaimTaken("a", "c1", 2)
        assert try_append(store, write("b", 0, b"3", claims=(("c1", 0),))) == Appended(3, 3)
        assert store.find_claim(TENANT, "a", "c1") == 2
        assert store.find_claim(TENANT, "b", "c1") == 1
        assert store.find_claim(TENANT, "a", "c2") == 0
        assert store.find_claim(TENANT, "c", "c1") == 0

    def test_a_claim_made_twice_in_one_append_is_taken_by_the_first(self, store: Store) -> None:
        append(store, write("a", 0, b"1"))
        before = visible_state(store)
        assert try_append(store, write("a", 1, b"no", b"no", b"no", claims=(("c1", 1), ("c1", 2)))) == ClaimTaken(
            "a", "c1", 3
        )
        assert visible_state(store) == before

    def test_a_key_is_checked_before_versions_and_those_before_claims(self, store: Store) -> None:
        used = KeyUse("k1", b"first")
        append(store, write("a", 0, b"1", claims=(("c1", 0),)), key=used)
        wrong = write("a", 0, b"no", claims=(("c1", 0),))
        taken = write("a", 1, b"no", claims=(("c1", 0),))
        assert try_append(store, wrong, key=used) == KeyRecord(b"first", 1, 1)
        assert try_append(store, taken, write("b", 9, b"no")) == Stale("b", 0)
        assert try_append(store, taken) == ClaimTaken("a", "c1", 1)

    def test_a_key_answers_with_its_first_use(self, store: Store) -> None:
        append(store, write("a", 0, b"1"))
        append(store, write("a", 1, b"2"), write("b", 0, b"3"), key=KeyUse("k1", b"first"))
        append(store, write("a", 2, b"4"))
        first_use = KeyRecord(b"first", 2, 3)
        assert store.find_key(TENANT, "k1") == first_use
        assert store.find_key(TENANT, "k2") is None
        assert try_append(store, write("a", 3, b"no"), key=KeyUse("k1", b"other")) == first_use
        assert store.find_key(TENANT, "k1") == first_use

    def test_keys_are_forgotten_by_the_time_of_their_use(self, store: Store) -> None:
        for version, (key, time_us) in enumerate((("k1", 10), ("k2", 20), ("k3", 30))):
            append(store, write("a", version, b"x"), key=KeyUse(key, b"h"), time_us=time_us)
        assert store.delete_keys(TENANT, before_us=10) == 0
        assert store.delete_keys(TENANT, before_us=21) == 2
        assert store.find_key(TENANT, "k1") is None
        assert store.find_key(TENANT, "k3") == KeyRecord(b"h", 3, 3)
        assert try_append(store, write("a", 3, b"x"), key=KeyUse("k1", b"new"), time_us=40) == Appended(4, 4)
        assert store.find_key(TENANT, "k1") == KeyRecord(b"new", 4, 4)

    def test_appends_of_one_commit_each_have_their_outcome(self, store: Store) -> None:
        append(store, write("a", 0, b"1", claims=(("c1", 0),)), key=KeyUse("k1", b"first"))
        assert commit(
            store,
            make_append(write("a", 1, b"2")),
            make_append(write("b", 5, b"no")),
            make_append(write("a", 2, b"no", claims=(("c1", 0),))),
            make_append(write("c", 0, b"no"), key=KeyUse("k1", b"first")),
            make_append(write("b", 0, b"3"), write("a", 2, b"4")),
        ) == [Appended(2, 2), Stale("b", 0), ClaimTaken("a", "c1", 1), KeyRecord(b"first", 1, 1), Appended(3, 4)]
        assert _payloads(feed_all(store)) == [("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"3"), ("a", 3, b"4")]

    def test_a_later_append_of_a_commit_sees_the_earlier(self, store: Store) -> None:
        row = Projection(kind="row", id="1", status="old", terms=("t1",))
        assert commit(
            store,
            make_append(write("a", 0, b"1", claims=(("c1", 0),)), key=KeyUse("k1", b"first"), projections=(row,)),
            make_append(write("a", 0, b"no")),
            make_append(write("a", 1, b"no", claims=(("c1", 0),))),
            make_append(write("a", 1, b"no"), key=KeyUse("k1", b"other")),
            make_append(write("a", 1, b"2"), drops=(("row", "1"),)),
        ) == [Appended(1, 1), Stale("a", 1), ClaimTaken("a", "c1", 1), KeyRecord(b"first", 1, 1), Appended(2, 2)]
        assert store.find_projection(TENANT, "row", "1") is None

    def test_one_commit_may_serve_several_tenants(self, store: Store) -> None:
        appends: list[Append] = [make_append(write("a", 0, b"1"), tenant=name) for name in ("x", "y", "z")]
        assert commit(store, *appends) == [Appended(1, 1)] * 3
        assert sorted(store.tenants()) == ["x", "y", "z"]

    def test_positions_and_versions_have_no_gaps(self, store: Store) -> None:
        for turn in range(1, 8):
            version = store.version(TENANT, "a")
            append(store, write("a", version, *[b"x"] * turn), write(f"s{turn}", 0, b"y"))
            commit(store, make_append(write("a", 0, b"no")), make_append(write("new", turn, b"no")))
        events = feed_all(store)
        assert [e.position for e in events] == list(range(1, 36))
        assert [e.version for e in events if e.stream == "a"] == list(range(1, 29))
        assert store.version(TENANT, "a") == 28
        assert store.version(TENANT, "new") == 0

    def test_a_stream_is_read_in_ranges(self, store: Store) -> None:
        append(store, write("b", 0, b"0"), write("a", 0, *[b"%d" % n for n in range(1, 11)]))

        def versions(after: int, until: int | None, limit: int) -> list[int]:
            return [e.version for e in store.read(TENANT, "a", after=after, until=until, limit=limit)]

        assert versions(0, None, 100) == list(range(1, 11))
        assert versions(3, None, 4) == [4, 5, 6, 7]
        assert versions(3, 5, 100) == [4, 5]
        assert versions(3, 8, 2) == [4, 5]
        assert versions(8, 100, 100) == [9, 10]
        assert versions(5, 5, 100) == versions(10, None, 100) == versions(0, 0, 100) == []
        assert [e.payload for e in store.read(TENANT, "a", after=8)] == [b"9", b"10"]
        assert store.read(TENANT, "missing") == []

    def test_the_feed_is_read_in_pages(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, *[b"x"] * 7)), make_append(write("b", 0, *[b"y"] * 4)))
        assert [e.position for e in store.feed(TENANT, after=5, limit=3)] == [6, 7, 8]
        assert [e.stream for e in store.feed(TENANT, after=6)] == ["a", "b", "b", "b", "b"]
        assert store.feed(TENANT, after=11) == store.feed(TENANT, after=99) == []
        assert feed_all(store, limit=1) == feed_all(store, limit=256)

    def test_reading_stops_at_256_unless_told(self, store: Store) -> None:
        append(store, write("a", 0, *[b"x"] * 300))
        assert len(store.read(TENANT, "a")) == len(store.feed(TENANT)) == 256
        assert len(store.read(TENANT, "a", limit=1_000)) == 300

    def test_a_stream_is_sought_by_ordinal(self, store: Store) -> None:
        events = tuple(event(b"x", ordinal=ordinal) for ordinal in (0, 1, 1, 4, 4, 9))
        append(store, StreamWrite("a", 0, events), write("b", 0, b"y"))
        sought = [store.find_ordinal(TENANT, "a", ordinal) for ordinal in range(-1, 11)]
        assert sought == [1, 1, 2, 4, 4, 4, 6, 6, 6, 6, 6, 0]
        assert store.find_ordinal(TENANT, "missing", 0) == 0

    def test_every_field_of_an_event_comes_back(self, store: Store) -> None:
        events = (
            NewEvent("a.b", 1, 0, b"1"),
            NewEvent("a.c", 2**31, 2**53, b"2", 0, 0, ""),
            NewEvent("a.d", 3, -1, b"3", 2**53, 2**53, "o200k"),
        )
        append(store, StreamWrite("a", 0, events))
        for position, (new, stored) in enumerate(zip(events, feed_all(store), strict=True), start=1):
            fields = (new.kind, new.schema, new.time_us, new.ordinal, new.tokens, new.counter, new.payload)
            assert stored == StoredEvent(position, "a", position, *fields, stored.link)
        assert store.read(TENANT, "a") == feed_all(store)

    def test_every_payload_comes_back(self, store: Store) -> None:
        every_byte = bytes(range(256))
        payloads = (b"", b"\x00", every_byte, b"{}", b"\xff\xfe", every_byte * 4096)
        append(store, write("a", 0, *payloads))
        assert tuple(e.payload for e in feed_all(store)) == payloads


def _payloads(events: list[StoredEvent]) -> list[tuple[str, int, bytes | None]]:
    return [(e.stream, e.version, e.payload) for e in events]


class ForkContract(harness.StoreHarness):
    """Forks and rewinds."""

    def test_a_fork_is_its_base_and_what_was_added(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3"))
        append(store, based_write("b", 0, ("a", 2), b"own", b"more"))
        append(store, write("a", 3, b"4"))
        assert read_payloads(store, "b") == [(1, b"1"), (2, b"2"), (3, b"own"), (4, b"more")]
        assert read_payloads(store, "a") == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
        assert (store.version(TENANT, "a"), store.version(TENANT, "b")) == (4, 4)
        assert {e.stream for e in store.read(TENANT, "b")} == {"b"}
        assert try_append(store, write("b", 3, b"late")) == Stale("b", 4)
        append(store, write("b", 4, b"last"))
        assert read_payloads(store, "b")[-1] == (5, b"last")
        assert verify_store(store).ok

    def test_a_fork_copies_nothing(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3"))
        assert try_append(store, based_write("b", 0, ("a", 3), b"own")) == Appended(4, 4)
        assert [e.payload for e in feed_all(store)] == [b"1", b"2", b"3", b"own"]
        assert [e.stream for e in feed_all(store)] == ["a", "a", "a", "b"]

    def test_a_rewound_stream_leaves_out_what_came_later(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3", b"4"))
        append(store, based_write("a", 4, ("a", 2), b"back"))
        assert read_payloads(store, "a") == [(1, b"1"), (2, b"2"), (5, b"back")]
        assert store.version(TENANT, "a") == 5
        assert read_payloads(store, "a", after=4) == [(5, b"back")], "who knew version 4 hears of it"
        append(store, write("a", 5, b"6"))
        assert read_payloads(store, "a") == [(1, b"1"), (2, b"2"), (5, b"back"), (6, b"6")]
        assert len(feed_all(store)) == 6, "nothing has left the log"
        assert verify_store(store).ok

    def test_a_stream_begins_anew(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", claims=(("x", 0),)))
        append(store, based_write("a", 2, ("a", 0), b"3", b"4", claims=(("x", 1),)))
        assert read_payloads(store, "a") == [(3, b"3"), (4, b"4")]
        assert read_payloads(store, "a", at=2) == [(1, b"1"), (2, b"2")]
        assert (store.find_claim(TENANT, "a", "x"), store.version(TENANT, "a")) == (4, 4)
        append(store, based_write("a", 4, ("a", 3), b"5"))
        assert read_payloads(store, "a") == [(3, b"3"), (5, b"5")]
        assert verify_store(store).ok

    def test_a_version_is_for_ever_what_it_was(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3", b"4"))
        append(store, based_write("a", 4, ("a", 2), b"5", b"6"))
        append(store, based_write("a", 6, ("a", 5), b"7"))
        append(store, based_write("a", 7, ("a", 4), b"8"))
        was = (b"", b"1", b"12", b"123", b"1234", b"125", b"1256", b"1257", b"12348")
        for version, payloads in enumerate(was):
            assert b"".join(p for _, p in read_payloads(store, "a", at=version)) == payloads, version
        assert read_payloads(store, "a", at=99) == read_payloads(store, "a"), "what will be is what is"
        assert read_payloads(store, "a", at=6, after=1, until=5) == [(2, b"2"), (5, b"5")]

    def test_a_fork_of_what_was_left_out(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3"))
        append(store, based_write("a", 3, ("a", 1), b"4"))
        append(store, based_write("b", 0, ("a", 3), b"own"))
        append(store, based_write("c", 0, ("a", 4), b"own"))
        assert read_payloads(store, "b") == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"own")]
        assert read_payloads(store, "c") == [(1, b"1"), (4, b"4"), (5, b"own")]
        assert verify_store(store).ok

    def test_a_fork_of_a_fork_and_a_rewind_into_the_base(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3"))
        append(store, based_write("a", 3, ("a", 2), b"4", b"5"))
        append(store, based_write("b", 0, ("a", 5), b"6", b"7"))
        append(store, based_write("c", 0, ("b", 4), b"8"))
        append(store, based_write("b", 7, ("b", 4), b"9"))
        append(store, based_write("d", 0, ("b", 2), b"10"))
        assert read_payloads(store, "b") == [(1, b"1"), (2, b"2"), (4, b"4"), (8, b"9")]
        assert read_payloads(store, "b", at=7)[-2:] == [(6, b"6"), (7, b"7")]
        assert read_payloads(store, "b", at=4) == [(1, b"1"), (2, b"2"), (4, b"4")]
        assert read_payloads(store, "c") == [(1, b"1"), (2, b"2"), (4, b"4"), (5, b"8")]
        assert read_payloads(store, "d") == [(1, b"1"), (2, b"2"), (3, b"10")]
        assert verify_store(store).ok

    def test_the_first_and_the_newest_of_a_range(self, store: Store) -> None:
        append(store, write("a", 0, *(b"%d" % n for n in range(1, 7))))
        append(store, based_write("a", 6, ("a", 3), b"7", b"8"))
        append(store, based_write("b", 0, ("a", 8), b"9"))
        for stream, whole in (("a", [1, 2, 3, 7, 8]), ("b", [1, 2, 3, 7, 8, 9])):
            for limit in range(1, 8):
                found = store.read(TENANT, stream, limit=limit)
                last = store.read(TENANT, stream, limit=limit, newest=True)
                assert [e.version for e in found] == whole[:limit]
                assert [e.version for e in last] == whole[-limit:]
            near = store.read(TENANT, stream, after=1, until=7, limit=2, newest=True)
            assert [e.version for e in near] == [3, 7]
        assert store.read(TENANT, "a", after=3, until=6) == []

    def test_seek_follows_the_stream(self, store: Store) -> None:
        append(store, StreamWrite("a", 0, tuple(event(b"", ordinal=n) for n in (0, 1, 2, 3))))
        back = tuple(event(b"", ordinal=n) for n in (1, 2))
        append(store, StreamWrite("a", 4, back, base=("a", 2)))
        append(store, StreamWrite("b", 0, (event(b"", ordinal=2),), base=("a", 6)))
        assert [store.find_ordinal(TENANT, "a", n) for n in range(5)] == [1, 2, 6, 0, 0]
        assert [store.find_ordinal(TENANT, "a", n, at=4) for n in range(5)] == [1, 2, 3, 4, 0]
        assert [store.find_ordinal(TENANT, "a", n, at=5) for n in range(5)] == [1, 2, 0, 0, 0]
        assert [store.find_ordinal(TENANT, "b", n) for n in range(4)] == [1, 2, 6, 0]

    def test_claims_of_the_base_count_as_far_as_it_goes(self, store: Store) -> None:
        claims = (("c1", 0), ("c2", 1), ("c3", 2))
        append(store, write("a", 0, b"1", b"2", b"3", claims=claims))
        append(store, based_write("b", 0, ("a", 2), b"own", claims=(("c3", 0),)))
        assert [store.find_claim(TENANT, "b", c) for c in ("c1", "c2", "c3")] == [1, 2, 3]
        append(store, based_write("a", 3, ("a", 1), b"4"))
        assert [store.find_claim(TENANT, "a", c) for c in ("c1", "c2", "c3")] == [1, 0, 0]
        assert [store.find_claim(TENANT, "a", c, at=3) for c in ("c1", "c2", "c3")] == [1, 2, 3]
        assert [store.find_claim(TENANT, "b", c) for c in ("c1", "c2", "c3")] == [1, 2, 3]
        assert try_append(store, write("a", 4, b"no", claims=(("c1", 0),))) == ClaimTaken("a", "c1", 1)
        assert try_append(store, write("b", 3, b"no", claims=(("c2", 0),))) == ClaimTaken("b", "c2", 2)
        append(store, write("a", 4, b"again", claims=(("c3", 0), ("c2", 0))))
        assert store.find_claim(TENANT, "a", "c3") == 5
        assert store.find_claim(TENANT, "a", "c3", at=3) == 3
        assert try_append(store, write("a", 5, b"no", claims=(("c3", 0),))) == ClaimTaken("a", "c3", 5)

    def test_a_fork_whose_claim_its_base_has_is_refused(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", claims=(("c1", 0), ("c2", 1))))
        refused = based_write("b", 0, ("a", 1), b"own", claims=(("c1", 0),))
        assert try_append(store, refused) == ClaimTaken("b", "c1", 1)
        assert store.version(TENANT, "b") == 0
        taken = based_write("b", 0, ("a", 1), b"own", claims=(("c2", 0),))
        assert commit(store, make_append(taken), make_append(refused)) == [Appended(3, 3), Stale("b", 2)]

    def test_a_base_waits_for_no_commit(self, store: Store) -> None:
        outcomes = commit(
            store,
            make_append(write("a", 0, b"1", b"2", claims=(("c1", 0),))),
            make_append(based_write("b", 0, ("a", 2), b"3", claims=(("c2", 0),))),
            make_append(based_write("a", 2, ("a", 1), b"4", claims=(("c2", 0),))),
            make_append(write("a", 3, b"5", claims=(("c2", 0),))),
            make_append(write("b", 3, b"6", claims=(("c1", 0),))),
        )
        assert outcomes[:3] == [Appended(1, 2), Appended(3, 3), Appended(4, 4)]
        assert outcomes[3:] == [ClaimTaken("a", "c2", 3), ClaimTaken("b", "c1", 1)]
        assert [p for _, p in read_payloads(store, "a")] == [b"1", b"4"]
        assert [p for _, p in read_payloads(store, "b")] == [b"1", b"2", b"3"]
        assert verify_store(store).ok

    def test_a_snapshot_that_was_left_out_is_absent(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3"), snapshots=(Snapshot("a", 3, 1, b"s"),))
        append(store, based_write("b", 0, ("a", 3), b"own"))
        assert store.snapshot(TENANT, "b") is None
        append(store, based_write("a", 3, ("a", 2), b"4"))
        assert store.snapshot(TENANT, "a") is None
        append(store, write("a", 4, b"5"), snapshots=(Snapshot("a", 5, 1, b"t"),))
        assert store.snapshot(TENANT, "a") == Snapshot("a", 5, 1, b"t")

    def test_the_version_at_a_position(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2"))
        append(store, based_write("b", 0, ("a", 2), b"3"))
        append(store, based_write("a", 2, ("a", 1), b"4"), write("b", 3, b"5"))
        assert [store.version(TENANT, "a", position=p) for p in range(7)] == [0, 1, 2, 2, 3, 3, 3]
        assert [store.version(TENANT, "b", position=p) for p in range(7)] == [0, 0, 0, 3, 3, 4, 4]
        assert store.version(TENANT, "c", position=9) == 0

    def test_bases_are_apart_for_tenants(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", b"3"))
        append(store, write("a", 0, b"x", b"y", b"z"), tenant=OTHER)
        append(store, based_write("a", 3, ("a", 1), b"4"))
        append(store, based_write("b", 0, ("a", 2), b"own"), tenant=OTHER)
        assert [e.payload for e in store.read(OTHER, "a")] == [b"x", b"y", b"z"]
        assert [e.payload for e in store.read(OTHER, "b")] == [b"x", b"y", b"own"]
        assert read_payloads(store, "a") == [(1, b"1"), (4, b"4")]

    def test_two_openers_agree_about_a_rewind(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        second = self.open_store(folder)
        append(store, write("a", 0, b"1", claims=(("c1", 0),)))
        append(second, write("a", 1, b"2", b"3", claims=(("c2", 0), ("c3", 1))))
        append(store, based_write("a", 3, ("a", 2), b"4"))
        assert read_payloads(second, "a") == read_payloads(store, "a") == [(1, b"1"), (2, b"2"), (4, b"4")]
        assert try_append(second, write("a", 3, b"late")) == Stale("a", 4)
        assert try_append(second, write("a", 4, b"no", claims=(("c2", 0),))) == ClaimTaken("a", "c2", 2)
        append(second, write("a", 4, b"5", claims=(("c3", 0),)))
        assert try_append(store, write("a", 5, b"no", claims=(("c3", 0),))) == ClaimTaken("a", "c3", 5)
        second.close()

    def test_bases_are_kept(self, store: Store, folder: Path) -> None:
        append(store, write("a", 0, b"1", b"2", b"3", claims=(("c1", 2),)))
        append(store, based_write("a", 3, ("a", 2), b"4"))
        append(store, based_write("b", 0, ("a", 4), b"5"))
        before = read_payloads(store, "a"), read_payloads(store, "b")
        again = self.reopen(store, folder)
        assert (read_payloads(again, "a"), read_payloads(again, "b")) == before
        assert again.find_claim(TENANT, "a", "c1") == 0
        assert verify_store(again).ok
        again.close()

    def test_forks_and_rewinds_agree_with_plain_lists(self, store: Store) -> None:
        for seed in range(5):
            _walk_forks(store, f"{seed}/", random.Random(seed))
        assert verify_store(store).ok


def based_write(
    stream: str, expected: int, base: tuple[str, int], *payloads: bytes, claims: tuple[tuple[str, int], ...] = ()
) -> StreamWrite:
    return msgspec.structs.replace(write(stream, expected, *payloads, claims=claims), base=base)


def read_payloads(
    store: Store, stream: str, *, after: int = 0, until: int | None = None, at: int | None = None
) -> list[tuple[int, bytes]]:
    found = store.read(TENANT, stream, after=after, until=until, at=at)
    return [(e.version, e.payload or b"") for e in found]


def _walk_forks(store: Store, prefix: str, dice: random.Random) -> None:
    """Take random steps on streams and on lists of their expected events, by version."""
    lists: dict[str, list[tuple[int, bytes]]] = {}
    was: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for number in range(60):
        payload, claims = b"%d" % number, ((f"{dice.randrange(40)}", 1),)
        name = prefix + dice.choice("abc")
        held = lists.get(name, [])
        version = held[-1][0] if held else 0
        base = dice.choice(list(was)) if was and dice.random() < 0.4 else None
        if base and base[0] != name and version:
            base = None
        kept = was[base] if base else held
        after = max(version, base[1]) if base else version
        taken = {claim for _, claim in kept if claim.startswith(b"c")}
        said = b"c" + claims[0][0].encode()
        new = StreamWrite(name, version, (event(payload), event(said)), claims, base)
        (outcome,) = commit(store, make_append(new))
        if said in taken:
            assert isinstance(outcome, ClaimTaken), (prefix, number, outcome)
            continue
        assert isinstance(outcome, Appended), (prefix, number, outcome)
        lists[name] = [*kept, (after + 1, payload), (after + 2, said)]
        was[name, after + 1], was[name, after + 2] = lists[name][:-1], lists[name]
        for stream, holds in lists.items():
            assert read_payloads(store, stream) == holds, (prefix, number, stream)
    for (stream, version), holds in was.items():
        assert read_payloads(store, stream, at=version) == holds, (prefix, stream, version)


class PipelineContract(harness.StoreHarness):
    """Commits on their way. Skipped where a store has none."""

    def test_commits_sent_ahead_are_appended_in_their_order(self, store: Store) -> None:
        commit_all(store, *(make_append(write(name, 0, name.encode())) for name in "abc"))
        with store.write_lock(), _pipeline(store) as out:
            assert out.send([make_append(write("a", 1, b"4", b"5", claims=(("c1", 1),)))])
            assert out.send([make_append(write("b", 1, b"6")), make_append(write("c", 1, b"7"))])
            assert out.receive() == [Appended(4, 5)]
            assert out.send([make_append(write("a", 3, b"8"))])
            assert out.receive() == [Appended(6, 6), Appended(7, 7)]
            assert out.receive() == [Appended(8, 8)]
        assert [event.payload for event in feed_all(store)] == [b"a", b"b", b"c", b"4", b"5", b"6", b"7", b"8"]
        assert store.find_claim(TENANT, "a", "c1") == 3
        assert try_append(store, write("d", 0, b"9")) == Appended(9, 9)
        assert verify_store(store).ok

    def test_all_that_an_append_brings_is_there(self, store: Store) -> None:
        append(store, write("a", 0, b"1"))
        row, snapshot = Projection(kind="row", id="1", document=b"d"), Snapshot("a", 2, 7, b"state")
        with store.write_lock(), _pipeline(store) as out:
            told, used = write("a", 1, b"2", blobs=(b"large",)), KeyUse("k1", b"h" * 32)
            whole = make_append(told, projections=(row,), snapshots=(snapshot,), key=used)
            sent = out.send([whole]) and [out.receive()]
        if not sent:
            commit_all(store, whole)
        assert (store.find_projection(TENANT, "row", "1"), store.snapshot(TENANT, "a")) == (row, snapshot)
        assert store.find_key(TENANT, "k1") is not None
        assert harness.blobs_of(store, b"large") == [b"large"]
        assert verify_store(store).ok

    def test_tenants_are_told_apart(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1")), make_append(write("a", 0, b"1"), tenant=OTHER))
        with store.write_lock(), _pipeline(store) as out:
            assert out.send([make_append(write("a", 1, b"2"), tenant=OTHER), make_append(write("a", 1, b"2"))])
            assert out.send([make_append(write("a", 2, b"3"), tenant=OTHER)])
            assert out.receive() == [Appended(2, 2), Appended(2, 2)]
            assert out.receive() == [Appended(3, 3)]
        assert [event.payload for event in feed_all(store)] == [b"1", b"2"]
        assert [event.payload for event in feed_all(store, OTHER)] == [b"1", b"2", b"3"]

    def test_what_is_known_to_be_refused_is_not_sent(self, store: Store) -> None:
        append(store, write("a", 0, b"1"))
        with store.write_lock(), _pipeline(store) as out:
            assert out.send([make_append(write("a", 1, b"2"))])
            assert not out.send([make_append(write("a", 1, b"3"))]), "one on its way has that version"
            assert not out.send([make_append(write("b", 0, b"4")), make_append(write("a", 7, b"5"))])
            assert out.receive() == [Appended(2, 2)]
        assert [event.payload for event in feed_all(store)] == [b"1", b"2"]

    def test_one_that_is_not_taken_takes_all_behind_it_along(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", claims=(("c1", 0),))), make_append(write("b", 0, b"2")))
        again = make_append(write("a", 1, b"3", claims=(("c1", 0),)))
        with store.write_lock(), _pipeline(store) as out:
            sent = [out.send([again]), out.send([make_append(write("b", 1, b"4"))])]
            outcomes = [out.receive() for each in sent if each]
        if sent[0]:
            assert all(lost_race(each) for (each,) in outcomes), "nothing of them is there"
            assert [event.payload for event in feed_all(store)] == [b"1", b"2"]
        assert not isinstance(commit(store, again)[0], Appended | Stale)
        append(store, write("b", store.version(TENANT, "b"), b"5"))
        assert verify_store(store).ok

    def test_others_who_were_faster_are_noticed(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        commit_all(store, make_append(write("a", 0, b"1")), make_append(write("b", 0, b"2")))
        with closing(self.open_store(folder)) as other, store.write_lock(), _pipeline(store) as out:
            assert out.send([make_append(write("a", 1, b"3"))]) and out.receive() == [Appended(3, 3)]
            # Where nobody can be kept out of a store, another may write between two of its commits.
            append(other, write("c", 0, b"4"))
            assert out.send([make_append(write("a", 2, b"5"))]) and out.send([make_append(write("b", 1, b"6"))])
            assert all(lost_race(each) for each in (*out.receive(), *out.receive()))
        assert [event.payload for event in feed_all(store)] == [b"1", b"2", b"3", b"4"]
        commit_all(store, make_append(write("a", 2, b"5")), make_append(write("b", 1, b"6")))
        assert verify_store(store).ok

    def test_who_leaves_while_some_are_on_their_way_finds_out_what_became_of_them(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1")), make_append(write("b", 0, b"2")))
        with store.write_lock(), _pipeline(store) as out:
            assert out.send([make_append(write("a", 1, b"3"))]) and out.send([make_append(write("b", 1, b"4"))])
        made = {name: store.version(TENANT, name) for name in "ab"}
        commit_all(store, make_append(write("a", made["a"], b"5")), make_append(write("b", made["b"], b"6")))
        told = [event.payload for event in feed_all(store)]
        assert told.count(b"3") <= 1 and told.count(b"4") <= told.count(b"3"), "none without those before"
        assert verify_store(store).ok


def _pipeline(store: Store) -> StorePipeline:
    sending = store.open_pipeline()
    if sending is None:
        pytest.skip("this store sends nothing ahead")
    return sending
