"""The SQLite database of a store: settings, schema, checks at opening, connections, cached numbers, errors.

Write-ahead log with full sync: a commit that returned survives a power cut. Settings are read back after they are
made, so that a store never runs with weaker ones. Page checksums need the `cksumvfs` extension and eight reserved
bytes in every page.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, cast

import apsw

from limpet import errors, limits
from limpet.stores import chain, split_statements
from limpet.stores.chain import Span
from limpet.stores.sqlite.shared_file import commit_handoff, store_files
from limpet.stores.sqlite.shared_file.store_files import Anchor, AnchorSlot, LogHead, StoreFiles

APPLICATION_ID: Final = 0x4C504453
SCHEMA_VERSION: Final = 5
"""The newest schema that this version knows; also `PRAGMA user_version` of a store."""

CHECKSUM_VFS: Final = "cksmvfs"
RESERVE_BYTES: Final = 8
LIBRARY_MIN: Final = (3, 51, 3)
"""Older SQLite can corrupt a file that two connections checkpoint (the WAL-reset bug)."""

BASES_SINCE: Final = 3
"""The first schema whose streams may have bases."""

TABLES_SINCE: Final[dict[str, int]] = {"bases": BASES_SINCE, "notes": 4}
"""The first schema that has a table, for tables that the first schema lacks."""

ERASED_SINCE: Final = 5
"""The first schema in which events can be erased."""

MIGRATIONS: Final[dict[int, str]] = {1: "schema-2.sql", 2: "schema-3.sql", 3: "schema-4.sql", 4: "schema-5.sql"}
"""From a schema version to the SQL file that migrates a store to the next one."""

Synchronous = Literal["FULL", "NORMAL"]
"""FULL syncs the write-ahead log at each commit; NORMAL syncs nothing until a checkpoint."""

_SYNCHRONOUS_LEVELS: Final[dict[Synchronous, int]] = {"NORMAL": 1, "FULL": 2}

_vfs_lock = threading.Lock()


def read_sql_file(name: str) -> str:
    return (Path(__file__).with_name("sql") / name).read_text(encoding="utf-8")


def schema_sql(version: int) -> str:
    """Return the SQL that creates an empty store of a version: the first schema and every migration up to it."""
    files = ("schema.sql", *(MIGRATIONS[step] for step in range(1, version)))
    return minify_sql("\n".join(map(read_sql_file, files)))


def minify_sql(text: str) -> str:
    """Return SQL without comments and needless blanks. SQLite stores its text in every database."""
    return " ".join(re.sub("--.*", "", text).split()).replace("( ", "(").replace(" )", ")").replace(", ", ",")


@functools.cache
def statements() -> dict[str, str]:
    return split_statements(read_sql_file("queries.sql"))


def check_sqlite_version(version: str) -> None:
    """Raise UnsafeStore for a SQLite that has the WAL-reset bug."""
    if tuple(int(part) for part in version.split(".")) < LIBRARY_MIN:
        raise errors.UnsafeStore(
            f"SQLite {version} can corrupt a store that two processes use (the WAL-reset bug).",
            hint="Upgrade with: pip install -U apsw",
            facts={"sqlite": version},
        )


def check_location(files: StoreFiles, path: Path) -> None:
    """Raise UnsafeStore for a network file system or a hard link, InvalidRequest if no file can be at the path."""
    if not path.parent.is_dir():
        raise errors.InvalidRequest(
            f"{path} can't be made: there is no folder {path.parent}.",
            hint=f"Make it first: mkdir -p {shlex.quote(str(path.parent))}",
        )
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no file"
        raise errors.InvalidRequest(
            f"{path} is {kind}, and a SQLite store is a file.",
            hint=f"Name a file, such as {path / 'state.db'}, or write files:{path} for a folder of files."
            if path.is_dir()
            else "Name a file.",
        )
    if path.exists() and path.stat().st_nlink > 1:
        raise errors.UnsafeStore(
            f"{path} has another name (a hard link), and writers under the two would not see each other.",
            hint="Remove the other link, or copy the store with `limpet backup`.",
        )
    check_file_system(files, path, path.parent)


def check_file_system(files: StoreFiles, path: Path, folder: Path) -> None:
    """Raise UnsafeStore for a store at `path` if its folder lies on a network file system."""
    kind = files.file_system_type(folder)
    if kind in store_files.NETWORK_FILE_SYSTEMS:
        raise errors.UnsafeStore(
            f"{path} lies on a network file system ({kind}), whose locks do not hold.",
            hint="Use a local disk, or a server database.",
            facts={"filesystem": kind},
        )


def register_checksum_vfs() -> None:
    """Register the checksum VFS once, leaving the process's default VFS as it was."""
    with _vfs_lock:
        if CHECKSUM_VFS in apsw.vfs_names():
            return
        default = apsw.vfs_names()[0]
        # apsw's own finder is not used: it imports modules that take as long as opening a store.
        binaries = Path(apsw.__file__).with_name("sqlite_extra_binaries")
        extension = next(binaries.glob("cksumvfs.*"), None)
        if extension is None:
            raise errors.UnsafeStore(
                "this installation of apsw has no cksumvfs, without which damage can't be found.",
                hint="Install its wheel: pip install --force-reinstall --only-binary apsw apsw",
            )
        with contextlib.closing(apsw.Connection(":memory:")) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1)
            connection.load_extension(str(extension))
        apsw.set_default_vfs(default)


