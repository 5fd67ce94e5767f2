"""Redis's errors as ours: the one table, applied at the edge of the adapter, the cause kept."""

from __future__ import annotations

from typing import Final

import redis
from redis import exceptions

from limpet import errors
from limpet.store import cases
from limpet.store.cases import AGAIN, Case
from limpet.store.redis.place import Place

KINDS: Final = (redis.RedisError, OSError)
"""What the driver and the system raise."""


_LOGIN = Case(
    errors.InvalidRequest,
    "does not let this user in",
    "Check user and password in the URL: redis://user:password@host:6379.",
)
_RIGHTS = Case(
    errors.StoreReadOnly,
    "forbids it to this user",
    "Grant it: ACL SETUSER {user} ~{prefix}:* &{prefix}:* +@all -@dangerous +info +config|get +bgrewriteaof +bgsave",
)
_CROWDED = Case(
    errors.StoreBusy,
    "has no connection left",
    "Raise maxclients there, or run fewer processes.",
)
_CERTIFICATE = Case(
    errors.InvalidRequest,
    "has a certificate that is not trusted here",
    "Name the file of the authority that signed it: rediss://host?ca=/path/ca.pem.",
)
_NO_SUCH_NUMBER = Case(
    errors.InvalidRequest,
    "has no database of that number",
    "Take another number at the end of the URL, such as /0, or raise databases on the server.",
)
_NO_CLUSTER = Case(
    errors.InvalidRequest,
    "is a single server, and no cluster",
    "Write {single}:// in the place of {single}+cluster:// in the URL.",
)
_PLAIN = Case(
    errors.InvalidRequest,
    "speaks no TLS",
    "Write redis:// in the place of rediss:// in the URL, or name the port that speaks it.",
)
_NOWHERE = Case(
    errors.Unavailable,
    "is not found by the name of its host",
    "Check the host in the URL; where it is right, see to the network's names (DNS), then retry.",
)
_READ_ONLY = Case(
    errors.StoreReadOnly,
    "takes no writes: it is a replica",
    "Name the primary in the URL.",
)
_MEMORY = Case(
    errors.StoreFull,
    "has no memory left",
    "Nothing was written; reading goes on. Raise maxmemory there, then retry.",
)
_DISK = Case(
    errors.StoreFull,
    "can't write to its disk",
    "Nothing was written. Free space on the server's disk, see its log, then retry.",
)
_SLOW = Case(
    errors.Unavailable,
    "did not answer in time",
    f"{AGAIN} ?timeout_s=60 in the URL waits longer.",
)
_LOADING = Case(errors.Unavailable, "is starting and reads its files", AGAIN)
_BUSY = Case(errors.Unavailable, "is busy with a script", AGAIN)
_CLUSTER = Case(
    errors.Unavailable,
    "is a cluster that does not hold together now",
    f"{AGAIN} CLUSTER INFO on the server says what is missing.",
)
_ONE_OF_MANY = Case(
    errors.InvalidRequest,
    "is part of a cluster",
    "Write redis+cluster:// in the place of redis:// in the URL.",
)
_AWAY = Case(
    errors.Unavailable,
    "does not answer",
    f"Check that it runs, that host and port are right, and that Redis or Valkey listens there. {AGAIN}",
)
_DAMAGED = Case(
    errors.Corrupt,
    "holds something else than was written",
    "`limpet verify` says how far it goes; a backup can replace it.",
)
_UNKNOWN = Case(
    errors.InvalidRequest,
    "does not know a command that is needed",
    "Limpet needs Redis 7 or Valkey 8, with scripts and streams allowed.",
)

_CODES: Final = {
    "NOAUTH": _LOGIN, "WRONGPASS": _LOGIN, "NOPERM": _RIGHTS, "READONLY": _READ_ONLY, "OOM": _MEMORY,
    "MISCONF": _DISK, "LOADING": _LOADING, "BUSY": _BUSY, "CLUSTERDOWN": _CLUSTER, "TRYAGAIN": _CLUSTER,
    "MOVED": _ONE_OF_MANY, "ASK": _CLUSTER, "CROSSSLOT": _CLUSTER, "MASTERDOWN": _AWAY,
    "WRONGTYPE": _DAMAGED, "LIMPET": _DAMAGED, "NOREPLICAS": Case(errors.StoreReadOnly, "takes no writes without its replicas", "Bring its replicas back, or lower min-replicas-to-write."),
}  # fmt: skip

_KINDS: Final[tuple[tuple[type[Exception], Case], ...]] = (
    (exceptions.BusyLoadingError, _LOADING),
    (exceptions.AuthenticationError, _LOGIN),
    (exceptions.NoPermissionError, _RIGHTS),
    (exceptions.ReadOnlyError, _READ_ONLY),
    (exceptions.OutOfMemoryError, _MEMORY),
    (exceptions.MovedError, _ONE_OF_MANY),
    (exceptions.ClusterError, _CLUSTER),
    (exceptions.ClusterDownError, _CLUSTER),
    (exceptions.AskError, _CLUSTER),
    (exceptions.TryAgainError, _CLUSTER),
    (exceptions.TimeoutError, _SLOW),
    (TimeoutError, _SLOW),
)
"""The driver takes the code off some messages, and tells it by the class."""

_TEXTS: Final = (
    ("DB index is out of range", _NO_SUCH_NUMBER),
    ("cluster support disabled", _NO_CLUSTER),
    ("WRONG_VERSION_NUMBER", _PLAIN),
    ("wrong version number", _PLAIN),
    ("record layer failure", _PLAIN),
    ("Name or service not known", _NOWHERE),
    ("nodename nor servname", _NOWHERE),
    ("No address associated with hostname", _NOWHERE),
    ("Temporary failure in name resolution", _NOWHERE),
    ("max number of clients", _CROWDED),
    ("Bad data format", _DAMAGED),
    ("CERTIFICATE_VERIFY_FAILED", _CERTIFICATE),
    ("unknown command", _UNKNOWN),
    ("-OOM ", _MEMORY),
    ("-MISCONF ", _DISK),
    ("-READONLY ", _READ_ONLY),
    ("OOM command not allowed", _MEMORY),
    ("MISCONF", _DISK),
    ("ACL failure in script", _RIGHTS),
    ("No permissions", _RIGHTS),
    ("can't run this command or subcommand", _RIGHTS),
)


def of(error: Exception, place: Place) -> errors.Error:
    """Return our error for one of the driver's or the system's."""
    text = cases.said(error)
    case = _case(error, text)
    hint = _hint(case, place) if case is not None else ""
    return cases.of(case, place.shown, text, {"server": place.shown}, hint)


def _hint(case: Case, place: Place) -> str:
    single = "redis" if place.tls is None else "rediss"
    hint = case.hint.format(user=place.user or "default", prefix=place.prefix, single=single)
    if case is _SLOW and place.tls is not None:
        # One without TLS waits for the rest of what it takes for a command.
        return f"{hint} If it speaks no TLS, write redis:// in the place of rediss://."
    return hint


def _case(error: Exception, text: str) -> Case | None:
    for part, case in _TEXTS:
        if part in text:
            return case
    for kind, case in _KINDS:
        if isinstance(error, kind):
            return case
    if isinstance(error, redis.ResponseError):
        return _CODES.get(text.partition(" ")[0])
    return _AWAY if isinstance(error, (redis.ConnectionError, OSError)) else None
