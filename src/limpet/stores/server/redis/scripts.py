"""The Lua scripts by name: source, SHA-1 and whether a script writes.

Each file in `lua/` holds several scripts, each below a line `-- name: x FLAGS`. The flags are
`writes`; `repeatable` (writes, but may be sent twice); `derived` (needs the functions for derived
rows); `no-tenant` (needs no functions). A script is sent in full once and then called by its SHA-1.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

import msgspec

_HEADER = "-- name: "


class LuaScript(msgspec.Struct, frozen=True):
    """A script, its SHA-1, and whether it changes anything that must be durable."""

    source: bytes
    sha1: bytes
    writes: bool


@cache
def load_script(name: str) -> LuaScript:
    """Return a script by its name."""
    sections = _load_sections()
    flags, text = sections[name]
    # A script flagged `no-writes` runs on a server whose memory is full; the others are refused there as a whole.
    parts = ["#!lua\n" if "writes" in flags else "#!lua flags=no-writes\n"]
    if "no-tenant" not in flags:
        parts.append(sections["common"][1])
    if "derived" in flags:
        parts.append(sections["derived_rows"][1])
    source = "".join((*parts, text)).encode()
    sha1 = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
    return LuaScript(source, sha1, "writes" in flags and "repeatable" not in flags)


@cache
def _load_sections() -> dict[str, tuple[frozenset[str], str]]:
    """Return flags and text of each section of all files, by its name."""
    sections: dict[str, tuple[frozenset[str], str]] = {}
    for file in resources.files(__package__).joinpath("lua").iterdir():
        for section in file.read_text("utf-8").split(_HEADER)[1:]:
            header, text = section.split("\n", 1)
            name, *flags = header.split()
            assert name not in sections, "two scripts have one name"
            sections[name] = frozenset(flags), text.rstrip("\n") + "\n"
    return sections
