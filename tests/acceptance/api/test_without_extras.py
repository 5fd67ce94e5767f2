"""A plain installation is enough: no verb that needs no extra imports a library of an extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# What the extras install, by import name. The command line's own libraries are in every environment that runs it.
LIBRARIES = {
    "anthropic": "anthropic",
    "numpy": "numpy",
    "openai": "openai",
    "psycopg": "psycopg",
    "redis": "redis",
    "threadpoolctl": "threadpoolctl",
}

# Read by every child before anything else: an import of one of these fails as if it were not installed.
REFUSE = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(LIBRARIES.values())!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""

COMMANDS = [
    "status", "verify", "retention --keep 30d", "sessions list", "sessions show s", "context s", "frames list", "events tail",
    "suspensions list", "search Oslo --user ada", "memory list ada", "memory profile ada", "memory queue",
    "worker --once", "worker --status", "rebuild", "export --output all.jsonl", "backup copy.db", "erase s --yes",
    "memory forget ada --yes",
]  # fmt: skip


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """The environment of a child that has none of the libraries."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(REFUSE)
    found = os.pathsep.join([str(tmp_path / "hook"), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": found, "LIMPET_DEBUG": "1"}


def run(environment: dict[str, str], folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_list_is_that_of_the_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = {re.split(r"[>=\[]", one)[0] for extra in extras.keys() - {"cli"} for one in extras[extra]}
    assert named == LIBRARIES.keys()


def test_the_libraries_are_out_of_reach(plain: dict[str, str], tmp_path: Path):
    for name in LIBRARIES.values():
        with pytest.raises(AssertionError, match="No module named"):
            run(plain, tmp_path, "-c", f"import {name}")


def test_every_public_name_can_be_imported(plain: dict[str, str], tmp_path: Path):
    program = """
import importlib, limpet
for module in ["limpet", *(f"limpet.{name}" for name in dir(limpet) if name.islower())]:
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError as error:
        assert error.name == module, error  # a function, not a module
        continue
    for name in dir(holder):
        getattr(holder, name)
print("all")
"""
    assert run(plain, tmp_path, "-c", program) == "all\n"


def test_programs_and_commands_need_no_extra(plain: dict[str, str], tmp_path: Path):
    program = """
import limpet
with limpet.connect("state.db", memory=True) as lp:
    session = lp.sessions.create_session("s", user_id="ada", system="You plan trips.")
    session.add_message({"role": "user", "content": "I live in Oslo and I like tea."})
    lp.index.push_frame(limpet.Scope(actor_id="planner", session_id="s"), goal="plan", budget=1_000)
    lp.sessions.create_session("t", user_id="ada").add_message({"role": "user", "content": "I am allergic to nuts."})
    lp.sessions.end_session("t")
    lp.worker().run_once()
    print(len(lp.archive.search("Oslo", user_id="ada")), len(lp.memory.facts("ada")) > 0)
    print(lp.memory.forget("ada").sessions)
    for name in ("s", "t"):
        lp.sessions.create_session(name, user_id="ada").add_message({"role": "user", "content": "I like tea in Oslo."})
"""
    assert run(plain, tmp_path, "-c", program).split() == ["1", "True", "2"]
    for command in COMMANDS:
        run(plain, tmp_path, "-m", "limpet", *command.split())
