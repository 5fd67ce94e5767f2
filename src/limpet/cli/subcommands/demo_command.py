"""`limpet demo`: finds the demo among the package's data, or in a clone, and plays it.

The demo is the package `demo` of the folder `examples`. A wheel carries it as `limpet/_examples/demo`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import limpet
from limpet.cli import exit_codes
from limpet.cli.options import OutputOptions


def play_demo(*, keep: str | None, fast: bool, printing: OutputOptions) -> int:
    """Play the demo in this process; return its exit code."""
    folder = str(_examples_folder())
    sys.path.insert(0, folder)
    # The agent is a process of its own, and must find the same demo.
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + others if others else "")
    command = importlib.import_module("demo.command")
    return command.run(keep=keep, fast=fast, printing=printing)


def _examples_folder() -> Path:
    package = Path(limpet.__file__).parent
    for folder in (package / "_examples", package.parents[1] / "examples"):
        if (folder / "demo" / "__init__.py").is_file():
            return folder
    raise exit_codes.CommandFailure(
        exit_codes.CommandProblem(
            exit_codes.FAILED,
            "no_demo",
            "the demo is not installed.",
            f"There is no folder _examples in {package}, and this is no clone of the repository.",
            "In a clone of Limpet: pip install .",
        )
    )
