"""Schema of a store on PostgreSQL: server checks, migrations, roles, isolation test, scrubbing.

`prepare_schema` checks the server's settings, migrates, and proves that the role sees no row
unless a tenant is set. `scrub_erased` rewrites tables so that no file holds an erased payload.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import psycopg
from psycopg import sql

from limpet import errors, limits
from limpet.stores.port import DURABILITY_LEVELS
from limpet.stores.server.postgres import connections, error_mapping
from limpet.stores.server.postgres.connections import DEFAULT_ROLE, PostgresConnection, PostgresDsn, Rows

MIGRATIONS: Final = ("schema-1.sql", "schema-2.sql", "schema-3.sql")
"""The SQL files that migrate a store by one schema version each, from an empty schema on."""

SERVER_VERSION_MIN: Final = 14
MIGRATION_TRIES_MAX: Final = 20
"""How often a migration step is retried because another connection holds a lock that the step needs."""

_VERSION_PATTERN: Final = re.compile(rb"[1-9][0-9]{0,8}")

TENANT_TABLES: Final = ("heads", "streams", "bases", "events", "claims", "keys", "blobs", "uses", "projections", "terms", "snapshots", "notes")  # fmt: skip
"""The tables whose rows belong to a tenant."""

_CREATE_ROLE: Final = "CREATE ROLE {role} NOLOGIN"
_GRANT_ROLE: Final = "GRANT {role} TO {user}"


class PostgresServer(msgspec.Struct, frozen=True):
    """Version and settings of a server, as the server reports them."""

    version: int
    encoding: str
    recovering: bool
    read_only: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str

    @property
    def durability(self) -> str:
        if self.synchronous_commit == "off":
            return "none"
        return "power-loss" if self.fsync and self.full_page_writes else "process-crash"


def inspect_server(connection: PostgresConnection) -> PostgresServer:
    row = _fetch_row(connection, "server")
    return PostgresServer(int(row[0]), *row[1:])


def check_server(server: PostgresServer, place: PostgresDsn) -> None:
    """Raise UnsafeStore or StoreReadOnly for a server that can't hold the store as the URL asks."""
    if server.version // 10_000 < SERVER_VERSION_MIN:
        raise errors.UnsafeStore(
            f"{place.shown} has version {server.version // 10_000}; Limpet needs {SERVER_VERSION_MIN} or later.",
            hint="Upgrade the server.",
            facts={"version": server.version},
        )
    if server.encoding != "UTF8":
        raise errors.UnsafeStore(
            f"{place.shown} keeps text as {server.encoding}, which can't hold every name.",
            hint="Create the database with: createdb -E UTF8 -T template0 NAME",
        )
    if server.recovering or server.read_only:
        what = "is a replica" if server.recovering else "is read-only (default_transaction_read_only)"
        raise errors.StoreReadOnly(
            f"{place.shown} {what} and takes no writes.",
            hint="Name the primary in the URL, or all hosts and target_session_attrs=read-write.",
        )
    if DURABILITY_LEVELS.index(server.durability) < DURABILITY_LEVELS.index(place.durability):
        raise errors.UnsafeStore(
            f"{place.shown} can't hold the durability {place.durability}: {_weak_settings(server)}; it holds {server.durability}.",
            hint=f"Change that on the server, or ask for less: ?durability={server.durability} in the URL.",
            facts={"asked": place.durability, "holds": server.durability},
        )


def _weak_settings(server: PostgresServer) -> str:
    settings = {
        "synchronous_commit": server.synchronous_commit != "off",
        "fsync": server.fsync,
        "full_page_writes": server.full_page_writes,
    }
    return ", ".join(f"{name} is off" for name, on in settings.items() if not on)


def prepare_schema(place: PostgresDsn) -> PostgresServer:
    """Check the server, migrate an older schema, and prove that the role sees only the rows of a set tenant."""
    with connections.owner_connection(place) as owner:
        server = inspect_server(owner)
        check_server(server, place)
        found = schema_version(owner, place)
        _check_role_privileges(owner, place, makes=not found)
        if found < len(MIGRATIONS):
            migrate(owner, place, {at: connections.sql_text(file) for at, file in enumerate(MIGRATIONS, 1)})
        _check_role_membership(owner, place)
    with error_mapping.translate_errors(place.shown), contextlib.closing(connections.connect(place)) as user:
        check_isolation(user, place)
    return server


def store_exists(place: PostgresDsn) -> bool:
    with connections.owner_connection(place) as owner:
        return schema_version(owner, place) > 0


