"""Importing Limpet is free of surprises, and its public names are few, listed and complete."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import limpet
from tests.tidy import public_types

PUBLIC_NAMES_MAX = 40
DOCS = Path(__file__).resolve().parents[2] / "docs"

# msgspec takes typing_extensions where something else has brought it along, as the test tools do.
RUNTIME = {"apsw", "limpet", "msgspec", "typing_extensions"}

# Runs alone in a fresh interpreter: this one has loaded pytest and everything else.
PROBE = """
import json, socket, sys, threading

sockets = []
class Watched(socket.socket):
    def __init__(self, *args, **kwargs):
        sockets.append(args)
        super().__init__(*args, **kwargs)
socket.socket = Watched

before = set(sys.modules)
import limpet
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({
    "loaded": sorted(loaded - set(sys.stdlib_module_names)),
    "threads": threading.active_count(),
    "sockets": len(sockets),
}))
"""


def test_import_is_light():
    run = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True)
    seen = json.loads(run.stdout)
    assert set(seen["loaded"]) <= RUNTIME
    assert seen["threads"] == 1
    assert seen["sockets"] == 0


# Types in signatures of constructors that only the package itself calls. May only shrink.
UNNAMED_TYPES: set[str] = set()

# Names on values that pages for users do not mention: what a state keeps for its rules. May only shrink.
UNDOCUMENTED = {
    "ContextPack": {"conversation_moment"},
    "Frame": {
        "completed_us", "created_us", "deadline_us", "handle_count", "handle_pages", "state_size", "stood_us",
        "updated_us",
    },
    "SessionState": {
        "active_us", "created_us", "full_metadata", "handed_more", "ordinal_began", "pins", "preview", "rebased",
        "turn_ordinal", "uncarried_count",
    },
    "Window": {"summary_at"},
}  # fmt: skip


def test_root_has_few_names():
    assert len(limpet.__all__) <= PUBLIC_NAMES_MAX


@pytest.mark.parametrize("package", public_types.PACKAGES)
def test_listed_names_exist_and_are_listed_once(package: str):
    module = importlib.import_module(package)
    names = list(module.__all__)
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", public_types.PACKAGES)
def test_dir_shows_what_can_be_imported(package: str):
    module = importlib.import_module(package)
    shown = {name for name in dir(module) if not name.startswith("__")}
    modules = {name for name in shown if isinstance(getattr(module, name), types.ModuleType)}
    assert shown - modules == set(module.__all__)
    assert modules == (set(limpet._MODULES) if module is limpet else set())


def test_public_modules_need_no_import_of_their_own():
    code = "import limpet; " + "; ".join(f"limpet.{name}" for name in limpet._MODULES)
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_types_of_public_signatures_are_public():
    assert public_types.unnamed_types() == UNNAMED_TYPES


def held_by_blocking_callers() -> Iterator[object]:
    """Yield one of everything that callers hold."""
    with limpet.connect("volatile:") as lp:
        session = lp.sessions.create_session("s")
        frame = lp.index.push_frame(limpet.Scope("actor"), goal="goal", budget=1_000)
        moment = lp.events.at(1)
        yield from (lp, lp.sessions, lp.index, lp.events, lp.admin, lp.archive, lp.memory, lp.archive.tool("ada"))
        yield from (session, session.state, session.messages, session.at(1), moment, moment.diff(moment))
        yield from (session.window(1_000), limpet.Message("user", "x"), limpet.StateManager(1_000))
        yield from (frame, lp.index.assemble_context_pack(limpet.Scope("actor")))


async def held_by_async_callers() -> list[object]:
    async with limpet.connect_async("volatile:") as lp:
        session, moment = await lp.sessions.create_session("s"), await lp.events.at(1)
        return [
            lp, lp.sessions, lp.index, lp.events, lp.admin, lp.archive, lp.memory, lp.archive.tool("ada"),
            session, session.messages, await session.at(1), moment, moment.diff(moment),
        ]  # fmt: skip


def test_what_callers_hold_shows_only_what_is_documented():
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md") if "internals" not in path.parts)
    words = set(re.findall(r"\w+", pages))
    for value in [*held_by_blocking_callers(), *asyncio.run(held_by_async_callers())]:
        shown = {name for name in dir(value) if not name.startswith("_")}
        unknown = shown - words - UNDOCUMENTED.get(type(value).__name__, set())
        assert not unknown, f"{type(value).__name__}: {sorted(unknown)}"
