"""Importing Limpet is free of surprises, and its public names are in order."""

from __future__ import annotations

import json
import subprocess
import sys

import limpet

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
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True
    )
    seen = json.loads(run.stdout)
    assert set(seen["loaded"]) <= RUNTIME
    assert seen["threads"] == 1
    assert seen["sockets"] == 0


def test_public_names_are_sorted_and_exist():
    names = list(limpet.__all__)
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(limpet, name)] == []


def test_public_names_are_all_that_is_meant_to_be_public():
    """A name that is importable but unlisted is a promise that nobody decided on."""
    rooms = {
        name.split(".")[1]
        for name in sys.modules
        if name.startswith("limpet.") and not name.split(".")[1].startswith("_")
    }
    public = {name for name in vars(limpet) if not name.startswith("_")}
    assert public - set(limpet.__all__) - rooms - {"annotations"} == set()
