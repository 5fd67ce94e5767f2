"""Opening a store on PostgreSQL: the server is looked at, the schema lifted, roles made, and isolation tried out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
import psycopg
from psycopg import sql

from limpet import errors
from limpet.store.levels import LEVELS
from limpet.store.postgres import connections, names, translate
from limpet.store.postgres.connections import Connection
from limpet.store.postgres.place import ROLE, Place

MIGRATIONS: Final = ("schema-1.sql", "schema-2.sql", "schema-3.sql")
"""The files that lift a store by one version each, from nothing on."""

SERVER_MIN: Final = 14
TRIES_MAX: Final = 20
"""Times that a migration tries again for a lock that others hold."""

_VERSION: Final = re.compile(rb"[1-9][0-9]{0,8}")

OURS: Final = ("heads", "streams", "bases", "events", "claims", "keys", "blobs", "uses", "projections", "terms", "snapshots", "notes")  # fmt: skip
"""The tables that hold what is a tenant's."""


_CREATE_ROLE: Final = "CREATE ROLE {role} NOLOGIN"
_JOIN_ROLE: Final = "GRANT {role} TO {user}"


class Server(msgspec.Struct, frozen=True):
    """What a server says of itself."""

    version: int
    encoding: str
    recovering: bool
    read_only: bool
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str

    @property
    def level(self) -> str:
        """What survives once a commit was acknowledged."""
        if self.synchronous_commit == "off":
            return "none"
        return "power-loss" if self.fsync and self.full_page_writes else "process-crash"


def look(connection: Connection) -> Server:
    """Ask a server about itself."""
    row = _one(connection, "server")
    return Server(int(row[0]), *row[1:])


def check(server: Server, place: Place) -> None:
    """Raise what is wrong with a server for the use that is asked for."""
    if server.version // 10_000 < SERVER_MIN:
        raise errors.UnsafeStore(
            f"{place.shown} has version {server.version // 10_000}; Limpet needs {SERVER_MIN} or later.",
            hint="Upgrade the server.",
            facts={"version": server.version},
        )
    if server.encoding != "UTF8":
        raise errors.UnsafeStore(
            f"{place.shown} keeps text as {server.encoding}, which can't hold every name.",
            hint="Create the database with: createdb -E UTF8 -T template0 NAME",
        )
    if server.recovering or server.read_only:
        what = (
            "is a replica" if server.recovering else "is read-only (default_transaction_read_only)"
        )
        raise errors.StoreReadOnly(
            f"{place.shown} {what} and takes no writes.",
            hint="Name the primary in the URL, or all hosts and target_session_attrs=read-write.",
        )
    if LEVELS.index(server.level) < LEVELS.index(place.durability):
        raise errors.UnsafeStore(
            f"{place.shown} can't hold the durability {place.durability}: {_weakness(server)}; it holds {server.level}.",
            hint=f"Change that on the server, or ask for less: ?durability={server.level} in the URL.",
            facts={"asked": place.durability, "holds": server.level},
        )


def _weakness(server: Server) -> str:
    weak = [
        f"{name} is off"
        for name, on in (
            ("synchronous_commit", server.synchronous_commit != "off"),
            ("fsync", server.fsync),
            ("full_page_writes", server.full_page_writes),
        )
        if not on
    ]
    return ", ".join(weak)


def prepare(place: Place) -> Server:
    """Look at the server, lift the schema if it is older, and make sure that tenants are apart."""
    with connections.upkeep(place) as owner:
        server = look(owner)
        check(server, place)
        found = version(owner, place)
        _check_might(owner, place, makes=not found)
        if found < len(MIGRATIONS):
            lift(owner, place, {at: names.sql(file) for at, file in enumerate(MIGRATIONS, 1)})
        _check_role(owner, place)
    with translate.at(place.shown), contextlib.closing(connections.connect(place)) as user:
        check_isolation(user, place)
    return server


def exists(place: Place) -> bool:
    """Whether the schema holds a store."""
    with connections.upkeep(place) as owner:
        return version(owner, place) > 0


