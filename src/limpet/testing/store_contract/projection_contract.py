"""Contract of derived data and notes: projections, snapshots, rebuild, compare-and-set, waiting."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path
from threading import Barrier

import msgspec
import pytest

from limpet import errors, limits
from limpet.stores.port import (
    Append,
    Appended,
    BlobLoader,
    ClaimTaken,
    DerivedState,
    KeyRecord,
    KeyUse,
    NewEvent,
    Note,
    Projection,
    Query,
    Rebuilt,
    Snapshot,
    Store,
    StoredEvent,
    StreamWrite,
)
from limpet.testing.store_contract import harness
from limpet.testing.store_contract.durability_contract import AWKWARD_TEXTS
from limpet.testing.store_contract.harness import (
    OTHER,
    TENANT,
    append,
    commit_all,
    derive_nothing,
    feed_all,
    hash_of,
    make_append,
    meets,
    occasion,
    project,
    verify_store,
    write,
)


class ProjectionContract(harness.StoreHarness):
    """Projections and snapshots."""

    def test_a_projection_is_replaced_and_dropped(self, store: Store) -> None:
        plain = Projection(kind="row", id="1", owner="ada", time_us=5, document=b"\x00one")
        row = msgspec.structs.replace(plain, status="open", lookup="x", terms=("t1", "t2"))
        project(store, row, Projection(kind="other", id="1"))
        assert store.find_projection(TENANT, "row", "1") == row
        changed = Projection(kind="row", id="1", owner="bob", time_us=6, terms=("t3",))
        project(store, changed)
        assert store.find_projection(TENANT, "row", "1") == changed
        assert store.query_projections(TENANT, Query(kind="row")) == [changed]
        for old in (Query(kind="row", owner="ada"), Query(kind="row", lookup="x"), Query(kind="row", terms=("t1",))):
            assert store.query_projections(TENANT, old) == []
        append(store, occasion(store), drops=(("row", "1"), ("row", "never was")))
        assert store.find_projection(TENANT, "row", "1") is None
        assert store.query_projections(TENANT, Query(kind="row")) == []
        assert store.query_projections(TENANT, Query(kind="row", terms=("t3",))) == []
        assert store.find_projection(TENANT, "other", "1") == Projection(kind="other", id="1")
        project(store, row)
        assert store.query_projections(TENANT, Query(kind="row", terms=("t1", "t2"))) == [row]

    def test_a_row_may_be_written_twice_in_one_append(self, store: Store) -> None:
        first = Projection(kind="row", id="1", status="first", terms=("t1",))
        last = Projection(kind="row", id="1", status="last", terms=("t2",))
        project(store, first, last)
        assert store.query_projections(TENANT, Query(kind="row")) == [last]
        assert store.query_projections(TENANT, Query(kind="row", terms=("t1",))) == []

    def test_pages_are_newest_first_and_the_higher_id_among_equals(self, store: Store) -> None:
        rows = [
            Projection(kind="row", id=id_, time_us=time_us)
            for time_us, id_ in product((7, -3, 2**53, 0), ("b", "B", "ä", "10", "9"))
        ]
        rows = [msgspec.structs.replace(row, id=f"{row.id}/{row.time_us}") for row in rows]
        project(store, *rows)
        expected = sorted(rows, key=lambda row: (row.time_us, row.id), reverse=True)
        assert store.query_projections(TENANT, Query(kind="row")) == expected
        assert store.query_projections(TENANT, Query(kind="row", limit=3)) == expected[:3]
        assert store.query_projections(TENANT, Query(kind="row", limit=4, offset=18)) == expected[18:]
        assert store.query_projections(TENANT, Query(kind="row", offset=99)) == []

    def test_paging_by_cursor_visits_each_row_once(self, store: Store) -> None:
        rows = [Projection(kind="row", id=f"{n:02}", time_us=n // 10) for n in range(35)]
        project(store, *rows)
        for limit in (1, 3, 7, 35, 50):
            assert _read_pages(store, Query(kind="row", limit=limit)) == rows[::-1]

    def test_paging_goes_on_after_the_cursors_row_has_gone(self, store: Store) -> None:
        rows = [Projection(kind="row", id=f"{n:02}", time_us=1) for n in range(10)]
        project(store, *rows)
        append(store, occasion(store), drops=(("row", "05"),))
        project(store, Projection(kind="row", id="99", time_us=2))
        query = Query(kind="row", after=(1, "05"))
        assert [row.id for row in store.query_projections(TENANT, query)] == ["04", "03", "02", "01", "00"]

    def test_an_offset_counts_from_the_cursor(self, store: Store) -> None:
        project(store, *(Projection(kind="row", id=f"{n}") for n in range(6)))
        query = Query(kind="row", after=(0, "4"), offset=1, limit=2)
        assert [row.id for row in store.query_projections(TENANT, query)] == ["2", "1"]

    def test_every_condition_given_must_hold(self, store: Store) -> None:
        rows = [
            Projection(kind="row", id=f"{n:03}", owner=owner, status=status, lookup=lookup, time_us=n % 5, terms=terms)
            for n, (owner, status, lookup, terms) in enumerate(
                product(("ada", "bob", ""), ("open", ""), ("", "x"), ((), ("t",), ("t", "u"), ("tu",)))
            )
        ]
        project(store, *rows, Projection(kind="other", id="1", owner="ada"))
        for owner, status, lookup, since, until, terms in product(
            (None, "ada", ""),
            (None, "open", ""),
            (None, "x", "y"),
            (None, 2),
            (None, 3),
            ((), ("t",), ("u", "t"), ("t", "t"), ("v",), ("t", "v")),
        ):
            query = Query(kind="row", owner=owner, status=status, lookup=lookup, terms=terms, limit=7)
            query = msgspec.structs.replace(query, since_us=since, until_us=until)
            expected = [row for row in rows if meets(row, query)]
            expected.sort(key=lambda row: (row.time_us, row.id), reverse=True)
            assert store.query_projections(TENANT, query) == expected[:7], query
            assert _read_pages(store, query) == expected, query

    def test_times_are_bounded_on_both_sides_inclusively(self, store: Store) -> None:
        project(store, *(Projection(kind="row", id=f"{n}", time_us=n) for n in range(6)))
        found = store.query_projections(TENANT, Query(kind="row", since_us=2, until_us=4))
        assert [row.time_us for row in found] == [4, 3, 2]

    def test_a_snapshot_is_replaced(self, store: Store) -> None:
        assert store.snapshot(TENANT, "a") is None
        append(store, write("a", 0, b"1"), snapshots=(Snapshot("a", 1, 1, b""),))
        assert store.snapshot(TENANT, "a") == Snapshot("a", 1, 1, b"")
        large = Snapshot("a", 2, 5, bytes(range(256)) * 1024)
        append(store, write("a", 1, b"2"), snapshots=(large,))
        assert store.snapshot(TENANT, "a") == large
        append(store, write("a", 2, b"3"), write("b", 0, b"4"))
        assert store.snapshot(TENANT, "a") == large
        assert store.snapshot(TENANT, "b") is None

    def test_a_snapshot_may_follow_its_events(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2"))
        late = Snapshot("a", 2, 1, b"late")
        append(store, occasion(store), snapshots=(late,))
        assert store.snapshot(TENANT, "a") == late


def _read_pages(store: Store, query: Query) -> list[Projection]:
    rows: list[Projection] = []
    while page := store.query_projections(TENANT, query):
        rows += page
        assert len(page) <= query.limit
        query = msgspec.structs.replace(query, after=(page[-1].time_us, page[-1].id))
        assert len(rows) <= 10_000, "paging comes to an end"
    return rows


_TENANTS = (TENANT, OTHER)
_STREAMS = ("a", "b", "ü", "a\x00b")
_CLAIMS = tuple(f"c{number}" for number in range(30))
_BLOBS = tuple(b"%d" % number * 500 for number in range(9))
_TEXTS = ("", "x", "y", "y\x00")


class _RowsPayload(msgspec.Struct, frozen=True):
    """What an event of these tests says of what is derived from it: its claims, its stream's rows, its blobs."""

    claims: tuple[str, ...] = ()
    rows: tuple[Projection, ...] = ()
    blobs: tuple[bytes, ...] = ()