def schema_version(connection: PostgresConnection, place: PostgresDsn) -> int:
    """Return the schema's version, 0 if there is none; raise NewerStore for one that is not known here."""
    if not _fetch_row(connection, "is_there")[0]:
        if _fetch_row(connection, "hidden", schema=place.schema)[0]:
            user = _fetch_row(connection, "user")[0]
            raise errors.UnsafeStore(
                f"{place.shown} has a schema {place.schema}, and {user} may not look into it.",
                hint=f"If it is a store, let its owner or an administrator run: GRANT {place.role} TO {user}",
                facts={"schema": place.schema, "role": place.role},
            )
        if _fetch_row(connection, "is_used")[0]:
            raise errors.NotAStore(
                f"the schema {place.schema} of {place.shown} is in the way: it holds something else.",
                hint="Choose another with ?schema=NAME in the URL. Nothing was changed.",
            )
        return 0
    rows = _fetch_rows(connection, "version")
    said = bytes(rows[0][0]) if rows else b""
    if not _VERSION_PATTERN.fullmatch(said):
        raise errors.Corrupt(
            f"the schema {place.schema} of {place.shown} does not say which version it has.",
            hint="Nothing was changed. Put the row 'schema' of its table store back from a backup;"
            f" in a store that this Limpet made it is {len(MIGRATIONS)}.",
            facts={"schema": place.schema},
        )
    found = int(said)
    if found > len(MIGRATIONS):
        raise errors.NewerStore(
            f"the schema {place.schema} of {place.shown} has version {found}; this Limpet knows {len(MIGRATIONS)}.",
            hint="In an up-to-date clone of Limpet: pip install .",
            facts={"schema": found, "known": len(MIGRATIONS)},
        )
    return found


def migrate(owner: PostgresConnection, place: PostgresDsn, steps: Mapping[int, str]) -> None:
    """Run the missing steps, each in a transaction of its own, in one process at a time.

    A step that does not get its locks at once is rolled back and retried, so no other connection waits for long.
    """
    with connections.without_timeout(owner), _migration_lock(owner, place):
        _create_role_and_schema(owner, place)
        for step in sorted(steps):
            for last in (*[False] * MIGRATION_TRIES_MAX, True):
                if schema_version(owner, place) >= step or _migrate_step(owner, place, step, steps[step], last=last):
                    break


def _create_role_and_schema(owner: PostgresConnection, place: PostgresDsn) -> None:
    """Create role and schema; raise UnsafeStore, with statements for an administrator, if this user may not."""
    has_schema = _fetch_flag(owner, "schema", name=place.schema)
    lacking = _create_role(owner, place)
    if not has_schema and not _fetch_row(owner, "may_create_schema")[0]:
        lacking.append("CREATE SCHEMA {schema} AUTHORIZATION {user}")
    if lacking:
        raise _not_set_up_error(owner, place, lacking)
    if not has_schema:
        owner.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.schema)))


def _migrate_step(owner: PostgresConnection, place: PostgresDsn, step: int, text: str, *, last: bool) -> bool:
    try:
        with owner.transaction():
            _execute(owner, "hurry_in_transaction")
            owner.execute(text.encode())
            _grant_rights(owner, place)
            _execute(owner, "set_version", version=str(step).encode())
    except psycopg.errors.LockNotAvailable:
        if last:
            raise
        _execute(owner, "rest")
        return False
    return True


@contextlib.contextmanager
def _migration_lock(owner: PostgresConnection, place: PostgresDsn) -> Iterator[None]:
    """Hold the lock of migrations. The server releases it with the connection at the latest."""
    _execute(owner, "lock", name=place.channel)
    try:
        yield
    finally:
        _execute(owner, "unlock", name=place.channel)


def _create_role(owner: PostgresConnection, place: PostgresDsn) -> list[str]:
    """Create the role and let this user take it; return the statements that only an administrator may run."""
    if not _fetch_flag(owner, "role", role=place.role):
        if not _fetch_flag(owner, "may_create_roles"):
            return [_CREATE_ROLE, _GRANT_ROLE]
        # All databases of a server share their roles: another process may create this role now.
        with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            owner.execute(_role_statement("create_role", place))
    if not _fetch_flag(owner, "may_set_role", role=place.role):
        try:
            owner.execute(_role_statement("join_role", place))
        except psycopg.errors.InsufficientPrivilege:
            return [_GRANT_ROLE]
    return []


def _grant_rights(owner: PostgresConnection, place: PostgresDsn) -> None:
    for name in ("revoke_public", "grant_schema", "grant_tables", "grant_functions"):
        owner.execute(_role_statement(name, place))
    for (statement,) in _fetch_rows(owner, "direct", role=place.role):
        owner.execute(statement.encode())


