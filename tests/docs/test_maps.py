"""The map in a room's README has every file of the room, once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOMS = Path(__file__).resolve().parents[2] / "src" / "limpet"
READMES = sorted(path for path in ROOMS.rglob("README.md") if "| file |" in path.read_text("utf-8"))
ROW = re.compile(r"^\| (`[^|]+) \|", re.MULTILINE)


def wrong(readme: str, files: set[str], below: set[str]) -> dict[str, int]:
    """Return the files that a map does not have once, and those that are not there; how often it has each.

    Files of rooms below may be on it.
    """
    named = Counter(
        name for row in ROW.findall(readme) for name in re.findall(r"`([^`/]+\.py)`", row)
    )
    every = files | (set(named) - below)
    return {name: named[name] for name in every if named[name] != (name in files)}


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_file_is_on_the_map_once(readme: Path):
    files = {path.name for path in readme.parent.glob("*.py")} - {"__init__.py"}
    below = {path.name for path in readme.parent.glob("*/**/*.py")}
    assert wrong(readme.read_text("utf-8"), files, below) == {}


def test_there_are_maps():
    assert {"engine", "store", "values"} <= {path.parent.name for path in READMES}


def test_a_map_that_lacks_a_file_or_has_one_too_many_is_caught():
    readme = "| file | holds |\n|---|---|\n| `a.py`, `b.py` | x |\n| `b.py`, `d.py` | `c.py` |\n"
    assert wrong(readme, {"a.py", "b.py", "c.py"}, set()) == {"b.py": 2, "c.py": 0, "d.py": 1}
    assert wrong(readme, {"a.py", "b.py"}, {"d.py"}) == {"b.py": 2}