def version(connection: Connection, place: Place) -> int:
    """Return the schema's version, 0 if there is none; raise NewerStore for one that is not known here."""
    if not _one(connection, "is_there")[0]:
        if _one(connection, "hidden", schema=place.schema)[0]:
            raise _hidden(connection, place)
        if _one(connection, "is_used")[0]:
            raise _in_the_way(place)
        return 0
    row = connection.execute(_sql("version"), prepare=False).fetchone()
    said = bytes(row[0]) if row else b""
    if not _VERSION.fullmatch(said):
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


def _in_the_way(place: Place) -> errors.NotAStore:
    return errors.NotAStore(
        f"the schema {place.schema} of {place.shown} is in the way: it holds something else.",
        hint="Choose another with ?schema=NAME in the URL. Nothing was changed.",
    )


def _hidden(connection: Connection, place: Place) -> errors.UnsafeStore:
    user = _one(connection, "user")[0]
    return errors.UnsafeStore(
        f"{place.shown} has a schema {place.schema}, and {user} may not look into it.",
        hint=f"If it is a store, let its owner or an administrator run: GRANT {place.role} TO {user}",
        facts={"schema": place.schema, "role": place.role},
    )


def lift(owner: Connection, place: Place, steps: Mapping[int, str]) -> None:
    """Run what is missing, each step in a transaction of its own, one process at a time.

    Nobody is kept waiting for long: a step that does not get its locks at once gives way and tries again.
    """
    with connections.unhurried(owner), _alone(owner, place):
        _set_up(owner, place)
        for step in sorted(steps):
            for last in (*[False] * TRIES_MAX, True):
                if version(owner, place) >= step or _stepped(
                    owner, place, step, steps[step], last=last
                ):
                    break


def _set_up(owner: Connection, place: Place) -> None:
    """Make the role and the schema; raise UnsafeStore with all that an administrator has to run, if not both can be."""
    has_schema = _found(owner, names.named("opening.sql")["schema"], name=place.schema)
    lacking = _make_role(owner, place)
    if not has_schema and not _one(owner, "may_create_schema")[0]:
        lacking.append("CREATE SCHEMA {schema} AUTHORIZATION {user}")
    if lacking:
        raise _not_set_up(owner, place, lacking)
    if not has_schema:
        owner.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.schema)))


def _stepped(owner: Connection, place: Place, step: int, text: str, *, last: bool) -> bool:
    try:
        with owner.transaction():
            owner.execute(_sql("hurry"))
            owner.execute(text.encode())
            _grant(owner, place)
            owner.execute(_sql("set_version"), {"version": str(step).encode()}, prepare=False)
    except psycopg.errors.LockNotAvailable:
        if last:
            raise
        owner.execute(_sql("rest"))
        return False
    return True


@contextlib.contextmanager
def _alone(owner: Connection, place: Place) -> Iterator[None]:
    """Hold the right to migrate. It ends with the connection at the latest."""
    owner.execute(_sql("lock"), {"name": place.channel}, prepare=False)
    try:
        yield
    finally:
        owner.execute(_sql("unlock"), {"name": place.channel}, prepare=False)


def _make_role(owner: Connection, place: Place) -> list[str]:
    """See to it that the role is there, and that this user may take it; return what only others can do of it."""
    roles = names.named("roles.sql")
    if not _found(owner, roles["role"], role=place.role):
        if not _found(owner, roles["may_create_roles"]):
            return [_CREATE_ROLE, _JOIN_ROLE]
        # Roles are one for all databases of a server: somebody may be at it in another one.
        with contextlib.suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            owner.execute(_role_sql("create_role", place))
    if not _found(owner, roles["may_set_role"], role=place.role):
        try:
            owner.execute(_role_sql("join_role", place))
        except psycopg.errors.InsufficientPrivilege:
            return [_JOIN_ROLE]
    return []


def _grant(owner: Connection, place: Place) -> None:
    """Let the role use the tables, and nothing else."""
    for name in ("revoke_public", "grant_schema", "grant_tables", "grant_functions"):
        owner.execute(_role_sql(name, place))
    direct = names.named("roles.sql")["direct"].encode()
    for (statement,) in owner.execute(direct, {"role": place.role}, prepare=False).fetchall():
        owner.execute(statement.encode())


def _role_sql(name: str, place: Place) -> sql.Composed:
    text = cast("Any", names.named("roles.sql")[name])
    return sql.SQL(text).format(
        role=sql.Identifier(place.role), schema=sql.Identifier(place.schema)
    )


