"""The Lua scripts by name: source, SHA-1 and whether a script writes.

A script is sent in full once and then called by its SHA-1. Scripts flagged `no-writes` also run on
a server whose memory is full; the others are refused there as a whole.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Final

import msgspec

_WRITING_SCRIPTS: Final = frozenset(
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
_SCRIPTS_WITH_DERIVED: Final = frozenset({"apply", "build", "clean", "census"})
_SCRIPTS_WITHOUT_TENANT: Final = frozenset(
    {"add_pending", "set_pending", "shelf_write", "shelf_scan", "shelf_lasts"}
)
"""Scripts about no tenant."""


_REPEATABLE_SCRIPTS: Final = frozenset({"unguard"})
"""Scripts that write, but nothing that has to be kept, and that may be sent again."""


class LuaScript(msgspec.Struct, frozen=True):
    """A script, its sum, and whether it changes what has to be kept."""

    source: bytes
    sha1: bytes
    writes: bool


@cache
def load_script(name: str) -> LuaScript:
    """Return a script by its name."""
    # A script that says that it only reads runs on a server that is full; one that writes is refused there as a whole.
    first = "#!lua\n" if name in _WRITING_SCRIPTS else "#!lua flags=no-writes\n"
    parts = [] if name in _SCRIPTS_WITHOUT_TENANT else ["common"]
    parts += ["deriving"] * (name in _SCRIPTS_WITH_DERIVED)
    source = (first + "".join(_lua_text(part) for part in (*parts, name))).encode()
    sum_ = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return LuaScript(source, sum_, name in _WRITING_SCRIPTS - _REPEATABLE_SCRIPTS)


def _lua_text(name: str) -> str:
    return resources.files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")