def derive_rows(stream: str, events: Iterator[StoredEvent], blobs: BlobLoader) -> DerivedState:
    """Derive claims and projections of a stream from the payloads of these tests."""
    claims: list[tuple[str, int]] = []
    uses: list[tuple[bytes, int]] = []
    rows: tuple[Projection, ...] = ()
    for event in events:
        assert event.stream == stream, "a stream's name comes with its events"
        told = msgspec.msgpack.decode(event.payload or b"", type=_RowsPayload)
        if set(blobs(told.blobs)) != set(told.blobs):
            raise errors.Corrupt(f"a blob of the event at position {event.position} is missing.")
        claims += [(claim, event.version) for claim in told.claims]
        uses += [(hash_, event.version) for hash_ in told.blobs]
        rows = told.rows
    return DerivedState(tuple(claims), rows, tuple(uses))


class RebuildContract(harness.StoreHarness):
    """Making it all again."""

    @pytest.mark.parametrize("seed", range(5))
    def test_a_rebuild_gives_the_same_again(self, store: Store, seed: int) -> None:
        _append_randomly(store, random.Random(seed), 60)
        before = _visible_state(store)
        made = rebuild_store(store)
        assert _visible_state(store) == before
        assert all(store.snapshot(t, s) is None for t in _TENANTS for s in _STREAMS)
        events = [event for tenant in _TENANTS for event in feed_all(store, tenant)]
        assert (made.events, made.tenants) == (len(events), 2)
        assert made.streams == sum(bool(store.version(t, s)) for t in _TENANTS for s in _STREAMS)
        assert made.projections == sum(len(_rows(store, tenant)) for tenant in _TENANTS)
        assert made.claims == sum(bool(store.find_claim(t, s, c)) for t in _TENANTS for s in _STREAMS for c in _CLAIMS)

    @pytest.mark.parametrize("seed", range(3))
    def test_what_was_tampered_with_is_put_right(self, store: Store, seed: int) -> None:
        dice = random.Random(seed)
        _append_randomly(store, dice, 40)
        before = _visible_state(store)
        self.tamper(store)
        assert _visible_state(store) != before
        rebuild_store(store)
        assert _visible_state(store) == before
        assert verify_store(store).ok
        _append_randomly(store, dice, 20)
        before = _visible_state(store)
        rebuild_store(store)
        assert _visible_state(store) == before, "what is written after a rebuild is derived as ever"

    def test_a_claim_that_the_log_has_twice_is_the_first_ones(self, store: Store) -> None:
        """Claims were lost, and events have made them again meanwhile. All else is derived as ever."""
        row = Projection(kind="row", id="a/0", owner="x", terms=("y",), document=b"d")
        said = [_RowsPayload(rows=(row,)), _RowsPayload(("c1",)), _RowsPayload(("c1", "c2")), _RowsPayload(("c1",)), _RowsPayload(("c1", "c2"), (row,))]  # fmt: skip
        for version, told in enumerate(said):
            base = ("a", 1) if version == 3 else None
            write = StreamWrite("a", version, (_event(told),), base=base)
            append(store, write)
        append(store, StreamWrite("b", 0, (_event(said[1]),)))
        made = rebuild_store(store)
        assert (made.claims, made.projections) == (5, 1)
        assert [store.find_claim(TENANT, "a", c, at=3) for c in ("c1", "c2")] == [2, 3]
        assert [store.find_claim(TENANT, "a", c) for c in ("c1", "c2")] == [4, 5]
        assert store.find_claim(TENANT, "b", "c1") == 1
        assert _rows(store, TENANT) == [row]
        again = StreamWrite("a", 5, (_event(_RowsPayload()),), (("c1", 0),))
        with store.write_lock():
            assert store.commit([make_append(again)]) == [ClaimTaken("a", "c1", 4)]

    def test_keys_stay_and_snapshots_go(self, store: Store) -> None:
        used, snapshot = KeyUse("k1", b"hash"), Snapshot("a", 1, 1, b"wrong")
        append(store, StreamWrite("a", 0, (_event(_RowsPayload()),)), key=used, snapshots=(snapshot,))
        rebuild_store(store)
        assert store.find_key(TENANT, "k1") == KeyRecord(b"hash", 1, 1)
        assert store.snapshot(TENANT, "a") is None

    def test_an_empty_store_is_rebuilt(self, store: Store) -> None:
        assert rebuild_store(store) == Rebuilt()

    def test_rebuilds_are_counted(self, store: Store) -> None:
        _append_randomly(store, random.Random(0), 5)
        before = store.cache_epoch(TENANT)
        assert [rebuild_store(store).tenants, store.cache_epoch(TENANT)] == [2, before + 1]
        with pytest.raises(ZeroDivisionError):
            rebuild_store(store, _fail_at(1))
        assert store.cache_epoch(TENANT) == before + 1
        rebuild_store(store)
        assert store.cache_epoch(TENANT) == before + 2

    def test_the_next_turn_hears_of_a_rebuild(self, store: Store) -> None:
        _append_randomly(store, random.Random(0), 5)
        rebuild_store(store)
        with store.write_lock() as alone:
            assert not alone

    def test_damage_in_the_log_changes_nothing(self, store: Store) -> None:
        _append_randomly(store, random.Random(1), 40)
        self.tamper(store)
        self.damage(store, 7)
        before = _derived_part(store)
        with pytest.raises(errors.Corrupt, match="position 7 "):
            rebuild_store(store)
        assert _derived_part(store) == before
        assert store.cache_epoch(TENANT) == 0

    @pytest.mark.parametrize("harm", ["lose_blob", "damage_blob"])
    def test_a_blob_that_is_lost_or_damaged_changes_nothing(self, store: Store, harm: str) -> None:
        hash_ = _append_with_blob(store)
        getattr(self, harm)(store, hash_)
        before = _derived_part(store)
        with pytest.raises(errors.Corrupt, match=hash_.hex() if harm == "damage_blob" else None):
            rebuild_store(store)
        assert _derived_part(store) == before

    def test_it_is_known_again_which_events_need_a_blob(self, store: Store) -> None:
        hash_ = _append_with_blob(store)
        rebuild_store(store)
        self.lose_blob(store, hash_)
        faults = verify_store(store).faults
        assert len(faults) == 1
        assert "position 1 " in faults[0]

    def test_one_that_fails_changes_nothing(self, store: Store) -> None:
        _append_randomly(store, random.Random(2), 40)
        before = _visible_state(store)
        for at in range(len(_TENANTS) * len(_STREAMS)):
            with pytest.raises(ZeroDivisionError):
                rebuild_store(store, _fail_at(at))
            assert _visible_state(store) == before, "as it was, and the store goes on"
        commit_all(store, _append(store, random.Random(3), TENANT))

    def test_one_given_up_changes_nothing(self, store: Store) -> None:
        _append_randomly(store, random.Random(2), 40)
        before = _visible_state(store)
        every = len(list(store.rebuild(derive_rows)))
        for given_up in range(1, every):
            with closing(store.rebuild(derive_rows)) as steps:
                for _ in range(given_up):
                    next(steps)
            assert _visible_state(store) == before
        assert store.cache_epoch(TENANT) == 1
        commit_all(store, _append(store, random.Random(3), TENANT))

    def test_progress_counts_each_event_twice(self, store: Store) -> None:
        _append_randomly(store, random.Random(4), 30)
        events = sum(len(feed_all(store, tenant)) for tenant in _TENANTS)
        *progress, made = store.rebuild(derive_rows)
        counts = [step for step in progress if isinstance(step, int)]
        assert isinstance(made, Rebuilt)
        assert len(counts) == len(progress)
        assert counts == sorted(counts)
        assert counts[-1] == 2 * events

    def test_writers_and_a_rebuild_do_each_other_no_harm(self, store: Store) -> None:
        dice = random.Random(5)
        _append_randomly(store, dice, 10)

        def work() -> None:
            for _ in range(60):
                with store.write_lock():
                    (outcome,) = store.commit([_append(store, dice, TENANT)])
                    assert isinstance(outcome, Appended)

        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(work)
            for _ in range(5):
                rebuild_store(store)
            job.result()
        before = _visible_state(store)
        rebuild_store(store)
        assert _visible_state(store) == before


