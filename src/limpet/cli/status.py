"""`limpet status`: where the store is, how large, how durable, what it holds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import cast

from limpet import errors
from limpet.cli import exits, figures, target
from limpet.cli.options import Common
from limpet.cli.surface import Face, Glyphs, Surface
from limpet.core.values.frame_state import SuspensionStatus
from limpet.core.values.json_values import Json
from limpet.wiring import Limpet

_DURABILITY = {
    "power-loss": "power-loss safe",
    "process-crash": "survives a crash of the process, not of the machine",
    "none": "none: gone with the process",
}


_SERVERS_SETTINGS = (
    "fsync", "full_page_writes", "synchronous_commit", "appendonly", "appendfsync",
    "no-appendfsync-on-rewrite", "waitaof",
)  # fmt: skip

_LIBRARIES = {
    "sqlite": ("apsw",),
    "files": ("apsw",),
    "postgres": ("psycopg", "psycopg-binary"),
    "redis": ("redis", "hiredis"),
}
"""What a backend is reached with."""


def run(store: str | None, common: Common) -> int:
    """Print the store's facts."""
    surface = Surface(as_json=common.json, quiet=common.quiet)
    with target.opened(common, store) as lp:
        facts = read(lp, common.tenant)
    if surface.face is Face.JSON:
        surface.document(facts)
    elif surface.face is Face.PIPE:
        for name, value in _flat(facts):
            surface.row(name, value)
    else:
        surface.facts(lines(facts, surface.glyphs))
        for note in facts.get("notes", ()):
            surface.console.print(f"{surface.glyphs.warn} {note}", style="yellow")
    return exits.DONE


def read(lp: Limpet, tenant: str = "default") -> dict[str, Json]:
    """Return the store's facts, how many frames of a tenant are open, and who reads them."""
    import limpet  # noqa: PLC0415 - the package is still loading when this module is

    open_frames = len(lp.index.list_frames(limit=sys.maxsize))
    facts: dict[str, Json] = {**lp.admin.status(), "limpet": limpet.__version__}
    known = tenant == "default" or tenant in cast("Mapping[str, Json]", facts.get("heads") or {})
    if known:
        facts["open_frames"] = {tenant: open_frames}
    if found := _installed(str(facts.get("backend"))):
        facts["libraries"] = found
    if known and (behind := _behind(lp)):
        facts["behind"] = {tenant: behind}
    return facts