def connect(path: Path, *, write: bool, verified: bool = True, synchronous: Synchronous = "FULL") -> apsw.Connection:
    """Open a connection with all settings made and read back; `verified` checks every page on reading."""
    has_log = Path(f"{path}-wal").exists()
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKSUM_VFS)
    if not verified:
        connection.pragma("checksum_verification", False)
    # A refused opening must leave the files unchanged. Only the writer, after its checks, empties the log on close.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
    apply_settings(connection, write=write, synchronous=synchronous)
    connection.pragma("wal_autocheckpoint", limits.CHECKPOINT_PAGES if write else 0)
    try:
        check_settings(connection, path, synchronous)
    except BaseException:
        connection.close()
        raise
    return connection


def apply_settings(connection: apsw.Connection, *, write: bool, synchronous: Synchronous = "FULL") -> None:
    """Make the settings that every connection to a file of ours has."""
    connection.set_busy_timeout(int(limits.WRITE_LOCK_WAIT_S * 1000))
    connection.pragma("cache_size", -limits.CACHE_PAGES_KIB)
    connection.pragma("mmap_size", 0)
    connection.pragma("journal_size_limit", limits.WAL_BYTES_KEPT)
    connection.pragma("synchronous", synchronous)
    connection.pragma("query_only", not write)


def enable_checkpoint_on_close(connection: apsw.Connection) -> None:
    """Let a connection whose checks succeeded empty the log if it is the last to close."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def check_settings(connection: apsw.Connection, path: Path, synchronous: Synchronous = "FULL") -> None:
    """Raise UnsafeStore unless journal and sync settings are those that survive a power cut."""
    mode, wanted = connection.pragma("journal_mode"), _SYNCHRONOUS_LEVELS[synchronous]
    level = connection.pragma("synchronous")
    if (mode, level) != ("wal", wanted):
        raise errors.UnsafeStore(
            f"{path} runs with journal_mode {mode}, synchronous {level}; it needs wal and {wanted} ({synchronous}).",
            hint="Put it back with: PRAGMA journal_mode = WAL",
            facts={"journal_mode": mode, "synchronous": level},
        )


def create_store(files: StoreFiles, path: Path, store_id: bytes) -> None:
    """Build an empty store under a temporary name and rename it into place. The caller holds the write lock."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.new*"):
        # Its process has died, because this one holds the write lock.
        files.remove(leftover)
    fresh = files.create_temporary(path)
    connection = apsw.Connection(str(fresh), vfs=CHECKSUM_VFS)
    try:
        connection.reserve_bytes("main", RESERVE_BYTES)
        connection.pragma("page_size", 4096)
        # The whole file is synced below, before it gets its name.
        connection.pragma("synchronous", "OFF")
        connection.pragma("application_id", APPLICATION_ID)
        with connection:
            connection.execute(schema_sql(SCHEMA_VERSION))
            connection.execute("INSERT INTO store VALUES ('id', ?)", (store_id,))
            connection.pragma("user_version", SCHEMA_VERSION)
        # The migrations leave free pages that no store would use.
        connection.execute("VACUUM")
        connection.pragma("journal_mode", "WAL")
    finally:
        connection.close()
    files.sync(fresh)
    files.rename(fresh, path)


