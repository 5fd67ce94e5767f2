"""Where a store on PostgreSQL is: what its URL says, taken apart and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec
import psycopg
from psycopg import conninfo

from holdfast import errors, limits
from holdfast.store import urls
from holdfast.store.levels import LEVELS

SCRUBS: Final = ("full", "plain")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A database, and how a store in it is used. `conninfo` may hold a password; `shown` never does."""

    conninfo: str
    shown: str
    schema: str = "holdfast"
    role: str = "holdfast_app"
    durability: str = "power-loss"
    scrub: str = "full"
    timeout_s: float = limits.SERVER_ANSWER_S
    connections: int = limits.SERVER_CONNECTIONS

    def __repr__(self) -> str:
        return f"Place({self.shown}, schema={self.schema})"

    @property
    def channel(self) -> str:
        """What news of the store is told on."""
        return f"holdfast:{self.schema}"


def of(url: str) -> Place:
    """Return the place that a URL names; raise InvalidRequest for one that names none."""
    urls.check_user(url)
    parts = urls.parts(url)
    asked = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in asked if name in _CHECKS}
    rest = urlencode([(name, value) for name, value in asked if name not in _CHECKS])
    # Put together by hand: urlunsplit leaves out the // where there is no host.
    named = f"{parts.scheme}://{parts.netloc}{parts.path}" + (f"?{rest}" if rest else "")
    try:
        # What libpq is not told gets a bound: nothing waits for ever.
        told = {**_KEEPALIVE, **conninfo.conninfo_to_dict(named)}
    except (psycopg.Error, ValueError) as error:
        # Without its cause: that quotes the URL with its password, and a traceback would show it.
        raise errors.InvalidRequest(
            f"this is no URL of a PostgreSQL database: {_without_secret(error, parts.password)}.",
            hint="Write postgresql://user@host:5432/database, with libpq's options after a ?.",
        ) from None
    for host in str(told.get("host") or "").split(","):
        if not host.startswith(("/", "@")):
            urls.check_host(host)
    for name, value in ours.items():
        check, form = _CHECKS[name]
        if not re.fullmatch(check, value):
            raise errors.InvalidRequest(f"{name}={value} in the URL of the store: write {form}.")
    return Place(
        conninfo=conninfo.make_conninfo("", **told),
        shown=_shown(told),
        schema=ours.get("schema", "holdfast"),
        role=ours.get("role", "holdfast_app"),
        durability=ours.get("durability", "power-loss"),
        scrub=ours.get("scrub", "full"),
        timeout_s=float(ours.get("timeout_s", limits.SERVER_ANSWER_S)),
        connections=int(ours.get("connections", limits.SERVER_CONNECTIONS)),
    )


_CHECKS: Final = {
    "schema": (_NAME.pattern, "up to 40 small letters, digits and underscores"),
    "role": (_NAME.pattern, "up to 40 small letters, digits and underscores"),
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
    "application_name": "holdfast",
    "client_encoding": "utf8",
}


def _shown(told: Mapping[str, object]) -> str:
    host = told.get("host") or told.get("hostaddr") or "the local socket"
    port = f":{told['port']}" if told.get("port") else ""
    return f"PostgreSQL at {host}{port}/{told.get('dbname') or ''}".rstrip("/")


def _without_secret(error: Exception, password: str | None) -> str:
    text = str(error).strip().rstrip(".")
    return text.replace(password, "…") if password else text
