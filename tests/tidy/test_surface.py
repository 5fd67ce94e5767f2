"""Importing Limpet is free of surprises, and its public names are few, listed and complete."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types

import pytest

import limpet
from tests.tidy import public_types

PUBLIC_NAMES_MAX = 40

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


# Types in signatures of methods that only the package itself calls, and that show on public classes. May only shrink.
UNNAMED_TYPES = {
    "Bootstrap",
    "CommandRequest",
    "CommandResult",
    "Engine",
    "Ranking",
    "SessionFiles",
    "Sessions",
    "Settings",
}


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