def check_schema_version(connection: apsw.Connection, path: Path) -> int:
    """Return the store's schema version; raise NewerStore for one that this version does not know."""
    version = cast("int", connection.pragma("user_version"))
    if version > SCHEMA_VERSION:
        raise errors.NewerStore(
            f"{path} has schema {version}; this Limpet knows {SCHEMA_VERSION}.",
            hint="In an up-to-date clone of Limpet: pip install .",
            facts={"schema": version, "known": SCHEMA_VERSION},
        )
    return version


def try_begin(cursor: apsw.Cursor) -> bool:
    """Begin a write transaction; return False if an interrupted read still holds an old snapshot on this connection."""
    try:
        cursor.execute("BEGIN IMMEDIATE")
    except apsw.BusyError as error:
        # The stubs do not know it, but every error of the driver has its extended code.
        if getattr(error, "extendedresult", 0) != apsw.SQLITE_BUSY_SNAPSHOT:
            raise
        return False
    return True


def find_store_id(connection: apsw.Connection) -> bytes:
    """Return the id that the store got when it was created; an empty one if it is lost."""
    found = connection.execute(statements()["store_id"]).get
    return found if isinstance(found, bytes) else b""


def read_store_id(connection: apsw.Connection, path: Path) -> bytes:
    """Return the store's id; raise Corrupt if it is lost."""
    if found := find_store_id(connection):
        return found
    raise errors.Corrupt(f"{path} has lost its id.")


def migrate(connection: apsw.Connection, version: int) -> None:
    """Migrate a store to the present schema, each step in one transaction. The caller holds the write lock."""
    for step in range(version, SCHEMA_VERSION):
        with connection:
            connection.execute(read_sql_file(MIGRATIONS[step]))
            connection.pragma("user_version", step + 1)


def check_side_files(path: Path) -> None:
    """Raise NotAStore if a foreign file has the name of one of the store's side files."""
    anchor_path, exists = Path(f"{path}-anchor"), path.exists()
    if anchor_path.exists() and not store_files.is_anchor_file(anchor_path):
        raise _foreign_file_error(anchor_path, store_exists=exists)
    lock = Path(f"{path}-lock")
    if lock.exists():
        with store_files.open_regular_file(lock) as file:
            if not commit_handoff.is_lock_file(file.read(len(commit_handoff.LOCK_FILE_MAGIC))):
                raise _foreign_file_error(lock, store_exists=exists)


def _foreign_file_error(path: Path, *, store_exists: bool) -> errors.NotAStore:
    named = shlex.quote(str(path))
    return errors.NotAStore(
        f"{path} is in the way: a store needs a file of that name, but it is not Limpet's.",
        hint="Choose another name for the store. Nothing was changed."
        if not store_exists
        else f"Nothing was changed. Move it away (mv {named} {named}.away); `limpet verify` then says what can't be proved.",
    )


def _check_not_lost(path: Path) -> None:
    log, acknowledged = Path(f"{path}-wal"), store_files.acknowledged_events(Path(f"{path}-anchor"))
    if acknowledged or (log.exists() and log.stat().st_size):
        raise errors.Corrupt(
            f"{path} is {'empty' if path.exists() else 'gone'}, but {acknowledged:,} event(s) had been acknowledged in it.",
            hint=f"Put it back, or a backup of it. To begin anew, remove {path.name}-anchor and {path.name}-wal.",
            facts={"path": str(path), "events": acknowledged},
        )


