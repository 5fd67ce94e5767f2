"""Contract of durability: what is acknowledged is kept, per tenant, beside concurrent writers; damage is found.

Blobs are kept once per tenant, by their hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from threading import Barrier
from time import sleep

import msgspec
import pytest

from limpet import errors, limits
from limpet.stores.port import (
    DURABILITY_LEVELS,
    Append,
    Appended,
    KeyRecord,
    KeyUse,
    Projection,
    Query,
    Snapshot,
    Stale,
    Store,
    StoredEvent,
)
from limpet.testing.store_contract import harness
from limpet.testing.store_contract.harness import (
    OTHER,
    TENANT,
    append,
    blobs_of,
    commit,
    commit_all,
    derive_nothing,
    feed_all,
    hash_of,
    make_append,
    project,
    try_append,
    verify_store,
    visible_state,
    walk,
    write,
)

AWKWARD_TEXTS = (
    "\x00", "a\x00", "a\x00b", "\x00a", "a", "A", " a", "a ", "\t", "\n", "\r\n", "'", '"', "\\", "%",
    "_", "*", "?", "[a]", "--", ";", "é", "e\u0301", "ß", "ss", "ı", "i", "İ", "\ufeff", "\ufffd",
    "\ufffe", "\uffff", "\ue000", "\u202e", "\u2028", "😀", "\U0010ffff", "0", "00", "1", "1.0",
    "None", "null", "x" * limits.ID_BYTES_MAX,
)  # fmt: skip
"""Texts that a careless backend cuts short, folds together or takes for something else."""


class DurabilityContract(harness.StoreHarness):
    """What is kept, for whom, and how it is checked."""

    def test_the_durability_level_is_one_that_is_known(self, store: Store) -> None:
        assert store.durability in DURABILITY_LEVELS

    def test_status_is_json_and_names_the_durability(self, store: Store) -> None:
        append(store, write("a", 0, b"1"))
        assert store.status()["durability"] == store.durability
        assert msgspec.json.encode(dict(store.status()))

    def test_reopening_keeps_everything(self, store: Store, folder: Path) -> None:
        _fill_tenant(store, TENANT)
        _fill_tenant(store, OTHER)
        before = visible_state(store, TENANT), visible_state(store, OTHER)
        again = self.reopen(store, folder)
        assert (visible_state(again, TENANT), visible_state(again, OTHER)) == before
        assert try_append(again, write("a", 0, b"no")) == Stale("a", 2)
        append(again, write("a", 2, b"3"))
        assert [e.position for e in feed_all(again)] == [1, 2, 3, 4]
        assert verify_store(again).ok
        again.close()

    def test_a_second_opener_sees_what_is_acknowledged(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        second = self.open_store(folder)
        _fill_tenant(store, TENANT)
        assert visible_state(second) == visible_state(store)
        append(second, write("a", 2, b"3"))
        assert visible_state(second) == visible_state(store)
        second.close()
        append(store, write("a", 3, b"4"))
        assert store.version(TENANT, "a") == 4

    def test_what_one_opener_remembers_never_stands_above_what_another_wrote(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        second = self.open_store(folder)

        def row(owner: str, *terms: str) -> Projection:
            return Projection(kind="row", id="1", owner=owner, terms=terms, document=owner.encode())

        append(store, write("a", 0, b"1"), write("b", 0, b"1"), projections=(row("x", "t"),))
        append(second, write("a", 1, b"2"))
        append(store, write("a", 2, b"3"))
        append(second, write("a", 3, b"4"), projections=(row("y", "u"),))
        assert try_append(store, write("a", 3, b"late")) == Stale("a", 4)
        append(store, write("b", 1, b"2"), projections=(row("x", "t"),))
        assert second.query_projections(TENANT, Query(kind="row", owner="x", terms=("t",))) == [row("x", "t")]
        assert second.query_projections(TENANT, Query(kind="row", terms=("u",))) == []
        append(second, write("c", 0, b"1"), drops=(("row", "1"),))
        append(store, write("b", 2, b"3"), projections=(row("x", "t"),))
        assert second.find_projection(TENANT, "row", "1") == row("x", "t")
        append(second, write("b", 3, b"4"), write("a", 4, b"5"))
        assert try_append(store, write("b", 3, b"late"), write("a", 5, b"6")) == Stale("b", 4)
        append(store, write("b", 4, b"5"), write("a", 5, b"6"))
        assert visible_state(second) == visible_state(store)
        assert verify_store(second).ok
        second.close()

    def test_a_backup_holds_everything(self, store: Store, folder: Path) -> None:
        _fill_tenant(store, TENANT)
        target = str(folder / "backup.copy")
        try:
            progress = list(store.backup(target))
        except errors.NoBackup:
            pytest.skip("this store makes no backups")
        assert all(0 <= done <= total for done, total in progress)
        copy = self.open_backup(target)
        assert visible_state(copy) == visible_state(store)
        copy.close()

    def test_tenants_do_not_see_one_another(self, store: Store) -> None:
        _fill_tenant(store, TENANT)
        empty = visible_state(store, OTHER)
        assert empty[0] == [], "another tenant's feed is empty"
        assert store.find_key(OTHER, "k1") is None
        assert store.find_claim(OTHER, "a", "c1") == 0
        assert store.find_ordinal(OTHER, "a", 0) == 0
        assert store.find_projection(OTHER, "row", "1") is None
        assert store.query_projections(OTHER, Query(kind="row")) == []
        assert store.query_projections(OTHER, Query(kind="row", terms=("t1",))) == []
        assert store.snapshot(OTHER, "a") is None
        assert store.note(OTHER, "n1") is None
        assert store.notes(OTHER) == []
        assert not store.put_note(OTHER, "n1", None, expected=1)
        assert store.delete_keys(OTHER, before_us=2**53) == 0

    def test_tenants_use_the_same_names_apart(self, store: Store) -> None:
        _fill_tenant(store, TENANT)
        before = visible_state(store)[:-2]
        _fill_tenant(store, OTHER)
        assert visible_state(store)[:-2] == before
        assert [e.position for e in feed_all(store, OTHER)] == [1, 2, 3]
        assert sorted(store.tenants()) == [TENANT, OTHER]
        changed = Projection(kind="row", id="1", owner="eve", terms=("t2",))
        project(store, changed, tenant=OTHER)
        append(store, write("a", 2, b"3"), tenant=OTHER, drops=(("row", "2"),))
        assert store.delete_keys(OTHER, before_us=2**53) == 1
        assert visible_state(store)[:-2] == before
        assert store.query_projections(OTHER, Query(kind="row")) == [changed]

    def test_each_event_is_linked(self, store: Store) -> None:
        _fill_tenant(store, TENANT)
        _fill_tenant(store, OTHER)
        links = [e.link for tenant in (TENANT, OTHER) for e in feed_all(store, tenant)]
        assert {len(link) for link in links} == {32}
        assert len(set(links)) == len(links), "the salt makes equal events' links differ"
        by_stream = {e.position: e.link for name in "ab" for e in store.read(TENANT, name)}
        assert by_stream == {e.position: e.link for e in feed_all(store)}

    def test_verify_counts_what_it_checked(self, store: Store) -> None:
        empty = verify_store(store)
        assert (empty.ok, empty.events, empty.tenants) == (True, 0, 0)
        _fill_tenant(store, TENANT)
        _fill_tenant(store, OTHER)
        append(store, write("b", 1, *[b"x"] * 2_000))
        report = verify_store(store)
        assert (report.faults, report.events, report.tenants) == ((), 2_006, 2)

    def test_damage_is_found(self, store: Store) -> None:
        _fill_tenant(store, TENANT)
        self.damage(store, 2)
        with pytest.raises(errors.Corrupt):
            store.feed(TENANT)
        with pytest.raises(errors.Corrupt):
            store.read(TENANT, "a", after=1)
        assert [e.position for e in store.read(TENANT, "a", until=1)] == [1]
        assert not verify_store(store).ok

    def test_names_that_are_others_are_found(self, store: Store) -> None:
        _fill_tenant(store, TENANT)
        self.damage_name(store, "a", "b")
        assert not verify_store(store).ok

    def test_a_damaged_key_is_found(self, store: Store) -> None:
        _fill_tenant(store, TENANT)
        self.damage_key(store, "k1")
        assert not verify_store(store).ok

    def test_awkward_names_are_kept_apart(self, store: Store) -> None:
        for at, text in enumerate(AWKWARD_TEXTS, start=1):
            _name_all(store, text, at)
        for at, text in enumerate(AWKWARD_TEXTS, start=1):
            _find_all(store, text, at)
        assert [e.stream for e in feed_all(store)] == list(AWKWARD_TEXTS)

    def test_awkward_tenants_are_kept_apart(self, store: Store) -> None:
        for at, text in enumerate(AWKWARD_TEXTS):
            append(store, write("a", 0, b"%d" % at), tenant=text)
        assert sorted(store.tenants()) == sorted(AWKWARD_TEXTS)
        for at, text in enumerate(AWKWARD_TEXTS):
            assert [e.payload for e in store.feed(text)] == [b"%d" % at]

    def test_every_character_is_kept(self, store: Store) -> None:
        texts = list(_all_unicode())
        claims = tuple((text, 0) for text in texts)
        append(store, write("a", 0, b"x", claims=claims))
        assert {store.find_claim(TENANT, "a", text) for text in texts} == {1}
        rows = tuple(
            Projection(kind="row", id=text, owner=text, status=text, lookup=text, terms=(text,))
            for text in texts[:: len(texts) // 400]
        )
        writes = tuple(write(row.id, 0, b"y") for row in rows)
        append(store, *writes, projections=rows, key=KeyUse(texts[0], b"h"))
        by_id = sorted(rows, key=lambda row: row.id, reverse=True)
        assert store.query_projections(TENANT, Query(kind="row", limit=1_000)) == by_id
        assert {e.stream for e in feed_all(store)} == {"a"} | {row.id for row in rows}

    def test_closing_twice_is_fine(self, store: Store) -> None:
        store.close()
        store.close()

    def test_a_closed_store_says_so(self, store: Store, folder: Path) -> None:
        _fill_tenant(store, TENANT)
        store.close()
        calls: tuple[Callable[[], object], ...] = (
            lambda: commit(store, make_append(write("a", 2, b"no"))),
            lambda: store.version(TENANT, "a"),
            lambda: store.read(TENANT, "a"),
            lambda: store.feed(TENANT),
            lambda: store.blobs(TENANT, [hash_of(b"x1")]),
            lambda: store.find_ordinal(TENANT, "a", 0),
            lambda: store.find_claim(TENANT, "a", "c1"),
            lambda: store.find_key(TENANT, "k1"),
            lambda: store.delete_keys(TENANT, before_us=0),
            lambda: store.note(TENANT, "n1"),
            lambda: store.put_note(TENANT, "n1", b"", expected=1),
            lambda: store.notes(TENANT),
            lambda: store.wait(TENANT, 0, 0),
            lambda: store.find_projection(TENANT, "row", "1"),
            lambda: store.query_projections(TENANT, Query(kind="row")),
            lambda: store.snapshot(TENANT, "a"),
            store.tenants,
            lambda: list(store.verify()),
            lambda: list(store.rebuild(derive_nothing)),
            lambda: store.cache_epoch(TENANT),
            lambda: store.head(TENANT),
            lambda: store.forks(TENANT, "a"),
            store.pending_erasures,
            store.status,
            lambda: list(store.backup(str(folder / "backup.copy"))),
        )
        for call in calls:
            with pytest.raises(errors.EngineClosed):
                call()


def _fill_tenant(store: Store, tenant: str) -> None:
    """Write three events of a tenant and one row of every other kind."""
    rows = (
        Projection(kind="row", id="1", owner="ada", terms=("t1", "t2"), document=b"\x00"),
        Projection(kind="row", id="2", owner="bob", terms=("t2",)),
    )
    events = write("a", 0, b"1", b"2", claims=(("c1", 1),)), write("b", 0, b"\xff", blobs=(b"x1",))
    snapshot, key = Snapshot("a", 2, 1, b"state"), KeyUse("k1", b"hash")
    assert store.put_note(tenant, "n1", b"note", expected=0)
    append(store, *events, tenant=tenant, projections=rows, snapshots=(snapshot,), key=key, time_us=1)


def _name_all(store: Store, text: str, at: int) -> None:
    row = Projection(kind=text, id=text, owner=text, status=text, lookup=text, terms=(text,), document=b"%d" % at)
    rows, snapshot = (row, msgspec.structs.replace(row, kind="row")), Snapshot(text, 1, 1, b"%d" % at)
    told, key = write(text, 0, b"%d" % at, claims=((text, 0),)), KeyUse(text, b"%d" % at)
    append(store, told, projections=rows, snapshots=(snapshot,), key=key)


def _find_all(store: Store, text: str, at: int) -> None:
    told = b"%d" % at
    assert [e.payload for e in store.read(TENANT, text)] == [told]
    assert [claim for claim in AWKWARD_TEXTS if store.find_claim(TENANT, text, claim)] == [text]
    assert store.find_key(TENANT, text) == KeyRecord(told, at, at)
    assert store.snapshot(TENANT, text) == Snapshot(text, 1, 1, told)
    row = store.find_projection(TENANT, "row", text)
    assert row is not None
    assert (row.id, row.terms, row.document) == (text, (text,), told)
    for query in (
        Query(kind="row", owner=text),
        Query(kind="row", status=text),
        Query(kind="row", lookup=text),
        Query(kind="row", terms=(text,)),
    ):
        assert store.query_projections(TENANT, query) == [row]
    assert store.query_projections(TENANT, Query(kind=text)) == [msgspec.structs.replace(row, kind=text)]


def _all_unicode() -> Iterator[str]:
    """Yield all legal characters, in texts of the maximal length of an id."""
    each = limits.ID_BYTES_MAX // 4
    legal = (*range(0xD800), *range(0xE000, 0x110000))
    for start in range(0, len(legal), each):
        yield "".join(map(chr, legal[start : start + each]))


LARGE = bytes(range(256)) * 4096


class BlobContract(harness.StoreHarness):
    """Blobs."""

    def test_blobs_come_back_by_their_hash(self, store: Store) -> None:
        contents = (b"", b"\x00", b"one", LARGE)
        append(store, write("a", 0, b"1", blobs=contents))
        assert store.blobs(TENANT, [hash_of(each) for each in contents]) == {hash_of(each): each for each in contents}
        assert store.blobs(TENANT, [hash_of(b"one")] * 2) == {hash_of(b"one"): b"one"}
        assert store.blobs(TENANT, []) == {}

    def test_a_blob_that_is_not_there_is_left_out(self, store: Store) -> None:
        assert store.blobs(TENANT, [hash_of(b"one")]) == {}
        append(store, write("a", 0, b"1", blobs=(b"one",)))
        for other in (hash_of(b"two"), b"", hash_of(b"one")[:-1], hash_of(b"one") + b"\x00"):
            assert store.blobs(TENANT, [other]) == {}
        assert blobs_of(store, b"two", b"one") == [b"one"]

    def test_many_blobs_are_read_at_once(self, store: Store) -> None:
        contents = tuple(b"%d" % number for number in range(3_000))
        append(store, write("a", 0, b"1", blobs=contents))
        assert blobs_of(store, *contents) == list(contents)

    def test_a_refused_append_leaves_no_blob(self, store: Store) -> None:
        append(store, write("a", 0, b"1", blobs=(b"one",)))
        refused = make_append(write("b", 0, b"no", blobs=(b"two",)), write("a", 0, b"no"))
        taken = make_append(write("b", 0, b"2", blobs=(b"three",)))
        assert commit(store, refused) == [Stale("a", 1)]
        assert commit(store, refused, taken) == [Stale("a", 1), Appended(2, 2)]
        assert blobs_of(store, b"one", b"two", b"three") == [b"one", b"three"]
        assert store.status()["blobs"] == 2

    def test_a_blob_is_kept_once(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2", blobs=(LARGE, LARGE)), write("b", 0, b"3", blobs=(LARGE,)))
        commit_all(store, *(make_append(write("a", at, b"4", blobs=(LARGE,))) for at in (2, 3)))
        assert store.status()["blobs"] == 1
        assert blobs_of(store, LARGE) == [LARGE]
        assert verify_store(store).faults == ()

    def test_tenants_have_their_blobs_apart(self, store: Store) -> None:
        append(store, write("a", 0, b"1", blobs=(b"one", b"two")))
        append(store, write("a", 0, b"1"), tenant=OTHER)
        assert blobs_of(store, b"one", b"two", tenant=OTHER) == []
        append(store, write("a", 1, b"2", blobs=(b"one",)), tenant=OTHER)
        assert blobs_of(store, b"one", b"two", tenant=OTHER) == [b"one"]
        assert store.status()["blobs"] == 3, "each tenant has its own"
        assert verify_store(store).faults == ()

    def test_blobs_outlast_the_opener(self, store: Store, folder: Path) -> None:
        append(store, write("a", 0, b"1", blobs=(LARGE,)))
        again = self.reopen(store, folder)
        append(again, write("a", 1, b"2", blobs=(LARGE, b"two")))
        assert blobs_of(again, LARGE, b"two") == [LARGE, b"two"]
        assert again.status()["blobs"] == 2
        again.close()

    def test_a_damaged_blob_is_found(self, store: Store) -> None:
        append(store, write("a", 0, b"1", blobs=(b"one", b"two")))
        self.damage_blob(store, hash_of(b"one"))
        with pytest.raises(errors.Corrupt) as info:
            blobs_of(store, b"one", b"two")
        assert info.value.facts["blob"] == hash_of(b"one").hex()
        assert blobs_of(store, b"two") == [b"two"]
        (fault,) = verify_store(store).faults
        assert hash_of(b"one").hex() in fault

    def test_a_blob_that_is_brought_again_is_whole_again(self, store: Store) -> None:
        append(store, write("a", 0, b"1", blobs=(b"one",)))
        self.damage_blob(store, hash_of(b"one"))
        append(store, write("a", 1, b"2", blobs=(b"one",)))
        assert blobs_of(store, b"one") == [b"one"]
        assert verify_store(store).ok

    def test_a_lost_blob_is_missed(self, store: Store) -> None:
        append(store, write("a", 0, b"1", blobs=(b"one", b"two")))
        append(store, write("a", 0, b"1", blobs=(b"one",)), tenant=OTHER)
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
        append(store, write("first", 0, b"1"))

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
        append(store, write("a", 0, b"1"))

    def test_what_is_decided_in_a_turn_rests_on_what_is_there(self, folder: Path) -> None:
        """Concurrent writers of the tenant are excluded until the write lock is released, or detected."""
        self.must_reopen()
        with (
            closing(self.open_store(folder)) as mine,
            closing(self.open_store(folder)) as theirs,
            ThreadPoolExecutor(1) as pool,
        ):
            append(mine, write("a", 0, b"1"))
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
        """The holder of the write lock appends it; if there is none, the process that handed it over."""
        self.must_reopen()
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
        walk(lambda: self.open_store(folder), steps=self.walk_steps, seed=seed, reopen_every=reopen_every)


def _hand_over_once(store: Store, given: list[Append]) -> bool:
    """Hand appends over; commit them if no other process did; return whether only the first was appended."""
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
    """Read the feed while it grows. Events that were read must never change."""
    seen: list[StoredEvent] = []
    while not all(job.done() for job in jobs):
        seen += store.feed(TENANT, after=len(seen), limit=7)
    while page := store.feed(TENANT, after=len(seen)):
        seen += page
    return seen
