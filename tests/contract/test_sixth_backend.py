"""The worked example of the backend handbook: it keeps the contract, and is found by its entry point."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

import limpet
from limpet import errors
from limpet.stores.port import Projection, Store
from limpet.stores.server.driver import ProjectionRow
from limpet.testing import store_contract
from limpet.testing.store_contract.harness import TENANT

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pocket"
replace = msgspec.structs.replace


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have the example found as an installed package is: its module, and its entry points."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site")
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    paths = [str(EXAMPLE), str(folder)]
    sys.path[:0] = paths
    yield
    for path in paths:
        sys.path.remove(path)
    for name in [name for name in sys.modules if name.split(".")[0] == "pocket"]:
        del sys.modules[name]


class TestPocketStore(store_contract.StoreContract):
    walk_steps: ClassVar[int] = 100

    def open_store(self, folder: Path) -> Store:
        return _opened(folder / "state.pocket")

    def damage(self, store: Store, position: int) -> None:
        with _beneath(store) as books:
            kept = books.rows[position - 1]
            payload = kept.event.payload or b""
            flipped = bytes([payload[0] ^ 1]) + payload[1:]
            books.rows[position - 1] = replace(kept, event=replace(kept.event, payload=flipped))

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        with _beneath(store) as books:
            books.blobs[hash_] = bytes([books.blobs[hash_][0] ^ 1]) + books.blobs[hash_][1:]

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        with _beneath(store) as books:
            del books.blobs[hash_]

    def damage_note(self, store: Store, name: str) -> None:
        with _beneath(store) as books:
            kept = books.notes[name]
            books.notes[name] = replace(kept, note=replace(kept.note, value=b"x" + kept.note.value))

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        with _beneath(store) as books:
            one, two = books.stream(stream), books.stream(other)
            books.streams[one.number] = replace(one, name=other)
            books.streams[two.number] = replace(two, name=stream)

    def damage_key(self, store: Store, key: str) -> None:
        with _beneath(store) as books:
            books.keys[key] = replace(books.keys[key], last=books.keys[key].last + 1)

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        with _beneath(store) as books:
            kept = books.rows[position - 1]
            blank = books.rows[like - 1].erasure if like else None
            row = replace(kept.event, payload=None, salt=None)
            books.rows[position - 1] = replace(kept, event=row, erasure=blank)

    def tamper(self, store: Store) -> None:
        with _beneath(store) as books:
            for place, row in list(books.projections.items()):
                changed = replace(row.projection, owner="mallory")
                books.projections[place] = replace(row, projection=changed)
            made_up = Projection(kind="row", id="made up")
            books.projections["row", "made up"] = ProjectionRow(made_up, b"mark")
            books.claims = {(number, "c0"): 1 for number in books.streams}
            books.uses.clear()


def _opened(path: Path) -> Store:
    from importlib import import_module

    return import_module("pocket").open_store(f"pocket://{path}")


def _beneath(store: Any) -> Any:
    return store._driver._changing(TENANT)


@pytest.mark.req("A-20")
def test_it_is_opened_by_its_scheme_and_everything_works(tmp_path: Path):
    url = f"pocket://{tmp_path / 'trips.pocket'}"
    for count in (1, 2):
        with limpet.connect(url) as lp:
            session = lp.sessions.get_or_create_session("trip", user_id="ada")
            session.add_message({"role": "user", "content": f"{count}"})
            assert session.message_count == count
            assert lp.admin.status()["backend"] == "pocket"
            assert lp.admin.verify().ok
    with limpet.connect(url) as lp:
        lp.admin.backup(tmp_path / "copy.db")
        assert lp.admin.migrate(tmp_path / "other.db").behind == {}
    for copy in ("copy.db", "other.db"):
        with limpet.connect(tmp_path / copy) as lp:
            assert lp.sessions.get_session("trip").message_count == 2
    assert sorted(path.name for path in tmp_path.glob("trips*")) == ["trips.pocket", "trips.pocket.lock"]


def test_a_url_that_names_no_path_is_refused():
    with pytest.raises(errors.InvalidRequest, match="pocket:///absolute/path"):
        limpet.connect("pocket://host/path")


def test_what_is_no_file_of_ours_is_damage(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"something else")
    with pytest.raises(errors.Corrupt, match="can't be read"):
        limpet.connect(f"pocket://{tmp_path / 'x'}")
