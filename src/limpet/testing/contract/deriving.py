"""What is kept beside the log: projections, found by page and by filter, and snapshots."""

from __future__ import annotations

from itertools import product

import msgspec

from limpet.stores.port import Projection, Query, Snapshot, Store
from limpet.testing.contract import stage
from limpet.testing.contract.stage import TENANT, beside, drop, project, step, take, write


class Deriving(stage.Stage):
    """Projections and snapshots."""

    def test_a_projection_is_replaced_and_dropped(self, store: Store) -> None:
        row = Projection(
            kind="row",
            id="1",
            owner="ada",
            status="open",
            time_us=5,
            lookup="x",
            terms=("t1", "t2"),
            document=b"\x00one",
        )
        project(store, row, Projection(kind="other", id="1"))
        assert store.find(TENANT, "row", "1") == row
        changed = Projection(kind="row", id="1", owner="bob", time_us=6, terms=("t3",))
        project(store, changed)
        assert store.find(TENANT, "row", "1") == changed
        assert store.query(TENANT, Query(kind="row")) == [changed]
        for old in (
            Query(kind="row", owner="ada"),
            Query(kind="row", lookup="x"),
            Query(kind="row", terms=("t1",)),
        ):
            assert store.query(TENANT, old) == []
        drop(store, ("row", "1"), ("row", "never was"))
        assert store.find(TENANT, "row", "1") is None
        assert store.query(TENANT, Query(kind="row")) == []
        assert store.query(TENANT, Query(kind="row", terms=("t3",))) == []
        assert store.find(TENANT, "other", "1") == Projection(kind="other", id="1")
        project(store, row)
        assert store.query(TENANT, Query(kind="row", terms=("t1", "t2"))) == [row]

    def test_a_row_may_be_written_twice_in_one_append(self, store: Store) -> None:
        first = Projection(kind="row", id="1", status="first", terms=("t1",))
        last = Projection(kind="row", id="1", status="last", terms=("t2",))
        project(store, first, last)
        assert store.query(TENANT, Query(kind="row")) == [last]
        assert store.query(TENANT, Query(kind="row", terms=("t1",))) == []

    def test_pages_are_newest_first_and_the_higher_id_among_equals(self, store: Store) -> None:
        rows = [
            Projection(kind="row", id=id_, time_us=time_us)
            for time_us, id_ in product((7, -3, 2**53, 0), ("b", "B", "ä", "10", "9"))
        ]
        rows = [msgspec.structs.replace(row, id=f"{row.id}/{row.time_us}") for row in rows]
        project(store, *rows)
        expected = sorted(rows, key=lambda row: (row.time_us, row.id), reverse=True)
        assert store.query(TENANT, Query(kind="row")) == expected
        assert store.query(TENANT, Query(kind="row", limit=3)) == expected[:3]
        assert store.query(TENANT, Query(kind="row", limit=4, offset=18)) == expected[18:]
        assert store.query(TENANT, Query(kind="row", offset=99)) == []

    def test_paging_by_cursor_visits_each_row_once(self, store: Store) -> None:
        rows = [Projection(kind="row", id=f"{n:02}", time_us=n // 10) for n in range(35)]
        project(store, *rows)
        for limit in (1, 3, 7, 35, 50):
            assert _paged(store, Query(kind="row", limit=limit)) == rows[::-1]

    def test_paging_goes_on_after_the_cursors_row_has_gone(self, store: Store) -> None:
        rows = [Projection(kind="row", id=f"{n:02}", time_us=1) for n in range(10)]
        project(store, *rows)
        drop(store, ("row", "05"))
        project(store, Projection(kind="row", id="99", time_us=2))
        query = Query(kind="row", after=(1, "05"))
        assert [row.id for row in store.query(TENANT, query)] == ["04", "03", "02", "01", "00"]

    def test_an_offset_counts_from_the_cursor(self, store: Store) -> None:
        project(store, *(Projection(kind="row", id=f"{n}") for n in range(6)))
        query = Query(kind="row", after=(0, "4"), offset=1, limit=2)
        assert [row.id for row in store.query(TENANT, query)] == ["2", "1"]

    def test_every_condition_given_must_hold(self, store: Store) -> None:
        rows = [
            Projection(
                kind="row",
                id=f"{n:03}",
                owner=owner,
                status=status,
                lookup=lookup,
                time_us=n % 5,
                terms=terms,
            )
            for n, (owner, status, lookup, terms) in enumerate(
                product(
                    ("ada", "bob", ""), ("open", ""), ("", "x"), ((), ("t",), ("t", "u"), ("tu",))
                )
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
            query = Query(
                kind="row",
                owner=owner,
                status=status,
                lookup=lookup,
                since_us=since,
                until_us=until,
                terms=terms,
                limit=7,
            )
            expected = [row for row in rows if _meets(row, query)]
            expected.sort(key=lambda row: (row.time_us, row.id), reverse=True)
            assert store.query(TENANT, query) == expected[:7], query
            assert _paged(store, query) == expected, query

    def test_times_are_bounded_on_both_sides_inclusively(self, store: Store) -> None:
        project(store, *(Projection(kind="row", id=f"{n}", time_us=n) for n in range(6)))
        found = store.query(TENANT, Query(kind="row", since_us=2, until_us=4))
        assert [row.time_us for row in found] == [4, 3, 2]

    def test_a_snapshot_is_replaced(self, store: Store) -> None:
        assert store.snapshot(TENANT, "a") is None
        take(store, step(write("a", 0, b"1"), snapshots=(Snapshot("a", 1, 1, b""),)))
        assert store.snapshot(TENANT, "a") == Snapshot("a", 1, 1, b"")
        large = Snapshot("a", 2, 5, bytes(range(256)) * 1024)
        take(store, step(write("a", 1, b"2"), snapshots=(large,)))
        assert store.snapshot(TENANT, "a") == large
        take(store, step(write("a", 2, b"3"), write("b", 0, b"4")))
        assert store.snapshot(TENANT, "a") == large
        assert store.snapshot(TENANT, "b") is None

    def test_a_snapshot_may_follow_its_events(self, store: Store) -> None:
        take(store, step(write("a", 0, b"1", b"2")))
        late = Snapshot("a", 2, 1, b"late")
        take(store, beside(store, snapshots=(late,)))
        assert store.snapshot(TENANT, "a") == late


def _paged(store: Store, query: Query) -> list[Projection]:
    rows: list[Projection] = []
    while page := store.query(TENANT, query):
        rows += page
        assert len(page) <= query.limit
        query = msgspec.structs.replace(query, after=(page[-1].time_us, page[-1].id))
        assert len(rows) <= 10_000, "paging comes to an end"
    return rows


def _meets(row: Projection, query: Query) -> bool:
    return (
        query.owner in (None, row.owner)
        and query.status in (None, row.status)
        and query.lookup in (None, row.lookup)
        and (query.since_us is None or query.since_us <= row.time_us)
        and (query.until_us is None or row.time_us <= query.until_us)
        and all(term in row.terms for term in query.terms)
    )
