"""Promise 10: what is derived can be dropped and made again from the log, whole or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest

from limpet import errors
from limpet.stores.port import (
    Append,
    Appended,
    BlobLoader,
    ClaimTaken,
    DerivedState,
    KeyRecord,
    KeyUse,
    NewEvent,
    Projection,
    Query,
    Rebuilt,
    Snapshot,
    Store,
    StoredEvent,
    StreamWrite,
)
from limpet.testing.contract import stage
from limpet.testing.contract.stage import OTHER, TENANT, feed_all, hash_of, take, verified

_TENANTS = (TENANT, OTHER)
_STREAMS = ("a", "b", "ü", "a\x00b")
_CLAIMS = tuple(f"c{number}" for number in range(30))
_BLOBS = tuple(b"%d" % number * 500 for number in range(9))
_TEXTS = ("", "x", "y", "y\x00")


class _Told(msgspec.Struct, frozen=True):
    """What an event of these tests says of what is derived from it: its claims, its stream's rows, its blobs."""

    claims: tuple[str, ...] = ()
    rows: tuple[Projection, ...] = ()
    blobs: tuple[bytes, ...] = ()


def derive(stream: str, events: Iterator[StoredEvent], blobs: BlobLoader) -> DerivedState:
    """Return what a stream of these tests leads to."""
    claims: list[tuple[str, int]] = []
    uses: list[tuple[bytes, int]] = []
    rows: tuple[Projection, ...] = ()
    for event in events:
        assert event.stream == stream, "a stream's name comes with its events"
        told = msgspec.msgpack.decode(event.payload or b"", type=_Told)
        if set(blobs(told.blobs)) != set(told.blobs):
            raise errors.Corrupt(f"a blob of the event at position {event.position} is missing.")
        claims += [(claim, event.version) for claim in told.claims]
        uses += [(hash_, event.version) for hash_ in told.blobs]
        rows = told.rows
    return DerivedState(tuple(claims), rows, tuple(uses))


