"""Every shelf keeps rows in the order of their keys, changes them all or none, and forgets for good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from limpet import errors
from limpet.memory.index_store import DropRows, IndexStore, PutRow, VolatileIndexStore, encode_key, prefix_end
from limpet.stores.sqlite.index_store import SQLiteIndexStore
from limpet.wiring.store_opener import open_index_store
from tests.servers import postgres, valkey

Open = Callable[[], IndexStore]


OPENERS: dict[str, Callable[[Path, ExitStack], IndexStore]] = {
    "volatile": lambda _folder, _stack: VolatileIndexStore(),
    "sqlite": lambda folder, _stack: SQLiteIndexStore(folder / "x-memory"),
    "postgres": lambda _folder, stack: open_index_store(stack.enter_context(postgres.empty_store())),
    "redis": lambda _folder, _stack: open_index_store(valkey.fresh()),
    "redis cluster": lambda _folder, _stack: open_index_store(valkey.fresh(valkey.shared_cluster().url)),
}


@pytest.fixture(params=OPENERS)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[IndexStore]:
    with ExitStack() as stack:
        made = OPENERS[request.param](tmp_path, stack)
        yield made
        made.close()


def test_an_empty_index_store_has_nothing(shelf: IndexStore):
    assert shelf.get("a", [b"k"]) == {}
    assert shelf.scan("a", b"", b"\xff", limit=5) == []
    assert shelf.size() == 0
    shelf.write([PutRow("a", b"k", b"v")])
    assert shelf.size() > 0


def test_rows_come_in_the_order_of_their_keys_and_tables_are_apart(shelf: IndexStore):
    rows = {encode_key("u", n): str(n).encode() for n in (300, 2, 10)}
    assert shelf.write([PutRow("a", k, v) for k, v in rows.items()])
    assert shelf.write([PutRow("b", encode_key("u", 1), b"other")])
    whole = encode_key("u"), prefix_end(encode_key("u"))
    assert shelf.scan("a", *whole, limit=9) == [(encode_key("u", n), str(n).encode()) for n in (2, 10, 300)]
    newest = shelf.scan("a", *whole, limit=2, newest=True)
    assert [value for _, value in newest] == [b"300", b"10"]
    assert [value for _, value in shelf.scan("a", encode_key("u", 3), whole[1], limit=1)] == [b"10"]
    many = [encode_key("u", n) for n in range(400)]
    assert shelf.get("a", many) == rows
    assert shelf.get("a", many[:3]) == {encode_key("u", 2): b"2"}


def test_the_last_of_each_range_is_found_in_one_look(shelf: IndexStore):
    assert shelf.last_values("a", [(b"", b"z")]) == [None]
    shelf.write([*(PutRow("a", bytes((n,)), b"%d" % n) for n in (1, 3, 5)), PutRow("b", b"\4", b"other")])
    spans = [(b"\1", b"\4"), (b"\4", b"\5"), (b"\1", b"\xff"), (b"\5", b"\1"), (b"\1", b"\4")]
    assert shelf.last_values("a", spans) == [b"3", None, b"5", None, b"3"]
    assert shelf.last_values("a", []) == []


def test_a_range_of_one_owner_leaves_the_next_alone(shelf: IndexStore):
    names = ["ann", "ann\0", "ann\0b", "anna", "an", "アン"]
    shelf.write(PutRow("a", encode_key(name, 1), name.encode()) for name in names)
    shelf.write([DropRows("a", encode_key("ann"), prefix_end(encode_key("ann")))])
    left = {value.decode() for _, value in shelf.scan("a", b"", b"\xff" * 9, limit=99)}
    assert left == set(names) - {"ann"}


def test_changes_are_made_if_the_rows_are_as_expected_and_not_otherwise(shelf: IndexStore):
    at = ("a", b"cursor")
    assert shelf.write([PutRow(*at, b"1")], expected={at: None})
    assert not shelf.write([PutRow(*at, b"2"), PutRow("a", b"x", b"")], expected={at: None})
    assert shelf.write([PutRow(*at, b"2")], expected={at: b"1", ("a", b"x"): None})
    assert shelf.get("a", [b"cursor", b"x"]) == {b"cursor": b"2"}


def test_a_change_that_fails_leaves_nothing(shelf: IndexStore):
    def broken() -> Iterator[PutRow]:
        yield PutRow("a", b"k", b"v")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        shelf.write(list(broken()))
    assert shelf.get("a", [b"k"]) == {}
    assert shelf.write([PutRow("a", b"k", b"v")])


def test_threads_that_count_together_lose_nothing(shelf: IndexStore):
    at = ("a", b"n")

    def count() -> None:
        done = 0
        while done < 25:
            seen = shelf.get(*at[:1], [at[1]]).get(at[1])
            done += shelf.write([PutRow(*at, str(int(seen or 0) + 1).encode())], expected={at: seen})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shelf.get("a", [b"n"]) == {b"n": b"100"}


def test_a_closed_index_store_says_so(shelf: IndexStore):
    shelf.close()
    with pytest.raises(errors.EngineClosed):
        shelf.get("a", [b"k"])


def test_what_was_dropped_is_in_no_file_after_a_scrub(tmp_path: Path):
    shelf = SQLiteIndexStore(tmp_path / "x-memory")
    canaries = [f"canary-{n:04}-" * 20 for n in range(200)]
    shelf.write(PutRow("a", encode_key(n % 7, text), text.encode()) for n, text in enumerate(canaries))
    shelf.write(PutRow("b", encode_key(n), b"kept" * 50) for n in range(500))
    shelf.write([DropRows("a", b"", b"\xff")])
    shelf.scrub()
    found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"canary-" not in found
    assert len(shelf.scan("b", b"", b"\xff", limit=999)) == 500
    shelf.close()


def test_what_was_dropped_is_in_no_file_of_the_server_after_a_scrub():
    with valkey.server() as server:
        shelf = open_index_store(server.url)
        shelf.write(PutRow("a", encode_key(n), b"canary-%d" % n) for n in range(200))
        assert b"canary-" in server.files()
        shelf.write([DropRows("a", b"", b"\xff"), PutRow("b", b"k", b"kept")])
        shelf.scrub()
        assert b"canary-" not in server.files()
        assert shelf.get("b", [b"k"]) == {b"k": b"kept"}
        shelf.close()


def test_a_damaged_page_is_found(tmp_path: Path):
    path = tmp_path / "x-memory"
    shelf = SQLiteIndexStore(path)
    shelf.write(PutRow("a", encode_key(n), b"v" * 500) for n in range(100))
    shelf.scrub()
    shelf.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"v" * 100) + 50
    data[at] ^= 1
    path.write_bytes(data)
    again = SQLiteIndexStore(path)
    with pytest.raises(errors.Corrupt):
        again.scan("a", b"", b"\xff", limit=999)
    again.close()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path):
    path = tmp_path / "x-memory"
    path.write_bytes(b"mine" * 1000)
    shelf = SQLiteIndexStore(path)
    with pytest.raises((errors.NotAStore, errors.Corrupt)):
        shelf.write([PutRow("a", b"k", b"v")])
    shelf.close()
    assert path.read_bytes() == b"mine" * 1000


def test_a_renewed_index_store_is_empty_and_usable(shelf: IndexStore):
    shelf.clear()
    shelf.write([PutRow("a", b"k", b"v")])
    shelf.clear()
    assert shelf.get("a", [b"k"]) == {}
    assert shelf.write([PutRow("a", b"k", b"w")], expected={("a", b"k"): None})
    assert shelf.get("a", [b"k"]) == {b"k": b"w"}


def test_a_damaged_file_is_renewed_for_all_who_use_it(tmp_path: Path):
    path = tmp_path / "x-memory"
    one, other = SQLiteIndexStore(path), SQLiteIndexStore(path)
    one.write(PutRow("a", encode_key(n), b"v" * 500) for n in range(100))
    one.scrub()
    assert len(other.scan("a", b"", b"\xff", limit=999)) == 100
    data = bytearray(path.read_bytes())
    for at in range(4_096, len(data), 4_096):
        data[at + 30] ^= 0xFF
    path.write_bytes(data)
    one.clear()
    assert other.scan("a", b"", b"\xff", limit=999) == []
    assert other.write([PutRow("a", b"k", b"v")])
    assert one.get("a", [b"k"]) == {b"k": b"v"}
    for shelf in (one, other):
        shelf.close()


def test_a_file_of_somebody_else_is_not_renewed(tmp_path: Path):
    path = tmp_path / "x-memory"
    path.write_bytes(b"mine" * 1000)
    shelf = SQLiteIndexStore(path)
    with pytest.raises(errors.NotAStore):
        shelf.clear()
    shelf.close()
    assert path.read_bytes() == b"mine" * 1000


def test_those_who_come_first_together_make_one_file(tmp_path: Path):
    for number in range(10):
        path = tmp_path / f"{number}-memory"
        shelves = [SQLiteIndexStore(path) for _ in range(4)]
        made: list[bool] = []

        def write(shelf: SQLiteIndexStore, at: int, made: list[bool] = made) -> None:
            shelf.get("a", [b"x"])
            made.append(shelf.write([PutRow("a", encode_key(at), b"v")]))

        threads = [threading.Thread(target=write, args=(shelf, at)) for at, shelf in enumerate(shelves)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == [True] * 4
        assert len(shelves[0].scan("a", b"", b"\xff", limit=9)) == 4
        for shelf in shelves:
            shelf.close()
    assert not list(tmp_path.glob("*.new*"))
