"""The scripts that run on the server, by name. They are sent once, and then called by their sum."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Final

import msgspec

_WRITES: Final = frozenset(
    {
        "apply",
        "forget_keys",
        "put_note",
        "unguard",
        "build_begin",
        "build",
        "swap",
        "clean",
        "add_pending",
        "set_pending",
        "shelf_write",
    }
)
_DERIVES: Final = frozenset({"apply", "build", "clean", "census"})
_ALONE: Final = frozenset(
    {"add_pending", "set_pending", "shelf_write", "shelf_scan", "shelf_lasts"}
)
"""Scripts about no tenant."""


_REPEATABLE: Final = frozenset({"unguard"})
"""Scripts that write, but nothing that has to be kept, and that may be sent again."""


class Script(msgspec.Struct, frozen=True):
    """A script, its sum, and whether it changes what has to be kept."""

    source: bytes
    sum: bytes
    writes: bool


@cache
def named(name: str) -> Script:
    """Return a script by its name."""
    # A script that says that it only reads runs on a server that is full; one that writes is refused there as a whole.
    first = "#!lua\n" if name in _WRITES else "#!lua flags=no-writes\n"
    parts = [] if name in _ALONE else ["common"]
    parts += ["deriving"] * (name in _DERIVES)
    source = (first + "".join(_text(part) for part in (*parts, name))).encode()
    sum_ = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return Script(source, sum_, name in _WRITES - _REPEATABLE)


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")
