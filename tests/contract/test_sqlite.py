"""The contract on the SQLite store."""

from pathlib import Path
from typing import ClassVar

from limpet.stores import sqlite
from limpet.stores.chain import row_checksum
from limpet.stores.port import Store
from limpet.stores.sqlite import database
from limpet.stores.sqlite.database import TENANT_SHIFT
from limpet.testing import store_contract
from limpet.testing.store_contract.harness import TENANT


class TestSQLiteStore(store_contract.StoreContract):
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
        vandalise(store, "UPDATE events SET payload = ? WHERE key & 0xffffffff = ?", flipped, position)

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        content = store.blobs(TENANT, [hash_])[hash_]
        flipped = bytes([content[0] ^ 1]) + content[1:]
        vandalise(store, f"UPDATE blobs SET content = ? WHERE hash = ? AND {OURS}", flipped, hash_)

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        vandalise(store, f"DELETE FROM blobs WHERE hash = ? AND {OURS}", hash_)

    def damage_note(self, store: Store, name: str) -> None:
        vandalise(store, "UPDATE notes SET value = 'x' || value WHERE name = ?", name)

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        # By a third name: no two have the same at any moment.
        for before, after in ((stream, "aside"), (other, stream), ("aside", other)):
            vandalise(store, "UPDATE streams SET name = ? WHERE name = ?", after, before)

    def damage_key(self, store: Store, key: str) -> None:
        vandalise(store, "UPDATE keys SET last = last + 1 WHERE key = ?", key)

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        key, by = (1 << TENANT_SHIFT | at for at in (position, store.feed(TENANT)[-1].position))
        vandalise(store, "UPDATE events SET payload = NULL, salt = NULL WHERE key = ?", key)
        if like:
            row = (key, by, 0)
            vandalise(store, "INSERT INTO erased VALUES (?, ?, ?, NULL, ?)", *row, row_checksum(*row, None))

    def tamper(self, store: Store) -> None:
        for statement in (
            "UPDATE projections SET owner = 'mallory' WHERE id LIKE '%/0'",
            "DELETE FROM projections WHERE id LIKE '%/1'",
            "INSERT INTO projections SELECT tenant, kind, 'made up', owner, status, moment, time_us,"
            " lookup, terms, document, mark FROM projections LIMIT 1",
            "DELETE FROM projection_terms WHERE term = 'x'",
            "DELETE FROM claims WHERE version = 1",
            "INSERT INTO claims SELECT 'c29 made up', stream, version FROM claims LIMIT 1",
            "DELETE FROM blob_uses",
        ):
            vandalise(store, statement)


OURS = f"tenant = (SELECT number FROM tenants WHERE name = '{TENANT}')"


def vandalise(store: Store, statement: str, *bindings: bytes | int | str) -> None:
    """Change a store beneath it."""
    assert isinstance(store, sqlite.SQLiteStore)
    vandal = database.connect(store.path, write=True)
    vandal.execute(statement, bindings)
    vandal.close()
