"""Contract of erasure: erased content is gone, the chain still verifies, nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from limpet import errors
from limpet.stores.erasure import Erasure, ErasureCounts, RedactedPayload, StreamErasure, is_notice
from limpet.stores.port import (
    Append,
    BlobLoader,
    DerivedState,
    KeyUse,
    NewEvent,
    Projection,
    Query,
    Snapshot,
    Stale,
    Store,
    StoredEvent,
    StreamWrite,
)
from limpet.testing.store_contract import harness, projection_contract
from limpet.testing.store_contract.harness import (
    OTHER,
    TENANT,
    commit_all,
    feed_all,
    hash_of,
    verify_store,
    visible_state,
)

SHARED, LONE = b"shared" * 100, b"lone" * 100
KIND = "thing.erased"


class _ClaimPayload(msgspec.Struct, frozen=True):
    """What an event of these tests says: a claim, a word for its stream's row, hashes of blobs."""

    claim: str = ""
    word: str = ""
    blobs: tuple[str, ...] = ()


def derive_claims(stream: str, events: Iterator[StoredEvent], blobs: BlobLoader) -> DerivedState:
    """Return what a stream of these tests leads to."""
    claims: list[tuple[str, int]] = []
    uses: list[tuple[bytes, int]] = []
    words: list[str] = []
    for event in events:
        if is_notice(event.kind):
            continue
        said = msgspec.json.decode(event.payload or b"", type=_ClaimPayload)
        hashes = [bytes.fromhex(each) for each in said.blobs]
        if set(blobs(hashes)) != set(hashes):
            raise errors.Corrupt("a blob is missing.")
        claims += [(said.claim, event.version)] if said.claim else []
        uses += [(hash_, event.version) for hash_ in hashes]
        words.append(said.word)
    return DerivedState(tuple(claims), (_row(stream, words),), tuple(uses))


def _row(stream: str, words: list[str]) -> Projection:
    text = " ".join(words)
    return Projection(kind="row", id=stream, owner="ada", terms=(text,), document=text.encode())


def claim_event(claim: str = "", word: str = "", contents: tuple[bytes, ...] = ()) -> NewEvent:
    """Return an event that says so."""
    return NewEvent("thing.said", 1, 0, claim_payload(claim, word, contents), blobs=contents)


def claim_payload(claim: str = "", word: str = "", contents: tuple[bytes, ...] = ()) -> bytes:
    """Return the bytes of what an event says."""
    hashes = tuple(hash_of(content).hex() for content in contents)
    return msgspec.json.encode(_ClaimPayload(claim, word, hashes))


def append_events(
    store: Store, stream: str, *events: NewEvent, tenant: str = TENANT, key: str = ""
) -> None:
    """Append events to a stream, with everything that is derived from it."""
    before = store.version(tenant, stream)
    claims = [msgspec.json.decode(each.payload, type=_ClaimPayload).claim for each in events]
    write = StreamWrite(
        stream, before, events, tuple((text, at) for at, text in enumerate(claims) if text)
    )
    words = [
        msgspec.json.decode(each.payload or b"{}", type=_ClaimPayload).word
        for each in store.read(tenant, stream)
        if not is_notice(each.kind)
    ]
    words += [msgspec.json.decode(each.payload, type=_ClaimPayload).word for each in events]
    commit_all(
        store,
        Append(
            tenant=tenant, writes=(write,), projections=(_row(stream, words),),
            snapshots=(Snapshot(stream, before + len(events), 1, " ".join(words).encode()),),
            key=KeyUse(key, b"hash") if key else None,
        ),
    )  # fmt: skip


def stream_erasure(store: Store, *streams: str, tenant: str = TENANT, todo: bytes = b"") -> Erasure:
    """Return the erasure of whole streams as they are now."""
    shares = tuple(
        StreamErasure(stream=each, expected=store.version(tenant, each), kind=KIND, whole=True)
        for each in streams
    )
    return Erasure(tenant=tenant, streams=shares, time_us=5, pending_work=todo)


def event_erasure(
    store: Store, stream: str, version: int, new: bytes, contents: tuple[bytes, ...] = ()
) -> Erasure:
    """Return the erasure of one event, with what is read in its place."""
    (found,) = store.read(TENANT, stream, after=version - 1, until=version)
    stand_in = RedactedPayload(found.position, new, found.position, contents)
    expected = store.version(TENANT, stream)
    share = StreamErasure(stream=stream, expected=expected, kind=KIND, redactions=(stand_in,))
    return Erasure(tenant=TENANT, streams=(share,), time_us=5)


