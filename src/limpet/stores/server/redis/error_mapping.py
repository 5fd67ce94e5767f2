"""Maps Redis and system errors to `limpet.errors`: one table, keeping the cause."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import redis
from redis import exceptions

from limpet import errors
from limpet.errors import RETRY_HINT
from limpet.stores.server.driver import TIMEOUT, UNKNOWN_HOST, ErrorCase, error_text, mapped_error

if TYPE_CHECKING:
    from limpet.stores.server.redis.connections import RedisDsn

DRIVER_ERRORS: Final = (redis.RedisError, OSError)
"""Errors of the client library and the system."""

_LOGIN = ErrorCase(
    errors.InvalidRequest,
    "does not let this user in",
    "Check user and password in the URL: redis://user:password@host:6379.",
)
_FORBIDDEN = ErrorCase(
    errors.StoreReadOnly,
    "forbids it to this user",
    "Grant it: ACL SETUSER {user} ~{prefix}:* &{prefix}:* +@all -@dangerous +info +config|get +bgrewriteaof +bgsave",
)
_TOO_MANY_CONNECTIONS = ErrorCase(
    errors.StoreBusy, "has no connection left", "Raise maxclients there, or run fewer processes."
)
_CERTIFICATE = ErrorCase(
    errors.InvalidRequest,
    "has a certificate that is not trusted here",
    "Name the file of the authority that signed it: rediss://host?ca=/path/ca.pem.",
)
_NO_DATABASE = ErrorCase(
    errors.InvalidRequest,
    "has no database of that number",
    "Take another number at the end of the URL, such as /0, or raise databases on the server.",
)
_NO_CLUSTER = ErrorCase(
    errors.InvalidRequest,
    "is a single server, and no cluster",
    "Write {single}:// in the place of {single}+cluster:// in the URL.",
)
_NO_TLS = ErrorCase(
    errors.InvalidRequest,
    "speaks no TLS",
    "Write redis:// in the place of rediss:// in the URL, or name the port that speaks it.",
)
_READ_ONLY = ErrorCase(errors.StoreReadOnly, "takes no writes: it is a replica", "Name the primary in the URL.")
_OUT_OF_MEMORY = ErrorCase(
    errors.StoreFull, "has no memory left", "Nothing was written; reading goes on. Raise maxmemory there, then retry."
)
_DISK_ERROR = ErrorCase(
    errors.StoreFull,
    "can't write to its disk",
    "Nothing was written. Free space on the server's disk, see its log, then retry.",
)
_LOADING = ErrorCase(errors.Unavailable, "is starting and reads its files", RETRY_HINT)
_BUSY = ErrorCase(errors.Unavailable, "is busy with a script", RETRY_HINT)
_CLUSTER_DOWN = ErrorCase(
    errors.Unavailable,
    "is a cluster that does not hold together now",
    f"{RETRY_HINT} CLUSTER INFO on the server says what is missing.",
)
_PART_OF_CLUSTER = ErrorCase(
    errors.InvalidRequest, "is part of a cluster", "Write redis+cluster:// in the place of redis:// in the URL."
)
_UNREACHABLE = ErrorCase(
    errors.Unavailable,
    "does not answer",
    f"Check that it runs, that host and port are right, and that Redis or Valkey listens there. {RETRY_HINT}",
)
_DAMAGED = ErrorCase(
    errors.Corrupt,
    "holds something else than was written",
    "`limpet verify` says how far it goes; a backup can replace it.",
)
_UNKNOWN_COMMAND = ErrorCase(
    errors.InvalidRequest,
    "does not know a command that is needed",
    "Limpet needs Redis 7 or Valkey 8, with scripts and streams allowed.",
)

_CASES_BY_CODE: Final = {
    "NOAUTH": _LOGIN, "WRONGPASS": _LOGIN, "NOPERM": _FORBIDDEN, "READONLY": _READ_ONLY, "OOM": _OUT_OF_MEMORY,
    "MISCONF": _DISK_ERROR, "LOADING": _LOADING, "BUSY": _BUSY, "CLUSTERDOWN": _CLUSTER_DOWN, "TRYAGAIN": _CLUSTER_DOWN,
    "MOVED": _PART_OF_CLUSTER, "ASK": _CLUSTER_DOWN, "CROSSSLOT": _CLUSTER_DOWN, "MASTERDOWN": _UNREACHABLE,
    "WRONGTYPE": _DAMAGED, "LIMPET": _DAMAGED, "NOREPLICAS": ErrorCase(errors.StoreReadOnly, "takes no writes without its replicas", "Bring its replicas back, or lower min-replicas-to-write."),
}  # fmt: skip

_CASES_BY_TYPE: Final[tuple[tuple[type[Exception], ErrorCase], ...]] = (
    (exceptions.BusyLoadingError, _LOADING),
    (exceptions.AuthenticationError, _LOGIN),
    (exceptions.NoPermissionError, _FORBIDDEN),
    (exceptions.ReadOnlyError, _READ_ONLY),
    (exceptions.OutOfMemoryError, _OUT_OF_MEMORY),
    (exceptions.MovedError, _PART_OF_CLUSTER),
    (exceptions.ClusterError, _CLUSTER_DOWN),
    (exceptions.ClusterDownError, _CLUSTER_DOWN),
    (exceptions.AskError, _CLUSTER_DOWN),
    (exceptions.TryAgainError, _CLUSTER_DOWN),
    (exceptions.TimeoutError, TIMEOUT),
    (TimeoutError, TIMEOUT),
)
"""The client library removes the code of some errors from the message, and expresses it by the class."""

_CASES_BY_TEXT: Final = (
    ("DB index is out of range", _NO_DATABASE),
    ("cluster support disabled", _NO_CLUSTER),
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("wrong version number", _NO_TLS),
    ("record layer failure", _NO_TLS),
    ("Name or service not known", UNKNOWN_HOST),
    ("nodename nor servname", UNKNOWN_HOST),
    ("No address associated with hostname", UNKNOWN_HOST),
    ("Temporary failure in name resolution", UNKNOWN_HOST),
    ("max number of clients", _TOO_MANY_CONNECTIONS),
    ("Bad data format", _DAMAGED),
    ("CERTIFICATE_VERIFY_FAILED", _CERTIFICATE),
    ("unknown command", _UNKNOWN_COMMAND),
    ("-OOM ", _OUT_OF_MEMORY),
    ("-MISCONF ", _DISK_ERROR),
    ("-READONLY ", _READ_ONLY),
    ("OOM command not allowed", _OUT_OF_MEMORY),
    ("MISCONF", _DISK_ERROR),
    ("ACL failure in script", _FORBIDDEN),
    ("No permissions", _FORBIDDEN),
    ("can't run this command or subcommand", _FORBIDDEN),
)


def to_error(error: Exception, place: RedisDsn) -> errors.Error:
    text = error_text(error)
    case = _find_case(error, text)
    hint = _hint(case, place) if case is not None else ""
    return mapped_error(case, place.shown, text, {"server": place.shown}, hint)


def _hint(case: ErrorCase, place: RedisDsn) -> str:
    single = "redis" if place.tls is None else "rediss"
    hint = case.hint.format(user=place.user or "default", prefix=place.prefix, single=single)
    if case is TIMEOUT and place.tls is not None:
        # A server without TLS takes the handshake for a command, and waits for its end.
        return f"{hint} If it speaks no TLS, write redis:// in the place of rediss://."
    return hint


def _find_case(error: Exception, text: str) -> ErrorCase | None:
    for part, case in _CASES_BY_TEXT:
        if part in text:
            return case
    for kind, case in _CASES_BY_TYPE:
        if isinstance(error, kind):
            return case
    if isinstance(error, redis.ResponseError):
        return _CASES_BY_CODE.get(text.partition(" ")[0])
    return _UNREACHABLE if isinstance(error, (redis.ConnectionError, OSError)) else None


@contextlib.contextmanager
def translate_errors(place: RedisDsn) -> Iterator[None]:
    """Raise errors of the client library and the system in the body as Limpet errors."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise to_error(error, place) from error


def checked_answer(answer: object, place: RedisDsn) -> object:
    """Return an answer; raise the error for the refusal of a command."""
    if isinstance(answer, Exception):
        raise to_error(answer, place) from answer
    return answer