def _role_statement(name: str, place: PostgresDsn) -> sql.Composed:
    text = cast("Any", _statements()[name])
    return sql.SQL(text).format(role=sql.Identifier(place.role), schema=sql.Identifier(place.schema))


def _not_set_up_error(owner: PostgresConnection, place: PostgresDsn, lacking: Sequence[str]) -> errors.UnsafeStore:
    user = _fetch_row(owner, "user")[0]
    run = "; ".join(each.format(role=place.role, schema=place.schema, user=user) for each in lacking)
    # Row-level security does not apply to the owner of a table.
    wanted = [f"a role {place.role} that {user} may take"] * (_GRANT_ROLE in lacking)
    wanted += [f"a schema {place.schema} that {user} owns"] * any("SCHEMA" in each for each in lacking)
    return errors.UnsafeStore(
        f"{place.shown} is not set up for a store: it needs {' and '.join(wanted)}, which {user} may not make.",
        hint=f"Let an administrator run in this database: {run}",
        facts={"role": place.role, "schema": place.schema},
    )


def _check_role_privileges(owner: PostgresConnection, place: PostgresDsn, *, makes: bool) -> None:
    """Raise UnsafeStore for a role that row-level security does not bind. `makes`: this user will own the tables."""
    rows = _fetch_rows(owner, "might", role=place.role)
    bypasses, owns = rows[0] if rows else (False, False)
    if bypasses or (makes and owns):
        raise _role_isolation_error(place, place.role, bypasses=bypasses)


def _role_isolation_error(place: PostgresDsn, role: str, *, bypasses: bool) -> errors.UnsafeStore:
    if bypasses:
        wrong = f"the role {role} is a superuser or has BYPASSRLS"
        fix = "Leave ?role= out of the URL, or name a role there that is no superuser and has no BYPASSRLS."
        if place.role == DEFAULT_ROLE:
            fix = f"Run: ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS"
        return _isolation_error(place, role, wrong, fix)
    fix = "Name a role that owns nothing with ?role=NAME in the URL."
    return _isolation_error(place, role, f"the role {role} owns the store's tables", fix)


def _check_role_membership(owner: PostgresConnection, place: PostgresDsn) -> None:
    if not _fetch_flag(owner, "role", role=place.role):
        raise _not_set_up_error(owner, place, [_CREATE_ROLE, _GRANT_ROLE])
    if not _fetch_flag(owner, "may_set_role", role=place.role):
        raise _not_set_up_error(owner, place, [_GRANT_ROLE])


def check_isolation(user: PostgresConnection, place: PostgresDsn) -> None:
    """Raise UnsafeStore if the role sees rows while no tenant is set, or row-level security does not bind it."""
    role, bypasses, owns, forbidden, unprotected, missing = _fetch_row(user, "isolation", tables=list(TENANT_TABLES))
    if bypasses or owns:
        raise _role_isolation_error(place, str(role), bypasses=bypasses)
    if forbidden:
        raise errors.StoreReadOnly(
            f"the role {role} may not use the schema {place.schema} of {place.shown}.",
            hint="Name the role that the store was made for with ?role=NAME in the URL, or let its owner"
            f" GRANT that role TO {role}.",
            facts={"role": str(role)},
        )
    if missing:
        raise errors.Corrupt(
            f"{place.shown} has not all of the store's tables: {', '.join(missing)} of the schema {place.schema} is missing.",
            hint="Nothing was changed. Restore a backup into a new store: limpet restore BACKUP URL.",
            facts={"missing": len(missing)},
        )
    if unprotected:
        wrong = f"row-level security is not forced on {', '.join(unprotected)}"
        fix = f"Run: ALTER TABLE {place.schema}.{unprotected[0]} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
    elif _fetch_row(user, "anything")[0]:
        wrong = "rows are seen though no tenant is named"
        fix = f"Drop every policy in {place.schema} that is not Limpet's."
    else:
        return
    raise _isolation_error(place, str(role), wrong, fix)


def _isolation_error(place: PostgresDsn, role: str, wrong: str, fix: str) -> errors.UnsafeStore:
    return errors.UnsafeStore(
        f"tenants of {place.shown} would not be kept apart: {wrong}.", hint=fix, facts={"role": role}
    )


@functools.cache
def _statements() -> dict[str, str]:
    files = ("server_checks.sql", "roles.sql", "scrub.sql")
    return {name: statement for file in files for name, statement in connections.sql_statements(file).items()}


def _execute(connection: PostgresConnection, name: str, /, **values: object) -> psycopg.Cursor[tuple[Any, ...]]:
    return connection.execute(_statements()[name].encode(), values or None, prepare=False)


def _fetch_rows(connection: PostgresConnection, name: str, /, **values: object) -> Rows:
    return _execute(connection, name, **values).fetchall()