class Rebuilding(stage.Stage):
    """Making it all again."""

    @pytest.mark.parametrize("seed", range(5))
    def test_a_rebuild_gives_the_same_again(self, store: Store, seed: int) -> None:
        _tell(store, random.Random(seed), 60)
        before = _shown(store)
        made = rebuilt(store)
        assert _shown(store) == before
        assert all(store.snapshot(t, s) is None for t in _TENANTS for s in _STREAMS)
        events = [event for tenant in _TENANTS for event in feed_all(store, tenant)]
        assert (made.events, made.tenants) == (len(events), 2)
        assert made.streams == sum(bool(store.version(t, s)) for t in _TENANTS for s in _STREAMS)
        assert made.projections == sum(len(_rows(store, tenant)) for tenant in _TENANTS)
        assert made.claims == sum(
            bool(store.find_claim(t, s, c)) for t in _TENANTS for s in _STREAMS for c in _CLAIMS
        )

    @pytest.mark.parametrize("seed", range(3))
    def test_what_was_tampered_with_is_put_right(self, store: Store, seed: int) -> None:
        dice = random.Random(seed)
        _tell(store, dice, 40)
        before = _shown(store)
        self.tamper(store)
        assert _shown(store) != before
        rebuilt(store)
        assert _shown(store) == before
        assert verified(store).ok
        _tell(store, dice, 20)
        before = _shown(store)
        rebuilt(store)
        assert _shown(store) == before, "what is written after a rebuild is derived as ever"

    def test_a_claim_that_the_log_has_twice_is_the_first_ones(self, store: Store) -> None:
        """Claims were lost, and events have made them again meanwhile. All else is derived as ever."""
        row = Projection(kind="row", id="a/0", owner="x", terms=("y",), document=b"d")
        said = [_Told(rows=(row,)), _Told(("c1",)), _Told(("c1", "c2")), _Told(("c1",)), _Told(("c1", "c2"), (row,))]  # fmt: skip
        for version, told in enumerate(said):
            base = ("a", 1) if version == 3 else None
            write = StreamWrite("a", version, (_event(told),), base=base)
            take(store, Append(tenant=TENANT, writes=(write,)))
        take(store, Append(tenant=TENANT, writes=(StreamWrite("b", 0, (_event(said[1]),)),)))
        made = rebuilt(store)
        assert (made.claims, made.projections) == (5, 1)
        assert [store.find_claim(TENANT, "a", c, at=3) for c in ("c1", "c2")] == [2, 3]
        assert [store.find_claim(TENANT, "a", c) for c in ("c1", "c2")] == [4, 5]
        assert store.find_claim(TENANT, "b", "c1") == 1
        assert _rows(store, TENANT) == [row]
        again = StreamWrite("a", 5, (_event(_Told()),), (("c1", 0),))
        with store.turn():
            assert store.commit([Append(tenant=TENANT, writes=(again,))]) == [
                ClaimTaken("a", "c1", 4)
            ]

    def test_keys_stay_and_snapshots_go(self, store: Store) -> None:
        write = StreamWrite("a", 0, (_event(_Told()),))
        used = KeyUse("k1", b"hash")
        snapshot = Snapshot("a", 1, 1, b"wrong")
        take(store, Append(tenant=TENANT, writes=(write,), key=used, snapshots=(snapshot,)))
        rebuilt(store)
        assert store.find_key(TENANT, "k1") == KeyRecord(b"hash", 1, 1)
        assert store.snapshot(TENANT, "a") is None

    def test_an_empty_store_is_rebuilt(self, store: Store) -> None:
        assert rebuilt(store) == Rebuilt()

    def test_rebuilds_are_counted(self, store: Store) -> None:
        _tell(store, random.Random(0), 5)
        before = store.rebuilt(TENANT)
        assert [rebuilt(store).tenants, store.rebuilt(TENANT)] == [2, before + 1]
        with pytest.raises(ZeroDivisionError):
            rebuilt(store, _failing(1))
        assert store.rebuilt(TENANT) == before + 1
        rebuilt(store)
        assert store.rebuilt(TENANT) == before + 2

    def test_the_next_turn_hears_of_a_rebuild(self, store: Store) -> None:
        _tell(store, random.Random(0), 5)
        rebuilt(store)
        with store.turn() as alone:
            assert not alone

    def test_damage_in_the_log_changes_nothing(self, store: Store) -> None:
        _tell(store, random.Random(1), 40)
        self.tamper(store)
        self.damage(store, 7)
        before = _derived_part(store)
        with pytest.raises(errors.Corrupt, match="position 7 "):
            rebuilt(store)
        assert _derived_part(store) == before
        assert store.rebuilt(TENANT) == 0

    def test_a_blob_that_is_gone_changes_nothing(self, store: Store) -> None:
        hash_ = _tell_of_a_blob(store)
        self.lose_blob(store, hash_)
        before = _derived_part(store)
        with pytest.raises(errors.Corrupt):
            rebuilt(store)
        assert _derived_part(store) == before

    def test_a_damaged_blob_changes_nothing(self, store: Store) -> None:
        hash_ = _tell_of_a_blob(store)
        self.damage_blob(store, hash_)
        before = _derived_part(store)
        with pytest.raises(errors.Corrupt, match=hash_.hex()):
            rebuilt(store)
        assert _derived_part(store) == before

    def test_it_is_known_again_which_events_need_a_blob(self, store: Store) -> None:
        hash_ = _tell_of_a_blob(store)
        rebuilt(store)
        self.lose_blob(store, hash_)
        faults = verified(store).faults
        assert len(faults) == 1
        assert "position 1 " in faults[0]

    def test_one_that_fails_changes_nothing(self, store: Store) -> None:
        _tell(store, random.Random(2), 40)
        before = _shown(store)
        for at in range(len(_TENANTS) * len(_STREAMS)):
            with pytest.raises(ZeroDivisionError):
                rebuilt(store, _failing(at))
            assert _shown(store) == before, "as it was, and the store goes on"
        take(store, _append(store, random.Random(3), TENANT))

    def test_one_given_up_changes_nothing(self, store: Store) -> None:
        _tell(store, random.Random(2), 40)
        before = _shown(store)
        every = len(list(store.rebuild(derive)))
        for given_up in range(1, every):
            with closing(store.rebuild(derive)) as steps:
                for _ in range(given_up):
                    next(steps)
            assert _shown(store) == before
        assert store.rebuilt(TENANT) == 1
        take(store, _append(store, random.Random(3), TENANT))

    def test_progress_counts_each_event_twice(self, store: Store) -> None:
        _tell(store, random.Random(4), 30)
        events = sum(len(feed_all(store, tenant)) for tenant in _TENANTS)
        *progress, made = store.rebuild(derive)
        counts = [step for step in progress if isinstance(step, int)]
        assert isinstance(made, Rebuilt)
        assert len(counts) == len(progress)
        assert counts == sorted(counts)
        assert counts[-1] == 2 * events

    def test_writers_and_a_rebuild_do_each_other_no_harm(self, store: Store) -> None:
        dice = random.Random(5)
        _tell(store, dice, 10)

        def work() -> None:
            for _ in range(60):
                with store.turn():
                    (outcome,) = store.commit([_append(store, dice, TENANT)])
                    assert isinstance(outcome, Appended)

        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(work)
            for _ in range(5):
                rebuilt(store)
            job.result()
        before = _shown(store)
        rebuilt(store)
        assert _shown(store) == before


