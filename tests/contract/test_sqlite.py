"""The contract on the SQLite store."""

from pathlib import Path
from typing import ClassVar

from holdfast.store import sqlite
from holdfast.store.port import Store
from holdfast.store.sqlite import opening
from holdfast.testing import contract
from holdfast.testing.contract.stage import TENANT


class TestSQLiteStore(contract.StoreContract):
    walk_steps: ClassVar[int] = 200

    def open_store(self, folder: Path) -> Store:
        return sqlite.open_store(folder / "state.db")

    def open_backup(self, target: str) -> Store:
        return sqlite.open_store(target)

    def damage(self, store: Store, position: int) -> None:
        # Through SQLite, so that its page checksums agree and only the digest can tell.
        assert isinstance(store, sqlite.SQLiteStore)
        payload = store.feed(TENANT, after=position - 1, limit=1)[0].payload or b""
        flipped = bytes([payload[0] ^ 1]) + payload[1:]
        vandal = opening.connect(store.path, write=True)
        vandal.execute(
            "UPDATE events SET payload = ? WHERE key & 0xffffffff = ?", (flipped, position)
        )
        vandal.close()
