"""Contract of the log: atomic conditional appends, gapless positions, blobs, concurrency."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from threading import Barrier
from time import sleep

import pytest

from limpet import errors
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
    StreamWrite,
)
from limpet.testing.store_contract import harness
from limpet.testing.store_contract.harness import (
    OTHER,
    TENANT,
    blobs_of,
    commit,
    commit_all,
    event,
    feed_all,
    hash_of,
    make_append,
    verify_store,
    visible_state,
    write,
)
from limpet.testing.store_contract.random_walk import walk


class AppendContract(harness.StoreHarness):
    """The log."""

    def test_an_append_takes_effect_whole(self, store: Store) -> None:
        row = Projection(kind="row", id="1", document=b"d")
        snapshot = Snapshot("a", 2, 7, b"state")
        used = KeyUse("k1", b"h" * 32)
        whole = make_append(
            write("a", 0, b"1", b"2", claims=(("c1", 1),)),
            write("b", 0, b"3"),
            projections=(row,),
            snapshots=(snapshot,),
            key=used,
        )
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

    def test_a_stale_second_stream_leaves_no_trace(self, store: Store) -> None:
        _check_no_trace(store, write("b", 3, b"no"), Stale("b", 1))

    def test_a_taken_claim_in_a_second_stream_leaves_no_trace(self, store: Store) -> None:
        second = write("b", 1, b"no", b"no", claims=(("c2", 0), ("c1", 1)))
        _check_no_trace(store, second, ClaimTaken("b", "c1", 1))

    def test_a_used_key_leaves_no_trace(self, store: Store) -> None:
        _check_no_trace(store, write("b", 1, b"no"), KeyRecord(b"first", 1, 2), key="k1")

    def test_a_refused_first_append_makes_no_tenant(self, store: Store) -> None:
        assert commit(store, make_append(write("a", 1, b"no"))) == [Stale("a", 0)]
        assert store.tenants() == []
        assert commit(store, make_append(write("a", 0, b"yes"))) == [Appended(1, 1)]

    def test_a_refused_append_beside_another_makes_no_tenant(self, store: Store) -> None:
        refused = make_append(write("a", 1, b"no"), tenant=OTHER)
        assert commit(store, refused, make_append(write("a", 0, b"1"))) == [
            Stale("a", 0),
            Appended(1, 1),
        ]
        assert store.tenants() == [TENANT]
        assert verify_store(store).tenants == 1

    def test_a_write_on_another_version_is_stale(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", b"2")))
        for expected in (0, 1, 3):
            assert commit(store, make_append(write("a", expected, b"no"))) == [Stale("a", 2)]
        assert commit(store, make_append(write("a", 2, b"3"))) == [Appended(3, 3)]

    def test_a_claim_is_unique_in_its_stream_for_ever(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", b"2", claims=(("c1", 1),))))
        again = make_append(write("a", 2, b"no", claims=(("c1", 0),)))
        assert commit(store, again) == [ClaimTaken("a", "c1", 2)]
        assert commit(store, make_append(write("b", 0, b"3", claims=(("c1", 0),)))) == [
            Appended(3, 3)
        ]
        assert store.find_claim(TENANT, "a", "c1") == 2
        assert store.find_claim(TENANT, "b", "c1") == 1
        assert store.find_claim(TENANT, "a", "c2") == 0
        assert store.find_claim(TENANT, "c", "c1") == 0

    def test_a_claim_made_twice_in_one_append_is_taken_by_the_first(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1")))
        before = visible_state(store)
        twice = make_append(write("a", 1, b"no", b"no", b"no", claims=(("c1", 1), ("c1", 2))))
        assert commit(store, twice) == [ClaimTaken("a", "c1", 3)]
        assert visible_state(store) == before

    def test_a_key_is_checked_before_versions_and_those_before_claims(self, store: Store) -> None:
        used = KeyUse("k1", b"first")
        commit_all(store, make_append(write("a", 0, b"1", claims=(("c1", 0),)), key=used))
        wrong = write("a", 0, b"no", claims=(("c1", 0),))
        taken = write("a", 1, b"no", claims=(("c1", 0),))
        assert commit(store, make_append(wrong, key=used)) == [KeyRecord(b"first", 1, 1)]
        assert commit(store, make_append(taken, write("b", 9, b"no"))) == [Stale("b", 0)]
        assert commit(store, make_append(taken)) == [ClaimTaken("a", "c1", 1)]

    def test_a_key_answers_with_its_first_use(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1")))
        commit_all(
            store, make_append(write("a", 1, b"2"), write("b", 0, b"3"), key=KeyUse("k1", b"first"))
        )
        commit_all(store, make_append(write("a", 2, b"4")))
        first_use = KeyRecord(b"first", 2, 3)
        assert store.find_key(TENANT, "k1") == first_use
        assert store.find_key(TENANT, "k2") is None
        other = make_append(write("a", 3, b"no"), key=KeyUse("k1", b"other"))
        assert commit(store, other) == [first_use]
        assert store.find_key(TENANT, "k1") == first_use

    def test_keys_are_forgotten_by_the_time_of_their_use(self, store: Store) -> None:
        for version, (key, time_us) in enumerate((("k1", 10), ("k2", 20), ("k3", 30))):
            commit_all(
                store,
                make_append(write("a", version, b"x"), key=KeyUse(key, b"h"), time_us=time_us),
            )
        assert store.delete_keys(TENANT, before_us=10) == 0
        assert store.delete_keys(TENANT, before_us=21) == 2
        assert store.find_key(TENANT, "k1") is None
        assert store.find_key(TENANT, "k3") == KeyRecord(b"h", 3, 3)
        again = make_append(write("a", 3, b"x"), key=KeyUse("k1", b"new"), time_us=40)
        assert commit(store, again) == [Appended(4, 4)]
        assert store.find_key(TENANT, "k1") == KeyRecord(b"new", 4, 4)

    def test_appends_of_one_commit_each_have_their_outcome(self, store: Store) -> None:
        commit_all(
            store, make_append(write("a", 0, b"1", claims=(("c1", 0),)), key=KeyUse("k1", b"first"))
        )
        assert commit(
            store,
            make_append(write("a", 1, b"2")),
            make_append(write("b", 5, b"no")),
            make_append(write("a", 2, b"no", claims=(("c1", 0),))),
            make_append(write("c", 0, b"no"), key=KeyUse("k1", b"first")),
            make_append(write("b", 0, b"3"), write("a", 2, b"4")),
        ) == [
            Appended(2, 2),
            Stale("b", 0),
            ClaimTaken("a", "c1", 1),
            KeyRecord(b"first", 1, 1),
            Appended(3, 4),
        ]
        told = [("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"3"), ("a", 3, b"4")]
        assert _payloads(feed_all(store)) == told

    def test_a_later_append_of_a_commit_sees_the_earlier(self, store: Store) -> None:
        row = Projection(kind="row", id="1", status="old", terms=("t1",))
        assert commit(
            store,
            make_append(
                write("a", 0, b"1", claims=(("c1", 0),)),
                key=KeyUse("k1", b"first"),
                projections=(row,),
            ),
            make_append(write("a", 0, b"no")),
            make_append(write("a", 1, b"no", claims=(("c1", 0),))),
            make_append(write("a", 1, b"no"), key=KeyUse("k1", b"other")),
            make_append(write("a", 1, b"2"), drops=(("row", "1"),)),
        ) == [
            Appended(1, 1),
            Stale("a", 1),
            ClaimTaken("a", "c1", 1),
            KeyRecord(b"first", 1, 1),
            Appended(2, 2),
        ]
        assert store.find_projection(TENANT, "row", "1") is None

    def test_one_commit_may_serve_several_tenants(self, store: Store) -> None:
        appends: list[Append] = [
            make_append(write("a", 0, b"1"), tenant=name) for name in ("x", "y", "z")
        ]
        assert commit(store, *appends) == [Appended(1, 1)] * 3
        assert sorted(store.tenants()) == ["x", "y", "z"]

    def test_positions_and_versions_have_no_gaps(self, store: Store) -> None:
        for turn in range(1, 8):
            version = store.version(TENANT, "a")
            commit_all(
                store, make_append(write("a", version, *[b"x"] * turn), write(f"s{turn}", 0, b"y"))
            )
            commit(store, make_append(write("a", 0, b"no")), make_append(write("new", turn, b"no")))
        events = feed_all(store)
        assert [e.position for e in events] == list(range(1, 36))
        assert [e.version for e in events if e.stream == "a"] == list(range(1, 29))
        assert store.version(TENANT, "a") == 28
        assert store.version(TENANT, "new") == 0

    def test_a_stream_is_read_in_ranges(self, store: Store) -> None:
        commit_all(
            store,
            make_append(write("b", 0, b"0"), write("a", 0, *[b"%d" % n for n in range(1, 11)])),
        )

        def versions(after: int, until: int | None, limit: int) -> list[int]:
            page = store.read(TENANT, "a", after=after, until=until, limit=limit)
            return [e.version for e in page]

        assert versions(0, None, 100) == list(range(1, 11))
        assert versions(3, None, 4) == [4, 5, 6, 7]
        assert versions(3, 5, 100) == [4, 5]
        assert versions(3, 8, 2) == [4, 5]
        assert versions(8, 100, 100) == [9, 10]
        assert versions(5, 5, 100) == versions(10, None, 100) == versions(0, 0, 100) == []
        assert [e.payload for e in store.read(TENANT, "a", after=8)] == [b"9", b"10"]
        assert store.read(TENANT, "missing") == []

    def test_the_feed_is_read_in_pages(self, store: Store) -> None:
        commit_all(
            store, make_append(write("a", 0, *[b"x"] * 7)), make_append(write("b", 0, *[b"y"] * 4))
        )
        assert [e.position for e in store.feed(TENANT, after=5, limit=3)] == [6, 7, 8]
        assert [e.stream for e in store.feed(TENANT, after=6)] == ["a", "b", "b", "b", "b"]
        assert store.feed(TENANT, after=11) == store.feed(TENANT, after=99) == []
        assert feed_all(store, limit=1) == feed_all(store, limit=256)

    def test_reading_stops_at_256_unless_told(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, *[b"x"] * 300)))
        assert len(store.read(TENANT, "a")) == len(store.feed(TENANT)) == 256
        assert len(store.read(TENANT, "a", limit=1_000)) == 300

    def test_a_stream_is_sought_by_ordinal(self, store: Store) -> None:
        ordinals = (0, 1, 1, 4, 4, 9)
        events = tuple(event(b"x", ordinal=ordinal) for ordinal in ordinals)
        commit_all(store, make_append(StreamWrite("a", 0, events), write("b", 0, b"y")))
        sought = [store.find_ordinal(TENANT, "a", ordinal) for ordinal in range(-1, 11)]
        assert sought == [1, 1, 2, 4, 4, 4, 6, 6, 6, 6, 6, 0]
        assert store.find_ordinal(TENANT, "missing", 0) == 0

    def test_every_field_of_an_event_comes_back(self, store: Store) -> None:
        events = (
            NewEvent("a.b", 1, 0, b"1"),
            NewEvent("a.c", 2**31, 2**53, b"2", 0, 0, ""),
            NewEvent("a.d", 3, -1, b"3", 2**53, 2**53, "o200k"),
        )
        commit_all(store, make_append(StreamWrite("a", 0, events)))
        for position, (new, stored) in enumerate(
            zip(events, feed_all(store), strict=True), start=1
        ):
            assert stored == StoredEvent(
                position,
                "a",
                position,
                new.kind,
                new.schema,
                new.time_us,
                new.ordinal,
                new.tokens,
                new.counter,
                new.payload,
                stored.link,
            )
        assert store.read(TENANT, "a") == feed_all(store)

    def test_every_payload_comes_back(self, store: Store) -> None:
        every_byte = bytes(range(256))
        payloads = (b"", b"\x00", every_byte, b"{}", b"\xff\xfe", every_byte * 4096)
        commit_all(store, make_append(write("a", 0, *payloads)))
        assert tuple(e.payload for e in feed_all(store)) == payloads


def _payloads(events: list[StoredEvent]) -> list[tuple[str, int, bytes | None]]:
    return [(e.stream, e.version, e.payload) for e in events]


def _check_no_trace(
    store: Store, second: StreamWrite, outcome: AppendOutcome, key: str = "k2"
) -> None:
    """Refuse an append for its second write, or for its key, and look for anything it left."""
    row = Projection(kind="row", id="1", terms=("t1",), document=b"before")
    first = make_append(
        write("a", 0, b"1"),
        write("b", 0, b"2", claims=(("c1", 0),), blobs=(b"x1",)),
        projections=(row,),
        snapshots=(Snapshot("a", 1, 1, b"before"),),
        key=KeyUse("k1", b"first"),
    )
    commit_all(store, first)
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
    assert commit(store, make_append(write("c", 0, b"3"))) == [Appended(3, 3)], (
        "no hole in the feed"
    )


LARGE = bytes(range(256)) * 4096


class BlobContract(harness.StoreHarness):
    """Blobs."""

    def test_blobs_come_back_by_their_hash(self, store: Store) -> None:
        contents = (b"", b"\x00", b"one", LARGE)
        commit_all(store, make_append(write("a", 0, b"1", blobs=contents)))
        assert store.blobs(TENANT, [hash_of(each) for each in contents]) == {
            hash_of(each): each for each in contents
        }
        assert store.blobs(TENANT, [hash_of(b"one")] * 2) == {hash_of(b"one"): b"one"}
        assert store.blobs(TENANT, []) == {}

    def test_a_blob_that_is_not_there_is_left_out(self, store: Store) -> None:
        assert store.blobs(TENANT, [hash_of(b"one")]) == {}
        commit_all(store, make_append(write("a", 0, b"1", blobs=(b"one",))))
        for other in (hash_of(b"two"), b"", hash_of(b"one")[:-1], hash_of(b"one") + b"\x00"):
            assert store.blobs(TENANT, [other]) == {}
        assert blobs_of(store, b"two", b"one") == [b"one"]

    def test_many_blobs_are_read_at_once(self, store: Store) -> None:
        contents = tuple(b"%d" % number for number in range(3_000))
        commit_all(store, make_append(write("a", 0, b"1", blobs=contents)))
        assert blobs_of(store, *contents) == list(contents)

    def test_a_refused_append_leaves_no_blob(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", blobs=(b"one",))))
        refused = make_append(write("b", 0, b"no", blobs=(b"two",)), write("a", 0, b"no"))
        taken = make_append(write("b", 0, b"2", blobs=(b"three",)))
        assert commit(store, refused) == [Stale("a", 1)]
        assert commit(store, refused, taken) == [Stale("a", 1), Appended(2, 2)]
        assert blobs_of(store, b"one", b"two", b"three") == [b"one", b"three"]
        assert store.status()["blobs"] == 2

    def test_a_blob_is_kept_once(self, store: Store) -> None:
        commit_all(
            store,
            make_append(
                write("a", 0, b"1", b"2", blobs=(LARGE, LARGE)), write("b", 0, b"3", blobs=(LARGE,))
            ),
        )
        again = [
            make_append(write("a", 2, b"4", blobs=(LARGE,))),
            make_append(write("a", 3, b"5", blobs=(LARGE,))),
        ]
        commit_all(store, *again)
        assert store.status()["blobs"] == 1
        assert blobs_of(store, LARGE) == [LARGE]
        assert verify_store(store).faults == ()

    def test_tenants_have_their_blobs_apart(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", blobs=(b"one", b"two"))))
        commit_all(store, make_append(write("a", 0, b"1"), tenant=OTHER))
        assert blobs_of(store, b"one", b"two", tenant=OTHER) == []
        commit_all(store, make_append(write("a", 1, b"2", blobs=(b"one",)), tenant=OTHER))
        assert blobs_of(store, b"one", b"two", tenant=OTHER) == [b"one"]
        assert store.status()["blobs"] == 3, "each tenant has its own"
        assert verify_store(store).faults == ()

    def test_blobs_outlast_the_opener(self, store: Store, folder: Path) -> None:
        commit_all(store, make_append(write("a", 0, b"1", blobs=(LARGE,))))
        again = self.reopen(store, folder)
        commit_all(again, make_append(write("a", 1, b"2", blobs=(LARGE, b"two"))))
        assert blobs_of(again, LARGE, b"two") == [LARGE, b"two"]
        assert again.status()["blobs"] == 2
        again.close()

    def test_a_damaged_blob_is_found(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", blobs=(b"one", b"two"))))
        self.damage_blob(store, hash_of(b"one"))
        with pytest.raises(errors.Corrupt) as info:
            blobs_of(store, b"one", b"two")
        assert info.value.facts["blob"] == hash_of(b"one").hex()
        assert blobs_of(store, b"two") == [b"two"]
        (fault,) = verify_store(store).faults
        assert hash_of(b"one").hex() in fault

    def test_a_blob_that_is_brought_again_is_whole_again(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", blobs=(b"one",))))
        self.damage_blob(store, hash_of(b"one"))
        commit_all(store, make_append(write("a", 1, b"2", blobs=(b"one",))))
        assert blobs_of(store, b"one") == [b"one"]
        assert verify_store(store).ok

    def test_a_lost_blob_is_missed(self, store: Store) -> None:
        commit_all(store, make_append(write("a", 0, b"1", blobs=(b"one", b"two"))))
        commit_all(store, make_append(write("a", 0, b"1", blobs=(b"one",)), tenant=OTHER))
        self.lose_blob(store, hash_of(b"one"))
        assert blobs_of(store, b"one", b"two") == [b"two"]
        (fault,) = verify_store(store).faults
        assert hash_of(b"one").hex() in fault
        assert "position 1" in fault


_WRITERS = 4
_EACH = 25
_TRIES_MAX = 1_000


class ConcurrencyContract(harness.StoreHarness):
    """Several at once."""

    def test_threads_leave_no_gap_and_no_reader_is_passed_by(self, store: Store) -> None:
        start = Barrier(_WRITERS + 1)

        def work(writer: int) -> None:
            start.wait()
            for number in range(_EACH):
                _append_until_done(store, f"s{number % 3}", b"%d/%d" % (writer, number))

        with ThreadPoolExecutor(_WRITERS) as pool:
            jobs = [pool.submit(work, writer) for writer in range(_WRITERS)]
            start.wait()
            seen = _follow_feed(store, jobs)
        for job in jobs:
            job.result()
        assert [e.position for e in seen] == list(range(1, _WRITERS * _EACH + 1))
        assert feed_all(store) == seen
        every = Counter(b"%d/%d" % (w, n) for w in range(_WRITERS) for n in range(_EACH))
        assert Counter(e.payload for e in seen) == every, "nothing lost, nothing twice"
        for stream in ("s0", "s1", "s2"):
            versions = [e.version for e in store.read(TENANT, stream)]
            assert versions == list(range(1, len(versions) + 1))
        assert verify_store(store).ok

    def test_verify_finds_no_fault_while_others_write(self, store: Store) -> None:
        commit_all(store, make_append(write("first", 0, b"1")))

        def work() -> None:
            for number in range(_EACH * 4):
                _append_until_done(store, "a", b"%d" % number)

        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(work)
            reports = [verify_store(store)]
            while not job.done():
                reports.append(verify_store(store))
        job.result()
        assert [report.faults for report in reports if not report.ok] == []
        counts = [report.events for report in reports]
        assert counts == sorted(counts)
        assert verify_store(store).events == 1 + _EACH * 4

    def test_of_threads_with_one_key_one_has_the_effect(self, store: Store) -> None:
        start = Barrier(_WRITERS)
        once = make_append(write("a", 0, b"once"), key=KeyUse("k1", b"hash"))

        def work(_: int) -> object:
            start.wait()
            return commit(store, once)[0]

        with ThreadPoolExecutor(_WRITERS) as pool:
            outcomes = Counter(map(repr, pool.map(work, range(_WRITERS))))
        replayed = repr(KeyRecord(b"hash", 1, 1))
        assert outcomes == {repr(Appended(1, 1)): 1, replayed: _WRITERS - 1}

    def test_a_turn_may_hold_several_commits_each_seen_at_once(self, store: Store) -> None:
        with ThreadPoolExecutor(1) as pool, store.write_lock():
            for version in range(3):
                assert store.commit([make_append(write("a", 9, b"no"))]) == [Stale("a", version)]
                assert store.version(TENANT, "a") == version
                taken = store.commit([make_append(write("a", version, b"x"))])
                assert taken == [Appended(version + 1, version + 1)]
                assert store.version(TENANT, "a") == version + 1
                assert pool.submit(store.version, TENANT, "a").result() == version + 1

    def test_a_turn_is_given_back_when_its_body_fails(self, store: Store) -> None:
        with pytest.raises(ZeroDivisionError), store.write_lock():
            raise ZeroDivisionError
        commit_all(store, make_append(write("a", 0, b"1")))

    def test_what_is_decided_in_a_turn_rests_on_what_is_there(self, folder: Path) -> None:
        """Whoever writes beside it is kept out of the tenant until the turn ends, or is noticed."""
        self.must_reopen()
        with (
            closing(self.open_store(folder)) as mine,
            closing(self.open_store(folder)) as theirs,
            ThreadPoolExecutor(1) as pool,
        ):
            commit_all(mine, make_append(write("a", 0, b"1")))
            with mine.write_lock():
                assert mine.version(TENANT, "a") == 1
                job = pool.submit(commit, theirs, make_append(write("b", 0, b"between")))
                wait([job], timeout=0.3)
                between = job.done()
                assert mine.is_unchanged(TENANT) is not between
                (outcome,) = mine.commit([make_append(write("c", 0, b"decided on a"))])
                assert outcome == (Stale("", 2) if between else Appended(2, 2))
            assert job.result() == [Appended(2, 2) if between else Appended(3, 3)]
            with mine.write_lock() as alone:
                assert not alone or mine.is_unchanged(TENANT)
                (outcome,) = mine.commit([make_append(write("d", 0, b"decided anew"))])
            assert outcome == Appended(mine.head(TENANT), 3 if between else 4)
            assert [e.position for e in feed_all(theirs)] == list(range(1, mine.head(TENANT) + 1))

    def test_what_is_handed_over_is_appended_once(self, folder: Path) -> None:
        """By whoever holds the turn, or, if nobody takes it, by the one who handed it over."""
        if not self.reopens:
            pytest.skip("this store keeps nothing between two openings")
        given = [make_append(write("b", 0, b"1")), make_append(write("b", 5, b"not yet"))]
        with (
            closing(self.open_store(folder)) as mine,
            closing(self.open_store(folder)) as theirs,
            ThreadPoolExecutor(1) as pool,
        ):
            with mine.write_lock():
                job = pool.submit(_hand_over_once, theirs, given)
                passed = 0
                for version in range(_EACH):
                    (outcome,) = mine.commit([make_append(write("a", version, b"x"))])
                    if harness.lost_race(outcome):
                        passed += 1
                        (outcome,) = mine.commit([make_append(write("a", version, b"x"))])
                    assert isinstance(outcome, Appended)
                    sleep(0.001)
                assert passed <= 1, "others have appended once"
            assert job.result()
            assert [e.payload for e in mine.read(TENANT, "b")] == [b"1"]
            assert feed_all(theirs) == feed_all(mine)
            assert verify_store(mine).ok

    @pytest.mark.parametrize("seed", range(3))
    def test_a_random_walk_agrees_with_a_plain_model(self, folder: Path, seed: int) -> None:
        reopen_every = 40 if self.reopens else None
        walk(
            lambda: self.open_store(folder),
            steps=self.walk_steps,
            seed=seed,
            reopen_every=reopen_every,
        )


def _hand_over_once(store: Store, given: list[Append]) -> bool:
    """Hand appends over, commit them if nobody did; return whether just the first was appended."""
    handed = store.hand_off(given)
    if handed is not None:
        return isinstance(handed[0], Appended) and handed[1] is None
    with store.write_lock():
        first, second = store.commit(given)
        for _ in range(_TRIES_MAX):
            if not harness.lost_race(first):
                break
            first, second = store.commit(given)
    return isinstance(first, (Appended, Stale)) and isinstance(second, Stale)


def _append_until_done(store: Store, stream: str, payload: bytes) -> None:
    for _ in range(_TRIES_MAX):
        with store.write_lock():
            version = store.version(TENANT, stream)
            (outcome,) = store.commit([make_append(write(stream, version, payload))])
        if isinstance(outcome, Appended):
            return
    raise AssertionError("a writer is always passed over")


def _follow_feed(store: Store, jobs: list[Future[None]]) -> list[StoredEvent]:
    """Read the feed as it grows; what is read once must never change."""
    seen: list[StoredEvent] = []
    while not all(job.done() for job in jobs):
        seen += store.feed(TENANT, after=len(seen), limit=7)
    while page := store.feed(TENANT, after=len(seen)):
        seen += page
    return seen