def _fetch_row(connection: PostgresConnection, name: str, /, **values: object) -> tuple[Any, ...]:
    return _fetch_rows(connection, name, **values)[0]


def _fetch_flag(connection: PostgresConnection, name: str, /, **values: object) -> bool:
    rows = _fetch_rows(connection, name, **values)
    return bool(rows and rows[0][0])


ERASED_TABLES = ("streams", "events", "claims", "keys", "blobs", "uses", "projections", "terms", "snapshots")
"""The tables that an erasure deletes from. A scrub rewrites the partitions of the erasure's tenant."""

NOTES_TABLE = "notes"
"""Erasure hooks delete notes later, and of any tenant: a scrub rewrites all partitions of this table."""


def scrub_erased(place: PostgresDsn) -> None:
    """Rewrite the partitions of all tenants with erasures, and all notes.

    Raises StoreBusy if a transaction that may see erased rows, or uses a table, takes too long; StoreReadOnly if this
    user may not rewrite the tables.
    """
    with connections.owner_connection(place) as owner:
        erasures = _fetch_rows(owner, "erasures")
        tenants = sorted({tenant for _, tenant in erasures})
        _wait_for_readers(owner, place)
        parts = [
            *_fetch_rows(owner, "every_partition", table=NOTES_TABLE),
            *(row for table in ERASED_TABLES for row in _fetch_rows(owner, "partitions", table=table, tenants=tenants)),
        ]  # fmt: skip
        for (part,) in parts:
            _rewrite_table(owner, place, str(part))
        # Erasures that were added meanwhile stay listed: a table may have been rewritten before them.
        _execute(owner, "scrubbed", ids=[id_ for id_, _ in erasures])


def scrub_table(place: PostgresDsn, table: str) -> None:
    with connections.owner_connection(place) as owner:
        _wait_for_readers(owner, place)
        _rewrite_table(owner, place, table)


def _rewrite_table(owner: PostgresConnection, place: PostgresDsn, part: str) -> None:
    if not _fetch_flag(owner, "may_vacuum", part=part):
        raise errors.StoreReadOnly(
            f"what was erased can't be read any more, but this user may not write {part} of {place.shown} anew.",
            hint=f"Let its owner open the store, or run: GRANT MAINTAIN ON ALL TABLES IN SCHEMA {place.schema} TO {owner.info.user}",
            facts={"pending": True},
        )
    options = sql.SQL("FULL, ANALYZE" if place.scrub == "full" else "ANALYZE, INDEX_CLEANUP ON")
    with connections.without_timeout(owner):
        _execute_with_short_locks(owner, place, sql.SQL("VACUUM ({}) {}").format(options, sql.Identifier(part)))


def _execute_with_short_locks(owner: PostgresConnection, place: PostgresDsn, statement: sql.Composed) -> None:
    """Run a statement that needs an exclusive lock in many short tries, since others queue behind a waiting one."""
    until = time.monotonic() + limits.SCRUB_WAIT_S
    while True:
        last = time.monotonic() > until
        _execute(owner, "insist" if last else "hurry")
        try:
            owner.execute(statement)
        except psycopg.errors.LockNotAvailable as error:
            if last:
                raise _scrub_busy_error(place, "a table of it has been in use", limits.SCRUB_WAIT_S) from error
            _execute(owner, "rest")
        else:
            return


def _wait_for_readers(owner: PostgresConnection, place: PostgresDsn) -> None:
    """Wait for the end of all older transactions: a table keeps the rows that they could still see."""
    marker, began = _fetch_row(owner, "now")[0], time.monotonic()
    while True:
        here, on_replicas = _fetch_row(owner, "older", marker=marker)
        if not here and not on_replicas:
            return
        waited_s = time.monotonic() - began
        if here and waited_s > limits.SCRUB_WAIT_S:
            raise _scrub_busy_error(place, "a transaction has been open", limits.SCRUB_WAIT_S)
        if on_replicas and waited_s > limits.SCRUB_REPLICA_WAIT_S:
            why = "a replica (hot_standby_feedback, or a slot) has needed it"
            raise _scrub_busy_error(place, why, limits.SCRUB_REPLICA_WAIT_S)
        time.sleep(0.01)


def _scrub_busy_error(place: PostgresDsn, why: str, waited_s: float) -> errors.StoreBusy:
    return errors.StoreBusy(
        f"what was erased can't be read any more, but parts of it may still be in the files of {place.shown}:"
        f" {why} for more than {waited_s:g} s.",
        hint="End it (see pg_stat_activity here and there, pg_prepared_xacts, pg_replication_slots), then erase() once"
        " more; the next opening does it too.",
        facts={"pending": True},
    )
