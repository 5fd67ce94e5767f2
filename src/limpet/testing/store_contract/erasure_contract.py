"""Contract of erasure and of log copies.

Erased content is gone, the chain still verifies, and nothing else changes. A log is copied page by
page, and a page is taken only if it is unchanged; what was erased stays erased in the copy.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet import errors
from limpet.stores.chain import is_erased_stream, is_notice
from limpet.stores.port import (
    BlobLoader,
    DerivedState,
    Erasure,
    ErasureCounts,
    KeyUse,
    NewEvent,
    Projection,
    Query,
    RawEvent,
    RawKey,
    RedactedPayload,
    Snapshot,
    Stale,
    Store,
    StoredEvent,
    StreamErasure,
    StreamWrite,
)
from limpet.stores.volatile import VolatileStore
from limpet.testing.store_contract import harness, projection_contract
from limpet.testing.store_contract.harness import OTHER, TENANT, append, feed_all, hash_of, verify_store, visible_state
from limpet.testing.store_contract.projection_contract import rebuild_store

replace = msgspec.structs.replace

SHARED, LONE = b"shared" * 100, b"lone" * 100
KIND = "thing.erased"


class _ClaimPayload(msgspec.Struct, frozen=True):
    """What an event of these tests says: a claim, a word for its stream's row, hashes of blobs."""

    claim: str = ""
    word: str = ""
    blobs: tuple[str, ...] = ()


def derive_claims(stream: str, events: Iterator[StoredEvent], blobs: BlobLoader) -> DerivedState:
    """Derive the claims of a stream from the payloads of these tests."""
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
    return NewEvent("thing.said", 1, 0, claim_payload(claim, word, contents), blobs=contents)


def claim_payload(claim: str = "", word: str = "", contents: tuple[bytes, ...] = ()) -> bytes:
    hashes = tuple(hash_of(content).hex() for content in contents)
    return msgspec.json.encode(_ClaimPayload(claim, word, hashes))


def append_events(store: Store, stream: str, *events: NewEvent, tenant: str = TENANT, key: str = "") -> None:
    """Append events to a stream, with all rows that are derived from it."""
    before = store.version(tenant, stream)
    claims = [msgspec.json.decode(each.payload, type=_ClaimPayload).claim for each in events]
    write = StreamWrite(stream, before, events, tuple((text, at) for at, text in enumerate(claims) if text))
    words = [
        msgspec.json.decode(each.payload or b"{}", type=_ClaimPayload).word
        for each in store.read(tenant, stream)
        if not is_notice(each.kind)
    ]
    words += [msgspec.json.decode(each.payload, type=_ClaimPayload).word for each in events]
    rows, snapshot = (_row(stream, words),), Snapshot(stream, before + len(events), 1, " ".join(words).encode())
    used = KeyUse(key, b"hash") if key else None
    append(store, write, tenant=tenant, projections=rows, snapshots=(snapshot,), key=used)


def stream_erasure(store: Store, *streams: str, tenant: str = TENANT, todo: bytes = b"") -> Erasure:
    """Return an erasure of whole streams at their current versions."""
    shares = tuple(
        StreamErasure(stream=each, expected=store.version(tenant, each), kind=KIND, whole=True) for each in streams
    )
    return Erasure(tenant=tenant, streams=shares, time_us=5, pending_work=todo)


def event_erasure(store: Store, stream: str, version: int, new: bytes, contents: tuple[bytes, ...] = ()) -> Erasure:
    """Return an erasure of one event, with its replacement."""
    (found,) = store.read(TENANT, stream, after=version - 1, until=version)
    stand_in = RedactedPayload(found.position, new, found.position, contents)
    expected = store.version(TENANT, stream)
    share = StreamErasure(stream=stream, expected=expected, kind=KIND, redactions=(stand_in,))
    return Erasure(tenant=TENANT, streams=(share,), time_us=5)


def erase_all(store: Store, erasure: Erasure) -> ErasureCounts:
    outcome = store.erase(erasure, derive_claims)
    assert isinstance(outcome, ErasureCounts), outcome
    return outcome


