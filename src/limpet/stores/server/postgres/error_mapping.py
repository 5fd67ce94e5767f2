"""Maps PostgreSQL and system errors to `limpet.errors`: one table, keeping the cause."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator

import psycopg

from limpet import errors
from limpet.errors import RETRY_HINT
from limpet.stores.server.driver import TIMEOUT, UNKNOWN_HOST, ErrorCase, error_text, mapped_error

_LOGIN = ErrorCase(
    errors.InvalidRequest,
    "does not let this user in",
    "Check user, password and database in the URL (or ~/.pgpass), and pg_hba.conf on the server.",
)
_NO_DATABASE = ErrorCase(
    errors.InvalidRequest,
    "has no such database",
    "Create it on that server with: createdb {name}, or name another in the URL.",
)
_BAD_URL = ErrorCase(
    errors.InvalidRequest,
    "can't be reached with this URL",
    "Put right in the URL what it names: postgresql://user@host:5432/database?sslmode=require, for instance.",
)
_NO_TLS = ErrorCase(
    errors.InvalidRequest,
    "speaks no TLS, and the URL asks for it",
    "Leave sslmode= out of the URL, or set up ssl on the server.",
)
_NOT_POSTGRES = ErrorCase(errors.InvalidRequest, "is no PostgreSQL", "Check the host and the port in the URL.")
_TOO_MANY_CONNECTIONS = ErrorCase(
    errors.StoreBusy,
    "has no connection left",
    "Raise max_connections there, or give each process fewer with ?connections=4 in the URL.",
)
_STARTING = ErrorCase(errors.Unavailable, "is starting, stopping or recovering", RETRY_HINT)
_CONNECTION_ENDED = ErrorCase(errors.Unavailable, "ended the connection", RETRY_HINT)
_READ_ONLY = ErrorCase(
    errors.StoreReadOnly,
    "takes no writes: it is a replica, or was made read-only",
    "Name the primary in the URL, or all hosts and target_session_attrs=read-write.",
)
_FORBIDDEN = ErrorCase(
    errors.StoreReadOnly,
    "forbids it",
    "Let the store's owner open it once, or grant the rights that docs/how-to/use-postgres.md lists.",
)
_DAMAGED = ErrorCase(
    errors.Corrupt,
    "found damage",
    "Nothing was changed. `limpet verify` says how far it goes; a backup can replace it.",
)
_TABLES_MISSING = ErrorCase(
    errors.Corrupt,
    "has not all of the store's tables and functions",
    "Put them back from a backup; or, to begin anew, drop what is left of the schema.",
)

_DISK_FULL = ErrorCase(
    errors.StoreFull, "has no space left on its disk", "Nothing was written; free some space there and retry."
)

_CASES_BY_SQLSTATE = {
    "28": _LOGIN, "28P01": _LOGIN, "3D000": _NO_DATABASE,
    "53300": _TOO_MANY_CONNECTIONS, "57P03": _STARTING, "57P01": _CONNECTION_ENDED, "57P02": _CONNECTION_ENDED, "57P05": _CONNECTION_ENDED, "08": _CONNECTION_ENDED,
    "25006": _READ_ONLY, "57014": TIMEOUT, "42501": _FORBIDDEN,
    "53100": _DISK_FULL,
    "53": ErrorCase(errors.Unavailable, "is short of memory or other resources", RETRY_HINT),
    "55P03": ErrorCase(errors.StoreBusy, "waited too long for a lock", "Retry; look for a long transaction in pg_stat_activity."),
    "40": ErrorCase(errors.Unavailable, "undid it in favour of another transaction", RETRY_HINT),
    "58": ErrorCase(errors.Unavailable, "could not read or write a file", "See the server's log; then retry."),
    "58P01": _DAMAGED, "XX001": _DAMAGED, "XX002": _DAMAGED, "22": _DAMAGED, "23": _DAMAGED,
    "42P01": _TABLES_MISSING, "42703": _TABLES_MISSING, "42883": _TABLES_MISSING, "42704": _TABLES_MISSING,
    "42804": _TABLES_MISSING, "3F000": _TABLES_MISSING,
}  # fmt: skip

# The server reports a quota or a limit of a file's size as an internal error.
_INTERNAL_ERROR = "XX000"
_DISK_FULL_PATTERN = r"could not (extend|write to) file|[Dd]isk quota exceeded|File too large|No space left"

# For a refused connection libpq has no code, only a text.
_CASES_BY_TEXT = (
    (r"the database system is ", _STARTING),
    (r"too many |connection slots", _TOO_MANY_CONNECTIONS),
    (r"authentication failed|no password supplied|pg_hba\.conf|role .* does not exist|not permitted to log in", _LOGIN),
    (r"database .* does not exist", _NO_DATABASE),
    (r"invalid (?:integer value|port number|\S+ value)", _BAD_URL),
    (r"does not support SSL, but SSL was required", _NO_TLS),
    (r"invalid response to SSL|expected authentication request", _NOT_POSTGRES),
    (r"failed to resolve host|could not translate host name", UNKNOWN_HOST),
    (r"session is read-only|is not read-only|in hot standby mode|not accept", _READ_ONLY),
    (r"timeout expired", TIMEOUT),
)
_REDUNDANT_PATTERNS = (
    r"^connection (?:failed|is bad): ",
    r'connection to server (?:at "[^"]*"(?: \([^)]*\))?, port \d+|on socket "[^"]*") failed: ',
    r"^FATAL: +",
    r" *Is the server running [^?]*\?",
)
_UNREACHABLE = ErrorCase(errors.Unavailable, "does not answer", "Check that it runs and that host and port are right.")


def to_error(error: Exception, shown: str, *, owner: bool = False) -> errors.Error:
    """Return the Limpet error. `owner`: no row of a store was read, so a value that does not fit is no damage."""
    code = getattr(error, "sqlstate", None) or ""
    text = error_text(error)
    cases = _CASES_BY_SQLSTATE
    case = cases.get(code) or cases.get(code[:2]) if code else _case_by_text(error, text)
    if owner and code.startswith("22"):
        case = None
    facts: dict[str, object] = {"server": shown, "sqlstate": code} if code else {"server": shown}
    if code == _INTERNAL_ERROR and re.search(_DISK_FULL_PATTERN, text):
        case = _DISK_FULL
    if case is _CONNECTION_ENDED:
        facts["cut"] = True
    hint = _hint(case, text) if case is not None else ""
    return mapped_error(case, shown, _without_redundant_text(text), facts, hint)


def _without_redundant_text(text: str) -> str:
    for noise in _REDUNDANT_PATTERNS:
        text = re.sub(noise, "", text)
    return text.strip()


def _hint(case: ErrorCase, text: str) -> str:
    if case is not _NO_DATABASE:
        return case.hint
    name = re.search(r'database "([^"]*)"', text)
    return case.hint.format(name=shlex.quote(name[1]) if name else "NAME")


def _case_by_text(error: Exception, text: str) -> ErrorCase | None:
    if isinstance(error, TimeoutError):
        return TIMEOUT
    if not isinstance(error, (psycopg.OperationalError, OSError)):
        return None
    refused = text.partition("FATAL:")[2] or text
    for pattern, case in _CASES_BY_TEXT:
        if re.search(pattern, refused):
            return case
    return _UNREACHABLE if re.search("connection failed|connection to server|could not", text) else _CONNECTION_ENDED


@contextlib.contextmanager
def translate_errors(shown: str, *, owner: bool = False) -> Iterator[None]:
    """Raise errors of PostgreSQL and the system in the body as Limpet errors; `owner` as for `to_error`."""
    try:
        yield
    except (psycopg.Error, OSError) as error:
        raise to_error(error, shown, owner=owner) from error
