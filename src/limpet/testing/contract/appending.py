"""Promises 1, 2 and 4: whole appends, under conditions, in a gapless order; and reading them back."""

from __future__ import annotations

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
from limpet.testing.contract import stage
from limpet.testing.contract.stage import (
    OTHER,
    TENANT,
    commit,
    event,
    feed_all,
    shown,
    step,
    take,
    verified,
    write,
)


class Appending(stage.Stage):
    """The log."""

    def test_an_append_takes_effect_whole(self, store: Store) -> None:
        row = Projection(kind="row", id="1", document=b"d")
        snapshot = Snapshot("a", 2, 7, b"state")
        used = KeyUse("k1", b"h" * 32)
        whole = step(
            write("a", 0, b"1", b"2", claims=(("c1", 1),)),
            write("b", 0, b"3"),
            projections=(row,),
            snapshots=(snapshot,),
            key=used,
        )
        assert commit(store, whole) == [Appended(1, 3)]
        assert _told(feed_all(store)) == [("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"3")]
        assert store.find_claim(TENANT, "a", "c1") == 2
        assert store.find_key(TENANT, "k1") == KeyRecord(used.command_hash, 1, 3)
        assert store.find(TENANT, "row", "1") == row
        assert store.snapshot(TENANT, "a") == snapshot
        assert store.tenants() == [TENANT]

    def test_committing_nothing_is_fine(self, store: Store) -> None:
        assert commit(store) == []
        assert store.tenants() == []

    def test_a_stale_second_stream_leaves_no_trace(self, store: Store) -> None:
        _leaves_no_trace(store, write("b", 3, b"no"), Stale("b", 1))

    def test_a_taken_claim_in_a_second_stream_leaves_no_trace(self, store: Store) -> None:
        second = write("b", 1, b"no", b"no", claims=(("c2", 0), ("c1", 1)))
        _leaves_no_trace(store, second, ClaimTaken("b", "c1", 1))

    def test_a_used_key_leaves_no_trace(self, store: Store) -> None:
        _leaves_no_trace(store, write("b", 1, b"no"), KeyRecord(b"first", 1, 2), key="k1")

    def test_a_refused_first_append_makes_no_tenant(self, store: Store) -> None:
        assert commit(store, step(write("a", 1, b"no"))) == [Stale("a", 0)]
        assert store.tenants() == []
        assert commit(store, step(write("a", 0, b"yes"))) == [Appended(1, 1)]

    def test_a_refused_append_beside_another_makes_no_tenant(self, store: Store) -> None:
        refused = step(write("a", 1, b"no"), tenant=OTHER)
        assert commit(store, refused, step(write("a", 0, b"1"))) == [Stale("a", 0), Appended(1, 1)]
        assert store.tenants() == [TENANT]
        assert verified(store).tenants == 1

    def test_a_write_on_another_version_is_stale(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", b"2")))
        for expected in (0, 1, 3):
            assert commit(store, step(write("a", expected, b"no"))) == [Stale("a", 2)]
        assert commit(store, step(write("a", 2, b"3"))) == [Appended(3, 3)]

    def test_a_claim_is_unique_in_its_stream_for_ever(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", b"2", claims=(("c1", 1),))))
        again = step(write("a", 2, b"no", claims=(("c1", 0),)))
        assert commit(store, again) == [ClaimTaken("a", "c1", 2)]
        assert commit(store, step(write("b", 0, b"3", claims=(("c1", 0),)))) == [Appended(3, 3)]
        assert store.find_claim(TENANT, "a", "c1") == 2
        assert store.find_claim(TENANT, "b", "c1") == 1
        assert store.find_claim(TENANT, "a", "c2") == 0
        assert store.find_claim(TENANT, "c", "c1") == 0

    def test_a_claim_made_twice_in_one_append_is_taken_by_the_first(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1")))
        before = shown(store)
        twice = step(write("a", 1, b"no", b"no", b"no", claims=(("c1", 1), ("c1", 2))))
        assert commit(store, twice) == [ClaimTaken("a", "c1", 3)]
        assert shown(store) == before

    def test_a_key_is_checked_before_versions_and_those_before_claims(self, store: Store) -> None:
        used = KeyUse("k1", b"first")
        take(store, step(write("a", 0, b"1", claims=(("c1", 0),)), key=used))
        wrong = write("a", 0, b"no", claims=(("c1", 0),))
        taken = write("a", 1, b"no", claims=(("c1", 0),))
        assert commit(store, step(wrong, key=used)) == [KeyRecord(b"first", 1, 1)]
        assert commit(store, step(taken, write("b", 9, b"no"))) == [Stale("b", 0)]
        assert commit(store, step(taken)) == [ClaimTaken("a", "c1", 1)]

    def test_a_key_answers_with_its_first_use(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1")))
        take(store, step(write("a", 1, b"2"), write("b", 0, b"3"), key=KeyUse("k1", b"first")))
        take(store, step(write("a", 2, b"4")))
        first_use = KeyRecord(b"first", 2, 3)
        assert store.find_key(TENANT, "k1") == first_use
        assert store.find_key(TENANT, "k2") is None
        other = step(write("a", 3, b"no"), key=KeyUse("k1", b"other"))
        assert commit(store, other) == [first_use]
        assert store.find_key(TENANT, "k1") == first_use

    def test_keys_are_forgotten_by_the_time_of_their_use(self, store: Store) -> None:
        for version, (key, time_us) in enumerate((("k1", 10), ("k2", 20), ("k3", 30))):
            take(store, step(write("a", version, b"x"), key=KeyUse(key, b"h"), time_us=time_us))
        assert store.forget_keys(TENANT, before_us=10) == 0
        assert store.forget_keys(TENANT, before_us=21) == 2
        assert store.find_key(TENANT, "k1") is None
        assert store.find_key(TENANT, "k3") == KeyRecord(b"h", 3, 3)
        again = step(write("a", 3, b"x"), key=KeyUse("k1", b"new"), time_us=40)
        assert commit(store, again) == [Appended(4, 4)]
        assert store.find_key(TENANT, "k1") == KeyRecord(b"new", 4, 4)

    def test_appends_of_one_commit_each_have_their_outcome(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", claims=(("c1", 0),)), key=KeyUse("k1", b"first")))
        assert commit(
            store,
            step(write("a", 1, b"2")),
            step(write("b", 5, b"no")),
            step(write("a", 2, b"no", claims=(("c1", 0),))),
            step(write("c", 0, b"no"), key=KeyUse("k1", b"first")),
            step(write("b", 0, b"3"), write("a", 2, b"4")),
        ) == [
            Appended(2, 2),
            Stale("b", 0),
            ClaimTaken("a", "c1", 1),
            KeyRecord(b"first", 1, 1),
            Appended(3, 4),
        ]
        told = [("a", 1, b"1"), ("a", 2, b"2"), ("b", 1, b"3"), ("a", 3, b"4")]
        assert _told(feed_all(store)) == told

    def test_a_later_append_of_a_commit_sees_the_earlier(self, store: Store) -> None:
        row = Projection(kind="row", id="1", status="old", terms=("t1",))
        assert commit(
            store,
            step(
                write("a", 0, b"1", claims=(("c1", 0),)),
                key=KeyUse("k1", b"first"),
                projections=(row,),
            ),
            step(write("a", 0, b"no")),
            step(write("a", 1, b"no", claims=(("c1", 0),))),
            step(write("a", 1, b"no"), key=KeyUse("k1", b"other")),
            step(write("a", 1, b"2"), drops=(("row", "1"),)),
        ) == [
            Appended(1, 1),
            Stale("a", 1),
            ClaimTaken("a", "c1", 1),
            KeyRecord(b"first", 1, 1),
            Appended(2, 2),
        ]
        assert store.find(TENANT, "row", "1") is None

    def test_one_commit_may_serve_several_tenants(self, store: Store) -> None:
        appends: list[Append] = [step(write("a", 0, b"1"), tenant=name) for name in ("x", "y", "z")]
        assert commit(store, *appends) == [Appended(1, 1)] * 3
        assert sorted(store.tenants()) == ["x", "y", "z"]

    def test_positions_and_versions_have_no_gaps(self, store: Store) -> None:
        for turn in range(1, 8):
            version = store.version(TENANT, "a")
            take(store, step(write("a", version, *[b"x"] * turn), write(f"s{turn}", 0, b"y")))
            commit(store, step(write("a", 0, b"no")), step(write("new", turn, b"no")))
        events = feed_all(store)
        assert [e.position for e in events] == list(range(1, 36))
        assert [e.version for e in events if e.stream == "a"] == list(range(1, 29))
        assert store.version(TENANT, "a") == 28
        assert store.version(TENANT, "new") == 0

    def test_a_stream_is_read_in_ranges(self, store: Store) -> None:
        take(store, step(write("b", 0, b"0"), write("a", 0, *[b"%d" % n for n in range(1, 11)])))

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
        take(store, step(write("a", 0, *[b"x"] * 7)), step(write("b", 0, *[b"y"] * 4)))
        assert [e.position for e in store.feed(TENANT, after=5, limit=3)] == [6, 7, 8]
        assert [e.stream for e in store.feed(TENANT, after=6)] == ["a", "b", "b", "b", "b"]
        assert store.feed(TENANT, after=11) == store.feed(TENANT, after=99) == []
        assert feed_all(store, limit=1) == feed_all(store, limit=256)

    def test_reading_stops_at_256_unless_told(self, store: Store) -> None:
        take(store, step(write("a", 0, *[b"x"] * 300)))
        assert len(store.read(TENANT, "a")) == len(store.feed(TENANT)) == 256
        assert len(store.read(TENANT, "a", limit=1_000)) == 300

    def test_a_stream_is_sought_by_ordinal(self, store: Store) -> None:
        ordinals = (0, 1, 1, 4, 4, 9)
        events = tuple(event(b"x", ordinal=ordinal) for ordinal in ordinals)
        take(store, step(StreamWrite("a", 0, events), write("b", 0, b"y")))
        sought = [store.seek(TENANT, "a", ordinal) for ordinal in range(-1, 11)]
        assert sought == [1, 1, 2, 4, 4, 4, 6, 6, 6, 6, 6, 0]
        assert store.seek(TENANT, "missing", 0) == 0

    def test_every_field_of_an_event_comes_back(self, store: Store) -> None:
        events = (
            NewEvent("a.b", 1, 0, b"1"),
            NewEvent("a.c", 2**31, 2**53, b"2", 0, 0, ""),
            NewEvent("a.d", 3, -1, b"3", 2**53, 2**53, "o200k"),
        )
        take(store, step(StreamWrite("a", 0, events)))
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
        take(store, step(write("a", 0, *payloads)))
        assert tuple(e.payload for e in feed_all(store)) == payloads


def _told(events: list[StoredEvent]) -> list[tuple[str, int, bytes | None]]:
    return [(e.stream, e.version, e.payload) for e in events]


def _leaves_no_trace(
    store: Store, second: StreamWrite, outcome: AppendOutcome, key: str = "k2"
) -> None:
    """Refuse an append for its second write, or for its key, and look for anything it left."""
    row = Projection(kind="row", id="1", terms=("t1",), document=b"before")
    first = step(
        write("a", 0, b"1"),
        write("b", 0, b"2", claims=(("c1", 0),), blobs=(b"x1",)),
        projections=(row,),
        snapshots=(Snapshot("a", 1, 1, b"before"),),
        key=KeyUse("k1", b"first"),
    )
    take(store, first)
    before = shown(store)
    refused = step(
        write("a", 1, b"no", claims=(("c1", 0),), blobs=(b"x1", b"x2")),
        second,
        write("c", 0, b"no", claims=(("c3", 0),)),
        projections=(Projection(kind="row", id="2", terms=("t2",)),),
        drops=(("row", "1"),),
        snapshots=(Snapshot("a", 2, 1, b"no"), Snapshot("c", 1, 1, b"no")),
        key=KeyUse(key, b"second"),
    )
    assert commit(store, refused) == [outcome]
    assert shown(store) == before
    assert commit(store, step(write("c", 0, b"3"))) == [Appended(3, 3)], "no hole in the feed"