class ErasureContract(harness.StoreHarness):
    """Taking things out of the log."""

    def _told(self, store: Store) -> None:
        append_events(store, "a", claim_event("c1", "one", (LONE, SHARED)), claim_event("c2", "two"), key="k1")
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
        assert [(e.position, e.kind, e.link) for e in after[:3]] == [(e.position, e.kind, e.link) for e in before]
        assert [(e.payload is None, e.erased) for e in after[:3]] == [(True, True)] * 2 + [(False, False)]  # fmt: skip
        assert [(e.kind, e.stream, e.version, e.erased) for e in after[3:]] == [(KIND, "erased:1", 3, False)]

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
        assert [(e.version, e.payload) for e in store.read(TENANT, "a")] == [(1, claim_payload("c1", "new"))]
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
        assert [(e.payload, e.erased) for e in read[:2]] == [(new, True), (claim_payload("c2", "two"), False)]
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
        append(store, StreamWrite("a", 0, events))
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
        late = replace(late, streams=(late.streams[0], replace(late.streams[1], expected=7)))
        assert store.erase(late, derive_claims) == Stale("b", 1)
        assert store.erase(stream_erasure(store, "a", "nobody"), derive_claims) == Stale("nobody", 0)
        assert visible_state(store) == before
        assert store.pending_erasures() is None

    def test_what_was_written_after_the_look_is_not_passed_over(self, store: Store) -> None:
        assert store.head("nobody") == 0
        self._told(store)
        seen = store.head(TENANT)
        assert seen == feed_all(store)[-1].position
        looked = replace(stream_erasure(store, "a"), head=seen, pending_work=b"todo")
        append_events(store, "other", claim_event(word="elsewhere"), tenant=OTHER)
        assert store.head(TENANT) == seen
        append_events(store, "news", claim_event(word="new"))
        before = visible_state(store)
        assert store.erase(looked, derive_claims) == Stale("", seen + 1)
        assert visible_state(store) == before
        assert store.pending_erasures() is None
        erase_all(store, replace(looked, head=seen + 1))
        assert store.head(TENANT) == seen + 2

    def test_one_that_fails_leaves_no_trace(self, store: Store) -> None:
        self._told(store)
        before, count = visible_state(store), store.cache_epoch(TENANT)
        for fails_at in range(4):
            left = iter(range(fails_at, -1, -1))

            def failing(stream: str, events: Iterator[StoredEvent], blobs: BlobLoader) -> DerivedState:
                if next(left, 1) == 0:  # noqa: B023 - called within the loop
                    raise ZeroDivisionError
                return derive_claims(stream, events, blobs)

            both = event_erasure(store, "b", 1, claim_payload())
            both = replace(both, streams=(*stream_erasure(store, "a").streams, *both.streams))
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
        append(store, fork)
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
        share = replace(erasure.streams[0], derived_rows=(("row", "a"),))
        gone = erase_all(store, replace(erasure, streams=(share,)))
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


_BLOBS = (b"x1", b"x2", b"x3")
_CLAIMS, _KEYS = ("c1", "c2", "c3"), ("k1", "k2", "k3")