def rebuilt(store: Store, derive: Callable[..., DerivedState] = derive) -> Rebuilt:
    """Rebuild a store; return what was made."""
    made: int | Rebuilt = 0
    with closing(store.rebuild(derive)) as steps:
        for step in steps:
            made = step
    assert isinstance(made, Rebuilt), "a rebuild yields what it made last"
    return made


def _failing(at: int) -> Callable[..., DerivedState]:
    """Return a way to derive that fails at a stream."""
    left = iter(range(at, -1, -1))

    def fail(stream: str, events: Iterator[StoredEvent], blobs: BlobLoader) -> DerivedState:
        if next(left) == 0:
            raise ZeroDivisionError
        return derive(stream, events, blobs)

    return fail


def _event(told: _Told, contents: tuple[bytes, ...] = ()) -> NewEvent:
    return NewEvent("thing.told", 1, 0, msgspec.msgpack.encode(told), blobs=contents)


def _tell(store: Store, dice: random.Random, steps: int) -> None:
    """Append at random, in every stream of every tenant at least once."""
    for tenant in _TENANTS:
        for stream in _STREAMS:
            if not store.version(tenant, stream):
                take(store, _append(store, dice, tenant, stream))
    for _ in range(steps):
        take(store, _append(store, dice, dice.choice(_TENANTS)))


def _tell_of_a_blob(store: Store) -> bytes:
    hash_ = hash_of(_BLOBS[1])
    event = _event(_Told(blobs=(hash_,)), (_BLOBS[1],))
    take(store, Append(tenant=TENANT, writes=(StreamWrite("a", 0, (event,)),)))
    return hash_


def _append(store: Store, dice: random.Random, tenant: str, stream: str = "") -> Append:
    stream = stream or dice.choice(_STREAMS)
    expected = store.version(tenant, stream)
    free = [claim for claim in _CLAIMS if not store.find_claim(tenant, stream, claim)]
    claims = dice.sample(free, min(len(free), dice.randrange(3)))
    contents = tuple(dice.sample(_BLOBS, dice.choice((0, 0, 1, 2))))
    rows = tuple(_row(dice, f"{stream}/{number}") for number in range(dice.randrange(3)))
    told = _Told(tuple(claims), rows, tuple(map(hash_of, contents)))
    write = StreamWrite(
        stream, expected, (_event(told, contents),), tuple((claim, 0) for claim in claims)
    )
    kept = {row.id for row in rows}
    former = (f"{stream}/{number}" for number in range(2))
    return Append(
        tenant=tenant,
        writes=(write,),
        projections=rows,
        drops=tuple(("row", id_) for id_ in former if id_ not in kept),
        snapshots=(Snapshot(stream, expected + 1, 1, b"state"),) * dice.randrange(2),
    )


def _row(dice: random.Random, id_: str) -> Projection:
    return Projection(
        kind="row",
        id=id_,
        owner=dice.choice(_TEXTS),
        status=dice.choice(_TEXTS),
        time_us=dice.randrange(9),
        lookup=dice.choice(_TEXTS),
        terms=tuple(dice.sample(_TEXTS, dice.randrange(3))),
        document=dice.randbytes(4),
    )


def _rows(store: Store, tenant: str) -> list[Projection]:
    return store.query(tenant, Query(kind="row", limit=1_000))


def _shown(store: Store) -> tuple[object, ...]:
    """Return all that the store shows but snapshots."""
    feeds = [feed_all(store, tenant) for tenant in _TENANTS]
    return (feeds, _derived_part(store), verified(store).faults)


def _derived_part(store: Store) -> list[object]:
    return [part for tenant in _TENANTS for part in _derived_of(store, tenant)]


def _derived_of(store: Store, tenant: str) -> Generator[object]:
    for stream in _STREAMS:
        yield [store.find_claim(tenant, stream, claim) for claim in _CLAIMS]
        yield [_answer(lambda id_=f"{stream}/{n}": store.find(tenant, "row", id_)) for n in (0, 1)]
    for text in (None, *_TEXTS):
        for query in (
            Query(kind="row", owner=text),
            Query(kind="row", status=text),
            Query(kind="row", lookup=text),
            Query(kind="row", terms=() if text is None else (text,)),
        ):
            yield _answer(lambda query=query: store.query(tenant, query))


def _answer(look: Callable[[], object]) -> object:
    """Return what looking finds, or the kind of error that comes of a row that was tampered with."""
    try:
        return look()
    except errors.Corrupt:
        return errors.Corrupt
