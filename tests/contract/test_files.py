"""The contract on the file store, and what it promises beyond."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec

from limpet.stores import files
from limpet.stores.files import journal, journal_index
from limpet.stores.files.journal import CommitJournal
from limpet.stores.files.journal_index import JournalRewriter
from limpet.stores.port import Store
from limpet.stores.sqlite import database
from limpet.stores.sqlite.database import read_integer
from limpet.testing import store_contract
from limpet.testing.store_contract.harness import TENANT
from tests.contract import test_sqlite
from tests.contract.test_sqlite import vandalise


class TestFilesStore(store_contract.StoreContract):
    """What is damaged is damaged in the index, which answers, and in the journal, which is the truth."""

    walk_steps: ClassVar[int] = 200
    _index = test_sqlite.TestSQLiteStore()

    def open_store(self, folder: Path) -> Store:
        return files.open_store(folder / "state")

    def open_backup(self, target: str) -> Store:
        return self._index.open_backup(target)

    def damage(self, store: Store, position: int) -> None:
        ours = _ours(store)

        def flip(event: journal.EventEntry) -> journal.EventEntry:
            if event.tenant != ours or journal_index.event_address(event).position != position:
                return event
            return msgspec.structs.replace(event, payload=flipped(event.payload))

        forge(store, lambda c: msgspec.structs.replace(c, events=tuple(map(flip, c.events))))
        self._index.damage(store, position)

    def damage_blob(self, store: Store, hash_: bytes) -> None:
        ours = _ours(store)

        def flip(blob: journal.BlobEntry) -> journal.BlobEntry:
            if blob.tenant != ours or blob.sha256 != hash_.hex():
                return blob
            return msgspec.structs.replace(blob, content=flipped(blob.content))

        forge(store, lambda c: msgspec.structs.replace(c, blobs=tuple(map(flip, c.blobs))))
        path = _folder(store) / "blobs" / hash_.hex()
        if path.exists():
            path.write_bytes(b"\xff" + path.read_bytes()[1:])
        self._index.damage_blob(store, hash_)

    def lose_blob(self, store: Store, hash_: bytes) -> None:
        lost = (_ours(store), hash_.hex())

        def others(change: journal.CommitLine) -> journal.CommitLine:
            kept = tuple(each for each in change.blobs if (each.tenant, each.sha256) != lost)
            return msgspec.structs.replace(change, blobs=kept)

        forge(store, others)
        self._index.lose_blob(store, hash_)

    def damage_note(self, store: Store, name: str) -> None:
        self._index.damage_note(store, name)

    def damage_name(self, store: Store, stream: str, other: str) -> None:
        self._index.damage_name(store, stream, other)

    def damage_key(self, store: Store, key: str) -> None:
        self._index.damage_key(store, key)

    def blank(self, store: Store, position: int, *, like: int = 0) -> None:
        ours = _ours(store)

        def blanked(event: journal.EventEntry) -> journal.EventEntry:
            if event.tenant != ours or journal_index.event_address(event).position != position:
                return event
            return msgspec.structs.replace(event, payload=None, salt=None)

        forge(store, lambda c: msgspec.structs.replace(c, events=tuple(map(blanked, c.events))))
        self._index.blank(store, position, like=like)

    def tamper(self, store: Store) -> None:
        self._index.tamper(store)


def forge(store: Store, edit: Callable[[journal.CommitLine], journal.CommitLine]) -> None:
    """Change the journal beneath a store, with checksums that are right."""
    used = files.StoreFiles()
    book = CommitJournal(used, _folder(store) / "journal")
    rewriting = JournalRewriter(used, book)
    rewriting.write_plan(book.store_id() or b"", edit)
    decided = rewriting.read_plan()
    if decided is not None:
        assert rewriting.move_segments(decided)
        vandalise(store, journal_index.index_statements()["put_point"], msgspec.json.encode(decided.after))
        rewriting.remove_plan()
    book.close()


def _folder(store: Store) -> Path:
    assert isinstance(store, files.FilesStore)
    return store.folder.root


def _ours(store: Store) -> int:
    assert isinstance(store, files.FilesStore)
    with contextlib.closing(database.connect(store.path, write=False)) as connection:
        return read_integer(connection, database.statements()["tenant_number"], (TENANT,))


def flipped(content: journal.LineContent | None) -> journal.LineContent | None:
    """Return a content with one bit changed; one that is elsewhere stays."""
    if content is None:
        return None
    return journal.encode_content(bytes([content.bytes[0] ^ 1]) + content.bytes[1:])