def _installed(backend: str) -> dict[str, str]:
    from importlib import metadata  # noqa: PLC0415 - slow to import

    found: dict[str, str] = {}
    for name in _LIBRARIES.get(backend, ()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _behind(lp: Limpet) -> dict[str, Json]:
    """Return how far archive and memory of a tenant are behind its log; nothing if nobody has begun either.

    None for an archive that can't be read now.
    """
    archive: int | None = None
    with contextlib.suppress(errors.Corrupt, errors.Unavailable):
        if not lp.archive.size():
            return {}
        archive = lp.archive.behind()
    queue = lp.memory.queue()
    dead = sum(one.dead for one in queue)
    return {
        "archive": archive,
        "memory": lp.memory.behind(),
        "waiting": len(queue) - dead,
        "given_up": dead,
    }


def _flat(facts: Mapping[str, Json], above: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(cast("dict[str, Json]", value), f"{above}{name}.")
        elif isinstance(value, list):
            for item in cast("list[Json]", value):
                yield above + name, item
        else:
            yield above + name, value


def lines(facts: Mapping[str, Json], glyphs: Glyphs) -> list[tuple[str, str]]:
    """Return what a person wants to know first, as names and values."""
    dot, cut = glyphs.dot, glyphs.cut
    heads: Mapping[str, Mapping[str, Json]] = facts.get("heads", {})
    product = facts.get("product", facts.get("backend"))
    level = _DURABILITY.get(str(facts.get("durability")), "?")
    versions = [f"limpet {facts.get('limpet')}", *_libraries(facts)]
    if "schema" in facts:
        versions.insert(0, f"schema {facts['schema']}")
    return [
        ("store", f"{facts.get('store', facts.get('server'))}  ({product} {_version(facts)})"),
        *_size(facts),
        ("durability", f" {dot} ".join([level, ", ".join(_settings(facts))]).rstrip(f" {dot}")),
        ("log", _log(facts, heads, cut)),
        *([("holds", _holds(facts, dot))] if "holds" in facts else []),
        *_files(facts, dot),
        *_late(facts, dot),
        ("versions", f" {dot} ".join(versions)),
    ]


def _version(facts: Mapping[str, Json]) -> str:
    """Return the version of what keeps the store: of a library, or of the server."""
    return str(facts.get("version", facts.get(str(facts.get("backend")), "")))


def _size(facts: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    if "bytes" in facts:
        free = f", {figures.size(facts['bytes_free'])} free" if "bytes_free" in facts else ""
        yield "size", f"{figures.size(facts['bytes'])}{free}"


def _settings(facts: Mapping[str, Json]) -> Iterator[str]:
    """Yield the settings on which durability rests: those of SQLite in words, those of a server by name."""
    if facts.get("backend") == "files":
        yield "each line of the journal synced and checksummed"
    elif "journal_mode" in facts:
        yield str(facts["journal_mode"]).upper()
        synchronous = {2: "FULL", 3: "EXTRA"}.get(facts.get("synchronous", 0), "not FULL")
        yield f"synchronous {synchronous}"
        yield "page checksums" if facts.get("page_checksums") else "no page checksums"
    yield from (f"{name} {facts[name]}" for name in _SERVERS_SETTINGS if name in facts)


def _libraries(facts: Mapping[str, Json]) -> Iterator[str]:
    for name, version in cast("dict[str, str]", facts.get("libraries", {})).items():
        yield f"{name} {version}"


def _holds(facts: Mapping[str, Json], dot: str) -> str:
    held: Mapping[str, Mapping[str, int]] = facts.get("holds", {})
    sessions = held.get("session", {})
    told = [
        f"{figures.count(sum(sessions.values()), 'session')} ({sessions.get('active', 0):,} active)"
    ]
    if "tree" in held:
        for tenant, count in cast("dict[str, int]", facts.get("open_frames", {})).items():
            whose = "" if list(facts.get("heads", {})) == [tenant] else f" of {tenant}"
            told.append(f"{figures.count(count, 'open frame')}{whose}")
        asked = held.get("suspension", {}).get(SuspensionStatus.WAITING, 0)
        told.append(f"{figures.count(asked, 'approval')} waiting")
    return f" {dot} ".join(told)


def _files(facts: Mapping[str, Json], dot: str) -> Iterator[tuple[str, str]]:
    match facts.get("session_files"):
        case {"files": int(files), "lagging": int(lagging), "edited": int(edited)}:
            told = [figures.count(files, "session file")]
            told += [f"{lagging:,} behind the log"] if lagging else []
            told += [f"{edited:,} changed by hand, or damaged"] if edited else []
            others = int(facts["session_files"].get("others", 0))
            told += [f"{others:,} beside them that Limpet did not write"] if others else []
            yield "files", f" {dot} ".join(told)
        case _:
            return


def _late(facts: Mapping[str, Json], dot: str) -> Iterator[tuple[str, str]]:
    for tenant, late in cast("dict[str, dict[str, int | None]]", facts.get("behind", {})).items():
        whose = "" if list(facts.get("heads", {})) == [tenant] else f" of {tenant}"
        archive, waiting, dead = late["archive"], late["waiting"] or 0, late["given_up"] or 0
        told = [
            "archive can't be read now"
            if archive is None
            else f"archive {figures.count(archive, 'event')}",
            f"memory {figures.count(late['memory'] or 0, 'event')}",
        ]
        if waiting:
            told.append(f"{figures.count(waiting, 'conversation')} waiting")
        if dead:
            told.append(f"{figures.count(dead, 'conversation')} given up")
        late_at_all = archive is None or any(late.values())
        yield f"behind{whose}", f" {dot} ".join(told) if late_at_all else "nothing"


def _log(facts: Mapping[str, Json], heads: Mapping[str, Mapping[str, Json]], cut: str) -> str:
    events = figures.count(facts.get("events", 0), "event")
    if len(heads) != 1:
        return f"{events} of {figures.count(len(heads), 'tenant')}"
    link = str(next(iter(heads.values())).get("link", ""))
    return f"{events}, chain head {link[:4]}{cut}{link[-4:]}"