def _not_set_up(owner: Connection, place: Place, lacking: Sequence[str]) -> errors.UnsafeStore:
    user = _one(owner, "user")[0]
    run = "; ".join(one.format(role=place.role, schema=place.schema, user=user) for one in lacking)
    # Row-level security binds nobody who owns a table.
    wanted = [f"a role {place.role} that {user} may take"] * (_JOIN_ROLE in lacking)
    wanted += [f"a schema {place.schema} that {user} owns"] * any(
        "SCHEMA" in one for one in lacking
    )
    return errors.UnsafeStore(
        f"{place.shown} is not set up for a store: it needs {' and '.join(wanted)}, which {user} may not make.",
        hint=f"Let an administrator run in this database: {run}",
        facts={"role": place.role, "schema": place.schema},
    )


def _check_might(owner: Connection, place: Place, *, makes: bool) -> None:
    """Raise UnsafeStore, before anything is made, for a role that no policy binds. `makes`: tables will be this user's."""
    statement = names.named("roles.sql")["might"].encode()
    row = owner.execute(statement, {"role": place.role}, prepare=False).fetchone()
    mighty, owns = row or (False, False)
    if mighty or (makes and owns):
        raise _not_apart(place, place.role, mighty=mighty)


def _not_apart(place: Place, role: str, *, mighty: bool) -> errors.UnsafeStore:
    if mighty:
        wrong = f"the role {role} is a superuser or has BYPASSRLS"
        fix = "Leave ?role= out of the URL, or name a role there that is no superuser and has no BYPASSRLS."
        if place.role == ROLE:
            fix = f"Run: ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS"
        return _unsafe(place, role, wrong, fix)
    fix = "Name a role that owns nothing with ?role=NAME in the URL."
    return _unsafe(place, role, f"the role {role} owns the store's tables", fix)


def _check_role(owner: Connection, place: Place) -> None:
    roles = names.named("roles.sql")
    if not _found(owner, roles["role"], role=place.role):
        raise _not_set_up(owner, place, [_CREATE_ROLE, _JOIN_ROLE])
    if not _found(owner, roles["may_set_role"], role=place.role):
        raise _not_set_up(owner, place, [_JOIN_ROLE])


def check_isolation(user: Connection, place: Place) -> None:
    """Try out that the role sees nothing as long as no tenant is named, and can't see to it that it does."""
    who, mighty, owns, barred, bare, gone = _one(user, "isolation", tables=list(OURS))
    if mighty or owns:
        raise _not_apart(place, str(who), mighty=mighty)
    if barred:
        raise errors.StoreReadOnly(
            f"the role {who} may not use the schema {place.schema} of {place.shown}.",
            hint="Name the role that the store was made for with ?role=NAME in the URL, or let its owner"
            f" GRANT that role TO {who}.",
            facts={"role": str(who)},
        )
    if gone:
        raise errors.Corrupt(
            f"{place.shown} has not all of the store's tables: {', '.join(gone)} of the schema {place.schema} is missing.",
            hint="Nothing was changed. Restore a backup into a new store: limpet restore BACKUP URL.",
            facts={"missing": len(gone)},
        )
    if bare:
        wrong = f"row-level security is not forced on {', '.join(bare)}"
        fix = f"Run: ALTER TABLE {place.schema}.{bare[0]} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
    elif _one(user, "anything")[0]:
        wrong = "rows are seen though no tenant is named"
        fix = f"Drop every policy in {place.schema} that is not Limpet's."
    else:
        return
    raise _unsafe(place, str(who), wrong, fix)


def _unsafe(place: Place, role: str, wrong: str, fix: str) -> errors.UnsafeStore:
    return errors.UnsafeStore(
        f"tenants of {place.shown} would not be kept apart: {wrong}.",
        hint=fix,
        facts={"role": role},
    )


def _sql(name: str) -> bytes:
    return names.named("opening.sql")[name].encode()


def _one(connection: Connection, name: str, **values: object) -> tuple[Any, ...]:
    row = connection.execute(_sql(name), values or None, prepare=False).fetchone()
    assert row is not None, "a row always comes"
    return row


def _found(connection: Connection, statement: str, **values: object) -> bool:
    row = connection.execute(statement.encode(), values or None, prepare=False).fetchone()
    return bool(row and row[0])
