"""The contract on a store over a driver, with a server in RAM; and what is such a store's own."""

from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from limpet.stores.port import Projection, Store
from limpet.stores.server.driver import ProjectionRow
from limpet.stores.server.store import ServerStore
from limpet.testing import store_contract
from limpet.testing.store_contract.harness import TENANT
from tests.contract.ram_driver import Books, RamDriver, Server, swap

replace = msgspec.structs.replace


class TestRemoteStore(store_contract.StoreContract):
    walk_steps: ClassVar[int] = 300

    @pytest.fixture(autouse=True)
    def _servers(self) -> None:
        self.servers: dict[Path, Server] = {}

    def open_store(self, folder: Path) -> Store:
        return ServerStore(RamDriver(self.servers.setdefault(folder, Server())))

    def damage(self, store: Store, position: int) -> None:
        rows = books(store).rows
        kept = rows[position - 1]
        payload = kept.event.payload or b""
        flipped = bytes([payload[0] ^ 1]) + payload[1:]
        rows[position - 1] = replace(kept, event=replace(kept.event, payload=flipped))

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        blobs = books(store).blobs
        blobs[hash_] = bytes([blobs[hash_][0] ^ 1]) + blobs[hash_][1:]

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        del books(store).blobs[hash_]

    def damage_note(self, store: Store, name: str) -> None:
        notes = books(store).notes
        note = notes[name].note
        notes[name] = replace(notes[name], note=replace(note, value=b"x" + note.value))

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        swap(books(store), stream, other)

    def damage_key(self, store: Store, key: str) -> None:
        keys = books(store).keys
        keys[key] = replace(keys[key], last=keys[key].last + 1)

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        rows = books(store).rows
        kept = rows[position - 1]
        blank = rows[like - 1].erasure if like else None
        row = replace(kept.event, payload=None, salt=None)
        rows[position - 1] = replace(kept, event=row, erasure=blank)

    def tamper(self, store: Store) -> None:
        kept = books(store)
        for place, row in list(kept.projections.items()):
            changed = replace(row.projection, owner="mallory")
            kept.projections[place] = replace(row, projection=changed)
        made_up = Projection(kind="row", id="made up")
        kept.projections["row", "made up"] = ProjectionRow(made_up, b"mark")
        kept.claims = {(number, "c0"): 1 for number in kept.streams}
        kept.uses.clear()


def books(store: Store) -> Books:
    """Return what the server keeps of the suite's tenant."""
    assert isinstance(store, ServerStore)
    assert isinstance(store._driver, RamDriver)
    return store._driver.server.books[TENANT]
