"""URLs of stores, as far as all backends read them alike."""

from __future__ import annotations

import re
from typing import Final

from holdfast import errors

_SECRET: Final = re.compile(r"([?&](?:ssl)?password=)[^&#]*")
_END: Final = re.compile(r"[/?#]")


def shown(url: object) -> str:
    """Return a path or a URL as it may be printed: without its password."""
    scheme, joint, rest = str(url).partition("://")
    # A password may hold anything, even what should have been written otherwise: it ends at the last @.
    who, at, where = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    hidden = f"{user}:***@{where}" if at and colon else rest
    return scheme + joint + _SECRET.sub(r"\1***", hidden) if joint else scheme


def check_user(url: str) -> None:
    """Raise InvalidRequest if it is not clear where the user and the password of a URL end."""
    rest = url.partition("://")[2]
    authority = _END.split(rest, maxsplit=1)[0]
    if authority.count("@") > 1 or ("@" in rest and "@" not in authority):
        raise errors.InvalidRequest(
            "it is not clear where the password ends and the host begins in the URL of the store.",
            hint="Percent-encode what is special in a password: @ as %40, : as %3A, / as %2F, ? as %3F, # as %23.",
        )
