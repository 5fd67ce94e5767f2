"""Where a store on PostgreSQL is: what its URL says, taken apart and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec
import psycopg
from psycopg import conninfo

from limpet import errors, limits
from limpet.store import urls
from limpet.store.levels import LEVELS

SCRUBS: Final = ("full", "plain")
ROLE: Final = "limpet_app"
_NAME = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,39}")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A database, and how a store in it is used. `conninfo` may hold a password; `shown` never does."""

    conninfo: str
    shown: str
    schema: str = "limpet"
    role: str = ROLE
    durability: str = "power-loss"
    scrub: str = "full"
    timeout_s: float = limits.SERVER_RESPONSE_S
    connections: int = limits.SERVER_CONNECTIONS

    def __repr__(self) -> str:
        return f"Place({self.shown}, schema={self.schema})"

    @property
    def channel(self) -> str:
        """What news of the store is told on."""
        return f"limpet:{self.schema}"


def of(url: str) -> Place:
    """Return the place that a URL names; raise InvalidRequest for one that names none."""
    urls.check_user(url)
    urls.parts(url)
    named, ours = _parted(url)
    try:
        # What libpq is not told gets a bound: nothing waits for ever.
        told = {**_KEEPALIVE, **conninfo.conninfo_to_dict(named)}
    except (psycopg.Error, ValueError) as error:
        # Without its cause: that quotes the URL with its password, and a traceback would show it.
        raise errors.InvalidRequest(
            f"this is no URL of a PostgreSQL database: {_without_secret(error, named)}.",
            hint=_slip(str(error)),
        ) from None
    for host in str(told.get("host") or "").split(","):
        if not host.startswith(("/", "@")):
            urls.check_host(host)
    for name, value in ours.items():
        check, form = _CHECKS[name]
        if not re.fullmatch(check, value):
            raise errors.InvalidRequest(
                f"{name}={value} in the URL of the store is not what it can be.",
                hint=f"For {name} write {form}.",
            )
    return Place(
        conninfo=conninfo.make_conninfo("", **told),
        shown=_shown(told),
        schema=ours.get("schema", "limpet"),
        role=ours.get("role", ROLE),
        durability=ours.get("durability", "power-loss"),
        scrub=ours.get("scrub", "full"),
        timeout_s=float(ours.get("timeout_s", limits.SERVER_RESPONSE_S)),
        connections=int(ours.get("connections", limits.SERVER_CONNECTIONS)),
    )


def _parted(url: str) -> tuple[str, dict[str, str]]:
    """Return what of a URL is libpq's, letter by letter as it is written, and the options that are ours."""
    before, _, query = url.partition("#")[0].partition("?")
    ours: dict[str, str] = {}
    theirs: list[str] = []
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        if unquote(name) in _CHECKS:
            ours[unquote(name)] = unquote(value)
        else:
            theirs.append(option)
    scheme, joint, rest = before.partition("://")
    return scheme.lower() + joint + rest + ("?" + "&".join(theirs) if theirs else ""), ours


def _slip(said: str) -> str:
    """Return what to write in the place of an option that nobody knows, or of a whole URL."""
    unknown = re.search(r'query parameter: "([^"]*)"', said)
    if unknown is None:
        return "Write postgresql://user@host:5432/database, with libpq's options after a ?."
    ours = f"Beside libpq's, options are {', '.join(_CHECKS)}."
    close = urls.meant(unknown[1], (*_CHECKS, *_libpq()))
    return f"Did you mean {close}=? {ours}" if close else ours


def _libpq() -> list[str]:
    return [option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()]


_FORM: Final = "up to 40 small letters, digits and underscores that do not begin with pg_"
_CHECKS: Final = {
    "schema": (_NAME.pattern, _FORM),
    "role": (_NAME.pattern, _FORM),
    "durability": ("|".join(LEVELS), " or ".join(LEVELS)),
    "scrub": ("|".join(SCRUBS), " or ".join(SCRUBS)),
    "timeout_s": (r"[1-9][0-9]{0,4}(\.[0-9]+)?|0\.[0-9]*[1-9]", "seconds, such as 30"),
    "connections": ("[2-9]|[1-9][0-9]{1,2}", "a number from 2 to 999"),
}

_KEEPALIVE: Final = {
    "connect_timeout": str(limits.SERVER_CONNECT_S),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "limpet",
    "client_encoding": "utf8",
}


def _shown(told: Mapping[str, object]) -> str:
    told = {**_surroundings(), **told}
    host = told.get("host") or told.get("hostaddr") or "the local socket"
    port = f":{told['port']}" if told.get("port") else ""
    return f"PostgreSQL at {host}{port}/{told.get('dbname') or ''}".rstrip("/")


def _surroundings() -> dict[str, str]:
    """Return what libpq takes from PG… variables where it is told nothing."""
    options = psycopg.pq.Conninfo.get_defaults()
    return {
        option.keyword.decode(): option.val.decode(errors="replace")
        for option in options
        if option.envvar and option.val is not None and option.val != option.compiled
    }


def _without_secret(error: Exception, named: str) -> str:
    text = str(error).strip().rstrip(".").replace(named, urls.shown(named))
    password = named.partition("://")[2].rpartition("@")[0].partition(":")[2]
    return text.replace(password, "…") if password else text
