"""The SQLite database file: checks, connection settings, creation, migrations, statements.

A new store is built under a temporary name and renamed into place, so a crash never leaves half
of one. Page checksums need the `cksumvfs` extension and eight reserved bytes in every page.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import re
import shlex
import threading
from pathlib import Path
from typing import Final, Literal, cast

import apsw

from limpet import errors, limits
from limpet.stores import sql_statements
from limpet.stores.sqlite.shared_file import anchor, commit_handoff
from limpet.stores.sqlite.shared_file.store_files import NETWORK_FILE_SYSTEMS, StoreFiles, open_regular_file

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
"""The first schema that has a table, for those that were not always there."""

ERASED_SINCE: Final = 5
"""The first schema in which events can be erased."""

MIGRATIONS: Final[dict[int, str]] = {1: "schema-2.sql", 2: "schema-3.sql", 3: "schema-4.sql", 4: "schema-5.sql"}
"""From a schema version to the SQL file that migrates a store to the next one."""

Synchronous = Literal["FULL", "NORMAL"]
"""What SQLite syncs at each commit: the log (FULL), or nothing until a checkpoint (NORMAL)."""

_SYNCHRONOUS_LEVELS: Final[dict[Synchronous, int]] = {"NORMAL": 1, "FULL": 2}

_vfs_lock = threading.Lock()


def read_sql_file(name: str) -> str:
    """Return the text of one of this package's SQL files."""
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
    """Return the store's statements by name."""
    return sql_statements.split_statements(read_sql_file("queries.sql"))


def check_sqlite_version(version: str) -> None:
    """Raise UnsafeStore for a SQLite that has the WAL-reset bug."""
    if tuple(int(part) for part in version.split(".")) < LIBRARY_MIN:
        raise errors.UnsafeStore(
            f"SQLite {version} can corrupt a store that two processes use (the WAL-reset bug).",
            hint="Upgrade with: pip install -U apsw",
            facts={"sqlite": version},
        )


def check_location(files: StoreFiles, path: Path) -> None:
    """Raise UnsafeStore on a network file system, InvalidRequest where no file can be."""
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
    kind = files.file_system_type(path.parent)
    if kind in NETWORK_FILE_SYSTEMS:
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
    connection.set_busy_timeout(int(limits.WRITE_LOCK_WAIT_S * 1000))
    connection.pragma("cache_size", -limits.CACHE_PAGES_KIB)
    connection.pragma("mmap_size", 0)
    connection.pragma("journal_size_limit", limits.WAL_BYTES_KEPT)
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", limits.CHECKPOINT_PAGES if write else 0)
    connection.pragma("query_only", not write)
    try:
        check_settings(connection, path, synchronous)
    except BaseException:
        connection.close()
        raise
    return connection


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


def read_store_id(connection: apsw.Connection, path: Path) -> bytes:
    """Return the id that the store got when it was created."""
    found = connection.execute(statements()["store_id"]).get
    if not isinstance(found, bytes):
        raise errors.Corrupt(f"{path} has lost its id.")
    return found


def migrate(connection: apsw.Connection, version: int) -> None:
    """Migrate a store to the present schema, each step in one transaction. The caller holds the write lock."""
    for step in range(version, SCHEMA_VERSION):
        with connection:
            connection.execute(read_sql_file(MIGRATIONS[step]))
            connection.pragma("user_version", step + 1)


def check_side_files(path: Path) -> None:
    """Raise NotAStore if a foreign file has the name of one of the store's side files."""
    anchor_path, exists = Path(f"{path}-anchor"), path.exists()
    if anchor_path.exists() and not anchor.is_anchor_file(anchor_path):
        raise _foreign_file_error(anchor_path, store_exists=exists)
    lock = Path(f"{path}-lock")
    if lock.exists():
        with open_regular_file(lock) as file:
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
    log, acknowledged = Path(f"{path}-wal"), anchor.acknowledged_events(Path(f"{path}-anchor"))
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