def check_file_header(path: Path) -> None:
    """Raise NotAStore for a file that does not begin as a store does; Corrupt if it was a store.

    Reads a few bytes and changes nothing. SQLite itself is not allowed to open a foreign file.
    """
    if not path.exists() or not path.stat().st_size:
        _check_not_lost(path)
        return
    with path.open("rb") as file:
        head = file.read(100)
    if head[:16] == b"SQLite format 3\x00" and head[68:72] == APPLICATION_ID.to_bytes(4, "big"):
        return
    if path.with_name(path.name + "-anchor").exists():
        raise errors.Corrupt(
            f"{path} was a Limpet store, but its first bytes are damaged.",
            hint="Nothing was changed. A backup can replace it.",
            facts={"path": str(path)},
        )
    raise errors.NotAStore(f"{path} is not a Limpet store. Nothing was changed in it.", hint="Choose another path.")


TENANT_SHIFT = 40
"""How many low bits of a key are the number within the tenant: a trillion events each, eight million tenants."""


NUMBER_MASK = (1 << TENANT_SHIFT) - 1


def first_row(
    connection: apsw.Connection, query: str, bindings: tuple[apsw.SQLiteValue, ...]
) -> tuple[apsw.SQLiteValue, ...] | None:
    return next(connection.execute(query, bindings), None)


def read_integer(connection: apsw.Connection, query: str, bindings: tuple[apsw.SQLiteValue, ...]) -> int:
    """Return the integer that a query returns, 0 if it returns none."""
    found = connection.execute(query, bindings).get
    return found if isinstance(found, int) else 0


def read_head(connection: apsw.Connection, tenant: int) -> LogHead:
    base = tenant << TENANT_SHIFT
    row = first_row(connection, statements()["head"], (base, base | NUMBER_MASK))
    if row is None:
        return LogHead(0, chain.GENESIS_LINK)
    key, link = row
    assert isinstance(key, int) and isinstance(link, bytes)
    return LogHead(key & NUMBER_MASK, link)


def read_tenants(connection: apsw.Connection) -> dict[int, str]:
    found = connection.execute(statements()["tenants"])
    return {key: str(name) for key, name in found if isinstance(key, int)}


def compare_anchor(connection: apsw.Connection, anchor: Anchor, store_id: bytes) -> tuple[str, ...]:
    """Compare anchor and log; raise Corrupt if the anchor is ahead. Return notes; mend an anchor that lags."""
    faults, notes = anchor_faults(connection, anchor.read(), store_id)
    if faults:
        raise errors.Corrupt(
            faults[0],
            hint="Restore a backup. If an older copy was put here on purpose, remove the -anchor file.",
            facts={"anchor": "ahead"},
        )
    if notes:
        anchor.write({tenant: read_head(connection, tenant) for tenant in read_tenants(connection)})
    return notes


def check_foreign_checkpoint(connection: apsw.Connection, anchor: Anchor, *, had_log: bool) -> None:
    """Read every page if another program emptied the write-ahead log: it wrote no page checksums.

    Raises SQLite's error for a page whose checksum does not match.
    """
    slot, _ = anchor.read()
    if slot is not None and not slot.clean and not had_log:
        connection.execute("PRAGMA integrity_check(1)").fetchall()


def anchor_faults(
    connection: apsw.Connection, reading: tuple[AnchorSlot | None, int], store_id: bytes
) -> tuple[list[str], tuple[str, ...]]:
    """Compare an anchor's reading with the log; return contradictions, and remarks on harmless differences."""
    slot, spoiled = reading
    notes = ["one half of the anchor was damaged and has been written anew"] if spoiled else list[str]()
    known = read_tenants(connection)
    if slot is None:
        if any(read_head(connection, tenant).position for tenant in known):
            notes.append("there was no anchor beside the file, as with a copy of it or a backup; one has been written")
        return [], tuple(notes)
    if slot.store_id != store_id:
        return [], (*notes, "the anchor belonged to another store and has been written anew")
    faults: list[str] = []
    for tenant, kept in slot.heads.items():
        faults += _head_faults(connection, tenant, kept)
        if not faults and read_head(connection, tenant).position > kept.position:
            notes.append("the anchor was behind the log, as after a crash, and has been written anew")
    return faults, tuple(dict.fromkeys(notes))