def rebuild_store(store: Store, derive: Callable[..., DerivedState] = derive_rows) -> Rebuilt:
    """Rebuild a store and return the counts."""
    made: int | Rebuilt = 0
    with closing(store.rebuild(derive)) as steps:
        for step in steps:
            made = step
    assert isinstance(made, Rebuilt), "a rebuild yields what it made last"
    return made


def _fail_at(at: int) -> Callable[..., DerivedState]:
    """Return a stream deriver that fails at the n-th stream."""
    left = iter(range(at, -1, -1))

    def fail(stream: str, events: Iterator[StoredEvent], blobs: BlobLoader) -> DerivedState:
        if next(left) == 0:
            raise ZeroDivisionError
        return derive_rows(stream, events, blobs)

    return fail


def _event(told: _RowsPayload, contents: tuple[bytes, ...] = ()) -> NewEvent:
    return NewEvent("thing.told", 1, 0, msgspec.msgpack.encode(told), blobs=contents)


def _append_randomly(store: Store, dice: random.Random, steps: int) -> None:
    """Append random events, at least one to every stream of every tenant."""
    for tenant in _TENANTS:
        for stream in _STREAMS:
            if not store.version(tenant, stream):
                commit_all(store, _append(store, dice, tenant, stream))
    for _ in range(steps):
        commit_all(store, _append(store, dice, dice.choice(_TENANTS)))


