"""The settings in the URL of a store on Redis, parsed and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

from limpet import errors, limits
from limpet.stores import urls
from limpet.stores.port import DURABILITY_LEVELS

SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")

_DEFAULT_PREFIX: Final = "limpet"
_PREFIX_CHARS_MAX: Final = 64
_TLS_OPTIONS: Final = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
_OPTIONS: Final = ("prefix", "durability", "waitaof", "timeout_s", "connections", *_TLS_OPTIONS)
_SECONDS_MAX: Final = 86_400.0
_CONNECTIONS_MAX: Final = 10_000
_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]+")


class RedisDsn(msgspec.Struct, frozen=True, kw_only=True):
    """A server, or one of a cluster's, and how it is talked to."""

    host: str
    port: int
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: Mapping[str, str] | None = None
    cluster: bool = False
    prefix: str = _DEFAULT_PREFIX
    durability: str | None = None
    waitaof: bool = False
    timeout_s: float = limits.SERVER_RESPONSE_S
    connections: int = limits.SERVER_CONNECTIONS

    @property
    def shown(self) -> str:
        """What errors and people are told: never a password."""
        scheme = ("rediss" if self.tls is not None else "redis") + ("+cluster" * self.cluster)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}" + (f"/{self.database}" if self.database else "")

    def __repr__(self) -> str:
        """Say where it is: a traceback may show it."""
        return f"Place({self.shown})"

    def at(self, host: str, port: int) -> RedisDsn:
        """Return another server of the same cluster."""
        return msgspec.structs.replace(self, host=host, port=port)


def parse_url(url: str) -> RedisDsn:
    """Return the place that a URL names; raise InvalidRequest for what can't be one."""
    urls.check_credentials(url)
    parts = urls.split_url(url)
    # Neither error is quoted, nor kept as the cause: what it quotes may be a password with a slip before it.
    try:
        port = parts.port or 6379
    except ValueError:
        raise _bad_url_error("the port in the URL is no number up to 65535") from None
    try:
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _bad_url_error("an option in the URL is not written as name=value") from None
    host = unquote(parts.hostname or "localhost")
    urls.check_host(host)
    cluster = parts.scheme.endswith("+cluster")
    if unknown := sorted(set(given) - set(_OPTIONS)):
        close = urls.closest_name(unknown[0], _OPTIONS)
        ours = f"Options are {', '.join(_OPTIONS)}."
        raise errors.InvalidRequest(
            f"{unknown[0]!r} is no option of a Redis store.", hint=f"Did you mean {close}=? {ours}" if close else ours
        )
    secure = parts.scheme.startswith("rediss")
    if not secure and (extra := sorted(set(given) & set(_TLS_OPTIONS))):
        raise _bad_url_error(f"{extra[0]!r} is for rediss:// only")
    return RedisDsn(
        host=host,
        port=port,
        database=_database(parts.path, cluster=cluster),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls={_TLS_OPTIONS[name]: given[name] for name in _TLS_OPTIONS if name in given} if secure else None,
        cluster=cluster,
        prefix=_prefix(given.get("prefix", _DEFAULT_PREFIX)),
        durability=_durability(given.get("durability")),
        waitaof=_waitaof(given.get("waitaof", "0")),
        timeout_s=_positive_number("timeout_s", given, limits.SERVER_RESPONSE_S, _SECONDS_MAX),
        connections=_connections(given.get("connections")),
    )


def _database(path: str, *, cluster: bool) -> int:
    number = path.strip("/")
    if not number:
        return 0
    if cluster:
        raise _bad_url_error("a cluster has just one database: its URL has no path")
    if not (number.isascii() and number.isdigit()):
        raise _bad_url_error("what stands behind the host and its / is the number of a database")
    return int(number)


def _prefix(text: str) -> str:
    # A brace would be taken for the part of a key that says where in a cluster it lies.
    if len(text) > _PREFIX_CHARS_MAX or not _PREFIX_PATTERN.fullmatch(text):
        raise _bad_url_error("a prefix is made of letters, digits, - and _")
    return text


def _durability(text: str | None) -> str | None:
    if text is not None and text not in DURABILITY_LEVELS:
        raise _bad_url_error(f"durability is one of {', '.join(DURABILITY_LEVELS)}")
    return text


def _waitaof(text: str) -> bool:
    if text not in ("0", "1"):
        raise _bad_url_error("waitaof is 0 or 1")
    return text == "1"


def _connections(text: str | None) -> int:
    if text is None:
        return limits.SERVER_CONNECTIONS
    if not (re.fullmatch("[0-9]{1,5}", text) and 0 < int(text) <= _CONNECTIONS_MAX):
        raise _bad_url_error(f"connections is a whole number from 1 to {_CONNECTIONS_MAX:,}")
    return int(text)


def _positive_number(name: str, given: Mapping[str, str], default: float, most: float) -> float:
    try:
        number = float(given.get(name, default))
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise _bad_url_error(f"{name} is a number above 0, up to {most:g}")
    return number


def _bad_url_error(why: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"{why}.", hint="Write redis://user:password@host:6379/0?durability=power-loss, for instance."
    )