def _head_faults(connection: apsw.Connection, tenant: int, kept: LogHead) -> list[str]:
    present = read_head(connection, tenant).position
    if present < kept.position:
        lost = kept.position - present
        return [f"the log ends at position {present:,}, but {lost:,} more event(s) had been acknowledged."]
    row = first_row(connection, statements()["link_at"], (tenant << TENANT_SHIFT | kept.position,))
    if row is None or row[0] != kept.link:
        return [f"the log differs from what was acknowledged at position {kept.position:,}."]
    return []


CACHE_ENTRIES_MAX = 10_000
"""Streams and row shapes that are cached at most."""

ProjectionShape = tuple[object, ...]
"""The indexed columns of a projection. A row with the same shape needs no index update."""


class SQLiteCache:
    """The caches of one open store: numbers of tenants and streams, heads, versions, stretches, row shapes.

    A stale version, claim or shape fails a constraint when it is written. Heads have no such constraint, so they
    are dropped whenever another process has committed; names are dropped after an erasure.
    """

    def __init__(self) -> None:
        self.sql = statements()
        self._tenants: dict[str, int] = {}
        self._streams: dict[tuple[int, str], int] = {}
        self._new_tenants: dict[str, int] = {}
        self._new_streams: dict[tuple[int, str], int] = {}
        self.heads: dict[int, LogHead] = {}
        self.versions: dict[int, int] = {}
        self.stretches: dict[int, tuple[int, tuple[Span, ...]]] = {}
        self.shapes: dict[tuple[int, str, str], ProjectionShape] = {}
        self.anchor_is_current = False

    def tenant_number(self, connection: apsw.Connection, name: str) -> int:
        """Return a tenant's number, 0 if it has none yet."""
        found = self._tenants.get(name)
        if found is None:
            found = read_integer(connection, self.sql["tenant_number"], (name,))
            if found:
                known = self._new_tenants if connection.in_transaction else self._tenants
                known[name] = found
        return found

    def stream_key(self, connection: apsw.Connection, tenant: int, name: str) -> int:
        """Return a stream's key, 0 if it has none yet."""
        if not connection.in_transaction:
            # Without the write lock, a rename by another process would go unnoticed: no caching.
            return read_integer(connection, self.sql["stream_key"], (tenant, name))
        found = self._streams.get((tenant, name))
        if found is None:
            found = read_integer(connection, self.sql["stream_key"], (tenant, name))
            if found:
                known = self._new_streams
                if len(known) > CACHE_ENTRIES_MAX:
                    known.clear()
                known[tenant, name] = found
        return found

    def add_tenant(self, connection: apsw.Connection, name: str) -> int:
        made = read_integer(connection, self.sql["tenants_max"], ()) + 1
        connection.execute(self.sql["add_tenant"], (made, name, chain.row_checksum(made, name)))
        self._new_tenants[name] = made
        return made

    def keep_new(self) -> None:
        """Keep the numbers that the committed transaction has read or assigned."""
        if len(self.versions) > CACHE_ENTRIES_MAX or len(self.shapes) > CACHE_ENTRIES_MAX:
            for entries in (self._streams, self.versions, self.stretches, self.shapes):
                entries.clear()
        if self._new_tenants or self._new_streams:
            self._tenants |= self._new_tenants
            self._streams |= self._new_streams
            self._new_tenants.clear()
            self._new_streams.clear()

    def forget_heads(self) -> None:
        """Drop cached values that no database constraint would reject if stale."""
        self.heads.clear()
        self.anchor_is_current = False

    def forget_streams(self) -> None:
        """Drop everything about streams: after an erasure a name may belong to another stream."""
        self._streams.clear()
        self.forget_hints()

    def forget_hints(self) -> None:
        """Drop values that other processes may have changed, and numbers that a failed transaction has assigned."""
        self._new_tenants.clear()
        self._new_streams.clear()
        self.versions.clear()
        self.stretches.clear()
        self.shapes.clear()
        self.forget_heads()