def _append_with_blob(store: Store) -> bytes:
    hash_ = hash_of(_BLOBS[1])
    append(store, StreamWrite("a", 0, (_event(_RowsPayload(blobs=(hash_,)), (_BLOBS[1],)),)))
    return hash_


def _append(store: Store, dice: random.Random, tenant: str, stream: str = "") -> Append:
    stream = stream or dice.choice(_STREAMS)
    expected = store.version(tenant, stream)
    free = [claim for claim in _CLAIMS if not store.find_claim(tenant, stream, claim)]
    claims = dice.sample(free, min(len(free), dice.randrange(3)))
    contents = tuple(dice.sample(_BLOBS, dice.choice((0, 0, 1, 2))))
    rows = tuple(_row(dice, f"{stream}/{number}") for number in range(dice.randrange(3)))
    told = _RowsPayload(tuple(claims), rows, tuple(map(hash_of, contents)))
    write = StreamWrite(stream, expected, (_event(told, contents),), tuple((claim, 0) for claim in claims))
    kept = {row.id for row in rows}
    former = (f"{stream}/{number}" for number in range(2))
    drops = tuple(("row", id_) for id_ in former if id_ not in kept)
    snapshots = (Snapshot(stream, expected + 1, 1, b"state"),) * dice.randrange(2)
    return make_append(write, tenant=tenant, projections=rows, drops=drops, snapshots=snapshots)