def erase_all(store: Store, erasure: Erasure) -> ErasureCounts:
    """Erase what must be erased."""
    outcome = store.erase(erasure, derive_claims)
    assert isinstance(outcome, ErasureCounts), outcome
    return outcome


class ErasureContract(harness.StoreHarness):
    """Taking things out of the log."""

    def _told(self, store: Store) -> None:
        append_events(
            store, "a", claim_event("c1", "one", (LONE, SHARED)), claim_event("c2", "two"), key="k1"
        )
        append_events(store, "b", claim_event("c1", "three", (SHARED,)), key="k2")
        append_events(store, "a", claim_event("c1", "other", (LONE,)), tenant=OTHER, key="k1")

    def test_a_stream_goes_whole(self, store: Store) -> None:
        self._told(store)
        gone = erase_all(store, stream_erasure(store, "a"))
        assert (gone.events, gone.blobs, gone.keys, gone.claims, gone.rows) == (2, 1, 1, 2, 1)
        assert store.version(TENANT, "a") == 0
        assert store.read(TENANT, "a") == []
        assert store.find_projection(TENANT, "row", "a") is None
        assert store.query_projections(TENANT, Query(kind="row", terms=("one two",))) == []
        assert store.snapshot(TENANT, "a") is None
        assert store.find_key(TENANT, "k1") is None
        assert store.find_claim(TENANT, "a", "c1") == 0
        assert harness.blobs_of(store, LONE, SHARED) == [SHARED]
        assert verify_store(store).ok

    def test_what_is_left_of_it_is_its_place_in_the_log(self, store: Store) -> None:
        self._told(store)
        before = feed_all(store)
        erase_all(store, stream_erasure(store, "a"))
        after = feed_all(store)
        assert [(e.position, e.kind, e.link) for e in after[:3]] == [
            (e.position, e.kind, e.link) for e in before
        ]
        assert [(e.payload is None, e.erased) for e in after[:3]] == [(True, True)] * 2 + [(False, False)]  # fmt: skip
        assert [(e.kind, e.stream, e.version, e.erased) for e in after[3:]] == [
            (KIND, "erased:1", 3, False)
        ]

    def test_others_lose_nothing(self, store: Store) -> None:
        self._told(store)
        theirs, beside = visible_state(store, OTHER)[:-1], store.read(TENANT, "b")
        erase_all(store, stream_erasure(store, "a"))
        assert visible_state(store, OTHER)[:-1] == theirs
        assert store.read(TENANT, "b") == beside
        assert harness.blobs_of(store, LONE, tenant=OTHER) == [LONE]
        assert store.find_key(TENANT, "k2") is not None

    def test_a_name_that_was_given_back_begins_anew(self, store: Store) -> None:
        self._told(store)
        erase_all(store, stream_erasure(store, "a"))
        append_events(store, "a", claim_event("c1", "new"))
        assert [(e.version, e.payload) for e in store.read(TENANT, "a")] == [
            (1, claim_payload("c1", "new"))
        ]
        assert store.find_claim(TENANT, "a", "c1") == 1
        erase_all(store, stream_erasure(store, "a"))
        assert store.version(TENANT, "a") == 0
        assert verify_store(store).ok

    def test_one_event_is_read_as_its_stand_in(self, store: Store) -> None:
        self._told(store)
        new = claim_payload("c9", "-", (b"made",))
        gone = erase_all(store, event_erasure(store, "a", 1, new, (b"made",)))
        assert (gone.events, gone.keys) == (1, 1)
        read = store.read(TENANT, "a")
        assert [(e.payload, e.erased) for e in read[:2]] == [
            (new, True),
            (claim_payload("c2", "two"), False),
        ]
        assert (read[2].kind, read[2].version) == (KIND, 3)
        assert [store.find_claim(TENANT, "a", claim) for claim in ("c1", "c2", "c9")] == [0, 2, 1]
        row = store.find_projection(TENANT, "row", "a")
        assert row is not None
        assert (row.document, row.terms) == (b"- two", ("- two",))
        assert store.snapshot(TENANT, "a") is None
        assert harness.blobs_of(store, LONE, SHARED, b"made") == [SHARED, b"made"]
        assert verify_store(store).ok

    def test_a_claim_that_is_left_twice_is_the_first_ones(self, store: Store) -> None:
        events = tuple(claim_event("c1", word) for word in ("one", "two", "three"))
        commit_all(store, Append(tenant=TENANT, writes=(StreamWrite("a", 0, events),)))
        erase_all(store, event_erasure(store, "a", 1, claim_payload("", "-")))
        assert store.find_claim(TENANT, "a", "c1") == 2
        row = store.find_projection(TENANT, "row", "a")
        assert row is not None and row.document == b"- two three"

    def test_a_stream_goes_on_after_one_of_its_events_went(self, store: Store) -> None:
        self._told(store)
        erase_all(store, event_erasure(store, "a", 2, claim_payload("c8", "-")))
        append_events(store, "a", claim_event("c3", "four"))
        assert store.version(TENANT, "a") == 4
        erase_all(store, event_erasure(store, "a", 4, claim_payload("", "-")))
        erase_all(store, event_erasure(store, "a", 2, claim_payload("", "=")))
        assert store.read(TENANT, "a")[1].payload == claim_payload("", "=")
        erase_all(store, stream_erasure(store, "a"))
        assert store.version(TENANT, "a") == 0
        assert verify_store(store).ok

    def test_streams_go_together_or_not_at_all(self, store: Store) -> None:
        self._told(store)
        before = visible_state(store)
        late = stream_erasure(store, "a", "b")
        late = msgspec.structs.replace(
            late, streams=(late.streams[0], msgspec.structs.replace(late.streams[1], expected=7))
        )
        assert store.erase(late, derive_claims) == Stale("b", 1)
        assert store.erase(stream_erasure(store, "a", "nobody"), derive_claims) == Stale(
            "nobody", 0
        )
        assert visible_state(store) == before
        assert store.pending_erasures() is None

    def test_what_was_written_after_the_look_is_not_passed_over(self, store: Store) -> None:
        assert store.head("nobody") == 0
        self._told(store)
        seen = store.head(TENANT)
        assert seen == feed_all(store)[-1].position
        looked = msgspec.structs.replace(
            stream_erasure(store, "a"), head=seen, pending_work=b"todo"
        )
        append_events(store, "other", claim_event(word="elsewhere"), tenant=OTHER)
        assert store.head(TENANT) == seen
        append_events(store, "news", claim_event(word="new"))
        before = visible_state(store)
        assert store.erase(looked, derive_claims) == Stale("", seen + 1)
        assert visible_state(store) == before
        assert store.pending_erasures() is None
        erase_all(store, msgspec.structs.replace(looked, head=seen + 1))
        assert store.head(TENANT) == seen + 2

    def test_one_that_fails_leaves_no_trace(self, store: Store) -> None:
        self._told(store)
        before, count = visible_state(store), store.cache_epoch(TENANT)
        for fails_at in range(4):
            left = iter(range(fails_at, -1, -1))

            def failing(
                stream: str, events: Iterator[StoredEvent], blobs: BlobLoader
            ) -> DerivedState:
                if next(left, 1) == 0:  # noqa: B023 - called within the loop
                    raise ZeroDivisionError
                return derive_claims(stream, events, blobs)

            both = event_erasure(store, "b", 1, claim_payload())
            both = msgspec.structs.replace(
                both, streams=(*stream_erasure(store, "a").streams, *both.streams)
            )
            if fails_at < 3:
                with pytest.raises(ZeroDivisionError):
                    store.erase(both, failing)
                assert visible_state(store) == before
                assert store.cache_epoch(TENANT) == count

    def test_it_counts_as_a_rebuild_and_the_next_turn_hears_of_it(self, store: Store) -> None:
        self._told(store)
        count = store.cache_epoch(TENANT)
        erase_all(store, stream_erasure(store, "a"))
        assert store.cache_epoch(TENANT) == count + 1
        with store.write_lock() as alone:
            assert not alone

    def test_it_is_pending_until_it_is_scrubbed(self, store: Store) -> None:
        self._told(store)
        assert store.pending_erasures() is None
        erase_all(store, stream_erasure(store, "a", todo=b"tell them"))
        assert store.pending_erasures() == b"tell them"
        before = visible_state(store), visible_state(store, OTHER)
        store.scrub(b"tell them")
        assert store.pending_erasures() is None
        assert (visible_state(store), visible_state(store, OTHER)) == before
        store.scrub()
        assert store.pending_erasures() is None

    def test_what_was_not_done_stays_pending(self, store: Store) -> None:
        self._told(store)
        erase_all(store, stream_erasure(store, "a", todo=b"first "))
        erase_all(store, stream_erasure(store, "b", todo=b"second"))
        assert store.pending_erasures() == b"first second"
        store.scrub(b"first ")
        assert store.pending_erasures() == b"second"
        store.scrub(b"second")
        assert store.pending_erasures() is None

    def test_what_is_left_of_what_was_done_stays_pending(self, store: Store) -> None:
        self._told(store)
        erase_all(store, stream_erasure(store, "a", todo=b"first\nsecond\n"))
        erase_all(store, stream_erasure(store, "b", todo=b"third\n"))
        store.scrub(b"first\nsecond\n", b"first\n")
        assert store.pending_erasures() == b"first\nthird\n"

    def test_what_another_store_has_to_do_can_be_taken_over(self, store: Store) -> None:
        self._told(store)
        store.scrub(left=b"theirs\n")
        assert store.pending_erasures() == b"theirs\n"
        erase_all(store, stream_erasure(store, "a", todo=b"ours\n"))
        assert store.pending_erasures() == b"theirs\nours\n"
        store.scrub(b"theirs\nours\n")
        assert store.pending_erasures() is None

    def test_everything_can_be_made_again_from_what_is_left(self, store: Store) -> None:
        self._told(store)
        erase_all(store, stream_erasure(store, "a"))
        erase_all(store, event_erasure(store, "b", 1, claim_payload("c7", "-")))
        rows = store.query_projections(TENANT, Query(kind="row"))
        projection_contract.rebuild_store(store, derive_claims)
        assert store.query_projections(TENANT, Query(kind="row")) == rows
        assert store.find_claim(TENANT, "b", "c7") == 1
        assert verify_store(store).ok

    def test_forks_are_known_and_read_what_stands_in(self, store: Store) -> None:
        self._told(store)
        fork = StreamWrite("f", 0, (claim_event("", "fork"),), (), ("a", 2))
        commit_all(store, Append(tenant=TENANT, writes=(fork,)))
        assert store.forks(TENANT, "a") == [("f", 2)]
        assert store.forks(TENANT, "f") == []
        erase_all(store, event_erasure(store, "a", 1, claim_payload("", "-")))
        assert store.read(TENANT, "f")[0].payload == claim_payload("", "-")
        erase_all(store, stream_erasure(store, "a", "f"))
        assert store.version(TENANT, "f") == 0
        assert verify_store(store).ok

    def test_it_is_so_when_the_store_is_opened_again(self, store: Store, folder: Path) -> None:
        self._told(store)
        erase_all(store, stream_erasure(store, "a", todo=b"todo"))
        erase_all(store, event_erasure(store, "b", 1, claim_payload("c7", "-")))
        before = visible_state(store)
        again = self.reopen(store, folder)
        assert visible_state(again) == before
        again.close()

    def test_a_damaged_stream_goes_if_it_is_known_what_goes_with_it(self, store: Store) -> None:
        self._told(store)
        self.damage(store, 2)
        erasure = stream_erasure(store, "a")
        with pytest.raises(errors.Corrupt, match="position 2 "):
            store.erase(erasure, derive_claims)
        assert store.version(TENANT, "a")
        share = msgspec.structs.replace(erasure.streams[0], derived_rows=(("row", "a"),))
        gone = erase_all(store, msgspec.structs.replace(erasure, streams=(share,)))
        assert (gone.events, gone.blobs) == (2, 1)
        assert store.version(TENANT, "a") == 0 and store.find_projection(TENANT, "row", "a") is None
        hashes = [hash_of(LONE), hash_of(SHARED)]
        assert list(store.blobs(TENANT, hashes)) == [hash_of(SHARED)]
        store.scrub()
        assert verify_store(store).ok

    def test_what_is_blank_for_no_reason_is_damage(self, store: Store) -> None:
        self._told(store)
        self.blank(store, 1)
        with pytest.raises(errors.Corrupt, match="position 1 "):
            store.read(TENANT, "a")
        assert any("position 1 " in fault for fault in verify_store(store).faults)

    def test_a_notice_proves_what_it_names_and_nothing_else(self, store: Store) -> None:
        self._told(store)
        erase_all(store, stream_erasure(store, "a"))
        self.blank(store, 3, like=1)
        assert any("no notice" in fault for fault in verify_store(store).faults)
