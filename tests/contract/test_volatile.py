"""The contract on the volatile store, and what is its own."""

import threading
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from limpet import errors, limits
from limpet.stores.port import Projection, Store
from limpet.stores.server.driver import ProjectionRow
from limpet.stores.server.store import ServerStore
from limpet.stores.volatile import RamDriver, TenantTables, VolatileStore
from limpet.testing import store_contract
from limpet.testing.store_contract.harness import TENANT, commit_all, feed_all, make_append, write

replace = msgspec.structs.replace


class TestVolatileStore(store_contract.StoreContract):
    reopens: ClassVar[bool] = False
    walk_steps: ClassVar[int] = 1_000

    def open_store(self, folder: Path) -> Store:
        return VolatileStore()

    def damage(self, store: Store, position: int) -> None:
        rows = tables(store).rows
        row = rows[position]
        payload = row.event.payload or b""
        flipped = bytes([payload[0] ^ 1]) + payload[1:]
        rows[position] = replace(row, event=replace(row.event, payload=flipped))

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        blobs = tables(store).blobs
        blobs[hash_] = bytes([blobs[hash_][0] ^ 1]) + blobs[hash_][1:]

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        del tables(store).blobs[hash_]

    def damage_note(self, store: Store, name: str) -> None:
        notes = tables(store).notes
        note = notes[name].note
        notes[name] = replace(notes[name], note=replace(note, value=b"x" + note.value))

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        swap_names(tables(store), stream, other)

    def damage_key(self, store: Store, key: str) -> None:
        keys = tables(store).keys
        keys[key] = replace(keys[key], last=keys[key].last + 1)

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        rows = tables(store).rows
        row = rows[position]
        erasure = rows[like].erasure if like else None
        event = replace(row.event, payload=None, salt=None)
        rows[position] = replace(row, event=event, erasure=erasure)

    def tamper(self, store: Store) -> None:
        derived = tables(store)
        rows = derived.projections["row"]
        for id_, row in list(rows.items()):
            rows[id_] = replace(row, projection=replace(row.projection, owner="mallory"))
        rows["made up"] = ProjectionRow(Projection(kind="row", id="made up"), b"checksum")
        derived.claims = {number: {"c0": 1} for number in derived.streams}
        derived.blob_uses.clear()


def tables(store: Store) -> TenantTables:
    """Return the tables of the suite's tenant in a store over the driver in RAM."""
    assert isinstance(store, ServerStore)
    assert isinstance(store._driver, RamDriver)
    return store._driver.server.tenants[TENANT]


def swap_names(tables: TenantTables, stream: str, other: str) -> None:
    """Let two streams have each other's name, beneath the store."""
    numbers = tables.stream_numbers
    numbers[stream], numbers[other] = numbers[other], numbers[stream]
    for name in (stream, other):
        tables.streams[numbers[name]] = replace(tables.streams[numbers[name]], name=name)


def test_salts_come_from_the_source_given():
    links = [_links_with(salt) for salt in (b"s", b"s", b"t")]
    assert links[0] == links[1]
    assert set(links[0]).isdisjoint(links[2])


def _links_with(salt: bytes) -> list[bytes]:
    store = VolatileStore(salts=lambda size: salt * size)
    commit_all(store, make_append(write("a", 0, b"1", b"2")))
    return [event.link for event in feed_all(store)]


def test_a_failing_source_of_salts_leaves_nothing():
    salts = iter([b"s" * 16, b"s" * 16])
    store = VolatileStore(salts=lambda _: next(salts))
    with pytest.raises(StopIteration):
        commit_all(store, make_append(write("a", 0, b"1", b"2"), write("b", 0, b"3")))
    assert store.tenants() == feed_all(store) == []
    assert store.version(TENANT, "a") == 0


def test_verify_names_the_position_of_a_missing_event():
    store = VolatileStore()
    commit_all(store, make_append(write("a", 0, b"1", b"2", b"3")))
    del tables(store).rows[2]
    *_, report = store.verify()
    assert not isinstance(report, int)
    assert not report.ok
    assert "events 2 to 2 are missing" in report.faults[0]


def test_a_backup_is_refused_with_what_to_do_instead(tmp_path: Path):
    with pytest.raises(errors.NoBackup, match="connect"):
        VolatileStore().backup(str(tmp_path / "copy"))


def test_a_turn_that_is_not_passed_on_names_its_holder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "WRITE_LOCK_WAIT_S", 0.0)
    store = VolatileStore()
    caught: list[errors.StoreBusy] = []

    def try_it() -> None:
        with pytest.raises(errors.StoreBusy) as info, store.write_lock():
            raise AssertionError
        caught.append(info.value)

    with store.write_lock():
        other = threading.Thread(target=try_it)
        other.start()
        other.join()
    assert caught[0].facts == {"holder": threading.current_thread().name}


def test_misuse_is_an_assertion():
    store = VolatileStore()
    with pytest.raises(AssertionError, match="holds the write lock"):
        store.commit([])
    with store.write_lock(), pytest.raises(AssertionError, match="already"), store.write_lock():
        pass
    twice = make_append(write("a", 0, b"1"), write("a", 1, b"2"))
    for wrong in (
        make_append(),
        make_append(write("a", 0)),
        twice,
        make_append(write("a", 0, b"1", claims=(("c", 1),))),
    ):
        with pytest.raises(AssertionError):
            commit_all(store, wrong)
        assert store.tenants() == []
