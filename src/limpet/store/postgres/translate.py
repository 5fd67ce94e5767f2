"""PostgreSQL's errors as ours: the one table, applied at the edge of the adapter, the cause kept."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping

import psycopg

from limpet import errors
from limpet.store import cases
from limpet.store.cases import AGAIN, Case

_LOGIN = Case(
    errors.InvalidRequest,
    "does not let this user in",
    "Check user, password and database in the URL (or ~/.pgpass), and pg_hba.conf on the server.",
)
_NO_DATABASE = Case(
    errors.InvalidRequest,
    "has no such database",
    "Create it on that server with: createdb {name}, or name another in the URL.",
)
_URL = Case(
    errors.InvalidRequest,
    "can't be reached with this URL",
    "Put right in the URL what it names: postgresql://user@host:5432/database?sslmode=require, for instance.",
)
_PLAIN = Case(
    errors.InvalidRequest,
    "speaks no TLS, and the URL asks for it",
    "Leave sslmode= out of the URL, or set up ssl on the server.",
)
_OTHER = Case(errors.InvalidRequest, "is no PostgreSQL", "Check the host and the port in the URL.")
_NOWHERE = Case(
    errors.Unavailable,
    "is not found by the name of its host",
    "Check the host in the URL; where it is right, see to the network's names (DNS), then retry.",
)
_CROWDED = Case(
    errors.StoreBusy,
    "has no connection left",
    "Raise max_connections there, or give each process fewer with ?connections=4 in the URL.",
)
_STARTING = Case(errors.Unavailable, "is starting, stopping or recovering", AGAIN)
_CUT = Case(errors.Unavailable, "ended the connection", AGAIN)
_READ_ONLY = Case(
    errors.StoreReadOnly,
    "takes no writes: it is a replica, or was made read-only",
    "Name the primary in the URL, or all hosts and target_session_attrs=read-write.",
)
_SLOW = Case(
    errors.Unavailable,
    "did not answer in time",
    f"{AGAIN} ?timeout_s=60 in the URL waits longer.",
)
_RIGHTS = Case(
    errors.StoreReadOnly,
    "forbids it",
    "Let the store's owner open it once, or grant the rights that docs/how-to/use-postgres.md lists.",
)
_DAMAGED = Case(
    errors.Corrupt,
    "found damage",
    "Nothing was changed. `limpet verify` says how far it goes; a backup can replace it.",
)
_GONE = Case(
    errors.Corrupt,
    "has not all of the store's tables and functions",
    "Put them back from a backup; or, to begin anew, drop what is left of the schema.",
)

_FULL = Case(
    errors.StoreFull,
    "has no space left on its disk",
    "Nothing was written; free some space there and retry.",
)

_CASES = {
    "28": _LOGIN, "28P01": _LOGIN, "3D000": _NO_DATABASE,
    "53300": _CROWDED, "57P03": _STARTING, "57P01": _CUT, "57P02": _CUT, "57P05": _CUT, "08": _CUT,
    "25006": _READ_ONLY, "57014": _SLOW, "42501": _RIGHTS,
    "53100": _FULL,
    "53": Case(errors.Unavailable, "is short of memory or other resources", AGAIN),
    "55P03": Case(errors.StoreBusy, "waited too long for a lock", "Retry; look for a long transaction in pg_stat_activity."),
    "40": Case(errors.Unavailable, "undid it in favour of another transaction", AGAIN),
    "58": Case(errors.Unavailable, "could not read or write a file", "See the server's log; then retry."),
    "58P01": _DAMAGED, "XX001": _DAMAGED, "XX002": _DAMAGED, "22": _DAMAGED, "23": _DAMAGED,
    "42P01": _GONE, "42703": _GONE, "42883": _GONE, "42704": _GONE,
    "42804": _GONE, "3F000": _GONE,
}  # fmt: skip

# Where no row of a store is looked into, a value that does not fit says nothing about the store.
_UPKEEP = {code: case for code, case in _CASES.items() if code != "22"}
# A file that may not grow, by a quota or a limit, is an internal error of the server's.
_INTERNAL = "XX000"
_NO_ROOM = r"could not (extend|write to) file|[Dd]isk quota exceeded|File too large|No space left"

# Of a connection that was refused libpq tells no code, only the text.
_TEXTS = (
    (r"the database system is ", _STARTING),
    (r"too many |connection slots", _CROWDED),
    (
        r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|not permitted to log in",
        _LOGIN,
    ),
    (r"database .* does not exist", _NO_DATABASE),
    (r"invalid (?:integer value|port number|\S+ value)", _URL),
    (r"does not support SSL, but SSL was required", _PLAIN),
    (r"invalid response to SSL|expected authentication request", _OTHER),
    (r"failed to resolve host|could not translate host name", _NOWHERE),
    (r"session is read-only|is not read-only|in hot standby mode|not accept", _READ_ONLY),
    (r"timeout expired", _SLOW),
)
_NOISE = (
    r"^connection (?:failed|is bad): ",
    r'connection to server (?:at "[^"]*"(?: \([^)]*\))?, port \d+|on socket "[^"]*") failed: ',
    r"^FATAL: +",
    r" *Is the server running [^?]*\?",
)
_AWAY = Case(
    errors.Unavailable, "does not answer", "Check that it runs and that host and port are right."
)


def of(error: Exception, shown: str, table: Mapping[str, Case] = _CASES) -> errors.Error:
    """Return our error for one of PostgreSQL's or the system's."""
    code = getattr(error, "sqlstate", None) or ""
    text = cases.said(error)
    case = table.get(code) or table.get(code[:2]) if code else _by_text(error, text)
    facts: dict[str, object] = {"server": shown, "sqlstate": code} if code else {"server": shown}
    if code == _INTERNAL and re.search(_NO_ROOM, text):
        case = _FULL
    if case is _CUT:
        facts["cut"] = True
    hint = _hint(case, text) if case is not None else ""
    return cases.of(case, shown, _plain(text), facts, hint)


def _plain(text: str) -> str:
    """Return what was said, without what is said of the server anyhow."""
    for noise in _NOISE:
        text = re.sub(noise, "", text)
    return text.strip()


def _hint(case: Case, text: str) -> str:
    if case is not _NO_DATABASE:
        return case.hint
    name = re.search(r'database "([^"]*)"', text)
    return case.hint.format(name=shlex.quote(name[1]) if name else "NAME")


def _by_text(error: Exception, text: str) -> Case | None:
    if isinstance(error, TimeoutError):
        return _SLOW
    if not isinstance(error, (psycopg.OperationalError, OSError)):
        return None
    refused = text.partition("FATAL:")[2] or text
    for said, case in _TEXTS:
        if re.search(said, refused):
            return case
    return _AWAY if re.search("connection failed|connection to server|could not", text) else _CUT


@contextlib.contextmanager
def at(shown: str) -> Iterator[None]:
    """Translate whatever PostgreSQL raises in the body."""
    with _translated(shown, _CASES):
        yield


@contextlib.contextmanager
def at_upkeep(shown: str) -> Iterator[None]:
    """Translate whatever PostgreSQL raises in a body that looks into no row of a store."""
    with _translated(shown, _UPKEEP):
        yield


@contextlib.contextmanager
def _translated(shown: str, table: Mapping[str, Case]) -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, OSError) as error:
        raise of(error, shown, table) from error