class RandomHistory:
    """A store that is lived in: events, claims, keys, blobs, forks, rewinds and erasures, as the dice fall."""

    def __init__(self, store: Store, seed: int, tenant: str = TENANT) -> None:
        self.store, self.tenant = store, tenant
        self.dice = random.Random(seed)

    def run(self, steps: int) -> None:
        verbs = (*(self._append_event,) * 3, self.fork, self._rewind, self._erase_event, self._erase_stream)
        for _ in range(steps):
            self.dice.choice(verbs)()

    def _streams(self) -> list[str]:
        streams = {found.stream for found in feed_all(self.store, self.tenant)}
        return sorted(name for name in streams if not is_erased_stream(name))

    def _event(self, stream: str) -> NewEvent:
        store, dice = self.store, self.dice
        free = [claim for claim in _CLAIMS if not store.find_claim(self.tenant, stream, claim)]
        claim = dice.choice([*free, "", ""])
        contents = tuple(dice.sample(_BLOBS, dice.choice((0, 0, 1, 2))))
        return claim_event(claim, f"w{dice.randrange(99)}", contents)

    def _append_event(self) -> None:
        stream = self.dice.choice([*"abc", *self._streams()])
        unused = [key for key in _KEYS if not self.store.find_key(self.tenant, key)]
        key = self.dice.choice([*unused, ""])
        append_events(self.store, stream, self._event(stream), tenant=self.tenant, key=key)

    def _append_based(self, stream: str, source: str, *, expected: int) -> None:
        versions = [found.version for found in self.store.read(self.tenant, source)]
        base = (source, self.dice.choice(versions))
        new = StreamWrite(stream, expected, (claim_event("", "based"),), (), base)
        append(self.store, new, tenant=self.tenant)

    def fork(self) -> None:
        """Fork a stream at a version."""
        if streams := self._streams():
            name = f"f{self.store.head(self.tenant)}"
            self._append_based(name, self.dice.choice(streams), expected=0)

    def _rewind(self) -> None:
        if streams := self._streams():
            stream = self.dice.choice(streams)
            self._append_based(stream, stream, expected=self.store.version(self.tenant, stream))

    def _erase_event(self) -> None:
        feed = feed_all(self.store, self.tenant)
        own = [found for found in feed if not is_notice(found.kind) and not is_erased_stream(found.stream)]
        if own and self.tenant == TENANT:
            gone = self.dice.choice(own)
            seen = {found.version for found in self.store.read(TENANT, gone.stream)}
            if gone.version in seen:
                erase_all(self.store, event_erasure(self.store, gone.stream, gone.version, claim_payload("", "-")))

    def _erase_stream(self) -> None:
        if not (streams := self._streams()) or self.dice.randrange(3):
            return
        going = [self.dice.choice(streams)]
        for stream in going:
            forks = self.store.forks(self.tenant, stream)
            going += [name for name, _ in forks if name not in going and not is_erased_stream(name)]
        erase_all(self.store, stream_erasure(self.store, *going, tenant=self.tenant))


def copy_page(source: Store, after: int, limit: int, tenant: str = TENANT) -> dict[str, Any]:
    """Return a page of events and their blobs, as arguments of `paste`."""
    events = source.copy_events(tenant, after=after, limit=limit)
    return {"events": events, "blobs": blobs_of_events(source, events, tenant)}


def blobs_of_events(source: Store, events: Sequence[RawEvent], tenant: str = TENANT) -> dict[bytes, bytes]:
    return source.blobs(tenant, {hash_ for raw in events for hash_ in raw.blobs})


def copy_log(source: Store, target: Store, *, limit: int = 256, tenant: str = TENANT) -> None:
    """Copy missing events, page by page, and the keys."""
    while (given := copy_page(source, target.head(tenant), limit, tenant))["events"]:
        target.paste(tenant, **given)
    after = ""
    while keys := source.copy_keys(tenant, after=after, limit=limit):
        target.paste(tenant, [], keys=keys)
        after = keys[-1].key


def stored_state(store: Store, tenant: str = TENANT) -> tuple[object, ...]:
    """Return everything of a tenant that is not derived."""
    events = store.copy_events(tenant, limit=10_000)
    return events, store.copy_keys(tenant, limit=10_000), blobs_of_events(store, events, tenant)


def assert_same(source: Store, target: Store) -> None:
    """Rebuild two stores and compare them."""
    assert stored_state(target) == stored_state(source)
    rebuild_store(source, derive_claims)
    rebuild_store(target, derive_claims)
    assert visible_state(target) == visible_state(source)
    assert stored_state(target) == stored_state(source)
    for stream in {raw.stream for raw in source.copy_events(TENANT, limit=10_000)}:
        assert target.forks(TENANT, stream) == source.forks(TENANT, stream)
        for at in range(1, source.version(TENANT, stream) + 1):
            assert target.read(TENANT, stream, at=at) == source.read(TENANT, stream, at=at)


