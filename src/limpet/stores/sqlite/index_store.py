"""The index store on SQLite: ordered rows of bytes in a file beside the store.

Search index and memory keep their tables here. Everything in it can be derived again from the log, so it has no chain
and no anchor. Its pages have checksums, and acknowledged writes are durable. It never touches the store's file or lock.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import cast

import apsw

from limpet import errors, limits
from limpet.stores import split_statements
from limpet.stores.port import IndexRangeDrop, IndexRowPut
from limpet.stores.sqlite import database
from limpet.stores.sqlite.database import ReadConnectionPool
from limpet.stores.sqlite.shared_file.store_files import StoreFiles

APPLICATION_ID = 0x4C504D53
_SINGLE_READS_MAX = 8


@functools.cache
def _index_statements() -> dict[str, str]:
    return split_statements(database.read_sql_file("shelf.sql"))


class SQLiteIndexStore:
    """An index store on one SQLite file, which is created at the first write. The verbs are those of `IndexStore`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sql = _index_statements()
        self._error_translator = database.translator(str(path))
        self._lock = threading.RLock()
        self._writer: apsw.Connection | None = None
        self._readers = ReadConnectionPool(lambda: self._connect(write=False))
        self._closed = False

    def _connect(self, *, write: bool) -> apsw.Connection:
        database.register_checksum_vfs()
        while write and not self._exists():
            self._create()
        flags = apsw.SQLITE_OPEN_READWRITE
        connection = apsw.Connection(str(self.path), flags=flags, vfs=database.CHECKSUM_VFS)
        try:
            database.apply_settings(connection, write=write)
            if connection.pragma("application_id") != APPLICATION_ID:
                raise errors.NotAStore(
                    f"{self.path} is in the way: it is not Limpet's.",
                    hint="Choose another name for the store. Nothing was changed.",
                )
            if write:
                connection.pragma("journal_mode", "WAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Build the file under a temporary name and link it to its path, so that no process sees half of it."""
        fresh = StoreFiles().create_temporary(self.path)
        with contextlib.closing(apsw.Connection(str(fresh), vfs=database.CHECKSUM_VFS)) as connection:
            connection.pragma("page_size", 4096)
            self._create_schema(connection)
            # Set here, because processes that open the new file together would block one another.
            connection.pragma("journal_mode", "WAL")
        try:
            os.link(fresh, self.path)
        except FileExistsError:
            # Another process was faster; an empty file is replaced.
            if not self._exists():
                os.replace(fresh, self.path)
        finally:
            fresh.unlink(missing_ok=True)

    def _create_schema(self, connection: apsw.Connection) -> None:
        connection.reserve_bytes("main", database.RESERVE_BYTES)
        # In one transaction: a file that is not empty has the whole schema.
        connection.execute(self._sql["create"])
        connection.pragma("application_id", APPLICATION_ID)
        connection.execute(self._sql["shelf_schema"])
        connection.execute(self._sql["commit"])

    @contextlib.contextmanager
    def _read_connection(self) -> Iterator[apsw.Connection | None]:
        """Yield a connection for reading; None if the file does not exist."""
        if self._closed:
            raise errors.EngineClosed
        with self._error_translator:
            if self._exists():
                with self._readers.borrow() as connection:
                    yield connection
            else:
                yield None

    def _exists(self) -> bool:
        try:
            return os.stat(self.path).st_size > 0
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _write_connection(self) -> Iterator[apsw.Connection]:
        with self._lock, self._error_translator:
            if self._closed:
                raise errors.EngineClosed
            if self._writer is None:
                self._writer = self._connect(write=True)
            yield self._writer

    def get(self, book: str, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        with self._read_connection() as connection:
            if connection is None or not keys:
                return {}
            if len(keys) <= _SINGLE_READS_MAX:
                found = ((key, self._get_one(connection, book, key)) for key in keys)
                return {key: value for key, value in found if value is not None}
            named = json.dumps([key.hex() for key in keys])
            rows = connection.execute(self._sql["get"], (book, named))
            return dict(cast("Iterable[tuple[bytes, bytes]]", rows))

    def _get_one(self, connection: apsw.Connection, book: str, key: bytes) -> bytes | None:
        row = connection.execute(self._sql["get_one"], (book, key)).fetchone()
        return cast("bytes", row[0]) if row else None

    def scan(
        self, book: str, first: bytes, last: bytes, *, limit: int, newest: bool = False
    ) -> list[tuple[bytes, bytes]]:
        with self._read_connection() as connection:
            if connection is None:
                return []
            query = self._sql["scan_back" if newest else "scan"]
            rows = connection.execute(query, (book, first, last, limit)).fetchall()
            return cast("list[tuple[bytes, bytes]]", rows)

    def last_values(self, book: str, spans: Sequence[tuple[bytes, bytes]]) -> list[bytes | None]:
        with self._read_connection() as connection:
            if connection is None or not spans:
                return [None] * len(spans)
            named = json.dumps([[first.hex(), last.hex()] for first, last in spans])
            rows = connection.execute(self._sql["lasts"], (book, named))
            return [cast("bytes | None", value) for (value,) in rows]

    def write(
        self,
        changes: Iterable[IndexRowPut | IndexRangeDrop],
        *,
        expected: Mapping[tuple[str, bytes], bytes | None] = MappingProxyType({}),
    ) -> bool:
        with self._write_connection() as writer:
            writer.execute(self._sql["begin"])
            try:
                for (book, key), value in expected.items():
                    if self._get_one(writer, book, key) != value:
                        writer.execute(self._sql["rollback"])
                        return False
                for change in changes:
                    self._apply(writer, change)
                writer.execute(self._sql["commit"])
            except BaseException:
                self._abandon()
                raise
            return True

    def _apply(self, writer: apsw.Connection, change: IndexRowPut | IndexRangeDrop) -> None:
        if hasattr(change, "value"):
            put = cast("IndexRowPut", change)
            writer.execute(self._sql["put"], (put.table, put.key, put.value))
        else:
            drop = cast("IndexRangeDrop", change)
            writer.execute(self._sql["drop"], (drop.table, drop.first, drop.last))

    def _abandon(self) -> None:
        # After a failed write the connection's state is unknown; the next write opens another.
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(apsw.Error):
                writer.close(True)

    def scrub(self) -> None:
        """Rewrite the file and empty its log, so that neither has remains of dropped rows.

        Raises StoreBusy if a reader holds on for longer than limits.WRITE_LOCK_WAIT_S.
        """
        if not self.path.exists():
            return
        with self._write_connection() as writer:
            writer.execute(self._sql["vacuum"])
            until = time.monotonic() + limits.WRITE_LOCK_WAIT_S
            while True:
                try:
                    writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                except apsw.BusyError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.01)
                else:
                    return

    def clear(self) -> None:
        """Replace the content by an empty store, whatever is damaged. Other processes see the empty one.

        Raises NotAStore, and changes nothing, if the file does not say that it is Limpet's.
        """
        if not self._exists():
            return
        with self._lock, self._error_translator:
            if self._closed:
                raise errors.EngineClosed
            self._abandon()
            self._readers.renew()
            with self._connect_unverified() as before, self._connect_unverified() as writer:
                self._check_ours(before)
                # With something in the write-ahead log, the reset does not wait for other connections.
                try:
                    before.pragma("user_version", 1 - (before.pragma("user_version") or 0))
                except apsw.Error:
                    before.close()
                writer.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 1)
                writer.execute(self._sql["vacuum"])
                writer.config(apsw.SQLITE_DBCONFIG_RESET_DATABASE, 0)
                self._create_schema(writer)

    @contextlib.contextmanager
    def _connect_unverified(self) -> Iterator[apsw.Connection]:
        database.register_checksum_vfs()
        with contextlib.closing(apsw.Connection(str(self.path), vfs=database.CHECKSUM_VFS)) as connection:
            connection.set_busy_timeout(int(limits.WRITE_LOCK_WAIT_S * 1000))
            connection.pragma("checksum_verification", False)
            yield connection

    def _check_ours(self, connection: apsw.Connection) -> None:
        # Read by SQLite itself: opening and closing the file otherwise would drop this process's locks on it.
        page = connection.read("main", 0, 0, 4096)[1]
        if page[68:72] != APPLICATION_ID.to_bytes(4, "big"):
            raise errors.NotAStore(
                f"{self.path} can't be read, and does not say that it is Limpet's.",
                hint="Delete it if it is: everything in it is made again from the log.",
            )

    def size(self) -> int:
        parts = (self.path, Path(f"{self.path}-wal"))
        return sum(part.stat().st_size for part in parts if part.exists())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._readers.close()
            self._abandon()