def _row(dice: random.Random, id_: str) -> Projection:
    owner, status, lookup = dice.choice(_TEXTS), dice.choice(_TEXTS), dice.choice(_TEXTS)
    terms, time_us = tuple(dice.sample(_TEXTS, dice.randrange(3))), dice.randrange(9)
    row = Projection(kind="row", id=id_, owner=owner, status=status, time_us=time_us, lookup=lookup, terms=terms)
    return msgspec.structs.replace(row, document=dice.randbytes(4))


def _rows(store: Store, tenant: str) -> list[Projection]:
    return store.query_projections(tenant, Query(kind="row", limit=1_000))


def _visible_state(store: Store) -> tuple[object, ...]:
    """Return everything that can be read of the store, except snapshots."""
    feeds = [feed_all(store, tenant) for tenant in _TENANTS]
    return (feeds, _derived_part(store), verify_store(store).faults)


def _derived_part(store: Store) -> list[object]:
    return [part for tenant in _TENANTS for part in _derived_of(store, tenant)]


def _derived_of(store: Store, tenant: str) -> Generator[object]:
    for stream in _STREAMS:
        yield [store.find_claim(tenant, stream, claim) for claim in _CLAIMS]
        for id_ in (f"{stream}/0", f"{stream}/1"):
            yield _result_or_corrupt(lambda id_=id_: store.find_projection(tenant, "row", id_))
    for text in (None, *_TEXTS):
        terms = () if text is None else (text,)
        for asked in ({"owner": text}, {"status": text}, {"lookup": text}, {"terms": terms}):
            query = msgspec.structs.replace(Query(kind="row"), **asked)
            yield _result_or_corrupt(lambda query=query: store.query_projections(tenant, query))


def _result_or_corrupt(look: Callable[[], object]) -> object:
    """Return the result of a read, or the type of its error."""
    try:
        return look()
    except errors.Corrupt:
        return errors.Corrupt


LONG_S = 300.0
"""Far longer than anything here takes: a caller that waits so long was not woken."""

_WRITERS = 4
_EACH = 25