class CopyContract(harness.StoreHarness):
    """A log that is kept the same elsewhere."""

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("given", ["source", "target"])
    def test_a_copy_shows_the_same(self, store: Store, given: str, seed: int) -> None:
        source, target = (store, VolatileStore()) if given == "source" else (VolatileStore(), store)
        RandomHistory(source, seed).run(60)
        copy_log(source, target, limit=7)
        assert_same(source, target)
        assert target.status()["blobs"] == source.status()["blobs"]

    def test_a_copy_goes_on_as_its_source_would(self, store: Store) -> None:
        source = VolatileStore()
        RandomHistory(source, 1).run(40)
        copy_log(source, store)
        rebuild_store(store, derive_claims)
        RandomHistory(store, 2).run(20)
        assert verify_store(store).ok
        target = VolatileStore()
        copy_log(store, target)
        assert_same(store, target)

    def test_it_goes_on_wherever_it_was_stopped(self, store: Store, folder: Path) -> None:
        source = VolatileStore()
        RandomHistory(source, 3).run(25)
        while store.head(TENANT) < source.head(TENANT):
            store.paste(TENANT, **copy_page(source, store.head(TENANT), 3))
            if self.reopens:
                store = self.reopen(store, folder)
        copy_log(source, store)
        assert_same(source, store)
        store.close()

    def test_what_comes_later_is_copied_later(self, store: Store) -> None:
        source = VolatileStore()
        life = RandomHistory(source, 4)
        for _ in range(4):
            append_events(source, "a", claim_event("", "more"))
            copy_log(source, store)
            assert_same(source, store)
            life.fork()

    def test_pages_are_by_position(self, store: Store) -> None:
        append_events(store, "a", *(claim_event("", word) for word in "abcde"))
        assert [raw.position for raw in store.copy_events(TENANT, after=1, limit=3)] == [2, 3, 4]
        assert store.copy_events(TENANT, after=5) == []
        assert store.copy_events("nobody") == []
        assert store.copy_keys("nobody") == []

    def test_tenants_are_copied_apart(self, store: Store) -> None:
        source = VolatileStore()
        append_events(source, "a", claim_event("c1", "theirs", (b"x1",)), tenant=OTHER, key="k1")
        append_events(source, "a", claim_event("c1", "ours", (b"x2",)), key="k2")
        copy_log(source, store)
        assert store.tenants() == [TENANT]
        assert harness.blobs_of(store, b"x1", tenant=OTHER) == []
        assert store.copy_keys(OTHER) == []
        copy_log(source, store, tenant=OTHER)
        assert stored_state(store, OTHER) == stored_state(source, OTHER)
        assert_same(source, store)

    def test_awkward_names_are_copied(self, store: Store) -> None:
        source = VolatileStore()
        for name in ("a\x00b", "ü", "{a}:*?[]\r\n"):
            append_events(source, name, claim_event(name, name, (b"x1",)), tenant=name, key=name)
            copy_log(source, store, tenant=name)
            assert stored_state(store, name) == stored_state(source, name)

    @pytest.mark.parametrize("field", ["payload", "salt", "digest", "link", "header"])
    @pytest.mark.parametrize("at", [0, 2])
    def test_what_is_not_as_it_was_written_is_refused(self, store: Store, field: str, at: int) -> None:
        source = self._source()
        given = copy_page(source, 0, 3)
        bad = given["events"][at]
        changed = bytes([getattr(bad, field)[0] ^ 1]) + getattr(bad, field)[1:]
        given["events"][at] = replace(bad, **{field: changed})
        with pytest.raises(errors.Corrupt, match=f"position {at + 1} "):
            store.paste(TENANT, **given)
        self._untouched(store)

    @pytest.mark.parametrize(
        "change",
        [{"payload": None}, {"payload": None, "salt": None}, {"version": 7}, {"number": 1}, {"erased": (4, 0, None)}],
        ids="+".join,
    )
    def test_what_is_not_whole_is_refused(self, store: Store, change: dict[str, Any]) -> None:
        given = copy_page(self._source(), 0, 3)
        given["events"][2] = replace(given["events"][2], **change)
        with pytest.raises(errors.Corrupt, match="position 3 "):
            store.paste(TENANT, **given)
        self._untouched(store)

    def test_blobs_come_along_or_nothing_does(self, store: Store) -> None:
        source = self._source()
        events = source.copy_events(TENANT)
        hash_ = harness.hash_of(b"x1")
        for blobs in ({}, {hash_: b"x2"}):
            with pytest.raises(errors.Corrupt, match=hash_.hex()):
                store.paste(TENANT, events, blobs=blobs)
            self._untouched(store)
        unneeded = {harness.hash_of(b"x3"): b"x3"}
        store.paste(TENANT, events, blobs=blobs_of_events(source, events) | unneeded)
        assert store.status()["blobs"] == 2

    def test_a_blob_that_is_there_need_not_come_again(self, store: Store) -> None:
        source = self._source()
        store.paste(TENANT, **copy_page(source, 0, 3))
        append_events(source, "b", claim_event("", "again", (b"x1",)))
        store.paste(TENANT, source.copy_events(TENANT, after=3))
        same_part = stored_state(store)[0], stored_state(store)[2]
        assert same_part == (stored_state(source)[0], stored_state(source)[2])

    def test_events_follow_the_head_or_nothing_comes(self, store: Store) -> None:
        source = self._source()
        store.paste(TENANT, **copy_page(source, 0, 1))
        before = stored_state(store)
        for after in (0, 2):
            with pytest.raises(errors.Conflict):
                store.paste(TENANT, **copy_page(source, after, 9))
            assert stored_state(store) == before
        given = copy_page(source, 1, 9)
        given["events"].reverse()
        with pytest.raises(errors.Conflict):
            store.paste(TENANT, **given)
        assert stored_state(store) == before
        store.paste(TENANT, **copy_page(source, 1, 9))
        copy_log(source, store)
        assert_same(source, store)

    def test_another_log_is_not_gone_on_with(self, store: Store) -> None:
        append_events(store, "a", claim_event("c1", "mine", (b"x1",)))
        before = visible_state(store)
        source = self._source()
        with pytest.raises(errors.Conflict):
            store.paste(TENANT, **copy_page(source, 1, 9))
        assert visible_state(store) == before

    def test_nothing_at_all_leaves_nothing(self, store: Store) -> None:
        store.paste(TENANT, [])
        self._untouched(store)

    def test_keys_are_kept_with_what_they_say(self, store: Store) -> None:
        source = self._source()
        write = StreamWrite("k", 0, (claim_event(),))
        for number, key in enumerate(("ü", "b", "a\x00", "a")):
            used = KeyUse(key, b"h%d" % number)
            append(source, replace(write, expected=number), key=used, time_us=number)
        found = source.copy_keys(TENANT)
        assert [key.key for key in found] == ["a", "a\x00", "b", "k1", "ü"]
        assert found[0] == RawKey("a", b"h3", 7, 7, 3)
        copy_log(source, store, limit=2)
        assert store.copy_keys(TENANT) == found
        store.paste(TENANT, [], keys=found)
        assert store.copy_keys(TENANT, after="a\x00", limit=2) == found[2:4]
        assert store.delete_keys(TENANT, before_us=2) == 3

    def test_keys_of_something_else_are_refused(self, store: Store) -> None:
        source = self._source()
        copy_log(source, store)
        (key,) = source.copy_keys(TENANT)
        append_events(source, "b", claim_event("", "new"), key="k3")
        before = stored_state(store)
        for wrong in (
            replace(key, command_hash=b"another"),
            replace(key, first=key.first + 1),
            RawKey("k2", b"hash", 4, 4, 0),
        ):
            with pytest.raises(errors.Conflict):
                store.paste(TENANT, [], keys=[RawKey("k9", b"hash", 1, 1, 0), wrong])
            assert stored_state(store) == before
            given = copy_page(source, 3, 9)
            if wrong.key == key.key:
                with pytest.raises(errors.Conflict):
                    store.paste(TENANT, **given, keys=[wrong])
                assert stored_state(store) == before

    def test_what_was_erased_before_comes_without_content(self, store: Store) -> None:
        source = self._source()
        erase_all(source, event_erasure(source, "a", 1, claim_payload("", "-", (b"x3",)), (b"x3",)))
        erase_all(source, stream_erasure(source, "b"))
        copy_log(source, store)
        assert_same(source, store)
        assert harness.blobs_of(store, *_BLOBS) == [b"x3"]
        assert store.pending_erasures() is None

    @pytest.mark.parametrize("limit", [1, 2, 256])
    def test_what_was_erased_meanwhile_is_erased_in_the_copy(self, store: Store, limit: int) -> None:
        source = self._source()
        copy_log(source, store)
        gone = [raw.position for raw in source.copy_events(TENANT) if raw.stream == "b"]
        erase_all(source, stream_erasure(source, "b"))
        append_events(source, "b", claim_event("c1", "new"))
        erase_all(source, event_erasure(source, "a", 1, claim_payload("", "-")))
        head = store.head(TENANT)
        events = [raw for raw in source.copy_events(TENANT) if raw.position <= head and raw.erased]
        assert {raw.position for raw in events} == {1, *gone}
        for begin in range(0, len(events), limit):
            given = events[begin : begin + limit]
            store.paste(TENANT, given, blobs=blobs_of_events(source, given))
        assert store.pending_erasures() is not None
        assert store.copy_keys(TENANT) == []
        assert harness.blobs_of(store, *_BLOBS) == []
        copy_log(source, store)
        assert_same(source, store)
        store.scrub(store.pending_erasures() or b"")
        assert store.pending_erasures() is None
        assert_same(source, store)

    def test_what_stands_in_for_something_erased_can_change(self, store: Store) -> None:
        source = self._source()
        copy_log(source, store)
        for word in "-=":
            erase_all(source, event_erasure(source, "a", 1, claim_payload("", word, (b"x3",)), (b"x3",)))
            head = store.head(TENANT)
            again = [raw for raw in source.copy_events(TENANT, limit=head) if raw.erased]
            store.paste(TENANT, again, blobs=blobs_of_events(source, again))
            copy_log(source, store)
            assert_same(source, store)

    def test_a_name_that_was_given_back_meanwhile_is_free(self, store: Store) -> None:
        source = self._source()
        copy_log(source, store)
        erase_all(source, stream_erasure(source, "a"))
        append_events(source, "a", claim_event("c1", "new"))
        events = source.copy_events(TENANT)
        again = [raw for raw in events if raw.position <= 3 and raw.erased]
        store.paste(TENANT, [*again, *events[3:]], blobs=blobs_of_events(source, events))
        assert_same(source, store)

    def test_an_erasure_of_another_log_is_refused(self, store: Store) -> None:
        copy_log(self._source(), store)
        other = self._source()
        erase_all(other, stream_erasure(other, "a"))
        before = stored_state(store)
        again = [raw for raw in other.copy_events(TENANT) if raw.erased]
        with pytest.raises(errors.Conflict):
            store.paste(TENANT, again)
        assert stored_state(store) == before

    def test_damage_is_not_copied(self, store: Store) -> None:
        append_events(store, "a", claim_event("", "one"), claim_event("", "two"))
        self.damage(store, 2)
        assert len(store.copy_events(TENANT, limit=1)) == 1
        with pytest.raises(errors.Corrupt, match="position 2 "):
            store.copy_events(TENANT)

    def test_what_is_blank_for_no_reason_is_not_copied(self, store: Store) -> None:
        append_events(store, "a", claim_event("", "one"), claim_event("", "two"))
        self.blank(store, 1)
        with pytest.raises(errors.Corrupt, match="position 1 "):
            store.copy_events(TENANT)

    def test_whoever_waits_hears_of_it_and_what_was_cached_does_not_hold(self, store: Store) -> None:
        source = self._source()
        store.paste(TENANT, **copy_page(source, 0, 1))
        count = store.cache_epoch(TENANT)
        store.paste(TENANT, **copy_page(source, 1, 9))
        assert store.wait(TENANT, 2, 0)
        rebuild_store(store, derive_claims)
        assert store.cache_epoch(TENANT) > count
        with store.write_lock() as alone:
            assert not alone

    def _source(self) -> VolatileStore:
        source = VolatileStore()
        append_events(source, "a", claim_event("c1", "one", (b"x1",)), key="k1")
        append_events(source, "b", claim_event("c1", "two", (b"x2",)), claim_event("c2", "three"))
        return source

    def _untouched(self, store: Store) -> None:
        assert store.tenants() == []
        assert stored_state(store) == ([], [], {})
        assert store.head(TENANT) == store.status()["blobs"] == 0
