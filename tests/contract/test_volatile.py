"""The contract on the volatile store, and what is its own."""

import threading
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from limpet import errors, limits
from limpet.stores.port import Projection, Store
from limpet.stores.volatile import VolatileStore
from limpet.testing import store_contract
from limpet.testing.store_contract.harness import TENANT, commit_all, feed_all, make_append, write


class TestVolatileStore(store_contract.StoreContract):
    reopens: ClassVar[bool] = False
    walk_steps: ClassVar[int] = 1_000

    def open_store(self, folder: Path) -> Store:
        return VolatileStore()

    def damage(self, store: Store, position: int) -> None:
        assert isinstance(store, VolatileStore)
        rows = store._data_by_tenant[TENANT].rows
        stream, row = rows[position - 1]
        payload = row.payload or b""
        flipped = bytes([payload[0] ^ 1]) + payload[1:]
        rows[position - 1] = stream, msgspec.structs.replace(row, payload=flipped)

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        assert isinstance(store, VolatileStore)
        blobs = store._data_by_tenant[TENANT].blobs
        blobs[hash_] = bytes([blobs[hash_][0] ^ 1]) + blobs[hash_][1:]

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        assert isinstance(store, VolatileStore)
        del store._data_by_tenant[TENANT].blobs[hash_]

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        assert isinstance(store, VolatileStore)
        streams = store._data_by_tenant[TENANT].streams
        streams[stream], streams[other] = streams[other], streams[stream]

    def damage_key(self, store: Store, key: str) -> None:
        assert isinstance(store, VolatileStore)
        keys = store._data_by_tenant[TENANT].keys
        beyond = msgspec.structs.replace(keys[key].record, last=999)
        keys[key] = msgspec.structs.replace(keys[key], replayed=beyond)

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        assert isinstance(store, VolatileStore)
        books = store._data_by_tenant[TENANT]
        stream, row = books.rows[position - 1]
        books.rows[position - 1] = stream, msgspec.structs.replace(row, payload=None, salt=None)
        if like:
            books.erased[position] = books.erased[like]

    def tamper(self, store: Store) -> None:
        assert isinstance(store, VolatileStore)
        books = store._data_by_tenant[TENANT]
        rows = books.projections["row"]
        for id_ in list(rows):
            rows[id_] = msgspec.structs.replace(rows[id_], owner="mallory")
        rows["made up"] = Projection(kind="row", id="made up")
        for stream in books.streams.values():
            stream.claims = {stream.number: {"c0": 1}}
        books.blob_uses.clear()


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


def test_a_verify_that_finds_a_broken_link_names_the_position():
    store = VolatileStore()
    commit_all(store, make_append(write("a", 0, b"1", b"2", b"3")))
    del store._data_by_tenant[TENANT].rows[1]
    *_, report = store.verify()
    assert not isinstance(report, int)
    assert not report.ok
    assert "position 2" in report.faults[0]


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
    with pytest.raises(AssertionError, match="inside turn"):
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