class NoteContract(harness.StoreHarness):
    """Small records beside the log, and waiting for the log."""

    def test_a_note_is_put_on_the_version_that_was_seen(self, store: Store) -> None:
        assert store.note(TENANT, "a") is None
        assert not store.put_note(TENANT, "a", b"too early", expected=1)
        assert store.put_note(TENANT, "a", b"1", expected=0)
        first = store.note(TENANT, "a")
        assert first is not None and first.value == b"1" and first.version > 0
        assert not store.put_note(TENANT, "a", b"again", expected=0)
        assert store.put_note(TENANT, "a", b"", expected=first.version)
        second = store.note(TENANT, "a")
        assert second is not None and second.value == b"" and second.version > first.version
        assert not store.put_note(TENANT, "a", b"late", expected=first.version)
        assert store.note(TENANT, "a") == second

    def test_a_note_is_dropped_on_the_version_that_was_seen(self, store: Store) -> None:
        assert store.put_note(TENANT, "a", None, expected=0), "what is not there can be dropped"
        assert store.put_note(TENANT, "a", b"1", expected=0)
        version = _version(store, "a")
        assert not store.put_note(TENANT, "a", None, expected=version + 1)
        assert store.put_note(TENANT, "a", None, expected=version)
        assert store.note(TENANT, "a") is None
        assert store.notes(TENANT) == []

    def test_a_version_is_never_given_twice(self, store: Store) -> None:
        seen: list[int] = []
        for _ in range(3):
            assert store.put_note(TENANT, "a", b"x", expected=0)
            seen.append(_version(store, "a"))
            assert store.put_note(TENANT, "a", None, expected=seen[-1])
            assert not store.put_note(TENANT, "a", b"late", expected=seen[-1])
        assert len(set(seen)) == 3 and seen == sorted(seen)

    def test_notes_are_listed_by_name(self, store: Store) -> None:
        for name in ("b/2", "a/1", "b/10", "b", "b/1", "c/1"):
            assert store.put_note(TENANT, name, name.encode(), expected=0)
        found = [(name, note.value) for name, note in store.notes(TENANT, "b/")]
        assert found == [("b/1", b"b/1"), ("b/10", b"b/10"), ("b/2", b"b/2")]
        assert [name for name, _ in store.notes(TENANT, "b/", limit=2)] == ["b/1", "b/10"]
        assert [name for name, _ in store.notes(TENANT, "b/", after="b/1")] == ["b/10", "b/2"]
        assert [name for name, _ in store.notes(TENANT)] == sorted(("b/2", "a/1", "b/10", "b", "b/1", "c/1"))
        assert store.notes(TENANT, "d") == []

    def test_awkward_notes_are_kept_apart(self, store: Store) -> None:
        for at, text in enumerate(AWKWARD_TEXTS):
            assert store.put_note(TENANT, text, b"%d" % at, expected=0)
        for at, text in enumerate(AWKWARD_TEXTS):
            found = store.note(TENANT, text)
            assert found is not None and found.value == b"%d" % at
            begun = {name for name, _ in store.notes(TENANT, text)}
            assert begun == {name for name in AWKWARD_TEXTS if name.startswith(text)}

    def test_tenants_have_their_notes_apart(self, store: Store) -> None:
        assert store.put_note(TENANT, "a", b"ours", expected=0)
        assert store.put_note(OTHER, "a", b"theirs", expected=0)
        assert store.put_note(OTHER, "a", b"theirs still", expected=_version(store, "a", OTHER))
        found = store.note(TENANT, "a")
        assert found is not None and found.value == b"ours"
        assert [note.value for _, note in store.notes(TENANT)] == [b"ours"]
        assert store.tenants() == [], "a note is no event"

    def test_a_note_has_its_limits(self, store: Store) -> None:
        largest = b"x" * limits.NOTE_BYTES_MAX
        longest = "n" * limits.NOTE_NAME_BYTES_MAX
        assert store.put_note(TENANT, longest, largest, expected=0)
        found = store.note(TENANT, longest)
        assert found is not None and found.value == largest
        with pytest.raises(errors.TooLarge):
            store.put_note(TENANT, "a", largest + b"x", expected=0)
        with pytest.raises(errors.TooLarge):
            store.put_note(TENANT, longest + "n", b"", expected=0)
        assert [name for name, _ in store.notes(TENANT)] == [longest]

    def test_of_threads_that_compare_one_sets(self, store: Store) -> None:
        start = Barrier(_WRITERS)

        def work(_: int) -> None:
            start.wait()
            for _ in range(_EACH):
                while not _increment(store):
                    pass

        with ThreadPoolExecutor(_WRITERS) as pool:
            list(pool.map(work, range(_WRITERS)))
        found = store.note(TENANT, "count")
        assert found is not None and found.value == b"%d" % (_WRITERS * _EACH)

    def test_openers_share_notes(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        with closing(self.open_store(folder)) as second:
            assert store.put_note(TENANT, "a", b"1", expected=0)
            version = _version(second, "a")
            assert second.put_note(TENANT, "a", b"2", expected=version)
            assert not store.put_note(TENANT, "a", b"late", expected=version)
            assert store.note(TENANT, "a") == second.note(TENANT, "a")
            assert second.put_note(TENANT, "a", None, expected=_version(store, "a"))
            assert store.note(TENANT, "a") is None

    def test_notes_are_kept(self, store: Store, folder: Path) -> None:
        assert store.put_note(TENANT, "a", b"1", expected=0)
        before = store.notes(TENANT)
        again = self.reopen(store, folder)
        assert again.notes(TENANT) == before
        assert again.put_note(TENANT, "a", None, expected=before[0][1].version)
        assert again.put_note(TENANT, "a", b"2", expected=0)
        assert _version(again, "a") > before[0][1].version
        again.close()

    def test_a_rebuild_leaves_notes_as_they_are(self, store: Store) -> None:
        append(store, write("a", 0, b"1"))
        assert store.put_note(TENANT, "a", b"1", expected=0)
        before = store.notes(TENANT)
        rebuild_store(store, derive_nothing)
        assert store.notes(TENANT) == before

    def test_a_damaged_note_is_found(self, store: Store) -> None:
        assert store.put_note(TENANT, "a", b"1", expected=0)
        self.damage_note(store, "a")
        with pytest.raises(errors.Corrupt):
            store.note(TENANT, "a")
        with pytest.raises(errors.Corrupt):
            store.notes(TENANT)
        assert not verify_store(store).ok

    def test_a_note_in_between_hinders_no_append(self, store: Store) -> None:
        for version in range(3):
            append(store, write("a", version, b"x"))
            assert store.put_note(TENANT, f"n{version}", b"x", expected=0)
        assert verify_store(store).ok
        assert store.version(TENANT, "a") == 3

    def test_what_is_there_is_not_waited_for(self, store: Store) -> None:
        append(store, write("a", 0, b"1", b"2"))
        assert store.wait(TENANT, 0, LONG_S)
        assert store.wait(TENANT, 1, LONG_S)
        assert not store.wait(TENANT, 2, 0)
        assert not store.wait(TENANT, 2, 0.01)
        assert not store.wait(OTHER, 0, 0.01)

    def test_a_commit_ends_the_wait(self, store: Store) -> None:
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(store.wait, TENANT, 0, LONG_S)
            another = pool.submit(store.wait, TENANT, 1, LONG_S)
            append(store, write("a", 0, b"1"), tenant=OTHER)
            assert not store.wait(TENANT, 0, 0.01), "another tenant's news is none"
            append(store, write("a", 0, b"1"))
            assert waiting.result()
            append(store, write("a", 1, b"2"))
            assert another.result()

    def test_a_commit_of_another_opener_ends_the_wait(self, store: Store, folder: Path) -> None:
        self.must_reopen()
        with closing(self.open_store(folder)) as second, ThreadPoolExecutor(1) as pool:
            for version in range(3):
                waiting = pool.submit(second.wait, TENANT, version, LONG_S)
                append(store, write("a", version, b"x"))
                assert waiting.result()

    def test_closing_ends_the_wait(self, store: Store) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, TENANT, 0, LONG_S)
            store.close()
            with pytest.raises(errors.EngineClosed):
                waiting.result()


def _version(store: Store, name: str, tenant: str = TENANT) -> int:
    found = store.note(tenant, name)
    return found.version if found else 0


def _increment(store: Store) -> bool:
    """Increment a note's number unless another writer was faster."""
    found = store.note(TENANT, "count") or Note(b"0", 0)
    more = b"%d" % (int(found.value) + 1)
    return store.put_note(TENANT, "count", more, expected=found.version)