class ReadConnectionPool:
    """A pool of read connections. Each is used by one caller at a time."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._free: list[apsw.Connection] = []
        self._generation = 0
        self._closed = False

    @contextlib.contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        """Yield a connection that no other thread uses."""
        if self._closed:
            raise errors.EngineClosed
        generation = self._generation
        try:
            # Without a lock: `list.pop` and `append` are atomic.
            connection = self._free.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            if len(self._free) >= limits.READERS_MAX:
                connection.close()
            else:
                self._free.append(connection)
            if self._closed or generation != self._generation:
                # Checked after the append: a `close` in between has missed this connection.
                with contextlib.suppress(ValueError):
                    self._free.remove(connection)
                connection.close()

    def renew(self) -> None:
        """Close all idle connections; those in use close when they are returned."""
        self._generation += 1
        free, self._free = self._free, []
        for connection in free:
            connection.close()

    def close(self) -> None:
        self._closed = True
        self.renew()


DRIVER_ERRORS = (apsw.Error, OSError, UnicodeDecodeError)
"""Errors of SQLite and the system."""

_DAMAGE_ERRORS = (
    apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError, UnicodeDecodeError, apsw.ConstraintError,
    apsw.SchemaChangeError, apsw.MismatchError,
)  # fmt: skip
_CHECKSUM_ERROR_CODES = frozenset({apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS})


class ErrorTranslator:
    """A context manager that raises errors of SQLite and the system in its body as Limpet errors."""

    def __init__(self, explain: Callable[[Exception], errors.Error]) -> None:
        self._to_error = explain

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and isinstance(error, DRIVER_ERRORS):
            raise self._to_error(error) from error


def translator(path: str) -> ErrorTranslator:
    return ErrorTranslator(lambda error: to_error(error, path))


def to_error(error: Exception, path: str) -> errors.Error:
    """Return our error for one of SQLite's or the system's."""
    facts = {"path": path}
    match error:
        case apsw.FullError():
            return errors.StoreFull(facts=facts)
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError() | PermissionError():
            return errors.StoreReadOnly(
                f"{path} can't be written.", hint="Check the permissions of the file and its folder.", facts=facts
            )
        case apsw.BusyError() | apsw.LockedError():
            return errors.StoreBusy(f"another program holds a lock on {path}.", hint="Close it and retry.", facts=facts)
        case apsw.ConnectionClosedError():
            return errors.EngineClosed()
        case _ if isinstance(error, _DAMAGE_ERRORS):
            return _corrupt_error(path, str(error))
        case apsw.IOError() if is_checksum_error(error):
            found = _corrupt_error(path, "a page's checksum does not match")
            found.facts["checksums"] = False
            return found
        case OSError() if error.errno == errno.EROFS:
            return errors.StoreReadOnly(
                f"{path} can't be written: its file system is read-only.",
                hint="Mount it for writing, or choose another place.",
                facts=facts,
            )
        case OSError() if error.errno == errno.ENOSPC:
            return errors.StoreFull(facts=facts)
        case _:
            return errors.Unavailable(f"{path} can't be used now: {error}.", facts=facts)


def unknown_outcome_error(why: str) -> errors.Unavailable:
    """Return the error for a write that may have taken place, or may still."""
    return errors.Unavailable(
        f"{why}; whether the write holds is unknown.",
        hint="Retry with the same key or the same message ids: it has one effect.",
    )


def is_checksum_error(error: apsw.IOError) -> bool:
    """Whether a page was read whose checksum does not match."""
    return getattr(error, "extendedresult", 0) in _CHECKSUM_ERROR_CODES


def _corrupt_error(path: str, why: str) -> errors.Corrupt:
    return errors.Corrupt(
        f"{path} is damaged: {why}.",
        hint="Nothing was changed. `limpet verify` says how far it goes; a backup can replace it.",
        facts={"path": path},
    )
